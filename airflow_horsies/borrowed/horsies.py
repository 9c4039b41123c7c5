"""Private parts of horsies that workers use; read in 0.5.4."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from types import FrameType

from horsies.core.cli import main as run_command_line
from horsies.core.codec.json_value import JsonValue
from horsies.core.models.tasks import OperationalErrorCode, OutcomeCode

__all__ = ["Assignment", "JsonValue", "OperationalErrorCode", "OutcomeCode", "find_assignment", "run_command_line"]

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
