"""@task.horsies: a function builds the arguments of a task that is registered on the workers."""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None, tags=["horsies"])
def horsies_decorator():
    @task.horsies("sample.add", deferrable=True)
    def add(a: int, b: int) -> dict[str, int]:
        return {"a": a, "b": b}

    @task.horsies("sample.count_by_remainder", multiple_outputs=True, deferrable=True)
    def count(rows: int) -> dict[str, int]:
        return {"rows": rows, "divisor": 2}

    @task
    def total(even: int, sums: list[int]) -> int:
        return even + sum(sums)

    counted = count(rows=add(40, 2))
    total(counted["0"], add.override(task_id="add_each").partial(b=10).expand(a=[1, 2, 3]))


horsies_decorator()
