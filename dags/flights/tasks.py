"""The tasks of flights_daily and flights_monthly. Each may run again at any time, and leaves the same bytes.

A worker that has them, and the sample tasks of the other examples, is started in ``dags/`` by
``FLIGHTS_LAKE=… HORSIES_DATABASE_URL=… python -m airflow_horsies.worker flights.tasks:app``.
"""

from __future__ import annotations

import calendar
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import StringConstraints
from pyspark.sql import DataFrame, GroupedData, SparkSession, Window
from pyspark.sql import functions as f

from airflow_horsies.worker import TaskFault, progress, spark_task
from airflow_horsies.worker.sample_tasks import app
from flights.lake import count_rows, count_values, lake, partition, publish, publish_json, read
from flights.landing import landing

FLIGHTS = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP, remark STRING, unreadable STRING
"""
WEATHER = """
    origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir DOUBLE,
    wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP
"""
PLANES = """
    tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, speed INT,
    engine STRING
"""
AIRLINES = "carrier STRING, name STRING"
AIRPORTS = "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING"

Origin = Literal["EWR", "JFK", "LGA"]
Month = Annotated[str, StringConstraints(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]
ORIGINS = ("EWR", "JFK", "LGA")
# What tells flights of a day apart, and puts them in order.
KEY = ["carrier", "flight", "origin"]
REQUIRED = (*KEY, "dest", "sched_dep_time", "sched_arr_time", "distance", "time_hour")
MAX_QUARANTINED = 0.05
# On this day, the weather service answers only when asked again.
WEATHER_OUTAGE = date(2013, 1, 8)
# Of all these, days can be summed up to months. A flight without a departure was cancelled.
MEASURES = {
    "flights": "count(*)",
    "cancelled": "count_if(dep_time IS NULL)",
    "diverted": "count_if(dep_time IS NOT NULL AND air_time IS NULL)",
    "departed": "count(dep_delay)",
    "arrived": "count(arr_delay)",
    "late": "count_if(arr_delay > 15)",
    "dep_delay_minutes": "coalesce(sum(dep_delay), 0)",
    "arr_delay_minutes": "coalesce(sum(arr_delay), 0)",
    "distance_miles": "sum(distance)",
    "with_weather": "count(visib)",
    "with_plane": "count(type)",
}
# Flights of one airport and hour have the same weather, or all of them have none.
WEATHER_OF_HOUR = {name: f"max({name})" for name in ("temp", "wind_speed", "precip", "visib")}


@spark_task(app, "flights.ingest")
def ingest(spark: SparkSession, *, day: date) -> dict[str, Any]:
    """The day's delivery as it came, but typed; ``unreadable`` holds a line that could not be."""
    delivery = landing() / "flights" / f"{day}.csv"
    if not delivery.exists():
        raise TaskFault("NO_DELIVERY", f"No flights of {day} were delivered. Use a day of 2013.")
    options = {"header": True, "nullValue": "NA", "columnNameOfCorruptRecord": "unreadable"}
    rows = spark.read.csv(str(delivery), FLIGHTS, **options).withColumn("line", f.monotonically_increasing_id())
    return {"day": day, "rows": publish(rows, partition("raw", date=day), order_by=["line"])}


@spark_task(app, "flights.validate")
def validate(spark: SparkSession, *, day: date) -> dict[str, Any]:
    """Let good rows through, keep bad ones aside with the reason, and refuse a day that has too many of them."""
    raw, quarantine = partition("raw", date=day), partition("quarantine", date=day)
    judged = judge(read(spark, raw), day, carriers=read_reference(spark, "airlines", AIRLINES))
    rows, refused = count_rows(raw), publish(judged.where("reason IS NOT NULL"), quarantine, order_by=["line"])
    report = {"day": str(day), "rows": rows, "quarantined": refused, "reasons": count_values(quarantine, "reason")}
    publish_json(report, lake() / "quality" / f"{day}.json")
    print(f"{refused} of {rows} rows are quarantined: {report['reasons']}")
    if refused > MAX_QUARANTINED * rows:
        raise TaskFault(
            "QUALITY_GATE_FAILED",
            f"{refused} of {rows} rows of {day} are bad, more than {MAX_QUARANTINED:.0%}: {report['reasons']}",
        )
    good = judged.where("reason IS NULL").drop("reason", "line", "remark", "unreadable")
    publish(good, partition("clean", date=day), order_by=KEY)
    return report


@spark_task(app, "flights.enrich")
def enrich(spark: SparkSession, *, day: date) -> dict[str, Any]:
    """Add the weather at departure, the plane, and the names of airline and destination, as far as they are known."""
    weather = ask_weather(spark, day)
    progress(1, 3, "weather")
    flights = (
        read(spark, partition("clean", date=day))
        .join(weather.drop("year", "month", "day", "hour"), ["origin", "time_hour"], "left")
        .join(read_reference(spark, "planes", PLANES).withColumnRenamed("year", "plane_year"), "tailnum", "left")
        .join(read_reference(spark, "airlines", AIRLINES).withColumnRenamed("name", "airline"), "carrier", "left")
        .join(read_reference(spark, "airports", AIRPORTS).selectExpr("faa dest", "name dest_name"), "dest", "left")
    )
    enriched = partition("enriched", date=day)
    rows = publish(flights, enriched, order_by=KEY)
    progress(2, 3, "joined")
    known = read(spark, enriched).selectExpr("count(visib) weather", "count(type) plane", "count(dest_name) dest")
    return {"day": day, "rows": rows, "known": known.first()}


@spark_task(app, "flights.marts")
def marts(spark: SparkSession, *, day: date, origin: Origin) -> dict[str, Any]:
    """The day at one airport: by carrier, and by hour with the weather."""
    flights = read(spark, partition("enriched", date=day)).where(f.col("origin") == origin)
    by_carrier = measured(flights.groupBy("carrier", "airline"), MEASURES)
    by_hour = measured(flights.groupBy("hour"), MEASURES | WEATHER_OF_HOUR)
    carriers = publish(by_carrier, partition("marts/carriers", date=day, origin=origin), order_by=["carrier"])
    progress(1, 2, "by carrier")
    hours = publish(by_hour, partition("marts/hours", date=day, origin=origin), order_by=["hour"])
    # Only now: of two days that end at the same time, at least one then finds both.
    complete = len(days_in_marts(f"{day:%Y-%m}")) == days_in_month(f"{day:%Y-%m}")
    return {"day": day, "origin": origin, "carriers": carriers, "hours": hours, "month_complete": complete}


@spark_task(app, "flights.roll_up")
def roll_up(spark: SparkSession, *, month: Month) -> dict[str, Any]:
    """The month by airport and carrier: the sum of the days that are there, and whether these are all."""
    days = days_in_marts(month)
    if not days:
        raise TaskFault("NO_DAYS", f"No day of {month} is in the marts. Run flights_daily for one of its days first.")
    places = [partition("marts/carriers", date=day, origin=origin) for day in days for origin in ORIGINS]
    by_carrier = read(spark, *places, table="marts/carriers").groupBy("origin", "carrier", "airline")
    counted = {"days": len(days), "complete": len(days) == days_in_month(month)}
    monthly = measured(by_carrier, {name: f"sum({name})" for name in MEASURES}).withColumns(
        {name: f.lit(value) for name, value in counted.items()}
    )
    place = partition("monthly/carriers", month=month)
    publish(monthly, place, order_by=["origin", "carrier"])
    totals = read(spark, place).selectExpr("sum(flights) flights", "sum(cancelled) cancelled")
    return {"month": month, **counted, **totals.first().asDict()}


def judge(rows: DataFrame, day: date, *, carriers: DataFrame) -> DataFrame:
    """The rows with the reason why they are bad, null where they are good; of duplicates, the first is good."""
    known = tuple(row["carrier"] for row in carriers.collect())
    rules = {
        "unreadable": "unreadable IS NOT NULL",
        "missing value": " OR ".join(f"{name} IS NULL" for name in REQUIRED),
        "wrong day": f"year != {day.year} OR month != {day.month} OR day != {day.day}",
        "unknown airport": f"origin NOT IN {ORIGINS}",
        "unknown carrier": f"carrier NOT IN {known}",
        # A flight that has not left has not arrived, either.
        "impossible value": "distance <= 0 OR air_time <= 0 OR (dep_time IS NULL AND arr_time IS NOT NULL)",
    }
    reason = f.coalesce(*(f.when(f.expr(rule), name) for name, rule in rules.items()))
    alike = Window.partitionBy(f.col("reason").isNull(), *KEY).orderBy("line")
    duplicate = f.when(f.row_number().over(alike) > 1, "duplicate")
    return rows.withColumn("reason", reason).withColumn("reason", f.coalesce("reason", duplicate))


def ask_weather(spark: SparkSession, day: date) -> DataFrame:
    """The weather of the day, from a service that is not always there."""
    asked = lake() / "weather-asked" / str(day)
    if day == WEATHER_OUTAGE and not asked.exists():
        asked.parent.mkdir(exist_ok=True)
        asked.touch()
        raise TaskFault("WEATHER_UNAVAILABLE", f"The weather service does not answer for {day}. Try again later.")
    # So that the next run meets the outage, too.
    asked.unlink(missing_ok=True)
    return spark.read.csv(str(landing() / "weather" / f"{day}.csv"), WEATHER, header=True, nullValue="NA")


def read_reference(spark: SparkSession, name: str, schema: str) -> DataFrame:
    return spark.read.csv(str(landing() / f"{name}.csv"), schema, header=True, nullValue="NA")


def measured(groups: GroupedData, measures: dict[str, str]) -> DataFrame:
    sums = groups.agg(*(f.expr(sql).alias(name) for name, sql in measures.items()))
    means = {
        "mean_dep_delay": f.try_divide("dep_delay_minutes", "departed"),
        "mean_arr_delay": f.try_divide("arr_delay_minutes", "arrived"),
    }
    return sums.withColumns(means)


def days_in_marts(month: str) -> list[date]:
    """The days of a month that are in both marts, with all airports."""
    days = [date.fromisoformat(f"{month}-{number:02}") for number in range(1, days_in_month(month) + 1)]
    marts = ("marts/carriers", "marts/hours")
    return [
        day
        for day in days
        if all(partition(mart, date=day, origin=origin).exists() for mart in marts for origin in ORIGINS)
    ]


def days_in_month(month: str) -> int:
    year, number = map(int, month.split("-"))
    return calendar.monthrange(year, number)[1]
