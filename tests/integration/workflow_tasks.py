"""Tasks and workflows of authors, on which the worker's side of workflows is tried."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from horsies import (
    OnError,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
    WorkflowSpec,
)

from airflow_horsies.worker import horsies_app, python_task, workflow

app = horsies_app(dead_after=timedelta(seconds=5))


@dataclass
class Month:
    start: date
    days: int


@python_task(app, "flights.fetch")
def fetch(*, start: date, days: int = 28, sleep: float = 0.0) -> Month:
    time.sleep(sleep)
    return Month(start, days)


@python_task(app, "flights.count")
def count(*, month: Month, factor: int = 1) -> int:
    return month.days * factor


@python_task(app, "flights.check")
def check(*, month: TaskResult[Month, TaskError], marker: str | None = None) -> bool:
    """Fails while the marker exists."""
    assert isinstance(month.ok_value, Month)
    if marker and Path(marker).exists():
        raise ValueError("the marker is there")
    return month.ok_value.start.year > 2000


@python_task(app, "flights.total")
def total(*, counted: int, checked: bool, workflow_meta: WorkflowMeta | None = None) -> dict[str, Any]:
    return {"counted": counted, "checked": checked, "workflow": workflow_meta and workflow_meta.workflow_id}


@python_task(app, "flights.pick")
def pick(*, workflow_ctx: WorkflowContext | None = None, plain: int = 3) -> int:
    assert workflow_ctx is not None
    return plain


@python_task(app, "flights.half")
def half(*, of: int) -> float:
    return of / 2


@workflow(app, "flights.month")
def month(
    app: Any, *, year: int, month: int = 1, days: int = 28, marker: str | None = None, pauses: bool = False
) -> WorkflowSpec[dict[str, Any]]:
    """The flights of a month."""
    fetched = TaskNode(fn=fetch, kwargs={"start": date(year, month, 1), "days": days}, node_id="fetch")
    counted = TaskNode(
        fn=count, waits_for=[fetched], args_from={"month": fetched}, kwargs={"factor": 2}, node_id="count"
    )
    checked = TaskNode(
        fn=check, waits_for=[fetched], args_from={"month": fetched}, kwargs={"marker": marker}, node_id="check"
    )
    picked = TaskNode(fn=pick, waits_for=[fetched], workflow_ctx_from=[fetched], node_id="pick")
    summed = TaskNode(
        fn=total,
        waits_for=[counted, checked, picked],
        args_from={"counted": counted, "checked": checked},
        node_id="total",
    )
    return app.workflow(  # type: ignore[no-any-return]
        "flights.month",
        tasks=[fetched, counted, checked, picked, summed],
        output=summed,
        on_error=OnError.PAUSE if pauses else OnError.FAIL,
    )


@workflow(app, "flights.year")
def year(app: Any, *, year: int, days: int = 28) -> WorkflowSpec[float]:
    """Returns a bare specification, with another workflow in it."""
    first = SubWorkflowNode(workflow_def=month, kwargs={"year": year, "days": days}, node_id="first")
    summed = TaskNode(fn=read_counted, waits_for=[first], args_from={"month": first}, node_id="read")
    halved = TaskNode(fn=half, waits_for=[summed], args_from={"of": summed}, node_id="half")
    return WorkflowSpec(name="flights.year", tasks=[first, summed, halved], output=halved)


@python_task(app, "flights.read_counted")
def read_counted(*, month: dict[str, Any]) -> int:
    return int(month["counted"])


@python_task(app, "flights.fail")
def fail(*, marker: str) -> int:
    if Path(marker).exists():
        raise ValueError("the marker is there")
    return 1


@python_task(app, "flights.take_failed")
def take_failed(*, value: int = 0) -> int:
    return value


@workflow(app, "flights.handling")
def handling(app: Any, *, marker: str) -> WorkflowSpec[int]:
    """Its second node runs although the first has failed, but wants a plain value of it."""
    failing = TaskNode(fn=fail, kwargs={"marker": marker}, node_id="fail")
    taking = TaskNode(
        fn=take_failed, waits_for=[failing], args_from={"value": failing}, allow_failed_deps=True, node_id="take"
    )
    return WorkflowSpec(name="flights.handling", tasks=[failing, taking], output=taking)


def start(key: str, parameters: dict[str, Any]) -> str:
    """Start a definition as Airflow does: as a node that waits for a node that begins."""
    from airflow_horsies.core.control import BEGIN

    begin = TaskNode(fn=app.tasks[BEGIN], kwargs={"definition_key": key}, node_id="begin")
    definition: Any = {"flights.month": month, "flights.year": year, "flights.handling": handling}[key]
    node: Any = SubWorkflowNode(workflow_def=definition, waits_for=[begin], kwargs=parameters, node_id="workflow")
    wrapper = app.workflow(
        f"airflow:{key}", tasks=[begin, node], output=node, definition_key="airflow_horsies.wrapper.v1"
    )
    started: Any = wrapper.start()
    return str(started.unwrap().workflow_id)


if __name__ == "__main__":
    import json

    print(start(sys.argv[1], json.loads(sys.argv[2])), flush=True)
    os._exit(0)
