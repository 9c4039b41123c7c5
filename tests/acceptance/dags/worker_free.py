"""Tasks that the triggerer starts and ends, each beside the same task on a worker where a test compares them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.sensors import HorsiesSensor

FROM_CONF: dict[str, Any] = {
    "task_name": "{{ dag_run.conf['task_name'] }}",
    "kwargs": "{{ dag_run.conf.get('kwargs', {}) }}",
    "horsies_queue": "{{ dag_run.conf.get('queue', 'default') }}",
    "good_until": "{{ dag_run.conf.get('good_until') }}",
}
DAG_OPTIONS: dict[str, Any] = {"schedule": None, "render_template_as_native_obj": True, "max_active_runs": 100}
VALUES: list[Any] = [
    None,
    "text with \"quotes\", {{ braces }}, 'and' ünïcode",
    "2026-01-01T00:00:00+00:00",
    "42",
    "",
    2**63,
    -0.5,
    True,
    [],
    {"nested": [{"a": None, "b": [1, "2", {"c": 3.0}]}, []], "day": "2026-01-01", "big": -(2**62)},
]

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retrying": {"retries": 1, "retry_delay": timedelta(seconds=0)},
    "failing_fast": {"fail_fast_codes": ["NO_HOPE"], "retries": 3},
    "skipping": {"on_expired": "skip", "on_cancelled": "skip"},
    "short_lived": {"execution_timeout": timedelta(seconds=4)},
    "impatient": {"queue_timeout": timedelta(seconds=2)},
    "sending": {"wait_for_completion": False},
}

for variant, options in VARIANTS.items():
    with DAG(f"free_{variant}", **DAG_OPTIONS) as dag:
        HorsiesOperator(task_id="one", **FROM_CONF, **options, worker_free=True)
    globals()[dag.dag_id] = dag

with DAG("free_values", schedule=None) as dag:
    for number, value in enumerate(VALUES):
        for mode in ("worker_free", "deferrable"):
            HorsiesOperator(
                task_id=f"{mode}_{number}",
                task_name="acceptance.echo",
                kwargs={"text": "{% raw %}" + json.dumps(value) + "{% endraw %}"},
                **{mode: True},
            )

with DAG("free_templates", schedule=None, params={"who": "nobody"}) as dag:
    for mode in ("worker_free", "deferrable"):
        HorsiesOperator(
            task_id=mode,
            task_name="acceptance.echo",
            kwargs={
                "text": '["{{ ds }}", "{{ ts_nodash }}", "{{ run_id }}", "{{ params.who }}", "{{ dag_run.conf.who }}", '
                '"{{ ti.try_number }}", "{{ dag.dag_id }}", "{{ macros.ds_add(ds, 1) }}", "{{ logical_date | ds }}", '
                "\"{{ var.value.get('missing', 'none') }}\", \"{{ conn.horsies_default.conn_id }}\"]"
            },
            **{mode: True},
        )

with DAG("free_mapping", schedule=None) as dag:
    many = HorsiesOperator(
        task_id="many",
        task_name="acceptance.echo",
        kwargs={"text": "[1, 2, 3]"},
        worker_free=True,
    )

    @task
    def double(number: int) -> int:
        return 2 * number

    double.expand(number=many.output)

with DAG("free_batch", **DAG_OPTIONS) as dag:
    HorsiesBatchOperator(
        task_id="batch",
        task_name="{{ dag_run.conf['task_name'] }}",
        items="{{ dag_run.conf['items'] }}",
        max_failures="{{ dag_run.conf.get('max_failures', 0) }}",
        retries=1,
        retry_delay=timedelta(seconds=0),
        worker_free=True,
    )

with DAG("free_sensor", **DAG_OPTIONS) as dag:
    HorsiesOperator(task_id="one", **FROM_CONF, worker_free=True)
    HorsiesSensor(
        task_id="watch", external_dag_id="free_sensor", external_task_id="one", poke_interval=1, worker_free=True
    )
    HorsiesSensor(
        task_id="allow",
        external_dag_id="free_sensor",
        external_task_id="one",
        poke_interval=1,
        worker_free=True,
        allowed_states=["COMPLETED", "FAILED"],
    )

# Nobody serves their queue: one is cancelled, the other is marked failed.
CANCELLED, MARKED = "t1", "t2"

for count in (10, 200):
    with DAG(f"free_{count}", schedule=None, max_active_tasks=count) as dag:
        for number in range(count):
            task_id, fails = f"t{number}", number % 10 == 9
            HorsiesOperator(
                task_id=task_id,
                task_name="acceptance.fail" if fails else "acceptance.sleep",
                kwargs={"code": "PLANNED"} if fails else {"seconds": 1 + number / 1000},
                horsies_queue="nobody" if task_id in (CANCELLED, MARKED) else "default",
                worker_free=True,
            )
    globals()[dag.dag_id] = dag
