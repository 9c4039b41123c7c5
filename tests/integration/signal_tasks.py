"""Tasks that wait for signals, and keep checkpoints."""

from __future__ import annotations

import os
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from horsies import JsonValue, TaskError, TaskNode, TaskResult

from airflow_horsies.client.mailbox import Answer, MailboxClient
from airflow_horsies.worker import (
    TaskFault,
    checkpoint,
    horsies_app,
    last_checkpoint,
    park_for,
    park_until,
    python_task,
    receive,
    signal_node,
    sleep_node,
)
from airflow_horsies.worker.parking import Parker

app = horsies_app(dead_after=timedelta(seconds=5))
# A pause between the look for a signal and the end of the attempt.
PAUSE = float(os.environ.get("PAUSE_WHILE_PARKING", "0"))

if PAUSE:
    park = MailboxClient.park

    def park_slowly(self: MailboxClient, *args: Any, **options: Any) -> Answer:
        answer = park(self, *args, **options)
        time.sleep(random.uniform(0, PAUSE))
        return answer

    MailboxClient.park = park_slowly  # type: ignore[method-assign]


if os.environ.get("DIES_WHILE_PARKING"):
    # As if each process died after the end of an attempt that parks, before it could set when the task resumes.
    Parker.add = lambda self, parked: None  # type: ignore[method-assign]


@python_task(app, "add")
def add(*, a: int, b: int) -> int:
    return a + b


@python_task(app, "nap")
def nap(*, seconds: float) -> None:
    time.sleep(seconds)


@python_task(app, "receive_here")
def receive_here(*, name: str = "go", timeout: float | None = None) -> Any:
    print("receiving", flush=True)
    return receive(name, timeout=timeout)


@python_task(app, "park_here", parks=True)
def park_here(*, name: str = "go", timeout: float | None = None) -> Any:
    return park_until(name, timeout=timeout)


@python_task(app, "park_twice", parks=True)
def park_twice() -> list[Any]:
    return [park_until("first"), park_until("second"), park_until("first")]


@python_task(app, "park_and_clean_up", parks=True)
def park_and_clean_up(*, marker: str) -> Any:
    """As careless code does: it catches what it can."""
    try:
        return park_until("go")
    except Exception:
        return "caught"
    finally:
        Path(marker).touch()


@python_task(app, "sleep_here", parks=True)
def sleep_here(*, seconds: float) -> float:
    began = last_checkpoint()
    if began is None:
        began = time.time()
        checkpoint(began)
    park_for(seconds)
    return time.time() - began


@python_task(app, "fail_between", parks=True)
def fail_between(*, failures: int) -> int:
    """Parks, and fails in between: its own retries are not used up by parking."""
    failed = last_checkpoint(default=0)
    for number in range(failures):
        park_until(f"go.{number}")
        if failed <= number:
            checkpoint(number + 1)
            raise TaskFault("AGAIN", f"failure {number + 1}")
    return failures


@python_task(app, "die_after_receiving", parks=True)
def die_after_receiving(*, marker: str) -> Any:
    """Its process is killed once, after it has consumed the signal."""
    value = park_until("go")
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@python_task(app, "count_up")
def count_up(*, to: int, die_at: int = -1, fail_at: int = -1, nap: float = 0.0) -> dict[str, int]:
    """Keeps a checkpoint of each step, and dies or fails in the middle of the first attempt."""
    start = last_checkpoint(default=0)
    for number in range(start, to):
        checkpoint(number + 1)
        time.sleep(nap)
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == fail_at:
            raise TaskFault("AGAIN", "in the middle")
    return {"began_at": start, "ended_at": to}


@python_task(app, "keep")
def keep(*, size: int) -> int:
    checkpoint("x" * size)
    return len(last_checkpoint())


@app.task("use")
def use(*, given: TaskResult[JsonValue, TaskError]) -> TaskResult[JsonValue, TaskError]:
    return TaskResult(ok={"got": given.ok_value if given.is_ok() else str(given.err_value.error_code)})


@python_task(app, "start_approval")
def start_approval(*, timeout: float | None = None, nap: float = 0.0) -> str:
    """Start a workflow whose first node waits for a signal; returns its id."""
    approved = signal_node(app, "approved", timeout=timeout, node_id="approved")
    slept = sleep_node(app, nap, waits_for=[approved], allow_failed_deps=True, node_id="slept")
    used = TaskNode(
        fn=app.tasks["use"],
        waits_for=[approved, slept],
        args_from={"given": approved},
        allow_failed_deps=True,
        node_id="use",
    )
    nodes = [approved, slept, used]
    spec = app.workflow("approval", tasks=nodes, output=used, definition_key="test.approval.v1")
    started = spec.start()
    return str(started.ok_value.workflow_id)
