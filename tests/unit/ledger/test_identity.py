from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.ledger.identity import Item, Life, Submitter, compare_lives, follows_success, have_succeeded
from airflow_horsies.models import AirflowTry, TaskInstanceKey, TaskState

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


def life(tried: AirflowTry, **row: Any) -> Life:
    recorded = {"run_key": "trace a", "run_started_at": NOON, "try_number": 1, "clear_number": 0, "max_tries": 0}
    return compare_lives(tried, {**recorded, **row})


def traced(key: str = "trace a", number: int = 1, **given: Any) -> AirflowTry:
    return AirflowTry(**{"try_number": number, "run_started_at": NOON, "run_key": key, "trace_key": key, **given})


def test_a_trace_is_that_of_a_life_whoever_submits() -> None:
    assert life(traced(number=2, run_started_at=NOON + timedelta(days=1))) is Life.SAME
    on_worker = AirflowTry(try_number=2, max_tries=9, run_key="of the store", trace_key="trace a", run_started_at=NOON)
    assert life(on_worker) is Life.SAME


def test_another_trace_is_a_newer_life_unless_it_began_before() -> None:
    assert life(traced("trace b", 2)) is Life.NEWER
    assert life(traced("trace b", 1, run_started_at=NOON + timedelta(days=1)), try_number=5) is Life.NEWER
    assert life(traced("trace b", 1), try_number=2) is Life.OLDER
    assert life(traced("trace b", 3, run_started_at=NOON - timedelta(days=1))) is Life.OLDER
    assert life(traced("trace b", 2), run_key="of the store", clear_number=0) is Life.NEWER
    assert life(AirflowTry(try_number=2, run_key="of the store", run_started_at=NOON)) is Life.NEWER


@pytest.mark.parametrize(
    ("tried", "states", "follows"),
    [
        (traced(number=2), [TaskState.COMPLETED, TaskState.COMPLETED], True),
        (traced(number=2), [TaskState.COMPLETED, TaskState.FAILED], False),
        (traced(number=1), [TaskState.COMPLETED, TaskState.COMPLETED], False),
        (AirflowTry(try_number=2, run_key="k"), [TaskState.COMPLETED, TaskState.COMPLETED], False),
    ],
)
def test_a_try_after_a_success_is_no_retry(tried: AirflowTry, states: list[TaskState], follows: bool) -> None:
    newest = [
        {"horsies_task_id": str(n), "place": n, "try_number": 1, "seen_try": None, "run_key": "k"} for n in range(2)
    ]
    assert follows_success(tried, newest, {str(n): state for n, state in enumerate(states)}) is follows
    assert not follows_success(tried, [], {})


@pytest.mark.parametrize(
    ("states", "max_failures", "expected"),
    [
        ([TaskState.COMPLETED, TaskState.FAILED], 1, True),
        ([TaskState.EXPIRED, TaskState.FAILED], 1, False),
        ([TaskState.COMPLETED, TaskState.CANCELLED], 1, False),
        ([TaskState.COMPLETED, TaskState.RUNNING], 1, False),
        ([TaskState.COMPLETED, None], 1, False),
    ],
)
def test_a_try_with_allowed_failures_has_succeeded(
    states: list[TaskState | None], max_failures: int, expected: bool
) -> None:
    assert have_succeeded(states, max_failures) is expected


def test_items_that_are_no_longer_requested_do_not_count() -> None:
    newest = [
        {"horsies_task_id": str(n), "place": -n, "try_number": 1, "seen_try": None, "run_key": "k"} for n in range(2)
    ]
    assert follows_success(traced(number=2), newest, {"0": TaskState.COMPLETED, "1": TaskState.CANCELLED})
