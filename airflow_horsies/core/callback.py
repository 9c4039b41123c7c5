"""Callbacks: an outside party answers a task over HTTP, by a token that is stored nowhere."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from airflow_horsies.core.masking import TOKEN_PREFIX
from airflow_horsies.core.submission import SubmitResult
from airflow_horsies.core.validation import require
from airflow_horsies.exceptions import InvalidTask

# The feature that workers record if they fill in the addresses of callbacks.
CALLBACKS = "callbacks"
# Where the pages are mounted, and the routes of callbacks in them.
CALLBACK_PATH = "/horsies/callbacks"
MAX_BODY_BYTES = 1024 * 1024
MAX_ANSWER_NESTING = 100
NOT_AN_ANSWER = (
    "Send JSON in UTF-8: numbers that are finite, text without NUL characters, no key that begins with two "
    f"underscores, at most {MAX_ANSWER_NESTING} levels."
)
# Each attempt of the task that hands out the address gets a token of its own.
MAX_TOKENS = 100
MIN_EXPIRY, MAX_EXPIRY = timedelta(seconds=1), timedelta(days=365)

# Stands in the arguments of a task for the address of its callback. A worker fills it in when it starts the task.
CALLBACK_URL = "horsies-callback:url"
_NAMED = re.compile(r"horsies-callback:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class CallbackState(StrEnum):
    """The state of a callback. Every state but OPEN is final."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    # Nobody waits for it any more: the task instance was cleared, killed or timed out.
    VOID = "VOID"

    @property
    def is_answered(self) -> bool:
        return self in (CallbackState.COMPLETED, CallbackState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackTerms:
    """How long an outside party may take.

    :param expires_after: an answer or a heartbeat must come within this time.
    :param max_duration: heartbeats extend the wait up to this time after the submission; None for ``expires_after``.
    """

    expires_after: timedelta = timedelta(days=1)
    max_duration: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("expires_after", "max_duration"):
            value = getattr(self, name)
            if value is None and name == "max_duration":
                continue
            require(isinstance(value, timedelta), name, f"must be a timedelta, not {type(value).__name__}")
            require(MIN_EXPIRY <= value <= MAX_EXPIRY, name, f"must be from one second to 365 days, not {value}")
        require(
            self.max_duration is None or self.max_duration >= self.expires_after,
            "max_duration",
            f"must be at least expires_after, which is {self.expires_after}",
        )

    @property
    def longest(self) -> timedelta:
        return self.max_duration or self.expires_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A callback as its waiter sees it.

    :param seconds_left: until it expires, by the clock of the database; 0 or less if it is over.
    :param body: the JSON of the answer.
    """

    id: str
    state: CallbackState
    seconds_left: float = 0.0
    number: int = 1
    expires_at: datetime | None = None
    heartbeats: int = 0
    body: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.state is not CallbackState.OPEN or self.seconds_left <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedCallback:
    """A submitted callback and the task that hands out its address.

    :param sent: None if the callback was answered before, so that nothing was sent.
    """

    callback: Callback
    sent: SubmitResult | None
    life: int


def mint_token() -> str:
    return f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"


def digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def callback_url(base_url: str, token: str) -> str:
    return f"{base_url.rstrip('/')}{CALLBACK_PATH}/{token}"


def parse_answer(body: bytes) -> str:
    """
    The JSON that an outside party sent, as text; without a body, it is ``null``. ValueError if it cannot be stored.

    It becomes the value of an Airflow task, so nothing in it may have a meaning there.
    """
    text = body.decode() or "null"
    try:
        _require_plain(json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float))
    except RecursionError:
        raise ValueError(NOT_AN_ANSWER) from None
    return text


def digest_answer(text: str) -> bytes:
    """The same for every way to write the same JSON value."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).digest()


def _refuse_constant(_: str) -> None:
    raise ValueError(NOT_AN_ANSWER)


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(NOT_AN_ANSWER)
    return number


def _require_plain(value: Any, depth: int = 0) -> None:
    match value:
        case dict() | list() if depth >= MAX_ANSWER_NESTING:
            raise ValueError(NOT_AN_ANSWER)
        case str():
            # Neither Postgres nor Airflow can store these.
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                raise ValueError(NOT_AN_ANSWER)
        case dict():
            for key, item in value.items():
                # Airflow makes objects of values with such keys.
                if key.startswith("__"):
                    raise ValueError(NOT_AN_ANSWER)
                _require_plain(key, depth)
                _require_plain(item, depth + 1)
        case list():
            for item in value:
                _require_plain(item, depth + 1)


def require_placeholder(kwargs: Mapping[str, Any]) -> None:
    """Some argument contains the address of the callback."""
    if not any(isinstance(value, str) and CALLBACK_URL in value for value in kwargs.values()):
        raise InvalidTask(
            "kwargs",
            "contain no CALLBACK_URL. Pass CALLBACK_URL of airflow_horsies.operators as an argument, or as a part of "
            "its text. It is not filled in inside of lists and objects",
        )


def name_callback(text: str, callback_id: str) -> str:
    """The JSON of arguments, with the callback whose address is to be filled in."""
    return text.replace(CALLBACK_URL, f"horsies-callback:{callback_id}")


def find_callbacks(kwargs: Mapping[str, Any]) -> set[str]:
    """The callbacks whose address is to be filled in. Short tasks pass here, so only the arguments are looked at."""
    return {
        found
        for value in kwargs.values()
        if type(value) is str and "horsies-callback:" in value
        for found in _NAMED.findall(value)
    }


def fill_callbacks(kwargs: Mapping[str, Any], urls: Mapping[str, str]) -> dict[str, Any]:
    """The arguments with the addresses."""
    return {
        name: _NAMED.sub(lambda found: urls.get(found[1], found[0]), value) if type(value) is str else value
        for name, value in kwargs.items()
    }


def without_tokens(value: Any, tokens: Collection[str]) -> Any:
    """A JSON value without these tokens."""
    match value:
        case str():
            for token in tokens:
                value = value.replace(token, f"{TOKEN_PREFIX}***")
            return value
        case dict():
            return {without_tokens(key, tokens): without_tokens(item, tokens) for key, item in value.items()}
        case list():
            return [without_tokens(item, tokens) for item in value]
    return value
