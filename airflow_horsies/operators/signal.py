"""HorsiesSignalOperator: tell a waiting task to go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator, Context

from airflow_horsies.airflow_instance import airflow_try, instance_of
from airflow_horsies.core.signals import require_signal_name
from airflow_horsies.core.submission import AirflowTry, TaskInstanceKey
from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators.rendering import integer, is_final


class HorsiesSignalOperator(BaseOperator):
    """
    Send a signal to a horsies task or workflow that waits for it, or will. It is stored exactly once per life of the
    task instance: a retry does not send it again, and clearing the task instance does.

    .. code-block:: python

        HorsiesSignalOperator(
            task_id="approve",
            name="approved",
            target="{{ ti.xcom_pull('publish', key='horsies_task_id') }}",
            payload={"by": "{{ dag_run.triggering_user_name }}"},
        )

    :param name: the name of the signal; templated.
    :param target: the id of a horsies task, or of a horsies workflow for all tasks in it; templated.
    :param external_task_id: instead of target: the Airflow task whose latest submission receives the signal; templated.
    :param external_dag_id: its DAG; by default, this one. Templated.
    :param external_run_id: its DAG run; by default, this one. Templated.
    :param external_map_index: its index, if it is mapped; templated.
    :param payload: a JSON value of up to 256 KiB, which the task receives; templated.
    :param horsies_conn_id: the connection to horsies' database.
    """

    template_fields: Sequence[str] = (
        "name",
        "target",
        "payload",
        "external_task_id",
        "external_dag_id",
        "external_run_id",
        "external_map_index",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"payload": "json"}

    def __init__(
        self,
        *,
        name: str,
        target: str | None = None,
        external_task_id: str | None = None,
        external_dag_id: str | None = None,
        external_run_id: str | None = None,
        external_map_index: int | str = -1,
        payload: Any = None,
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.name = name
        self.target = target
        self.external_task_id = external_task_id
        self.external_dag_id = external_dag_id
        self.external_run_id = external_run_id
        self.external_map_index = external_map_index
        self.payload = payload
        self.horsies_conn_id = horsies_conn_id
        if (target is None) == (external_task_id is None):
            raise InvalidTask("target", "exactly one of target and external_task_id must be set")
        if isinstance(name, str) and is_final(name):
            require_signal_name(name)

    def execute(self, context: Context) -> str:
        instance = instance_of(context)
        with HorsiesHook(self.horsies_conn_id) as hook:
            tried = airflow_try(context, namespace=hook.client.namespace)
            hook.client.stay_in(tried.namespace)
            sent = hook.signal(
                self._find_target(instance),
                self.name,
                self.payload,
                dedup_key=dedup_key_of(instance, tried, hook.client.namespace),
                sent_by=describe_sender(instance),
            )
        if sent.is_new:
            self.log.info("Sent the signal %r to %s. It resumed %s task(s).", sent.name, sent.target, sent.resumed)
        else:
            self.log.info("An earlier try has sent the signal %r to %s.", sent.name, sent.target)
        return sent.id

    def _find_target(self, own: TaskInstanceKey) -> str | TaskInstanceKey:
        if self.external_task_id is None:
            return str(self.target)
        return TaskInstanceKey(
            dag_id=self.external_dag_id or own.dag_id,
            run_id=self.external_run_id or own.run_id,
            task_id=self.external_task_id,
            map_index=integer("external_map_index", self.external_map_index),
        )


def dedup_key_of(instance: TaskInstanceKey, tried: AirflowTry, namespace: str) -> str:
    """The same for all tries of a life of the task instance, and only for them."""
    parts = [namespace, *astuple(instance), *tried.life_key]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def describe_sender(instance: TaskInstanceKey) -> str:
    """For people, within the limit of the table."""
    return f"task {instance.task_id} of DAG {instance.dag_id}, run {instance.run_id}"[:500]
