"""A horsies task per item of an upstream list, as mapped task instances of their own."""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_horsies.operators import HorsiesOperator


@dag(schedule=None, tags=["horsies"])
def horsies_mapped():
    @task
    def numbers() -> list[dict[str, int]]:
        return [{"a": number, "b": 1} for number in range(3)]

    HorsiesOperator.partial(task_id="add_one", task_name="sample.add", deferrable=True).expand(kwargs=numbers())


horsies_mapped()
