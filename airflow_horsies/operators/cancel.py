"""HorsiesCancelOperator: stop tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator, Context

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.operators.rendering import task_ids_of


class HorsiesCancelOperator(BaseOperator):
    """
    Cancel horsies tasks and return the outcome of each.

    .. code-block:: python

        HorsiesCancelOperator(task_id="stop", horsies_task_ids="{{ ti.xcom_pull('load', key='horsies_task_id') }}")

    :param horsies_task_ids: one id or several; templated.
    :param horsies_conn_id: the connection to horsies' database.
    """

    template_fields: Sequence[str] = ("horsies_task_ids",)

    def __init__(
        self,
        *,
        horsies_task_ids: str | Sequence[str],
        horsies_conn_id: str = HorsiesHook.default_conn_name,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.horsies_task_ids = horsies_task_ids
        self.horsies_conn_id = horsies_conn_id

    def execute(self, context: Context) -> dict[str, str]:
        ids = task_ids_of(self.horsies_task_ids)
        with HorsiesHook(self.horsies_conn_id).client as client:
            outcomes = client.cancel_tasks(ids)
        for task_id, outcome in outcomes.items():
            self.log.info("Task %s: %s.", task_id, outcome.lower().replace("_", " "))
        for task_id in ids:
            if task_id not in outcomes:
                self.log.warning("Task %s does not exist or is past its retention.", task_id)
        return {task_id: outcome.value for task_id, outcome in outcomes.items()}
