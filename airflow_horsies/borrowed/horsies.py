"""Private parts of horsies that workers use; read in 0.5.4."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import FrameType

from horsies import Horsies
from horsies.core import cli
from horsies.core.codec.json_value import JsonValue, StrictJsonError
from horsies.core.codec.kwargs import decode_kwargs
from horsies.core.exception_mapper import resolve_exception_error_code
from horsies.core.models.tasks import BUILTIN_CODE_REGISTRY, OperationalErrorCode, OutcomeCode
from horsies.core.utils.retry import calculate_retry_delay

__all__ = [
    "BUILTIN_CODE_REGISTRY",
    "Assignment",
    "JsonValue",
    "OperationalErrorCode",
    "OutcomeCode",
    "StrictJsonError",
    "calculate_retry_delay",
    "decode_kwargs",
    "find_assignment",
    "resolve_exception_error_code",
    "run_worker",
]

# The function of horsies.core.worker.child_runner that calls every task of a worker.
ENTRY = "_run_task_entry"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task that horsies gave to this child."""

    task_id: str
    worker_id: str
    claimed_at: datetime | None
    timeout_seconds: float | None


def find_assignment() -> Assignment | None:
    """The task that horsies runs on this thread; None if the function was called directly.

    horsies passes only the arguments to a task, so the rest is read from the calling frame. The reporter checks it
    against the row of the task before it writes. Without a matching frame, the child reads the table.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == ENTRY:
            variables = frame.f_locals
            timeout_ms = variables.get("timeout_ms")
            return Assignment(
                task_id=str(variables["task_id"]),
                worker_id=str(variables["master_worker_id"]),
                claimed_at=variables.get("claimed_at"),
                timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
            )
        frame = frame.f_back
    return None


def run_worker(*, choose_processes: Callable[[Horsies], int] | None = None) -> None:
    """Run horsies' command line.

    :param choose_processes: the number of children of a worker, when its tasks are known.
    """
    start = cli.worker_command

    def start_with_choice(args: argparse.Namespace) -> None:
        if choose_processes is not None:
            # An app that cannot be loaded is reported by horsies itself.
            with suppress(Exception):
                args.processes = choose_processes(_load_app(args))
        start(args)

    cli.worker_command = start_with_choice
    try:
        cli.main()
    finally:
        cli.worker_command = start


def _load_app(args: argparse.Namespace) -> Horsies:
    app, *_ = cli.discover_app(cli._resolve_module_argument(args))
    app.suppress_sends(True)
    try:
        app.import_task_modules()
    finally:
        app.suppress_sends(False)
    return app
