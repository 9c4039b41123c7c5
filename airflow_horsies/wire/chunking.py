"""Encodes the items of a batch as the arguments of chunks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from airflow_horsies.core.chunk import CHUNK_SUFFIX, ISOLATE, ITEMS, RETRY_POLICY, TIMEOUT_MS, chunk_timeout
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.wire.bulk import encode_plain, look_at
from airflow_horsies.wire.encoding import (
    COMPACT,
    SORTED,
    EncodedTask,
    encode_arguments,
    encode_item,
    encode_policy,
    work_of,
)


@dataclass(frozen=True, slots=True)
class EncodedItems:
    """The items of a batch: the arguments of each as JSON, and its work. Lists of plain values, because there may be
    very many.

    :param task: what the items have in common.
    :param max_bytes: of the arguments of a chunk.
    """

    task: TaskSpec
    isolate: str
    chunk_size: int
    max_bytes: int
    sent_at: datetime
    texts: list[str]
    sorted_texts: list[str]
    lengths: array[int]
    works: list[bytes]
    _frames: dict[int, _Frame] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.works)

    def split(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        """The places of the items of each chunk: bounded in number and in bytes."""
        start, size = 0, 0
        for index, place in enumerate(places):
            length = self.lengths[place] + 1
            if index > start and (index - start == self.chunk_size or size + length > self.max_bytes):
                yield places[start:index]
                start, size = index, 0
            size += length
        if start < len(places):
            yield places[start:]

    def encode_chunk(self, places: Sequence[int], *, task_id: str | None = None) -> EncodedTask:
        """A task that runs the items at these places, in this order."""
        texts = ",".join(map(self.texts.__getitem__, places))
        sorted_texts = ",".join(map(self.sorted_texts.__getitem__, places))
        return self._encode(len(places), texts, sorted_texts, task_id)

    def encode_plain_chunks(self, items: Sequence[Mapping[str, Any]]) -> list[EncodedTask] | None:
        """The chunks of other items, whose works nobody needs, several times as fast; None if some item needs more than
        a look, or a chunk is too large."""
        are_plain, are_sorted = look_at(items)
        if not are_plain:
            return None
        tasks = []
        for start in range(0, len(items), self.chunk_size):
            part = list(items[start : start + self.chunk_size])
            encoded = encode_plain(part, are_sorted=are_sorted)
            if encoded is None or encoded.size - len("[]") > self.max_bytes:
                return None
            tasks.append(self._encode(len(part), encoded.text[1:-1], encoded.sorted_text[1:-1], None))
        return tasks

    def _encode(self, size: int, texts: str, sorted_texts: str, task_id: str | None) -> EncodedTask:
        frame = self._frames.get(size) or self._frames.setdefault(size, self._make_frame(size))
        task = encode_arguments(
            frame.spec,
            kwargs_json=texts.join(frame.around),
            sorted_arguments=sorted_texts.join(frame.sorted_around).encode(),
            sent_at=self.sent_at,
        )
        return task if task_id is None else task._replace(id=task_id, id_is_given=True)

    def _make_frame(self, size: int) -> _Frame:
        arguments = {ITEMS: [], **self._rest()}
        return _Frame(
            chunk_spec(self.task, size), _around(COMPACT.encode(arguments)), _around(SORTED.encode(arguments))
        )

    def _rest(self) -> dict[str, Any]:
        timeout = self.task.timeout
        return {
            TIMEOUT_MS: None if timeout is None else int(timeout.total_seconds() * 1000),
            RETRY_POLICY: encode_policy(self.task.retry_policy),
            ISOLATE: self.isolate,
        }


class _Frame(NamedTuple):
    """What the chunks of one size have in common: how they are sent, and the JSON around their items."""

    spec: TaskSpec
    around: tuple[str, str]
    sorted_around: tuple[str, str]


def chunk_spec(task: TaskSpec, size: int) -> TaskSpec:
    """How a chunk of this size is sent: as its items would be, under the name of the chunk."""
    return replace(
        task,
        task_name=f"{task.task_name}{CHUNK_SUFFIX}",
        timeout=chunk_timeout(task.timeout, task.retry_policy, size),
        task_id=None,
    )


def encode_items(
    task: TaskSpec,
    items: Sequence[Mapping[str, Any]],
    *,
    isolate: str,
    chunk_size: int,
    max_payload_bytes: int,
    sent_at: datetime,
) -> EncodedItems:
    """Validate and encode, without a database; InvalidTask names the item and the field."""
    # Fails before the items are encoded if the name of the chunk is too long.
    chunk_spec(task, 1)
    encoded = EncodedItems(task, isolate, chunk_size, 0, sent_at, [], [], array("q"), [])
    rest = len(COMPACT.encode({ITEMS: [], **encoded._rest()}).encode())
    encoded = replace(encoded, max_bytes=max_payload_bytes - rest)
    for number, kwargs in enumerate(items):
        try:
            item = encode_item(task.task_name, kwargs, encoded.max_bytes)
        except InvalidTask as error:
            raise InvalidTask(f"item {number}: {error.field}", error.problem) from None
        encoded.texts.append(item.text)
        encoded.sorted_texts.append(item.sorted_text)
        encoded.lengths.append(item.length)
        encoded.works.append(item.work)
    return encoded


def works_of_chunk(task_name: str, kwargs: Mapping[str, Any]) -> list[bytes]:
    """The works of the items of a stored chunk."""
    items = kwargs.get(ITEMS)
    return [work_of(task_name, item) for item in items] if isinstance(items, list) else []


def _around(arguments: str) -> tuple[str, str]:
    """The JSON of the arguments of a chunk before and after its items, which are not encoded again."""
    before, mark, after = arguments.partition(f'"{ITEMS}":[')
    return f"{before}{mark}", after
