"""The checker of the trials finds each kind of damage to items of chunks, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.facts import Asked, Facts, Instance, ItemSent, Outcome, Ran, Row, Sent, Violation, Wish
from tests.chaos.invariants import CANCEL_SECONDS, check
from tests.chaos.items import check_items

BATCH: Instance = ("light", "run-1", "chunked", -1)
FIRST, CLEARED = (1, 0, 2), (1, 1, 3)
EARLY, LATE = "2026-01-01T00:00:01.000000+00:00", "2026-01-01T00:00:09.000000+00:00"


def value(asked: str, task_id: str, claim: str = EARLY) -> dict[str, str]:
    return {"asked": asked, "task": task_id, "claim": claim}


def completed(chunk: Sent, number: int, work: str, **more: object) -> ItemSent:
    given = value(work.lower(), chunk.task_id)
    item = ItemSent(chunk, number, work, place=number, outcome="COMPLETED", value=given, seen_at=20)
    return replace(item, **more)  # type: ignore[arg-type]


# X completes in the first chunk and Y fails; a retry sends Y in a second one. A repair keeps both, and Z is new in it.
ONE = Sent(BATCH, 0, 1, 1, "one", 10, FIRST, "digest 1")
TWO = Sent(BATCH, 1, 1, 1, "two", 30, FIRST, "digest 2", place=1)
KEPT_ONE = replace(ONE, life=2, at=60, key=CLEARED)
KEPT_TWO = replace(TWO, life=2, at=60, key=CLEARED)
THREE = Sent(BATCH, 2, 2, 1, "three", 60, CLEARED, "digest 3")
X = completed(ONE, 0, "X")
Y = ItemSent(ONE, 1, "Y", place=-1, outcome="FAILED", code="BAD", message=f"it fails, {EARLY}", seen_at=21)
Y_AGAIN = completed(TWO, 0, "Y", round=2, place=1, seen_at=40)
Z = completed(THREE, 0, "Z", place=2, seen_at=70)
GOOD = Facts(
    sent=[ONE, TWO, KEPT_ONE, KEPT_TWO, THREE],
    rows=[Row("one", "FAILED", ended_at=22), Row("two", "COMPLETED", ended_at=41), Row("three", "COMPLETED")],
    items=[X, Y, Y_AGAIN, Z, replace(X, chunk=KEPT_ONE), replace(Y, chunk=KEPT_ONE), replace(Y_AGAIN, chunk=KEPT_TWO)],
    ran=[
        Ran("one", EARLY, "X", 12),
        Ran("one", EARLY, "Y", 13),
        Ran("two", EARLY, "Y", 33),
        Ran("three", EARLY, "Z", 63),
    ],
    outcomes=[
        Outcome(BATCH, 1, True, [value("x", "one"), value("y", "two")], ("x", "y"), is_batch=True, key=FIRST, began=9),
        Outcome(
            BATCH,
            2,
            True,
            [value("x", "one"), value("y", "two"), value("z", "three")],
            ("x", "y", "z"),
            is_batch=True,
            key=CLEARED,
            began=50,
            keeps=True,
        ),
    ],
    asked=[
        Asked(BATCH, 9, 1, FIRST, ("X", "Y")),
        Asked(BATCH, 29, 1, FIRST, ("X", "Y")),
        Asked(BATCH, 59, 2, CLEARED, ("X", "Y", "Z")),
    ],
    wishes=[Wish(BATCH, 50, 1)],
    repaired={(BATCH, CLEARED): 50},
)


def all_violations(facts: Facts) -> list[Violation]:
    return [*check(facts), *check_items(facts)]


def with_items(*items: ItemSent) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, items=[*facts.items, *items])


def test_nothing_is_found_where_all_is_well() -> None:
    assert all_violations(GOOD) == []


SENT_AGAIN = Sent(BATCH, 2, 1, 1, "again", 45, FIRST, "digest 4", place=-1)
FOUR = Sent(BATCH, 3, 2, 1, "four", 60, CLEARED, "digest 5", place=-1)
DAMAGE: list[tuple[str, Facts]] = [
    (
        "an item that completed is not sent again",
        replace(
            GOOD,
            sent=[*GOOD.sent, SENT_AGAIN],
            rows=[*GOOD.rows, Row("again", "COMPLETED")],
            items=[*GOOD.items, completed(SENT_AGAIN, 0, "X", round=2, place=-1, seen_at=47)],
        ),
    ),
    (
        "a repair runs only what failed",
        replace(
            GOOD,
            sent=[*GOOD.sent, FOUR],
            rows=[*GOOD.rows, Row("four", "COMPLETED")],
            items=[*GOOD.items, completed(FOUR, 0, "X", place=-1, seen_at=65)],
        ),
    ),
    ("a recorded item does not run again", replace(GOOD, ran=[*GOOD.ran, Ran("one", LATE, "X", 25)])),
    ("a recorded item does not run again", replace(GOOD, ran=[*GOOD.ran, Ran("one", LATE, "Y", 25)])),
    (
        "a dropped item does not begin",
        replace(
            GOOD,
            asked=[GOOD.asked[0], replace(GOOD.asked[1], works=("X",)), GOOD.asked[2]],
            ran=[*GOOD.ran, Ran("one", EARLY, "Y", 30 + CANCEL_SECONDS)],
        ),
    ),
    ("one holder of each item", with_items(replace(Z, number=1, work="V", place=0))(GOOD)),
    ("an outcome is that of its item", with_items(replace(Z, number=1, work="V", place=-1, value=None))(GOOD)),
    (
        "no fault is raised in a task",
        with_items(replace(Y, number=2, work="V", code="UNHANDLED_EXCEPTION"))(GOOD),
    ),
    # A clear that nobody asked to repair anything.
    (
        "a clear runs again",
        replace(GOOD, outcomes=[GOOD.outcomes[0], replace(GOOD.outcomes[1], keeps=False)]),
    ),
    ("one row per task instance, life and round", replace(GOOD, repaired={})),
    (
        "a value belongs to the arguments asked for",
        replace(GOOD, items=[item for item in GOOD.items if item.work != "Z"]),
    ),
]


@pytest.mark.parametrize(("rule", "facts"), DAMAGE, ids=[f"{n} {rule}" for n, (rule, _) in enumerate(DAMAGE)])
def test_damage_is_found(rule: str, facts: Facts) -> None:
    assert rule in {violation.rule for violation in all_violations(facts)}


def test_run_made_again_keeps_nothing() -> None:
    remade = (2, 0, 2)
    again = [replace(each, life=2, task_id=f"new {each.task_id}", key=remade, at=60) for each in (ONE, THREE)]
    facts = replace(
        GOOD,
        sent=[ONE, TWO, *again],
        rows=[*GOOD.rows, *(Row(each.task_id, "COMPLETED") for each in again)],
        items=[X, Y, Y_AGAIN, completed(again[0], 0, "X", seen_at=70), completed(again[0], 1, "Y", seen_at=70)],
        repaired={(BATCH, remade): 50},
    )
    assert not [each for each in check_items(facts) if each.rule == "a repair runs only what failed"]


def test_chunk_that_was_cancelled_with_nothing_left_to_run_needs_no_wish() -> None:
    rows = [Row("one", "CANCELLED", ended_at=22), *GOOD.rows[1:]]
    cancelled = replace(GOOD, rows=rows, wishes=())
    assert all_violations(cancelled) == []
    unended = replace(Y, outcome="", message="", code="")
    left = replace(cancelled, items=[X, unended, Z], sent=[ONE, THREE])
    assert "nothing is cancelled without a wish" in {violation.rule for violation in check(left)}


def test_chunk_that_was_cancelled_before_a_repair_kept_it_needs_no_wish_of_that_life() -> None:
    unended = replace(X, outcome="", value=None, seen_at=None, place=-1)
    rows = [Row("one", "CANCELLED", ended_at=55), *GOOD.rows[1:]]
    items = [unended, Y, Y_AGAIN, Z, replace(unended, chunk=KEPT_ONE), replace(Y_AGAIN, chunk=KEPT_TWO)]
    kept = replace(GOOD, rows=rows, items=items, asked=[replace(each, max_failures=1) for each in GOOD.asked])
    assert "nothing is cancelled without a wish" not in {violation.rule for violation in check(kept)}
    later = replace(kept, rows=[replace(rows[0], ended_at=65), *rows[1:]])
    assert "nothing is cancelled without a wish" in {violation.rule for violation in check(later)}
