"""DAGs the acceptance tests trigger; what a run does comes with its conf."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.sensors import HorsiesSensor

FROM_CONF: dict[str, Any] = {
    "task_name": "{{ dag_run.conf['task_name'] }}",
    "kwargs": "{{ dag_run.conf.get('kwargs', {}) }}",
    "horsies_queue": "{{ dag_run.conf.get('queue', 'default') }}",
    "horsies_retry_policy": "{{ dag_run.conf.get('retry_policy') }}",
    "good_until": "{{ dag_run.conf.get('good_until') }}",
}
DAG_OPTIONS: dict[str, Any] = {"schedule": None, "render_template_as_native_obj": True, "max_active_runs": 100}

VARIANTS: dict[str, dict[str, Any]] = {
    "blocking": {"deferrable": False},
    "deferred": {"deferrable": True, "inline_wait": timedelta(0)},
    "inline": {"deferrable": True},
    "retrying": {
        "deferrable": True,
        "inline_wait": timedelta(0),
        "retries": 1,
        "retry_delay": timedelta(seconds=0),
    },
    "short_lived": {
        "deferrable": True,
        "inline_wait": timedelta(seconds=1),
        "execution_timeout": timedelta(seconds=4),
    },
    "short_lived_blocking": {"deferrable": False, "execution_timeout": timedelta(seconds=4)},
    "impatient": {
        "deferrable": True,
        "inline_wait": timedelta(seconds=0),
        "queue_timeout": timedelta(seconds=2),
    },
    "skipping": {"deferrable": True, "on_expired": "skip", "on_cancelled": "skip"},
    "surviving": {"deferrable": False, "retries": 1, "retry_delay": timedelta(seconds=5)},
    "failing_fast": {"deferrable": True, "fail_fast_codes": ["NO_HOPE"], "retries": 3},
}

for variant, options in VARIANTS.items():
    with DAG(f"one_{variant}", **DAG_OPTIONS) as dag:
        one = HorsiesOperator(task_id="one", **FROM_CONF, **options)

        @task
        def after(value: Any) -> Any:
            return value

        after(one.output)
    globals()[dag.dag_id] = dag

for name, options in {"batch": {}, "batch_in_chunks": {"chunk_size": 25}}.items():
    with DAG(name, **DAG_OPTIONS) as dag:
        HorsiesBatchOperator(
            task_id="batch",
            task_name="{{ dag_run.conf['task_name'] }}",
            items="{{ dag_run.conf['items'] }}",
            max_failures="{{ dag_run.conf.get('max_failures', 0) }}",
            retain_input=True,
            deferrable=True,
            inline_wait=timedelta(0),
            **options,
        )
    globals()[dag.dag_id] = dag

with DAG("short", **DAG_OPTIONS) as dag:
    HorsiesOperator(task_id="one", task_name="sample.add", kwargs={"a": 40, "b": 2}, deferrable=True)

# Each task waits until a test lets it go: it may start in an hour.
for count in (3, 10, 50):
    with DAG(f"waiting_{count}", **DAG_OPTIONS, max_active_tasks=100) as dag:
        HorsiesOperator.partial(
            task_id="one",
            task_name="sample.add",
            delay=timedelta(hours=1),
            deferrable=True,
            inline_wait=timedelta(0),
            horsies_conn_id="horsies_apart",
        ).expand(kwargs=[{"a": number, "b": 1} for number in range(count)])
    globals()[dag.dag_id] = dag

with DAG("crashing", **DAG_OPTIONS) as dag:
    HorsiesOperator(
        task_id="one",
        task_name="acceptance.wait_for_file",
        kwargs={"path": "{{ dag_run.conf['path'] }}"},
        retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"]),
        deferrable=True,
        inline_wait=timedelta(0),
        horsies_conn_id="horsies_apart",
    )

with DAG("resuming", **DAG_OPTIONS, default_args={"retries": 0}):
    HorsiesOperator.partial(
        task_id="nap", task_name="acceptance.sleep", deferrable=True, inline_wait=timedelta(0)
    ).expand(kwargs=[{"seconds": seconds} for seconds in (0.5, 1, 1.5, 2, 2.5, 3)])
    HorsiesSensor.partial(
        task_id="watch",
        external_dag_id="resuming",
        external_task_id="nap",
        mode="reschedule",
        poke_interval=1,
        timeout=300,
    ).expand(external_map_index=[0, 1, 2, 3])
