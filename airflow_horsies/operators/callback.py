"""HorsiesCallbackOperator: a task hands out an address, and an outside party answers there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_never

from airflow.providers.common.compat.sdk import Context, conf

from airflow_horsies.client.async_client import AsyncClient
from airflow_horsies.client.callbacks import (
    release_callback,
    settle_callback,
    submit_callback,
    wait_for_callback,
)
from airflow_horsies.client.client import Client
from airflow_horsies.core.callback import (
    CALLBACK_URL,
    Callback,
    CallbackState,
    CallbackTerms,
    SubmittedCallback,
    require_placeholder,
)
from airflow_horsies.core.masking import mask_text
from airflow_horsies.core.spec import TaskSpec
from airflow_horsies.core.submission import AirflowTry, SubmitOutcome, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState, TaskView
from airflow_horsies.core.wording import one_line
from airflow_horsies.exceptions import (
    CallbackExpired,
    CallbackFailed,
    CallbacksDisabled,
    CallbackVoid,
    HorsiesError,
    InvalidTask,
    TaskNotFound,
)
from airflow_horsies.operators.outcomes import TaskFailedForGood, contains_nul
from airflow_horsies.operators.rendering import duration
from airflow_horsies.operators.task import HorsiesOperator
from airflow_horsies.triggers.base import HorsiesTrigger
from airflow_horsies.triggers.callback import HorsiesCallbackTrigger

FAILED = frozenset({TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED})

__all__ = ["CALLBACK_URL", "HorsiesCallbackOperator"]


class HorsiesCallbackOperator(HorsiesOperator):
    """
    Send a task that hands out an address to an outside party, wait until that party answers there, and return its
    answer.

    The party sends ``POST`` with JSON to the address to complete the task instance, to ``…/fail`` to fail it, and to
    ``…/heartbeat`` to be given more time. The first answer counts. The option ``[horsies] callbacks`` must be on.

    .. code-block:: python

        HorsiesCallbackOperator(
            task_id="approve",
            task_name="billing.ask",
            kwargs={"order": "{{ params.order }}", "url": CALLBACK_URL},
            expires_after=timedelta(days=2),
            deferrable=True,
        )

    :param kwargs: the arguments of the task. ``CALLBACK_URL`` in the text of an argument becomes the address. It has a
        token, which exists only in the worker that runs the task and with whoever it is given to.
    :param expires_after: fail if neither an answer nor a heartbeat comes within this time.
    :param max_duration: heartbeats extend the wait up to this time; the default is ``expires_after``.

    Further parameters: see :class:`HorsiesOperator`. ``worker_free``, ``idempotency_key``, ``retain_input`` and
    ``wait_for_completion=False`` are not possible.
    """

    template_fields: Sequence[str] = (*HorsiesOperator.template_fields, "expires_after", "max_duration")

    def __init__(
        self,
        *,
        expires_after: timedelta = timedelta(days=1),
        max_duration: timedelta | None = None,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.expires_after = expires_after
        self.max_duration = max_duration
        self._callback_id: str | None = None
        self._callback: Callback | None = None
        for name, is_given in (
            ("worker_free", self.worker_free),
            ("idempotency_key", self.idempotency_key is not None),
            ("retain_input", self.retain_input),
        ):
            if is_given:
                raise InvalidTask(name, "is not possible with a callback. Leave it out")
        if not self.wait_for_completion:
            raise InvalidTask("wait_for_completion", "must be True: the operator waits for the callback")
        if isinstance(self.task_kwargs, Mapping):
            require_placeholder(self.task_kwargs)
        if isinstance(expires_after, timedelta) and isinstance(max_duration, timedelta | None):
            self._terms()

    def _terms(self) -> CallbackTerms:
        expires_after = duration("expires_after", self.expires_after)
        return CallbackTerms(
            expires_after=timedelta(days=1) if expires_after is None else expires_after,
            max_duration=duration("max_duration", self.max_duration),
        )

    def _specs(self, context: Context) -> list[TaskSpec]:
        require_callbacks()
        return super()._specs(context)

    def _send(self, client: Client | AsyncClient, specs: Sequence[TaskSpec], tried: AirflowTry) -> Any:
        (spec,) = specs
        return client.drive(submit_callback(client.scope, spec, self._terms(), self._instance, tried))

    def _accept(self, sent: SubmittedCallback, instance: TaskInstanceKey, namespace: str) -> None:  # type: ignore[override]
        super()._accept([] if sent.sent is None else [sent.sent], instance, namespace)
        self._life = sent.life
        self._callback_id = sent.callback.id

    def _announce(self, context: Context, sent: SubmittedCallback) -> None:  # type: ignore[override]
        callback, task = sent.callback, sent.sent
        if task is None:
            self.log.info("Callback %s was answered before, so nothing is sent.", callback.id)
            return
        super()._announce(context, [task])
        until = "" if callback.expires_at is None else f" It expires at {callback.expires_at:%Y-%m-%d %H:%M:%S} UTC."
        is_same = task.outcome is not SubmitOutcome.SENT or callback.number < (self._try_number or 0)
        self.log.info("%s callback %s.%s", "Still waiting for" if is_same else "Waiting for", callback.id, until)

    def _wait(self, client: Client, deadline: datetime | None) -> list[TaskView] | None:
        if not self._sent_ids:
            return []
        meanwhile = None if self._task_log is None else partial(self._task_log.follow, client)
        defer_at = self._defer_at()
        while True:
            instants = [instant for instant in (defer_at, deadline, self._queue_deadline) if instant is not None]
            left = (min(instants) - datetime.now(UTC)).total_seconds() if instants else None
            if wait_for_callback(client, self._id, self._sent_ids[0], seconds=left, meanwhile=meanwhile):
                return self._read_tasks(client)
            now = max(datetime.now(UTC), min(instants))
            if deadline is not None and now >= deadline:
                return self._give_up(client)
            if self._queue_deadline is not None and now >= self._queue_deadline:
                self._queue_deadline = None
                if self._waits_unserved(client):
                    return self._not_served(client)
            if defer_at is not None and now >= defer_at:
                return None

    def _trigger(self, context: Context, deadline: datetime | None) -> HorsiesTrigger:
        return HorsiesCallbackTrigger(
            callback_id=self._id, life=self._life, task_ids=self._sent_ids, **self._trigger_kwargs(deadline)
        )

    def _restore_settings(self, event: Mapping[str, Any]) -> None:
        super()._restore_settings(event)
        self._callback_id = event["callback_id"]
        self._life = event.get("life") or 0

    @property
    def _id(self) -> str:
        if self._callback_id is None:
            raise HorsiesError("The callback of this task instance is unknown. Clear it to submit again.")
        return self._callback_id

    def _read_tasks(self, client: Client, *, whole: bool | None = None) -> list[TaskView]:
        try:
            return super()._read_tasks(client, whole=whole)
        except TaskNotFound:
            # It is past its retention, and the outside party may still answer.
            return []

    def _is_unfinished(self, client: Client, tasks: Sequence[TaskView]) -> bool:
        self._callback = client.drive(settle_callback(self._id))
        is_open = self._callback is not None and self._callback.state is CallbackState.OPEN
        return is_open and not any(task.state in FAILED for task in tasks)

    def _release_unless_ended(self, client: Client) -> tuple[list[TaskView] | None, str | None]:
        try:
            tasks = self._read_tasks(client)
            if not self._is_unfinished(client, tasks):
                return tasks, None
        except HorsiesError as error:
            self.log.warning("The callback cannot be read: %s", error)
        problem = self._release(client, try_number=self._try_number)
        if problem is None:
            self._callback = client.drive(settle_callback(self._id))
            # The answer may have come first.
            if self._callback is not None and self._callback.state.is_answered:
                return self._read_tasks(client), None
        return None, problem

    def _release_ids(
        self, client: Client, ids: Sequence[str], *, try_number: int | None
    ) -> Mapping[str, CancelOutcome]:
        if self._callback_id is None:
            # Killed before it knew what it submitted. Its callback expires, or is void once the next life submits.
            return super()._release_ids(client, ids, try_number=try_number)
        return client.drive(
            release_callback(
                client.scope,
                ids,
                self._instance,
                callback_id=self._callback_id,
                try_number=try_number,
                life=self._life or None,
            )
        )

    async def _read_success(self, client: AsyncClient) -> Callable[[], Any] | None:
        raise NotImplementedError

    def _finish(self, client: Client, tasks: Sequence[TaskView], context: Context) -> Any:
        self._callback = callback = client.drive(settle_callback(self._id))
        if callback is None:
            raise CallbackVoid(
                f"Callback {self._id} is no longer in the airflow_horsies tables, so its outcome is unknown. Clear the "
                "task instance to ask again."
            )
        if callback.state is CallbackState.OPEN:
            if any(task.state in FAILED for task in tasks):
                # The address may never have been handed out.
                return super()._finish(client, tasks, context)
            raise HorsiesError(
                f"Callback {callback.id} is open, although its end was reported. Clear the task instance to ask again."
            )
        for task in tasks:
            self._log_attempts(client, task)
        match callback.state:
            case CallbackState.COMPLETED:
                return value_of_answer(callback)
            case CallbackState.FAILED:
                raise CallbackFailed(
                    f"The outside party reported a failure to callback {callback.id}. Clear the task instance to ask "
                    f"again. It said: {describe_answer(callback)}"
                )
            case CallbackState.VOID:
                raise CallbackVoid(
                    f"Callback {callback.id} is void: its task instance was cleared, killed or timed out. Clear the "
                    "task instance to ask again."
                )
            case CallbackState.EXPIRED:
                raise CallbackExpired(
                    f"No answer came to callback {callback.id} in time. {callback.heartbeats} heartbeat(s) came. Clear "
                    "the task instance to ask again, or raise expires_after and max_duration."
                )
            case _:
                assert_never(callback.state)


def require_callbacks() -> None:
    """This Airflow takes callbacks, as far as its configuration tells here."""
    if not conf.getboolean("horsies", "callbacks", fallback=False):
        raise CallbacksDisabled(
            "This Airflow takes no callbacks. Set [horsies] callbacks = True for the api-server and for the components "
            "that run tasks."
        )
    if not conf.get("api", "base_url", fallback=""):
        raise CallbacksDisabled(
            "[api] base_url is not set, so the outside party could not be told where to answer. Set it to the address "
            "at which that party reaches the api-server."
        )


def value_of_answer(callback: Callback) -> Any:
    value = json.loads(callback.body or "null")
    if contains_nul(value):
        raise TaskFailedForGood(
            f"The answer to callback {callback.id} has text with a NUL character, which Airflow's database cannot "
            "store. Clear the task instance to ask again.",
            task_id=callback.id,
            error_code="RESULT_NOT_JSON",
        )
    return value


def describe_answer(callback: Callback) -> str:
    """What the outside party said, in one line and masked."""
    value = json.loads(callback.body or "null")
    text = value.get("message") if isinstance(value, dict) else value
    told = text if isinstance(text, str) and text else (callback.body or "")
    return one_line(mask_text(told))
