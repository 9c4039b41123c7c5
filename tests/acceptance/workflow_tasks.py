"""Workflows on Spark, whose nodes run until the test lets them go on, and leave a mark of each time they begin."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flights.worker import app
from horsies import RetryPolicy, SubWorkflowNode, TaskNode, WorkflowSpec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from airflow_horsies.worker import TaskFault, python_task, spark_task, workflow

CRASHES = RetryPolicy.fixed([1, 1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)


def begin(name: str, gates: str | None) -> None:
    """Returns once the test has opened the gate of the node."""
    if gates is None:
        return
    with Path(gates, f"{name}.began").open("a") as marks:
        marks.write("began\n")
    while not Path(gates, f"{name}.open").exists():
        time.sleep(0.05)


@python_task(app, "acceptance.choose_rows", retry_policy=CRASHES)
def choose_rows(*, rows: int, gates: str | None = None) -> int:
    begin("choose", gates)
    return rows


@spark_task(app, "acceptance.count_even", retry_policy=CRASHES)
def count_even(spark: SparkSession, *, rows: int) -> int:
    return spark.range(rows).where("id % 2 = 0").count()


@spark_task(app, "acceptance.sum_rows", retry_policy=CRASHES)
def sum_rows(spark: SparkSession, *, rows: int, gates: str | None = None) -> int:
    begin("sum", gates)
    return int(spark.range(rows).agg(sf.sum("id")).collect()[0][0])


@spark_task(app, "acceptance.count_groups", retry_policy=CRASHES)
def count_groups(spark: SparkSession, *, rows: int) -> dict[str, int]:
    found = spark.range(rows).groupBy((sf.col("id") % 3).alias("rest")).count().orderBy("rest").collect()
    return {str(row["rest"]): row["count"] for row in found}


@python_task(app, "acceptance.largest_group", retry_policy=CRASHES)
def largest_group(*, groups: dict[str, int], total: int) -> list[int]:
    return [max(groups.values()), total]


@python_task(app, "acceptance.put_together", retry_policy=CRASHES)
def put_together(*, even: int, groups: list[int]) -> dict[str, int]:
    return {"even": even, "largest": groups[0], "sum": groups[1]}


@python_task(app, "acceptance.branch", retry_policy=CRASHES)
def branch(*, name: str, fails: bool = False, gates: str | None = None) -> str:
    begin(name, gates)
    if fails:
        raise TaskFault("BRANCH_BROKEN", f"branch {name} was asked to fail")
    return name


@python_task(app, "acceptance.enough", retry_policy=CRASHES)
def enough() -> str:
    return "enough"


@workflow(app, "acceptance.groups")
def groups(app: Any, *, rows: int, gates: str | None = None) -> WorkflowSpec[list[int]]:
    counted = TaskNode(fn=count_groups, kwargs={"rows": rows}, node_id="count")
    summed = TaskNode(fn=sum_rows, kwargs={"rows": rows, "gates": gates}, node_id="sum")
    largest = TaskNode(
        fn=largest_group,
        waits_for=[counted, summed],
        args_from={"groups": counted, "total": summed},
        node_id="largest",
    )
    return WorkflowSpec(name="acceptance.groups", tasks=[counted, summed, largest], output=largest)


@workflow(app, "acceptance.diamond")
def diamond(app: Any, *, rows: int, gates: str | None = None) -> WorkflowSpec[dict[str, int]]:
    """One node, then two branches on Spark, one of them a workflow of its own, and one that takes both values."""
    chosen = TaskNode(fn=choose_rows, kwargs={"rows": rows, "gates": gates}, node_id="choose")
    even = TaskNode(fn=count_even, waits_for=[chosen], args_from={"rows": chosen}, node_id="even")
    grouped = SubWorkflowNode(
        workflow_def=groups, waits_for=[chosen], kwargs={"rows": rows, "gates": gates}, node_id="groups"
    )
    put = TaskNode(
        fn=put_together, waits_for=[even, grouped], args_from={"even": even, "groups": grouped}, node_id="total"
    )
    return app.workflow(  # type: ignore[no-any-return]
        "acceptance.diamond", tasks=[chosen, even, grouped, put], output=put
    )


@python_task(app, "acceptance.hand_out")
def hand_out(*, url: str, place: str, fails: bool = False) -> str:
    """Gives the address to the outside party, and is careless with it."""
    Path(f"{place}.new").write_text(url)
    Path(f"{place}.new").rename(place)
    print("handed out", url)
    if fails:
        raise RuntimeError(f"cannot ask at {url}")
    return url
