"""What must hold after the trials, whatever happened or changed: plain facts go in, violations come out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETED, CANCELLED = "COMPLETED", "CANCELLED"
UNHANDLED = "UNHANDLED_EXCEPTION"
LIVE = frozenset({"PENDING", "CLAIMED", "RUNNING"})
# How long after a task is cancelled, or no longer wanted, it may still be seen: workers look every second, but they,
# their connections and the database are killed, paused, locked and cut all the time.
CANCEL_SECONDS = 45.0
# Between the clock of the database and that of the trials, which are read one after the other.
CLOCK_SECONDS = 1.0
NOT_ASKED_FOR = -1

# dag_id, run_id, task_id, map_index
Instance = tuple[str, str, str, int]
# What tells one life of a task instance from another: what Airflow records of a clear, and which run of that id it is.
LifeKey = tuple[Any, ...]


@dataclass(frozen=True)
class Sent:
    """A row of the ledger's submissions."""

    instance: Instance
    position: int
    life: int
    round: int
    task_id: str
    at: float | None = None
    # As Airflow recorded it at the time.
    key: LifeKey = ()
    # What was asked for, and which of several equal ones it is.
    work: str = ""
    occurrence: int = 0
    place: int | None = None
    released_at: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of horsies, from whichever table it was found in."""

    task_id: str
    status: str
    value: Any = None
    ended_at: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a life of a task instance: whether it succeeded, as far as Airflow knows, and with what."""

    instance: Instance
    life: int
    succeeded: bool
    value: Any = None
    # What was asked for by the try that it was returned to, item by item; None for one that sends nothing.
    asked: Sequence[Any] | None = ()
    # How many items may have no value, and whether it is a list even of one.
    max_failures: int = 0
    is_batch: bool = False
    key: LifeKey | None = None
    # When the life began; nothing that was sent before may have computed its value.
    began: float | None = None
    was_marked: bool = False
    state: str = ""

    @property
    def values(self) -> list[Any] | None:
        if not self.is_batch:
            return [self.value]
        return self.value if isinstance(self.value, list) else None


@dataclass(frozen=True)
class Asked:
    """A try began that asks for this work, each as often as it stands here."""

    instance: Instance
    at: float
    # In the order of the lives of its task instance.
    life: int
    key: LifeKey
    works: Sequence[str]
    max_failures: int = 0


@dataclass(frozen=True)
class Wish:
    """Somebody cleared, marked, cancelled or made again what was sent in this life or an earlier one, or in any."""

    instance: Instance
    at: float
    life: int | None = None


@dataclass(frozen=True)
class Facts:
    """Everything, as it is at the end."""

    sent: Sequence[Sent] = ()
    rows: Sequence[Row] = ()
    outcomes: Sequence[Outcome] = ()
    # When somebody was told that a task is cancelled, and when the task was last seen alive.
    acknowledged: Mapping[str, float] = field(default_factory=dict)
    last_beats: Mapping[str, float] = field(default_factory=dict)
    # The error code and message of each attempt that failed, by task and number.
    failures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    asked: Sequence[Asked] = ()
    wishes: Sequence[Wish] = ()


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold, and of what; ``at`` is when, where that is known."""

    rule: str
    of: str
    what: str
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.of}: {self.what}"


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
    for task_id, count in Counter(each.task_id for each in facts.sent).items():
        if count > 1:
            yield Violation(rule, task_id, f"is recorded for {count} submissions")
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
            yield Violation(rule, _name(instance, life, position), f"its rounds are {sorted(numbers)}")


def one_life(facts: Facts) -> Iterator[Violation]:
    """What is sent between two clears is one life in the ledger, and nothing else is; and Airflow knows of it."""
    rule = "one life between two clears"
    keys, lives = defaultdict(set), defaultdict(set)
    for each in facts.sent:
        keys[each.instance, each.life].add(each.key)
        lives[each.instance, each.key].add(each.life)
    for (instance, life), found in keys.items():
        if len(found) > 1:
            yield Violation(rule, _name(instance, life), f"has work of {len(found)} lives of Airflow: {sorted(found)}")
    for (instance, key), numbers in lives.items():
        if len(numbers) > 1:
            yield Violation(rule, _name(instance, max(numbers)), f"Airflow's {key} was given lives {sorted(numbers)}")
    began = {(each.instance, each.key) for each in facts.asked}
    told = {each.instance for each in facts.asked}
    for instance, key in lives.keys() - began:
        if instance in told:
            yield Violation(rule, _name(instance, min(lives[instance, key])), f"Airflow never had {key}")


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
            yield Violation("no completion lost", _name(each.instance, each.life), f"completed as {said}; {each.state}")
        else:
            told = f"{each.state or 'has not succeeded'}; horsies: {said or 'nothing'}"
            yield Violation("everything ends", _name(each.instance, each.life), told)
    for row in facts.rows:
        if row.status in LIVE:
            yield Violation("everything ends", row.task_id, f"is {row.status} after all was quiet")


def values_belong(facts: Facts) -> Iterator[Violation]:
    """A value is what horsies keeps of a task that was asked for exactly this."""
    rule = "a value belongs to the arguments asked for"
    rows = {row.task_id: row for row in facts.rows}
    for each, place, value in _values(facts):
        name = f"{_name(each.instance, each.life)}, value {place}"
        asked = each.asked or ()
        if place >= len(asked):
            continue
        if not isinstance(value, Mapping) or value.get("asked") != asked[place]:
            yield Violation(rule, name, f"asked for {asked[place]!r}, and was given {value!r}", each.began)
            continue
        row = rows.get(value["task"])
        if row is None or row.value != value:
            yield Violation(rule, name, f"was given {value!r}, and horsies keeps {row!r}", each.began)


def successes_are_complete(facts: Facts) -> Iterator[Violation]:
    """Where Airflow says success, every item that was asked for has completed, or fewer failed than may."""
    rule = "no success over work that did not complete"
    rows = {row.task_id: row for row in facts.rows}
    for each in facts.outcomes:
        if not each.succeeded or each.asked is None:
            continue
        name, values = _name(each.instance, each.life), each.values
        if values is None or len(values) != len(each.asked):
            yield Violation(rule, name, f"asked for {len(each.asked)} items, and was given {each.value!r}", each.began)
            continue
        missing = sum(value is None for value in values)
        if missing > each.max_failures:
            said = f"{missing} of {len(values)} have no value, and {each.max_failures} may fail"
            yield Violation(rule, name, said, each.began)
        for value in values:
            row = rows.get(value["task"]) if isinstance(value, Mapping) and "task" in value else None
            if value is not None and (row is None or row.status != COMPLETED):
                yield Violation(rule, name, f"was given {value!r}, and horsies has {row!r}", each.began)


def clears_run_again(facts: Facts) -> Iterator[Violation]:
    """What a life returns was sent in it."""
    rule = "a clear runs again"
    sent = {each.task_id: each for each in facts.sent}
    for each, place, value in _values(facts):
        one = sent.get(value["task"]) if isinstance(value, Mapping) and "task" in value else None
        if one is None:
            continue
        name = f"{_name(each.instance, each.life)}, value {place}"
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
        by = float("inf") if row.ended_at is None else row.ended_at + CLOCK_SECONDS
        tries = [each for each in asked[one.instance] if each.at <= by]
        life = next((each.life for each in asked[one.instance] if each.key == one.key), None)
        is_wished = any(
            wish.at <= by and (wish.life is None or life is None or wish.life >= life) for wish in wishes[one.instance]
        )
        is_older = life is not None and any(each.life > life for each in tries)
        if not (is_wished or is_older or _is_dropped(one, tries) or _batch_failed(one, siblings, tries, rows)):
            said = "is CANCELLED, and nobody wished it"
            yield Violation("nothing is cancelled without a wish", _named(one), said, row.ended_at)


def _is_dropped(one: Sent, tries: Sequence[Asked]) -> bool:
    """Whether a later try than the one that sent it no longer asked for it."""
    same_life = [each for each in tries if each.key == one.key]
    wanted = [each.works.count(one.work) > one.occurrence for each in same_life]
    sent_at = float("inf") if one.at is None else one.at + CLOCK_SECONDS
    sender = max((place for place, each in enumerate(same_life) if wanted[place] and each.at <= sent_at), default=-1)
    return not all(wanted[sender + 1 :])


def _batch_failed(
    one: Sent, siblings: Mapping[tuple[Instance, LifeKey], list[Sent]], tries: Sequence[Asked], rows: Mapping[str, Row]
) -> bool:
    others = [rows.get(each.task_id) for each in siblings[one.instance, one.key] if each.task_id != one.task_id]
    failed = sum(row is not None and row.status in ("FAILED", "EXPIRED") for row in others)
    return failed > min((each.max_failures for each in tries if each.key == one.key), default=0)


def unwanted_work_ends(facts: Facts) -> Iterator[Violation]:
    """What is no longer asked for does not go on."""
    newest, sent_at = defaultdict(int), defaultdict(list)
    for each in facts.sent:
        newest[each.instance] = max(newest[each.instance], each.life)
        if each.at is not None:
            sent_at[each.instance].append((each.life, each.at))
    for each in facts.sent:
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
    return f"{_name(sent.instance, sent.life, sent.position)}, round {sent.round}"


def _name(instance: Instance, life: int, position: int | None = None) -> str:
    dag_id, run_id, task_id, map_index = instance
    place = "" if map_index < 0 else f"[{map_index}]"
    item = "" if not position else f", item {position}"
    return f"{dag_id}/{run_id}/{task_id}{place}{item}, life {life}"


class History:
    """Rows that are written once: each must stay as it was first seen."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._seen: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._seen.values()))

    def see(self, kind: str, rows: Mapping[str, str], at: float | None = None) -> None:
        """The rows of a kind, by key, that are there now."""
        seen = self._seen.setdefault(kind, {})
        for key, content in rows.items():
            if seen.setdefault(key, content) != content:
                what = f"was {seen[key]}, and is {content}"
                self.violations.append(Violation(f"no {kind} changes", key, what, at))
                seen[key] = content

    def must_have_all(self, kind: str, rows: Mapping[str, str]) -> None:
        """At the end, nothing that was ever seen is missing."""
        self.see(kind, rows)
        for key in self._seen.get(kind, {}).keys() - rows.keys():
            self.violations.append(Violation(f"no {kind} vanishes", key, f"was {self._seen[kind][key]}"))
