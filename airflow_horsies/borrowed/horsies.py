"""Private parts of horsies that workers use; read in 0.5.4."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Annotated, Any, Union

from horsies import Horsies, TaskError, TaskResult
from horsies.core import cli
from horsies.core.codec.json_value import JsonValue, StrictJsonError, _validate_json_native
from horsies.core.codec.kwargs import decode_kwargs
from horsies.core.codec.typed import _adapter_cache
from horsies.core.exception_mapper import resolve_exception_error_code
from horsies.core.models.tasks import BUILTIN_CODE_REGISTRY, OperationalErrorCode, OutcomeCode
from horsies.core.utils.retry import calculate_retry_delay
from horsies.core.worker.worker import Worker
from horsies.core.workflows import registry
from horsies.core.workflows.lifecycle import resume_workflow_sync
from pydantic import BeforeValidator, TypeAdapter
from sqlalchemy import text

__all__ = [
    "BUILTIN_CODE_REGISTRY",
    "Assignment",
    "JsonValue",
    "OperationalErrorCode",
    "OutcomeCode",
    "PacedWorker",
    "StrictJsonError",
    "accept_results",
    "calculate_retry_delay",
    "decode_kwargs",
    "find_assignment",
    "find_definition",
    "forget_definition",
    "is_paced",
    "known_definitions",
    "make_usable_as_node",
    "parameters_of",
    "resolve_exception_error_code",
    "resume_workflow",
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


def make_usable_as_node(function: Callable[..., Any], task: Any, face: Callable[..., Any]) -> None:
    """Let ``TaskNode(fn=function)`` work for the plain function of a task.

    :param task: as it is registered.
    :param face: a function with the parameters and annotations that a workflow checks.
    """
    attributes = {name: getattr(task, name) for name in ("task_name", "task_queue_name", "task_options_json")}
    # What a workflow compares with the annotations of other nodes. horsies' comparison is too narrow for JSON.
    for name, value in {**attributes, "task_ok_type": Any, "_original_fn": face}.items():
        setattr(function, name, value)


def _require_json(value: Any) -> Any:
    _validate_json_native(value)
    return value


_Json = Annotated[JsonValue, BeforeValidator(_require_json)]
# What another node returned, or JSON. horsies looks for typing.Union.
_RESULT_OR_JSON: Any = Union[TaskResult[JsonValue, TaskError], _Json]  # noqa: UP007
# What a producer sends is JSON. pydantic cannot check a TaskResult.
_adapter_cache[_RESULT_OR_JSON] = TypeAdapter(_Json)


def accept_results(run: Callable[..., Any], names: Iterable[str]) -> None:
    """Let these parameters of a registered task take the result of another node as well as JSON.

    horsies refuses such an annotation when a task is registered, and honours it when it calls the task.
    """
    run.__annotations__ = {**run.__annotations__, **dict.fromkeys(names, _RESULT_OR_JSON)}


def known_definitions() -> dict[str, Any]:
    """The classes of the workflows that this process knows, by key."""
    return dict(registry._workflow_defs_by_key)


def find_definition(key: str) -> Any:
    """The class of a workflow; None if this process does not know it."""
    return registry.get_workflow_definition(key)


def forget_definition(key: str) -> None:
    registry.unregister_workflow_definition(key)


def parameters_of(definition: Any) -> Callable[..., Any]:
    """The function whose signature has the parameters of a workflow, after the class and the app."""
    build_with: Callable[..., Any] = definition._original_build_with
    return build_with


def resume_workflow(app: Horsies, workflow_id: str) -> str | None:
    """Resume a paused workflow, and the paused ones in it; returns the problem if that fails."""
    result: Any = resume_workflow_sync(app.get_broker(), workflow_id)
    return f"{result.err_value.code}: {result.err_value.message}" if result.is_err() else None


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
