"""The tasks of the examples, and a few that tests need."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flights.worker import app
from horsies import Horsies, TaskError, TaskNode, TaskResult, WorkflowSpec
from pyspark.sql import SparkSession
from workflow_tasks import groups as _known_workflow  # noqa: F401

from airflow_horsies.borrowed.horsies import JsonValue
from airflow_horsies.worker import progress, python_task, spark_task, workflow


@app.task("acceptance.sleep")
def sleep(*, seconds: float) -> TaskResult[float, TaskError]:
    time.sleep(seconds)
    return TaskResult(ok=seconds)


@app.task("acceptance.fail")
def fail(*, code: str, message: str = "asked to fail") -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))


@app.task("acceptance.need_file")
def need_file(*, path: str) -> TaskResult[str, TaskError]:
    """Fails until the test has made the file."""
    if Path(path).exists():
        return TaskResult(ok=path)
    return TaskResult(err=TaskError(error_code="NO_FILE", message=f"there is no file {Path(path).name}"))


@app.task("acceptance.wait_for_file")
def wait_for_file(*, path: str) -> TaskResult[str, TaskError]:
    """Runs until the test lets it go."""
    while not Path(path).exists():
        time.sleep(0.05)
    return TaskResult(ok=Path(path).name)


@spark_task(app, "acceptance.slow_count")
def slow_count(spark: SparkSession, *, steps: int) -> int:
    """Says how far it is, a step a second."""
    for step in range(steps):
        print(f"step {step} begins")
        progress(step, steps, f"step {step}")
        spark.range(1000).count()
        time.sleep(1)
    return steps


@python_task(app, "acceptance.count_run")
def count_run(*, folder: str, number: int, total: int, failures: int) -> int:
    """Leaves a mark of each run. Until the test has mended it, so many of all runs fail, the last one among them; the
    worker has one process."""
    with Path(folder, f"run-{number}").open("a") as marks:
        marks.write("ran\n")
    left = total - len(list(Path(folder).glob("run-*")))
    every = total // failures
    if not Path(folder, "mended").exists() and left % every == 0 and left // every < failures:
        Path(folder, f"failed-{number}").touch()
        raise RuntimeError("planned to fail")
    return number


@app.task("acceptance.echo")
def echo(*, text: str) -> TaskResult[JsonValue, TaskError]:
    """Returns the value of the JSON text."""
    return TaskResult(ok=json.loads(text))


@python_task(app, "acceptance.say")
def say(*, text: str) -> str:
    print(f"I say {text}")
    return text


@workflow(app, "acceptance.pair")
def pair(app: Horsies, *, text: str) -> WorkflowSpec[str]:
    first = TaskNode(fn=say, kwargs={"text": f"{text}, first"}, node_id="first")
    second = TaskNode(fn=say, kwargs={"text": f"{text}, second"}, waits_for=[first], node_id="second")
    return app.workflow("acceptance.pair", tasks=[first, second], output=second)
