"""Tasks and workflows that real workers of every supported release run for the tests."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from horsies import (
    AppConfig,
    Horsies,
    JsonValue,
    OnError,
    PostgresConfig,
    RecoveryConfig,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
)


def retention() -> dict[str, Any]:
    """How long a workflow may be paused, where the release has such a setting and the test wants it."""
    seconds = os.environ.get("PAUSED_AT_MOST")
    if seconds is None:
        return {}
    from horsies.core.models.retention import RetentionConfig

    return {"retention": RetentionConfig(paused_workflow_auto_cancel_after=timedelta(seconds=float(seconds)))}


app = Horsies(
    AppConfig(
        **retention(),
        broker=PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]),
        recovery=RecoveryConfig(
            runner_heartbeat_interval_ms=1_000,
            claimer_heartbeat_interval_ms=1_000,
            running_stale_threshold_ms=4_000,
            claimed_stale_threshold_ms=4_000,
            check_interval_ms=1_000,
            worker_state_snapshot_interval_ms=1_000,
        ),
    ),
)

KNOWN = {"contract.child", "contract.diamond", "contract.loose", "contract.marked", "contract.outer"}


@app.task("airflow_horsies.begin")
def begin(*, definition_key: str) -> TaskResult[None, TaskError]:
    if definition_key not in KNOWN:
        return TaskResult(err=TaskError(error_code="WORKFLOW_NOT_REGISTERED", message=f"no {definition_key}"))
    return TaskResult(ok=None)


@app.task("w.fetch")
def fetch(*, n: int, sleep: float = 0.0) -> TaskResult[int, TaskError]:
    time.sleep(sleep)
    return TaskResult(ok=n)


@app.task("w.text")
def text(*, value: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=value)


@app.task("w.double")
def double(*, x: TaskResult[int, TaskError], sleep: float = 0.0) -> TaskResult[int, TaskError]:
    time.sleep(sleep)
    if x.is_err():
        return TaskResult(err=TaskError(error_code="NO_INPUT", message="there is nothing to double"))
    return TaskResult(ok=x.ok_value * 2)


@app.task("w.check")
def check(*, x: TaskResult[int, TaskError], marker: str = "") -> TaskResult[int, TaskError]:
    """Fails as long as the file is there."""
    if marker and Path(marker).exists():
        return TaskResult(err=TaskError(error_code="BROKEN", message="the marker is there", data={"marker": marker}))
    return TaskResult(ok=x.ok_value + 100)


@app.task("w.fail")
def fail(*, code: str = "BROKEN") -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message="asked to fail"))


@app.task("w.retried", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["LATER"], jitter=False))
def retried() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="LATER", message="not yet"))


@app.task("w.die")
def die(*, marker: str) -> TaskResult[int, TaskError]:
    """Kills its own process the first time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=1)


@app.task("w.sum")
def add(*, a: TaskResult[int, TaskError], b: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a.ok_value + b.ok_value)


@app.task("w.count")
def count() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)


@app.task("w.mark")
def mark(*, path: str) -> TaskResult[None, TaskError]:
    """Leaves a line of each run."""
    with Path(path).open("a") as marks:
        marks.write("ran\n")
    return TaskResult(ok=None)


@app.task("w.gated")
def gated(*, path: str) -> TaskResult[None, TaskError]:
    """Runs until the test lets it go."""
    while not Path(path).exists():
        time.sleep(0.05)
    return TaskResult(ok=None)


class Child(WorkflowDefinition[int]):
    name = "child"
    definition_key = "contract.child"

    @classmethod
    def build_with(
        cls, app: Any, *, n: int, sleep: float = 0.0, marker: str = "", on_error: str = "fail", **_: JsonValue
    ) -> WorkflowSpec[int]:
        a = TaskNode(fn=fetch, kwargs={"n": n, "sleep": sleep}, node_id="seed")
        b = TaskNode(fn=check, waits_for=[a], args_from={"x": a}, kwargs={"marker": marker}, node_id="check")
        return WorkflowSpec(name=cls.name, tasks=[a, b], output=b, on_error=OnError(on_error))


class Diamond(WorkflowDefinition[int]):
    """fetch before left and right, join after them, and a child beside; total = join + child."""

    name = "diamond"
    definition_key = "contract.diamond"

    @classmethod
    def build_with(
        cls, app: Any, *, n: int = 1, sleep: float = 0.0, marker: str = "", on_error: str = "fail", **_: JsonValue
    ) -> WorkflowSpec[int]:
        f = TaskNode(fn=fetch, kwargs={"n": n, "sleep": sleep}, node_id="fetch")
        left = TaskNode(fn=double, waits_for=[f], args_from={"x": f}, kwargs={"sleep": sleep}, node_id="left")
        right = TaskNode(fn=check, waits_for=[f], args_from={"x": f}, kwargs={"marker": marker}, node_id="right")
        join = TaskNode(fn=add, waits_for=[left, right], args_from={"a": left, "b": right}, node_id="join")
        child = SubWorkflowNode(workflow_def=Child, kwargs={"n": n, "sleep": sleep}, node_id="child")
        total = TaskNode(fn=add, waits_for=[join, child], args_from={"a": join, "b": child}, node_id="total")
        return WorkflowSpec(
            name=cls.name, tasks=[f, left, right, join, child, total], output=total, on_error=OnError(on_error)
        )


class Outer(WorkflowDefinition[int]):
    """A workflow around a child that may pause."""

    name = "outer"
    definition_key = "contract.outer"

    @classmethod
    def build_with(cls, app: Any, *, marker: str, on_error: str = "pause", **_: JsonValue) -> WorkflowSpec[int]:
        child = SubWorkflowNode(
            workflow_def=Child, kwargs={"n": 1, "marker": marker, "on_error": on_error}, node_id="inner"
        )
        return WorkflowSpec(name=cls.name, tasks=[child], output=child)


class Loose(WorkflowDefinition[None]):
    """A workflow without an output node."""

    name = "loose"
    definition_key = "contract.loose"

    @classmethod
    def build_with(cls, app: Any, **_: JsonValue) -> WorkflowSpec[None]:
        a = TaskNode(fn=fetch, kwargs={"n": 1}, node_id="first")
        b = TaskNode(fn=fetch, kwargs={"n": 2}, node_id="second")
        return WorkflowSpec(name=cls.name, tasks=[a, b])


class Marked(WorkflowDefinition[int]):
    """A workflow that leaves a line of each run."""

    name = "marked"
    definition_key = "contract.marked"

    @classmethod
    def build_with(cls, app: Any, *, path: str, **_: JsonValue) -> WorkflowSpec[int]:
        a = TaskNode(fn=mark, kwargs={"path": path}, node_id="mark")
        b = TaskNode(fn=count, waits_for=[a], node_id="next")
        return WorkflowSpec(name=cls.name, tasks=[a, b], output=b)
