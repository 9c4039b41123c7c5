"""Work that is worthless when late: it expires in a queue nobody serves, and the run goes on without it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.operators import HorsiesOperator


@dag(schedule=None, dagrun_timeout=timedelta(minutes=30), tags=["horsies"])
def horsies_deadline():
    late = HorsiesOperator(
        task_id="too_late",
        task_name="sample.add",
        kwargs={"a": 1, "b": 1},
        queue="nobody_serves_this",
        good_until=timedelta(seconds=2),
        on_expired="skip",
        deferrable=True,
    )
    in_time = HorsiesOperator(
        task_id="in_time",
        task_name="sample.add",
        kwargs={"a": 1, "b": 1},
        good_until="dag_run_deadline",
        trigger_rule="none_failed",
        deferrable=True,
    )
    late >> in_time


horsies_deadline()
