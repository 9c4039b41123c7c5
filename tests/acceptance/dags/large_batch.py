"""A batch whose number of items comes with the conf of the run."""

from __future__ import annotations

from airflow.sdk import DAG, task

with DAG("large_batch", schedule=None, render_template_as_native_obj=True, max_active_runs=100) as dag:

    @task.horsies("sample.add", batch=True, chunk_size=200, deferrable=True)
    def add(count: int) -> list[dict[str, int]]:
        return [{"a": number, "b": 1} for number in range(count)]

    add("{{ dag_run.conf['count'] }}")
