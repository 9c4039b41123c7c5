"""The DAG of the trials: each way to wait, with as many retries as it takes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.sensors import HorsiesSensor

KEY = "{{ run_id }}"
POLICY = RetryPolicy.fixed([1] * 10, auto_retry_for=["WORKER_CRASHED", "TRY_AGAIN"], jitter=False)
COMMON: dict[str, Any] = {"retries": 500, "retry_delay": timedelta(seconds=1)}
SEND: dict[str, Any] = {**COMMON, "task_name": "chaos.work", "retry_policy": POLICY}

with DAG("chaos", schedule=None, max_active_runs=8, max_active_tasks=8):
    HorsiesOperator(
        task_id="deferred",
        kwargs={"key": f"{KEY}-deferred", "seconds": 3},
        deferrable=True,
        inline_wait=timedelta(0),
        **SEND,
    )
    HorsiesOperator(task_id="blocking", kwargs={"key": f"{KEY}-blocking", "seconds": 2, "fails": "TRY_AGAIN"}, **SEND)
    HorsiesBatchOperator(
        task_id="batch",
        items=[{"key": f"{KEY}-batch-{position}", "seconds": 1} for position in range(3)],
        deferrable=True,
        inline_wait=timedelta(0),
        **SEND,
    )
    HorsiesBatchOperator(
        task_id="chunked",
        items=[
            {"key": f"{KEY}-chunked-{position}", "seconds": 0.5, "fails": "TRY_AGAIN" if position == 3 else ""}
            for position in range(6)
        ],
        chunk_size=3,
        deferrable=True,
        inline_wait=timedelta(0),
        **SEND,
    )
    HorsiesSensor(
        task_id="sensor",
        external_dag_id="chaos",
        external_task_id="deferred",
        external_run_id=KEY,
        failed_states=(),
        poke_interval=2,
        timeout=3600,
        deferrable=True,
        **COMMON,
    )
