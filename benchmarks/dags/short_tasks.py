"""As many short tasks as a run is told: in one HorsiesBatchOperator, also in chunks, and as mapped tasks of Airflow.

And fifty short tasks in one run, deferrable and without a worker.
"""

from __future__ import annotations

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, dag, task

from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator


def add(a: int, b: int) -> int:
    return a + b


@task
def arguments(**context: object) -> list[dict[str, int]]:
    count: int = context["params"]["count"]  # type: ignore[index]
    return [{"a": number, "b": 1} for number in range(count)]


@dag(schedule=None, params={"count": 1_000})
def bench_batch() -> None:
    HorsiesBatchOperator(task_id="add", task_name="bench.add", items=arguments(), deferrable=True)


@dag(schedule=None, params={"count": 1_000})
def bench_chunked() -> None:
    HorsiesBatchOperator(task_id="add", task_name="bench.add", items=arguments(), chunk_size=50, deferrable=True)


@dag(schedule=None, params={"count": 1_000}, max_active_tasks=32)
def bench_mapped() -> None:
    PythonOperator.partial(task_id="add", python_callable=add).expand(op_kwargs=arguments())


bench_batch()
bench_chunked()
bench_mapped()

for mode in ("worker_free", "deferrable"):
    with DAG(f"bench_{mode}", schedule=None, max_active_tasks=50) as fifty:
        for number in range(50):
            HorsiesOperator(
                task_id=f"add_{number}", task_name="bench.add", kwargs={"a": number, "b": 1}, **{mode: True}
            )
    globals()[fifty.dag_id] = fifty
