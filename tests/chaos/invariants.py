"""What must hold after the trials, whatever happened or changed: plain facts go in, violations come out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.chaos.facts import (
    CANCELLED,
    COMPLETED,
    Asked,
    Facts,
    Instance,
    LifeKey,
    Outcome,
    Row,
    Sent,
    Violation,
)

UNHANDLED = "UNHANDLED_EXCEPTION"
LIVE = frozenset({"PENDING", "CLAIMED", "RUNNING"})
# How long after a task is cancelled, or no longer wanted, it may still be seen: workers look every second, but they,
# their connections and the database are killed, paused, locked and cut all the time.
CANCEL_SECONDS = 45.0
# Between the clock of the database and that of the trials, which are read one after the other.
CLOCK_SECONDS = 1.0
NOT_ASKED_FOR = -1


def check(facts: Facts) -> list[Violation]:
    rules = (
        one_row,
        one_life,
        edits_do_not_run_again,
        completions_arrive,
        values_belong,
        successes_are_complete,
        clears_run_again,
        wishes_stand_behind_cancels,
        unwanted_work_ends,
        cancels_end,
        code_is_left_alone,
    )
    return [violation for rule in rules for violation in rule(facts)]


def one_row(facts: Facts) -> Iterator[Violation]:
    """One horsies row per task instance, life, item and round, and none beside."""
    rule = "one row per task instance, life and round"
    found = Counter(row.task_id for row in facts.rows)
    for (task_id, life), count in Counter((each.task_id, each.life) for each in facts.sent).items():
        if count > 1:
            yield Violation(rule, task_id, f"is recorded for {count} submissions of life {life}")
    for each in _again(facts):
        if (each.instance, each.key) not in {*facts.repaired, *facts.unsure}:
            yield Violation(rule, each.task_id, f"is recorded again for {_named(each)}, which keeps nothing", each.at)
    for each in facts.sent:
        if found[each.task_id] != 1:
            said = f"horsies has {found[each.task_id]} rows of task {each.task_id}"
            yield Violation(rule, _named(each), said, each.at)
    for task_id in found.keys() - {each.task_id for each in facts.sent}:
        yield Violation(rule, task_id, "horsies has a row that no task instance submitted")
    rounds = defaultdict(list)
    for each in facts.sent:
        rounds[each.instance, each.position, each.life].append(each.round)
    for (instance, position, life), numbers in rounds.items():
        # What takes the place of other work goes on counting where that ended.
        if sorted(numbers) != list(range(min(numbers), min(numbers) + len(numbers))):
            yield Violation(rule, name_of(instance, life, position), f"its rounds are {sorted(numbers)}")


def one_life(facts: Facts) -> Iterator[Violation]:
    """What is sent between two clears is one life in the ledger, and nothing else is; and Airflow knows of it."""
    rule = "one life between two clears"
    keys, lives = defaultdict(set), defaultdict(set)
    for each in facts.sent:
        keys[each.instance, each.life].add(each.key)
        lives[each.instance, each.key].add(each.life)
    for (instance, life), found in keys.items():
        if len(found) > 1:
            yield Violation(
                rule, name_of(instance, life), f"has work of {len(found)} lives of Airflow: {sorted(found)}"
            )
    for (instance, key), numbers in lives.items():
        if len(numbers) > 1:
            yield Violation(rule, name_of(instance, max(numbers)), f"Airflow's {key} was given lives {sorted(numbers)}")
    began = {(each.instance, each.key) for each in facts.asked}
    told = {each.instance for each in facts.asked}
    for instance, key in lives.keys() - began:
        if instance in told:
            yield Violation(rule, name_of(instance, min(lives[instance, key])), f"Airflow never had {key}")


def edits_do_not_run_again(facts: Facts) -> Iterator[Violation]:
    """What completed is not run again between two clears, whatever else is edited."""
    rows = {row.task_id: row for row in facts.rows}
    rounds = defaultdict(list)
    for each in sorted(facts.sent, key=lambda each: (each.life, each.round)):
        rounds[each.instance, each.key, each.work or each.position, each.occurrence].append(each)
    for sent in rounds.values():
        for each in sent[:-1]:
            row = rows.get(each.task_id)
            if row is not None and row.status == COMPLETED:
                said = f"completed, and was followed by life {sent[-1].life}, round {sent[-1].round}"
                yield Violation("an edit does not run again", _named(each), said, sent[-1].at)


def completions_arrive(facts: Facts) -> Iterator[Violation]:
    """Every completion reaches Airflow; after the faults everything ends well, so every last life must."""
    latest = {each.instance: each.life for each in sorted(facts.outcomes, key=lambda each: each.life)}
    results = _latest(facts)
    for each in facts.outcomes:
        if each.succeeded or each.was_marked or each.life != latest[each.instance]:
            continue
        rows = results.get(each.instance, [])
        said = ", ".join(f"{row.task_id} {row.status}" for row in rows)
        if rows and all(row.status == COMPLETED for row in rows):
            yield Violation(
                "no completion lost", name_of(each.instance, each.life), f"completed as {said}; {each.state}"
            )
        else:
            told = f"{each.state or 'has not succeeded'}; horsies: {said or 'nothing'}"
            yield Violation("everything ends", name_of(each.instance, each.life), told)
    for row in facts.rows:
        if row.status in LIVE:
            yield Violation("everything ends", row.task_id, f"is {row.status} after all was quiet")


def values_belong(facts: Facts) -> Iterator[Violation]:
    """A value is what horsies keeps of a task that was asked for exactly this."""
    rule = "a value belongs to the arguments asked for"
    rows = {row.task_id: row for row in facts.rows}
    for each, place, value in _values(facts):
        name = f"{name_of(each.instance, each.life)}, value {place}"
        asked = each.asked or ()
        if place >= len(asked):
            continue
        if not isinstance(value, Mapping) or value.get("asked") != asked[place]:
            yield Violation(rule, name, f"asked for {asked[place]!r}, and was given {value!r}", each.began)
            continue
        if not facts.keeps_value(value):
            kept = facts.by_chunk.get(value["task"]) or rows.get(value["task"])
            yield Violation(rule, name, f"was given {value!r}, and horsies keeps {kept!r}", each.began)


def successes_are_complete(facts: Facts) -> Iterator[Violation]:
    """Where Airflow says success, every item that was asked for has completed, or fewer failed than may."""
    rule = "no success over work that did not complete"
    rows = {row.task_id: row for row in facts.rows}
    for each in facts.outcomes:
        if not each.succeeded or each.asked is None:
            continue
        name, values = name_of(each.instance, each.life), each.values
        if values is None or len(values) != len(each.asked):
            yield Violation(rule, name, f"asked for {len(each.asked)} items, and was given {each.value!r}", each.began)
            continue
        missing = sum(value is None for value in values)
        if missing > each.max_failures:
            said = f"{missing} of {len(values)} have no value, and {each.max_failures} may fail"
            yield Violation(rule, name, said, each.began)
        for value in values:
            if value is None:
                continue
            has_task = isinstance(value, Mapping) and "task" in value
            if not has_task or not facts.is_completed(value["task"]):
                row = rows.get(value["task"]) if has_task else None
                yield Violation(rule, name, f"was given {value!r}, and horsies has {row!r}", each.began)


def clears_run_again(facts: Facts) -> Iterator[Violation]:
    """What a life returns was sent in it, unless it keeps what completed."""
    rule = "a clear runs again"
    # The first life that had it is the one that sent it.
    sent = {each.task_id: each for each in sorted(facts.sent, key=lambda each: -each.life)}
    for each, place, value in _values(facts):
        if each.keeps is not False:
            continue
        one = sent.get(value["task"]) if isinstance(value, Mapping) and "task" in value else None
        if one is None:
            continue
        name = f"{name_of(each.instance, each.life)}, value {place}"
        if one.instance != each.instance or (each.key is not None and one.key != each.key):
            yield Violation(rule, name, f"comes from {_named(one)} of {one.key}, and this is {each.key}", each.began)
        elif each.began is not None and one.at is not None and one.at < each.began - CLOCK_SECONDS:
            late = f"comes from {_named(one)}, sent {each.began - one.at:.1f} s before this life began"
            yield Violation(rule, name, late, each.began)


def wishes_stand_behind_cancels(facts: Facts) -> Iterator[Violation]:
    """Cancelled is what somebody wished, what an earlier life or try asked for, and what is left of a failed batch."""
    rows = {row.task_id: row for row in facts.rows}
    wishes, asked, siblings = defaultdict(list), defaultdict(list), defaultdict(list)
    for wish in facts.wishes:
        wishes[wish.instance].append(wish)
    for each in facts.asked:
        asked[each.instance].append(each)
    for one in facts.sent:
        siblings[one.instance, one.key].append(one)
    for one in facts.sent:
        row = rows.get(one.task_id)
        if row is None or row.status != CANCELLED:
            continue
        if one.task_id in facts.by_chunk and _needs_no_wish(one, row, facts):
            continue
        by = float("inf") if row.ended_at is None else row.ended_at + CLOCK_SECONDS
        tries = [each for each in asked[one.instance] if each.at <= by]
        life = next((each.life for each in asked[one.instance] if each.key == one.key), None)
        is_wished = any(
            wish.at <= by and (wish.life is None or life is None or wish.life >= life) for wish in wishes[one.instance]
        )
        is_older = life is not None and any(each.life > life for each in tries)
        parts = _open_items(one, facts) if one.task_id in facts.by_chunk else [one]
        are_dropped = all(is_dropped(part, tries) for part in parts)
        if not (is_wished or is_older or are_dropped or _batch_failed(one, siblings, tries, facts)):
            said = "is CANCELLED, and nobody wished it"
            yield Violation("nothing is cancelled without a wish", _named(one), said, row.ended_at)


def is_dropped(one: Sent, tries: Sequence[Asked]) -> bool:
    """Whether a later try than the one that sent it no longer asked for it."""
    same_life = [each for each in tries if each.key == one.key]
    wanted = [each.works.count(one.work) > one.occurrence for each in same_life]
    sent_at = float("inf") if one.at is None else one.at + CLOCK_SECONDS
    sender = max((place for place, each in enumerate(same_life) if wanted[place] and each.at <= sent_at), default=-1)
    return not all(wanted[sender + 1 :])


def _open_items(chunk: Sent, facts: Facts) -> list[Sent]:
    """The items of a chunk that had not ended and that no later round replaced, as if each were a task."""
    items = [item for item in facts.by_chunk[chunk.task_id] if item.chunk == chunk]
    later = {
        (item.work, item.occurrence)
        for item in facts.items
        if (item.chunk.instance, item.chunk.key) == (chunk.instance, chunk.key)
        for mine in items
        if (mine.work, mine.occurrence) == (item.work, item.occurrence) and item.round > mine.round
    }
    return [
        replace(chunk, work=item.work, occurrence=item.occurrence)
        for item in items
        if not item.outcome and (item.work, item.occurrence) not in later
    ]


def _needs_no_wish(chunk: Sent, row: Row, facts: Facts) -> bool:
    """Whether nothing of a chunk was left to run, or it had ended before this life kept it."""
    is_kept = any(each.task_id == chunk.task_id and each.life < chunk.life for each in facts.sent)
    had_ended = row.ended_at is not None and chunk.at is not None and row.ended_at <= chunk.at + CLOCK_SECONDS
    return (is_kept and had_ended) or not _open_items(chunk, facts)


def _batch_failed(
    one: Sent, siblings: Mapping[tuple[Instance, LifeKey], list[Sent]], tries: Sequence[Asked], facts: Facts
) -> bool:
    failed = 0
    for each in siblings[one.instance, one.key]:
        items, row = facts.by_chunk.get(each.task_id, ()), facts.by_task.get(each.task_id)
        if items:
            failed += len({item.number for item in items if item.outcome and item.outcome != COMPLETED})
        elif each.task_id != one.task_id:
            failed += row is not None and row.status in ("FAILED", "EXPIRED")
    return failed > min((each.max_failures for each in tries if each.key == one.key), default=0)


def unwanted_work_ends(facts: Facts) -> Iterator[Violation]:
    """What is no longer asked for does not go on."""
    newest, sent_at = defaultdict(int), defaultdict(list)
    for each in facts.sent:
        newest[each.instance] = max(newest[each.instance], each.life)
        if each.at is not None:
            sent_at[each.instance].append((each.life, each.at))
    kept = {(each.task_id, each.instance, each.life) for each in _again(facts)}
    last = {task_id: max(life for known, _, life in kept if known == task_id) for task_id, _, _ in kept}
    for each in facts.sent:
        if each.life < last.get(each.task_id, 0):
            # A later life has it.
            continue
        dropped_at = each.released_at
        if dropped_at is None and each.life < newest[each.instance]:
            dropped_at = min((at for life, at in sent_at[each.instance] if life > each.life), default=None)
        if dropped_at is None and each.place == NOT_ASKED_FOR:
            dropped_at = max((at for life, at in sent_at[each.instance] if life == each.life), default=None)
        seen = facts.last_beats.get(each.task_id)
        if dropped_at is not None and seen is not None and seen - dropped_at > CANCEL_SECONDS:
            late = f"was seen running {seen - dropped_at:.1f} s after it was no longer asked for"
            yield Violation("nothing unwanted goes on", _named(each), late, dropped_at)


def cancels_end(facts: Facts) -> Iterator[Violation]:
    """A cancel that was acknowledged holds, and its process stops."""
    status = {row.task_id: row.status for row in facts.rows}
    for task_id, at in facts.acknowledged.items():
        if status.get(task_id) != CANCELLED:
            yield Violation("an acknowledged cancel holds", task_id, f"is {status.get(task_id)}", at)
        seen = facts.last_beats.get(task_id, at)
        if seen - at > CANCEL_SECONDS:
            late = f"was seen running {seen - at:.1f} s after the acknowledgement"
            yield Violation("nothing alive after an acknowledged cancel", task_id, late, at)


def code_is_left_alone(facts: Facts) -> Iterator[Violation]:
    """A fault may end the process of a task; its code never sees one."""
    for attempt, (code, message) in facts.failures.items():
        if code == UNHANDLED:
            yield Violation("no fault is raised in a task", attempt, message)


def _again(facts: Facts) -> Iterator[Sent]:
    """Submissions of a task that an earlier life sent."""
    first: dict[str, int] = {}
    for each in facts.sent:
        first[each.task_id] = min(first.get(each.task_id, each.life), each.life)
    return (each for each in facts.sent if each.life > first[each.task_id])


def _values(facts: Facts) -> Iterator[tuple[Outcome, int, Any]]:
    """What was returned, item by item."""
    for each in facts.outcomes:
        if each.succeeded and each.asked is not None:
            for place, value in enumerate(each.values or ()):
                if value is not None or not each.is_batch:
                    yield each, place, value


def _latest(facts: Facts) -> dict[Instance, list[Row]]:
    """Of each task instance, the rows of the newest life and round that are still asked for."""
    rows = {row.task_id: row for row in facts.rows}
    newest: dict[Instance, int] = defaultdict(int)
    for each in facts.sent:
        newest[each.instance] = max(newest[each.instance], each.life)
    found: dict[Instance, dict[int, Row]] = defaultdict(dict)
    for each in sorted(facts.sent, key=lambda each: each.round):
        if each.life == newest[each.instance] and each.place != NOT_ASKED_FOR and each.task_id in rows:
            found[each.instance][each.position] = rows[each.task_id]
    return {instance: list(by_position.values()) for instance, by_position in found.items()}


def _named(sent: Sent) -> str:
    return f"{name_of(sent.instance, sent.life, sent.position)}, round {sent.round}"


def name_of(instance: Instance, life: int, position: int | None = None) -> str:
    dag_id, run_id, task_id, map_index = instance
    place = "" if map_index < 0 else f"[{map_index}]"
    item = "" if not position else f", item {position}"
    return f"{dag_id}/{run_id}/{task_id}{place}{item}, life {life}"


class History:
    """Rows that are written once: each must stay as it was first seen."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._seen: dict[str, dict[str, str]] = {}
        # When a row was seen first, by kind and key.
        self.first_seen: dict[tuple[str, str], float | None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._seen.values()))

    def see(self, kind: str, rows: Mapping[str, str], at: float | None = None) -> None:
        """The rows of a kind, by key, that are there now."""
        seen = self._seen.setdefault(kind, {})
        for key, content in rows.items():
            self.first_seen.setdefault((kind, key), at)
            if seen.setdefault(key, content) != content:
                what = f"was {seen[key]}, and is {content}"
                self.violations.append(Violation(f"no {kind} changes", key, what, at))
                seen[key] = content

    def must_have_all(self, kind: str, rows: Mapping[str, str]) -> None:
        """At the end, nothing that was ever seen is missing."""
        self.see(kind, rows)
        for key in self._seen.get(kind, {}).keys() - rows.keys():
            self.violations.append(Violation(f"no {kind} vanishes", key, f"was {self._seen[kind][key]}"))
