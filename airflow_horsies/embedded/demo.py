"""The demo: the whole stack in one folder, a few tasks through the hook, and their attempts in the terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.guard import PR_SET_PDEATHSIG, prctl
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.progress import Progress
from airflow_horsies.embedded.stack import CONNECTION_ID, EmbeddedStack
from airflow_horsies.models import RetryPolicy, TaskSpec, TaskState, TaskView

if TYPE_CHECKING:
    from airflow_horsies.hook import HorsiesHook

DEFAULT_FOLDER = Path(".demo")
TASKS_SECONDS = 180.0
WATCH_SECONDS = 1.0
PAGE = 500
COLUMNS = ("TASK", "STATE", "ATTEMPT", "OUTCOME", "SECONDS", "RESULT OR ERROR")
WIDEST_CELL = 75
ONE_INTERRUPT_SECONDS = 1.0

_interrupted_at = float("-inf")


@dataclass(frozen=True, slots=True)
class Sample:
    """A task of the demo, what it shows and how it should end."""

    shows: str
    spec: TaskSpec
    expected: TaskState
    attempts: int = 1


def run(folder: Path, *, once: bool, dags_folder: Path | None = None, end_with_parent: bool = False) -> int:
    """Bring everything up, run the sample tasks, show them; then stay until Ctrl-C, unless ``once``."""
    _interrupt_on_signals()
    if end_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    print(f"airflow-horsies demo, in {folder.absolute()}")
    progress = Progress()
    ready = False
    stack = EmbeddedStack(folder, durable=True, dags_folder=dags_folder, all_admins=True, step=progress.step)
    try:
        stack.start()
        os.environ.update(stack.environ())
        as_expected = _run_samples(progress)
        _print_addresses(stack)
        ready = True
        if not once:
            print("\nCtrl-C stops everything; the data stay for the next time.", flush=True)
            _watch(stack)
        return 0 if as_expected else 1
    except KeyboardInterrupt:
        return 0 if ready else 130
    finally:
        # The stop takes seconds and must not be cut short.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with progress.step("Stopping everything"):
            stack.stop()


def clean(folder: Path) -> None:
    """Delete the demo's data, wherever they are; an error if the demo is running."""
    if not folder.exists():
        return
    if not (folder / "postgres.lock").exists():
        raise EmbeddedError(f"{folder.absolute()} holds no demo; it is left as it is.")
    EmbeddedPostgres(folder, durable=True).delete()
    shutil.rmtree(folder)


def samples() -> list[Sample]:
    """One task of each kind."""
    return [
        Sample(
            "a plain task",
            TaskSpec(task_name="sample.add", kwargs={"a": 19, "b": 23}),
            TaskState.COMPLETED,
        ),
        Sample(
            "a failure that a retry heals",
            TaskSpec(
                task_name="sample.fail_once",
                kwargs={"key": str(uuid.uuid4())},
                retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["TRY_AGAIN"], jitter=False),
            ),
            TaskState.COMPLETED,
            attempts=2,
        ),
        Sample(
            "a failure for good",
            TaskSpec(
                task_name="sample.fail_always",
                kwargs={"reason": "this task always fails"},
                retry_policy=RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False),
            ),
            TaskState.FAILED,
            attempts=2,
        ),
        Sample(
            "PySpark",
            TaskSpec(task_name="sample.count_by_remainder", kwargs={"rows": 1_000_000, "divisor": 3}),
            TaskState.COMPLETED,
        ),
    ]


def _run_samples(progress: Progress) -> bool:
    # Only now: Airflow reads its settings from the environment when it is imported.
    from airflow_horsies.hook import HorsiesHook

    asked = samples()
    with HorsiesHook(CONNECTION_ID) as hook:
        earlier = _count_tasks(hook)
        with progress.step(f"Running {len(asked)} tasks through the hook (the first use of Spark takes a while)"):
            ids = [hook.enqueue(sample.spec) for sample in asked]
            tasks = hook.wait(ids, timeout_seconds=TASKS_SECONDS)
    if earlier:
        print(f"\n{earlier} task(s) of earlier runs are still in the database.")
    print("\n" + attempts_table(tasks))
    as_expected = True
    for sample, task in zip(asked, tasks, strict=True):
        if (task.state, len(task.attempts)) != (sample.expected, sample.attempts):
            as_expected = False
            print(
                f"error: {sample.shows} ({task.task_name}) ended {task.state} after {len(task.attempts)} attempt(s), "
                f"not {sample.expected} after {sample.attempts}; see the worker's log"
            )
    return as_expected


def attempts_table(tasks: Sequence[TaskView]) -> str:
    """One line for each attempt, under the task it belongs to."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for task in tasks:
        first = (task.task_name, str(task.state))
        for attempt in task.attempts:
            told = f"{attempt.error_code}: {attempt.error_message}" if attempt.error_code else _result(task)
            told = _shortened(told) + (" (retried)" if attempt.will_retry else "")
            rows.append((*first, str(attempt.number), attempt.outcome, f"{attempt.duration_seconds:.2f}", told))
            first = ("", "")
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _result(task: TaskView) -> str:
    return json.dumps(task.result.ok, ensure_ascii=False) if task.result else ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDEST_CELL else line[: WIDEST_CELL - 1] + "…"


def _count_tasks(hook: HorsiesHook) -> int:
    page = hook.list_tasks(limit=PAGE)
    count = len(page.tasks)
    while page.next:
        page = hook.list_tasks(limit=PAGE, before=page.next)
        count += len(page.tasks)
    return count


def _print_addresses(stack: EmbeddedStack) -> None:
    print(f"\n  Airflow   {stack.airflow.base_url}   (no log-in; reachable from this machine only)")
    print(f"  Logs      {stack.airflow.folder / 'logs'}")
    print(f"            {stack.worker.process.log}")
    print(f"  Settings  {stack.folder / 'environment'}   (for a shell: set -a; . that file; airflow …)", flush=True)


def _watch(stack: EmbeddedStack) -> None:
    """Stay until interrupted, or until a part ends by itself."""
    while True:
        for process in (stack.postgres.process, stack.worker.process, *stack.airflow.processes.values()):
            if not process.running:
                raise EmbeddedError(
                    f"{process.name} ended by itself with exit code {process.exit_code}.{process.log_tail()}"
                )
        time.sleep(WATCH_SECONDS)


def _interrupt_on_signals() -> None:
    # SIGINT too, as shells have their background processes ignore it; but what nohup set stays.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # One Ctrl-C, or a terminal that closes, can reach us as several signals: only the first of them counts.
    global _interrupted_at
    before, _interrupted_at = _interrupted_at, time.monotonic()
    if _interrupted_at - before > ONE_INTERRUPT_SECONDS:
        raise KeyboardInterrupt
