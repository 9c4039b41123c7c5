"""Models of delays, as one workflow of horsies: a branch for each airport, joined by a quorum, published when approved.

    airflow dags trigger flights_models --conf '{"month": "2013-01"}'
    airflow horsies signal WORKFLOW_ID approved --payload '{"by": "anna"}'

It needs at least one day of the month from flights_daily. The branch of HPN always fails, as no flight of these data
left it: three models are enough. Until the signal comes, the workflow holds neither a worker nor a slot of Airflow.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_horsies.models import RetryPolicy, node, ref
from airflow_horsies.operators import HorsiesGraphOperator

AIRPORTS = ("EWR", "JFK", "LGA", "HPN")
AFTER_LOSS = RetryPolicy.fixed([2, 15, 60], auto_retry_for=["WORKER_CRASHED", "SPARK_SESSION_LOST"])
MONTH = "{{ params.month }}"
TWO_HOURS = timedelta(hours=2)


@dag(schedule=None, params={"month": "2013-01"}, tags=["horsies", "flights"], doc_md=__doc__)
def flights_models():
    branches = {
        airport: node("flights.train", month=MONTH, airport=airport, retry_policy=AFTER_LOSS) for airport in AIRPORTS
    }
    HorsiesGraphOperator(
        task_id="models",
        nodes={
            **branches,
            "compare": node(
                "flights.compare",
                **{airport.lower(): ref(airport) for airport in AIRPORTS},
                join="quorum",
                min_success=3,
                retry_policy=AFTER_LOSS,
            ),
            "approved": node(
                "airflow_horsies.wait_for_signal",
                name="approved",
                timeout_seconds=TWO_HOURS.total_seconds(),
                after="compare",
                retry_policy=RetryPolicy.parking(),
            ),
            "publish": node(
                "flights.publish",
                month=MONTH,
                compared=ref("compare"),
                approval=ref("approved"),
                retry_policy=AFTER_LOSS,
            ),
        },
        output="publish",
        # Whatever became of the branches.
        success=[["publish"]],
        fail_fast_codes=["NO_DAYS", "NO_FLIGHTS", "SIGNAL_TIMED_OUT"],
        retries=2,
        retry_delay=timedelta(seconds=10),
        deferrable=True,
    )


flights_models()
