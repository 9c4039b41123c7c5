"""A day of flights: ingest, validate, enrich, and the marts of each airport; all of it PySpark on horsies workers.

Any day may run at any time, alone or with others:

    airflow backfill create --dag-id flights_daily --from-date 2013-01-01 --to-date 2013-01-31 --max-active-runs 4
    airflow dags trigger flights_daily --logical-date 2013-03-01

The day is that of the logical date, of which Airflow has one run at most: so no two runs write the same day.

Two days do not go smoothly. On 2013-01-08 the weather service fails once, which a retry of horsies heals. On 2013-02-01
the delivery is damaged, which no retry heals.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset, AssetAlias, dag

from airflow_horsies.models import RetryPolicy
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator

FULL_MONTH = Asset("flights_full_month")
# A plain outlet would have an event with each day; through an alias, a task adds one when there is something to tell.
WHEN_MONTH_IS_FULL = AssetAlias("flights_when_month_is_full")

# What another attempt may heal: horsies retries these, and nothing else.
LOST = ["WORKER_CRASHED", "SPARK_SESSION_LOST"]
AFTER_LOSS = RetryPolicy.fixed([2, 15, 60], auto_retry_for=LOST)
AFTER_OUTAGE = RetryPolicy.exponential(2, max_retries=5, auto_retry_for=["WEATHER_UNAVAILABLE", *LOST])


def day_of(dag_run: Any) -> str:
    if dag_run.logical_date is None:
        raise AirflowFailException(
            "flights_daily works on the day of its logical date, and this run has none. Trigger it with a logical date "
            "in 2013, as in 'airflow dags trigger flights_daily --logical-date 2013-03-01'."
        )
    return f"{dag_run.logical_date:%Y-%m-%d}"


def tell_of_full_month(context: Any, result: list[dict[str, Any]]) -> None:
    """Each day after which its month is full says so: the last of a backfill, and later every one that runs again."""
    if any(airport["month_complete"] for airport in result):
        context["outlet_events"][WHEN_MONTH_IS_FULL].add(FULL_MONTH, extra={"month": result[0]["day"][:7]})


@dag(
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    catchup=False,
    dagrun_timeout=timedelta(hours=2),
    # Airflow's own retries are for what happens around a horsies task, and adopt what it has done.
    default_args={
        "deferrable": True,
        "good_until": "dag_run_deadline",
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        "fail_fast_codes": ["NO_DELIVERY", "QUALITY_GATE_FAILED"],
    },
    user_defined_macros={"day_of": day_of},
    tags=["horsies", "flights"],
    doc_md=__doc__,
)
def flights_daily():
    day = {"day": "{{ day_of(dag_run) }}"}
    ingest = HorsiesOperator(task_id="ingest", task_name="flights.ingest", kwargs=day, retry_policy=AFTER_LOSS)
    validate = HorsiesOperator(task_id="validate", task_name="flights.validate", kwargs=day, retry_policy=AFTER_LOSS)
    enrich = HorsiesOperator(task_id="enrich", task_name="flights.enrich", kwargs=day, retry_policy=AFTER_OUTAGE)
    marts = HorsiesBatchOperator(
        task_id="marts",
        task_name="flights.marts",
        items=[{**day, "origin": airport} for airport in ("EWR", "JFK", "LGA")],
        retry_policy=AFTER_LOSS,
        outlets=[WHEN_MONTH_IS_FULL],
        post_execute=tell_of_full_month,
    )
    ingest >> validate >> enrich >> marts


flights_daily()
