"""Tasks on which the worker's runtime is tried."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType

from airflow_horsies.worker import ResultReference, horsies_app, mask, progress, python_task, save_result, spark_task

app = horsies_app(dead_after=timedelta(seconds=5), spark_conf={"spark.sql.shuffle.partitions": "2"})
log = logging.getLogger("my.module")


@dataclass
class Total:
    day: date
    rows: int


@spark_task(app, "total")
def total(spark: SparkSession, *, day: date, rows: int = 10) -> Total:
    return Total(day, spark.range(rows).count())


@spark_task(app, "outcomes_of")
def outcomes_of(spark: SparkSession, *, task_id: str) -> list[str]:
    attempts = spark.read.format("horsies").option("table", "attempts").load()
    return [row.outcome for row in attempts.where(attempts.task_id == task_id).orderBy("attempt").collect()]


@spark_task(app, "leave_traces")
def leave_traces(spark: SparkSession, *, name: str) -> dict[str, object]:
    """Tells what it found of earlier tasks, and leaves as much as it can."""
    context = spark.sparkContext
    found: dict[str, object] = {
        "views": sorted(table.name for table in spark.catalog.listTables()),
        "global_views": sorted(
            table.name for table in spark.catalog.listTables("global_temp") if table.namespace == ["global_temp"]
        ),
        "conf": spark.conf.get("spark.sql.session.timeZone"),
        "local_property": spark.sparkContext.getLocalProperty("my.property"),
        "cached": spark.sparkContext._jsc.getPersistentRDDs().size(),
        "streams": spark._jsparkSession.sharedState().activeStreamingQueries().size(),
        "database": spark.catalog.currentDatabase(),
        "functions": spark.catalog.functionExists("my_function"),
        "hadoop": context._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
        "hadoop_default": context._jsc.hadoopConfiguration().get("dfs.replication"),
        "property": context._jvm.java.lang.System.getProperty("my.property"),
        "home": context._jvm.java.lang.System.getProperty("user.home"),
        "hour": spark.sql("SELECT hour(timestamp_seconds(0)) AS hour").first()["hour"],
        "number": context._jvm.java.lang.String.format("%,.1f", context._jvm.java.util.List.of(1234.5).toArray()),
        "checkpoints": context.getCheckpointDir(),
        "log_levels": log_levels(context._jvm),
        "includes": [name for name in context._python_includes if name.startswith("left_behind")],
        "path": [place for place in sys.path if "left_behind" in place],
        "child": os.getpid(),
        "jvm": spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(),
        "same_session": SparkSession.builder.getOrCreate() is spark and SparkSession.active() is spark,
    }
    numbers = spark.range(10)
    numbers.createOrReplaceTempView(name)
    numbers.createOrReplaceGlobalTempView(f"{name}_global")
    SparkSession.builder.getOrCreate().range(3).createOrReplaceTempView(f"{name}_by_builder")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.sparkContext.setLocalProperty("my.property", name)
    spark.udf.register("my_function", lambda number: number, LongType())
    context._jsc.hadoopConfiguration().set("fs.s3a.secret.key", name)
    context._jsc.hadoopConfiguration().set("dfs.replication", "1")
    context._jvm.java.lang.System.setProperty("my.property", name)
    context._jvm.java.lang.System.setProperty("user.home", name)
    context._jvm.java.util.TimeZone.setDefault(context._jvm.java.util.TimeZone.getTimeZone("Asia/Tokyo"))
    context._jvm.java.util.Locale.setDefault(context._jvm.java.util.Locale.GERMANY)
    context.setLogLevel("OFF")
    context._jvm.org.apache.log4j.LogManager.getLogger("org").setLevel(context._jvm.org.apache.log4j.Level.OFF)
    numbers.cache().count()
    spark.sparkContext.parallelize([1, 2]).cache().count()
    for session in (spark, spark.newSession()):
        session.readStream.format("rate").load().writeStream.format("noop").start()
    # Gone when the next task runs a job.
    with tempfile.TemporaryDirectory() as folder:
        context.setCheckpointDir(folder)
        archive = Path(folder, f"left_behind_{name}_{time.time_ns()}.zip")
        with zipfile.ZipFile(archive, "w") as writing:
            writing.writestr(f"left_behind_{name}.py", "x = 1")
        context.addPyFile(str(archive))
        numbers.count()
    return found


def log_levels(jvm: Any) -> dict[str, str]:
    """The level of each logger that has one, and the least one that is shown."""
    loggers = jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getLoggers()
    shown = getattr(getattr(jvm.org.apache.spark.internal, "Logging$"), "MODULE$").sparkShellThresholdLevel()
    return {"shown": str(shown), **{name: str(logger.getLevel()) for name, logger in loggers.items()}}


@spark_task(app, "say_in_spark")
def say_in_spark(spark: SparkSession, *, name: str) -> None:
    """A line at the level WARN, and one at INFO, of a logger of Spark's."""
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.SparkContext")
    logger.warn(f"{name} warns")
    logger.info(f"{name} informs")


@spark_task(app, "watch_stream")
def watch_stream(spark: SparkSession, *, folder: str, every: str = "100 milliseconds", seconds: float = 0) -> None:
    """Lets a stream of a session of its own write files; when the task is stopped, says that the stream has ended."""
    rates = spark.newSession().readStream.format("rate").load()
    writing = rates.writeStream.format("json").option("checkpointLocation", f"{folder}/checkpoints")
    stream = writing.trigger(processingTime=every).start(f"{folder}/files")
    while not list(Path(folder, "files").glob("*.json")):
        time.sleep(0.05)
    print("the stream writes", flush=True)
    try:
        time.sleep(seconds)
    finally:
        if seconds:
            # Bounded by the time that a stopped task has: its process is killed then.
            while _is_active(stream):
                time.sleep(0.05)
            print("the stream has ended")


def _is_active(stream: Any) -> bool:
    try:
        return bool(stream.isActive)
    except Exception:
        # The question itself was interrupted, as everything is that the session has the server do.
        return True


@spark_task(app, "views")
def views(spark: SparkSession, *, name: str) -> list[str]:
    """The temporary views it finds, before it makes some of its own."""
    found = sorted(table.name for table in spark.catalog.listTables())
    spark.range(3).createOrReplaceTempView(name)
    SparkSession.builder.getOrCreate().range(3).createOrReplaceTempView(f"{name}_by_builder")
    return found


@spark_task(app, "count")
def count(spark: SparkSession, *, rows: int = 1000) -> int:
    numbers = spark.range(rows).cache()
    numbers.createOrReplaceTempView("numbers")
    print("counted", numbers.count())
    return int(spark.sql("SELECT sum(id) AS total FROM numbers WHERE id % 2 = 0").first()["total"])


@spark_task(app, "inventory")
def inventory(spark: SparkSession) -> dict[str, int]:
    """What a child holds on to."""
    memory = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    memory.gc()
    time.sleep(1)
    return {
        "threads": threading.active_count(),
        "jvm_threads": spark.sparkContext._jvm.java.lang.Thread.activeCount(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "cached": spark.sparkContext._jsc.getPersistentRDDs().size(),
        "temporary": sum(path.is_file() for path in Path(os.environ["TMPDIR"]).rglob("*")),
        "heap": memory.getHeapMemoryUsage().getUsed(),
    }


@spark_task(app, "active_jobs")
def active_jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())


@spark_task(app, "long_spark")
def long_spark(spark: SparkSession, *, parts: int = 100) -> int:
    def busy(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                pass
            yield batch

    return spark.range(0, parts, 1, parts).mapInPandas(busy, "id long").count()


@spark_task(app, "sum_up")
def sum_up(spark: SparkSession, *, rows: int) -> int:
    """Without Python on the executors, which takes long to start."""
    return int(spark.range(rows).selectExpr("sum(id % 7) AS total").first()["total"])


@spark_task(app, "sleep_in_a_stage")
def sleep_in_a_stage(spark: SparkSession, *, ms: int) -> int:
    """One stage, which lasts."""
    return len(spark.range(0, 1, 1, 1).selectExpr(f"reflect('java.lang.Thread', 'sleep', {ms}L)").collect())


@python_task(app, "loop")
def loop(*, seconds: float) -> int:
    end = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end:
        turns += 1
    return turns


@python_task(app, "sleep")
def sleep(*, seconds: float) -> float:
    print("going to sleep", flush=True)
    time.sleep(seconds)
    print("awake", flush=True)
    return seconds


@spark_task(app, "clean_up")
def clean_up(spark: SparkSession, *, seconds: float) -> None:
    """Takes its time to clean up, and needs Spark for it."""

    @contextmanager
    def opened(name: str) -> Iterator[None]:
        try:
            yield
        finally:
            time.sleep(seconds)
            print(f"{name} closed, {spark.range(1000).count()} rows removed")

    with opened("outer"), opened("inner"):
        print("working", flush=True)
        time.sleep(60)


@python_task(app, "stubborn")
def stubborn(*, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(1)
        except BaseException:
            print("I go on")


@spark_task(app, "steps")
def steps(spark: SparkSession, *, number: int) -> int:
    for step in range(number):
        spark.range(1000).selectExpr("sum(id)").collect()
        progress(step + 1, number, f"step {step + 1}")
        time.sleep(0.5)
    return number


@python_task(app, "until_late", stop_at_good_until=True)
def until_late(*, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@python_task(app, "talk")
def talk(*, secret: str) -> None:
    mask(secret)
    print("first printed")
    log.info("then logged")
    log.warning("the secret is %s", secret)
    print("a line", "of parts", 3)
    print("no end", end="")


@python_task(app, "print_lines")
def print_lines(*, lines: int) -> None:
    for number in range(lines):
        print("line", number)


@spark_task(app, "fail")
def fail(spark: SparkSession, *, how: str, path: str = "") -> object:
    match how:
        case "missing column":
            return spark.range(3).select("nope").count()
        case "missing path":
            return spark.read.parquet("/nowhere/at/all").count()
        case "bad SQL":
            return spark.sql("SELEKT 1").count()
        case "division":
            return spark.range(3).selectExpr("1 / (id - 1)").collect()
        case "cast":
            return spark.range(1).selectExpr("CAST('x' AS INT)").collect()
        case "udf":
            return spark.range(3).select(sf.udf(parse_day, LongType())("id")).collect()
        case "pandas udf":
            return spark.range(3).select(sf.pandas_udf(lose_all, LongType())("id")).collect()
        case "python worker":
            return spark.range(3).select(sf.udf(lambda number: os._exit(9), LongType())("id")).collect()
        case "corrupt file":
            Path(path).write_text("this is no parquet")
            return spark.read.schema("id long").parquet(path).count()
        case "no room":
            return spark.range(3).write.parquet("/proc/nowhere")
        case "own exception":
            raise LookupError("no such thing")
        case "not JSON":
            return {"spark": object()}
        case "NaN":
            return {"mean": [1.0, float("nan")]}
        case "frame":
            return spark.range(3)
        case "too large":
            return "x" * 2_000_000
        case "stop":
            spark.stop()
            return 1
    raise ValueError(how)


def parse_day(number: int) -> int:
    raise ValueError(f"no such day: {number}")


def lose_all(numbers: pd.Series) -> pd.Series:
    raise KeyError("column of the lookup")


@spark_task(app, "rows", max_rows=3)
def rows(spark: SparkSession, *, number: int) -> object:
    return spark.range(number).selectExpr("id", "CAST(id AS DECIMAL(5, 2)) AS price", "DATE'2026-01-02' AS day")


@spark_task(app, "save")
def save(spark: SparkSession, *, path: str, number: int) -> ResultReference:
    return save_result(spark.range(number).selectExpr("id", "id % 7 AS weekday"), path)


@spark_task(app, "fill_memory")
def fill_memory(spark: SparkSession, *, numbers: int) -> int:
    return int(spark.range(1).selectExpr(f"size(sequence(1L, {numbers}L)) AS numbers").first()["numbers"])


@spark_task(app, "where")
def where(spark: SparkSession, *, parts: int = 4) -> dict[str, int]:
    """On how many executors a job ran, and its sum."""

    def executor(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            batch["ppid"] = os.getppid()
            yield batch

    found = spark.range(0, 1000, 1, parts).mapInPandas(executor, "id long, ppid long").toPandas()
    return {"executors": int(found["ppid"].nunique()), "sum": int(found["id"].sum())}
