"""What the operators that send horsies tasks have in common: submit, wait inline, then defer or go on waiting."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn, assert_never

from airflow.providers.common.compat.sdk import AirflowTaskTimeout, BaseOperator, conf

from airflow_horsies.exceptions import HorsiesError, InvalidTask, QueueNotServed, TaskNotFound, WaitTimeout
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import (
    DEFAULT_QUEUE,
    DEFAULT_RETENTION,
    AttemptRecord,
    RetryPolicy,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
    TaskView,
    require_error_code,
)
from airflow_horsies.outcomes import TaskTimedOut
from airflow_horsies.rendering import duration, instant, is_final, plain_policy, policy_of, whole_number
from airflow_horsies.task_log import StoredSeen, TaskLog, load_seen, store_seen
from airflow_horsies.triggers import HorsiesTrigger, Reason
from airflow_horsies.wording import describe_attempts

MAX_LOGGED_ITEMS = 100
ATTEMPTS_LINK = HorsiesAttemptsLink()

WhenEndedBadly = Literal["fail", "skip"]


class HorsiesTaskOperator(BaseOperator):
    """
    What the operators that send horsies tasks have in common; use one of its subclasses.

    :param task_name: the name under which the task is registered on the workers.
    :param queue: the horsies queue. It is not Airflow's queue of the same name, which stays as it is.
    :param horsies_queue: the same, and stronger; use it in ``partial()`` with an executor that has queues of its own.
    :param priority: 1 (first) to 100 (last), within the queue.
    :param retry_policy: when horsies runs a failed attempt again: a RetryPolicy of airflow_horsies.models, or a dict of
        its values. One of Airflow's own retry policies is left to Airflow.
    :param horsies_retry_policy: the same for horsies alone; use it in ``partial()``, or beside one of Airflow's.
    :param good_until: a task not started by then expires: a datetime with time zone, a timedelta from the submission,
        or ``"dag_run_deadline"`` for the end of the DAG's ``dagrun_timeout``.
    :param delay: earliest start, counted from the submission.
    :param timeout: the worker ends an attempt that runs longer.
    :param retention: how long horsies keeps the finished task: a retention class, or ``forever``.
    :param retain_input: keep the arguments with the finished task too, up to 64 KiB, so that the UI can show those of a
        large batch; leave it off where they are secret. horsies before 0.5 keeps them always.
    :param wait_for_completion: False sends and returns the task's id.
    :param inline_wait: how long to wait before deferring; a short task then costs no deferral.
    :param deferrable: wait in the triggerer, holding no worker slot; recommended. Default: Airflow's own setting.
    :param on_expired: ``fail`` or ``skip`` the Airflow task when the horsies task expired.
    :param on_cancelled: ``fail`` or ``skip`` it when somebody cancelled the horsies task.
    :param cancel_on_kill: cancel the horsies task when the Airflow task is killed, marked or cleared.
    :param fail_fast_codes: error codes after which Airflow does not try again either.
    :param queue_timeout: fail when the task has not started by then and no live worker serves its queue.
    :param show_logs: show what the task logs and prints, and how far it is, in the log of the Airflow task while it
        runs; needs a worker of ``airflow_horsies.worker``.
    :param horsies_conn_id: the connection to horsies' database.
    """

    template_fields: Sequence[str] = (
        "task_name",
        "horsies_queue",
        "priority",
        "horsies_retry_policy",
        "good_until",
        "delay",
        "timeout",
        "retention",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"horsies_retry_policy": "json"}
    operator_extra_links = (ATTEMPTS_LINK,)
    ui_color = "#e8f1e4"
    numbers_tasks: ClassVar[bool] = False

    def __init__(
        self,
        *,
        task_name: str,
        queue: str = DEFAULT_QUEUE,
        horsies_queue: str | None = None,
        priority: int = 100,
        retry_policy: RetryPolicy | Mapping[str, Any] | Any = None,
        horsies_retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        good_until: datetime | timedelta | str | None = None,
        delay: timedelta | None = None,
        timeout: timedelta | None = None,
        retention: str = DEFAULT_RETENTION,
        retain_input: bool = False,
        wait_for_completion: bool = True,
        inline_wait: timedelta = timedelta(seconds=5),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        on_expired: WhenEndedBadly = "fail",
        on_cancelled: WhenEndedBadly = "fail",
        cancel_on_kill: bool = True,
        fail_fast_codes: Collection[str] = (),
        queue_timeout: timedelta | None = None,
        show_logs: bool = True,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        **base: Any,
    ) -> None:
        if hasattr(retry_policy, "evaluate"):
            base["retry_policy"] = retry_policy
            retry_policy = None
        super().__init__(**base)
        self.task_name = task_name
        # A mapped operator is given Airflow's default queue for want of another.
        given_queue = DEFAULT_QUEUE if queue == conf.get("operators", "default_queue") else queue
        self.horsies_queue = horsies_queue or given_queue
        self.priority = priority
        self.horsies_retry_policy: Any = plain_policy(horsies_retry_policy or retry_policy)
        self.good_until = good_until
        self.delay = delay
        self.timeout = timeout
        self.retention = retention
        self.retain_input = retain_input
        self.wait_for_completion = wait_for_completion
        self.inline_wait = inline_wait
        self.deferrable = deferrable
        self.on_expired = on_expired
        self.on_cancelled = on_cancelled
        self.cancel_on_kill = cancel_on_kill
        self.fail_fast_codes = sorted(fail_fast_codes)
        self.queue_timeout = queue_timeout
        self.show_logs = show_logs
        self.horsies_conn_id = horsies_conn_id
        self._sent_ids: list[str] = []
        self._task_log: TaskLog | None = None
        self._validate_whatis_final()

    def execute(self, context: Any) -> Any:
        specs = self._specs(context)
        with self._hook() as hook:
            sent = hook.submit_many(
                specs,
                self._task_instance(context),
                life=self._life(context),
                try_number=context["ti"].try_number,
                run_started_at=context["dag_run"].start_date,
            )
            self._sent_ids = [each.task_id for each in sent]
            ATTEMPTS_LINK.push(context)
            self._announce(context, sent)
            if not self.wait_for_completion:
                return self._ids_to_return()
            self._task_log = self._make_task_log({})
            deadline = self._deadline(context)
            try:
                tasks = self._wait(hook, self.inline_wait.total_seconds(), deadline)
                if tasks is None and not self.deferrable:
                    tasks = self._wait(hook, None, deadline)
            except AirflowTaskTimeout:
                # Airflow's own alarm may ring first.
                self._give_up(hook, self._sent_ids)
            if tasks is not None:
                return self._end(hook, tasks, context)
        self.defer(trigger=self._trigger(context, deadline), method_name="execute_complete")

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Called with the trigger's event; what it does not say is read from the database."""
        with self._hook() as hook:
            self._sent_ids = self._ids_of(hook, event, context)
            self._task_log = self._make_task_log(event.get("seen") or {})
            reason = Reason(event["reason"])
            match reason:
                case Reason.ENDED | Reason.DECIDED:
                    found = hook.get_tasks(self._sent_ids)
                    return self._end(hook, [found[task_id] for task_id in self._sent_ids], context)
                case Reason.TIMED_OUT:
                    found = hook.get_tasks(self._sent_ids)
                    if len(found) == len(self._sent_ids) and all(task.state.is_terminal for task in found.values()):
                        # It ended while no triggerer was there to hear of it.
                        return self._end(hook, [found[task_id] for task_id in self._sent_ids], context)
                    self._give_up(hook, self._sent_ids)
                case Reason.NOT_SERVED:
                    self._not_served(hook)
                case Reason.NOT_FOUND:
                    first = self._sent_ids[0] if self._sent_ids else "(none)"
                    raise TaskNotFound(event["message"] or f"horsies no longer keeps task {first}", task_id=first)
                case Reason.ERROR:
                    raise HorsiesError(event["message"])
                case _:
                    assert_never(reason)

    def on_kill(self) -> None:
        """Airflow calls it when the running task is killed or its time is up."""
        if self.cancel_on_kill and self._sent_ids:
            with self._hook() as hook:
                hook.cancel_many(self._sent_ids)

    # -- what subclasses decide ------------------------------------------------------------------------------------

    def _specs(self, context: Any) -> list[TaskSpec]:
        raise NotImplementedError

    def _ids_to_return(self) -> Any:
        raise NotImplementedError

    def _finish(self, hook: HorsiesHook, tasks: Sequence[TaskView], context: Any) -> Any:
        raise NotImplementedError

    def _trigger(self, context: Any, deadline: datetime | None) -> HorsiesTrigger:
        raise NotImplementedError

    def _ids_of(self, hook: HorsiesHook, event: Mapping[str, Any], context: Any) -> list[str]:
        return list(event["task_ids"])

    def _is_decided(self, ended: Mapping[str, TaskState]) -> bool:
        return False

    # -- inside ----------------------------------------------------------------------------------------------------

    def _hook(self) -> HorsiesHook:
        return HorsiesHook(self.horsies_conn_id)

    def _spec(self, context: Any, kwargs: Mapping[str, Any], **more: Any) -> TaskSpec:
        return TaskSpec(
            task_name=self.task_name,
            kwargs=kwargs,
            queue=self.horsies_queue,
            priority=whole_number("priority", self.priority),
            retry_policy=policy_of(self.horsies_retry_policy),
            good_until=instant(self.good_until, context),
            delay=duration("delay", self.delay),
            timeout=duration("timeout", self.timeout),
            retention=self.retention,
            retain_rerun_input=self.retain_input,
            **more,
        )

    def _validate_whatis_final(self) -> None:
        """Mistakes in values that hold no template are found when the DAG is parsed."""
        for name in ("on_expired", "on_cancelled"):
            if getattr(self, name) not in ("fail", "skip"):
                raise InvalidTask(name, f"must be 'fail' or 'skip', not {getattr(self, name)!r}")
        for code in self.fail_fast_codes:
            require_error_code("fail_fast_codes", code)
        final: dict[str, Any] = {
            "task_name": self.task_name,
            "queue": self.horsies_queue,
            "priority": self.priority,
            "retry_policy": self.horsies_retry_policy,
            "delay": self.delay,
            "timeout": self.timeout,
            "retention": self.retention,
            "good_until": self.good_until if isinstance(self.good_until, datetime) else None,
        }
        given: dict[str, Any] = {name: value for name, value in final.items() if value is not None and is_final(value)}
        if "retry_policy" in given:
            given["retry_policy"] = policy_of(given["retry_policy"])
        TaskSpec(**{"task_name": "to be rendered", **given})

    def _task_instance(self, context: Any) -> TaskInstanceKey:
        ti = context["ti"]
        return TaskInstanceKey(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
        )

    def _life(self, context: Any) -> int:
        """The first try since the last clear: a clear raises max_tries, a retry does not."""
        return max(int(context["ti"].max_tries) - (self.retries or 0) + 1, 1)

    def _deadline(self, context: Any) -> datetime | None:
        if self.execution_timeout is None:
            return None
        started: datetime = context["ti"].start_date or datetime.now(UTC)
        return started + self.execution_timeout

    def _queue_deadline(self) -> str | None:
        return None if self.queue_timeout is None else (datetime.now(UTC) + self.queue_timeout).isoformat()

    def _announce(self, context: Any, sent: Sequence[SubmitResult]) -> None:
        for each in sent[:MAX_LOGGED_ITEMS]:
            match each.outcome:
                case SubmitOutcome.SENT:
                    said = f"Sent to horsies queue {self.horsies_queue} as task {each.task_id}"
                case SubmitOutcome.REATTACHED:
                    said = f"Reattached to task {each.task_id}, which is {each.state}"
                case SubmitOutcome.ADOPTED:
                    said = f"Adopted task {each.task_id}, which completed before Airflow heard of it"
            self.log.info("%s (life %s, round %s)", said, each.life, each.round)
        if self.horsies_retry_policy and self.retries:
            self.log.info(
                "Both retry: horsies up to %s time(s) for %s, and Airflow up to %s time(s) around that",
                self.horsies_retry_policy["max_retries"],
                ", ".join(self.horsies_retry_policy["auto_retry_for"]),
                self.retries,
            )

    def _wait(self, hook: HorsiesHook, seconds: float | None, deadline: datetime | None) -> list[TaskView] | None:
        """The tasks once they have ended, or None when ``seconds`` are over; cancels when the deadline is."""
        meanwhile = None if self._task_log is None else partial(self._task_log.follow, hook)
        begun = datetime.now(UTC)
        limits = [] if seconds is None else [seconds]
        if deadline is not None:
            limits.append(max((deadline - begun).total_seconds(), 0))
        unserved_after = None if self.queue_timeout is None or seconds is not None else self.queue_timeout
        if unserved_after is not None:
            limits.append(unserved_after.total_seconds())
        try:
            return hook.wait(
                self._sent_ids,
                timeout_seconds=min(limits) if limits else None,
                until=self._is_decided,
                meanwhile=meanwhile,
            )
        except WaitTimeout:
            if deadline is not None and datetime.now(UTC) >= deadline:
                self._give_up(hook, self._sent_ids)
            if seconds is not None:
                return None
            if self._waits_unserved(hook):
                self._not_served(hook)
            return hook.wait(
                self._sent_ids,
                timeout_seconds=None if deadline is None else (deadline - datetime.now(UTC)).total_seconds(),
                until=self._is_decided,
                meanwhile=meanwhile,
            )

    def _end(self, hook: HorsiesHook, tasks: Sequence[TaskView], context: Any) -> Any:
        if self._task_log is not None:
            cancelled = [task.id for task in tasks if task.state is TaskState.CANCELLED]
            self._task_log.finish(hook, cancelled=cancelled)
        return self._finish(hook, tasks, context)

    def _make_task_log(self, seen: StoredSeen) -> TaskLog | None:
        if not self.show_logs:
            return None
        return TaskLog(self.log, self._sent_ids, load_seen(seen), numbered=self.numbers_tasks)

    def _stored_seen(self) -> StoredSeen | None:
        return None if self._task_log is None else store_seen(self._task_log.seen)

    def _waits_unserved(self, hook: HorsiesHook) -> bool:
        served = {queue.queue for queue in hook.queues() if queue.served_by}
        tasks = hook.get_tasks(self._sent_ids).values()
        return any(task.state is TaskState.PENDING and task.queue not in served for task in tasks)

    def _give_up(self, hook: HorsiesHook, task_ids: Sequence[str]) -> NoReturn:
        """The time is up: nothing of it may still be running when Airflow is told."""
        hook.cancel_many(task_ids)
        if self._task_log is not None:
            self._task_log.finish(hook, cancelled=task_ids)
        raise TaskTimedOut(
            f"{len(task_ids)} horsies task(s), {task_ids[0]} first, had not ended when the execution_timeout "
            f"of {self.execution_timeout} was over, and were cancelled",
            task_id=task_ids[0],
        )

    def _not_served(self, hook: HorsiesHook) -> NoReturn:
        hook.cancel_many(self._sent_ids)
        raise QueueNotServed(
            f"no live horsies worker serves the queue {self.horsies_queue!r}, and task {self._sent_ids[0]} waited "
            f"there for {self.queue_timeout}; it was cancelled. 'airflow horsies check' shows who serves what",
            task_id=self._sent_ids[0],
            queue=self.horsies_queue,
        )

    def _log_attempts(self, hook: HorsiesHook, task: TaskView) -> None:
        records: Sequence[AttemptRecord] = ()
        try:
            records = hook.attempt_records(task.id)
        except HorsiesError as error:
            self.log.warning("What workers told of the attempts cannot be read: %s", error)
        for line in describe_attempts(task, records):
            self.log.info("Task %s, %s", task.id, line)
