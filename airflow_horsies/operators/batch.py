"""HorsiesBatchOperator: many tasks in one task instance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.batches import iterate_items
from airflow_horsies.client.client import Client
from airflow_horsies.client.waiting import POLL_SECONDS
from airflow_horsies.core.batch import (
    BatchPlaces,
    BatchReference,
    BatchSpec,
    ChunkSize,
    FailureCount,
    SubmittedBatch,
    are_over,
    require_chunk_size,
    require_isolation,
    require_items,
)
from airflow_horsies.core.chunk import Isolation
from airflow_horsies.core.submission import AirflowTry, SubmitOutcome, TaskInstanceKey, is_lost, require_on_clear
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.exceptions import BatchFailed, InvalidTask
from airflow_horsies.operators.base import CANCELLED, HorsiesTaskOperator
from airflow_horsies.operators.outcomes import BatchFailedForGood, TaskFailedForGood, end_sentence, plural
from airflow_horsies.operators.rendering import integer, is_final
from airflow_horsies.operators.summary import BatchSummary, describe_item
from airflow_horsies.operators.worker_free import INSTEAD, START_TRIGGER
from airflow_horsies.triggers.base import HorsiesTrigger
from airflow_horsies.triggers.batch import HorsiesBatchTrigger

Results = Literal["values", "counts", "reference"]
RESULTS: tuple[Results, ...] = ("values", "counts", "reference")
# What a triggerer needs beside the fields of every operator.
OWN_FIELDS = ("items", "chunk_size", "isolate", "results", "max_failures", "min_success")


class HorsiesBatchOperator(HorsiesTaskOperator):
    """
    Send many tasks to horsies in one Airflow task, wait for all of them, and return their values in order.

    The tasks are sent in one transaction, one trigger waits for them, and a retry reattaches item by item. The value of
    an item that did not complete is None.

    .. code-block:: python

        HorsiesBatchOperator(
            task_id="per_airport",
            task_name="flights.aggregate",
            items=[{"airport": code} for code in ("JFK", "LGA", "EWR")],
            max_failures=1,
            deferrable=True,
        )

    :param task_name: the name under which the task is registered on the workers.
    :param items: the arguments of each item; templated, or the output of an upstream task.
    :param chunk_size: how many items one horsies task runs, for items that take less than a second or two. Each item
        keeps its own outcome, error, retries and place in the table. ``"auto"`` chooses the number from the measured
        durations of earlier items. By default, each item is a horsies task of its own. This needs workers of
        ``airflow_horsies.worker``; ``timeout`` and ``retry_policy`` apply to each item.
    :param isolate: ``"item"`` gives each item of a Spark chunk a Spark session of its own; by default, those of a chunk
        share one.
    :param results: what to return: ``"values"``, the value of each item in order; ``"counts"``, the number of items by
        state; or ``"reference"``, a small dict with which
        :meth:`~airflow_horsies.hook.HorsiesHook.read_values` reads the values a page at a time.
    :param max_failures: how many items may fail, expire or be cancelled. If there are more, the unfinished items are
        cancelled and the Airflow task fails. The default is 0, unless ``min_success`` allows some.
    :param min_success: how many items must complete. If both are given, the stricter one applies.
    :param on_clear: what a clear of the task instance runs again: ``all`` items, or ``failed`` for those that failed,
        expired or were cancelled. Completed items of the same DAG run then keep their values.
    :param show_logs: show the log lines and output of the items while they run, each line with the position of its item
        in ``items``. A large batch writes a lot.

    Further parameters: see :class:`HorsiesTaskOperator`.
    """

    template_fields: Sequence[str] = (*HorsiesTaskOperator.template_fields, "items", "max_failures", "min_success")
    template_fields_renderers: ClassVar[dict[str, str]] = {"items": "json", "horsies_retry_policy": "json"}
    numbers_tasks: ClassVar[bool] = True
    start_trigger = START_TRIGGER

    def __init__(
        self,
        *,
        items: Sequence[Mapping[str, Any]],
        chunk_size: ChunkSize = None,
        isolate: Isolation = "chunk",
        results: Results = "values",
        max_failures: int | None = None,
        min_success: int | None = None,
        on_clear: str = "all",
        show_logs: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(show_logs=show_logs, **base)
        self.items: Any = items
        self.chunk_size = chunk_size
        self.isolate = isolate
        self.results = results
        self.max_failures = max_failures
        self.min_success = min_success
        self.on_clear = on_clear
        self._agreed_failures: int | None = None
        self._kept = 0
        self._agreed_results: Any = None
        self._size = 0
        self._digest: str | None = None
        self._is_chunked = False
        self._failures: FailureCount | None = None
        self._validate()
        self._start_from_trigger()

    def _validate(self) -> None:
        for name in ("max_failures", "min_success"):
            if getattr(self, name) is not None and is_final(getattr(self, name)):
                _count_of(name, getattr(self, name))
        require_on_clear(self.on_clear)
        require_chunk_size(self.chunk_size)
        require_isolation(self.isolate)
        if self.isolate == "item" and self.chunk_size is None:
            raise InvalidTask("isolate", "needs chunk_size. Without it, each item is a task with a session of its own")
        if self.results not in RESULTS:
            raise InvalidTask("results", f"must be 'values', 'counts' or 'reference', not {self.results!r}")

    # -- sending ---------------------------------------------------------------------------------------------------

    def _specs(self, context: Context) -> BatchSpec:
        require_items(self.items)
        # Checks the bounds before anything is sent.
        allowed = self._allowed_failures(len(self.items))
        return BatchSpec(
            task=self._spec(context, {}),
            items=self.items,
            chunk_size=self.chunk_size,
            isolate=self.isolate,
            max_failures=allowed,
        )

    def _start_fields(self) -> dict[str, Any]:
        if self.on_clear != "all":
            raise InvalidTask(
                "worker_free",
                "is not possible with on_clear='failed', because a triggerer cannot tell a cleared DAG run from one "
                f"that was created again. Rerun failed items on the page of the batch when needed. {INSTEAD}",
            )
        return {**super()._start_fields(), "kind": "batch", **{name: getattr(self, name) for name in OWN_FIELDS}}

    def _send(self, client: Client | AsyncClient, specs: BatchSpec, tried: AirflowTry) -> Any:
        return client.submit_batch(specs, self._instance, tried, on_clear=self.on_clear)

    def _accept(self, sent: SubmittedBatch, instance: TaskInstanceKey, namespace: str) -> None:
        super()._accept(sent, instance, namespace)
        self._sent_ids, self._life, self._size = list(sent.task_ids), sent.life, sent.size
        self._is_chunked = sent.is_chunked
        self._kept = sent.outcomes.get(SubmitOutcome.KEPT, 0)

    def _resume_method(self, usual: str) -> str:
        return "complete_chunks" if self._is_chunked else usual

    def complete_chunks(self, context: Context, event: Mapping[str, Any]) -> Any:
        """As execute_complete. A release that does not know chunks would take their values for those of items: it has
        no such method, and fails."""
        return self.execute_complete(context, event)

    def _ids_to_return(self) -> list[str]:
        return self._sent_ids

    def _has_sent(self, sent: SubmittedBatch) -> bool:
        return SubmitOutcome.SENT in sent.outcomes

    def _announce(self, context: Context, sent: SubmittedBatch) -> None:
        self.log.info(
            "Sent %s to horsies queue %s, reattached to %s and adopted %s.%s",
            plural(sent.outcomes.get(SubmitOutcome.SENT, 0), "item" if sent.is_chunked else "task"),
            self.horsies_queue,
            sent.outcomes.get(SubmitOutcome.REATTACHED, 0),
            sent.outcomes.get(SubmitOutcome.ADOPTED, 0),
            f" They run in {plural(len(sent.task_ids), 'horsies task')}." if sent.is_chunked else "",
        )
        if self._kept:
            self.log.info(
                "A user asked to repair some items only. %s did not complete before and stay as they are.",
                plural(self._kept, "other item"),
            )

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, client: Client, deadline: datetime | None) -> list[TaskView] | None:
        # An empty batch ends at once. The submission has cancelled what an earlier try sent.
        return super()._wait(client, deadline) if self._sent_ids else []

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesBatchTrigger(
            life=self._life,
            size=self._size,
            max_failures=self._allowed_failures(self._size),
            results=self._asked_results(),
            kept=self._kept,
            **self._trigger_kwargs(deadline),
        )

    def _find_sent_ids(self, client: Client, event: Mapping[str, Any]) -> list[str]:
        places = client.read_batch(self._instance, life=event.get("life"), size=event.get("size"))
        # An older release stored no life.
        self._life, self._size, self._is_chunked = places.life, len(places), places.is_chunked
        return places.task_ids

    def _restore_settings(self, event: Mapping[str, Any]) -> None:
        super()._restore_settings(event)
        self._life = event.get("life") or 0
        self._agreed_failures = event.get("max_failures")
        # A triggerer of an older release knows nothing else than values.
        self._agreed_results = event.get("results", "values")
        self._kept = event.get("kept") or 0

    def _asked_results(self) -> Results:
        """What the tasks were sent for, even if the DAG has changed since."""
        return self._agreed_results if self._agreed_results in RESULTS else self.results

    def _reads_whole_tasks(self) -> bool:
        return not self._is_chunked and self._asked_results() == "values"

    def _is_decided(self, client: Client, ended: Mapping[str, TaskState]) -> bool:
        failures = self._count_failures(client, ended)
        return is_lost(failures, allowed=self._allowed_failures(self._size), kept=self._kept)

    def _count_failures(self, client: Client, ended: Mapping[str, TaskState]) -> int:
        if self._failures is None:
            # Tasks that are no chunks have no counts.
            self._failures = FailureCount(self._sent_ids if self._is_chunked else (), POLL_SECONDS)
        to_count = self._failures.to_count(ended, time.monotonic())
        return self._failures.total(client.count_items(to_count))

    def _is_unfinished(self, client: Client, tasks: Sequence[TaskView]) -> bool:
        if self._is_chunked:
            states = {task.id: task.state for task in tasks}
            live = [task_id for task_id, state in states.items() if not state.is_terminal]
            if live and are_over(states, client.count_items(live)):
                # A chunk ends a moment after its last item.
                return False
        return super()._is_unfinished(client, tasks)

    def _were_cut_short(self, client: Client, cancelled: Sequence[TaskView]) -> bool:
        if not self._is_chunked or not cancelled:
            return bool(cancelled)
        counts = client.count_items([task.id for task in cancelled])
        return any(task.id not in counts or counts[task.id].open > 0 for task in cancelled)

    def _allowed_failures(self, size: int) -> int:
        if self._agreed_failures is not None:
            return self._agreed_failures
        bounds = []
        if self.max_failures is not None:
            bounds.append(_count_of("max_failures", self.max_failures))
        if self.min_success is not None:
            wanted = _count_of("min_success", self.min_success)
            if wanted > size:
                raise InvalidTask("min_success", f"must be at most {size}, the number of items, not {wanted}")
            bounds.append(size - wanted)
        return min(bounds, default=0)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, client: Client, tasks: Sequence[TaskView], context: Context) -> Any:
        summary = self._summarize(client, tasks, are_whole=self._reads_whole_tasks())
        summary.log(self.log)
        self._fail_if_too_many(client, summary)
        return self._value(summary)

    async def _read_success(self, client: AsyncClient) -> Callable[[], Any] | None:
        try:
            summary = await client.in_thread(self._summarize_outlines)
        except TaskFailedForGood:
            # A worker meets the same error and reports it.
            return None
        has_failed = summary.live or summary.failures > self._allowed_failures(summary.size)
        return None if has_failed else partial(self._succeed, summary)

    def _succeed(self, summary: BatchSummary) -> Any:
        summary.log(self.log)
        return self._value(summary)

    def _summarize_outlines(self, client: Client) -> BatchSummary:
        """Reads the values a page at a time."""
        return self._summarize(client, self._read_tasks(client, whole=False), are_whole=False)

    def _summarize(self, client: Client, tasks: Sequence[TaskView], *, are_whole: bool) -> BatchSummary:
        wants_values = self._asked_results() == "values"
        summary = BatchSummary(keeps_values=wants_values)
        by_id = {task.id: task for task in tasks}
        places = self._find_places(client)
        if self._asked_results() == "reference":
            self._digest = places.digest()
        for item in iterate_items(client, places, tasks=by_id, are_whole=are_whole, values=wants_values):
            summary.add(item, by_id[item.task_id])
        return summary

    def _value(self, summary: BatchSummary) -> Any:
        match self._asked_results():
            case "values":
                return summary.values
            case "counts":
                return summary.counts
            case "reference":
                return asdict(self._reference(summary))

    def _find_places(self, client: Client) -> BatchPlaces:
        if self._is_chunked:
            return client.read_batch(self._instance, life=self._life, size=self._size)
        return BatchPlaces.of_tasks(self._life, self._sent_ids)

    def _places_of_items(self, client: Client) -> Mapping[tuple[str, int], int]:
        return self._find_places(client).by_item() if self._is_chunked else {}

    def _fail_if_too_many(self, client: Client, summary: BatchSummary) -> None:
        allowed = self._allowed_failures(summary.size)
        if summary.failures <= allowed or summary.first_failed is None:
            return
        problem = self._release(client, try_number=self._try_number)
        first, noun = summary.first_failed, "item" if self._is_chunked else "task"
        # A retry leaves the items as they are that the user did not ask for.
        raise (BatchFailedForGood if self._kept > allowed else BatchFailed)(
            f"{summary.failures} of {plural(summary.size, noun)} did not complete, more than the {allowed} allowed. "
            f"The first is item {first.place}: {end_sentence(describe_item(first))} "
            + (f"{plural(summary.live, noun)} had not ended. {problem or CANCELLED} " if summary.live else "")
            + "Open the Horsies tab of the task instance to see all items.",
            task_id=first.task_id,
            queue=summary.first_queue,
            error_code=first.error_code,
        )

    def _reference(self, summary: BatchSummary) -> BatchReference:
        return BatchReference(
            horsies_conn_id=self._conn_id or self.horsies_conn_id,
            namespace=self._namespace,
            task_instance=self._instance,
            life=self._life,
            size=summary.size,
            counts=summary.counts,
            digest=self._digest,
        )


def _count_of(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 0:
        raise InvalidTask(name, f"must be 0 or more, not {number}")
    return number
