"""The figures of a report on workflows, computed by Spark from horsies' tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from airflow_horsies.core.control import BEGIN
from airflow_horsies.report.figures import (
    NOT_BY_AIRFLOW,
    STATES,
    group_of,
    in_every_group,
    is_parked,
    percentiles,
    read_table,
    seconds_between,
    senders,
)

# Nodes may be named by what they work on, so that their number has no bound.
MOST_NODES = 1_000
NODE_KEYS = ("workflow", "inner_workflow", "node_name", "task_name")


@dataclass(frozen=True, slots=True)
class WorkflowFigures:
    """
    What became of the workflows that ended in the period. Workflows inside others count as nodes of these.

    :param workflows: one row for each group of workflows: how they ended, percentiles of how long they took, and how
        their nodes ended, waited and were parked. A group is a DAG, a workflow's name or everything (``dimension``,
        ``value``), on a day or, where ``day`` is null, in the whole period.
    :param nodes: how the nodes of each name ended, and how long they waited, ran and were parked.
    :param failed_nodes: the innermost failed nodes by error code.
    """

    workflows: DataFrame
    nodes: DataFrame
    failed_nodes: DataFrame


def ended_workflows(spark: SparkSession, start: datetime, end: datetime) -> DataFrame:
    """The outermost workflows that ended in the period, with the task instance that sent them."""
    ended_at = f.col("finished_at")
    workflows = (
        read_table(spark, "workflows", "workflow_id", "root_workflow_id", "name", "state", "created_at", "finished_at")
        .option("pushFilters", "true")
        .load()
        .where(f.col("state").isin(*STATES) & (ended_at >= f.lit(start)) & (ended_at < f.lit(end)))
        .where(f.col("workflow_id") == f.col("root_workflow_id"))
        .select(
            "root_workflow_id",
            f.col("name").alias("workflow"),
            f.col("state").alias("workflow_state"),
            "created_at",
            f.to_date("finished_at").alias("day"),
            seconds_between("created_at", "finished_at").alias("duration_seconds"),
        )
    )
    sent = senders(spark).select(f.col("horsies_task_id").alias("root_workflow_id"), "dag_id")
    return workflows.join(sent, "root_workflow_id", "left").withColumn(
        "dag_id", f.coalesce("dag_id", f.lit(NOT_BY_AIRFLOW))
    )


def nodes_of(spark: SparkSession, workflows: DataFrame, end: datetime) -> DataFrame:
    """
    The nodes of those workflows and of the workflows inside them, with the times of their tasks.

    :param workflows: the result of :func:`ended_workflows`.
    """
    (oldest,) = workflows.agg(f.date_format(f.min("created_at"), "yyyy-MM-dd'T'HH:mm:ssXXX")).first() or (None,)
    # Without workflows, there is nothing to read.
    during = {"since": oldest or end.isoformat(), "until": end.isoformat()}
    columns = ("workflow_id", "root_workflow_id", "workflow_name", "node_name", "task_name", "state", "is_workflow")
    nodes = (
        read_table(spark, "nodes", *columns, "sub_workflow_id", "task_id", "finished_at", "error_code")
        .options(**during)
        .load()
        .withColumnRenamed("workflow_name", "inner_workflow")
        # What starts a registered workflow is of interest only if it could not.
        .where((f.col("task_name") != BEGIN) | (f.col("state") == "FAILED"))
    )
    tasks = read_table(spark, "tasks", "task_id", "sent_at", "enqueued_at").options(**during).load()
    times = tasks.select("task_id", f.coalesce("sent_at", "enqueued_at").alias("sent_at")).join(
        _times_of_tasks(spark, during), "task_id", "left"
    )
    parked = f.coalesce("parked_seconds", f.lit(0.0))
    # Its task ended while it was parked.
    last_parked = f.coalesce(seconds_between("left_parked_at", "finished_at"), f.lit(0.0))
    is_known = f.col("parked_times") > 0
    return (
        nodes.join(workflows.drop("created_at"), "root_workflow_id")
        .join(times, "task_id", "left")
        .withColumn("wait_seconds", seconds_between("sent_at", "first_started_at"))
        .withColumn("parked_seconds", f.when(is_known, parked + f.greatest(last_parked, f.lit(0.0))))
    )


def compute_workflow_figures(workflows: DataFrame, nodes: DataFrame) -> WorkflowFigures:
    """
    :param workflows: the result of :func:`ended_workflows`.
    :param nodes: the result of :func:`nodes_of`.
    """
    of_tasks = nodes.where(~f.col("is_workflow"))
    return WorkflowFigures(
        workflows=_workflows(workflows, of_tasks), nodes=_nodes(of_tasks), failed_nodes=_failed_nodes(nodes)
    )


def _times_of_tasks(spark: SparkSession, during: dict[str, str]) -> DataFrame:
    """When each task first started, how long it ran, and how long it was parked between its attempts."""
    columns = ("task_id", "attempt", "will_retry", "error_code", "started_at", "finished_at")
    attempts = read_table(spark, "attempts", *columns).options(**during).load()
    following = f.lead("started_at").over(Window.partitionBy("task_id").orderBy("attempt"))
    known = attempts.withColumns(
        {
            "is_parked": is_parked("error_code"),
            "resumed_at": following,
            "run": seconds_between("started_at", "finished_at"),
        }
    )
    parked = f.col("is_parked")
    return known.groupBy("task_id").agg(
        f.min("started_at").alias("first_started_at"),
        f.sum(f.when(~parked, f.col("run"))).alias("run_seconds"),
        f.count_if(parked).alias("parked_times"),
        f.sum(f.when(parked, seconds_between("finished_at", "resumed_at"))).alias("parked_seconds"),
        f.max(f.when(parked & f.col("resumed_at").isNull(), f.col("finished_at"))).alias("left_parked_at"),
    )


def _workflows(workflows: DataFrame, nodes: DataFrame) -> DataFrame:
    groups = [group_of("all", f.lit("")), group_of("dag", f.col("dag_id")), group_of("workflow", f.col("workflow"))]
    of_workflows = in_every_group(workflows, groups).select(
        "dimension", "value", "group_day", "workflow_state", "duration_seconds"
    )
    of_nodes = in_every_group(nodes, groups).select(
        "dimension", "value", "group_day", "state", "wait_seconds", "parked_seconds"
    )
    rows = of_workflows.unionByName(of_nodes, allowMissingColumns=True)
    figures = rows.groupBy("dimension", "value", f.col("group_day").alias("day")).agg(
        f.count("workflow_state").alias("workflows"),
        *(f.count_if(f.col("workflow_state") == state).alias(state.lower()) for state in STATES),
        *percentiles("duration"),
        *_ends_of_nodes("nodes", "nodes_"),
        *percentiles("wait"),
        *_parked(),
    )
    return figures.withColumns(
        {
            "success_rate": f.col("completed") / f.col("workflows"),
            "node_success_rate": f.try_divide("nodes_completed", "nodes"),
        }
    ).orderBy("dimension", "value", "day")


def _nodes(nodes: DataFrame) -> DataFrame:
    figures = nodes.groupBy(*NODE_KEYS).agg(
        *_ends_of_nodes("nodes", ""), *percentiles("wait"), *percentiles("run"), *_parked()
    )
    return (
        figures.withColumn("success_rate", f.try_divide("completed", "nodes"))
        .orderBy(f.desc("failed"), f.desc("nodes"), *NODE_KEYS)
        .limit(MOST_NODES)
    )


def _failed_nodes(nodes: DataFrame) -> DataFrame:
    """Without nodes that failed because of a node of the workflow inside them."""
    failed = nodes.where(f.col("state") == "FAILED")
    with_cause = failed.select(f.col("workflow_id").alias("sub_workflow_id")).distinct()
    return (
        failed.join(with_cause, "sub_workflow_id", "left_anti")
        .withColumn("error_code", f.coalesce("error_code", f.lit("(none)")))
        .groupBy(*NODE_KEYS, "error_code")
        .agg(
            f.count("*").alias("times"),
            f.count_distinct("root_workflow_id").alias("workflows"),
            f.count_if(f.col("workflow_state") == "COMPLETED").alias("tolerated"),
        )
        .orderBy(f.desc("times"), *NODE_KEYS, "error_code")
        .limit(MOST_NODES)
    )


def _ends_of_nodes(total: str, prefix: str) -> list[Column]:
    """Nodes that ran, and those that were skipped."""
    state = f.col("state")
    return [
        f.count_if(state.isin("COMPLETED", "FAILED")).alias(total),
        *(f.count_if(state == name).alias(f"{prefix}{name.lower()}") for name in ("COMPLETED", "FAILED", "SKIPPED")),
    ]


def _parked() -> list[Column]:
    return [
        f.count("parked_seconds").alias("parked"),
        f.coalesce(f.sum("parked_seconds"), f.lit(0.0)).alias("parked_seconds"),
    ]
