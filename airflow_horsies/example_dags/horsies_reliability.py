"""Every week, a report on all horsies tasks that ended in it: Spark reads horsies' own history.

The page "Horsies" of Airflow lists the reports. A run that somebody triggers reports on the seven days before it, or on
the period from ``start`` to ``end``.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Param, dag

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesOperator

PERIOD = {"type": ["null", "string"], "format": "date-time"}


@dag(
    schedule="@weekly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # It needs workers whose app has the task: see airflow_horsies.report.
    is_paused_upon_creation=True,
    dagrun_timeout=timedelta(hours=1),
    params={
        "start": Param(None, **PERIOD, description="From when on; without it, seven days."),
        "end": Param(None, **PERIOD, description="Up to when; without it, the time of the run."),
    },
    tags=["horsies"],
)
def horsies_reliability():
    HorsiesOperator(
        task_id="report",
        task_name="horsies.reliability_report",
        kwargs={
            # Every run has this time, a scheduled one that of its schedule; a logical date is not needed.
            "start": "{{ params.start or dag_run.run_after - macros.timedelta(days=7) }}",
            "end": "{{ params.end or dag_run.run_after }}",
        },
        retry_policy=RetryPolicy.fixed([30], auto_retry_for=["WORKER_CRASHED", "SPARK_SESSION_LOST"]),
        good_until="dag_run_deadline",
        deferrable=True,
        # Airflow's own retries are for what happens around the task, and adopt what it has done.
        retries=2,
        retry_delay=timedelta(seconds=10),
    )


horsies_reliability()
