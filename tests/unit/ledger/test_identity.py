from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.ledger.identity import Item, Submitter
from airflow_horsies.models import AirflowTry, TaskInstanceKey

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def derived(work: bytes = b"w", occurrence: int = 0, round_: int = 1, **given: Any) -> str:
    instance = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    instance |= {name: value for name, value in given.items() if name in instance}
    tried = {name: given[name] for name in ("try_number", "max_tries", "clear_number", "run_key") if name in given}
    submitter = Submitter(
        namespace=given.get("namespace", "n"),
        base_url=given.get("base_url", "u"),
        task_instance=TaskInstanceKey(**instance),  # type: ignore[arg-type]
        tried=AirflowTry(**{"try_number": 1, "run_started_at": given.get("run_started_at", NOON), **tried}),
    )
    return submitter.derive_task_id(Item(work, occurrence), round_)


def test_derived_id_is_fixed_for_ever() -> None:
    # Ids like this one are in databases: a change here would double running tasks.
    assert derived() == "d4f2a9bd-dd78-56ab-a0f9-657b2695fa2f"
    assert derived(base_url="v", try_number=2) == derived()
    assert derived(run_key="k", run_started_at=NOON + timedelta(days=1)) == derived(run_key="k")


def test_derived_ids_differ_by_instance_run_life_item_and_round() -> None:
    ids = [
        derived(),
        derived(b"v"),
        derived(occurrence=1),
        derived(round_=2),
        derived(clear_number=1),
        derived(max_tries=1),
        derived(run_key="k"),
        derived(run_started_at=NOON + timedelta(days=1)),
        derived(namespace="m"),
        derived(dag_id="x"),
        derived(run_id="x"),
        derived(task_id="x"),
        derived(map_index=1),
        derived(dag_id='d","r', run_id="r"),
    ]
    assert len(set(ids)) == len(ids)
