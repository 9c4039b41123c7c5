"""A month of flights, rolled up when its last missing day has come, and again whenever one of its days has run again.

For a month that is not full: ``airflow dags trigger flights_monthly --conf '{"month": "2013-02"}'``; it needs at least
one day of it from flights_daily.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, dag, task

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator
from airflow_horsies.sensors import HorsiesSensor


@dag(
    schedule=[Asset("flights_full_month")],
    # One after another: what is rolled up last has seen every day before it.
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    params={"month": "2013-01"},
    tags=["horsies", "flights"],
    doc_md=__doc__,
)
def flights_monthly():
    @task
    def runs_of_days(triggering_asset_events: Any = None) -> list[str]:
        """The runs of flights_daily that told of a full month; Airflow may hand over several at once."""
        told = [event for events in triggering_asset_events.values() for event in events]
        return sorted({event.source_run_id for event in told if event.source_run_id})

    @task
    def months(triggering_asset_events: Any = None, params: Any = None) -> list[dict[str, str]]:
        """Those that are full now; in a run that somebody triggered, the one asked for."""
        told = [event for events in triggering_asset_events.values() for event in events]
        full = {event.extra.get("month", params["month"]) for event in told}
        return [{"month": month} for month in sorted(full or {params["month"]})]

    # A day that was cleared in the meantime is at work again, and is waited for.
    settled = HorsiesSensor.partial(
        task_id="day_is_settled",
        external_dag_id="flights_daily",
        external_task_id="marts",
        poke_interval=10,
        timeout=3600,
        deferrable=True,
    ).expand(external_run_id=runs_of_days())
    roll_up = HorsiesBatchOperator(
        task_id="roll_up",
        task_name="flights.roll_up",
        items=months(),
        # A file that is replaced while Spark reads it looks broken to it, for this once.
        retry_policy=RetryPolicy.fixed(
            [2, 15, 60], auto_retry_for=["WORKER_CRASHED", "SPARK_SESSION_LOST", "SPARK_JOB_FAILED"]
        ),
        good_until="dag_run_deadline",
        fail_fast_codes=["NO_DAYS"],
        retries=2,
        retry_delay=timedelta(seconds=10),
        # Where nobody told of a day, there is none to wait for.
        trigger_rule="none_failed",
        deferrable=True,
    )
    settled >> roll_up


flights_monthly()
