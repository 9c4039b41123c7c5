from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_horsies.client import workflow_waiting
from airflow_horsies.client.workflow_waiting import WorkflowBoard, WorkflowWaiter
from airflow_horsies.exceptions import AccessDenied, DatabaseUnreachable, HorsiesError
from airflow_horsies.models import WorkflowState, WorkflowStatus
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, Answer, drive

RUNNING = WorkflowStatus(id="a", state=WorkflowState.RUNNING)
PAUSED_INSIDE = WorkflowStatus(id="a", state=WorkflowState.RUNNING, is_paused_inside=True)
DONE = WorkflowStatus(id="a", state=WorkflowState.COMPLETED)


def answering(asked: list[Any], answers: dict[str, Answer]) -> Callable[[Any], Any]:
    async def run(make_script: Any) -> Any:
        driven = drive(make_script(Wire(MOVED)), answers)
        asked.extend(driven.ran)
        return driven.outcome

    return run


def failing(error: HorsiesError) -> Callable[[Any], Any]:
    async def run(make_script: Any) -> Any:
        raise error

    return run


def status(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "status": "RUNNING", "is_paused_inside": False, **more}


def test_waiter_hears_of_pauses_and_of_the_end() -> None:
    async def check() -> None:
        waiter = WorkflowWaiter(["a", "b"])
        waiter.deliver("a", RUNNING)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiter.news(), 0.01)
        waiter.deliver("a", PAUSED_INSIDE)
        await asyncio.wait_for(waiter.news(), 1)
        assert waiter.paused == {"a"}
        waiter.deliver("a", RUNNING)
        await asyncio.wait_for(waiter.news(), 1)
        assert waiter.paused == set()
        waiter.deliver("a", DONE)
        waiter.deliver("b", None)
        await asyncio.wait_for(waiter.news(), 1)
        assert (waiter.pending, waiter.ended) == (set(), {"a": WorkflowState.COMPLETED, "b": None})

    asyncio.run(check())


def test_nothing_is_read_while_nobody_waits_for_a_workflow() -> None:
    async def check() -> None:
        board, asked = WorkflowBoard(), list[Any]()
        assert not board.hear("a")
        await board.look(answering(asked, {}))
        waiter = WorkflowWaiter(["a"])
        board.add(waiter)
        board.remove(waiter, ["a"])
        await board.look(answering(asked, {}))
        assert asked == []

    asyncio.run(check())


def test_notification_of_an_inner_workflow_reads_the_outer_one() -> None:
    async def check() -> None:
        board, waiter, asked = WorkflowBoard(), WorkflowWaiter(["a"]), list[Any]()
        board.add(waiter)
        await board.look(answering(asked, {"moved/read_workflow_states": [status("a")]}))
        assert [name for name, _ in asked] == ["moved/read_workflow_states"]
        asked.clear()
        assert board.hear("inner") and board.hear("other")
        answers: dict[str, Answer] = {
            "moved/find_outer_workflows": [{"id": "a"}, {"id": "of somebody else"}],
            "moved/read_workflow_states": [status("a", is_paused_inside=True)],
        }
        await board.look(answering(asked, answers))
        (_, outer), (_, states) = asked
        assert (sorted(outer["ids"]), states["ids"], waiter.paused) == (["inner", "other"], ["a"], {"a"})
        asked.clear()
        await board.look(answering(asked, answers))
        assert asked == []

    asyncio.run(check())


def test_workflow_that_does_not_exist_is_told() -> None:
    async def check() -> None:
        board, waiter = WorkflowBoard(), WorkflowWaiter(["a"])
        board.add(waiter)
        await board.look(answering([], {}))
        assert waiter.ended == {"a": None}

    asyncio.run(check())


def test_what_could_not_be_read_is_read_again() -> None:
    async def check() -> None:
        board, waiter = WorkflowBoard(), WorkflowWaiter(["a"])
        board.add(waiter)
        with pytest.raises(DatabaseUnreachable):
            await board.look(failing(DatabaseUnreachable("gone")))
        await board.look(answering([], {"moved/read_workflow_states": [status("a", status="FAILED")]}))
        assert waiter.ended == {"a": WorkflowState.FAILED}

    asyncio.run(check())


def test_missing_privilege_fails_the_waiters_for_workflows_once_it_has_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check() -> None:
        board, waiter = WorkflowBoard(), WorkflowWaiter(["a"])
        board.add(waiter)
        await board.look(failing(AccessDenied("no grant")))
        assert board.due is not None
        assert not waiter.ended
        monkeypatch.setattr(workflow_waiting, "LASTING_SECONDS", 0)
        await board.look(failing(AccessDenied("no grant")))
        with pytest.raises(AccessDenied, match="no grant"):
            await asyncio.wait_for(waiter.news(), 1)

    asyncio.run(check())
