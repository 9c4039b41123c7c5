"""What must hold of each item of a chunk, whatever happened to its chunk: plain facts go in, violations come out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tests.chaos.facts import COMPLETED, Facts, Instance, ItemSent, LifeKey, Outcome, Sent, Violation
from tests.chaos.invariants import CANCEL_SECONDS, CLOCK_SECONDS, NOT_ASKED_FOR, UNHANDLED, is_dropped, name_of

CLAIM = ", "


class Held(NamedTuple):
    """An item in a task: that of a chunk, or a task of its own."""

    sent: Sent
    work: str
    occurrence: int
    round: int
    place: int
    # When it was seen that it has completed, if it has.
    completed_at: float | None

    @property
    def item(self) -> tuple[str, int]:
        return self.work, self.occurrence


def check_items(facts: Facts) -> list[Violation]:
    rules = (
        one_holder,
        completed_items_are_not_sent_again,
        repairs_run_only_what_failed,
        recorded_items_do_not_run_again,
        dropped_items_do_not_begin,
        outcomes_are_of_their_items,
        code_of_items_is_left_alone,
    )
    return [violation for rule in rules for violation in rule(facts)]


def one_holder(facts: Facts) -> Iterator[Violation]:
    """Where a batch succeeded, each item of it has one holder in its life."""
    held = _by_life(facts)
    for each in facts.outcomes:
        if not each.succeeded or not each.is_batch or not each.asked or each.key is None:
            continue
        holders = held.get((each.instance, each.key), [])
        # Edits and lives since then may have moved them.
        if not holders or not _is_last(facts, each, holders[0].sent.life):
            continue
        places = Counter(holder.place for holder in holders if holder.place != NOT_ASKED_FOR)
        if places != Counter(range(len(each.asked))):
            said = f"{len(each.asked)} items were asked for, and the holders of each place are {dict(places)}"
            yield Violation("one holder of each item", name_of(each.instance, each.life), said, each.began)


def _is_last(facts: Facts, outcome: Outcome, life: int) -> bool:
    """Whether no later life has submitted, and the last try of this one asked for what it succeeded with."""
    tries = [each for each in facts.asked if each.instance == outcome.instance and each.key == outcome.key]
    newest = max(each.life for each in facts.sent if each.instance == outcome.instance)
    return life == newest and bool(tries) and len(tries[-1].works) == len(outcome.asked or ())


def completed_items_are_not_sent_again(facts: Facts) -> Iterator[Violation]:
    """An item that was seen completed is not sent again between two clears, in whatever chunks."""
    for holders in _by_life(facts).values():
        by_item = defaultdict(list)
        for holder in holders:
            by_item[holder.item].append(holder)
        for found in by_item.values():
            for holder in found:
                yield from _sent_after(holder, found)


def _sent_after(completed: Held, others: list[Held]) -> Iterator[Violation]:
    for other in others:
        if completed.completed_at is None or other.sent.task_id == completed.sent.task_id or other.sent.at is None:
            continue
        if other.sent.at > completed.completed_at + CLOCK_SECONDS and other.round > completed.round:
            said = f"{completed.item} completed in {completed.sent.task_id}, and was sent again in round {other.round}"
            of = name_of(other.sent.instance, other.sent.life)
            yield Violation("an item that completed is not sent again", of, said, other.sent.at)


def repairs_run_only_what_failed(facts: Facts) -> Iterator[Violation]:
    """A clear that repairs sends nothing that was seen completed before it."""
    held = _by_life(facts)
    for (instance, key), began in facts.repaired.items():
        here = held.get((instance, key), [])
        if not here:
            continue
        number = min(holder.sent.life for holder in here)
        before = _life_before(facts, held, instance, number)
        # A run that was made again keeps nothing.
        done = {h.item: h for h in before if h.sent.key[0] == key[0] and _is_before(h.completed_at, began)}
        tasks = {holder.sent.task_id for holder in before}
        for holder in here:
            if holder.item in done and holder.sent.task_id not in tasks:
                said = f"{holder.item} had completed in {done[holder.item].sent.task_id}, and was sent again"
                yield Violation("a repair runs only what failed", name_of(instance, number), said, holder.sent.at)


def _life_before(
    facts: Facts, held: dict[tuple[Instance, LifeKey], list[Held]], instance: Instance, number: int
) -> list[Held]:
    last = max((each.life for each in facts.sent if each.instance == instance and each.life < number), default=0)
    holders = [h for (of, _), found in held.items() if of == instance for h in found if h.sent.life == last]
    # Of several rounds, the last one counts.
    return list({holder.item: holder for holder in sorted(holders, key=lambda h: h.round)}.values())


def _is_before(seen_at: float | None, began: float) -> bool:
    return seen_at is not None and seen_at < began - CLOCK_SECONDS


def recorded_items_do_not_run_again(facts: Facts) -> Iterator[Violation]:
    """What has an outcome is run under no later claim of its chunk."""
    runs = defaultdict(list)
    for ran in facts.ran:
        runs[ran.task_id, ran.work].append(ran)
    for task_id, items in facts.by_chunk.items():
        for item in items:
            claim = _claim_of(item)
            if claim and not _is_doubled(item, facts):
                for ran in runs[task_id, item.work]:
                    if ran.claim > claim:
                        said = f"item {item.number} is {item.outcome} by claim {claim}, and ran by claim {ran.claim}"
                        yield Violation("a recorded item does not run again", task_id, said, ran.at)


def _is_doubled(item: ItemSent, facts: Facts) -> bool:
    """Of several equal items of a chunk, nobody knows which of them ran."""
    return any(other.work == item.work and other.number != item.number for other in facts.by_chunk[item.chunk.task_id])


def _claim_of(item: ItemSent) -> str:
    """Under which it was recorded: both its value and its message tell."""
    if item.outcome == COMPLETED:
        return str(item.value["claim"]) if isinstance(item.value, dict) else ""
    return item.message.rpartition(CLAIM)[2] if item.outcome == "FAILED" and CLAIM in item.message else ""


def dropped_items_do_not_begin(facts: Facts) -> Iterator[Violation]:
    """What a later try no longer asks for is not begun long after that."""
    began = defaultdict(float)
    for ran in facts.ran:
        began[ran.task_id, ran.work] = max(began[ran.task_id, ran.work], ran.at)
    tries = defaultdict(list)
    for each in facts.asked:
        tries[each.instance, each.key].append(each)
    for item in facts.items:
        if _is_doubled(item, facts):
            continue
        of_life = tries[item.chunk.instance, item.chunk.key]
        alone = replace(item.chunk, work=item.work, occurrence=item.occurrence)
        at = began[item.chunk.task_id, item.work] - CANCEL_SECONDS
        if item.place == NOT_ASKED_FOR and at > 0 and is_dropped(alone, [each for each in of_life if each.at < at]):
            said = f"item {item.number} of {item.chunk.task_id} began though nobody asked for it for {CANCEL_SECONDS} s"
            of = name_of(item.chunk.instance, item.chunk.life)
            yield Violation("a dropped item does not begin", of, said, at)


def outcomes_are_of_their_items(facts: Facts) -> Iterator[Violation]:
    """The value of an item tells of the chunk that ran it, and of what it was asked for."""
    for item in facts.items:
        if item.outcome == COMPLETED and (not isinstance(item.value, dict) or item.value["task"] != item.chunk.task_id):
            said = f"item {item.number} has {item.value!r}"
            yield Violation("an outcome is that of its item", item.chunk.task_id, said)


def code_of_items_is_left_alone(facts: Facts) -> Iterator[Violation]:
    for item in facts.items:
        if item.code == UNHANDLED:
            yield Violation("no fault is raised in a task", f"{item.chunk.task_id}/{item.number}", item.message)


def _by_life(facts: Facts) -> dict[tuple[Instance, LifeKey], list[Held]]:
    """Who holds the items of each life, whether in chunks or alone."""
    held = defaultdict(list)
    for item in facts.items:
        completed_at = item.seen_at if item.outcome == COMPLETED else None
        place = Held(item.chunk, item.work, item.occurrence, item.round, item.place, completed_at)
        held[item.chunk.instance, item.chunk.key].append(place)
    latest = {}
    for each in sorted(facts.sent, key=lambda each: each.round):
        latest[each.instance, each.life, each.position] = each.task_id
    for each in facts.sent:
        if each.task_id in facts.by_chunk:
            continue
        row = facts.by_task.get(each.task_id)
        ended = row.ended_at if row is not None and row.status == COMPLETED else None
        place = each.position if each.place is None else each.place
        if latest[each.instance, each.life, each.position] != each.task_id:
            # A later round took its place.
            place = NOT_ASKED_FOR
        held[each.instance, each.key].append(Held(each, each.work, each.occurrence, each.round, place, ended))
    return held
