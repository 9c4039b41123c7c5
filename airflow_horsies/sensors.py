"""Sensors: wait for tasks that were sent elsewhere, or for capacity in a queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, NoReturn

from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    Context,
    conf,
)

from airflow_horsies.airflow_instance import can_ask, read_state
from airflow_horsies.client.client import Client
from airflow_horsies.core.batch import effective_states
from airflow_horsies.core.spec import DEFAULT_QUEUE
from airflow_horsies.core.submission import TaskInstanceKey, latest_task_ids
from airflow_horsies.core.task import TERMINAL_STATES, TaskState
from airflow_horsies.core.workflow import WorkKind
from airflow_horsies.exceptions import HorsiesError, InvalidTask, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators.outcomes import describe_task, end_sentence, failure_text, plural
from airflow_horsies.operators.rendering import integer, is_final, task_ids_of
from airflow_horsies.operators.starting import TRIGGERER_GRACE
from airflow_horsies.operators.worker_free import FAILED_BY_TRIGGERER, WorkerFree
from airflow_horsies.operators.workflow_outcomes import describe_cause, describe_workflow
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.holding import earliest_reschedule, mark_deferral
from airflow_horsies.triggers.queue import HorsiesQueueTrigger, depth_of, is_open
from airflow_horsies.triggers.sensing import HorsiesSensorTrigger, HorsiesSubmissionTrigger
from airflow_horsies.triggers.workflow_log import describe_pause
from airflow_horsies.triggers.workflow_sensing import HorsiesWorkflowSensorTrigger, HorsiesWorkflowSubmissionTrigger

# All deferred sensors share one event loop.
LEAST_POLL_SECONDS = 1.0


class _DeferrableSensor(BaseSensorOperator):
    """Checks once, and then pokes, reschedules or defers, as the author chose."""

    def __init__(
        self,
        *,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.horsies_conn_id = horsies_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        if not self.deferrable:
            try:
                super().execute(context)
            except AirflowRescheduleException as reschedule:
                # Airflow would fail the task if it came back sooner.
                reschedule.reschedule_date = max(reschedule.reschedule_date, earliest_reschedule())
                raise
        elif not self._look(context):
            self._defer(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Called with the trigger's event. The tables decide, also after a time-out."""
        reason = Reason(event["reason"])
        if reason is Reason.ERROR:
            self._fail_on(HorsiesError(event["message"]))
        if self._look(context):
            return
        if reason is Reason.TIMED_OUT:
            raise AirflowSensorTimeout(
                f"The sensor timed out after {self.timeout} seconds. Raise its timeout if it should wait longer."
            )
        self._defer(context)

    def _look(self, context: Context) -> bool:
        try:
            return bool(self.poke(context))
        except HorsiesError as error:
            self._fail_on(error)

    def _defer(self, context: Context) -> NoReturn:
        started: datetime = context["ti"].start_date or datetime.now(UTC)
        deadline = started + timedelta(seconds=self.timeout)
        left = max(deadline - datetime.now(UTC), timedelta(0))
        self.defer(
            trigger=mark_deferral(self._trigger(deadline.isoformat()), self.executor),
            method_name="execute_complete",
            timeout=left + TRIGGERER_GRACE,
        )
        raise AssertionError("defer() always raises.")

    def _trigger(self, deadline: str) -> HorsiesTrigger:
        raise NotImplementedError

    def _fail_on(self, error: HorsiesError) -> NoReturn:
        if self.never_fail:
            raise AirflowSkipException(str(error)) from error
        raise error

    def _give_up(self, message: str) -> NoReturn:
        """Fail or skip without a retry: waiting longer would change nothing."""
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(message)
        raise AirflowFailException(message)


class _WorkSensor(WorkerFree, _DeferrableSensor):
    """Waits for tasks or workflows that were sent elsewhere: by their ids, or by the task instance that submitted
    them."""

    template_fields: Sequence[str] = (
        "external_dag_id",
        "external_task_id",
        "external_run_id",
        "external_map_index",
    )
    ui_color = "#e8f1e4"
    kind: ClassVar[WorkKind]
    noun: ClassVar[str]
    # The parameter that contains ids.
    ids_field: ClassVar[str]

    def __init__(
        self,
        *,
        external_dag_id: str | None = None,
        external_task_id: str | None = None,
        external_run_id: str = "{{ run_id }}",
        external_map_index: int | str = -1,
        allowed_states: Collection[str] = (TaskState.COMPLETED,),
        failed_states: Collection[str] | None = None,
        worker_free: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.worker_free = worker_free
        self.deferrable = self.deferrable or worker_free
        self.external_dag_id = external_dag_id
        self.external_task_id = external_task_id
        self.external_run_id = external_run_id
        self.external_map_index = external_map_index
        self.allowed_states = _end_states("allowed_states", allowed_states)
        if failed_states is None:
            self.failed_states = TERMINAL_STATES - self.allowed_states
        else:
            self.failed_states = _end_states("failed_states", failed_states)

    def poke(self, context: Context) -> bool:
        try:
            with HorsiesHook(self.horsies_conn_id).client as client:
                return self._are_done(client)
        except (InvalidTask, TaskNotFound) as error:
            self._give_up(str(error))

    def _are_done(self, client: Client) -> bool:
        ids = self._find_ids(client)
        if self._by_submission and not ids:
            self.log.info("%s has not submitted a %s yet.", self._submitter(), self.noun)
            return False
        states = self._read_states(client, ids)
        failed = [one for one in ids if self._has_failed(states[one])]
        if failed and self._find_ids(client) != ids:
            # A clear of the other task instance cancels the old tasks as it submits new ones.
            self.log.info("%s has submitted again.", self._submitter())
            return False
        if failed and self._by_submission and not self._has_ended():
            # The other task instance was cleared or retries, and has not submitted yet.
            return False
        if failed:
            self._give_up(
                f"{len(failed)} of {plural(len(ids), self.noun)} did not end as "
                f"{' or '.join(sorted(self.allowed_states))}. The first is {self._describe_failed(client, failed[0])}"
            )
        waiting = [one for one in ids if states[one] not in self.allowed_states]
        if waiting:
            self.log.info(
                "Waiting for %s of %s. %s %s is %s.",
                len(waiting),
                plural(len(ids), self.noun),
                self.noun.capitalize(),
                waiting[0],
                states[waiting[0]],
            )
        return not waiting and (not self._by_submission or self._has_ended())

    def _has_ended(self) -> bool:
        """If the task instance was cleared, or its run was recreated, its earlier submissions are outdated."""
        if not can_ask():
            return True
        state = read_state(self._submitter())
        if state is None:
            self.log.info("Airflow does not report the state of %s. The sensor asks again later.", self._submitter())
            return False
        if not state.has_ended:
            self.log.info("Waiting for %s, which is %s.", self._submitter(), state.state or "not scheduled yet")
        return state.has_ended

    def _find_ids(self, client: Client) -> list[str]:
        if not self._by_submission:
            return self._given_ids()
        submissions = client.read_submissions(self._submitter())
        other = next((sent for sent in submissions if sent.is_latest and sent.kind is not self.kind), None)
        if other is not None:
            self._give_up(
                f"{self._submitter()} submitted {other.task_name}, which is a {other.kind.lower()} and not a "
                f"{self.noun}. Use {SENSORS[other.kind]}."
            )
        return latest_task_ids(submissions)

    def _given_ids(self) -> list[str]:
        """The ids that were given; an error if they are no ids."""
        return task_ids_of(getattr(self, self.ids_field), self.ids_field)

    def _read_states(self, client: Client, ids: list[str]) -> dict[str, TaskState]:
        """The states by id, of workflows those of tasks that are treated in the same way; TaskNotFound if one is
        missing."""
        raise NotImplementedError

    def _describe_failed(self, client: Client, one: str) -> str:
        """What failed, and why, for the end of a sentence."""
        raise NotImplementedError

    def _has_failed(self, state: TaskState) -> bool:
        """A task never changes after its end, so an unexpected end fails. A submission may be repeated."""
        if state in self.failed_states:
            return True
        return state.is_terminal and state not in self.allowed_states and not self._by_submission

    def _start_fields(self) -> dict[str, Any]:
        if self.execution_timeout is not None:
            raise InvalidTask("worker_free", "is not possible with an execution_timeout. Set the sensor's timeout")
        return {
            **{name: getattr(self, name) for name in self.template_fields},
            "allowed_states": sorted(self.allowed_states),
            "failed_states": sorted(
                self.failed_states if self._by_submission else TERMINAL_STATES - self.allowed_states
            ),
            "poll_seconds": max(self.poke_interval, LEAST_POLL_SECONDS),
            "horsies_conn_id": self.horsies_conn_id,
        }

    def _start_timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout) + TRIGGERER_GRACE

    def _resume_failed(self, next_kwargs: Mapping[str, Any], context: Context) -> Any:
        return super(WorkerFree, self).resume_execution(FAILED_BY_TRIGGERER, dict(next_kwargs), context)

    @property
    def _by_submission(self) -> bool:
        return self.external_dag_id is not None

    def _submitter(self) -> TaskInstanceKey:
        return TaskInstanceKey(
            dag_id=str(self.external_dag_id),
            run_id=str(self.external_run_id),
            task_id=str(self.external_task_id),
            map_index=integer("external_map_index", self.external_map_index),
        )

    def _validate_untemplated(self) -> None:
        if (self.external_dag_id is None) != (self.external_task_id is None):
            raise InvalidTask("external_dag_id", "must be set together with external_task_id")
        given = getattr(self, self.ids_field)
        if (given is None) == (self.external_dag_id is None):
            raise InvalidTask(self.ids_field, "must be set, or external_dag_id and external_task_id, but not both")
        both = sorted(self.allowed_states & self.failed_states)
        if both:
            raise InvalidTask("failed_states", f"must not contain a state of allowed_states: {', '.join(both)}")
        if given is not None and is_final(given):
            self._given_ids()
        if is_final(self.external_map_index):
            integer("external_map_index", self.external_map_index)


class HorsiesSensor(_WorkSensor):
    """
    Wait for horsies tasks that were sent elsewhere: by their ids, or by the task instance that submitted them.

    By task instance, the sensor waits for the first submission and then for the latest one, so it follows retries and
    clears. It never cancels the tasks.

    .. code-block:: python

        send = HorsiesOperator(task_id="send", task_name="sales.load", wait_for_completion=False)
        HorsiesSensor(task_id="loaded", task_ids=send.output, deferrable=True)

        HorsiesSensor(task_id="other_dag_loaded", external_dag_id="sales", external_task_id="load", mode="reschedule")

    :param task_ids: one id or a list; templated, or the output of an upstream task. An empty list succeeds at once.
    :param external_dag_id: the DAG of the task instance to wait for; templated.
    :param external_task_id: its task; templated.
    :param external_run_id: its run; templated. Default: the run with the same id as this one.
    :param external_map_index: its map index; -1 if it is not mapped.
    :param allowed_states: the states the tasks must end in: COMPLETED, FAILED, CANCELLED, EXPIRED.
    :param failed_states: the states that fail the sensor at once. Default: all states that are not allowed. After a
        state in neither list, the sensor waits until the task instance submits again.
    :param deferrable: wait in the triggerer without a worker slot; recommended. Default: Airflow's own setting. The
        sensor then notices the end of a task at once and looks for new submissions every ``poke_interval``.
    :param worker_free: wait in the triggerer from the start, without any worker process unless the sensor does not
        succeed. Needs Airflow 3.3. What a triggerer cannot do is refused when the DAG is parsed, such as ``task_ids``
        from the output of another task: give ``external_dag_id`` and ``external_task_id``.
    :param horsies_conn_id: the connection to horsies' database.

    Further parameters are those of every Airflow sensor: ``timeout``, ``poke_interval``, ``mode``, ``soft_fail`` …
    """

    template_fields: Sequence[str] = ("task_ids", *_WorkSensor.template_fields)
    start_trigger = "airflow_horsies.operators.starting.HorsiesStartSensorTrigger"
    kind = WorkKind.TASK
    noun = "task"
    ids_field = "task_ids"

    def __init__(self, *, task_ids: str | Sequence[str] | None = None, **base: Any) -> None:
        super().__init__(**base)
        self.task_ids: Any = task_ids
        self._validate_untemplated()
        self._start_from_trigger()

    def _read_states(self, client: Client, ids: list[str]) -> dict[str, TaskState]:
        states = client.read_states(ids)
        for task_id in ids:
            if task_id not in states:
                client.read_task(task_id)  # raises TaskNotFound with the possible reasons
        # A chunk counts by its items that are still requested; by id, also by those that other chunks have now.
        unsettled = [
            task_id for task_id, state in states.items() if state.is_terminal and state is not TaskState.COMPLETED
        ]
        return effective_states(states, client.count_items(unsettled, None if self._by_submission else ids))

    def _describe_failed(self, client: Client, one: str) -> str:
        task = client.read_task(one)
        return f"{describe_task(task)}, which is {task.state}: {end_sentence(failure_text(task))}"

    def _trigger(self, deadline: str) -> HorsiesTrigger:
        if not self._by_submission:
            return HorsiesSensorTrigger(
                task_ids=self._given_ids(),
                failed_states=sorted(TERMINAL_STATES - self.allowed_states),
                horsies_conn_id=self.horsies_conn_id,
                deadline=deadline,
            )
        return HorsiesSubmissionTrigger(
            task_instance=asdict(self._submitter()),
            allowed_states=sorted(self.allowed_states),
            failed_states=sorted(self.failed_states),
            poll_seconds=max(self.poke_interval, LEAST_POLL_SECONDS),
            horsies_conn_id=self.horsies_conn_id,
            deadline=deadline,
        )


class HorsiesWorkflowSensor(_WorkSensor):
    """
    Wait for horsies workflows that were started elsewhere: by their ids, or by the task instance that submitted them.

    By task instance, the sensor waits for the first submission and then for the latest one, so it follows retries and
    clears. It never cancels the workflows.

    .. code-block:: python

        start = HorsiesWorkflowOperator(task_id="start", workflow="flights.month", wait_for_completion=False)
        HorsiesWorkflowSensor(task_id="done", workflow_ids=start.output, deferrable=True)

        HorsiesWorkflowSensor(task_id="other_dag_done", external_dag_id="flights", external_task_id="month")

    :param workflow_ids: one id or a list; templated, or the output of an upstream task. An empty list succeeds at once.
    :param external_dag_id: the DAG of the task instance to wait for; templated.
    :param external_task_id: its task, a HorsiesWorkflowOperator or a HorsiesGraphOperator; templated.
    :param external_run_id: its run; templated. Default: the run with the same id as this one.
    :param external_map_index: its map index; -1 if it is not mapped.
    :param allowed_states: the states the workflows must end in: COMPLETED, FAILED, CANCELLED, EXPIRED.
    :param failed_states: the states that fail the sensor at once. Default: all states that are not allowed. After a
        state in neither list, the sensor waits until the task instance submits again.
    :param on_paused: what to do when a workflow, or one inside it, is paused: ``wait`` until it goes on, or ``fail``.
    :param deferrable: wait in the triggerer without a worker slot; recommended. Default: Airflow's own setting. The
        sensor then notices the end of a workflow at once and looks for new submissions every ``poke_interval``.
    :param worker_free: wait in the triggerer from the start, without any worker process unless the sensor does not
        succeed. Needs Airflow 3.3. What a triggerer cannot do is refused when the DAG is parsed, such as
        ``workflow_ids`` from the output of another task.
    :param horsies_conn_id: the connection to horsies' database.

    Further parameters are those of every Airflow sensor: ``timeout``, ``poke_interval``, ``mode``, ``soft_fail`` …
    """

    template_fields: Sequence[str] = ("workflow_ids", *_WorkSensor.template_fields)
    start_trigger = "airflow_horsies.operators.starting.HorsiesStartWorkflowSensorTrigger"
    kind = WorkKind.WORKFLOW
    noun = "workflow"
    ids_field = "workflow_ids"

    def __init__(
        self,
        *,
        workflow_ids: str | Sequence[str] | None = None,
        on_paused: Literal["wait", "fail"] = "wait",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        if on_paused not in ("wait", "fail"):
            raise InvalidTask("on_paused", f"must be 'wait' or 'fail', not {on_paused!r}. A sensor cancels nothing")
        self.workflow_ids: Any = workflow_ids
        self.on_paused = on_paused
        self._validate_untemplated()
        self._start_from_trigger()

    def _read_states(self, client: Client, ids: list[str]) -> dict[str, TaskState]:
        found = client.read_workflow_states(ids)
        for workflow_id in ids:
            if workflow_id not in found:
                client.read_workflow_outcome(workflow_id)  # raises WorkflowNotFound with the possible reasons
        paused = next((one for one in ids if found[one].is_paused), None)
        if paused is not None:
            self._note_pause(client, ids, paused)
        return {workflow_id: status.state.as_task_state for workflow_id, status in found.items()}

    def _note_pause(self, client: Client, ids: list[str], paused: str) -> None:
        text = describe_pause(client.read_workflow_outcome(paused))
        if self.on_paused == "wait":
            self.log.warning("%s", text)
        elif not self._by_submission or (self._find_ids(client) == ids and self._is_at_work()):
            self._give_up(text)

    def _is_at_work(self) -> bool:
        """Whether the other task instance waits for this submission, or has ended: it is not about to submit again."""
        if not can_ask():
            return True
        state = read_state(self._submitter())
        return state is not None and state.is_at_work

    def _describe_failed(self, client: Client, one: str) -> str:
        outcome = client.read_workflow_outcome(one)
        return f"{describe_workflow(outcome)}, which is {outcome.state}: {end_sentence(describe_cause(outcome))}"

    def _trigger(self, deadline: str) -> HorsiesTrigger:
        if not self._by_submission:
            return HorsiesWorkflowSensorTrigger(
                workflow_ids=self._given_ids(),
                failed_states=sorted(TERMINAL_STATES - self.allowed_states),
                on_paused=self.on_paused,
                horsies_conn_id=self.horsies_conn_id,
                deadline=deadline,
            )
        return HorsiesWorkflowSubmissionTrigger(
            task_instance=asdict(self._submitter()),
            allowed_states=sorted(self.allowed_states),
            failed_states=sorted(self.failed_states),
            on_paused=self.on_paused,
            poll_seconds=max(self.poke_interval, LEAST_POLL_SECONDS),
            horsies_conn_id=self.horsies_conn_id,
            deadline=deadline,
        )

    def _start_fields(self) -> dict[str, Any]:
        return {**super()._start_fields(), "on_paused": self.on_paused}


SENSORS = {WorkKind.TASK: HorsiesSensor.__name__, WorkKind.WORKFLOW: HorsiesWorkflowSensor.__name__}


class HorsiesQueueSensor(_DeferrableSensor):
    """
    Wait until live workers serve a queue and it is not too full, so that a DAG does not flood it.

    .. code-block:: python

        HorsiesQueueSensor(task_id="room_for_more", queue="spark", max_depth=100, deferrable=True)

    :param queue: the horsies queue. It does not set Airflow's own ``queue``, which keeps its default.
    :param horsies_queue: the horsies queue too; overrides ``queue``; templated. Use it in ``partial()`` and
        ``expand()``.
    :param min_workers: how many live workers must serve it; 0 requires none.
    :param max_depth: fewer tasks than this must be ready to run; None sets no limit.
    :param deferrable: check in the triggerer without a worker slot; recommended. Default: Airflow's own setting.
    :param horsies_conn_id: the connection to horsies' database.

    Further parameters are those of every Airflow sensor: ``timeout``, ``poke_interval``, ``mode``, ``soft_fail`` …
    """

    template_fields: Sequence[str] = ("horsies_queue", "min_workers", "max_depth")
    ui_color = "#e8f1e4"

    def __init__(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        horsies_queue: str | None = None,
        min_workers: int | str = 1,
        max_depth: int | str | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        # Airflow passes its default queue to a mapped sensor that names no queue.
        given_queue = DEFAULT_QUEUE if queue == conf.get("operators", "default_queue") else queue
        self.horsies_queue = horsies_queue or given_queue
        self.min_workers = min_workers
        self.max_depth = max_depth
        if is_final(self.min_workers) and is_final(self.max_depth):
            self._bounds()

    def poke(self, context: Context) -> bool:
        min_workers, max_depth = self._bounds()
        with HorsiesHook(self.horsies_conn_id).client as client:
            depth = depth_of(self.horsies_queue, client.read_queues())
        self.log.info(
            "Queue %s is served by %s (required: at least %s) and has %s ready (required: %s).",
            self.horsies_queue,
            plural(depth.served_by, "worker"),
            min_workers,
            plural(depth.ready, "task"),
            "any number" if max_depth is None else f"fewer than {max_depth}",
        )
        return is_open(depth, min_workers=min_workers, max_depth=max_depth)

    def _trigger(self, deadline: str) -> HorsiesTrigger:
        min_workers, max_depth = self._bounds()
        return HorsiesQueueTrigger(
            queue=self.horsies_queue,
            min_workers=min_workers,
            max_depth=max_depth,
            poll_seconds=max(self.poke_interval, LEAST_POLL_SECONDS),
            horsies_conn_id=self.horsies_conn_id,
            deadline=deadline,
        )

    def _bounds(self) -> tuple[int, int | None]:
        min_workers = integer("min_workers", self.min_workers)
        if min_workers < 0:
            raise InvalidTask("min_workers", f"must be 0 or more, not {min_workers}")
        if self.max_depth is None:
            return min_workers, None
        max_depth = integer("max_depth", self.max_depth)
        if max_depth < 1:
            raise InvalidTask("max_depth", f"must be 1 or more, not {max_depth}")
        return min_workers, max_depth


def _end_states(name: str, states: Collection[str]) -> frozenset[TaskState]:
    """A sensor can only wait for final states, because horsies only reports these."""
    given = [states] if isinstance(states, str) else list(states)
    unknown = [str(state) for state in given if state not in TERMINAL_STATES]
    if unknown:
        raise InvalidTask(name, f"must only contain {', '.join(sorted(TERMINAL_STATES))}, not {', '.join(unknown)}")
    if name == "allowed_states" and not given:
        raise InvalidTask(name, "must not be empty")
    return frozenset(TaskState(state) for state in given)
