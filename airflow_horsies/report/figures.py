"""The figures of a report, computed by Spark from horsies' history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as f

from airflow_horsies.core.signals import AWAITING_SIGNAL

NOT_BY_AIRFLOW = "(not sent by Airflow)"
SLOWEST = 20
PERCENTILES = (0.5, 0.95, 0.99)
STATES = ("COMPLETED", "FAILED", "EXPIRED", "CANCELLED")


@dataclass(frozen=True, slots=True)
class Figures:
    """
    One row for each group of tasks that ended in the period.

    :param groups: how the tasks of a group ended, and percentiles of how long they waited and ran. A group is a DAG, a
        task, a queue or everything (``dimension``, ``value``), on a day or, where ``day`` is null, in the whole period.
    :param errors: how often each error code occurred in a group.
    :param slowest: the attempts with the longest run times.
    :param workers: attempts, failures and busy time of each worker.
    """

    groups: DataFrame
    errors: DataFrame
    slowest: DataFrame
    workers: DataFrame


def compute_figures(tasks: DataFrame, attempts: DataFrame) -> Figures:
    """
    :param tasks: the result of :func:`ended_tasks`.
    :param attempts: the result of :func:`attempts_of`.
    """
    return Figures(
        groups=_groups(tasks, attempts),
        errors=_errors(tasks, attempts),
        slowest=attempts.orderBy(f.desc("run_seconds"), "horsies_task_id", "attempt").limit(SLOWEST),
        workers=_workers(attempts),
    )


def ended_tasks(spark: SparkSession, start: datetime, end: datetime) -> DataFrame:
    """The tasks that ended in the period, with the task instance that sent them."""
    ended_at = f.col("finished_at")
    columns = ("task_id", "task_name", "queue", "state", "error_code", "sent_at", "enqueued_at", "finished_at")
    tasks = (
        read_table(spark, "tasks", *columns)
        .option("pushFilters", "true")
        .load()
        .where(f.col("state").isin(*STATES) & (ended_at >= f.lit(start)) & (ended_at < f.lit(end)))
        .select(
            f.col("task_id").alias("horsies_task_id"),
            "task_name",
            "queue",
            "state",
            "error_code",
            f.coalesce("sent_at", "enqueued_at").alias("sent_at"),
            "finished_at",
            f.to_date("finished_at").alias("day"),
        )
    )
    return tasks.join(senders(spark), "horsies_task_id", "left").withColumn(
        "dag_id", f.coalesce("dag_id", f.lit(NOT_BY_AIRFLOW))
    )


def attempts_of(spark: SparkSession, tasks: DataFrame, end: datetime) -> DataFrame:
    """The attempts at those tasks, joined with columns of the task.

    They are read after the tasks. The tasks have ended, so their attempts are complete.
    """
    columns = ("task_id", "attempt", "outcome", "will_retry", "error_code", "started_at", "finished_at", "worker_id")
    reader = read_table(spark, "attempts", *columns, "hostname").option("until", end.isoformat())
    (oldest,) = tasks.agg(f.date_format(f.min("sent_at"), "yyyy-MM-dd'T'HH:mm:ssXXX")).first() or (None,)
    attempts = (
        (reader if oldest is None else reader.option("since", oldest))
        .load()
        .select(
            f.col("task_id").alias("horsies_task_id"),
            "attempt",
            "outcome",
            "will_retry",
            f.col("error_code").alias("attempt_error_code"),
            "started_at",
            f.col("finished_at").alias("attempt_finished_at"),
            "worker_id",
            "hostname",
        )
    )
    return (
        _without_parked(attempts)
        .join(tasks, "horsies_task_id")
        .select(
            "horsies_task_id",
            "attempt",
            "task_name",
            "queue",
            "dag_id",
            "run_id",
            "task_id",
            "map_index",
            "day",
            "outcome",
            "will_retry",
            f.col("attempt_error_code").alias("error_code"),
            "started_at",
            seconds_between("started_at", "attempt_finished_at").alias("run_seconds"),
            # Only the first attempt has the waiting time of a task.
            f.when(f.col("is_first"), seconds_between("sent_at", "started_at")).alias("wait_seconds"),
            "worker_id",
            "hostname",
        )
    )


def _without_parked(attempts: DataFrame) -> DataFrame:
    """The attempts of a task numbered from 1, without those that ended only to wait for a signal."""
    of_task = Window.partitionBy("horsies_task_id").orderBy("attempt")
    first = attempts.withColumn("is_first", f.col("attempt") == 1)
    return first.where(~is_parked("attempt_error_code")).withColumn("attempt", f.row_number().over(of_task))


def is_parked(code: str) -> Column:
    """Whether an attempt ended only to wait for a signal or a time."""
    return f.col("will_retry") & f.col(code).eqNullSafe(AWAITING_SIGNAL)


def read_table(spark: SparkSession, table: str, *columns: str) -> DataFrameReader:
    """Read only these columns, as arguments and results can be large."""
    return spark.read.format("horsies").options(table=table, columns=",".join(columns))


def senders(spark: SparkSession) -> DataFrame:
    """The first task instance that sent each task; later ones with the same idempotency key adopted it."""
    sent = f.struct("submitted_at", "dag_id", "run_id", "task_id", "map_index")
    columns = ("horsies_task_id", "submitted_at", "dag_id", "run_id", "task_id", "map_index")
    first = read_table(spark, "submissions", *columns).load().groupBy("horsies_task_id").agg(f.min(sent).alias("sent"))
    return first.select("horsies_task_id", "sent.dag_id", "sent.run_id", "sent.task_id", "sent.map_index")


def seconds_between(start: str, end: str) -> Column:
    return (f.unix_micros(end) - f.unix_micros(start)) / f.lit(1_000_000)


def _in_every_group(frame: DataFrame) -> DataFrame:
    groups = [("all", f.lit("")), ("dag", f.col("dag_id")), ("task", f.col("task_name")), ("queue", f.col("queue"))]
    return in_every_group(frame, [group_of(name, value) for name, value in groups])


def in_every_group(frame: DataFrame, groups: Sequence[Column]) -> DataFrame:
    """One copy of each row for every group it belongs to, on its day and in the whole period."""
    return (
        frame.withColumn("group", f.explode(f.array(*groups)))
        .withColumn("group_day", f.explode(f.array("day", f.lit(None).cast("date"))))
        .select(
            f.col("group.dimension").alias("dimension"), f.col("group.value").alias("value"), f.col("group_day"), "*"
        )
    )


def group_of(name: str, value: Column) -> Column:
    return f.struct(f.lit(name).alias("dimension"), value.alias("value"))


def _groups(tasks: DataFrame, attempts: DataFrame) -> DataFrame:
    of_tasks = _in_every_group(tasks).select("dimension", "value", "group_day", "state")
    of_attempts = _in_every_group(attempts).select(
        "dimension", "value", "group_day", "attempt", "outcome", "run_seconds", "wait_seconds"
    )
    rows = of_tasks.unionByName(of_attempts, allowMissingColumns=True)
    tasks_in = f.count("state")
    figures = rows.groupBy("dimension", "value", f.col("group_day").alias("day")).agg(
        tasks_in.alias("tasks"),
        *(f.count_if(f.col("state") == state).alias(state.lower()) for state in STATES),
        f.count("attempt").alias("attempts"),
        f.count_if(f.col("attempt") > 1).alias("retries"),
        f.count_if((f.col("attempt") > 1) & (f.col("outcome") == "COMPLETED")).alias("healed"),
        *percentiles("wait"),
        *percentiles("run"),
    )
    return figures.withColumn("success_rate", f.col("completed") / f.col("tasks")).orderBy("dimension", "value", "day")


def percentiles(what: str) -> list[Column]:
    """Exact percentiles, interpolated between the two nearest values like percentile_cont of Postgres."""
    column = f"{what}_seconds"
    return [f.percentile(column, rank).alias(f"{what}_p{round(rank * 100)}") for rank in PERCENTILES]


def _errors(tasks: DataFrame, attempts: DataFrame) -> DataFrame:
    failed = attempts.where(f.col("outcome") != "COMPLETED")
    # Tasks that expired, were cancelled or could not start.
    without_attempt = tasks.where(f.col("state") != "COMPLETED").join(
        failed.where(~f.col("will_retry")), "horsies_task_id", "left_anti"
    )
    columns = ("horsies_task_id", "dag_id", "task_name", "queue", "day")
    met = failed.select(*columns, "error_code", "will_retry").unionByName(
        without_attempt.select(*columns, f.coalesce("error_code", "state").alias("error_code")),
        allowMissingColumns=True,
    )
    return (
        _in_every_group(met.withColumn("error_code", f.coalesce("error_code", f.lit("(none)"))))
        .groupBy("dimension", "value", f.col("group_day").alias("day"), "error_code")
        .agg(
            f.count("*").alias("times"),
            f.count_distinct("horsies_task_id").alias("tasks"),
            f.count_if(f.col("will_retry")).alias("retried"),
        )
        .orderBy("dimension", "value", "day", f.desc("times"), "error_code")
    )


def _workers(attempts: DataFrame) -> DataFrame:
    return (
        attempts.groupBy("hostname", "worker_id", "day")
        .agg(
            f.count("*").alias("attempts"),
            f.count_if(f.col("outcome") != "COMPLETED").alias("failed"),
            f.sum("run_seconds").alias("busy_seconds"),
        )
        .orderBy("hostname", "worker_id", "day")
    )
