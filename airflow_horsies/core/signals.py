"""Signals: messages to a task or a workflow, and the retry policy of tasks that park until one arrives."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_horsies.core.validation import require, require_text
from airflow_horsies.exceptions import InvalidTask

# The error code of an attempt that waits outside of its worker. It is no failure.
AWAITING_SIGNAL = "AWAITING_SIGNAL"
SIGNAL_TIMED_OUT = "SIGNAL_TIMED_OUT"
# The names of the tasks that every app has.
WAIT_FOR_SIGNAL = "airflow_horsies.wait_for_signal"
SLEEP = "airflow_horsies.sleep"
PARKING_TASKS = frozenset({WAIT_FOR_SIGNAL, SLEEP})
# After this time, a parked task looks by itself where its worker died before it could set the time to resume.
PARKED_SECONDS = 60
# A parked task without a time-out looks by itself once a day.
LONGEST_PARKED = timedelta(days=1)
# As a server can add it to a time.
MAX_TIMEOUT = timedelta(days=3_650)
MAX_NAME_CHARS = 200
MAX_SENDER_CHARS = 500
MAX_DEDUP_CHARS = 500
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_CHECKPOINT_BYTES = 1024 * 1024
MAX_WAITING = 10_000
# A name that no signal can have: the wait for a time.
TIMER = "@timer"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSignal:
    """A signal as it was stored.

    :param id: the id of the message.
    :param target: the task or the workflow.
    :param name: its name.
    :param is_new: False if the same signal, by its deduplication key, was stored before.
    :param resumed: the number of parked tasks that were made due.
    """

    id: str
    target: str
    name: str
    is_new: bool = True
    resumed: int = 0


def require_signal_name(name: object) -> str:
    """The name of a signal, which is compared exactly."""
    require_text("name", name, max_chars=MAX_NAME_CHARS)
    assert isinstance(name, str)  # noqa: S101 - narrows the type only
    require(
        NAME.fullmatch(name) is not None,
        "name",
        f"{name!r} is not the name of a signal. Use letters, digits and _ . : / -, for example 'approved'",
    )
    return name


def require_timeout(timeout: timedelta | float | None) -> float | None:
    """The seconds of a time-out; None for no time-out."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, timedelta | int | float):
        raise InvalidTask("timeout", f"must be a timedelta, a number of seconds or None, not {timeout!r}")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    require(
        0 <= seconds <= MAX_TIMEOUT.total_seconds(),
        "timeout",
        f"must be between 0 and {MAX_TIMEOUT.days:,} days, not {timeout!r}",
    )
    return seconds


def encode_payload(payload: Any, *, field: str = "payload", max_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """The payload as JSON of limited size that Postgres can store."""
    try:
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidTask(field, "contains a lone surrogate, which is not valid text. Remove it") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(field, f"cannot be converted to JSON: {error}. Use only JSON types") from None
    require(
        size <= max_bytes,
        field,
        f"has {size:,} bytes of JSON, and the limit is {max_bytes:,}. Send a reference to what is stored elsewhere",
    )
    return text
