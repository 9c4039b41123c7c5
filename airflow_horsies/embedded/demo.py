"""The demo: the whole stack in one folder, the example pipeline through it, and what happened in the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import psycopg

from airflow_horsies.core.environment import REPORT_FOLDER
from airflow_horsies.core.task import TaskView
from airflow_horsies.embedded.airflow import kept_json
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.guard import PR_SET_PDEATHSIG, prctl
from airflow_horsies.embedded.postgres import EmbeddedPostgres, make_folder
from airflow_horsies.embedded.progress import Progress
from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.embedded.story import ALL_DAYS, DAILY, LAKE, REPORTS, WORKER_APP, Outcome, tell_story
from airflow_horsies.embedded.worker import HorsiesWorker

DEFAULT_FOLDER = Path(".demo")
START_FOLDER = Path(".horsies")
WATCH_SECONDS = 1.0
COLUMNS = ("TASK", "STATE", "ATTEMPT", "OUTCOME", "SECONDS", "RESULT OR ERROR")
WIDEST_CELL = 75
ONE_INTERRUPT_SECONDS = 1.0

_interrupted_at = float("-inf")


def run(folder: Path, *, once: bool, dags_folder: Path, days: int = ALL_DAYS, end_with_parent: bool = False) -> int:
    """Bring everything up, tell the story, sum it up; then stay until Ctrl-C, unless ``once``."""
    if not (dags_folder / "flights").is_dir():
        raise EmbeddedError(
            f"The example pipeline is not in {dags_folder.absolute()}: run the demo in the project's folder, or give "
            "--dags the folder of its DAGs."
        )
    _interrupt_on_signals()
    if end_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    print(f"airflow-horsies demo, in {folder.absolute()}")
    progress = Progress()
    ready = False
    stack = EmbeddedStack(
        folder,
        durable=True,
        dags_folder=dags_folder,
        worker_app=WORKER_APP,
        worker_environ={
            "PYTHONPATH": str(dags_folder.absolute()),
            "FLIGHTS_LAKE": str(folder.absolute() / LAKE),
            REPORT_FOLDER: str(folder.absolute() / REPORTS),
        },
        all_admins=True,
        namespace=kept_namespace(folder),
        step=progress.step,
    )
    began = time.monotonic()
    try:
        stack.start()
        os.environ.update(stack.environ())
        _print_first_look(stack.airflow.base_url)
        with _kept_running(stack.worker):
            outcome = tell_story(stack.airflow.base_url, progress, days)
            print_summary(outcome, (time.monotonic() - began) / 60)
            for problem in outcome.problems:
                print(f"error: it is not so that {problem}; Airflow and the worker's log tell more")
            _print_addresses(stack, outcome)
            ready = True
            if not once:
                print("\nCtrl-C stops everything; the data stay for the next time.", flush=True)
                _watch(stack)
        return 1 if outcome.problems else 0
    except KeyboardInterrupt:
        return 0 if ready else 130
    finally:
        _stop(stack, progress)


def start(folder: Path, *, app: str, dags_folder: Path) -> int:
    """Bring everything up for tasks and DAGs of one's own, and stay until Ctrl-C."""
    _interrupt_on_signals()
    print(f"airflow-horsies, in {folder.absolute()}")
    progress = Progress()
    stack = EmbeddedStack(
        folder,
        durable=True,
        dags_folder=dags_folder,
        worker_app=app,
        worker_environ={"PYTHONPATH": str(Path.cwd())},
        all_admins=True,
        namespace=kept_namespace(folder),
        step=progress.step,
    )
    ready = False
    try:
        stack.start()
        with _kept_running(stack.worker):
            print("\nTo open (no log-in; reachable from this machine only):")
            _print_places(stack)
            ready = True
            print("\nCtrl-C stops everything; the data stay for the next time.", flush=True)
            _watch(stack)
        return 0
    except KeyboardInterrupt:
        return 0 if ready else 130
    finally:
        _stop(stack, progress)


def kept_namespace(folder: Path) -> str:
    """Who this Airflow is, kept with its data: its address changes when another program has taken its port."""
    make_folder(folder)
    # Data of an earlier release have no namespace of their own.
    namespace = "default" if (folder / "airflow").exists() else f"demo-{secrets.token_hex(4)}"
    return kept_json(folder / "identity.json", {"namespace": namespace})["namespace"]


def clean(folder: Path) -> None:
    """Delete the demo's data, wherever they are; an error if the demo is running."""
    if not folder.exists():
        return
    if not (folder / "postgres.lock").exists():
        raise EmbeddedError(f"{folder.absolute()} holds no demo; it is left as it is.")
    EmbeddedPostgres(folder, durable=True).delete()
    shutil.rmtree(folder)


def print_summary(outcome: Outcome, minutes: float) -> None:
    """What happened, in a few lines."""
    month, report = outcome.month, outcome.report
    print(
        f"\nIn {minutes:.1f} minutes {outcome.days['success']} days of January 2013 went through the pipeline: "
        f"{month['flights']:,} flights,\n{month['cancelled']:,} of them cancelled, and "
        f"{outcome.quarantined:,} rows kept aside by the quality gate."
    )
    print("\nOn 8 January the weather service did not answer. horsies tried again:\n")
    print(attempts_table([outcome.healed]))
    print("\nThe delivery of 1 February is damaged. No retry heals that, and it waits in the dead letters:\n")
    print(attempts_table([outcome.broken]))
    print(
        f"\nThe reliability report counts {report['tasks']:,} tasks, {report['success_rate']:.1%} of them completed. "
        f"Retries: {report['retries']}. The page:\n  {report['page']}"
    )


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


def _print_first_look(base_url: str) -> None:
    print(
        f"\n  Airflow is up: {base_url} (no log-in; reachable from this machine only)."
        f"\n  To look at meanwhile: {base_url}/dags/{DAILY}. Open any task of a run; its tab Horsies shows what the "
        "worker does.\n",
        flush=True,
    )


def _print_addresses(stack: EmbeddedStack, outcome: Outcome) -> None:
    print("\nTo open (no log-in; reachable from this machine only):")
    width = max(map(len, outcome.links))
    for title, link in outcome.links.items():
        print(f"  {title:{width}}  {link}")
    print()
    _print_places(stack)


def _print_places(stack: EmbeddedStack) -> None:
    print(f"  Airflow   {stack.airflow.base_url}")
    print(f"  Logs      {stack.airflow.folder / 'logs'}")
    print(f"            {stack.worker.process.log}")
    print(f"  Settings  {stack.folder / 'environment'}   (for a shell: set -a; . that file; airflow …)", flush=True)


def _stop(stack: EmbeddedStack, progress: Progress) -> None:
    # The stop takes seconds and must not be cut short.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with progress.step("Stopping everything"):
        stack.stop()


@contextlib.contextmanager
def _kept_running(worker: HorsiesWorker) -> Iterator[None]:
    """As a service manager would: a worker that ends or is killed is started again."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(WATCH_SECONDS):
            if not worker.process.running:
                print(f"\n  The worker ended (exit code {worker.process.exit_code}) and is started again", flush=True)
                with contextlib.suppress(psycopg.Error, EmbeddedError):
                    worker.start()

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _watch(stack: EmbeddedStack) -> None:
    """Stay until interrupted, or until a part ends by itself."""
    while True:
        for process in (stack.postgres.process, *stack.airflow.processes.values()):
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
