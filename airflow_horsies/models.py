"""The values that travel between the layers: frozen, standard library only."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from airflow_horsies.exceptions import InvalidTask, TaskNotFound

DEFAULT_QUEUE = "default"
DEFAULT_RETENTION = "standard_30d"
FOREVER = "forever"

ERROR_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
EXCEPTION_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9_]*(Error|Exception)")
MAX_RETRIES = 20
MAX_INTERVAL_SECONDS = 86_400
MAX_TASK_NAME_CHARS = 255
MAX_QUEUE_NAME_CHARS = 100
MAX_RETENTION_BYTES = 64
MAX_IDEMPOTENCY_KEY_BYTES = 255


class TaskState(StrEnum):
    """The states of a horsies task."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})
LIVE_STATES = frozenset(TaskState) - TERMINAL_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When horsies runs a failed attempt again; build it with :meth:`fixed` or :meth:`exponential`.

    :param max_retries: attempts after the first, 1 to 20.
    :param intervals: seconds to wait before each retry (fixed), or the one base interval (exponential).
    :param auto_retry_for: error codes that are retried; any other code fails the task at once.
    :param backoff_strategy: ``fixed``, or ``exponential`` for waits that double.
    :param jitter: spread each wait by up to a quarter, so that many tasks do not come back at once.
    :param max_delay_seconds: upper bound of a wait.
    """

    max_retries: int
    intervals: Sequence[int]
    auto_retry_for: Sequence[str]
    backoff_strategy: Literal["fixed", "exponential"] = "fixed"
    jitter: bool = True
    max_delay_seconds: int | None = None

    @classmethod
    def fixed(cls, intervals: Sequence[int], *, auto_retry_for: Sequence[str], jitter: bool = True) -> RetryPolicy:
        """One retry per interval: ``RetryPolicy.fixed([10, 60], auto_retry_for=["RATE_LIMITED"])``."""
        _require(
            isinstance(intervals, Sequence) and not isinstance(intervals, str),
            "retry_policy.intervals",
            f"must be a list of seconds, not {intervals!r}",
        )
        return cls(max_retries=len(intervals), intervals=intervals, auto_retry_for=auto_retry_for, jitter=jitter)

    @classmethod
    def exponential(
        cls,
        base_seconds: int,
        *,
        max_retries: int,
        auto_retry_for: Sequence[str],
        jitter: bool = True,
        max_delay_seconds: int | None = None,
    ) -> RetryPolicy:
        """Waits of base, 2 x base, 4 x base …: ``RetryPolicy.exponential(5, max_retries=4, auto_retry_for=[…])``."""
        return cls(
            max_retries=max_retries,
            intervals=[base_seconds],
            auto_retry_for=auto_retry_for,
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RetryPolicy:
        """The policy a plain dict describes, as a DAG file or a template gives it."""
        _require(isinstance(values, Mapping), "retry_policy", f"must be a mapping, not {values!r}")
        known = set(cls.__dataclass_fields__)
        unknown = sorted(str(key) for key in values if key not in known)
        _require(not unknown, "retry_policy", f"unknown key(s) {unknown}; known are {sorted(known)}")
        missing = [key for key in ("intervals", "auto_retry_for") if key not in values]
        _require(not missing, "retry_policy", f"lacks {missing}")
        given = dict(values)
        if given.get("backoff_strategy", "fixed") == "fixed":
            # What is no list of intervals is refused as such, not for its length.
            given.setdefault("max_retries", len(given["intervals"]) if isinstance(given["intervals"], Sequence) else 1)
        _require("max_retries" in given, "retry_policy", "needs max_retries unless it is a fixed policy")
        return cls(**given)

    def __post_init__(self) -> None:
        _require_int("retry_policy.max_retries", self.max_retries, 1, MAX_RETRIES)
        _require(
            isinstance(self.intervals, Sequence) and not isinstance(self.intervals, str),
            "retry_policy.intervals",
            f"must be a list of seconds, not {self.intervals!r}",
        )
        for seconds in self.intervals:
            _require_int("retry_policy.intervals", seconds, 1, MAX_INTERVAL_SECONDS)
        _require(
            self.backoff_strategy in ("fixed", "exponential"),
            "retry_policy.backoff_strategy",
            f"must be 'fixed' or 'exponential', not {self.backoff_strategy!r}",
        )
        if self.backoff_strategy == "fixed":
            _require(
                len(self.intervals) == self.max_retries,
                "retry_policy.intervals",
                f"a fixed policy needs one interval per retry: {self.max_retries} retries, "
                f"{len(self.intervals)} intervals",
            )
        else:
            _require(
                len(self.intervals) == 1,
                "retry_policy.intervals",
                f"an exponential policy needs exactly one base interval, not {len(self.intervals)}",
            )
        _require(isinstance(self.jitter, bool), "retry_policy.jitter", f"must be a bool, not {self.jitter!r}")
        if self.max_delay_seconds is not None:
            _require_int("retry_policy.max_delay_seconds", self.max_delay_seconds, 1, 2**31 - 1)
        _require(
            isinstance(self.auto_retry_for, Sequence)
            and not isinstance(self.auto_retry_for, str)
            and len(self.auto_retry_for) > 0,
            "retry_policy.auto_retry_for",
            "must list at least one error code, for example ['UNHANDLED_EXCEPTION', 'WORKER_CRASHED']",
        )
        for code in self.auto_retry_for:
            require_error_code("retry_policy.auto_retry_for", code)
        object.__setattr__(self, "intervals", tuple(self.intervals))
        object.__setattr__(self, "auto_retry_for", tuple(self.auto_retry_for))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What to send: one task for a horsies worker.

    :param task_name: the name the task is registered under (``@app.task("name")``).
    :param kwargs: its keyword arguments; JSON values only.
    :param queue: the queue; a worker of an app without named queues serves only ``default``.
    :param priority: 1 (first) to 100 (last), within the queue.
    :param retry_policy: when a failed attempt runs again; without one it never does.
    :param good_until: a task not started by then becomes EXPIRED; also caps retries. Timezone-aware.
    :param delay: earliest start, counted from the moment of sending on the database's clock; whole seconds.
    :param timeout: the worker kills an attempt that runs longer; at least one second.
    :param retention: how long the finished task is kept: a retention class, or ``forever``. Without one, the class that
        the workers have mapped the queue to, or 30 days.
    :param retain_rerun_input: keep the arguments with the finished task (up to 64 KiB).
    :param idempotency_key: sending the same key again returns the first task (horsies 0.5 and newer).
    :param task_id: a UUID of your own; without one a new id is minted.
    """

    task_name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str = DEFAULT_QUEUE
    priority: int = 100
    retry_policy: RetryPolicy | None = None
    good_until: datetime | None = None
    delay: timedelta | None = None
    timeout: timedelta | None = None
    retention: str | None = None
    retain_rerun_input: bool = False
    idempotency_key: str | None = None
    task_id: str | None = None

    def __post_init__(self) -> None:
        _require_text("task_name", self.task_name, max_chars=MAX_TASK_NAME_CHARS)
        _require_text("queue", self.queue, max_chars=MAX_QUEUE_NAME_CHARS)
        if self.retention is not None:
            _require_text("retention", self.retention, max_bytes=MAX_RETENTION_BYTES)
        _require_int("priority", self.priority, 1, 100)
        _require(
            isinstance(self.kwargs, Mapping),
            "kwargs",
            f"must be a mapping of argument names to values, not {type(self.kwargs).__name__}",
        )
        _require(
            self.retry_policy is None or isinstance(self.retry_policy, RetryPolicy),
            "retry_policy",
            f"must be a RetryPolicy, not {type(self.retry_policy).__name__}",
        )
        _require(
            isinstance(self.retain_rerun_input, bool),
            "retain_rerun_input",
            f"must be a bool, not {self.retain_rerun_input!r}",
        )
        if self.good_until is not None:
            _require(
                isinstance(self.good_until, datetime),
                "good_until",
                f"must be a datetime, not {type(self.good_until).__name__}",
            )
            _require(
                self.good_until.utcoffset() is not None,
                "good_until",
                "has no time zone, so it names no instant; use for example datetime.now(timezone.utc) + …",
            )
            _require(
                datetime.min.year < self.good_until.year < datetime.max.year,
                "good_until",
                f"is at the end of time ({self.good_until:%Y-%m-%d}), where not every time zone has a date; leave it "
                "out for a task that never expires",
            )
            object.__setattr__(self, "good_until", _plain_utc(self.good_until))
        if self.delay is not None:
            _require_whole_seconds("delay", self.delay, least=0)
        if self.timeout is not None:
            _require(
                isinstance(self.timeout, timedelta),
                "timeout",
                f"must be a timedelta, not {type(self.timeout).__name__}",
            )
            _require(self.timeout >= timedelta(seconds=1), "timeout", "must be at least one second")
        if self.idempotency_key is not None:
            _require_text("idempotency_key", self.idempotency_key, max_bytes=MAX_IDEMPOTENCY_KEY_BYTES)
        if self.task_id is not None:
            object.__setattr__(self, "task_id", require_task_id(self.task_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One finished attempt at a task; horsies never changes it afterwards."""

    number: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    process_name: str | None = None

    @property
    def duration_seconds(self) -> float:
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """What a worker of ``airflow_horsies.worker`` told of an attempt, also of one that was cancelled or is running.

    ``finished_at`` and ``outcome`` are None while it runs, and stay so when its process was killed.
    """

    number: int
    worker_id: str
    hostname: str
    pid: int
    started_at: datetime
    finished_at: datetime | None = None
    outcome: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_seconds(self) -> float | None:
        return None if self.finished_at is None else (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines of an attempt that were written at one time; none of them holds a line break or is missing."""

    first_number: int
    logged_at: datetime
    level: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that an attempt logged or printed."""

    attempt: int
    number: int
    logged_at: datetime
    level: str
    text: str

    @property
    def cursor(self) -> LogCursor:
        return LogCursor(self.attempt, self.number)


@dataclass(frozen=True, slots=True, order=True)
class LogCursor:
    """The last line somebody has seen of a task."""

    attempt: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running attempt is: ``done`` of ``total``, where the total is known, and what it is doing."""

    attempt: int
    done: int
    total: int | None = None
    stage: str | None = None
    updated_at: datetime | None = None

    @property
    def fraction(self) -> float | None:
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultReference:
    """Where a task wrote a result that was too large to return.

    .. code-block:: python

        reference = ResultReference(**ti.xcom_pull(task_ids="daily"))
        spark.read.format(reference.format).load(reference.uri)
    """

    uri: str
    format: str
    rows: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNews:
    """What workers told of a task since somebody looked: the next lines, and how far it is now."""

    lines: tuple[LogLine, ...] = ()
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskException:
    """The Python exception behind a failure, as the worker stored it."""

    type: str
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """The error a task ended with."""

    error_code: str | None
    message: str | None
    data: Any = None
    exception: TaskException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returned: a value, or an error. A value of None is a value."""

    ok: Any = None
    error: TaskFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as the database holds it now."""

    id: str
    task_name: str
    queue: str
    priority: int
    state: TaskState
    sent_at: datetime | None
    enqueued_at: datetime
    retry_count: int
    max_retries: int
    good_until: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_retry_at: datetime | None = None
    worker_id: str | None = None
    hostname: str | None = None
    pid: int | None = None
    error_code: str | None = None
    failed_reason: str | None = None
    is_workflow_task: bool = False
    kwargs: Mapping[str, Any] | None = None
    result: TaskResult | None = None
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """Where the next page of a listing begins."""

    at: datetime
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """One page of a listing, newest first; ``next`` is None on the last. Results and attempts are left out."""

    tasks: tuple[TaskView, ...]
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTasks:
    """The failed and expired ones among the tasks that were searched, newest first; ``next`` goes on searching."""

    ids: tuple[str, ...]
    searched_to: datetime | None
    next: PageCursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits and runs in one queue."""

    queue: str
    ready: int
    delayed: int
    claimed: int
    running: int
    oldest_ready_at: datetime | None
    served_by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The last word of one worker."""

    id: str
    hostname: str
    pid: int
    queues: tuple[str, ...]
    processes: int
    tasks_running: int
    tasks_claimed: int
    started_at: datetime
    seen_at: datetime
    alive: bool
    memory_mb: float | None = None
    cpu_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionClass:
    """How long finished tasks of a class are kept; None is for ever."""

    key: str
    duration: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page that a task made of a period; ``location`` is where the task also wrote it, with its figures."""

    name: str
    period_start: datetime
    period_end: datetime
    location: str
    made_at: datetime | None = None


class CancelOutcome(StrEnum):
    """What a cancel found."""

    CANCELLED = "CANCELLED"
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    ALREADY_FINISHED = "ALREADY_FINISHED"
    # Another task instance shares the task by an idempotency key, or a later try waits for it.
    STILL_WANTED = "STILL_WANTED"
    # It cannot be recorded now, and is carried out later.
    REQUESTED = "REQUESTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstanceKey:
    """An Airflow task instance; ``map_index`` is -1 where it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def __post_init__(self) -> None:
        for name in ("dag_id", "run_id", "task_id"):
            _require_text(name, getattr(self, name))
        _require_int("map_index", self.map_index, -1, 2**31 - 1)

    def __str__(self) -> str:
        mapped = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowTry:
    """
    What Airflow records of the try that submits; it tells a retry from a clear, and a DAG run from one made again.

    :param try_number: ``ti.try_number``.
    :param max_tries: ``ti.max_tries`` as Airflow stores it, which a clear changes and a retry does not.
    :param clear_number: ``dag_run.clear_number``, which every clear within the run raises.
    :param run_started_at: ``dag_run.start_date``.
    :param run_key: a value that Airflow keeps as long as the DAG run exists; None where there is none.
    :param namespace: the namespace in which the first try submitted, where Airflow keeps it.
    :param is_key_of_run: whether a key that another try recorded is of this run, too: two tries that begin at the same
        time may each have made one. Its answer is None where Airflow does not say.
    :param run_keys: what it has answered so far.
    """

    try_number: int
    max_tries: int = 0
    clear_number: int = 0
    run_started_at: datetime | None = None
    run_key: str | None = None
    namespace: str | None = None
    is_key_of_run: Callable[[str], bool | None] | None = field(default=None, compare=False, repr=False)
    run_keys: Mapping[str, bool | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _require_int("try_number", self.try_number, 1, 2**31 - 1)
        _require_int("clear_number", self.clear_number, 0, 2**31 - 1)

    def ask_about(self, key: str) -> AirflowTry:
        """The same try, which now knows whether the key is of its run."""
        answer = None if self.is_key_of_run is None else self.is_key_of_run(key)
        return replace(self, run_keys={**self.run_keys, key: answer})

    @property
    def life_key(self) -> tuple[str | int | None, ...]:
        """The same for all tries of a life, and only for them."""
        began = self.run_started_at
        run = self.run_key or (None if began is None else began.astimezone(UTC).isoformat())
        return run, self.clear_number, self.max_tries


class SubmitOutcome(StrEnum):
    """How a submission came by its task."""

    SENT = "SENT"
    REATTACHED = "REATTACHED"
    ADOPTED = "ADOPTED"


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
    # Whether it is of the newest life, the item's newest round, and still asked for.
    is_latest: bool = True
    # The deployment that submitted; empty where it has no address.
    base_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """One submitted task: its id, how it came about, and its state at that moment."""

    task_id: str
    outcome: SubmitOutcome
    state: TaskState
    life: int
    round: int
    position: int = 0


def is_unserved(task: TaskView, queues: Iterable[QueueDepth], now: datetime) -> bool:
    """Whether a task that is ready for its first attempt waits in a queue that no live worker serves."""
    if task.state is not TaskState.PENDING or task.retry_count or task.enqueued_at > now:
        return False
    return all(queue.queue != task.queue or not queue.served_by for queue in queues)


def latest_task_ids(submissions: Iterable[Submission]) -> list[str]:
    """What a task instance submitted last, in the order in which it asked for it."""
    latest = sorted((each for each in submissions if each.is_latest), key=lambda each: each.position)
    return [each.horsies_task_id for each in latest]


def batch_task_ids(submissions: Iterable[Submission], *, life: int | None, size: int | None) -> list[str]:
    """
    The tasks of a batch in the order of its items: exactly those, or an error.

    :param life: the life that submitted them; None where an older release did not say, and takes the newest.
    :param size: how many there are; None where an older release did not say.
    """
    latest = {each.position: each for each in submissions if each.is_latest and life in (None, each.life)}
    expected = len(latest) if size is None else size
    if not expected or sorted(latest) != list(range(expected)):
        wanted = "at least one" if size is None else str(size)
        raise TaskNotFound(
            f"{len(latest)} items of the batch were found in the airflow_horsies tables, where {wanted} had been sent. "
            "The task instance was cleared since, records are past their retention, or the connection leads to "
            "another database. Their outcome is unknown; clear the task instance to run them again",
            task_id=latest[min(latest)].horsies_task_id if latest else "(none)",
        )
    return [latest[position].horsies_task_id for position in range(expected)]


def require_task_id(value: object) -> str:
    """The canonical text of a task id, or an error that shows what was given."""
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        raise InvalidTask("task_id", f"{value!r} is not a UUID") from None


def require_error_code(name: str, code: object) -> None:
    """Error codes are UPPER_SNAKE_CASE; an exception's class name is a frequent mistake."""
    _require(isinstance(code, str) and code != "", name, f"must hold error codes, not {code!r}")
    assert isinstance(code, str)  # noqa: S101 - narrows the type only
    _require(
        EXCEPTION_CLASS_NAME.fullmatch(code) is None,
        name,
        f"{code!r} looks like an exception class; retries go by error code, for example UNHANDLED_EXCEPTION",
    )
    _require(ERROR_CODE.fullmatch(code) is not None, name, f"{code!r} is not UPPER_SNAKE_CASE, as in RATE_LIMITED")


def _plain_utc(instant: datetime) -> datetime:
    utc = instant.astimezone(UTC)
    # A subclass such as pendulum's prints itself differently, and what is printed is hashed.
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, tzinfo=UTC)


def _require(holds: bool, name: str, problem: str) -> None:
    if not holds:
        raise InvalidTask(name, problem)


def _require_int(name: str, value: object, least: int, most: int) -> None:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        name,
        f"must be a whole number from {least} to {most}, not {value!r}",
    )


def _require_whole_seconds(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, timedelta):
        raise InvalidTask(name, f"must be a timedelta, not {type(value).__name__}")
    _require(value >= timedelta(seconds=least), name, f"must be at least {least} seconds, not {value}")
    _require(value.microseconds == 0, name, f"must be whole seconds, not {value}")


def _require_text(name: str, value: object, *, max_chars: int | None = None, max_bytes: int | None = None) -> None:
    if not isinstance(value, str):
        raise InvalidTask(name, f"must be a string, not {type(value).__name__}")
    _require(value.strip() != "", name, "must not be empty")
    _require("\x00" not in value, name, "must not hold a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidTask(name, "holds a lone surrogate, which is not valid text") from None
    if max_chars is not None:
        _require(len(value) <= max_chars, name, f"is {len(value)} characters long; at most {max_chars}")
    if max_bytes is not None:
        _require(size <= max_bytes, name, f"is {size} bytes long; at most {max_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows between two times, and of these those from one place in the order of time and key up to another."""

    since: datetime | None = None
    until: datetime | None = None
    from_at: datetime | None = None
    from_key: str | None = None
    to_at: datetime | None = None
    to_key: str | None = None

    @property
    def params(self) -> dict[str, Any]:
        return asdict(self)
