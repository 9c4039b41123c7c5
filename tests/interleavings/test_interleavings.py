"""All orders of each pair keep the rules, and broken rules are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_horsies.db import errors
from airflow_horsies.db.statement import sql_text
from airflow_horsies.ledger import batches, cancelling, submitting
from airflow_horsies.wire.statements import Wire
from tests.integration.releases import IN_PLACE, MOVED
from tests.interleavings.batch_pairs import BATCH_PAIRS
from tests.interleavings.pairs import PAIRS, Pair
from tests.interleavings.stage import Stage
from tests.interleavings.trials import Tried, try_pair

StageOf = Callable[[str], Stage]
ALL_PAIRS = (*PAIRS, *BATCH_PAIRS)


def _params() -> list[Any]:
    return [
        pytest.param(
            pair,
            release,
            id=f"{pair.name} on {release}",
            marks=[pytest.mark.slow] if pair.is_long or (release == IN_PLACE and not pair.in_both) else [],
        )
        for release in (IN_PLACE, MOVED)
        for pair in ALL_PAIRS
        if release in pair.releases
    ]


@pytest.mark.parametrize(("pair", "release"), _params())
def test_every_order_keeps_the_rules(
    pair: Pair, release: str, stage_of: StageOf, tell: Callable[[Tried], None]
) -> None:
    tried = try_pair(stage_of(release), pair, with_cuts=False)
    tell(tried)
    assert not tried.violations, tried.describe()


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "release"), [param for param in _params() if param.values[0].cuts])
def test_every_order_keeps_the_rules_though_a_connection_breaks_at_any_step(
    pair: Pair, release: str, stage_of: StageOf, tell: Callable[[Tried], None]
) -> None:
    tried = try_pair(stage_of(release), pair, with_cuts=True)
    tell(tried)
    assert tried.cut
    assert not tried.violations, tried.describe()


def _without(lock: str) -> Callable[[str, str], str]:
    """The statements as they are, but one takes its lock no more."""

    def text(package: str, name: str) -> str:
        found = sql_text(package, name)
        if name != lock:
            return found
        assert "pg_advisory_xact_lock" in found
        return found.replace("pg_advisory_xact_lock", "concat")

    return text


def _first_violation(stage: Stage, name: str) -> str:
    (pair,) = [pair for pair in ALL_PAIRS if pair.name == name]
    tried = try_pair(stage, pair, with_cuts=False, to_first_violation=True)
    assert tried.violations, f"nothing was noticed in {tried.orders} orders"
    return tried.violations[0]


def test_submitting_without_its_lock_is_noticed(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "sql_text", _without("lock_task_instance"))
    told = _first_violation(stage_of(MOVED), "submit and submit")
    assert "2 live tasks of x belong to default/sales/scheduled__1/load/-1" in told


def test_letting_go_of_a_shared_task_without_its_lock_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "sql_text", _without("lock_shared_tasks"))
    told = _first_violation(stage_of(MOVED), "shared key: release and release")
    assert "the task is RUNNING though somebody wished it cancelled" in told


def test_matching_the_items_of_a_batch_by_their_position_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_position(wire: Any, newest: Any, items: Any, tasks: Any) -> Any:
        yield from ()
        return {row["position"]: row for row in newest if row["position"] < len(tasks)}

    monkeypatch.setattr(submitting, "match_items", by_position)
    told = _first_violation(stage_of(MOVED), "batch and reordered batch")
    assert "b asked for z and was told of a task of x" in told


def test_giving_up_where_a_script_has_to_run_again_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "RERUN_SQLSTATES", frozenset())
    told = _first_violation(stage_of(MOVED), "cancel and fail")
    assert "deadlock detected" in told


def test_outcomes_of_items_that_are_written_without_the_lock_of_the_claim_are_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "lock_running_task", Wire.read_running_task)
    told = _first_violation(stage_of(MOVED), "next attempt of a chunk and report of items")
    assert "the earlier attempt recorded (0,), and the next one knows []" in told


def test_using_the_items_of_chunks_by_their_place_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_place(wire: Any, newest: Any, sender: Any) -> Any:
        yield from ()
        numbered = [(row, number, place) for row in newest for number, place in enumerate(row["places"])]
        return {sender.items[place]: batches.Held(row, number, 1) for row, number, place in numbered}

    monkeypatch.setattr(batches, "find_held", by_place)
    told = _first_violation(stage_of(MOVED), "chunked submit and submit with another chunk_size")
    assert "item 0 is z, and Holder(" in told


def test_a_request_to_repair_that_two_make_without_their_lock_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "sql_text", _without("lock_task_instance"))
    told = _first_violation(stage_of(MOVED), "repair request and repair request")
    assert "of 2 requests, open are those of ['another', 'one']" in told
