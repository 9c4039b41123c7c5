"""Encodes many tasks at once: the same values as encode_task gives one by one, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.wire.encoding import (
    COMPACT,
    MAX_PLAIN_INTEGER,
    RESERVED_KEY_PREFIXES,
    RESERVED_KEYS,
    SORTED,
    Command,
    EncodedTask,
    command_of,
    encode_idempotency_key,
    encode_task,
    mint_task_ids,
)

ENCODED_AT_ONCE = 500
# Of values that need no conversion; the encoder refuses numbers that JSON lacks.
PLAIN_TYPES = frozenset({str, bool, int, float, type(None)})
# Between two flat objects of a list.
BETWEEN = "},{"
MAX_UTF8_BYTES = 4
OF_COMMAND = attrgetter(
    *("task_name", "queue", "priority", "good_until", "delay"),
    *("retry_policy", "timeout", "retention", "retain_rerun_input"),
)


def encode_tasks(specs: Sequence[TaskSpec], *, max_payload_bytes: int, sent_at: datetime) -> list[EncodedTask]:
    """Validate and encode, without a database; InvalidTask names the number of the task and the field."""
    tasks: list[EncodedTask] = []
    new_ids = mint_task_ids(len(specs))
    for start in range(0, len(specs), ENCODED_AT_ONCE):
        part, ids = specs[start : start + ENCODED_AT_ONCE], new_ids[start : start + ENCODED_AT_ONCE]
        texts = _encode_each([spec.kwargs for spec in part], max_payload_bytes)
        if texts is not None:
            tasks += _with_arguments(part, ids, *texts, sent_at)
            continue
        for spec, new_id in zip(part, ids, strict=True):
            try:
                task = encode_task(spec, max_payload_bytes=max_payload_bytes, sent_at=sent_at)
            except InvalidTask as error:
                raise InvalidTask(f"task {len(tasks)}: {error.field}", error.problem) from None
            tasks.append(task if task.id_is_given else task._replace(id=new_id))
    return tasks


def look_at(items: Sequence[Mapping[str, Any]]) -> tuple[bool, bool]:
    """Whether arguments are JSON as they are, and whether their keys are sorted. Most are, and all are looked at
    together."""
    if not {*map(type, items)} <= {dict}:
        return False, False
    values: list[Any] = list(chain.from_iterable(map(dict.values, items)))  # type: ignore[arg-type]
    kinds = {*map(type, values)}
    if not kinds <= PLAIN_TYPES:
        return False, False
    if int in kinds:
        integers = values if kinds == {int} else [value for value in values if type(value) is int]
        if max(integers) >= MAX_PLAIN_INTEGER or min(integers) <= -MAX_PLAIN_INTEGER:
            return False, False
    keys = {*map(tuple, items)}
    are_plain = all(map(_are_plain_keys, keys))
    return are_plain, are_plain and all(list(names) == sorted(names) for names in keys)


def encode_plain(items: Sequence[Mapping[str, Any]], *, are_sorted: bool) -> EncodedList | None:
    """The list of arguments that are JSON as they are; None if some is refused."""
    try:
        text = COMPACT.encode(items)
        size = len(text.encode())
    except ValueError:
        return None
    return EncodedList(text, text if are_sorted else SORTED.encode(items), size)


class EncodedList(NamedTuple):
    """The JSON of a list of arguments: as sent, and with sorted keys, and its length in bytes."""

    text: str
    sorted_text: str
    size: int


def _encode_each(items: list[Mapping[str, Any]], max_payload_bytes: int) -> tuple[list[str], list[str]] | None:
    """The JSON of each, as sent and with sorted keys; None if some may need a conversion, or may be refused."""
    are_plain, are_sorted = look_at(items)
    encoded = encode_plain(items, are_sorted=are_sorted) if are_plain else None
    if encoded is None:
        return None
    texts = _split(encoded.text)
    # Some text may contain what separates two objects.
    if len(texts) != len(items) or max(map(len, texts)) * MAX_UTF8_BYTES > max_payload_bytes:
        return None
    return texts, texts if are_sorted else _split(encoded.sorted_text)


def _split(objects: str) -> list[str]:
    """The flat objects of a JSON list."""
    return [f"{{{inner}}}" for inner in objects[2:-2].split(BETWEEN)]


def _with_arguments(
    specs: Sequence[TaskSpec], new_ids: list[str], texts: list[str], sorted_texts: list[str], sent_at: datetime
) -> list[EncodedTask]:
    tasks: list[EncodedTask] = []
    last: object = None
    command: Command | None = None
    for spec, new_id, text, sorted_text in zip(specs, new_ids, texts, sorted_texts, strict=True):
        shared = OF_COMMAND(spec)
        if command is None or shared != last:
            last, command = shared, command_of(spec, sent_at)
        given, key = spec.task_id, spec.idempotency_key
        tasks.append(
            EncodedTask(
                new_id if given is None else given,
                given is not None,
                command,
                text if spec.kwargs else None,
                sorted_text.encode(),
                None if key is None else encode_idempotency_key(spec.task_name, key),
            )
        )
    return tasks


@lru_cache(maxsize=64)
def _are_plain_keys(keys: tuple[object, ...]) -> bool:
    """Cached, because the tasks of a batch mostly have the same keys."""
    return all(
        type(key) is str and not key.startswith(RESERVED_KEY_PREFIXES) and key not in RESERVED_KEYS for key in keys
    )
