"""DAGs on which workflows and callbacks are tried; what a run does comes with its conf."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_horsies.models import RetryPolicy, node
from airflow_horsies.operators import (
    CALLBACK_URL,
    HorsiesCallbackOperator,
    HorsiesGraphOperator,
    HorsiesWorkflowOperator,
)

CRASHES = RetryPolicy.fixed([1, 1, 1], auto_retry_for=["WORKER_CRASHED"])
DAG_OPTIONS: dict[str, Any] = {"schedule": None, "render_template_as_native_obj": True, "max_active_runs": 100}
GATES = "{{ dag_run.conf.get('gates') }}"


def branch(name: str, **given: Any) -> Any:
    return node("acceptance.branch", name=name, retry_policy=CRASHES, **given)


for dag_id, conn_id in {"workflows": "horsies_default", "workflows_killed": "horsies_killed"}.items():
    with DAG(dag_id, **DAG_OPTIONS) as dag:
        waiting = {"deferrable": True, "inline_wait": timedelta(0), "horsies_conn_id": conn_id}
        HorsiesWorkflowOperator(
            task_id="diamond", workflow="acceptance.diamond", kwargs={"rows": 1000, "gates": GATES}, **waiting
        )
        HorsiesGraphOperator(
            task_id="quorum",
            nodes={
                "left": branch("left"),
                "broken": branch("broken", fails=True),
                "late": branch("late", gates=GATES),
                "most": node(
                    "acceptance.enough",
                    after=["left", "broken", "late"],
                    join="quorum",
                    min_success=2,
                    retry_policy=CRASHES,
                ),
            },
            success=[["most"]],
            output="most",
            **waiting,
        )
    globals()[dag_id] = dag

with DAG("callback", **DAG_OPTIONS) as dag:
    HorsiesCallbackOperator(
        task_id="ask",
        task_name="acceptance.hand_out",
        kwargs={
            "url": CALLBACK_URL,
            "place": "{{ dag_run.conf['place'] }}",
            "fails": "{{ dag_run.conf.get('fails', False) }}",
        },
        deferrable=True,
        inline_wait=timedelta(0),
    )
