"""A million attempts: the data source against Spark's JDBC source, on one database, cut alike, in turns.

.venv/bin/python -m benchmarks.spark_source [--attempts 1000000] [--rounds 7] [--jar /usr/share/java/postgresql.jar]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from airflow_horsies.db.statement import sql_text
from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK
from benchmarks.databases import make_full_database
from benchmarks.figures import Figure, main, ratio, take_turns, timed, told
from tests.integration.releases import IN_PLACE, MOVED, keeps_history

FIGURES = {MOVED: "spark_source_vs_jdbc", IN_PLACE: "spark_source_vs_jdbc_0_4"}
CORES = 2
DAYS = 20
# A task of the plan has three attempts, less a few that live.
ATTEMPTS_PER_TASK = 2.999


def statement(release: str) -> str:
    """All attempts in SQL, and the time by which the source cuts, for JDBC to do the same."""

    def scan(name: str, cut_at: str) -> str:
        text = re.sub(r"--[^\n]*", "", sql_text("airflow_horsies.wire", name))
        text = text.replace("AS process_name", f"AS process_name, {cut_at} AS cut_at")
        return re.sub(r"%\(\w+\)s", "NULL", text)

    if keeps_history(release):
        live = scan("moved/scan_live_attempts", "t.enqueued_at")
        return f"{live} UNION ALL {scan('moved/scan_ended_attempts', 'h.enqueued_at')}"
    return scan("in_place/scan_attempts", "a.finished_at")


def measure_release(spark: Any, info: dict[str, Any], release: str, partitions: int, rounds: int) -> Figure:
    name = info["dbname"]
    with psycopg.connect(**info) as connection:
        row = connection.execute(
            f"SELECT count(*), min(cut_at), max(cut_at) FROM ({statement(release)}) AS r".encode()
        ).fetchone()
    assert row
    count, first, last = row

    def consume(frame: Any) -> None:
        # Every value is read and made, and none is sent anywhere.
        frame.write.format("noop").mode("overwrite").save()

    def ours() -> None:
        reader = spark.read.format("horsies").option("service", name).option("table", "attempts")
        consume(reader.option("partitions", partitions).load())

    def jdbc() -> None:
        reader = spark.read.format("jdbc").options(
            url=f"jdbc:postgresql://{info['host']}:{info['port']}/{name}", user=info["user"],
            password=info["password"], dbtable=f"({statement(release)}) AS r", driver="org.postgresql.Driver",
            fetchsize="10000",
        )  # fmt: skip
        if partitions > 1:
            begin, end = (each.isoformat(sep=" ")[:19] for each in (first, last))
            reader = reader.options(
                partitionColumn="cut_at", lowerBound=begin, upperBound=end, numPartitions=str(partitions)
            )
        consume(reader.load().drop("cut_at"))

    ours()
    jdbc()
    said = take_turns({"ours": lambda: timed(ours), "jdbc": lambda: timed(jdbc)}, rounds)
    told(f"horsies {release}, {count:,} attempts, {partitions} partitions: source", said["ours"])
    told("JDBC", said["jdbc"])
    suffix = "" if partitions == 1 else f"_{partitions}_parts"
    return ratio(f"{FIGURES[release]}{suffix}", said["jdbc"], said["ours"])


def measure(given: argparse.Namespace) -> list[Figure]:
    if not given.jar.exists():
        print(f"  no JDBC driver at {given.jar} (Debian: libpostgresql-jdbc-java): its figures are left out")
        return []
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "bench", durable=False) as postgres:
        folder = Path(name)
        databases = {}
        for release in FIGURES:
            print(f"  filling a database of horsies {release} …", flush=True)
            databases[release] = make_full_database(
                postgres, release=release, tasks=int(given.attempts / ATTEMPTS_PER_TASK), days=DAYS,
            )  # fmt: skip
        services = folder / "services"
        services.touch(mode=0o600)
        for info in databases.values():
            lines = "".join(f"{key}={value}\n" for key, value in info.items())
            services.write_text(f"{services.read_text()}[{info['dbname']}]\n{lines}")
        os.environ.update(
            JAVA_HOME=str(find_java_home(folder / "java")), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP=LOOPBACK,
            PGSERVICEFILE=str(services),
        )  # fmt: skip
        from pyspark.sql import SparkSession

        from airflow_horsies.spark import HorsiesDataSource

        spark = (
            SparkSession.builder.master(f"local[{CORES}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", str(given.jar))
            .config("spark.driver.memory", "2g")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(HorsiesDataSource)
        figures = [
            measure_release(spark, info, release, partitions, given.rounds)
            for release, info in databases.items()
            for partitions in (1, CORES)
        ]
        spark.stop()
    return figures


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--attempts", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--jar", type=Path, default=Path("/usr/share/java/postgresql.jar"))
    sys.exit(main(measure, options))
