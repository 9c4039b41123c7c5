"""Checks of values from callers; all raise InvalidTask with the name of the value."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

from airflow_horsies.exceptions import InvalidTask

ERROR_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
EXCEPTION_CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9_]*(Error|Exception)")


def require_task_id(value: object) -> str:
    """The canonical text of a task id."""
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        raise InvalidTask("task_id", f"must be a UUID, not {value!r}") from None


def require_error_code(name: str, code: object) -> None:
    """Error codes are UPPER_SNAKE_CASE; an exception's class name is a frequent mistake."""
    require(isinstance(code, str) and code != "", name, f"expected an error code such as RATE_LIMITED, not {code!r}")
    assert isinstance(code, str)  # noqa: S101 - narrows the type only
    require(
        EXCEPTION_CLASS_NAME.fullmatch(code) is None,
        name,
        f"{code!r} looks like an exception class. Use an error code, for example UNHANDLED_EXCEPTION",
    )
    require(
        ERROR_CODE.fullmatch(code) is not None, name, f"{code!r} is not in UPPER_SNAKE_CASE. Write it like RATE_LIMITED"
    )


def require(is_valid: bool, name: str, problem: str) -> None:
    if not is_valid:
        raise InvalidTask(name, problem)


def require_int(name: str, value: object, minimum: int, maximum: int) -> None:
    require(
        isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum,
        name,
        f"must be an integer from {minimum} to {maximum}, not {value!r}",
    )


def require_whole_seconds(name: str, value: object, *, minimum: int) -> None:
    if not isinstance(value, timedelta):
        raise InvalidTask(name, f"must be a timedelta, not {type(value).__name__}")
    require(value >= timedelta(seconds=minimum), name, f"must be at least {minimum} seconds, not {value}")
    require(value.microseconds == 0, name, f"must be a whole number of seconds, not {value}")


def require_text(name: str, value: object, *, max_chars: int | None = None, max_bytes: int | None = None) -> None:
    if not isinstance(value, str):
        raise InvalidTask(name, f"must be a string, not {type(value).__name__}")
    require(value.strip() != "", name, "must not be empty")
    require("\x00" not in value, name, "must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidTask(name, "contains a lone surrogate, which is not valid text. Remove it") from None
    if max_chars is not None:
        require(len(value) <= max_chars, name, f"is {len(value)} characters long. Use at most {max_chars}")
    if max_bytes is not None:
        require(size <= max_bytes, name, f"is {size} bytes long. Use at most {max_bytes}")
