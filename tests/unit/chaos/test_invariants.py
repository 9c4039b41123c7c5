"""The checker of the trials finds each kind of damage, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.facts import Asked, Facts, Instance, Outcome, Row, Sent, Wish
from tests.chaos.invariants import CANCEL_SECONDS, History, check

ONE: Instance = ("light", "run-1", "blocking", -1)
BATCH: Instance = ("light", "run-2", "batch", -1)
STOPPED: Instance = ("light", "run-3", "cancelled", -1)
MARKED: Instance = ("light", "run-4", "deferred", -1)
AIRFLOW: Instance = ("chaos", "chaos-1", "deferred", -1)
SENSOR: Instance = ("chaos", "chaos-1", "sensor", -1)
BEFORE, AFTER = (1, 0, 2), (1, 1, 3)


def value(asked: str, task_id: str) -> dict[str, str]:
    return {"asked": asked, "task": task_id}


# One is cleared after its second round; of the batch x fails once, y is dropped and z is asked for twice.
GOOD = Facts(
    sent=[
        Sent(ONE, 0, 1, 1, "a", 10, BEFORE, "A"),
        Sent(ONE, 0, 1, 2, "b", 20, BEFORE, "A"),
        Sent(ONE, 0, 2, 1, "c", 31, AFTER, "A"),
        Sent(BATCH, 0, 1, 1, "d", 10, BEFORE, "X"),
        Sent(BATCH, 0, 1, 2, "e", 20, BEFORE, "X"),
        Sent(BATCH, 1, 1, 1, "f", 10, BEFORE, "Y", place=-1),
        Sent(BATCH, 2, 1, 1, "g", 10, BEFORE, "Z", place=1),
        Sent(BATCH, 3, 1, 1, "h", 20, BEFORE, "Z", occurrence=1, place=2),
        Sent(STOPPED, 0, 1, 1, "i", 90, BEFORE, "S"),
        Sent(STOPPED, 0, 1, 2, "j", 110, BEFORE, "S"),
        Sent(MARKED, 0, 1, 1, "k", 10, BEFORE, "M", released_at=12),
        Sent(AIRFLOW, 0, 1, 1, "l", 10, ("run", 0, 500), "L"),
    ],
    rows=[
        Row("a", "FAILED", ended_at=15),
        Row("b", "COMPLETED", value("A", "b"), 25),
        Row("c", "COMPLETED", value("A", "c"), 35),
        Row("d", "FAILED", ended_at=12),
        Row("e", "COMPLETED", value("X", "e"), 25),
        Row("f", "CANCELLED", ended_at=20),
        Row("g", "COMPLETED", value("Z", "g"), 25),
        Row("h", "COMPLETED", value("Z", "h"), 25),
        Row("i", "CANCELLED", ended_at=100),
        Row("j", "COMPLETED", value("S", "j"), 120),
        Row("k", "CANCELLED", ended_at=12),
        Row("l", "COMPLETED", value("L", "l"), 20),
    ],
    outcomes=[
        Outcome(ONE, 1, True, value("A", "b"), ["A"], key=BEFORE, began=5),
        Outcome(ONE, 2, True, value("A", "c"), ["A"], key=AFTER, began=30),
        Outcome(
            BATCH,
            1,
            True,
            [value("X", "e"), value("Z", "g"), value("Z", "h")],
            ["X", "Z", "Z"],
            is_batch=True,
            key=BEFORE,
            began=5,
        ),
        Outcome(STOPPED, 1, True, value("S", "j"), ["S"], key=BEFORE),
        Outcome(MARKED, 1, False, was_marked=True),
        Outcome(AIRFLOW, 1, True, value("L", "l"), ["L"]),
        Outcome(SENSOR, 1, True, asked=None),
    ],
    acknowledged={"i": 100.0},
    last_beats={"i": 101.5, "b": 25.0, "k": 13.0, "f": 21.0},
    failures={"a/1": ("WORKER_CRASHED", "the worker was killed")},
    asked=[
        Asked(ONE, 9, 1, BEFORE, ["A"]),
        Asked(ONE, 19, 1, BEFORE, ["A"]),
        Asked(ONE, 30, 2, AFTER, ["A"]),
        Asked(BATCH, 9, 1, BEFORE, ["X", "Y", "Z"]),
        Asked(BATCH, 19, 1, BEFORE, ["X", "Z", "Z"]),
        Asked(STOPPED, 89, 1, BEFORE, ["S"]),
        Asked(MARKED, 9, 1, BEFORE, ["M"]),
    ],
    wishes=[Wish(ONE, 30, 1), Wish(STOPPED, 99), Wish(MARKED, 11, 1)],
)


def rules_of(facts: Facts) -> set[str]:
    return {violation.rule for violation in check(facts)}


def row(task_id: str, status: str, kept: object = None, ended_at: float | None = None) -> Facts:
    others = [each for each in GOOD.rows if each.task_id != task_id]
    return replace(GOOD, rows=[*others, Row(task_id, status, kept, ended_at)])


def outcome(instance: Instance, **changes: object) -> Facts:
    return replace(
        GOOD,
        outcomes=[replace(each, **changes) if each.instance == instance else each for each in GOOD.outcomes],  # type: ignore[arg-type]
    )


def sent(task_id: str, **changes: object) -> Facts:
    return replace(
        GOOD,
        sent=[replace(each, **changes) if each.task_id == task_id else each for each in GOOD.sent],  # type: ignore[arg-type]
    )


def also_sent(one: Sent, status: str = "FAILED") -> Facts:
    return replace(GOOD, sent=[*GOOD.sent, one], rows=[*GOOD.rows, Row(one.task_id, status)])


def test_nothing_is_found_where_all_is_well() -> None:
    assert check(GOOD) == []


WISH, COMPLETE = "nothing is cancelled without a wish", "no success over work that did not complete"
BELONGS, AGAIN, LIFE = "a value belongs to the arguments", "a clear runs again", "one life between two clears"
BAD = {
    "a row twice": (replace(GOOD, rows=[*GOOD.rows, Row("c", "COMPLETED", value("A", "c"))]), "one row"),
    "a row gone": (replace(GOOD, rows=[each for each in GOOD.rows if each.task_id != "a"]), "one row"),
    "a row of nobody": (replace(GOOD, rows=[*GOOD.rows, Row("z", "COMPLETED", 1)]), "one row"),
    "a task of two submissions": (also_sent(Sent(BATCH, 4, 1, 1, "e", 10, BEFORE, "W")), "one row"),
    "a round left out": (also_sent(Sent(ONE, 0, 2, 3, "x", 40, AFTER, "A")), "one row"),
    "two lives without a clear": (also_sent(Sent(BATCH, 0, 2, 1, "x", 40, BEFORE, "W")), LIFE),
    "one life in spite of a clear": (also_sent(Sent(BATCH, 5, 1, 1, "x", 40, AFTER, "W")), LIFE),
    "a life that Airflow never had": (also_sent(Sent(ONE, 0, 3, 1, "x", 40, (1, 7, 9), "A")), LIFE),
    "completed work run again": (row("a", "COMPLETED", value("A", "a")), "an edit does not run again"),
    "completed work run again in another life": (
        also_sent(Sent(BATCH, 0, 2, 1, "x", 40, BEFORE, "X")),
        "an edit does not run again",
    ),
    "a completion lost": (outcome(ONE, succeeded=False), "no completion lost"),
    "an instance that never ended": (
        replace(outcome(STOPPED, succeeded=False), rows=row("j", "FAILED").rows),
        "everything ends",
    ),
    "a task that never ended": (row("a", "RUNNING"), "everything ends"),
    "success after a failure": (row("c", "FAILED"), COMPLETE),
    "an empty list": (outcome(BATCH, value=[]), COMPLETE),
    "a partial list": (outcome(BATCH, value=[value("X", "e")]), COMPLETE),
    "no list": (outcome(BATCH, value=None), COMPLETE),
    "more failures than agreed": (outcome(BATCH, value=[None, value("Z", "g"), value("Z", "h")]), COMPLETE),
    "a value of a task that failed": (row("g", "FAILED", value("Z", "g")), COMPLETE),
    "another value than stored": (row("c", "COMPLETED", value("A", "other")), BELONGS),
    "no value": (outcome(AIRFLOW, value=None), BELONGS),
    "a value of other arguments": (outcome(AIRFLOW, asked=["other"]), BELONGS),
    "values of a batch in another order": (
        outcome(BATCH, value=[value("Z", "g"), value("X", "e"), value("Z", "h")]),
        BELONGS,
    ),
    "the value of an earlier life": (
        replace(GOOD, outcomes=[*GOOD.outcomes, Outcome(ONE, 3, True, value("A", "b"), ["A"], key=AFTER)]),
        AGAIN,
    ),
    "a value computed before the life began": (outcome(ONE, began=50), AGAIN),
    "a cancel nobody wished": (row("a", "CANCELLED", ended_at=15), WISH),
    "a cancel before the wish": (row("k", "CANCELLED", ended_at=9), WISH),
    "a cancel of what is still asked for": (row("d", "CANCELLED", ended_at=12), WISH),
    "a cancel of work that only an earlier try did not ask for": (
        replace(
            GOOD,
            sent=[*GOOD.sent, Sent(ONE, 1, 2, 1, "x", 33, AFTER, "B")],
            rows=[*GOOD.rows, Row("x", "CANCELLED", ended_at=34)],
            asked=[*GOOD.asked, Asked(ONE, 32, 2, AFTER, ["B"])],
        ),
        WISH,
    ),
    "a batch cancelled though fewer failed than may": (
        replace(
            row("g", "CANCELLED", ended_at=15),
            asked=[replace(each, max_failures=1) for each in GOOD.asked],
        ),
        WISH,
    ),
    "dropped work that goes on": (
        replace(GOOD, last_beats={"f": 20.0 + CANCEL_SECONDS + 1}),
        "nothing unwanted goes on",
    ),
    "work of an earlier life that goes on": (
        replace(GOOD, last_beats={"a": 31.0 + CANCEL_SECONDS + 1}),
        "nothing unwanted goes on",
    ),
    "work of a marked instance that goes on": (
        replace(GOOD, last_beats={"k": 12.0 + CANCEL_SECONDS + 1}),
        "nothing unwanted goes on",
    ),
    "a cancel undone": (row("i", "COMPLETED", 1), "an acknowledged cancel holds"),
    "a fault within a task": (
        replace(GOOD, failures={"a/1": ("UNHANDLED_EXCEPTION", "OSError: no space left on device")}),
        "no fault is raised in a task",
    ),
    "alive after a cancel": (
        replace(GOOD, last_beats={"i": 100.0 + CANCEL_SECONDS + 1}),
        "nothing alive after an acknowledged cancel",
    ),
}


@pytest.mark.parametrize(("facts", "rule"), BAD.values(), ids=BAD)
def test_damage_is_found(facts: Facts, rule: str) -> None:
    assert any(found.startswith(rule) for found in rules_of(facts)), rules_of(facts)


def test_cancel_of_what_is_left_of_a_failed_batch_needs_no_other_wish() -> None:
    assert WISH not in rules_of(row("g", "CANCELLED", ended_at=15))


def test_cancel_by_the_next_life_needs_no_other_wish() -> None:
    facts = replace(row("b", "CANCELLED", ended_at=31), wishes=[])
    assert WISH not in {each.rule for each in check(facts) if "run-1" in each.of}


def test_as_many_failures_as_agreed_are_a_success() -> None:
    facts = replace(
        outcome(BATCH, value=[None, value("Z", "g"), value("Z", "h")], max_failures=1),
        rows=row("e", "FAILED").rows,
    )
    assert check(facts) == []


def test_violation_names_the_instance_the_life_and_the_task() -> None:
    (violation,) = check(replace(GOOD, rows=[*GOOD.rows, Row("f", "CANCELLED", ended_at=20)]))
    assert "light/run-2/batch, item 1, life 1, round 1" in str(violation)
    assert "2 rows of task f" in str(violation)


def test_violation_tells_when_the_second_round_was_sent() -> None:
    assert [violation.at for violation in check(row("a", "COMPLETED", value("A", "a")))] == [20]


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
