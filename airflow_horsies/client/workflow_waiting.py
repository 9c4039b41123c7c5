"""Waits for workflows on an event loop: the part of the hub that knows them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import TypeAlias

from airflow_horsies.core.workflow import WorkflowState, WorkflowStatus
from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import AccessDenied, HorsiesError, WireError
from airflow_horsies.wire.known import WireScript
from airflow_horsies.wire.statements import Wire
from airflow_horsies.wire.workflows import find_outer_workflows, read_workflow_states

log = logging.getLogger(__name__)

States: TypeAlias = "dict[str, WorkflowStatus | None]"
# How long a missing privilege must last before the waiters fail.
LASTING_SECONDS = 30.0
RETRY_SECONDS = 5.0


class WorkflowWaiter:
    """
    The workflows of one waiter; ``ended`` contains those that ended, with None for a workflow that does not exist, and
    ``paused`` those that wait for somebody to resume or cancel them, or a workflow inside them.
    """

    def __init__(self, workflow_ids: Iterable[str]) -> None:
        self.pending = set(workflow_ids)
        self.ended: dict[str, WorkflowState | None] = {}
        self.paused: set[str] = set()
        self._error: HorsiesError | None = None
        self._news = asyncio.Event()

    async def news(self, *, until: datetime | None = None) -> None:
        """Wait until more workflows have ended, are paused or go on; raise a lasting error of the hub.

        :param until: raise TimeoutError at this time.
        """
        if self.pending and self._error is None:
            seconds = None if until is None else max((until - datetime.now(UTC)).total_seconds(), 0)
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise self._error

    def take_ended(self) -> dict[str, WorkflowState | None]:
        """Those that have ended; they are few, so all of them."""
        return dict(self.ended)

    def deliver(self, workflow_id: str, status: WorkflowStatus | None) -> None:
        if workflow_id not in self.pending:
            return
        if status is None or status.state.is_terminal:
            self.pending.remove(workflow_id)
            self.paused.discard(workflow_id)
            self.ended[workflow_id] = None if status is None else status.state
            self._news.set()
        elif status.is_paused != (workflow_id in self.paused):
            self.paused ^= {workflow_id}
            self._news.set()

    def fail(self, error: HorsiesError) -> None:
        self._error = error
        self._news.set()


class WorkflowBoard:
    """Which workflows the waiters of an event loop wait for, and which of them are to be read again."""

    def __init__(self) -> None:
        self.waiters: defaultdict[str, set[WorkflowWaiter]] = defaultdict(set)
        # When to read again though nobody asked for it.
        self.due: float | None = None
        self._unread: set[str] = set()
        # Others that changed: they may be inside of those that somebody waits for.
        self._heard: set[str] = set()
        self._failing_since: float | None = None

    def add(self, waiter: WorkflowWaiter) -> None:
        for workflow_id in waiter.pending:
            self.waiters[workflow_id].add(waiter)
        self._unread.update(waiter.pending)

    def remove(self, waiter: WorkflowWaiter, workflow_ids: Collection[str]) -> None:
        for workflow_id in workflow_ids:
            self.waiters[workflow_id].discard(waiter)
            if not self.waiters[workflow_id]:
                del self.waiters[workflow_id]

    def read_again(self) -> None:
        self._unread.update(self.waiters)

    def hear(self, workflow_id: str) -> bool:
        """Whether a notification concerns a waiter, as far as that is known."""
        if not self.waiters:
            return False
        (self._unread if workflow_id in self.waiters else self._heard).add(workflow_id)
        return True

    async def look(self, run: Callable[[WireScript[States]], Awaitable[States]]) -> None:
        """Read what changed and tell the waiters.

        :param run: runs a script in a transaction; it raises our errors.
        """
        unread, heard = self._unread & self.waiters.keys(), self._heard if self.waiters else set()
        self._unread, self._heard, self.due = set(), set(), None
        if not unread and not heard:
            return
        waited = set(self.waiters)
        try:
            states = await run(lambda wire: _read(wire, unread, heard, waited))
        except (AccessDenied, WireError) as error:
            # These concern workflows only; the waiters for tasks go on.
            self._put_back(unread, heard)
            self._give_up(error)
            return
        except BaseException:
            self._put_back(unread, heard)
            raise
        self._failing_since = None
        for workflow_id, status in states.items():
            for waiter in tuple(self.waiters.get(workflow_id, ())):
                waiter.deliver(workflow_id, status)

    def fail_all(self, error: HorsiesError) -> None:
        for waiter in {waiter for waiters in self.waiters.values() for waiter in waiters}:
            waiter.fail(error)

    def _put_back(self, unread: set[str], heard: set[str]) -> None:
        self._unread |= unread
        self._heard |= heard

    def _give_up(self, error: HorsiesError) -> None:
        """Fail the waiters once the error has lasted; until then, read again soon."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= LASTING_SECONDS:
            self._failing_since = None
            self.fail_all(error)
            return
        log.warning("Cannot read the states of workflows. Trying again in %.0f s: %s", RETRY_SECONDS, error)
        self.due = now + RETRY_SECONDS


def _read(wire: Wire, unread: set[str], heard: set[str], waited: set[str]) -> Script[States]:
    """The status of each workflow that may have changed; None for one that does not exist."""
    wanted = unread | ((yield from find_outer_workflows(wire, heard)) & waited)
    found = yield from read_workflow_states(wire, wanted)
    if wire.schema.cutover_is_pending:
        return dict(found)
    return {**dict.fromkeys(wanted), **found}
