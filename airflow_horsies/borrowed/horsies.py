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

# Below this function of horsies.core.worker.child_runner runs every task of a worker.
ENTRY = "_run_task_entry"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What horsies gave this child to run."""

    task_id: str
    worker_id: str
    claimed_at: datetime | None
    timeout_seconds: float | None


def find_assignment() -> Assignment | None:
    """What horsies is running on this thread; None where the function was called by hand.

    horsies hands a task nothing but its arguments, so the rest is read from the frame that called it. The reporter
    checks it against the row of the task before it writes anything, and the table has the answer where no frame does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == ENTRY:
            known = frame.f_locals
            timeout_ms = known.get("timeout_ms")
            return Assignment(
                task_id=str(known["task_id"]),
                worker_id=str(known["master_worker_id"]),
                claimed_at=known.get("claimed_at"),
                timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
            )
        frame = frame.f_back
    return None
