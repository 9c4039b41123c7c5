"""Airflow's own retries, decided by the error code of the horsies task (Airflow 3.3 and newer)."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.operators import HorsiesOperator
from airflow_horsies.retry_policies import HAS_RETRY_POLICIES, HorsiesRetryPolicy


@dag(schedule=None, tags=["horsies"])
def horsies_retry_policy():
    HorsiesOperator(
        task_id="tried_again",
        task_name="sample.fail_once",
        kwargs={"key": "{{ dag.dag_id }}/{{ run_id }}"},
        retries=3,
        retry_policy=HorsiesRetryPolicy(fail=["UNHANDLED_EXCEPTION"], retry={"TRY_AGAIN": timedelta(seconds=1)}),
        deferrable=True,
    )


if HAS_RETRY_POLICIES:
    horsies_retry_policy()
