"""Encodes many tasks at once: the same values as encode_task gives one by one, in a fraction of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

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
        texts = _encode_plain([spec.kwargs for spec in part], max_payload_bytes)
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


def encode_plain_list(items: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The JSON of a list of arguments: as sent, and with sorted keys. None if some may need a conversion, or may be
    refused."""
    if not _are_plain(items):
        return None
    try:
        text = COMPACT.encode(items)
        text.encode()
    except ValueError:
        return None
    are_sorted = all(map(_is_sorted, {tuple(item) for item in items}))
    return text, text if are_sorted else SORTED.encode(items)


def _encode_plain(items: list[Mapping[str, Any]], max_payload_bytes: int) -> tuple[list[str], list[str]] | None:
    """As encode_plain_list, for each of them; None, too, if some may be too large."""
    encoded = encode_plain_list(items)
    if encoded is None:
        return None
    text, sorted_text = encoded
    texts = _split(text)
    # Some text may contain what separates two objects.
    if len(texts) != len(items) or max(map(len, texts)) * MAX_UTF8_BYTES > max_payload_bytes:
        return None
    return texts, texts if sorted_text is text else _split(sorted_text)


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


def _are_plain(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether arguments are JSON already. Most are, and all are looked at together."""
    if not {*map(type, items)} <= {dict}:
        return False
    values: list[Any] = list(chain.from_iterable(map(dict.values, items)))  # type: ignore[arg-type]
    kinds = {*map(type, values)}
    if not kinds <= PLAIN_TYPES:
        return False
    if int in kinds:
        integers = [value for value in values if type(value) is int]
        if max(integers) >= MAX_PLAIN_INTEGER or min(integers) <= -MAX_PLAIN_INTEGER:
            return False
    return all(map(_are_plain_keys, {*map(tuple, items)}))


@lru_cache(maxsize=64)
def _are_plain_keys(keys: tuple[object, ...]) -> bool:
    """Cached, because the tasks of a batch mostly have the same keys."""
    return all(
        type(key) is str and not key.startswith(RESERVED_KEY_PREFIXES) and key not in RESERVED_KEYS for key in keys
    )


def _is_sorted(keys: tuple[str, ...]) -> bool:
    return list(keys) == sorted(keys)
