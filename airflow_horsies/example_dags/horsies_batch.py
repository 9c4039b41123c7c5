"""Many tasks in one Airflow task: sent in one transaction, waited for with one trigger."""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_horsies.operators import HorsiesBatchOperator


@dag(schedule=None, tags=["horsies"])
def horsies_batch():
    @task
    def items() -> list[dict[str, int]]:
        return [{"a": number, "b": number} for number in range(20)]

    batch = HorsiesBatchOperator(
        task_id="double", task_name="sample.add", items=items(), max_failures=2, deferrable=True
    )

    @task
    def total(doubled: list[int]) -> int:
        return sum(doubled)

    total(batch.output)


horsies_batch()
