"""What to send: a task and its retry policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from airflow_horsies.core.signals import AWAITING_SIGNAL, PARKED_SECONDS, PARKING_TASKS
from airflow_horsies.core.validation import (
    require,
    require_error_code,
    require_int,
    require_task_id,
    require_text,
    require_whole_seconds,
)

DEFAULT_QUEUE = "default"
DEFAULT_RETENTION = "standard_30d"
FOREVER = "forever"
MAX_RETRIES = 20
MAX_INTERVAL_SECONDS = 86_400
MAX_TASK_NAME_CHARS = 255
MAX_QUEUE_NAME_CHARS = 100
MAX_RETENTION_BYTES = 64
MAX_IDEMPOTENCY_KEY_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When horsies retries a failed attempt; build it with :meth:`fixed` or :meth:`exponential`.

    :param max_retries: the number of attempts after the first, 1 to 20.
    :param intervals: seconds to wait before each retry (fixed), or a single base interval (exponential).
    :param auto_retry_for: error codes that are retried; any other code fails the task at once.
    :param backoff_strategy: ``fixed``, or ``exponential`` for waits that double.
    :param jitter: vary each wait by up to a quarter, so that many tasks do not retry at the same time.
    :param max_delay_seconds: the longest wait.
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
        require(
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
    def parking(cls) -> RetryPolicy:
        """For a task that calls ``park_until()``, without other retries."""
        return cls.fixed([PARKED_SECONDS], auto_retry_for=[AWAITING_SIGNAL], jitter=False)

    def with_parking(self) -> RetryPolicy:
        """The same retries for a task that also calls ``park_until()``; parked attempts do not count as retries."""
        if AWAITING_SIGNAL in self.auto_retry_for:
            return self
        return replace(self, auto_retry_for=[*self.auto_retry_for, AWAITING_SIGNAL])

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RetryPolicy:
        """The policy from a plain dict, as in a DAG file or a template."""
        require(isinstance(values, Mapping), "retry_policy", f"must be a mapping, not {values!r}")
        known = set(cls.__dataclass_fields__)
        unknown = sorted(str(key) for key in values if key not in known)
        require(
            not unknown,
            "retry_policy",
            f"has unknown key(s) {', '.join(unknown)}. Supported: {', '.join(sorted(known))}",
        )
        missing = [key for key in ("intervals", "auto_retry_for") if key not in values]
        require(not missing, "retry_policy", f"is missing {' and '.join(missing)}")
        given = dict(values)
        if given.get("backoff_strategy", "fixed") == "fixed":
            # Another type is reported as a wrong type, not as a wrong length.
            given.setdefault("max_retries", len(given["intervals"]) if isinstance(given["intervals"], Sequence) else 1)
        require("max_retries" in given, "retry_policy", "needs max_retries, because its backoff_strategy is not fixed")
        return cls(**given)

    def __post_init__(self) -> None:
        require_int("retry_policy.max_retries", self.max_retries, 1, MAX_RETRIES)
        require(
            isinstance(self.intervals, Sequence) and not isinstance(self.intervals, str),
            "retry_policy.intervals",
            f"must be a list of seconds, not {self.intervals!r}",
        )
        for seconds in self.intervals:
            require_int("retry_policy.intervals", seconds, 1, MAX_INTERVAL_SECONDS)
        require(
            self.backoff_strategy in ("fixed", "exponential"),
            "retry_policy.backoff_strategy",
            f"must be 'fixed' or 'exponential', not {self.backoff_strategy!r}",
        )
        if self.backoff_strategy == "fixed":
            require(
                len(self.intervals) == self.max_retries,
                "retry_policy.intervals",
                f"must contain one interval per retry in a fixed policy, not {len(self.intervals)} for "
                f"{self.max_retries} retries",
            )
        else:
            require(
                len(self.intervals) == 1,
                "retry_policy.intervals",
                f"must contain exactly one base interval in an exponential policy, not {len(self.intervals)}",
            )
        require(isinstance(self.jitter, bool), "retry_policy.jitter", f"must be True or False, not {self.jitter!r}")
        if self.max_delay_seconds is not None:
            require_int("retry_policy.max_delay_seconds", self.max_delay_seconds, 1, 2**31 - 1)
        require(
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
    :param retry_policy: when a failed attempt is retried; never without a policy.
    :param good_until: a task that has not started by this time becomes EXPIRED; also limits retries. Timezone-aware.
    :param delay: the time from sending, on the clock of the database, to the earliest start; whole seconds.
    :param timeout: the worker kills an attempt that runs for longer; at least one second.
    :param retention: how long the finished task is kept: a retention class, or ``forever``. By default the class that
        the workers assign to the queue, or 30 days.
    :param retain_rerun_input: keep the arguments with the finished task (up to 64 KiB).
    :param idempotency_key: sending the same key again returns the first task (horsies 0.5 or newer).
    :param task_id: a UUID for the task; generated by default.
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
        require_text("task_name", self.task_name, max_chars=MAX_TASK_NAME_CHARS)
        require_text("queue", self.queue, max_chars=MAX_QUEUE_NAME_CHARS)
        if self.retention is not None:
            require_text("retention", self.retention, max_bytes=MAX_RETENTION_BYTES)
        require_int("priority", self.priority, 1, 100)
        require(
            isinstance(self.kwargs, Mapping),
            "kwargs",
            f"must be a mapping of argument names to values, not {type(self.kwargs).__name__}",
        )
        require(
            self.retry_policy is None or isinstance(self.retry_policy, RetryPolicy),
            "retry_policy",
            f"must be a RetryPolicy, not {type(self.retry_policy).__name__}",
        )
        if self.task_name in PARKING_TASKS:
            policy = RetryPolicy.parking() if self.retry_policy is None else self.retry_policy.with_parking()
            object.__setattr__(self, "retry_policy", policy)
        require(
            isinstance(self.retain_rerun_input, bool),
            "retain_rerun_input",
            f"must be True or False, not {self.retain_rerun_input!r}",
        )
        if self.good_until is not None:
            object.__setattr__(self, "good_until", require_instant("good_until", self.good_until))
        if self.delay is not None:
            require_whole_seconds("delay", self.delay, minimum=0)
        if self.timeout is not None:
            require(
                isinstance(self.timeout, timedelta),
                "timeout",
                f"must be a timedelta, not {type(self.timeout).__name__}",
            )
            require(self.timeout >= timedelta(seconds=1), "timeout", f"must be at least one second, not {self.timeout}")
        if self.idempotency_key is not None:
            require_text("idempotency_key", self.idempotency_key, max_bytes=MAX_IDEMPOTENCY_KEY_BYTES)
        if self.task_id is not None:
            object.__setattr__(self, "task_id", require_task_id(self.task_id))


def require_instant(name: str, given: datetime) -> datetime:
    """The time in UTC."""
    require(isinstance(given, datetime), name, f"must be a datetime, not {type(given).__name__}")
    require(
        given.utcoffset() is not None,
        name,
        "has no time zone. Use an aware datetime, for example datetime.now(timezone.utc) + timedelta(hours=1)",
    )
    require(
        datetime.min.year < given.year < datetime.max.year,
        name,
        f"is at the limit of the calendar ({given:%Y-%m-%d}), which some time zones do not have. "
        "Leave it out for a task that never expires",
    )
    return plain_utc(given)


def plain_utc(instant: datetime) -> datetime:
    utc = instant.astimezone(UTC)
    # The text is hashed, and that of a subclass, such as pendulum's, differs.
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, tzinfo=UTC)
