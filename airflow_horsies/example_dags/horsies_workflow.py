"""A graph of tasks in one Airflow task: horsies runs it node by node, in milliseconds from one to the next."""

from __future__ import annotations

from airflow.sdk import dag

from airflow_horsies.models import RetryPolicy, node
from airflow_horsies.operators import HorsiesGraphOperator
from airflow_horsies.sensors import HorsiesWorkflowSensor

CRASHES = RetryPolicy.fixed([1, 10], auto_retry_for=["WORKER_CRASHED"])


@dag(schedule=None, tags=["horsies"])
def horsies_workflow():
    sums = {
        "first": node("sample.add", a=1, b=2, retry_policy=CRASHES),
        "second": node("sample.add", a=20, b=20, after="first"),
        "third": node("sample.add", a=30, b=30, after="first"),
        # Runs as soon as one of them has completed.
        "last": node("sample.add", a=40, b=2, after=["second", "third"], join="any"),
    }
    graph = HorsiesGraphOperator(task_id="graph", nodes=sums, output="last", deferrable=True)
    # A workflow that is only started here, and awaited there.
    start = HorsiesGraphOperator(task_id="start", nodes=sums, wait_for_completion=False)
    done = HorsiesWorkflowSensor(
        task_id="done", workflow_ids=start.output, deferrable=True, poke_interval=1, timeout=300
    )
    graph >> start >> done


horsies_workflow()
