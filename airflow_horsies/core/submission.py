"""Which task instance submitted which task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter

from airflow_horsies.core.task import TaskState
from airflow_horsies.core.validation import require_int, require_text
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import InvalidTask, TaskNotFound

# Never change this value: keys with it are in databases.
TRACE_PREFIX = "trace "


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstanceKey:
    """An Airflow task instance; ``map_index`` is -1 where it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def __post_init__(self) -> None:
        for name in ("dag_id", "run_id", "task_id"):
            require_text(name, getattr(self, name))
        require_int("map_index", self.map_index, -1, 2**31 - 1)

    def __str__(self) -> str:
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowTry:
    """
    What Airflow records of the try that submits. It distinguishes a retry from a clear, and a DAG run from one that was
    deleted and created again.

    :param try_number: ``ti.try_number``.
    :param max_tries: ``ti.max_tries`` as Airflow stores it; a clear changes it, a retry does not.
    :param clear_number: ``dag_run.clear_number``; every clear in the run increases it.
    :param run_started_at: ``dag_run.start_date``.
    :param run_key: a value that Airflow keeps as long as the DAG run exists; None if there is none.
    :param namespace: the namespace in which the first try submitted, if Airflow keeps it.
    :param is_key_of_run: whether a key that another try recorded also belongs to this run: two tries that start at the
        same time may each create a key. Returns None if Airflow does not know.
    :param run_keys: the answers so far.
    :param trace_key: a value that Airflow keeps with the task instance until it is cleared. A triggerer knows no other:
        it is then the ``run_key``, too.
    :param waits: False if a try succeeds as soon as it has submitted.
    """

    try_number: int
    max_tries: int = 0
    clear_number: int = 0
    run_started_at: datetime | None = None
    run_key: str | None = None
    namespace: str | None = None
    is_key_of_run: Callable[[str], bool | None] | None = field(default=None, compare=False, repr=False)
    run_keys: Mapping[str, bool | None] = field(default_factory=dict, compare=False, repr=False)
    trace_key: str | None = None
    waits: bool = True

    def __post_init__(self) -> None:
        require_int("try_number", self.try_number, 1, 2**31 - 1)
        require_int("clear_number", self.clear_number, 0, 2**31 - 1)

    def ask_about(self, key: str) -> AirflowTry:
        """The same try, with the answer whether the key belongs to its run."""
        answer = None if self.is_key_of_run is None else self.is_key_of_run(key)
        return replace(self, run_keys={**self.run_keys, key: answer})

    @property
    def is_traced(self) -> bool:
        """Whether only the trace distinguishes its life, because neither clears nor the key of the run are known."""
        return self.trace_key is not None and self.run_key == self.trace_key

    @property
    def life_key(self) -> tuple[str | int | None, ...]:
        """The same for all tries of a life, and only for them."""
        began = self.run_started_at
        run = self.run_key or (None if began is None else began.astimezone(UTC).isoformat())
        return run, self.clear_number, self.max_tries


class SubmitOutcome(StrEnum):
    """How a submission got its task."""

    SENT = "SENT"
    REATTACHED = "REATTACHED"
    ADOPTED = "ADOPTED"
    # It did not complete, and a repair of single items did not ask for it.
    KEPT = "KEPT"


class OnClear(StrEnum):
    """What the first submission after a clear sends: all items, or only those that did not complete."""

    ALL = "all"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownItem:
    """An item of a batch as a page shows it.

    :param number: its number in its chunk; None if it is a task of its own.
    """

    position: int
    task_id: str
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """A request to run again, after the next clear, only what did not complete.

    :param life: the life whose completed items are kept.
    :param items: the number of items that were asked for; None for all that did not complete.
    """

    id: int
    life: int
    items: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Which task instance sent which horsies task."""

    horsies_task_id: str
    namespace: str
    task_instance: TaskInstanceKey
    position: int
    life: int
    round: int
    try_number: int
    task_name: str
    queue: str
    good_until: datetime | None
    submitted_at: datetime
    # Whether it belongs to the newest life, is the newest round of its item, and is still requested.
    is_latest: bool = True
    # The deployment that submitted; empty if it has no address.
    base_url: str = ""
    # Of an item in its chunk, if the submission is that of an item.
    number: int | None = None
    # Of a workflow, horsies_task_id is the id of the workflow, and task_name its name.
    kind: WorkKind = WorkKind.TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """One submitted task: its id, its outcome, and its state at that moment."""

    task_id: str
    outcome: SubmitOutcome
    state: TaskState
    life: int
    round: int
    position: int = 0


def require_on_clear(value: OnClear | str) -> OnClear:
    if value not in list(OnClear):
        raise InvalidTask("on_clear", f"must be 'all' or 'failed', not {value!r}")
    return OnClear(value)


def is_lost(failures: int, *, allowed: int, kept: int = 0) -> bool:
    """Whether a batch has failed before all its items have ended, so that the others need not be waited for.

    :param kept: items that did not complete and that a repair of single items left as they are. If they alone are too
        many, the batch fails in any case, after the items that were asked for have run.
    """
    return failures > allowed >= kept


@dataclass(frozen=True, slots=True)
class SentIds:
    """What a try of a task instance has submitted, in the order of the positions.

    :param life: None if it has submitted nothing.
    """

    life: int | None
    task_ids: list[str]


def latest_task_ids(submissions: Iterable[Submission]) -> list[str]:
    """The tasks of the last submission of a task instance, in the order of its items."""
    latest = [submission for submission in submissions if submission.is_latest]
    return [submission.horsies_task_id for submission in sorted(latest, key=attrgetter("position"))]


def batch_task_ids(submissions: Iterable[Submission], *, life: int | None, size: int | None) -> list[str]:
    """
    The tasks of a batch in the order of its items; an error if some are missing.

    :param life: the life that submitted them; None, from an older release, takes the newest.
    :param size: the number of items; None if an older release did not record it.
    """
    latest = {
        submission.position: submission
        for submission in submissions
        if submission.is_latest and life in (None, submission.life)
    }
    expected = len(latest) if size is None else size
    if not expected or sorted(latest) != list(range(expected)):
        wanted = "at least one" if size is None else str(size)
        raise TaskNotFound(
            f"Found {len(latest)} items of the batch in the airflow_horsies tables, expected {wanted}. The task "
            "instance has been cleared, the records are past their retention, or the connection leads to another "
            "database. The outcome of the tasks is unknown. Clear the task instance to run them again.",
            task_id=latest[min(latest)].horsies_task_id if latest else "(none)",
        )
    return [latest[position].horsies_task_id for position in range(expected)]
