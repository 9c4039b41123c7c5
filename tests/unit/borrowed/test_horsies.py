"""Fails when a private part of horsies moves."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("horsies")

from horsies import Err, Ok, TaskError, TaskNode, TaskResult, WorkflowDefinition, WorkflowSpec
from horsies.core.codec.kwargs import encode_kwargs
from horsies.core.worker import child_runner
from horsies.core.worker.worker import Worker

from airflow_horsies.borrowed import horsies as borrowed


def test_the_frame_of_horsies_has_what_is_read_from_it() -> None:
    entry = getattr(child_runner, borrowed.ENTRY)
    assert {"task_id", "master_worker_id", "claimed_at", "timeout_ms"} <= set(entry.__code__.co_varnames)


def test_the_frame_is_found_below_the_task() -> None:
    assert borrowed.find_assignment() is None
    now = datetime.now(UTC)

    def _run_task_entry(task_id: str, master_worker_id: str, claimed_at: datetime, timeout_ms: int) -> object:
        return borrowed.find_assignment()

    assert _run_task_entry("a", "w", now, 1_500) == borrowed.Assignment("a", "w", now, 1.5)


def test_the_command_line_and_the_codes_are_where_they_were() -> None:
    for name in ("main", "worker_command", "discover_app", "_resolve_module_argument"):
        assert callable(getattr(borrowed.cli, name))
    assert borrowed.OutcomeCode.TASK_CANCELLED.value == "TASK_CANCELLED"
    assert borrowed.OperationalErrorCode.UNHANDLED_EXCEPTION.value == "UNHANDLED_EXCEPTION"


def test_the_rules_of_retries_and_of_exceptions_are_where_they_were() -> None:
    policy = {"intervals": [2, 5], "backoff_strategy": "fixed", "jitter": False}
    assert [borrowed.calculate_retry_delay(retry, policy) for retry in (1, 2, 3)] == [2.0, 5.0, 5.0]
    doubling = {"intervals": [2], "backoff_strategy": "exponential", "jitter": False, "max_delay_seconds": 5}
    assert [borrowed.calculate_retry_delay(retry, doubling) for retry in (1, 2, 3)] == [2.0, 4.0, 5.0]
    mapped = {KeyError: "OF_TASK"}, {KeyError: "OF_APP", OSError: "OF_APP"}
    codes = [
        borrowed.resolve_exception_error_code(error, *mapped, None, "DEFAULT")
        for error in (KeyError(), OSError(), ValueError())
    ]
    assert codes == ["OF_TASK", "OF_APP", "DEFAULT"]


def test_unknown_arguments_are_refused_as_before() -> None:
    def task(*, known: borrowed.JsonValue) -> None: ...

    with pytest.raises(borrowed.StrictJsonError, match="unknown"):
        borrowed.decode_kwargs(task, {"unknown": 1})


def paced(monkeypatch: pytest.MonkeyPatch, ended: list[Any]) -> borrowed.PacedWorker:
    """A worker whose horsies part notes the limits of tasks, and the buffer of each claim."""

    async def claim(worker: Any) -> bool:
        ended.append(worker.cfg.prefetch_buffer)
        return False

    async def finalize(
        worker: Any, fut: Any, task_id: str, queue: str, is_workflow_task: bool, timeout_ms: int | None
    ) -> Any:
        await fut
        if timeout_ms is not None:
            await worker._handle_task_timeout("a", timeout_ms, claimed_at=None)
        return timeout_ms

    async def handle(worker: Any, task_id: str, timeout_ms: int, claimed_at: datetime | None = None) -> None:
        ended.append(timeout_ms)

    monkeypatch.setattr(Worker, "_claim_and_dispatch_all", claim)
    monkeypatch.setattr(Worker, "_finalize_after", finalize)
    monkeypatch.setattr(Worker, "_handle_task_timeout", handle)
    monkeypatch.setattr(Worker, "__init__", lambda worker, cfg: setattr(worker, "cfg", cfg))
    config = SimpleNamespace(prefetch_buffer=4, processes=2, claim_lease_ms=5_000, max_claim_renew_age_ms=5_000)
    return borrowed.PacedWorker(config)


class Pace:
    """A worker and its clock: tasks are claimed and end when the test says so."""

    def __init__(self, worker: borrowed.PacedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker = worker
        self.now = 100.0
        self._running: list[asyncio.Future[None]] = []
        monkeypatch.setattr(borrowed, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def claim(self, tasks: int = 1) -> None:
        for _ in range(tasks):
            future = asyncio.get_running_loop().create_future()
            self._running.append(future)
            self._waiting = asyncio.ensure_future(self.worker._finalize_after(future, "a"))
        await asyncio.sleep(0)

    async def end(self, tasks: int = 1, *, after: float) -> None:
        for _ in range(tasks):
            self.now += after
            self._running.pop(0).set_result(None)
            await asyncio.sleep(0)

    async def look(self) -> bool:
        return await self.worker._claim_and_dispatch_all()


def test_a_worker_claims_as_many_tasks_ahead_as_ended_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    worker = paced(monkeypatch, seen)

    async def run() -> None:
        pace = Pace(worker, monkeypatch)
        await pace.look()
        await pace.claim(6)
        await pace.end(1, after=0.05)
        await pace.look()
        await pace.end(5, after=0.01)
        await pace.look()
        pace.now += 0.22
        await pace.look()
        pace.now += 0.1
        await pace.look()
        await pace.claim(2)
        await pace.end(1, after=0.05)
        await pace.end(1, after=0.46)
        await pace.look()

    monkeypatch.setattr(worker.cfg, "processes", 10)
    asyncio.run(run())
    assert seen == [0, 1, 4, 3, 0, 0], "none at first, at most four, none after a pause and after a long task"


def test_a_worker_claims_again_when_half_of_what_it_claimed_ahead_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    worker = paced(monkeypatch, seen)

    async def run() -> list[bool]:
        pace = Pace(worker, monkeypatch)
        await pace.claim(10)
        await pace.end(4, after=0.01)
        looks = []
        for _ in range(3):
            await pace.look()
            looks.append(bool(seen))
            await pace.end(1, after=0.01)
        pace.now += 10
        await pace.claim(10)
        seen.clear()
        await pace.look()
        return [*looks, bool(seen)]

    assert asyncio.run(run()) == [False, False, True, True], "as horsies does where nothing is claimed ahead"


def test_the_limit_of_a_task_that_was_claimed_ahead_includes_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    worker = paced(monkeypatch, seen)

    async def run() -> list[Any]:
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        ahead = await worker._finalize_after(future, "a", timeout_ms=4_000)
        worker.cfg.prefetch_buffer = 0
        return [ahead, await worker._finalize_after(future, "a", timeout_ms=4_000)]

    assert asyncio.run(run()) == [14_000, 4_000]
    assert seen == [4_000, 4_000], "as the message names it"


def test_what_a_paced_worker_overrides_is_where_it_was() -> None:
    for name in ("_claim_and_dispatch_all", "_finalize_after", "_handle_task_timeout"):
        assert inspect.iscoroutinefunction(getattr(Worker, name))
    assert list(inspect.signature(Worker._finalize_after).parameters)[1:6] == [
        "fut",
        "task_id",
        "queue_name",
        "is_workflow_task",
        "timeout_ms",
    ]
    assert list(inspect.signature(Worker._handle_task_timeout).parameters)[:3] == ["self", "task_id", "timeout_ms"]
    assert borrowed.cli.Worker is Worker
    assert not borrowed.is_paced()


def test_a_node_reads_these_attributes_of_a_function() -> None:
    def face(*, n: int = 1) -> TaskResult[int, TaskError]: ...  # type: ignore[empty-body]

    def function(n: int = 1) -> int:
        return n

    task = SimpleNamespace(task_name="flights.count", task_queue_name=None, task_options_json=None)
    borrowed.make_usable_as_node(function, task, face)
    node: Any = TaskNode(fn=function, kwargs={"n": "2"})  # type: ignore[arg-type]
    assert node.name == "flights.count"
    assert WorkflowSpec(name="w", tasks=[node]).tasks[0].kwargs == {"n": 2}
    assert function(3) == 3


def test_a_parameter_takes_json_and_what_another_node_returned() -> None:
    def run(*, n: borrowed.JsonValue) -> None: ...

    run.__annotations__ = {"n": borrowed.JsonValue, "return": None}
    borrowed.accept_results(run, ["n"])
    of_node = {"__h_taskresult_envelope__": True, "inner": {}, "source_task_name": "a"}
    for given in (1, {"a": [None]}, of_node):
        assert borrowed.decode_kwargs(run, {"n": given}) == {"n": given}
    assert encode_kwargs(run, {"n": {"a": [1]}}) == {"n": {"a": [1]}}
    with pytest.raises(borrowed.StrictJsonError):
        encode_kwargs(run, {"n": b"bytes"})


def test_definitions_are_registered_where_they_were() -> None:
    class Known(WorkflowDefinition[int]):
        name = definition_key = "borrowed.known"

        @classmethod
        def build_with(cls, app: Any, *, n: int) -> Any: ...

    try:
        assert borrowed.find_definition("borrowed.known") is Known
        assert borrowed.known_definitions()["borrowed.known"] is Known
        assert list(inspect.signature(borrowed.parameters_of(Known)).parameters) == ["cls", "app", "n"]
    finally:
        borrowed.forget_definition("borrowed.known")
    assert borrowed.find_definition("borrowed.known") is None


def test_workflows_are_resumed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(inspect.signature(borrowed.resume_workflow_sync).parameters) == ["broker", "workflow_id"]
    app: Any = SimpleNamespace(get_broker=lambda: "broker")
    error = SimpleNamespace(code="DB_OPERATION_FAILED", message="gone")
    for answer, problem in ((Ok(True), None), (Err(error), "DB_OPERATION_FAILED: gone")):
        monkeypatch.setattr(borrowed, "resume_workflow_sync", lambda broker, workflow_id, answer=answer: answer)
        assert borrowed.resume_workflow(app, "a") == problem
