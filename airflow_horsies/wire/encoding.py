"""Encodes a TaskSpec as the values of one horsies row: JSON as horsies itself writes it, and its digests."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from airflow_horsies.core.spec import DEFAULT_RETENTION, RetryPolicy, TaskSpec
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import InvalidTask

DEFAULT_MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
INLINE_RERUN_INPUT_BYTES = 65_536
# Deeper than the JSON parser of a worker supports, and more digits than Python converts to text.
MAX_NESTING = 200
MAX_INTEGER_BITS = 10_000
MAX_PLAIN_INTEGER = 2**63
# Of a UUID, and the first digit of its fourth group by a random one.
RANDOM_BYTES = 10
UUID_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
RESERVED_KEY_PREFIXES = ("__h_", "__horsies_")
RESERVED_KEYS = frozenset({"__builtin_task_code__"})
COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
ASCII = json.JSONEncoder(separators=(",", ":"))
IDEMPOTENCY_DOMAIN = b"horsies.enqueue-key.v1"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What the tasks of a batch have in common: all columns but the id, the arguments and the digests of these."""

    task_name: str
    queue_name: str
    priority: int
    sent_at: datetime
    good_until: datetime | None
    delay_seconds: int | None
    max_retries: int
    task_options: str
    retention_class_key: str
    retain_rerun_input: bool

    @cached_property
    def around(self) -> _Around:
        deadline = None if self.good_until is None else canonical_time(self.good_until)
        what = [self.task_name, self.queue_name, self.priority, None]
        rest = [deadline, self.delay_seconds, self.task_options]
        kept = [self.retention_class_key, self.retain_rerun_input, None, None]
        options = SORTED.encode(json.loads(self.task_options))
        before, after = b'{"args":[],"kwargs":', f',"options":{options}}}'.encode()
        return _Around(
            sha=_hashed(*_halves(ASCII, what, [canonical_time(self.sent_at), *rest])),
            fingerprint=_hashed(*_halves(COMPACT, [1, *what], [*rest, *kept])),
            input=_hashed(before, after),
            input_parts=(before, after),
        )


class EncodedTask(NamedTuple):
    """The column values of one row, for both generations. The digests are computed when they are asked for."""

    id: str
    id_is_given: bool
    command: Command
    kwargs: str | None
    # The arguments as JSON with sorted keys.
    arguments: bytes
    idempotency_digest: bytes | None = None

    @property
    def kind(self) -> WorkKind:
        return WorkKind.TASK

    @property
    def task_name(self) -> str:
        return self.command.task_name

    @property
    def queue_name(self) -> str:
        return self.command.queue_name

    @property
    def good_until(self) -> datetime | None:
        return self.command.good_until

    @property
    def priority(self) -> int:
        return self.command.priority

    @property
    def sent_at(self) -> datetime:
        return self.command.sent_at

    @property
    def delay_seconds(self) -> int | None:
        return self.command.delay_seconds

    @property
    def max_retries(self) -> int:
        return self.command.max_retries

    @property
    def task_options(self) -> str:
        return self.command.task_options

    @property
    def retain_rerun_input(self) -> bool:
        return self.command.retain_rerun_input

    @property
    def retention_class_key(self) -> str:
        return self.command.retention_class_key

    @property
    def digests(self) -> tuple[str, bytes, bytes]:
        """enqueue_sha, command_fingerprint and input_digest."""
        around = self.command.around
        in_ascii = ASCII.encode(self.kwargs)
        # Both are the same text where no character is written by its number.
        compact = COMPACT.encode(self.kwargs) if "\\u" in in_ascii else in_ascii
        return (
            _sha256(around.sha, in_ascii.encode()).hex(),
            _sha256(around.fingerprint, compact.encode()),
            _sha256(around.input, self.arguments),
        )

    @property
    def enqueue_sha(self) -> str:
        return self.digests[0]

    @property
    def command_fingerprint(self) -> bytes:
        return self.digests[1]

    @property
    def input_digest(self) -> bytes:
        return self.digests[2]

    @property
    def work(self) -> bytes:
        """The digest of task name and arguments, independent of queue, priority and deadlines."""
        return _work(self.command.task_name, self.arguments)

    @property
    def rerun_disposition(self) -> str:
        if not self.command.retain_rerun_input:
            return "DECLINED_BY_POLICY"
        return "INLINE" if len(self._input) <= INLINE_RERUN_INPUT_BYTES else "OVER_BOUND"

    @property
    def rerun_input(self) -> bytes | None:
        return self._input if self.rerun_disposition == "INLINE" else None

    @property
    def _input(self) -> bytes:
        before, after = self.command.around.input_parts
        return before + self.arguments + after

    @property
    def command_columns(self) -> tuple[object, ...]:
        """Replaces the fingerprint where horsies keeps none."""
        command = self.command
        return (
            command.task_name,
            command.queue_name,
            command.priority,
            self.kwargs,
            command.good_until,
            command.task_options,
        )


def encode_task(
    spec: TaskSpec, *, max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES, sent_at: datetime | None = None
) -> EncodedTask:
    """Validate and encode, without a database; InvalidTask names the field."""
    kwargs_json, arguments = _encode_arguments(spec.kwargs, max_payload_bytes)
    return encode_arguments(
        spec, kwargs_json=kwargs_json, sorted_arguments=arguments, sent_at=sent_at or datetime.now(UTC)
    )


def encode_arguments(
    spec: TaskSpec, *, kwargs_json: str | None, sorted_arguments: bytes, sent_at: datetime
) -> EncodedTask:
    """A task whose arguments are JSON already: as sent, and with sorted keys."""
    key = spec.idempotency_key
    return EncodedTask(
        spec.task_id or mint_task_id(),
        spec.task_id is not None,
        command_of(spec, sent_at),
        kwargs_json,
        sorted_arguments,
        None if key is None else encode_idempotency_key(spec.task_name, key),
    )


class EncodedItem(NamedTuple):
    """The arguments of an item as JSON: as sent, and with sorted keys, and their length in bytes."""

    text: str
    sorted_text: str
    length: int
    work: bytes


def encode_item(task_name: str, kwargs: Any, max_payload_bytes: int) -> EncodedItem:
    """As encode_task, for an item of a chunk: what it is, and not how it is sent."""
    if not isinstance(kwargs, Mapping):
        raise InvalidTask("kwargs", f"must be a mapping of argument names to values, not {type(kwargs).__name__}")
    kwargs_json, arguments = _encode_arguments(kwargs, max_payload_bytes)
    text, sorted_text = kwargs_json or "{}", arguments.decode()
    # One object where both are equal, as they mostly are.
    return EncodedItem(text, text if text == sorted_text else sorted_text, len(arguments), _work(task_name, arguments))


def encode_policy(policy: RetryPolicy | None) -> dict[str, Any] | None:
    """The form in which horsies stores a retry policy."""
    return None if policy is None else _retry_policy(policy)


def command_of(spec: TaskSpec, sent_at: datetime) -> Command:
    """What a task has in common with the others of its batch."""
    return _command(
        *(spec.task_name, spec.queue, spec.priority, sent_at, spec.good_until, spec.delay),
        *(spec.retry_policy, spec.timeout, spec.retention or DEFAULT_RETENTION, spec.retain_rerun_input),
    )


@lru_cache(maxsize=64)
def _command(
    task_name: str,
    queue: str,
    priority: int,
    sent_at: datetime,
    good_until: datetime | None,
    delay: timedelta | None,
    retry_policy: RetryPolicy | None,
    timeout: timedelta | None,
    retention: str,
    retain_rerun_input: bool,
) -> Command:
    """Cached, because the tasks of a batch share it."""
    return Command(
        task_name=task_name,
        queue_name=queue,
        priority=priority,
        sent_at=sent_at,
        good_until=good_until,
        delay_seconds=None if delay is None else int(delay.total_seconds()),
        max_retries=retry_policy.max_retries if retry_policy else 0,
        task_options=encode_task_options(retry_policy, good_until, timeout),
        retention_class_key=retention,
        retain_rerun_input=retain_rerun_input,
    )


def keep_for(tasks: Sequence[EncodedTask], classes: Mapping[str, str]) -> list[EncodedTask]:
    """The tasks with the retention class of their queue, where it has one."""
    # By identity: the tasks of a batch share one command.
    commands = {id(task.command): task.command for task in tasks}
    for number, command in commands.items():
        if command.queue_name in classes:
            commands[number] = replace(command, retention_class_key=classes[command.queue_name])
    return [task._replace(command=commands[id(task.command)]) for task in tasks]


def work_of(task_name: str, kwargs: Mapping[str, Any]) -> bytes:
    """The work of a stored task: equal for tasks of the same name and arguments."""
    return _work(task_name, SORTED.encode(kwargs).encode())


def _work(task_name: str, sorted_arguments: bytes) -> bytes:
    return hashlib.sha256(ASCII.encode(task_name).encode() + sorted_arguments).digest()


def as_sent(task: EncodedTask, *, queue_name: str, good_until: datetime | None) -> EncodedTask:
    """The task as sent to this queue with this deadline; only its command is valid."""
    deadline = None if good_until is None else good_until.astimezone(UTC)
    deadline_text = None if deadline is None else deadline.isoformat()
    options = {**json.loads(task.command.task_options), "good_until": deadline_text}
    command = replace(task.command, queue_name=queue_name, good_until=deadline, task_options=COMPACT.encode(options))
    return task._replace(command=command)


class _Hashed(NamedTuple):
    """The input of a digest around the arguments of a task; what comes before them is hashed once."""

    before: hashlib._Hash
    after: bytes


class _Around(NamedTuple):
    sha: _Hashed
    fingerprint: _Hashed
    input: _Hashed
    input_parts: tuple[bytes, bytes]


def _halves(encoder: json.JSONEncoder, before: list[Any], after: list[Any]) -> tuple[bytes, bytes]:
    """The JSON of a list, split around the one item between these."""
    return f"{encoder.encode(before)[:-1]},".encode(), f",{encoder.encode(after)[1:]}".encode()


def _hashed(before: bytes, after: bytes) -> _Hashed:
    return _Hashed(hashlib.sha256(before), after)


def _sha256(around: _Hashed, arguments: bytes) -> bytes:
    digest = around.before.copy()
    digest.update(arguments + around.after)
    return digest.digest()


def _encode_arguments(kwargs: Mapping[str, Any], max_payload_bytes: int) -> tuple[str | None, bytes]:
    """The arguments as JSON, None if there are none; and with sorted keys."""
    if not kwargs:
        return None, b"{}"
    are_plain, are_sorted = _look_at(kwargs)
    value = kwargs if are_plain else _json_value(kwargs, "kwargs")
    encoded = COMPACT.encode(value)
    try:
        sized = encoded.encode()
    except UnicodeEncodeError:
        raise InvalidTask("kwargs", "contain a lone surrogate, which is not valid text. Remove it") from None
    if len(sized) > max_payload_bytes:
        raise InvalidTask(
            "kwargs",
            f"are {len(sized):,} bytes of JSON, more than the {max_payload_bytes:,} allowed. Write the data to "
            "storage and pass its path, or raise max_payload_bytes in the connection's extra",
        )
    return encoded, sized if are_sorted else SORTED.encode(value).encode()


def _look_at(kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the arguments are JSON as they are, and whether their keys are sorted; most are both."""
    if type(kwargs) is not dict:
        return False, False
    last, are_sorted = "", True
    for key, value in kwargs.items():
        if type(key) is not str or key[:2] == "__" or not _is_plain(value):
            return False, False
        are_sorted = are_sorted and last <= key
        last = key
    return True, are_sorted


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is int:
        return -MAX_PLAIN_INTEGER < value < MAX_PLAIN_INTEGER  # type: ignore[operator]
    return kind is str or value is None or kind is bool


def mint_task_id() -> str:
    """A UUIDv7: horsies limits its history look-ups by the time in it."""
    return mint_task_ids(1)[0]


def mint_task_ids(count: int) -> list[str]:
    """As many at once, in ascending order: horsies claims tasks of one transaction in this order, and an index is
    faster if each key follows the last."""
    at, random = f"{time.time_ns() // 1_000_000:012x}", os.urandom(RANDOM_BYTES * count).hex()
    prefix, width = f"{at[:8]}-{at[8:]}-7", 2 * RANDOM_BYTES
    parts = [random[start : start + width] for start in range(0, width * count, width)]
    return sorted(f"{prefix}{part[:3]}-{UUID_VARIANTS[part[3]]}{part[4:7]}-{part[7:19]}" for part in parts)


@lru_cache(maxsize=64)
def encode_task_options(
    retry_policy: RetryPolicy | None, good_until: datetime | None, timeout: timedelta | None
) -> str:
    """Cached, because the tasks of a batch share them."""
    return COMPACT.encode(
        {
            "retry_policy": None if retry_policy is None else _retry_policy(retry_policy),
            "good_until": None if good_until is None else good_until.isoformat(),
            "timeout_ms": None if timeout is None else int(timeout.total_seconds() * 1000),
        }
    )


def _retry_policy(policy: RetryPolicy) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "max_retries": policy.max_retries,
        "intervals": list(policy.intervals),
        "backoff_strategy": policy.backoff_strategy,
        "jitter": policy.jitter,
    }
    if policy.max_delay_seconds is not None:
        encoded["max_delay_seconds"] = policy.max_delay_seconds
    encoded["auto_retry_for"] = list(policy.auto_retry_for)
    return encoded


def _json_value(value: Any, path: str, depth: int = 0) -> Any:
    """The plain JSON form of a value. Tuples become lists; other types that JSON lacks are refused."""
    if depth > MAX_NESTING:
        raise InvalidTask("kwargs", f"are nested more than {MAX_NESTING} deep, or contain themselves. Flatten them")
    # Subclasses become plain values, because an Enum or a numpy type would not survive.
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            if value.bit_length() > MAX_INTEGER_BITS:
                raise InvalidTask(path, f"is an integer of {value.bit_length()} bits. Pass it as a string")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise InvalidTask(path, f"is {value!r}, which JSON cannot represent. Pass None or a string")
            return float(value)
        case list() | tuple():
            return [_json_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        case Mapping():
            return {_json_key(key, path): _json_value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    hint = "Pass value.isoformat()" if hasattr(value, "isoformat") else "Pass a JSON value"
    raise InvalidTask(path, f"is of type {type(value).__name__}, which JSON cannot represent. {hint}")


def _json_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise InvalidTask(path, f"has the key {key!r}. Use strings as keys")
    if key.startswith(RESERVED_KEY_PREFIXES) or key in RESERVED_KEYS:
        raise InvalidTask(path, f"has the key {key!r}, which is reserved for horsies. Use another name")
    return key


def canonical_time(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def encode_idempotency_key(task_name: str, key: str) -> bytes:
    digest = hashlib.sha256()
    for part in (IDEMPOTENCY_DOMAIN, task_name.encode(), key.encode()):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()
