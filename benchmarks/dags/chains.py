"""Twenty trivial steps, one after the other: as nodes of one workflow, and as tasks of Airflow."""

from __future__ import annotations

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import chain, dag

from airflow_horsies.models import node
from airflow_horsies.operators import HorsiesGraphOperator

STEPS = 20


def add(a: int, b: int) -> int:
    return a + b


@dag(schedule=None)
def bench_workflow_chain() -> None:
    nodes = {
        f"step_{number}": node("bench.add", a=number, b=1, after=[f"step_{number - 1}"] if number else [])
        for number in range(STEPS)
    }
    HorsiesGraphOperator(task_id="steps", nodes=nodes, output=f"step_{STEPS - 1}", deferrable=True)


@dag(schedule=None)
def bench_airflow_chain() -> None:
    chain(
        *(
            PythonOperator(task_id=f"step_{number}", python_callable=add, op_kwargs={"a": number, "b": 1})
            for number in range(STEPS)
        )
    )


bench_workflow_chain()
bench_airflow_chain()
