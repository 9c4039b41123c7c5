"""Operators that start workflows, on a real worker: their ends, and what changes while they are under way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import (
    AccessDenied,
    QueueNotServed,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    WorkflowPaused,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import Submission, TaskInstanceKey, WorkflowState, node, ref
from airflow_horsies.operators import HorsiesGraphOperator, HorsiesWorkflowOperator, releasing
from airflow_horsies.operators.outcomes import TaskTimedOut
from airflow_horsies.operators.workflow import GraphOperator
from airflow_horsies.sensors import HorsiesWorkflowSensor
from airflow_horsies.triggers import base as trigger_base
from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from tests.integration.conftest import MakeHook, _cloned
from tests.integration.releases import MOVED
from tests.integration.test_triggers import CONN_ID, event_of, store_connection
from tests.integration.test_workflow_contract import make_worker

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

LOGGER = logging.getLogger("the log of Airflow")
GIVEN_UP, RESTARTED = InstanceState(True, "failed"), InstanceState(True, "running")
in_both_ways = pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferrable"])


@pytest.fixture(scope="module")
def workflow_database(
    postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    for name in _cloned(postgres, template):
        with make_worker(postgres, name, release, tmp_path_factory.mktemp(name), processes=2):
            yield name


@pytest.fixture(autouse=True)
def stored_connection(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, workflow_database: str) -> None:
    store_connection(monkeypatch, postgres, workflow_database)


@pytest.fixture(autouse=True)
def log_of_airflow(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What operators and triggers log is in caplog."""
    caplog.set_level(logging.INFO, LOGGER.name)
    for kind in (GraphOperator, HorsiesTrigger):
        monkeypatch.setattr(kind, "log", LOGGER, raising=False)


@pytest.fixture
def hook(make_hook: MakeHook, workflow_database: str) -> HorsiesHook:
    return make_hook(workflow_database)


class Run:
    """A task instance of its own for each test, and what Airflow does with it."""

    def __init__(self, hook: HorsiesHook) -> None:
        self.hook = hook
        self.instance = TaskInstanceKey(dag_id="sales", run_id=f"manual__{uuid.uuid4().hex}", task_id="load")
        self.xcoms: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.started = datetime.now(UTC)

    def context(self, *, clear_number: int = 0, **changed: Any) -> dict[str, Any]:
        ti = SimpleNamespace(
            **asdict(self.instance),
            **{"try_number": 1, "max_tries": 2, "start_date": self.started, **changed},
            xcom_push=lambda key, value: self.xcoms.update({key: value}),
            get_first_reschedule_date=lambda context: None,
            task=None,
        )
        dag_run = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC), clear_number=clear_number)
        return {"ti": ti, "dag_run": dag_run, "dag": SimpleNamespace(dag_id="sales", dagrun_timeout=None)}

    def play(self, make: Callable[[], Any], **changed: Any) -> Any:
        """Run it to its end: with a new process after each deferral, and the trigger in between."""
        context = self.context(**changed)
        resume: Callable[[Any], Any] = lambda operator: operator.execute(context)  # noqa: E731
        for _ in range(20):
            try:
                operator = make()
                operator.render_template_fields({"ds": "2026-01-01"})
                return resume(operator)
            except TaskDeferred as left:
                event = asyncio.run(asyncio.wait_for(event_of(left.trigger), 90))
                self.events.append(event)
                resume = lambda operator, event=event: operator.execute_complete(context, event)  # noqa: E731
        raise AssertionError("it never ended")

    def defer(self, operator: Any, **changed: Any) -> Any:
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(self.context(**changed))
        return deferred.value.trigger

    @property
    def submissions(self) -> list[Submission]:
        return self.hook.read_submissions(self.instance)

    @property
    def ids(self) -> list[str]:
        return [sent.horsies_task_id for sent in self.submissions]

    def state(self, number: int = -1) -> WorkflowState:
        return self.hook.read_workflow_outcome(self.ids[number]).state

    def until(self, holds: Callable[[], Any], seconds: float = 60) -> Any:
        give_up = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < give_up, "it did not come"
            time.sleep(0.05)
        return found


@pytest.fixture
def run(hook: HorsiesHook) -> Run:
    return Run(hook)


def month(**given: Any) -> HorsiesWorkflowOperator:
    defaults = {"task_id": "load", "workflow": "contract.diamond", "kwargs": {"n": 5}, "show_logs": False}
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesWorkflowOperator(**{**defaults, **waiting, **given})


def slow(**given: Any) -> HorsiesWorkflowOperator:
    return month(**{"workflow": "contract.child", "kwargs": {"n": 1, "sleep": 4}, **given})


def graph(**given: Any) -> HorsiesGraphOperator:
    nodes = {
        "fetch": node("w.fetch", n=5),
        "left": node("w.double", x=ref("fetch")),
        "right": node("w.check", x=ref("fetch")),
        "child": node(workflow="contract.child", after=["fetch"], n=1),
        "join": node("w.sum", a=ref("left"), b=ref("right")),
        "total": node("w.sum", a=ref("join"), b=ref("child")),
    }
    defaults = {"task_id": "load", "nodes": nodes, "output": "total", "show_logs": False}
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesGraphOperator(**{**defaults, **waiting, **given})


# -- ends --------------------------------------------------------------------------------------------------------------


@in_both_ways
@pytest.mark.parametrize(("make", "output"), [(month, 220), (graph, 216)], ids=["workflow", "graph"])
def test_output_is_returned_and_the_ends_of_nodes_are_logged(
    run: Run, make: Any, output: int, deferrable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert run.play(lambda: make(deferrable=deferrable, show_logs=True)) == output
    assert run.xcoms == {"horsies_workflow_id": run.ids[0]}
    prefix = "contract.diamond/" if make is month else ""
    ends = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Node ")]
    for path in ("fetch", "left", "right", "join", "total", "child", "child/seed"):
        assert sum(text.startswith(f"Node {prefix}{path}: COMPLETED") for text in ends) == 1, ends
    assert not any("begin" in text for text in ends if make is month)
    assert [event["reason"] for event in run.events] == ["ended"] * deferrable


def test_graph_without_an_output_node_returns_the_values_of_its_last_nodes(run: Run) -> None:
    nodes = {"text": node("w.text", value="{{ ds }}"), "double": node("w.double", x=ref("fetch"))}
    made = lambda: graph(nodes={**nodes, "fetch": node("w.fetch", n=2)}, output=None)  # noqa: E731
    assert run.play(made) == {"text": "2026-01-01", "double": 4}


@in_both_ways
def test_failure_is_that_of_the_innermost_node_with_its_path(run: Run, tmp_path: Path, deferrable: bool) -> None:
    (tmp_path / "broken").touch()
    kwargs = {"marker": str(tmp_path / "broken"), "on_error": "fail"}
    with pytest.raises(
        TaskFailed, match=r"failed at node contract\.outer/inner/check \(w\.check, .*BROKEN: the mar"
    ) as e:
        run.play(lambda: month(workflow="contract.outer", kwargs=kwargs, deferrable=deferrable))
    assert (e.value.error_code, e.value.task_id) == ("BROKEN", run.ids[0])
    assert not isinstance(e.value, AirflowFailException)
    with pytest.raises(AirflowFailException):
        run.play(lambda: month(workflow="contract.outer", kwargs=kwargs, fail_fast_codes=["BROKEN"]), try_number=2)
    assert len(run.ids) == 2


def test_worker_that_does_not_know_the_definition_is_an_error_that_no_retry_heals(run: Run) -> None:
    with pytest.raises(AirflowFailException, match=r"failed at node begin .*WORKFLOW_NOT_REGISTERED"):
        run.play(lambda: month(workflow="contract.unknown", kwargs={}))


def test_missing_parameter_is_told(run: Run) -> None:
    with pytest.raises(TaskFailed, match=r"failed at node contract\.child .*n"):
        run.play(lambda: month(workflow="contract.child", kwargs={"sleep": 0.0}))


@pytest.mark.parametrize("on_expired", ["fail", "skip"])
def test_workflow_that_nobody_starts_in_time_expires(run: Run, on_expired: Any) -> None:
    operator = lambda: month(queue="nobody", good_until=timedelta(seconds=1), on_expired=on_expired)  # noqa: E731
    with pytest.raises(Exception, match="expired: no worker started it within") as ended:
        run.play(operator)
    assert isinstance(ended.value, AirflowSkipException) is (on_expired == "skip")


@in_both_ways
def test_queue_that_nobody_serves_is_told_and_the_workflow_cancelled(run: Run, deferrable: bool) -> None:
    operator = lambda: month(  # noqa: E731
        queue="nobody", queue_timeout=timedelta(seconds=0.5), deferrable=deferrable
    )
    with pytest.raises(QueueNotServed, match=r"serves queue .nobody.\. 1 workflow waited there"):
        run.play(operator)
    assert run.state() is WorkflowState.CANCELLED


def test_start_without_a_wait_returns_the_id(run: Run) -> None:
    assert run.play(lambda: slow(wait_for_completion=False)) == run.ids[0]
    run.hook.cancel_workflow(run.ids[0])


# -- retries, clears and edits -----------------------------------------------------------------------------------------


def test_retry_adopts_what_completed_and_clear_runs_again(run: Run) -> None:
    assert run.play(month) == 220
    assert run.play(month, try_number=2) == 220
    assert len(run.ids) == 1
    assert run.play(month, try_number=3, clear_number=1) == 220
    assert [sent.life for sent in run.submissions] == [1, 2]


def test_retry_reattaches_and_a_clear_cancels_what_runs(run: Run) -> None:
    run.defer(slow())
    run.defer(slow(), try_number=2)
    assert len(run.ids) == 1
    run.defer(slow(), try_number=3, clear_number=1)
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.RUNNING]
    run.hook.cancel_workflow(run.ids[1])


@pytest.mark.parametrize(
    "edited",
    [
        {"kwargs": {"n": 2, "sleep": 4}},
        {"workflow": "contract.diamond"},
    ],
    ids=["arguments", "name"],
)
def test_retry_with_other_work_cancels_the_old_and_runs_the_new(run: Run, edited: dict[str, Any]) -> None:
    run.defer(slow())
    run.defer(slow(**edited), try_number=2)
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.RUNNING]
    run.hook.cancel_workflow(run.ids[1])


def test_retry_of_a_graph_with_another_node_is_other_work_and_with_another_priority_is_not(run: Run) -> None:
    one = {"a": node("w.fetch", n=1, sleep=4.0)}
    run.defer(graph(nodes=one, output="a"))
    run.defer(graph(nodes=one, output="a", priority=3, good_until=timedelta(hours=1)), try_number=2)
    assert len(run.ids) == 1
    run.defer(graph(nodes={**one, "b": node("w.count", after=["a"])}, output="a"), try_number=3)
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.RUNNING]
    run.hook.cancel_workflow(run.ids[1])


# -- time-outs and kills -----------------------------------------------------------------------------------------------


@in_both_ways
def test_time_out_cancels_the_workflow(run: Run, deferrable: bool) -> None:
    with pytest.raises(TaskTimedOut, match="1 workflow did not end within"):
        run.play(lambda: slow(execution_timeout=timedelta(seconds=1), deferrable=deferrable))
    assert run.state() is WorkflowState.CANCELLED


def test_time_out_that_finds_it_completed_is_a_success(run: Run) -> None:
    trigger = run.defer(month(execution_timeout=timedelta(hours=1)))
    run.until(lambda: run.state() is WorkflowState.COMPLETED)
    event = trigger._payload(Reason.TIMED_OUT)
    assert month(execution_timeout=timedelta(hours=1)).execute_complete(run.context(), event) == 220


@pytest.mark.parametrize("state", [GIVEN_UP, RESTARTED, None], ids=str)
def test_only_a_persons_wish_cancels(run: Run, monkeypatch: pytest.MonkeyPatch, state: InstanceState | None) -> None:
    monkeypatch.setattr(releasing, "read_state", lambda instance: state)
    operator = slow()
    trigger = run.defer(operator)
    operator.on_kill()
    expected = WorkflowState.CANCELLED if state is GIVEN_UP else WorkflowState.RUNNING
    assert run.state() is expected

    async def answer(instance: Any) -> InstanceState | None:
        return state

    monkeypatch.setattr(trigger_base, "read_state_async", answer)
    monkeypatch.setattr(trigger_base, "ASK_SECONDS", 0.5)
    asyncio.run(trigger.on_kill())
    assert run.state() is expected
    run.hook.cancel_workflow(run.ids[0])


# -- pauses ------------------------------------------------------------------------------------------------------------


def pausing(marker: Path, **given: Any) -> HorsiesWorkflowOperator:
    return month(workflow="contract.outer", kwargs={"marker": str(marker), "on_error": "pause"}, **given)


@in_both_ways
def test_pause_inside_is_told_once_and_waited_for(
    run: Run, tmp_path: Path, deferrable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    marker = tmp_path / "broken"
    marker.touch()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.play, lambda: pausing(marker, deferrable=deferrable))
        run.until(lambda: run.ids and run.hook.read_workflow_outcome(run.ids[0]).is_paused)
        time.sleep(1)
        assert not waiting.done()
        marker.unlink()
        assert run.hook.retry_workflow(run.ids[0]).retried == ("check",)
        assert waiting.result(90) == 101
    told = [record.getMessage() for record in caplog.records if " is paused " in record.getMessage()]
    assert len(told) == 1, told
    assert "at node contract.outer/inner/check (BROKEN: the marker is there)" in told[0]


@in_both_ways
@pytest.mark.parametrize("on_paused", ["fail", "cancel"])
def test_pause_fails_the_task_or_cancels_the_workflow(
    run: Run, tmp_path: Path, deferrable: bool, on_paused: Any
) -> None:
    marker = tmp_path / "broken"
    marker.touch()
    expected, state = {
        "fail": (WorkflowPaused, WorkflowState.RUNNING),
        "cancel": (TaskCancelled, WorkflowState.CANCELLED),
    }[on_paused]
    with pytest.raises(expected, match="paused") as ended:
        run.play(lambda: pausing(marker, deferrable=deferrable, on_paused=on_paused))
    assert ended.value.task_id == run.ids[0]
    assert run.state() is state
    if deferrable:
        assert [event["reason"] for event in run.events] == ["paused"]
    run.hook.cancel_workflow(run.ids[0])


def test_workflow_that_went_on_before_the_task_resumed_is_waited_for_again(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "broken"
    marker.touch()
    trigger = run.defer(pausing(marker, on_paused="fail"))
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 60))
    assert event["reason"] == "paused"
    marker.unlink()
    run.hook.retry_workflow(run.ids[0])
    run.until(lambda: not run.hook.read_workflow_outcome(run.ids[0]).is_paused)
    # What was asked for when it was sent applies, even if the DAG has changed.
    edited = pausing(marker, on_paused="wait")
    try:
        value = edited.execute_complete(run.context(), event)
    except TaskDeferred as left:
        assert left.trigger.on_paused == "fail"  # type: ignore[attr-defined]
        value = pausing(marker).execute_complete(run.context(), asyncio.run(event_of(left.trigger)))  # type: ignore[arg-type]
    assert value == 101


# -- what changes while it waits ---------------------------------------------------------------------------------------


def test_namespace_of_the_connection_may_change_while_it_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = run.defer(month())
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    monkeypatch.setenv(name, json.dumps({**json.loads(os.environ[name]), "extra": {"namespace": "moved"}}))
    event = asyncio.run(event_of(trigger))
    assert month().execute_complete(run.context(), event) == 220


def test_connection_that_leads_elsewhere_is_an_error_and_no_success(
    run: Run, monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, template: str
) -> None:
    trigger = run.defer(month())
    postgres.create_database("elsewhere_workflows", template=template)
    try:
        store_connection(monkeypatch, postgres, "elsewhere_workflows")
        event = asyncio.run(event_of(trigger))
        assert event["reason"] == "not_found"
        with pytest.raises(TaskNotFound):
            month().execute_complete(run.context(), event)
    finally:
        postgres.drop_database("elsewhere_workflows")


def test_event_without_a_workflow_is_an_error(run: Run) -> None:
    with pytest.raises(Exception, match="names no horsies task"):
        month().execute_complete(run.context(), {"reason": "ended", "message": None, "task_ids": []})


def test_stored_trigger_of_this_release_can_be_made_again(run: Run) -> None:
    trigger = run.defer(slow(show_logs=True, on_paused="cancel"))
    path, kwargs = trigger.serialize()
    assert path == "airflow_horsies.triggers.HorsiesWorkflowTrigger"
    assert json.loads(json.dumps(kwargs)) == kwargs
    assert type(trigger)(**kwargs).serialize() == (path, kwargs)
    run.hook.cancel_workflow(run.ids[0])


def test_missing_grant_is_told_with_the_statement_that_gives_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, workflow_database: str
) -> None:
    migrate_ledger(run.hook.client)
    role = f"poor_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(**run.hook.settings.database.connect_args, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'poor'".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA public TO {role}".encode())
        connection.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}".encode())
        connection.execute(f"REVOKE ALL ON horsies_workflows, horsies_workflow_tasks FROM {role}".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA airflow_horsies TO {role}".encode())
        connection.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO {role}".encode()
        )
        connection.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA airflow_horsies TO {role}".encode())
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    stored = {**json.loads(os.environ[name]), "login": role, "password": "poor"}
    monkeypatch.setenv(name, json.dumps(stored))
    try:
        with pytest.raises(AccessDenied, match="GRANT SELECT, INSERT, UPDATE ON horsies_workflows"):
            run.play(month)
    finally:
        with psycopg.connect(**run.hook.settings.database.connect_args, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())
    assert run.ids == []


# -- the sensor --------------------------------------------------------------------------------------------------------


@in_both_ways
def test_sensor_waits_for_the_workflow_of_another_task_instance_and_follows_its_clear(
    run: Run, deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__RESUME_HOLD_SECONDS", "0")
    run.defer(slow())
    key = run.instance

    def make() -> HorsiesWorkflowSensor:
        return HorsiesWorkflowSensor(
            task_id="wait",
            external_dag_id=key.dag_id,
            external_task_id=key.task_id,
            external_run_id=key.run_id,
            horsies_conn_id=CONN_ID,
            poke_interval=0.2,
            timeout=120,
            deferrable=deferrable,
        )

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Run(run.hook).play, make)
        time.sleep(1)
        # The clear cancels the first workflow and starts another one at once.
        run.defer(slow(kwargs={"n": 2, "sleep": 1}), try_number=2, clear_number=1)
        assert waiting.result(120) is None
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.COMPLETED]


@in_both_ways
def test_sensor_fails_with_the_cause_of_the_workflow(
    run: Run, tmp_path: Path, deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__RESUME_HOLD_SECONDS", "0")
    (tmp_path / "broken").touch()
    kwargs = {"n": 1, "marker": str(tmp_path / "broken")}
    workflow_id = run.play(lambda: month(workflow="contract.child", kwargs=kwargs, wait_for_completion=False))

    def make() -> HorsiesWorkflowSensor:
        given = {"horsies_conn_id": CONN_ID, "poke_interval": 0.2, "timeout": 120, "deferrable": deferrable}
        return HorsiesWorkflowSensor(task_id="wait", workflow_ids=workflow_id, **given)

    with pytest.raises(AirflowFailException, match=r"at node contract\.child/check .*BROKEN"):
        Run(run.hook).play(make)
