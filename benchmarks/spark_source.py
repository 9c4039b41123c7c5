"""A million attempts: the data source against Spark's JDBC source, on one database, partitioned alike, in turns.

.venv/bin/python benchmarks/spark_source.py [--attempts 1000000] [--rounds 5] [--jar /usr/share/java/postgresql.jar]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from airflow_horsies.database import Database, Session
from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK
from airflow_horsies.ledger.schema import migrate
from airflow_horsies.wire.statement import sql_text
from tests.integration.many_tasks import fill
from tests.integration.releases import IN_PLACE, MOVED, keeps_history, release_python

INIT = HERE.parent / "tests" / "integration" / "upstream_init.py"
PARTITIONS = 2
# A task of the plan has three attempts, less a few that live.
ATTEMPTS_PER_TASK = 2.999


def make_database(postgres: EmbeddedPostgres, release: str, attempts: int) -> str:
    name = f"bench_{release}"
    postgres.create_database(name)
    url = postgres.dsn(name, scheme="postgresql+psycopg")
    subprocess.run([release_python(release), INIT], env={**os.environ, "HORSIES_DATABASE_URL": url}, check=True)
    args = postgres.conninfo(name)
    session = Session(Database(connect_args=args, listen_args=args))
    session.run(migrate)
    session.close()
    with psycopg.connect(**args) as connection:
        fill(connection, tasks=int(attempts / ATTEMPTS_PER_TASK), days=20, keeps_history=keeps_history(release))
    return name


def statement(release: str) -> str:
    """What the source reads, and the time by which it cuts, for JDBC to do the same."""
    folder = "moved" if keeps_history(release) else "in_place"
    text = re.sub(r"--[^\n]*", "", sql_text("airflow_horsies.wire", f"{folder}/scan_attempts"))
    live, moved = ("t.enqueued_at", "h.enqueued_at") if keeps_history(release) else ("a.finished_at", "")
    text = text.replace("AS process_name", f"AS process_name, {live} AS cut_at")
    text = text.replace("a.fields ->> 11", f"a.fields ->> 11, {moved}")
    return re.sub(r"%\(\w+\)s", "NULL", text)


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def measure(spark: Any, postgres: EmbeddedPostgres, release: str, name: str, rounds: int) -> float:
    info = postgres.conninfo(name)
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
        consume(reader.option("partitions", PARTITIONS).load())

    def jdbc() -> None:
        reader = spark.read.format("jdbc").options(
            url=f"jdbc:postgresql://{info['host']}:{info['port']}/{name}", user=info["user"],
            password=info["password"], dbtable=f"({statement(release)}) AS r", driver="org.postgresql.Driver",
            partitionColumn="cut_at", lowerBound=first.isoformat(sep=" ")[:19],
            upperBound=last.isoformat(sep=" ")[:19], numPartitions=str(PARTITIONS), fetchsize="10000",
        )  # fmt: skip
        consume(reader.load().drop("cut_at"))

    ours()
    jdbc()
    seconds: dict[str, list[float]] = {"ours": [], "jdbc": []}
    for number in range(rounds):
        for run in (ours, jdbc) if number % 2 == 0 else (jdbc, ours):
            seconds[run.__name__].append(timed(run))
    ratios = sorted(theirs / own for own, theirs in zip(seconds["ours"], seconds["jdbc"], strict=True))
    middle = statistics.median(ratios)
    print(
        f"horsies {release}, {count:,} attempts, {PARTITIONS} partitions: source "
        f"{statistics.median(seconds['ours']):.1f} s ({min(seconds['ours']):.1f} to {max(seconds['ours']):.1f}), JDBC "
        f"{statistics.median(seconds['jdbc']):.1f} s ({min(seconds['jdbc']):.1f} to {max(seconds['jdbc']):.1f}); "
        f"JDBC takes {middle:.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )
    return middle


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--attempts", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--jar", type=Path, default=Path("/usr/share/java/postgresql.jar"))
    given = arguments.parse_args()
    if not given.jar.exists():
        print(f"no JDBC driver at {given.jar}; Debian has one: apt-get install libpostgresql-jdbc-java")
        return 1
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "bench", durable=False) as postgres:
        folder = Path(name)
        databases = {release: make_database(postgres, release, given.attempts) for release in (IN_PLACE, MOVED)}
        services = folder / "services"
        services.touch(mode=0o600)
        for database in databases.values():
            lines = "".join(f"{key}={value}\n" for key, value in postgres.conninfo(database).items())
            services.write_text(f"{services.read_text()}[{database}]\n{lines}")
        os.environ.update(
            JAVA_HOME=str(find_java_home(folder / "java")), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP=LOOPBACK,
            PGSERVICEFILE=str(services),
        )  # fmt: skip
        from pyspark.sql import SparkSession

        from airflow_horsies.spark import HorsiesDataSource

        spark = (
            SparkSession.builder.master(f"local[{PARTITIONS}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", str(given.jar))
            .config("spark.driver.memory", "2g")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(HorsiesDataSource)
        ratios = [measure(spark, postgres, release, made, given.rounds) for release, made in databases.items()]
        spark.stop()
    print(json.dumps({"jdbc_vs_source": [round(ratio, 2) for ratio in ratios]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
