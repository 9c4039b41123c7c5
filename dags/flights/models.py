"""The tasks of flights_models: a model of delays for each airport, a comparison, and what is published of it."""

from __future__ import annotations

from typing import Annotated, Any

from horsies import JsonValue, TaskError, TaskResult
from pydantic import StringConstraints
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from airflow_horsies.worker import TaskFault, python_task, spark_task
from airflow_horsies.worker.sample_tasks import app
from flights.lake import partition, publish, read
from flights.tasks import Month, days_in_marts

Airport = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Trained = TaskResult[dict[str, JsonValue], TaskError] | None
MIN_FLIGHTS = 100


@spark_task(app, "flights.train")
def train(spark: SparkSession, *, month: Month, airport: Airport) -> dict[str, Any]:
    """How the delay of departures at an airport grows over the day: a line through the flights of the month."""
    places = [partition("enriched", date=day) for day in days_in_marts(month)]
    if not places:
        raise TaskFault("NO_DAYS", f"No day of {month} is in the marts. Run flights_daily for one of its days first.")
    flights = read(spark, *places).where((f.col("origin") == airport) & f.col("dep_delay").isNotNull())
    measures = {
        "flights": "count(*)",
        "minutes_at_midnight": "round(regr_intercept(dep_delay, hour), 3)",
        "minutes_per_hour": "round(regr_slope(dep_delay, hour), 3)",
        "explained": "round(regr_r2(dep_delay, hour), 4)",
    }
    row = flights.agg(*(f.expr(sql).alias(name) for name, sql in measures.items())).first()
    model = row.asDict() if row else {}
    if model.get("flights", 0) < MIN_FLIGHTS:
        raise TaskFault(
            "NO_FLIGHTS",
            f"{model.get('flights', 0)} flights left {airport} in {month}. A model needs at least {MIN_FLIGHTS}.",
        )
    return {"origin": airport, **model}


@python_task(app, "flights.compare")
def compare(*, ewr: Trained = None, jfk: Trained = None, lga: Trained = None, hpn: Trained = None) -> dict[str, Any]:
    """The models that there are, the one that explains most first, and why others are missing."""
    trained = {"EWR": ewr, "JFK": jfk, "LGA": lga, "HPN": hpn}
    models: list[dict[str, Any]] = [
        result.ok_value for result in trained.values() if result is not None and result.is_ok()
    ]
    left_out = {
        airport: "NOT_READY" if result is None else str(result.err_value.error_code)
        for airport, result in trained.items()
        if result is None or result.is_err()
    }
    print(f"{len(models)} models are ready; left out: {left_out}")
    return {"models": sorted(models, key=lambda model: -model["explained"]), "left_out": left_out}


@spark_task(app, "flights.publish")
def publish_models(
    spark: SparkSession, *, month: Month, compared: dict[str, Any], approval: dict[str, Any]
) -> dict[str, Any]:
    """Replace the models of the month by those that somebody has approved."""
    schema = "origin STRING, flights LONG, minutes_at_midnight DOUBLE, minutes_per_hour DOUBLE, explained DOUBLE"
    rows = spark.createDataFrame(compared["models"], schema)
    published = publish(rows, partition("models", month=month), order_by=["origin"])
    slopes = {model["origin"]: model["minutes_per_hour"] for model in compared["models"]}
    return {
        "month": month,
        "models": published,
        "minutes_per_hour": slopes,
        "left_out": compared["left_out"],
        "approved_by": approval.get("by"),
    }
