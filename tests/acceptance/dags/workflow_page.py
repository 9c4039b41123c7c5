"""The graph that the tests of the page look at; the files in the folder of the conf let its nodes go on."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_horsies.models import RetryPolicy, node
from airflow_horsies.operators import HorsiesGraphOperator

FOLDER = "{{ dag_run.conf['folder'] }}"

with DAG("workflow_page", schedule=None, max_active_runs=100):
    HorsiesGraphOperator(
        task_id="graph",
        nodes={
            "fetch": node("acceptance.wait_for_file", path=f"{FOLDER}/fetched"),
            "check": node("acceptance.need_file", path=f"{FOLDER}/needed", after="fetch"),
            "pair": node(workflow="acceptance.pair", after="fetch", text="the pair"),
            "approval": node(
                "airflow_horsies.wait_for_signal", name="approved", after="fetch", retry_policy=RetryPolicy.parking()
            ),
            "publish": node("acceptance.say", text="published", after=["check", "pair", "approval"]),
        },
        output="publish",
        on_error="pause",
        deferrable=True,
        inline_wait=timedelta(0),
    )
