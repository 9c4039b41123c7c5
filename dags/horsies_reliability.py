"""Every week, a report on all horsies tasks that ended in it: Spark reads horsies' own history.

The page "Horsies" of Airflow lists the reports. Trigger it with a start and an end for any other period.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, dag

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesOperator

PERIOD = {"type": ["null", "string"], "format": "date-time"}


@dag(
    schedule=CronDataIntervalTimetable("@weekly", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    # It needs workers whose app has the task: see airflow_horsies.report.
    is_paused_upon_creation=True,
    dagrun_timeout=timedelta(hours=1),
    params={
        "start": Param(None, **PERIOD, description="From when on; without it, the last whole week."),
        "end": Param(None, **PERIOD, description="Up to when."),
    },
    tags=["horsies"],
)
def horsies_reliability():
    HorsiesOperator(
        task_id="report",
        task_name="horsies.reliability_report",
        kwargs={
            "start": "{{ params.start or data_interval_start }}",
            "end": "{{ params.end or data_interval_end }}",
        },
        retry_policy=RetryPolicy.fixed([30], auto_retry_for=["WORKER_CRASHED", "SPARK_SESSION_LOST"]),
        good_until="dag_run_deadline",
        deferrable=True,
        # Airflow's own retries are for what happens around the task, and adopt what it has done.
        retries=2,
        retry_delay=timedelta(seconds=10),
    )


horsies_reliability()
