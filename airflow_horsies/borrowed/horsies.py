"""Private parts of horsies that workers use; read in 0.5.4."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Any

from horsies import Horsies
from horsies.core import cli
from horsies.core.codec.json_value import JsonValue, StrictJsonError
from horsies.core.codec.kwargs import decode_kwargs
from horsies.core.exception_mapper import resolve_exception_error_code
from horsies.core.models.tasks import BUILTIN_CODE_REGISTRY, OperationalErrorCode, OutcomeCode
from horsies.core.utils.retry import calculate_retry_delay
from horsies.core.worker.worker import Worker
from sqlalchemy import text

__all__ = [
    "BUILTIN_CODE_REGISTRY",
    "Assignment",
    "JsonValue",
    "OperationalErrorCode",
    "OutcomeCode",
    "PacedWorker",
    "StrictJsonError",
    "calculate_retry_delay",
    "decode_kwargs",
    "find_assignment",
    "is_paced",
    "resolve_exception_error_code",
    "run_worker",
]

# The function of horsies.core.worker.child_runner that calls every task of a worker.
ENTRY = "_run_task_entry"
# A worker claims as many tasks ahead as ended within this time.
PACE_SECONDS = 0.25
# After a task that took longer from its claim to its end, it begins anew.
SHORT_SECONDS = 0.5
# How often a worker looks for its claims that nobody can end.
LOOK_SECONDS = 10.0
# The deadline of the task and the claim are over, so neither the worker nor another one can start or expire it: it
# may be a claim of which the worker does not know, as after a lost connection. It would stay claimed until the worker
# ends.
FIND_LATE_CLAIMS = text("""
SELECT id, claimed_at
FROM horsies_tasks
WHERE
    status = 'CLAIMED' AND claimed_by_worker_id = :worker_id
    AND claim_expires_at < now() AND good_until <= now()
ORDER BY claimed_at
LIMIT 100
""")
# It imports the class of workers that it starts.
_cli: Any = cli


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


class PacedWorker(Worker):
    """A worker that claims ahead only while its tasks are short: a task that is claimed ahead cannot run elsewhere.

    It claims again when half of what was claimed ahead is gone. horsies claims after each task, and each claim passes
    over all dead rows of the queue, which may be many while somebody holds a snapshot.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ends: deque[float] = deque(maxlen=self.cfg.prefetch_buffer)
        self._unfinished = 0
        self._looked = time.monotonic()

    async def _claim_and_dispatch_all(self) -> bool:
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            await self._return_late_claims()
        ahead = self._count_ahead()
        self.cfg.prefetch_buffer = ahead
        if ahead and self._unfinished > self.cfg.processes + ahead // 2:
            return False
        return await super()._claim_and_dispatch_all()

    async def _return_late_claims(self) -> None:
        """Give tasks back to the queue, where horsies expires them."""
        async with self.sf() as session:
            rows = await session.execute(FIND_LATE_CLAIMS, {"worker_id": self.worker_instance_id})
            late = rows.fetchall()
        for row in late:
            await self._requeue_claimed_task(row.id, "its good_until passed while it was claimed", row.claimed_at)

    async def _finalize_after(
        self,
        fut: asyncio.Future[Any],
        task_id: str,
        queue_name: str = "default",
        is_workflow_task: bool = True,
        timeout_ms: int | None = None,
        **options: Any,
    ) -> Any:
        claimed = time.monotonic()
        self._unfinished += 1
        fut.add_done_callback(lambda _: self._note_end(claimed))
        if timeout_ms is not None and self.cfg.prefetch_buffer:
            timeout_ms = TimeoutAfterClaim(timeout_ms, self._longest_wait_ms)
        return await super()._finalize_after(fut, task_id, queue_name, is_workflow_task, timeout_ms, **options)

    async def _handle_task_timeout(self, task_id: str, timeout_ms: int, *args: Any, **options: Any) -> None:
        limit = timeout_ms.limit if isinstance(timeout_ms, TimeoutAfterClaim) else timeout_ms
        await super()._handle_task_timeout(task_id, limit, *args, **options)

    @property
    def _longest_wait_ms(self) -> int:
        """After this time, the claim of a task that has not started has lapsed."""
        return (self.cfg.claim_lease_ms or 0) + self.cfg.max_claim_renew_age_ms

    def _note_end(self, claimed: float) -> None:
        self._unfinished -= 1
        now = time.monotonic()
        if now - claimed < SHORT_SECONDS:
            self._ends.append(now)
        else:
            self._ends.clear()

    def _count_ahead(self) -> int:
        """As many as ended lately: the last of them waits about that long."""
        since = time.monotonic() - PACE_SECONDS
        while self._ends and self._ends[0] < since:
            self._ends.popleft()
        return len(self._ends)


class TimeoutAfterClaim(int):
    """A time limit that horsies counts from the claim: it includes the wait of a task that was claimed ahead. The child
    itself counts from the start."""

    limit: int

    def __new__(cls, limit: int, wait: int) -> TimeoutAfterClaim:
        value = super().__new__(cls, limit + wait)
        value.limit = limit
        return value


def is_paced() -> bool:
    """Whether this process runs, or will run, a PacedWorker."""
    return _cli.Worker is PacedWorker


def run_worker(*, choose_processes: Callable[[Horsies], int] | None = None) -> None:
    """Run horsies' command line.

    :param choose_processes: the number of children of a worker, when its tasks are known.
    """
    start, worker = cli.worker_command, _cli.Worker

    def start_with_choice(args: argparse.Namespace) -> None:
        if choose_processes is not None:
            # An app that cannot be loaded is reported by horsies itself.
            with suppress(Exception):
                args.processes = choose_processes(_load_app(args))
        start(args)

    cli.worker_command, _cli.Worker = start_with_choice, PacedWorker
    try:
        cli.main()
    finally:
        cli.worker_command, _cli.Worker = start, worker


def _load_app(args: argparse.Namespace) -> Horsies:
    app, *_ = cli.discover_app(cli._resolve_module_argument(args))
    app.suppress_sends(True)
    try:
        app.import_task_modules()
    finally:
        app.suppress_sends(False)
    return app
