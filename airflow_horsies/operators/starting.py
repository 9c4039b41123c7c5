"""
The triggers that start a task: no worker process runs unless the task does not succeed.

Airflow stores their paths and arguments: treat them as schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from airflow.sdk.log import redact  # type: ignore[attr-defined]
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_horsies.airflow_instance import instance_of, traced_try
from airflow_horsies.borrowed.airflow import complete_task, delete_result, push_result, template_env
from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.threads import Threads
from airflow_horsies.core.masking import mask_text
from airflow_horsies.operators.batch import HorsiesBatchOperator
from airflow_horsies.operators.graph import HorsiesGraphOperator
from airflow_horsies.operators.rendering import integer, task_ids_of
from airflow_horsies.operators.task import HorsiesOperator
from airflow_horsies.operators.waiting import ATTEMPTS_LINK, WaitingOperator
from airflow_horsies.operators.worker_free import decode_fields
from airflow_horsies.operators.workflow import HorsiesWorkflowOperator
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.sensing import HorsiesSensorTrigger, HorsiesSubmissionTrigger
from airflow_horsies.triggers.workflow_sensing import HorsiesWorkflowSensorTrigger, HorsiesWorkflowSubmissionTrigger

KINDS: Mapping[str, type[WaitingOperator]] = {
    "task": HorsiesOperator,
    "batch": HorsiesBatchOperator,
    "workflow": HorsiesWorkflowOperator,
    "graph": HorsiesGraphOperator,
}
# The trigger applies the time-out of a sensor itself, this long before Airflow does.
TRIGGERER_GRACE = timedelta(seconds=60)
# Tasks that start do not keep those that end from storing their values.
BLOCKED_BY = "a template, a secrets backend or an XCom backend"
STARTING = Threads("horsies-start", purpose="the start of worker-free tasks", blocked_by=BLOCKED_BY)
ENDING = Threads("horsies-end", purpose="the end of worker-free tasks", blocked_by=BLOCKED_BY)


class StartTrigger(HorsiesTrigger):
    """
    The base of the triggers that start a task.

    :param fields: the arguments of the task, before their templates are rendered.
    """

    path: ClassVar[str]

    def __init__(self, *, fields: str) -> None:
        given = decode_fields(fields)
        super().__init__(
            task_ids=[],
            horsies_conn_id=given["horsies_conn_id"],
            cancel_on_kill=given.get("cancel_on_kill", False),
        )
        self.fields = fields
        # Airflow asks for it under this name, and the task of a triggerer has lost it.
        self.render_template_as_native_obj: bool = given.pop("native")
        self._given = given
        # The trigger that waits, once there is something to wait for.
        self._waiting: HorsiesTrigger | None = None
        self._has_succeeded = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return self.path, {"fields": self.fields}

    async def _event(self) -> dict[str, Any]:
        try:
            return await super()._event()
        except Exception as error:
            # For example an error in a template, which a worker meets, too, and reports with its trace.
            self.log.warning("The task continues on a worker: %s", error, exc_info=True)
            return self._payload(Reason.NOT_STARTED, f"{type(error).__name__}: {error}")

    async def _watch(self, client: AsyncClient) -> Reason:
        if self._waiting is None:
            self._waiting = await self._start(client)
        reason = await self._waiting._watch(client)
        if reason is Reason.ENDED:
            await self._succeed(client)
        return reason

    async def _start(self, client: AsyncClient) -> HorsiesTrigger:
        raise NotImplementedError

    async def _succeed(self, client: AsyncClient) -> None:
        self._has_succeeded = True

    async def _conclude(self, payload: Mapping[str, Any]) -> TriggerEvent:
        """The task ends here if it succeeded. Only a worker can do all that a failure, a skip or a retry needs."""
        if self._has_succeeded:
            return TaskSuccessEvent()
        return await super()._conclude(payload)

    def _payload(self, reason: Reason, message: str | None = None) -> dict[str, Any]:
        if self._waiting is not None:
            return self._waiting._payload(reason, message)
        # Airflow stores the event as it is, and an error may quote what a template rendered.
        told = mask_text(str(redact(message or f"{reason} before anything was sent")))
        return super()._payload(Reason.NOT_STARTED, told)

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        if self._waiting is not None:
            return await self._waiting._find_task_ids(client)
        instance, started = self._submitted_by(), self.task_instance
        if instance is None or started is None:
            return []
        # Killed while it submitted. A later try is none of its business.
        sent = await client.read_ids_of_try(instance, try_number=started.try_number)
        self.life = sent.life
        return sent.task_ids

    def _context(self) -> Any:
        ti: Any = self.task_instance
        return ti.get_template_context()

    @property
    def _time_is_over_at(self) -> Any:
        """When Airflow gives up waiting for this trigger."""
        return getattr(self, "timeout_after", None)


class HorsiesStartTrigger(StartTrigger):
    """
    Send the tasks of an operator, wait for them, store their value and end the task instance.

    :param fields: the arguments of the operator, before their templates are rendered.
    """

    path = "airflow_horsies.operators.starting.HorsiesStartTrigger"
    _sending: asyncio.Task[HorsiesTrigger] | None = None

    async def _start(self, client: AsyncClient) -> HorsiesTrigger:
        operator, context, specs = await STARTING.run(self._prepare)
        self._operator = operator
        self._sending = asyncio.create_task(self._send(client, context, specs))
        # A kill does not interrupt it but waits for it: many tasks are sent by a thread, which would go on.
        waiting = await asyncio.shield(self._sending)
        await STARTING.run(partial(self._announce, context))
        return waiting

    async def _send(self, client: AsyncClient, context: Any, specs: Any) -> HorsiesTrigger:
        operator, instance, namespace = self._operator, instance_of(context), client.settings.namespace
        operator._instance = instance
        tried = replace(traced_try(context, namespace=namespace), waits=operator.wait_for_completion)
        self._sent = await operator._send(client, specs, tried)
        operator._accept(self._sent, instance, namespace)
        operator._task_log = operator._make_task_log(None, {})
        self._waiting = operator._trigger(context, self._time_is_over_at)
        self.namespace, self.life = namespace, self._waiting.life
        return self._waiting

    async def _find_task_ids(self, client: AsyncClient) -> list[str]:
        if self._waiting is None and self._sending is not None:
            await asyncio.wait({self._sending})
        return await super()._find_task_ids(client)

    async def _watch(self, client: AsyncClient) -> Reason:
        if self._waiting is None:
            self._waiting = await self._start(client)
        if self._operator.wait_for_completion and self._operator._sent_ids:
            return await super()._watch(client)
        # There is nothing to wait for.
        await self._succeed(client)
        return Reason.ENDED if self._has_succeeded else Reason.NOT_STARTED

    async def _succeed(self, client: AsyncClient) -> None:
        if not self._operator.wait_for_completion:
            await self._store(client, self._operator._ids_to_return)
            return
        make_value = await self._operator._read_success(client)
        if make_value is not None:
            await self._show_last_lines(client)
            await self._store(client, make_value)

    async def _is_left_behind(self, client: AsyncClient) -> bool:
        """Whether this triggerer was silent, so that another one took over, and the task was tried again meanwhile.
        Airflow ignores the event of such a trigger, but not its XComs."""
        operator = self._operator
        ti: Any = self.task_instance
        return await client.has_later_submission(operator._instance, life=operator._life, try_number=ti.try_number)

    async def _store(self, client: AsyncClient, make_value: Callable[[], Any]) -> None:
        if await self._is_left_behind(client):
            self.log.warning("A later try of the task has submitted, so this one stores no value.")
            return
        try:
            await ENDING.run(partial(self._push, make_value))
        except Exception as error:
            # A worker meets the same error and reports it, or succeeds.
            self.log.warning("The value cannot be stored here, so the task continues on a worker: %s", error)
        else:
            self._has_succeeded = True

    def _push(self, make_value: Callable[[], Any]) -> None:
        ti: Any = self.task_instance
        value = make_value()
        if value is None and ti.try_number > 1:
            # Airflow does not store it, so the value of an earlier try would stay.
            delete_result(ti)
        push_result(ti, value, self.log)

    async def _show_last_lines(self, client: AsyncClient) -> None:
        if self._waiting is not None:
            await self._waiting.show_last_lines(client, self._operator._sent_ids)

    def _prepare(self) -> tuple[WaitingOperator, Any, Any]:
        """The operator with rendered templates. Not on the event loop, because a template may ask for a Variable."""
        context = self._context()
        complete_task(context["ti"])
        native = self.render_template_as_native_obj
        given = {name: value for name, value in self._given.items() if name != "kind"}
        operator = KINDS[self._given["kind"]](
            task_id=context["ti"].task_id, render_template_as_native_obj=native, **given
        )
        operator.render_template_fields(context, template_env(native=native))
        return operator, context, operator._specs(context)

    def _announce(self, context: Any) -> None:
        if context["ti"].try_number > 1 and self._operator._has_sent(self._sent):
            # Otherwise another triggerer has started this try before, and its value may be there already.
            delete_result(context["ti"])
        ATTEMPTS_LINK.push(context)
        self._operator._announce(context, self._sent)


class HorsiesStartSensorTrigger(StartTrigger):
    """
    Wait for tasks that were sent elsewhere, and end the task instance.

    :param fields: the arguments of the sensor, before their templates are rendered.
    """

    path = "airflow_horsies.operators.starting.HorsiesStartSensorTrigger"
    template_names: ClassVar[tuple[str, ...]] = (
        "task_ids",
        "external_dag_id",
        "external_task_id",
        "external_run_id",
        "external_map_index",
    )

    async def _start(self, client: AsyncClient) -> HorsiesTrigger:
        given = await STARTING.run(self._render_fields)
        over = self._time_is_over_at
        common = {
            "failed_states": given["failed_states"],
            "horsies_conn_id": self.horsies_conn_id,
            "deadline": None if over is None else (over - TRIGGERER_GRACE).isoformat(),
        }
        self.deadline = common["deadline"]
        if given["external_dag_id"] is None:
            return self._wait_for_ids(given, common)
        of_submission = {
            "task_instance": {
                "dag_id": given["external_dag_id"],
                "run_id": given["external_run_id"],
                "task_id": given["external_task_id"],
                "map_index": integer("external_map_index", given["external_map_index"]),
            },
            "allowed_states": given["allowed_states"],
            "poll_seconds": given["poll_seconds"],
        }
        return self._wait_for_submission(given, {**of_submission, **common})

    def _wait_for_ids(self, given: Mapping[str, Any], common: Mapping[str, Any]) -> HorsiesTrigger:
        return HorsiesSensorTrigger(task_ids=task_ids_of(given["task_ids"]), **common)

    def _wait_for_submission(self, given: Mapping[str, Any], common: Mapping[str, Any]) -> HorsiesTrigger:
        return HorsiesSubmissionTrigger(**common)

    def _render_fields(self) -> dict[str, Any]:
        context, env = self._context(), template_env(native=self.render_template_as_native_obj)
        rendered = {name: self.render_template(self._given[name], context, env) for name in self.template_names}
        return {**self._given, **rendered}


class HorsiesStartWorkflowSensorTrigger(HorsiesStartSensorTrigger):
    """
    Wait for workflows that were started elsewhere, and end the task instance.

    :param fields: the arguments of the sensor, before their templates are rendered.
    """

    path = "airflow_horsies.operators.starting.HorsiesStartWorkflowSensorTrigger"
    template_names: ClassVar[tuple[str, ...]] = ("workflow_ids", *HorsiesStartSensorTrigger.template_names[1:])

    def _wait_for_ids(self, given: Mapping[str, Any], common: Mapping[str, Any]) -> HorsiesTrigger:
        ids = task_ids_of(given["workflow_ids"], "workflow_ids")
        return HorsiesWorkflowSensorTrigger(workflow_ids=ids, on_paused=given["on_paused"], **common)

    def _wait_for_submission(self, given: Mapping[str, Any], common: Mapping[str, Any]) -> HorsiesTrigger:
        return HorsiesWorkflowSubmissionTrigger(on_paused=given["on_paused"], **common)
