"""The base of all operators that send work to horsies: submit, wait inline, then defer or continue to wait.

The rules are the same for tasks and workflows. What differs is how the work is sent and read, and what its end means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, assert_never

from airflow.providers.common.compat.sdk import AirflowTaskTimeout, Context, conf

from airflow_horsies.airflow_instance import airflow_try, instance_of, traced_try
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.core.documentation import explain_error
from airflow_horsies.core.spec import DEFAULT_QUEUE
from airflow_horsies.core.submission import AirflowTry, TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.validation import require_error_code
from airflow_horsies.exceptions import (
    HorsiesError,
    InvalidTask,
    QueueNotServed,
    TaskError,
    TaskNotFound,
    WaitTimeout,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.operators.outcomes import (
    TaskTimedOut,
    describe_missing_task,
    plural,
)
from airflow_horsies.operators.releasing import ReleasingOperator
from airflow_horsies.operators.worker_free import WorkerFree
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.holding import mark_deferral
from airflow_horsies.triggers.task_log import StoredSeen, TaskLog, load_seen, store_seen

ATTEMPTS_LINK = HorsiesAttemptsLink()
CANCELLED = "Unfinished tasks were cancelled."

FailOrSkip = Literal["fail", "skip"]
# What was sent, as it is read: each has an ``id`` and a ``state``, which is a TaskState.
Works: TypeAlias = Sequence[Any]


class WaitingOperator(WorkerFree, ReleasingOperator):
    """The base of the operators that send work to horsies and wait for it."""

    operator_extra_links = (ATTEMPTS_LINK,)
    ui_color = "#e8f1e4"
    numbers_tasks: ClassVar[bool] = False
    # What a message calls what was sent.
    noun: ClassVar[str] = "task"

    def __init__(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        horsies_queue: str | None = None,
        priority: int = 100,
        good_until: datetime | timedelta | str | None = None,
        wait_for_completion: bool = True,
        inline_wait: timedelta = timedelta(seconds=5),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        worker_free: bool = False,
        on_expired: FailOrSkip = "fail",
        on_cancelled: FailOrSkip = "fail",
        cancel_on_kill: bool = True,
        fail_fast_codes: Collection[str] = (),
        queue_timeout: timedelta | None = None,
        show_logs: bool = True,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        # Airflow passes its default queue to a mapped operator that names no queue.
        given_queue = DEFAULT_QUEUE if queue == conf.get("operators", "default_queue") else queue
        self.horsies_queue = horsies_queue or given_queue
        self.priority = priority
        self.good_until = good_until
        self.wait_for_completion = wait_for_completion
        self.inline_wait = inline_wait
        self.worker_free = worker_free
        self.deferrable = deferrable or worker_free
        self.on_expired = on_expired
        self.on_cancelled = on_cancelled
        self.cancel_on_kill = cancel_on_kill
        self.fail_fast_codes = sorted(fail_fast_codes)
        self.queue_timeout = queue_timeout
        self.show_logs = show_logs
        self.horsies_conn_id = horsies_conn_id
        self._sent_ids: list[str] = []
        self._instance: Any = None
        self._life = 0
        self._try_number: int | None = None
        self._conn_id: str | None = None
        self._namespace: str | None = None
        self._queue_deadline: datetime | None = None
        self._is_uninterruptible = False
        self._stop_requested = False
        self._task_log: TaskLog | None = None
        for name in ("on_expired", "on_cancelled"):
            if getattr(self, name) not in ("fail", "skip"):
                raise InvalidTask(name, f"must be 'fail' or 'skip', not {getattr(self, name)!r}")
        for code in self.fail_fast_codes:
            require_error_code("fail_fast_codes", code)

    def execute(self, context: Context) -> Any:
        specs = self._specs(context)
        deadline = self._deadline(context)
        with self._client() as client:
            try:
                self._submit(client, specs, context)
                if not self.wait_for_completion:
                    return self._ids_to_return()
                tasks = self._wait(client, deadline)
            except AirflowTaskTimeout as timeout:
                if isinstance(timeout, TaskTimedOut):
                    raise
                # Airflow's own timeout fired first.
                tasks = self._give_up(client)
            if tasks is not None:
                return self._end(client, tasks, context)
        trigger = mark_deferral(self._trigger(context, deadline), self.executor)
        self.defer(trigger=trigger, method_name=self._resume_method("execute_complete"))

    def _resume_method(self, usual: str) -> str:
        """The method that Airflow calls with the event of the trigger."""
        return usual

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Called with the trigger's event, which names the tasks: code and settings may have changed since."""
        self._instance = instance_of(context)
        self._try_number = context["ti"].try_number
        reason = Reason(event["reason"])
        if reason is Reason.NOT_STARTED:
            self.log.info("The triggerer did not start the task, so this worker does: %s", event["message"])
            return self._run(context)
        self._restore_settings(event)
        with self._client() as client:
            self._sent_ids = self._find_sent_ids(client, event)
            self._task_log = self._make_task_log(client, event.get("seen") or {})
            match reason:
                case Reason.ENDED | Reason.DECIDED | Reason.PAUSED:
                    tasks = self._read_works(client)
                    if self._is_unfinished(client, tasks):
                        self._defer_again(context, event)
                case Reason.TIMED_OUT:
                    tasks = self._give_up(client)
                case Reason.NOT_SERVED:
                    tasks = self._not_served(client)
                case Reason.NOT_FOUND:
                    first = self._sent_ids[0] if self._sent_ids else "(none)"
                    raise TaskNotFound(event["message"] or describe_missing_task(first, self.noun), task_id=first)
                case Reason.ERROR:
                    raise HorsiesError(event["message"])
                case _:
                    assert_never(reason)
            return self._end(client, tasks, context)

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _specs(self, context: Context) -> Any:
        """What to send."""
        raise NotImplementedError

    def _ids_to_return(self) -> Any:
        raise NotImplementedError

    def _finish(self, client: Client, tasks: Works, context: Context) -> Any:
        raise NotImplementedError

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        raise NotImplementedError

    def _send(self, client: Client | AsyncClient, specs: Any, tried: AirflowTry) -> Any:
        """What was submitted; of an AsyncClient, to be awaited."""
        raise NotImplementedError

    def _accept(self, sent: Any, instance: TaskInstanceKey, namespace: str) -> None:
        """Remember what was submitted, wherever that happened."""
        self._instance = instance
        self._namespace = namespace
        if self.queue_timeout is not None:
            self._queue_deadline = datetime.now(UTC) + self.queue_timeout

    def _has_sent(self, sent: Any) -> bool:
        """Whether a new task was submitted, and not only tasks of before taken up."""
        raise NotImplementedError

    def _announce(self, context: Context, sent: Any) -> None:
        raise NotImplementedError

    async def _read_success(self, client: AsyncClient) -> Callable[[], Any] | None:
        """In a triggerer, once the tasks have ended: what logs their end and returns the value; None if they failed."""
        raise NotImplementedError

    def _find_sent_ids(self, client: Client, event: Mapping[str, Any]) -> list[str]:
        """The ids of all tasks the trigger waited for; an error if some cannot be found."""
        ids = list(event["task_ids"])
        if not ids:
            raise HorsiesError("The trigger's event names no horsies task. Clear the Airflow task to submit it again.")
        return ids

    def _is_decided(self, client: Client, ended: Mapping[str, TaskState]) -> bool:
        return False

    def _wait_for_end(
        self, client: Client, timeout_seconds: float | None, meanwhile: Callable[[], None] | None
    ) -> list[Any]:
        """What was sent, once it has ended or the outcome is decided; WaitTimeout after the timeout."""
        raise NotImplementedError

    def _read_works(self, client: Client) -> list[Any]:
        """What was sent, as it is now; TaskNotFound if some of it is missing."""
        raise NotImplementedError

    def _waits_unserved(self, client: Client) -> bool:
        """Whether something has not started and waits in a queue that no live worker serves."""
        raise NotImplementedError

    def _restore_settings(self, event: Mapping[str, Any]) -> None:
        """Use the settings that were valid when the tasks were sent, even if the DAG has changed since."""
        self._conn_id = event.get("horsies_conn_id") or self.horsies_conn_id
        self._namespace = event.get("namespace")

    def _run(self, context: Context) -> Any:
        """Execute a task that the triggerer did not start. Airflow warns of a call of execute() itself."""
        execute: Any = WaitingOperator.execute
        return execute.__wrapped__(self, context)

    def _resume_failed(self, next_kwargs: Mapping[str, Any], context: Context) -> Any:
        trace = next_kwargs.get("traceback")
        self.log.warning("The trigger has ended: %s\n%s", next_kwargs.get("error"), "\n".join(trace or ()))
        # Reattaches to what the triggerer sent. If the time is over, that is noticed as on any worker.
        return self._run(context)

    # -- internals -------------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        return HorsiesHook(self._conn_id or self.horsies_conn_id, namespace=self._namespace).client

    def _is_unfinished(self, client: Client, tasks: Works) -> bool:
        """Whether there are still tasks to wait for, although the trigger fired."""
        ended = {task.id: task.state for task in tasks if task.state.is_terminal}
        return len(ended) < len(tasks) and not self._is_decided(client, ended)

    def _defer_again(self, context: Context, event: Mapping[str, Any]) -> NoReturn:
        deadline = event.get("deadline")
        trigger = self._trigger(context, datetime.fromisoformat(deadline) if deadline else None)
        self.defer(trigger=mark_deferral(trigger, self.executor), method_name=self._resume_method("execute_complete"))
        raise AssertionError("defer() always raises.")

    def _trigger_kwargs(self, deadline: datetime | None) -> dict[str, Any]:
        """The arguments that all triggers have in common."""
        queue_deadline = self._queue_deadline
        return {
            "task_instance": asdict(self._instance),
            "namespace": self._namespace,
            "horsies_conn_id": self._conn_id or self.horsies_conn_id,
            "deadline": None if deadline is None else deadline.isoformat(),
            "queue_deadline": None if queue_deadline is None else queue_deadline.isoformat(),
            "cancel_on_kill": self.cancel_on_kill,
            "seen": self._stored_seen(),
        }

    def _deadline(self, context: Context) -> datetime | None:
        if self.execution_timeout is None:
            return None
        started: datetime = context["ti"].start_date or datetime.now(UTC)
        return started + self.execution_timeout

    def _submit(self, client: Client, specs: Any, context: Context) -> None:
        self._instance = instance_of(context)
        self._try_number = context["ti"].try_number
        with self._uninterrupted():
            tried = self._tried(context, client.namespace)
            client.stay_in(tried.namespace)
            sent = self._send(client, specs, tried)
            self._accept(sent, self._instance, client.namespace)
        if self._stop_requested:
            self._cancel_if_given_up()
        ATTEMPTS_LINK.push(context)
        self._announce(context, sent)
        self._task_log = self._make_task_log(client, {})

    def _tried(self, context: Context, namespace: str) -> AirflowTry:
        # Another try of a task that starts in the triggerer knows no more than its trace.
        is_traced = self.start_from_trigger and hasattr(context["ti"], "context_carrier")
        tried = (traced_try if is_traced else airflow_try)(context, namespace=namespace)
        return replace(tried, waits=self.wait_for_completion)

    def _wait(self, client: Client, deadline: datetime | None) -> list[Any] | None:
        """The tasks once they have ended, or None when it is time to defer."""
        meanwhile = None if self._task_log is None else partial(self._task_log.follow, client)
        defer_at = self._defer_at()
        while True:
            instants = [instant for instant in (defer_at, deadline, self._queue_deadline) if instant is not None]
            left = (min(instants) - datetime.now(UTC)).total_seconds() if instants else None
            try:
                return self._wait_for_end(client, None if left is None else max(left, 0), meanwhile)
            except WaitTimeout:
                now = max(datetime.now(UTC), min(instants))
            if deadline is not None and now >= deadline:
                return self._give_up(client)
            if self._queue_deadline is not None and now >= self._queue_deadline:
                self._queue_deadline = None
                if self._waits_unserved(client):
                    return self._not_served(client)
            if defer_at is not None and now >= defer_at:
                return None

    def _defer_at(self) -> datetime | None:
        return datetime.now(UTC) + self.inline_wait if self.deferrable else None

    def _end(self, client: Client, tasks: Works, context: Context) -> Any:
        if self._task_log is not None:
            cancelled = [task.id for task in tasks if task.state is TaskState.CANCELLED]
            self._task_log.finish(client, cancelled=cancelled)
        try:
            return self._finish(client, tasks, context)
        except TaskError as error:
            docs_url = conf.get("horsies", "docs_url", fallback="")
            if address := explain_error(docs_url, error.error_code) or explain_error(docs_url, error):
                self.log.info("See %s", address)
            raise

    def _make_task_log(self, client: Client | None, seen: StoredSeen) -> TaskLog | None:
        """:param client: None in a triggerer, whose trigger finds the places itself."""
        if not self.show_logs:
            return None
        places = {} if client is None else self._places_of_items(client)
        return TaskLog(self.log, self._sent_ids, load_seen(seen), numbered=self.numbers_tasks, places=places)

    def _places_of_items(self, client: Client) -> Mapping[tuple[str, int], int]:
        """The places of the items of chunks, by task and number."""
        return {}

    def _stored_seen(self) -> StoredSeen | None:
        return None if self._task_log is None else store_seen(self._task_log.seen)

    def _give_up(self, client: Client) -> list[Any]:
        """Cancel unfinished tasks at the time-out. If all tasks have ended by now, they count as in time."""
        tasks, problem = self._release_unless_ended(client)
        if tasks is not None:
            return tasks
        if self._task_log is not None:
            self._task_log.finish(client, cancelled=self._sent_ids)
        first = self._sent_ids[0] if self._sent_ids else "(none)"
        raise TaskTimedOut(
            f"{plural(len(self._sent_ids), self.noun)} did not end within the execution_timeout of "
            f"{self.execution_timeout}; the first is {first}. {problem or CANCELLED} Raise execution_timeout if the "
            f"{self.noun}s need more time.",
            task_id=first,
        )

    def _not_served(self, client: Client) -> list[Any]:
        tasks, problem = self._release_unless_ended(client)
        if tasks is not None:
            return tasks
        raise QueueNotServed(
            f"No live horsies worker serves queue {self.horsies_queue!r}. {plural(len(self._sent_ids), self.noun)} "
            f"waited there for {self.queue_timeout}; the first is {self._sent_ids[0]}. {problem or CANCELLED} Start a "
            "worker for the queue, or run 'airflow horsies check' to see which queues are served.",
            task_id=self._sent_ids[0],
            queue=self.horsies_queue,
        )

    def _release_unless_ended(self, client: Client) -> tuple[list[Any] | None, str | None]:
        """The tasks, if there is nothing left to wait for; else why they could not be cancelled, if so."""
        cancelled_before: set[str] = set()
        with suppress(HorsiesError):
            tasks = self._read_works(client)
            if tasks and not self._is_unfinished(client, tasks):
                return tasks, None
            cancelled_before = {task.id for task in tasks if task.state is TaskState.CANCELLED}
        problem = self._release(client, try_number=self._try_number)
        if problem is None and self._sent_ids:
            tasks = self._read_works(client)
            cancelled = [
                task for task in tasks if task.state is TaskState.CANCELLED and task.id not in cancelled_before
            ]
            if not self._were_cut_short(client, cancelled):
                return tasks, None
        return None, problem

    def _were_cut_short(self, client: Client, cancelled: Works) -> bool:
        """Whether something was left to do in the tasks that were cancelled now."""
        return bool(cancelled)
