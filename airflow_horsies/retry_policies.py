"""HorsiesRetryPolicy: the error code of a horsies task decides whether Airflow retries (Airflow 3.3 and newer)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow_horsies.core.validation import require_error_code
from airflow_horsies.exceptions import HorsiesError, InvalidTask, TaskError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

    HAS_RETRY_POLICIES = True
else:
    try:
        from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

        HAS_RETRY_POLICIES = True
    except ImportError:
        RetryPolicy = object
        HAS_RETRY_POLICIES = False

Otherwise = Literal["default", "fail", "retry"]


class HorsiesRetryPolicy(RetryPolicy):
    """
    Decide by the error code of a failed horsies task whether, and when, Airflow retries.

    Airflow's ``retries`` remain the upper bound. Errors that do not concern a horsies task are handled as usual.

    .. code-block:: python

        HorsiesRetryPolicy(
            fail=["BAD_INPUT"],
            retry={"RATE_LIMITED": timedelta(minutes=10), "WORKER_CRASHED": None},
        )

    :param fail: error codes after which Airflow does not retry.
    :param retry: error codes after which it does, each with its delay; None is the task's ``retry_delay``.
    :param otherwise: what to do after any other code: ``default`` (as without a policy), ``fail`` or ``retry``.
    """

    def __init__(
        self,
        *,
        fail: Collection[str] = (),
        retry: Mapping[str, timedelta | None] | Collection[str] = (),
        otherwise: Otherwise = "default",
    ) -> None:
        if not HAS_RETRY_POLICIES:
            raise HorsiesError(
                "HorsiesRetryPolicy needs Airflow 3.3 or newer. Use fail_fast_codes of HorsiesOperator instead."
            )
        self.fail = _codes("fail", fail)
        self.retry = dict(retry) if isinstance(retry, Mapping) else dict.fromkeys(_codes("retry", retry))
        self.otherwise = otherwise
        for code, delay in self.retry.items():
            require_error_code("retry", code)
            if delay is not None and (not isinstance(delay, timedelta) or delay < timedelta(0)):
                raise InvalidTask("retry", f"delay of {code} must be a timedelta of 0 or more, or None, not {delay!r}")
        both = sorted(self.retry.keys() & set(self.fail))
        if both:
            raise InvalidTask("retry", f"must not contain a code of fail: {', '.join(both)}")
        if otherwise not in ("default", "fail", "retry"):
            raise InvalidTask("otherwise", f"must be 'default', 'fail' or 'retry', not {otherwise!r}")

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Called by Airflow in the process of the task that failed."""
        code = _error_code(exception)
        if code is None:
            return RetryDecision.default()
        if code in self.fail:
            return RetryDecision.fail(reason=f"{code} is in the codes that fail.")
        if code in self.retry:
            return RetryDecision.retry(self.retry[code], reason=f"{code} is in the codes that are retried.")
        match self.otherwise:
            case "fail":
                return RetryDecision.fail(reason=f"{code} is not in the codes that are retried.")
            case "retry":
                return RetryDecision.retry(reason=f"{code} is not in the codes that fail.")
            case "default":
                return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        return {
            "fail": self.fail,
            "retry": {code: None if delay is None else delay.total_seconds() for code, delay in self.retry.items()},
            "otherwise": self.otherwise,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> HorsiesRetryPolicy:
        delays = {
            code: None if seconds is None else timedelta(seconds=seconds) for code, seconds in data["retry"].items()
        }
        return cls(fail=data["fail"], retry=delays, otherwise=data["otherwise"])


def _codes(name: str, codes: Collection[str]) -> list[str]:
    if isinstance(codes, str):
        raise InvalidTask(name, f"must be a list of error codes, not the string {codes!r}")
    for code in codes:
        require_error_code(name, code)
    return sorted(codes)


def _error_code(exception: BaseException | None) -> str | None:
    """The error code of the horsies task in an exception or in one of its causes."""
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        if isinstance(exception, TaskError) and exception.error_code:
            return exception.error_code
        seen.add(id(exception))
        exception = exception.__cause__ or exception.__context__
    return None
