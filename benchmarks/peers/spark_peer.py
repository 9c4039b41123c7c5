"""Runs the short Spark job as Airflow's own operators do, each time in a fresh process, as a task is; see Peer.

A task's process is forked from one that has Airflow and the operator imported, so the clock starts at execute().
"""

import os
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
JOB = Path(__file__).parents[1] / "spark_job.py"
sys.path.insert(0, str(JOB.parent))


def with_spark_submit() -> None:
    SparkSubmitOperator(task_id="job", application=str(JOB)).execute({})


def with_task_pyspark() -> None:
    def job(spark):  # type: ignore[no-untyped-def]
        from spark_job import count_and_aggregate

        return count_and_aggregate(spark)

    PySparkOperator(task_id="job", python_callable=job, conn_id="spark_default").execute({})


def with_connect() -> None:
    from pyspark.sql import SparkSession
    from spark_job import count_and_aggregate

    session = SparkSession.builder.remote(os.environ["PEER_CONNECT"]).getOrCreate()
    count_and_aggregate(session)
    session.stop()


WAYS = {"spark_submit": with_spark_submit, "task_pyspark": with_task_pyspark, "connect": with_connect}


def seconds_in_fresh_process(way: str) -> float:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # What a job prints is not for the one who asked for seconds.
        os.dup2(2, 1)
        begun = time.perf_counter()
        WAYS[way]()
        os.write(write_end, str(time.perf_counter() - begun).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return float(said)


if __name__ == "__main__":
    way = os.environ["PEER_WAY"]
    if way != "connect":
        from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    for _ in sys.stdin:
        print(seconds_in_fresh_process(way), flush=True)
