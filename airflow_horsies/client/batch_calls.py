"""The calls of HorsiesHook on the items of batches and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from airflow_horsies.client.batches import iterate_items
from airflow_horsies.client.client import Client
from airflow_horsies.core.batch import BatchReference, BatchSpec, ChunkSize, ItemView, SubmittedBatch
from airflow_horsies.core.chunk import Isolation
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, OnClear, TaskInstanceKey
from airflow_horsies.exceptions import InvalidTask, TaskNotFound


class BatchCalls:
    """Sends many items of one task, several of which may share a horsies task, and reads them."""

    # Given, or looked up before.
    _connection: Any
    horsies_conn_id: str

    @property
    def client(self) -> Client:
        raise NotImplementedError

    def submit_items(
        self,
        spec: TaskSpec,
        items: Sequence[Mapping[str, Any]],
        task_instance: TaskInstanceKey,
        tried: AirflowTry,
        *,
        chunk_size: ChunkSize = None,
        isolate: Isolation = "chunk",
        on_clear: OnClear | str = OnClear.ALL,
    ) -> SubmittedBatch:
        """
        As :meth:`submit_tasks`, for many items of one task, several of which may share a horsies task.

        Editing ``chunk_size`` between two tries runs nothing again: items are identified by their arguments, wherever
        they run.

        .. code-block:: python

            spec = TaskSpec(task_name="load", queue="spark")
            parts = [{"part": part} for part in range(1000)]
            sent = hook.submit_items(spec, parts, instance_of(context), airflow_try(context), chunk_size=50)

        :param spec: what the items have in common; without ``kwargs``.
        :param items: the arguments of each item.
        :param chunk_size: how many items one horsies task runs, or ``"auto"``; None makes each a task of its own.
        :param isolate: ``"item"`` gives each item of a Spark chunk a session of its own.
        :param on_clear: ``failed`` keeps completed items over a clear and sends only the others; ``all`` sends all.
        """
        batch = BatchSpec(task=spec, items=items, chunk_size=chunk_size, isolate=isolate)
        return self.client.submit_batch(batch, task_instance, tried, on_clear=on_clear)

    def enqueue_items(
        self,
        spec: TaskSpec,
        items: Sequence[Mapping[str, Any]],
        *,
        chunk_size: int | Literal["auto"] = "auto",
        isolate: Isolation = "chunk",
    ) -> list[str]:
        """
        Send many items of one task in chunks, in one transaction, and return the ids of the chunks.

        .. code-block:: python

            ids = hook.enqueue_items(TaskSpec(task_name="add"), [{"a": n, "b": 1} for n in range(1000)], chunk_size=50)
            hook.wait(ids)
            values = [item.value for task_id in ids for item in hook.read_items(task_id)]

        :param spec: what the items have in common; without ``kwargs``.
        :param items: the arguments of each item.
        :param chunk_size: how many items one horsies task runs.
        :param isolate: ``"item"`` gives each item of a Spark chunk a session of its own.
        """
        if chunk_size is None:
            raise InvalidTask("chunk_size", "must be set. To send each item as a task of its own, use enqueue_tasks")
        return self.client.enqueue_items(BatchSpec(task=spec, items=items, chunk_size=chunk_size, isolate=isolate))

    def read_items(self, task_id: str, *, values: bool = True) -> Iterator[ItemView]:
        """
        The items of a chunk in order, with their outcomes so far, read a page at a time.

        .. code-block:: python

            failed = [item for item in hook.read_items(task_id) if item.state is TaskState.FAILED]

        :param task_id: the id of the chunk.
        :param values: read the values too.
        """
        return self.client.read_items(task_id, values=values)

    def read_values(self, reference: Mapping[str, Any]) -> Iterator[Any]:
        """
        The values of a batch in order, read a page at a time; None for an item that did not complete.

        .. code-block:: python

            reference = ti.xcom_pull(task_ids="per_airport")
            total = sum(value["rows"] for value in HorsiesHook().read_values(reference) if value)

        :param reference: what a HorsiesBatchOperator with ``results="reference"`` returned.
        """
        found = BatchReference.from_mapping(reference)
        if not found.size:
            return
        with self._hook_of(found).client as client:
            places = client.read_batch(found.task_instance, life=found.life, size=found.size)
            if found.digest not in (None, places.digest()):
                raise _submitted_again(found, "The batch", places.task_ids[0])
            for item in iterate_items(client, places):
                if not item.state.is_terminal:
                    raise _submitted_again(found, f"Item {item.place} of the batch", item.task_id)
                yield item.value

    def _hook_of(self, reference: BatchReference) -> Self:
        """A hook for the database and the namespace of the batch."""
        is_same = reference.horsies_conn_id == self.horsies_conn_id
        given = {"connection": self._connection} if is_same else {}
        make: Any = type(self)
        hook: Self = make(reference.horsies_conn_id, namespace=reference.namespace, **given)
        return hook


def _submitted_again(reference: BatchReference, what: str, task_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"{what} of {reference.task_instance} was submitted again since the task instance returned this reference. "
        "Read the values with the reference that it returns next.",
        task_id=task_id,
    )
