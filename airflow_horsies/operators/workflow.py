"""HorsiesWorkflowOperator: one registered workflow; and what it has in common with HorsiesGraphOperator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal, assert_never

from airflow.providers.common.compat.sdk import Context

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.client import Client
from airflow_horsies.core.cluster import is_unserved
from airflow_horsies.core.graph import Graph, wrap_definition
from airflow_horsies.core.submission import AirflowTry, SubmitOutcome, SubmitResult, TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.workflow import OnPaused, WorkflowOutcome, WorkflowState, WorkflowStatus
from airflow_horsies.exceptions import HorsiesError, InvalidTask
from airflow_horsies.operators.outcomes import fail_or_skip
from airflow_horsies.operators.rendering import instant, integer, is_final, validate_json, validate_untemplated
from airflow_horsies.operators.waiting import WaitingOperator, Works
from airflow_horsies.operators.worker_free import START_TRIGGER, WAITING_FIELDS
from airflow_horsies.operators.workflow_outcomes import (
    EXPIRED_CODE,
    ReadWorkflow,
    cancellation_of_workflow,
    code_of,
    describe_workflow,
    expiry_of_workflow,
    failure_of_workflow,
    output_of,
    pause_of,
)
from airflow_horsies.triggers.base import HorsiesTrigger
from airflow_horsies.triggers.task_log import StoredSeen, load_seen, store_seen
from airflow_horsies.triggers.workflow import HorsiesWorkflowTrigger
from airflow_horsies.triggers.workflow_log import WorkflowLog, describe_pause, first_tasks

XCOM_WORKFLOW_ID = "horsies_workflow_id"


class GraphOperator(WaitingOperator):
    """The base of the operators that start a workflow. Use one of its subclasses."""

    template_fields: Sequence[str] = ("horsies_queue", "priority", "good_until")
    noun: ClassVar[str] = "workflow"

    def __init__(self, *, on_paused: Literal["wait", "fail", "cancel"] = "wait", **base: Any) -> None:
        super().__init__(**base)
        if on_paused not in list(OnPaused):
            raise InvalidTask("on_paused", f"must be 'wait', 'fail' or 'cancel', not {on_paused!r}")
        self.on_paused = on_paused
        self._agreed_on_paused: OnPaused | None = None
        self._is_paused = False
        self._shown: Sequence[str] = ()
        validate_untemplated(
            queue=self.horsies_queue,
            priority=self.priority,
            good_until=self.good_until if isinstance(self.good_until, datetime) else None,
        )

    # -- sending ---------------------------------------------------------------------------------------------------

    def _specs(self, context: Context) -> Graph:
        raise NotImplementedError

    def _values(self, context: Context | None) -> dict[str, Any]:
        """The rendered values for the whole graph; without a context, those that contain no template."""
        if context is not None:
            return {
                "queue": self.horsies_queue,
                "priority": integer("priority", self.priority),
                "good_until": instant(self.good_until, context),
            }
        given = {"queue": self.horsies_queue, "priority": self.priority, "good_until": self.good_until}
        known = {name: value for name, value in given.items() if is_final(value)}
        if not isinstance(known.get("good_until"), datetime):
            known.pop("good_until", None)
        return known

    def _send(self, client: Client | AsyncClient, specs: Graph, tried: AirflowTry) -> Any:
        return client.submit_workflow(specs, self._instance, tried)

    def _accept(self, sent: SubmitResult, instance: TaskInstanceKey, namespace: str) -> None:
        super()._accept(sent, instance, namespace)
        self._sent_ids, self._life = [sent.task_id], sent.life

    def _has_sent(self, sent: SubmitResult) -> bool:
        return sent.outcome is SubmitOutcome.SENT

    def _announce(self, context: Context, sent: SubmitResult) -> None:
        match sent.outcome:
            case SubmitOutcome.SENT:
                text = f"Started workflow {sent.task_id} on horsies queue {self.horsies_queue}"
            case SubmitOutcome.ADOPTED:
                text = f"Adopted workflow {sent.task_id}, which had already completed"
            case SubmitOutcome.REATTACHED | SubmitOutcome.KEPT:
                text = f"Reattached to workflow {sent.task_id}, which has not ended"
            case _:
                assert_never(sent.outcome)
        self.log.info("%s (life %s, round %s).", text, sent.life, sent.round)
        context["ti"].xcom_push(key=XCOM_WORKFLOW_ID, value=sent.task_id)

    def _ids_to_return(self) -> str:
        return self._sent_ids[0]

    def _start_fields(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in WAITING_FIELDS}, "on_paused": self.on_paused}

    # -- waiting ---------------------------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self._sent_ids[0]

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesWorkflowTrigger(
            workflow_id=self._id,
            on_paused=self._asked_on_paused().value,
            is_paused=self._is_paused,
            life=self._life,
            shown=sorted(self._task_log.shown) if isinstance(self._task_log, WorkflowLog) else self._shown,
            **self._trigger_kwargs(deadline),
        )

    def _restore_settings(self, event: Mapping[str, Any]) -> None:
        super()._restore_settings(event)
        self._life = event.get("life") or 0
        self._agreed_on_paused = OnPaused(event.get("on_paused") or self.on_paused)
        self._is_paused = bool(event.get("is_paused"))
        self._shown = event.get("shown") or ()

    def _asked_on_paused(self) -> OnPaused:
        """What was asked for when it was sent, even if the DAG has changed since."""
        return self._agreed_on_paused or OnPaused(self.on_paused)

    def _wait_for_end(
        self, client: Client, timeout_seconds: float | None, meanwhile: Callable[[], None] | None
    ) -> list[ReadWorkflow]:
        until = partial(self._is_decided_by, client)
        client.wait_workflows(self._sent_ids, timeout_seconds=timeout_seconds, until=until, meanwhile=meanwhile)
        return self._read_works(client)

    def _is_decided_by(self, client: Client, known: Mapping[str, WorkflowStatus]) -> bool:
        is_paused = any(status.is_paused for status in known.values())
        if is_paused and not self._is_paused:
            self.log.warning("%s", describe_pause(client.read_workflow_outcome(self._id)))
        elif self._is_paused and not is_paused:
            self.log.info("Workflow %s goes on.", self._id)
        self._is_paused = is_paused
        return is_paused and self._asked_on_paused() is not OnPaused.WAIT

    def _read_works(self, client: Client) -> list[ReadWorkflow]:
        return [ReadWorkflow(client.read_workflow_outcome(self._id))]

    def _is_unfinished(self, client: Client, tasks: Works) -> bool:
        waits = self._asked_on_paused() is OnPaused.WAIT
        return any(not work.state.is_terminal and (waits or not work.is_paused) for work in tasks)

    def _waits_unserved(self, client: Client) -> bool:
        queues, now = client.read_queues(), datetime.now(UTC)
        waiting = first_tasks(client.read_workflow(self._id, result_chars=0))
        unserved = [task for task in client.read_outlines(waiting).values() if is_unserved(task, queues, now)]
        return bool(unserved)

    def _make_task_log(self, client: Client | None, seen: StoredSeen) -> Any:
        return WorkflowLog(self.log, self._id, seen=load_seen(seen), shown=self._shown, shows_lines=self.show_logs)

    def _stored_seen(self) -> StoredSeen | None:
        return store_seen(self._task_log.seen) if self.show_logs and self._task_log is not None else None

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _read_success(self, client: AsyncClient) -> Callable[[], Any] | None:
        outcome = await client.read_workflow_outcome(self._id)
        return partial(output_of, outcome, self.horsies_queue) if outcome.state is WorkflowState.COMPLETED else None

    def _finish(self, client: Client, tasks: Works, context: Context) -> Any:
        (work,) = tasks
        outcome: WorkflowOutcome = work.outcome
        match work.state:
            case TaskState.COMPLETED:
                return output_of(outcome, self.horsies_queue)
            case TaskState.FAILED if not self._has_expired(client, outcome):
                raise failure_of_workflow(outcome, self.horsies_queue, fail_fast_codes=self.fail_fast_codes)
            case TaskState.FAILED | TaskState.EXPIRED:
                fail_or_skip(expiry_of_workflow(outcome, self.good_until, self.horsies_queue), self.on_expired)
            case TaskState.CANCELLED:
                fail_or_skip(cancellation_of_workflow(outcome, self.horsies_queue), self.on_cancelled)
        if work.is_paused:
            return self._finish_paused(client, outcome, context)
        raise HorsiesError(
            f"The {describe_workflow(outcome)} is {outcome.state}, although its end was reported. Clear the Airflow "
            "task to wait for it again."
        )

    def _finish_paused(self, client: Client, outcome: WorkflowOutcome, context: Context) -> Any:
        if self._asked_on_paused() is not OnPaused.CANCEL:
            raise pause_of(outcome, self.horsies_queue)
        problem = self._release(client, try_number=self._try_number)
        (now,) = self._read_works(client)
        if problem is not None or not now.state.is_terminal:
            raise pause_of(outcome, self.horsies_queue, problem or "It could not be cancelled.")
        if now.state is not TaskState.CANCELLED:
            # It went on and ended in this moment.
            return self._finish(client, [now], context)
        because = f"It was paused, and on_paused is 'cancel'. {describe_pause(outcome).partition('. ')[0]}."
        fail_or_skip(cancellation_of_workflow(now.outcome, self.horsies_queue, because=because), self.on_cancelled)

    def _has_expired(self, client: Client, outcome: WorkflowOutcome) -> bool:
        """Whether it was never started: a node that waits for no other one has expired."""
        failure = outcome.failure
        if failure is None or code_of(outcome) != EXPIRED_CODE or len(failure.path) != 1:
            return False
        nodes = {node.name: node for node in client.read_workflow(self._id, result_chars=0).nodes}
        return failure.path[0] in nodes and not nodes[failure.path[0]].after


class HorsiesWorkflowOperator(GraphOperator):
    """
    Start one registered workflow, wait for it, and return its output.

    The workflow is started exactly once per life of the task instance. A retry reattaches to a workflow that still
    runs or is paused, and adopts one that completed. Clearing the task instance cancels it with its running nodes and
    starts it again. If it fails, the error is that of the innermost node that failed, with its path.

    .. code-block:: python

        HorsiesWorkflowOperator(
            task_id="month",
            workflow="flights.month",
            kwargs={"year": 2013, "month": "{{ logical_date.month }}"},
            queue="spark",
            good_until=timedelta(hours=1),
            deferrable=True,
        )

    :param workflow: the key under which the definition is registered on the workers; templated.
    :param kwargs: its parameters; templated.
    :param queue: the horsies queue where it is started; its workers must know the definition. It does not set Airflow's
        own ``queue``, which keeps its default.
    :param horsies_queue: the horsies queue too; overrides ``queue``. Use it in ``partial()`` with an executor that has
        its own queues.
    :param priority: 1 (first) to 100 (last), of the start.
    :param good_until: a workflow that has not been started by then expires: a datetime with time zone, a timedelta from
        the submission, or ``"dag_run_deadline"`` for the end of the DAG's ``dagrun_timeout``.
    :param on_paused: what to do when the workflow, or one inside it, is paused: ``wait`` until somebody resumes or
        cancels it, ``fail`` and leave it paused, or ``cancel`` it.
    :param wait_for_completion: False starts the workflow and returns its id.
    :param inline_wait: how long to wait before deferring. A short workflow then needs no deferral.
    :param deferrable: wait in the triggerer without a worker slot; recommended. Default: Airflow's own setting.
    :param worker_free: the triggerer starts the workflow, waits, stores its output and ends the Airflow task, and no
        worker process runs unless the workflow does not complete. Needs Airflow 3.3.
    :param on_expired: ``fail`` or ``skip`` the Airflow task when the workflow expires.
    :param on_cancelled: ``fail`` or ``skip`` the Airflow task when the workflow is cancelled.
    :param cancel_on_kill: cancel the workflow with its running nodes when the Airflow task is killed, marked or
        cleared.
    :param fail_fast_codes: error codes of nodes after which Airflow does not retry either.
    :param queue_timeout: fail if no node has started after this time and no live worker serves its queue.
    :param show_logs: show the ends of nodes while it runs, with the log lines, output and progress of their tasks. The
        latter need workers of ``airflow_horsies.worker``. With False, the ends of nodes are logged at the end.
    :param horsies_conn_id: the connection to horsies' database.

    The id of the workflow is pushed as XCom ``horsies_workflow_id``.
    """

    template_fields: Sequence[str] = (*GraphOperator.template_fields, "workflow", "workflow_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"workflow_kwargs": "json"}
    start_trigger = START_TRIGGER

    def __init__(self, *, workflow: str, kwargs: Mapping[str, Any] | None = None, **base: Any) -> None:
        super().__init__(**base)
        self.workflow = workflow
        # Airflow reserves "kwargs" on an operator.
        self.workflow_kwargs: Any = kwargs or {}
        validate_json("kwargs", self.workflow_kwargs)
        if is_final(self.workflow):
            wrap_definition(self.workflow, **self._values(None))
        self._start_from_trigger()

    def _specs(self, context: Context) -> Graph:
        return wrap_definition(self.workflow, self.workflow_kwargs, **self._values(context))

    def _start_fields(self) -> dict[str, Any]:
        own = {"kind": "workflow", "workflow": self.workflow, "kwargs": self.workflow_kwargs}
        return {**super()._start_fields(), **own}
