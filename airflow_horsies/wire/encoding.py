"""Encodes a TaskSpec as the values of one horsies row: JSON as horsies itself writes it, and its digests."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_horsies.core.spec import DEFAULT_RETENTION, RetryPolicy, TaskSpec
from airflow_horsies.exceptions import InvalidTask

DEFAULT_MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
INLINE_RERUN_INPUT_BYTES = 65_536
# Deeper than the JSON parser of a worker supports, and more digits than Python converts to text.
MAX_NESTING = 200
MAX_INTEGER_BITS = 10_000
RESERVED_KEY_PREFIXES = ("__h_", "__horsies_")
RESERVED_KEYS = frozenset({"__builtin_task_code__"})
COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
ASCII = json.JSONEncoder(separators=(",", ":"))
IDEMPOTENCY_DOMAIN = b"horsies.enqueue-key.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTask:
    """The column values of one row, for both generations."""

    id: str
    id_is_given: bool
    task_name: str
    queue_name: str
    priority: int
    kwargs: str | None
    sent_at: datetime
    good_until: datetime | None
    delay_seconds: int | None
    max_retries: int
    task_options: str
    enqueue_sha: str
    command_fingerprint: bytes
    input_digest: bytes
    # The digest of task name and arguments, independent of queue, priority and deadlines.
    work: bytes
    retention_class_key: str
    retain_rerun_input: bool
    rerun_disposition: str
    rerun_input: bytes | None
    idempotency_digest: bytes | None

    @property
    def command_columns(self) -> tuple[object, ...]:
        """Replaces the fingerprint where horsies keeps none."""
        return (
            self.task_name,
            self.queue_name,
            self.priority,
            self.kwargs,
            self.good_until,
            self.task_options,
        )


def encode_task(
    spec: TaskSpec, *, max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES, sent_at: datetime | None = None
) -> EncodedTask:
    """Validate and encode, without a database; InvalidTask names the field."""
    sent_at = sent_at or datetime.now(UTC)
    retention = spec.retention or DEFAULT_RETENTION
    kwargs = _json_value(spec.kwargs, "kwargs")
    kwargs_json = _kwargs_json(kwargs, max_payload_bytes)
    options_json = _task_options(spec.retry_policy, spec.good_until, spec.timeout)
    delay_seconds = None if spec.delay is None else int(spec.delay.total_seconds())
    around = _around_arguments(
        *(spec.task_name, spec.queue, spec.priority, sent_at, spec.good_until, delay_seconds, options_json),
        *(retention, spec.retain_rerun_input),
    )
    arguments = SORTED.encode(kwargs).encode()
    rerun_input = around.input[0] + arguments + around.input[1]
    if not spec.retain_rerun_input:
        disposition = "DECLINED_BY_POLICY"
    elif len(rerun_input) > INLINE_RERUN_INPUT_BYTES:
        disposition = "OVER_BOUND"
    else:
        disposition = "INLINE"

    return EncodedTask(
        id=spec.task_id or mint_task_id(),
        id_is_given=spec.task_id is not None,
        task_name=spec.task_name,
        queue_name=spec.queue,
        priority=spec.priority,
        kwargs=kwargs_json,
        sent_at=sent_at,
        good_until=spec.good_until,
        delay_seconds=delay_seconds,
        max_retries=spec.retry_policy.max_retries if spec.retry_policy else 0,
        task_options=options_json,
        enqueue_sha=_sha256(around.sha, ASCII.encode(kwargs_json)).hexdigest(),
        command_fingerprint=_sha256(around.fingerprint, COMPACT.encode(kwargs_json)).digest(),
        input_digest=hashlib.sha256(rerun_input).digest(),
        work=_work(spec.task_name, arguments),
        retention_class_key=retention,
        retain_rerun_input=spec.retain_rerun_input,
        rerun_disposition=disposition,
        rerun_input=rerun_input if disposition == "INLINE" else None,
        idempotency_digest=(
            None if spec.idempotency_key is None else _idempotency_digest(spec.task_name, spec.idempotency_key)
        ),
    )


def work_of(task_name: str, kwargs: Mapping[str, Any]) -> bytes:
    """The work of a stored task: equal for tasks of the same name and arguments."""
    return _work(task_name, SORTED.encode(kwargs).encode())


def _work(task_name: str, sorted_arguments: bytes) -> bytes:
    return hashlib.sha256(ASCII.encode(task_name).encode() + sorted_arguments).digest()


def as_sent(task: EncodedTask, *, queue_name: str, good_until: datetime | None) -> EncodedTask:
    """The task as sent to this queue with this deadline; only its command is valid."""
    deadline = None if good_until is None else good_until.astimezone(UTC)
    options = {**json.loads(task.task_options), "good_until": None if deadline is None else deadline.isoformat()}
    options_json = COMPACT.encode(options)
    around = _around_arguments(
        *(task.task_name, queue_name, task.priority, task.sent_at, deadline, task.delay_seconds, options_json),
        *(task.retention_class_key, task.retain_rerun_input),
    )
    return replace(
        task,
        queue_name=queue_name,
        good_until=deadline,
        task_options=options_json,
        command_fingerprint=_sha256(around.fingerprint, COMPACT.encode(task.kwargs)).digest(),
    )


class _Around(NamedTuple):
    """The input of the digests before and after the arguments of a task."""

    sha: tuple[bytes, bytes]
    fingerprint: tuple[bytes, bytes]
    input: tuple[bytes, bytes]


@lru_cache(maxsize=64)
def _around_arguments(
    task_name: str,
    queue: str,
    priority: int,
    sent_at: datetime,
    good_until: datetime | None,
    delay_seconds: int | None,
    options_json: str,
    retention: str,
    retain_rerun_input: bool,
) -> _Around:
    """Cached, because the tasks of a batch share it."""
    deadline = None if good_until is None else _canonical(good_until)
    what = [task_name, queue, priority, None]
    rest = [deadline, delay_seconds, options_json]
    options = SORTED.encode(json.loads(options_json))
    return _Around(
        sha=_halves(ASCII, what, [_canonical(sent_at), *rest]),
        fingerprint=_halves(COMPACT, [1, *what], [*rest, retention, retain_rerun_input, None, None]),
        input=(b'{"args":[],"kwargs":', f',"options":{options}}}'.encode()),
    )


def _halves(encoder: json.JSONEncoder, before: list[Any], after: list[Any]) -> tuple[bytes, bytes]:
    """The JSON of a list, split around the one item between these."""
    return f"{encoder.encode(before)[:-1]},".encode(), f",{encoder.encode(after)[1:]}".encode()


def _sha256(around: tuple[bytes, bytes], arguments: str) -> Any:
    return hashlib.sha256(around[0] + arguments.encode() + around[1])


def _kwargs_json(kwargs: dict[str, Any], max_payload_bytes: int) -> str | None:
    """The arguments as JSON, or None if there are none."""
    if not kwargs:
        return None
    encoded = COMPACT.encode(kwargs)
    try:
        size = len(encoded.encode())
    except UnicodeEncodeError:
        raise InvalidTask("kwargs", "contain a lone surrogate, which is not valid text. Remove it") from None
    if size > max_payload_bytes:
        raise InvalidTask(
            "kwargs",
            f"are {size:,} bytes of JSON, more than the {max_payload_bytes:,} allowed. Write the data to "
            "storage and pass its path, or raise max_payload_bytes in the connection's extra",
        )
    return encoded


def mint_task_id() -> str:
    """A UUIDv7: horsies limits its history look-ups by the time in it."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


@lru_cache(maxsize=64)
def _task_options(retry_policy: RetryPolicy | None, good_until: datetime | None, timeout: timedelta | None) -> str:
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


def _canonical(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def _idempotency_digest(task_name: str, key: str) -> bytes:
    digest = hashlib.sha256()
    for part in (IDEMPOTENCY_DOMAIN, task_name.encode(), key.encode()):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()
