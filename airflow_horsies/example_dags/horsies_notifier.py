"""Callbacks that send a horsies task: when a task succeeds, when one fails, and when the whole run has succeeded."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_horsies.notifications import HorsiesNotifier
from airflow_horsies.operators import HorsiesOperator


def tell(what: str) -> HorsiesNotifier:
    # Airflow may call back more than once; the key lets only the first send.
    return HorsiesNotifier(
        task_name="sample.add", kwargs={"a": 1, "b": 1}, idempotency_key=f"{what}/{{{{ dag.dag_id }}}}/{{{{ run_id }}}}"
    )


@dag(schedule=None, tags=["horsies"], on_success_callback=tell("run succeeded"))
def horsies_notifier():
    fail = HorsiesOperator(
        task_id="fail",
        task_name="sample.fail_always",
        kwargs={"reason": "to show on_failure_callback"},
        on_failure_callback=tell("task failed"),
        deferrable=True,
    )
    add = HorsiesOperator(
        task_id="add",
        task_name="sample.add",
        kwargs={"a": 40, "b": 2},
        trigger_rule="all_done",
        on_success_callback=tell("task succeeded"),
        deferrable=True,
    )
    fail >> add


horsies_notifier()
