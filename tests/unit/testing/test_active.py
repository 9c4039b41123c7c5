"""Several FakeHorsies at once: nested, overlapping, in threads. Afterwards everything is as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import TaskSpec
from airflow_horsies.operators import HorsiesOperator
from airflow_horsies.testing import FakeHorsies, active, run_task

ADD = TaskSpec(task_name="add")


def members() -> dict[Any, Any]:
    return {(owner, name): owner.__dict__[name] for owner, name in active.FAKES}


@pytest.fixture(autouse=True)
def real_members() -> Iterator[dict[Any, Any]]:
    before = members()
    yield before
    assert members() == before
    assert active.find_active() is None


def result_of(hook: HorsiesHook) -> Any:
    (task,) = hook.wait([hook.enqueue_task(ADD)])
    assert task.result is not None
    return task.result.ok


def test_real_members_are_back_after_the_block(real_members: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match="of the test"), FakeHorsies():
        assert HorsiesHook.__dict__["client"] is not real_members[HorsiesHook, "client"]
        raise ValueError("of the test")


def test_inner_block_applies_until_it_ends() -> None:
    with FakeHorsies() as outer:
        outer.returns("add", 1)
        with FakeHorsies() as inner:
            inner.returns("add", 2)
            assert result_of(HorsiesHook()) == 2
        assert result_of(HorsiesHook()) == 1


def test_blocks_may_overlap_without_nesting(real_members: dict[Any, Any]) -> None:
    first, second = FakeHorsies(), FakeHorsies()
    first.returns("add", 1)
    second.returns("add", 2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert result_of(HorsiesHook()) == 2
    second.__exit__(None, None, None)
    assert members() == real_members


def test_same_object_is_entered_once_at_a_time() -> None:
    fake = FakeHorsies()
    fake.returns("add", 1)
    with fake, pytest.raises(RuntimeError, match="already active"), fake:
        pass
    with fake:
        assert result_of(HorsiesHook()) == 1


def test_threads_with_their_own_blocks_do_not_mix() -> None:
    entered = Barrier(2, timeout=30)

    def run(number: int) -> list[Any]:
        with FakeHorsies() as fake:
            fake.returns("add", number)
            entered.wait()

            async def on_a_loop() -> Any:
                return await asyncio.to_thread(result_of, HorsiesHook())

            found = [run_task(HorsiesOperator(task_id="add", task_name="add")), asyncio.run(on_a_loop())]
            entered.wait()
            return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [1, 2])) == [[1, 1], [2, 2]]


def test_thread_without_a_block_uses_the_one_around_it() -> None:
    with FakeHorsies() as fake, ThreadPoolExecutor(1) as pool:
        fake.returns("add", 1)
        assert pool.submit(result_of, HorsiesHook()).result() == 1


def test_tasks_may_run_in_many_threads() -> None:
    operator = HorsiesOperator(task_id="add", task_name="add", deferrable=True)
    with FakeHorsies() as fake, ThreadPoolExecutor(8) as pool:
        fake.returns("add", 1)
        assert list(pool.map(lambda _: run_task(operator), range(64))) == [1] * 64
        assert len(fake.sent("add")) == 64


def test_link_of_a_task_that_airflow_runs_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(HorsiesAttemptsLink, "push", lambda link, context: pushed.append(context))
    of_airflow = {"ti": object()}
    with FakeHorsies() as fake:
        fake.returns("add", 1)
        HorsiesAttemptsLink().push(of_airflow)  # type: ignore[arg-type]
        run_task(HorsiesOperator(task_id="add", task_name="add"))
    assert pushed == [of_airflow]
