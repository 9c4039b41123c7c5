"""The demo: runs the example pipeline on the whole stack in one folder, and prints a summary."""

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
from airflow_horsies.embedded.story import ALL_DAYS, DAILY, LAKE, REPORTS, WORKER_APP, Outcome, run_story
from airflow_horsies.embedded.worker import HorsiesWorker

DEFAULT_FOLDER = Path(".demo")
START_FOLDER = Path(".horsies")
IDENTITY = "identity.json"
WATCH_SECONDS = 1.0
COLUMNS = ("TASK", "STATE", "ATTEMPT", "OUTCOME", "SECONDS", "RESULT OR ERROR")
WIDEST_CELL = 75
ONE_INTERRUPT_SECONDS = 1.0

_interrupted_at = float("-inf")


def run(folder: Path, *, once: bool, dags_folder: Path, days: int = ALL_DAYS, end_with_parent: bool = False) -> int:
    """Start everything, run the pipeline, print a summary, and wait for Ctrl-C unless ``once``."""
    if not (dags_folder / "flights").is_dir():
        raise EmbeddedError(
            f"The example pipeline is not in {dags_folder.absolute()}. Run the demo in the project's folder, or set "
            "--dags to the folder of its DAGs."
        )
    _interrupt_on_signals()
    if end_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    print(f"airflow-horsies demo in {folder.absolute()}")
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
            outcome = run_story(stack.airflow.base_url, progress, days)
            print_summary(outcome, (time.monotonic() - began) / 60)
            for problem in outcome.problems:
                print(f"error: {problem} See Airflow and the worker's log.")
            _print_addresses(stack, outcome)
            ready = True
            if not once:
                print("\nPress Ctrl-C to stop everything. The data is kept for the next run.", flush=True)
                _watch(stack)
        return 1 if outcome.problems else 0
    except KeyboardInterrupt:
        return 0 if ready else 130
    finally:
        _stop(stack, progress)


def start(folder: Path, *, app: str, dags_folder: Path) -> int:
    """Start everything for your own tasks and DAGs, and wait for Ctrl-C."""
    _interrupt_on_signals()
    print(f"airflow-horsies in {folder.absolute()}")
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
            print("\nAddresses (no login; reachable from this machine only):")
            _print_places(stack)
            ready = True
            print("\nPress Ctrl-C to stop everything. The data is kept for the next run.", flush=True)
            _watch(stack)
        return 0
    except KeyboardInterrupt:
        return 0 if ready else 130
    finally:
        _stop(stack, progress)


def kept_namespace(folder: Path) -> str:
    """The namespace of this Airflow, stored with its data, as its address changes if its port is taken."""
    if folder.exists() and not _is_stack(folder) and any(folder.iterdir()):
        raise EmbeddedError(
            f"{folder.absolute()} contains files that are not the data of a stack. Use an empty folder, or one "
            "that does not exist."
        )
    make_folder(folder)
    # Data of an earlier release has no namespace of its own.
    namespace = "default" if (folder / "airflow").exists() else f"demo-{secrets.token_hex(4)}"
    return kept_json(folder / IDENTITY, {"namespace": namespace})["namespace"]


def clean(folder: Path) -> None:
    """Delete all data of a stack; raises an error if it is running."""
    if not folder.exists():
        return
    if not _is_stack(folder):
        raise EmbeddedError(
            f"{folder.absolute()} does not contain the data of a stack. Nothing was deleted. Check the folder."
        )
    EmbeddedPostgres(folder, durable=True).delete()
    shutil.rmtree(folder)


def _is_stack(folder: Path) -> bool:
    return any((folder / name).exists() for name in (IDENTITY, "postgres.lock"))


def print_summary(outcome: Outcome, minutes: float) -> None:
    """Print a short summary of the demo."""
    month, models, report = outcome.month, outcome.models, outcome.report
    print(
        f"\nThe pipeline processed {outcome.days['success']} days of January 2013 in {minutes:.1f} minutes: "
        f"{month['flights']:,} flights,\n{month['cancelled']:,} of them cancelled. The quality gate quarantined "
        f"{outcome.quarantined:,} rows."
    )
    print("\nOn 8 January the weather service did not answer. horsies retried the task:\n")
    print(attempts_table([outcome.healed]))
    slopes = ", ".join(f"{origin} {minutes:+.2f}" for origin, minutes in sorted(models["minutes_per_hour"].items()))
    left_out = ", ".join(f"{airport} ({code})" for airport, code in models["left_out"].items())
    print(
        f"\nOne workflow fitted a model of delays for each airport, in minutes per hour of the day:\n{slopes}. Three "
        f"of its four branches were enough; it went on without {left_out}.\nThen it held no worker until "
        f"{models['approved_by']} sent the signal of approval, and published {models['models']} models."
    )
    print("\nThe data of 1 February is damaged. A retry does not help, and the task is listed under dead letters:\n")
    print(attempts_table([outcome.broken]))
    print(
        f"\nThe reliability report counts {report['tasks']:,} tasks, of which {report['success_rate']:.1%} completed. "
        f"Retries: {report['retries']}. The report is in:\n  {report['page']}"
    )


def attempts_table(tasks: Sequence[TaskView]) -> str:
    """A table with one line for each attempt, grouped by task."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for task in tasks:
        first = (task.task_name, str(task.state))
        for attempt in task.attempts:
            text = f"{attempt.error_code}: {attempt.error_message}" if attempt.error_code else _result(task)
            text = _shortened(text) + (" (retried)" if attempt.will_retry else "")
            rows.append((*first, str(attempt.number), attempt.outcome, f"{attempt.duration_seconds:.2f}", text))
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
        f"\n  Airflow is running: {base_url} (no login; reachable from this machine only)."
        f"\n  Open {base_url}/dags/{DAILY} and select a task of a run. Its Horsies tab shows what the worker does.\n",
        flush=True,
    )


def _print_addresses(stack: EmbeddedStack, outcome: Outcome) -> None:
    print("\nAddresses (no login; reachable from this machine only):")
    width = max(map(len, outcome.links))
    for title, link in outcome.links.items():
        print(f"  {title:{width}}  {link}")
    print()
    _print_places(stack)


def _print_places(stack: EmbeddedStack) -> None:
    print(f"  Airflow   {stack.airflow.base_url}")
    print(f"  Logs      {stack.airflow.folder / 'logs'}")
    print(f"            {stack.worker.process.log}")
    print(f"  Settings  {stack.folder / 'environment'}   (for a shell: set -a; . FILE; airflow …)", flush=True)


def _stop(stack: EmbeddedStack, progress: Progress) -> None:
    # Stopping takes seconds and must not be interrupted.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with progress.step("Stopping everything"):
        stack.stop()


@contextlib.contextmanager
def _kept_running(worker: HorsiesWorker) -> Iterator[None]:
    """Restart a worker that ends or is killed, like a service manager."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(WATCH_SECONDS):
            if not worker.process.running:
                print(f"\n  The worker ended with exit code {worker.process.exit_code}. Restarting it.", flush=True)
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
    """Wait until interrupted, or until a process ends unexpectedly."""
    while True:
        for process in (stack.postgres.process, *stack.airflow.processes.values()):
            if not process.running:
                raise EmbeddedError(
                    f"{process.name} ended unexpectedly with exit code {process.exit_code}.{process.log_tail()}"
                )
        time.sleep(WATCH_SECONDS)


def _interrupt_on_signals() -> None:
    # Also SIGINT, as shells make background processes ignore it. A SIGHUP that nohup ignores stays ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # One Ctrl-C or a closed terminal can send several signals. Only the first one counts.
    global _interrupted_at
    before, _interrupted_at = _interrupted_at, time.monotonic()
    if _interrupted_at - before > ONE_INTERRUPT_SECONDS:
        raise KeyboardInterrupt
