"""What must hold after the trials, whatever happened: plain facts go in, violations come out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETED, CANCELLED = "COMPLETED", "CANCELLED"
UNHANDLED = "UNHANDLED_EXCEPTION"
LIVE = frozenset({"PENDING", "CLAIMED", "RUNNING"})
# How long after the acknowledgement of a cancel its task may still be seen: workers look every second, but they, their
# connections and the database are killed, paused and cut all the time.
CANCEL_SECONDS = 45.0

# dag_id, run_id, task_id, map_index
Instance = tuple[str, str, str, int]


@dataclass(frozen=True)
class Sent:
    """A row of the ledger's submissions."""

    instance: Instance
    position: int
    life: int
    round: int
    task_id: str
    at: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of horsies, from whichever table it was found in."""

    task_id: str
    status: str
    value: Any = None


@dataclass(frozen=True)
class Outcome:
    """What became of a life of a task instance: whether it succeeded, as far as Airflow knows, and with what."""

    instance: Instance
    life: int
    succeeded: bool
    value: Any = None
    # None for one that sends nothing.
    size: int | None = 1
    state: str = ""


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
    rules = (one_row, nothing_repeated, completions_arrive, successes_have_results, cancels_end, code_is_left_alone)
    return [violation for rule in rules for violation in rule(facts)]


def one_row(facts: Facts) -> Iterator[Violation]:
    """One horsies row per task instance, life and round, and none beside."""
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
        if sorted(numbers) != list(range(1, len(numbers) + 1)):
            yield Violation(rule, _name(instance, life, position), f"its rounds are {sorted(numbers)}")
    lives = {(each.instance, each.life) for each in facts.outcomes}
    for instance, life in {(each.instance, each.life) for each in facts.sent} - lives:
        yield Violation(rule, _name(instance, life), "submitted in a life it never had")


def nothing_repeated(facts: Facts) -> Iterator[Violation]:
    """What completed is not run again within a life."""
    status = {row.task_id: row.status for row in facts.rows}
    last = {(each.instance, each.position, each.life): each for each in sorted(facts.sent, key=lambda each: each.round)}
    for each in facts.sent:
        latest = last[each.instance, each.position, each.life]
        if status.get(each.task_id) == COMPLETED and each.round < latest.round:
            said = f"completed, and was followed by round {latest.round}"
            yield Violation("nothing done twice", _named(each), said, latest.at)


def completions_arrive(facts: Facts) -> Iterator[Violation]:
    """Every completion reaches Airflow; after the faults everything ends well, so every last life must."""
    latest = {each.instance: each.life for each in sorted(facts.outcomes, key=lambda each: each.life)}
    results = _results(facts)
    for each in facts.outcomes:
        if each.succeeded or each.life != latest[each.instance]:
            continue
        rows = results.get((each.instance, each.life), {})
        said = ", ".join(f"{row.task_id if row else 'nothing'} {row.status if row else ''}" for row in rows.values())
        if rows and all(row is not None and row.status == COMPLETED for row in rows.values()):
            yield Violation("no completion lost", _name(each.instance, each.life), f"completed as {said}; {each.state}")
        else:
            told = f"{each.state or 'has not succeeded'}; horsies: {said or 'nothing'}"
            yield Violation("everything ends", _name(each.instance, each.life), told)
    for row in facts.rows:
        if row.status in LIVE:
            yield Violation("everything ends", row.task_id, f"is {row.status} after all was quiet")


def successes_have_results(facts: Facts) -> Iterator[Violation]:
    """Where Airflow says success, horsies keeps a result, and it is the one that Airflow was given."""
    rule = "no success without a stored result"
    results = _results(facts)
    for each in facts.outcomes:
        if not each.succeeded or each.size is None:
            continue
        rows = results.get((each.instance, each.life), {})
        name = _name(each.instance, each.life)
        if len(rows) != each.size:
            yield Violation(rule, name, f"succeeded with {len(rows)} submissions instead of {each.size}")
            continue
        bad = [row for row in rows.values() if row is None or row.status != COMPLETED]
        if bad:
            said = ", ".join("nothing" if row is None else f"{row.task_id} {row.status}" for row in bad)
            yield Violation(rule, name, f"succeeded, and horsies has {said}")
            continue
        stored = [rows[position].value for position in sorted(rows)]  # type: ignore[union-attr]
        value = each.value if isinstance(each.value, list) else [each.value]
        if stored != value:
            yield Violation(rule, name, f"was given {value!r}, and horsies keeps {stored!r}")


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


def _results(facts: Facts) -> dict[tuple[Instance, int], dict[int, Row | None]]:
    """Of each life, the row of the last round by position; None where horsies has none."""
    rows = {row.task_id: row for row in facts.rows}
    found: dict[tuple[Instance, int], dict[int, Row | None]] = defaultdict(dict)
    for each in sorted(facts.sent, key=lambda each: each.round):
        found[each.instance, each.life][each.position] = rows.get(each.task_id)
    return found


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
