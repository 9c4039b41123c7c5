"""The tasks and workflows of the contract, and one that parks as tasks of this package do; for every release."""

from __future__ import annotations

from pathlib import Path

from horsies import TaskError, TaskResult
from workflow_contract_tasks import app

__all__ = ["app"]


@app.task("w.park")
def park(*, marker: str) -> TaskResult[int, TaskError]:
    """Parks the first time."""
    if Path(marker).exists():
        return TaskResult(ok=1)
    Path(marker).touch()
    return TaskResult(err=TaskError(error_code="AWAITING_SIGNAL", message="parked"))
