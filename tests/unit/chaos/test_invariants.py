"""The checker of the trials finds each kind of damage, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.invariants import CANCEL_SECONDS, Facts, History, Instance, Outcome, Row, Sent, check

ONE: Instance = ("light", "run-1", "blocking", -1)
BATCH: Instance = ("chaos", "chaos-1", "batch", -1)
STOPPED: Instance = ("light", "run-2", "cancelled", -1)

GOOD = Facts(
    sent=[
        Sent(ONE, 0, 1, 1, "a"),
        Sent(ONE, 0, 1, 2, "b"),
        Sent(ONE, 0, 3, 1, "c"),
        Sent(BATCH, 0, 1, 1, "d"),
        Sent(BATCH, 1, 1, 1, "e"),
        Sent(STOPPED, 0, 1, 1, "f"),
        Sent(STOPPED, 0, 1, 2, "g"),
    ],
    rows=[
        Row("a", "FAILED"),
        Row("b", "COMPLETED", 1),
        Row("c", "COMPLETED", 1),
        Row("d", "COMPLETED", 2),
        Row("e", "COMPLETED", 3),
        Row("f", "CANCELLED"),
        Row("g", "COMPLETED", 4),
    ],
    outcomes=[
        Outcome(ONE, 1, False),
        Outcome(ONE, 3, True, 1),
        Outcome(BATCH, 1, True, [2, 3], size=2),
        Outcome(STOPPED, 1, True, 4),
        Outcome(("chaos", "chaos-1", "sensor", -1), 1, True, size=None),
    ],
    acknowledged={"f": 100.0},
    last_beats={"f": 101.5, "b": 500.0},
    failures={"a/1": ("WORKER_CRASHED", "the worker was killed")},
)


def rules_of(facts: Facts) -> set[str]:
    return {violation.rule for violation in check(facts)}


def row(task_id: str, status: str, value: object = None) -> Facts:
    return replace(GOOD, rows=[each for each in GOOD.rows if each.task_id != task_id] + [Row(task_id, status, value)])


def outcome(instance: Instance, **changes: object) -> Facts:
    return replace(
        GOOD,
        outcomes=[replace(each, **changes) if each.instance == instance else each for each in GOOD.outcomes],  # type: ignore[arg-type]
    )


def test_nothing_is_found_where_all_is_well() -> None:
    assert check(GOOD) == []


BAD = {
    "a row twice": (replace(GOOD, rows=[*GOOD.rows, Row("c", "COMPLETED", 1)]), "one row"),
    "a row gone": (replace(GOOD, rows=[each for each in GOOD.rows if each.task_id != "a"]), "one row"),
    "a row of nobody": (replace(GOOD, rows=[*GOOD.rows, Row("z", "COMPLETED", 1)]), "one row"),
    "a task of two submissions": (replace(GOOD, sent=[*GOOD.sent, Sent(BATCH, 2, 1, 1, "e")]), "one row"),
    "a round left out": (
        replace(GOOD, sent=[*GOOD.sent, Sent(ONE, 0, 3, 3, "x")], rows=[*GOOD.rows, Row("x", "FAILED")]),
        "one row",
    ),
    "a life nobody began": (
        replace(GOOD, sent=[*GOOD.sent, Sent(ONE, 0, 2, 1, "x")], rows=[*GOOD.rows, Row("x", "FAILED")]),
        "one row",
    ),
    "work done twice": (row("a", "COMPLETED", 1), "nothing done twice"),
    "a completion lost": (outcome(ONE, succeeded=False), "no completion lost"),
    "an instance that never ended": (
        replace(outcome(STOPPED, succeeded=False), rows=row("g", "FAILED").rows),
        "everything ends",
    ),
    "a task that never ended": (row("a", "RUNNING"), "everything ends"),
    "success after a failure": (row("c", "FAILED"), "no success without"),
    "another value than stored": (outcome(ONE, succeeded=True, value=2), "no success without"),
    "values of a batch in another order": (outcome(BATCH, value=[3, 2]), "no success without"),
    "success without a submission": (
        replace(GOOD, outcomes=[*GOOD.outcomes, Outcome(("chaos", "chaos-2", "deferred", -1), 1, True, 1)]),
        "no success without",
    ),
    "part of a batch": (outcome(BATCH, size=3), "no success without"),
    "a cancel undone": (row("f", "COMPLETED", 1), "an acknowledged cancel holds"),
    "a fault within a task": (
        replace(GOOD, failures={"a/1": ("UNHANDLED_EXCEPTION", "OSError: no space left on device")}),
        "no fault is raised in a task",
    ),
    "alive after a cancel": (
        replace(GOOD, last_beats={"f": 100.0 + CANCEL_SECONDS + 1}),
        "nothing alive after an acknowledged cancel",
    ),
}


@pytest.mark.parametrize(("facts", "rule"), BAD.values(), ids=BAD)
def test_damage_is_found(facts: Facts, rule: str) -> None:
    assert any(found.startswith(rule) for found in rules_of(facts)), rules_of(facts)


def test_violation_names_the_instance_the_life_and_the_task() -> None:
    (violation,) = check(replace(GOOD, rows=[*GOOD.rows, Row("e", "COMPLETED", 3)]))
    assert "chaos/chaos-1/batch, item 1, life 1, round 1" in str(violation)
    assert "2 rows of task e" in str(violation)


def test_violation_tells_when_the_second_round_was_sent() -> None:
    facts = row("a", "COMPLETED", 1)
    facts = replace(facts, sent=[replace(each, at=7.5) if each.task_id == "b" else each for each in facts.sent])
    assert [violation.at for violation in check(facts)] == [7.5]


def test_row_that_changes_or_vanishes_is_found() -> None:
    history = History()
    history.see("attempt", {"a/1": "FAILED", "a/2": "FAILED"})
    history.see("attempt", {"a/1": "FAILED", "a/3": "COMPLETED"})
    assert history.violations == []
    history.see("attempt", {"a/1": "COMPLETED"}, at=7.0)
    history.must_have_all("attempt", {"a/1": "COMPLETED", "a/3": "COMPLETED"})
    assert [(each.rule, each.of, each.at) for each in history.violations] == [
        ("no attempt changes", "a/1", 7.0),
        ("no attempt vanishes", "a/2", None),
    ]
