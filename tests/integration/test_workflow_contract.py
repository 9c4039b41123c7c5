"""A workflow that we start by SQL is run, paused, resumed and cancelled by real workers of each supported release."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.exceptions import SchemaUnsupported, TaskIdTaken, WorkflowNotFound, WorkflowNotPaused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    CancelOutcome,
    Graph,
    NodeState,
    RetryPolicy,
    WorkflowState,
    node,
    ref,
    wrap_definition,
)
from tests.integration.conftest import HERE, MakeHook, _cloned
from tests.integration.releases import RELEASES, can_be_controlled, keeps_history, release_python

SECONDS = 60
CANCELS = int(os.environ.get("WORKFLOW_CANCELS", "12"))
LIVE = "('PENDING', 'CLAIMED', 'RUNNING')"

controlled = pytest.mark.parametrize(
    "release", [release for release in RELEASES if can_be_controlled(release)], indirect=True
)


def make_worker(postgres: EmbeddedPostgres, database: str, release: str, folder: Path, **more: Any) -> HorsiesWorker:
    return HorsiesWorker(
        "workflow_contract_tasks:app",
        conninfo=postgres.conninfo(database),
        log=folder / "worker.log",
        folder=HERE,
        python=release_python(release),
        **more,
    )


@pytest.fixture(scope="module")
def workflow_database(
    postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    for name in _cloned(postgres, template):
        with make_worker(postgres, name, release, tmp_path_factory.mktemp(name), processes=2):
            yield name


@pytest.fixture
def hook(make_hook: MakeHook, workflow_database: str) -> HorsiesHook:
    return make_hook(workflow_database)


def rows(hook: HorsiesHook, sql: str, *params: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        return connection.execute(sql.encode(), params).fetchall()


def until(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < give_up, "it did not come"
        time.sleep(0.05)
    return found


def states_of(hook: HorsiesHook, workflow_id: str) -> dict[str, str]:
    return {"/".join(path): known.shown_state for path, known in hook.read_workflow(workflow_id).walk()}


DIAMOND = Graph(
    name="diamond of tasks",
    nodes={
        "fetch": node("w.fetch", n=5),
        "left": node("w.double", x=ref("fetch")),
        "right": node("w.check", x=ref("fetch")),
        "child": node(workflow="contract.child", after=["fetch"], n=1),
        "join": node("w.sum", a=ref("left"), b=ref("right")),
        "total": node("w.sum", a=ref("join"), b=ref("child")),
    },
    output="total",
)


# -- starting --------------------------------------------------------------------------------------------------------


def test_registered_workflow_is_started_by_its_key_and_returns_its_output(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.diamond", {"n": 5}))
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert (outcome.state, outcome.output, outcome.failure) == (WorkflowState.COMPLETED, 10 + 105 + 105, None)
    states = states_of(hook, workflow_id)
    assert set(states.values()) == {"COMPLETED"}
    assert {"begin", "workflow", "workflow/total", "workflow/child/check"} <= states.keys()
    (inner,) = [known.workflow for known in hook.read_workflow(workflow_id).nodes if known.workflow]
    assert (inner.definition_key, inner.depth, inner.output) == ("contract.diamond", 1, "total")


def test_graph_of_tasks_and_a_workflow_returns_the_value_of_its_output_node(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(DIAMOND)
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert (outcome.state, outcome.output) == (WorkflowState.COMPLETED, 10 + 105 + 101)
    view = hook.read_workflow(workflow_id)
    by_name = {known.name: known for known in view.nodes}
    assert by_name["join"].args_from == {"a": "left", "b": "right"}
    assert by_name["left"].result is not None and by_name["left"].result.ok == 10
    assert view.finished_at is not None and view.started_at is not None
    # What runs a node is a task as any other.
    assert all(hook.read_task(known.task_id).is_workflow_task for known in view.nodes if known.task_id)


def test_graph_without_an_output_node_returns_the_values_of_its_last_nodes(hook: HorsiesHook) -> None:
    nodes = {"a": node("w.text", value="naïve 馬\x00"), "b": node("w.fetch", n=2), "c": node("w.double", x=ref("b"))}
    outcome = hook.wait_workflow(hook.start_workflow(Graph(name="loose", nodes=nodes)), timeout_seconds=SECONDS)
    assert outcome.output == {"a": "naïve 馬\x00", "c": 4}


def test_registered_workflow_without_an_output_node_returns_the_values_of_its_last_nodes(hook: HorsiesHook) -> None:
    outcome = hook.wait_workflow(hook.start_workflow(wrap_definition("contract.loose")), timeout_seconds=SECONDS)
    assert outcome.output == {"first": 1, "second": 2}


def test_graph_that_begins_with_workflows_has_a_task_before_each(hook: HorsiesHook) -> None:
    nodes = {
        "one": node(workflow="contract.child", n=1),
        "two": node(workflow="contract.child", n=2),
        "sum": node("w.sum", a=ref("one"), b=ref("two")),
    }
    workflow_id = hook.start_workflow(Graph(name="two children", nodes=nodes, output="sum"))
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 203
    assert {"begin.one", "begin.two"} < states_of(hook, workflow_id).keys()


def test_any_quorum_and_allowed_failures_do_what_they_say(hook: HorsiesHook) -> None:
    nodes = {
        "good": node("w.fetch", n=1),
        "good_too": node("w.fetch", n=2),
        "bad": node("w.fail"),
        "first": node("w.count", after=["good", "bad"], join="any"),
        "most": node("w.count", after=["good", "good_too", "bad"], join="quorum", min_success=2),
        "all": node("w.count", after=["good", "bad"]),
        "anyway": node("w.count", after=["bad"], allow_failed=True),
    }
    graph = Graph(name="joins", nodes=nodes, success=[["first", "most", "anyway"]], output="most")
    workflow_id = hook.start_workflow(graph)
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert (outcome.state, outcome.output) == (WorkflowState.COMPLETED, 1)
    states = states_of(hook, workflow_id)
    assert (states["bad"], states["all"], states["anyway"], states["first"]) == (
        *("FAILED", "SKIPPED", "COMPLETED", "COMPLETED"),
    )


def test_same_id_starts_once_and_another_graph_under_it_is_refused(hook: HorsiesHook) -> None:
    workflow_id = str(uuid.uuid4())
    assert hook.start_workflow(DIAMOND, workflow_id=workflow_id) == workflow_id
    assert hook.start_workflow(DIAMOND, workflow_id=workflow_id) == workflow_id
    other = {**DIAMOND.nodes, "fetch": node("w.fetch", n=6)}
    with pytest.raises(TaskIdTaken, match="with other nodes or arguments"):
        hook.start_workflow(replace(DIAMOND, nodes=other), workflow_id=workflow_id)
    with pytest.raises(TaskIdTaken):
        hook.start_workflow(wrap_definition("contract.child", {"n": 1}), workflow_id=workflow_id)
    hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert hook.start_workflow(DIAMOND, workflow_id=workflow_id) == workflow_id
    assert len(hook.read_workflow(workflow_id).nodes) == len(DIAMOND.nodes)


def test_eight_starters_at_once_start_one(hook: HorsiesHook, make_hook: MakeHook, workflow_database: str) -> None:
    workflow_id = str(uuid.uuid4())
    graph = wrap_definition("contract.child", {"n": 1})
    gate = threading.Barrier(8)

    def start(one: HorsiesHook) -> str:
        gate.wait()
        return one.start_workflow(graph, workflow_id=workflow_id)

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(start, [make_hook(workflow_database) for _ in range(8)]))
    assert set(started) == {workflow_id}
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 101
    sql = "SELECT count(*) FROM horsies_workflow_tasks WHERE workflow_id::text = %s"
    assert rows(hook, sql, workflow_id) == [(2,)]


def test_id_of_any_uuid_version_and_in_any_form_is_accepted(hook: HorsiesHook) -> None:
    for given in (uuid.uuid4(), uuid.uuid5(uuid.NAMESPACE_DNS, str(time.time_ns())), uuid.uuid1()):
        workflow_id = hook.start_workflow(wrap_definition("contract.child", {"n": 1}), workflow_id=str(given).upper())
        assert workflow_id == str(given)
        assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).state is WorkflowState.COMPLETED


def test_id_of_a_task_may_be_that_of_a_workflow(hook: HorsiesHook) -> None:
    graph = Graph(name="one", nodes={"a": node("w.fetch", n=3)}, output="a")
    (task_id,) = [known.task_id for known in hook.read_workflow(hook.start_workflow(graph)).nodes]
    assert task_id is not None
    assert hook.start_workflow(graph, workflow_id=task_id) == task_id
    assert hook.wait_workflow(task_id, timeout_seconds=SECONDS).output == 3
    assert hook.wait([task_id], timeout_seconds=SECONDS)[0].task_name == "w.fetch"


# -- failures --------------------------------------------------------------------------------------------------------


def test_failure_names_the_innermost_node_with_its_path(hook: HorsiesHook, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    graph = wrap_definition("contract.outer", {"marker": str(marker), "on_error": "fail"})
    outcome = hook.wait_workflow(hook.start_workflow(graph), timeout_seconds=SECONDS)
    assert outcome.state is WorkflowState.FAILED
    assert outcome.failure is not None
    assert outcome.failure.path == ("contract.outer", "inner", "check")
    assert (outcome.failure.error.error_code, outcome.failure.error.message) == ("BROKEN", "the marker is there")
    assert outcome.failure.error.data == {"marker": str(marker)}
    assert hook.read_task(outcome.failure.task_id or "").error_code == "BROKEN"
    assert outcome.error is not None and outcome.error.error_code == "SUBWORKFLOW_FAILED"


@pytest.mark.parametrize(
    ("graph", "code", "path"),
    [
        (wrap_definition("contract.unknown"), "WORKFLOW_NOT_REGISTERED", ("begin",)),
        (
            wrap_definition("contract.child", {"n": "many"}),
            "WORKER_SERIALIZATION_ERROR|WORKFLOW_ENQUEUE_FAILED|SUBWORKFLOW_LOAD_FAILED",
            ("contract.child",),
        ),
        (
            wrap_definition("contract.child"),
            "WORKFLOW_ENQUEUE_FAILED|WORKER_SERIALIZATION_ERROR",
            ("contract.child",),
        ),
        (Graph(name="no such", nodes={"a": node("w.nothing")}), "WORKER_RESOLUTION_ERROR", ("a",)),
    ],
    ids=["unknown key", "wrong type", "missing parameter", "unknown task"],
)
def test_what_the_workers_do_not_know_fails_and_says_so(
    hook: HorsiesHook, graph: Graph, code: str, path: tuple[str, ...]
) -> None:
    outcome = hook.wait_workflow(hook.start_workflow(graph), timeout_seconds=SECONDS)
    assert outcome.state is WorkflowState.FAILED
    assert outcome.failure is not None
    assert outcome.failure.path == path
    assert outcome.failure.error.error_code in code.split("|"), outcome.failure


def test_node_with_a_retry_policy_is_tried_again(hook: HorsiesHook, tmp_path: Path) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    nodes = {"a": node("w.die", marker=str(tmp_path / "died"), retry_policy=policy)}
    workflow_id = hook.start_workflow(Graph(name="dies once", nodes=nodes, output="a"))
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 1
    (known,) = hook.read_workflow(workflow_id).nodes
    assert [attempt.outcome for attempt in hook.read_task(known.task_id or "").attempts] == ["FAILED", "COMPLETED"]


def test_crash_without_a_policy_fails_the_workflow(hook: HorsiesHook, tmp_path: Path) -> None:
    nodes = {"a": node("w.die", marker=str(tmp_path / "died")), "b": node("w.count", after=["a"])}
    workflow_id = hook.start_workflow(Graph(name="dies", nodes=nodes, output="b"))
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert outcome.state is WorkflowState.FAILED
    assert outcome.failure is not None and outcome.failure.error.error_code == "WORKER_CRASHED"
    assert states_of(hook, workflow_id)["b"] == "SKIPPED"


def test_begin_that_starts_too_late_expires_and_nothing_of_the_workflow_runs(hook: HorsiesHook) -> None:
    good_until = datetime.now(UTC) + timedelta(seconds=1)
    graph = wrap_definition("contract.child", {"n": 1}, queue="nobody", good_until=good_until)
    workflow_id = hook.start_workflow(graph)
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert outcome.state is WorkflowState.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.path, outcome.failure.error.error_code) == (("begin",), "TASK_EXPIRED")
    assert states_of(hook, workflow_id) == {"begin": "FAILED", "workflow": "SKIPPED"}


def test_worker_that_is_killed_in_a_node_is_noticed_by_another(
    make_hook: MakeHook, database: str, postgres: EmbeddedPostgres, release: str, tmp_path: Path
) -> None:
    hook = make_hook(database)
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    nodes = {"a": node("w.fetch", n=1, sleep=3.0, retry_policy=policy), "b": node("w.double", x=ref("a"))}
    with make_worker(postgres, database, release, tmp_path) as doomed:
        workflow_id = hook.start_workflow(Graph(name="moves on", nodes=nodes, output="b"))
        until(lambda: states_of(hook, workflow_id)["a"] == "RUNNING")
        for process in [psutil.Process(doomed.process.pid), *psutil.Process(doomed.process.pid).children(True)]:
            process.kill()
    with make_worker(postgres, database, release, tmp_path):
        assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 2


# -- cancelling ------------------------------------------------------------------------------------------------------


def live_remains(hook: HorsiesHook, workflow_id: str) -> list[tuple[Any, ...]]:
    sql = f"""
        SELECT t.id::text, t.status, n.status FROM horsies_workflows AS w
        JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id
        JOIN horsies_tasks AS t ON t.id = n.task_id
        WHERE w.root_workflow_id::text = %s AND t.status IN {LIVE}
    """
    return rows(hook, sql, workflow_id)


@controlled
def test_cancel_before_anything_runs_leaves_nothing(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.child", {"n": 1}, queue="nobody"))
    assert hook.cancel_workflow(workflow_id) is CancelOutcome.CANCELLED
    assert hook.cancel_workflow(workflow_id) is CancelOutcome.ALREADY_CANCELLED
    assert live_remains(hook, workflow_id) == []
    view = hook.read_workflow(workflow_id)
    assert (view.state, {known.state for known in view.nodes}) == (WorkflowState.CANCELLED, {NodeState.SKIPPED})
    assert view.finished_at is not None
    outcome = hook.wait_workflow(workflow_id)
    assert (outcome.state, outcome.output, outcome.failure, outcome.error) == (
        WorkflowState.CANCELLED,
        None,
        None,
        None,
    )


@controlled
def test_cancel_while_a_node_runs_ends_the_rest(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.diamond", {"sleep": 1.0}))
    until(lambda: states_of(hook, workflow_id).get("workflow/fetch") == "RUNNING")
    assert hook.cancel_workflow(workflow_id) is CancelOutcome.CANCELLED
    states = states_of(hook, workflow_id)
    assert states["workflow"] == states["workflow/child"] == "CANCELLED"
    assert states["workflow/left"] == states["workflow/total"] == "SKIPPED"
    until(lambda: not live_remains(hook, workflow_id))
    assert hook.wait_workflow(workflow_id).state is WorkflowState.CANCELLED


@controlled
def test_cancel_ends_a_node_that_waits_for_its_next_attempt(hook: HorsiesHook) -> None:
    policy = RetryPolicy.fixed([60], auto_retry_for=["LATER"], jitter=False)
    workflow_id = hook.start_workflow(Graph(name="parked", nodes={"a": node("w.retried", retry_policy=policy)}))
    until(lambda: [task for task, *_ in live_remains(hook, workflow_id) if hook.read_task(task).retry_count == 1])
    assert hook.cancel_workflow(workflow_id) is CancelOutcome.CANCELLED
    assert live_remains(hook, workflow_id) == []
    assert states_of(hook, workflow_id) == {"a": "SKIPPED"}


def test_older_releases_start_workflows_and_refuse_to_cancel_and_pause_them(hook: HorsiesHook, release: str) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.child", {"n": 1, "sleep": 1.0}))
    for verb, use in {"cancel": hook.cancel_workflow, "pause": hook.pause_workflow}.items():
        if not can_be_controlled(release):
            with pytest.raises(
                SchemaUnsupported, match=f"older than release 0\\.4\\.6, where SQL cannot {verb} a workflow"
            ):
                use(workflow_id)
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 101


@controlled
def test_workflow_that_has_ended_is_left_alone(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.child", {"n": 1}))
    hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert hook.cancel_workflow(workflow_id) is CancelOutcome.ALREADY_FINISHED
    assert hook.pause_workflow(workflow_id) == hook.resume_workflow(workflow_id) == []
    assert hook.read_workflow_outcome(workflow_id).state is WorkflowState.COMPLETED


@controlled
def test_unknown_workflow_is_not_found(hook: HorsiesHook) -> None:
    unknown = str(uuid.uuid4())
    assert hook.read_workflow_states([unknown]) == {}
    for use in (
        *(hook.read_workflow, hook.read_workflow_outcome, hook.wait_workflow, hook.cancel_workflow),
        *(hook.pause_workflow, hook.resume_workflow, hook.retry_workflow),
    ):
        with pytest.raises(WorkflowNotFound, match=unknown):
            use(unknown)


@controlled
def test_cancels_at_random_moments_leave_nothing_live_and_never_deadlock(
    hook: HorsiesHook, make_hook: MakeHook, workflow_database: str
) -> None:
    draw = random.Random(7)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = rows(hook, deadlocks)
    hooks = [make_hook(workflow_database) for _ in range(4)]

    def play(number: int) -> str:
        one = hooks[number % len(hooks)]
        nodes = {"d": node(workflow="contract.diamond", sleep=0.05), "c": node(workflow="contract.child", n=1)}
        graph = Graph(name="cancelled", nodes=nodes) if number % 2 else wrap_definition("contract.diamond", {"n": 1})
        workflow_id = one.start_workflow(graph)
        time.sleep(pauses[number])
        one.cancel_workflow(workflow_id)
        return workflow_id

    pauses = [draw.uniform(0, 0.8) for _ in range(CANCELS)]
    ids: list[str] = []
    # One at a time per connection.
    for start in range(0, CANCELS, len(hooks)):
        with ThreadPoolExecutor(len(hooks)) as pool:
            ids += pool.map(play, range(start, min(start + len(hooks), CANCELS)))
    for workflow_id in ids:
        until(lambda workflow_id=workflow_id: not live_remains(hook, workflow_id))  # type: ignore[misc]
    states = hook.read_workflow_states(ids)
    assert {status.state for status in states.values()} <= {WorkflowState.CANCELLED, WorkflowState.COMPLETED}
    live = "SELECT id FROM horsies_workflows WHERE root_workflow_id::text = ANY(%s) AND status IN ('RUNNING', 'PAUSED')"
    assert rows(hook, live, ids) == []
    assert rows(hook, deadlocks) == before


# -- pausing ---------------------------------------------------------------------------------------------------------


@controlled
def test_paused_workflow_starts_nothing_and_goes_on_when_it_is_resumed(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(wrap_definition("contract.diamond", {"n": 1, "sleep": 0.5}))
    until(lambda: states_of(hook, workflow_id).get("workflow/fetch") == "RUNNING")
    assert workflow_id in hook.pause_workflow(workflow_id)
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS, until_paused=True).is_paused
    until(lambda: not [task for task, status, _ in live_remains(hook, workflow_id) if status == "RUNNING"])
    assert states_of(hook, workflow_id)["workflow/left"] in ("PENDING", "READY")
    assert workflow_id in hook.resume_workflow(workflow_id)
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert (outcome.state, outcome.output) == (WorkflowState.COMPLETED, 2 + 101 + 101)


@controlled
def test_pause_before_the_first_task_keeps_it_from_running(hook: HorsiesHook) -> None:
    nodes = {"slow": node("w.fetch", n=1, sleep=0.5), "next": node("w.double", x=ref("slow"))}
    workflow_id = hook.start_workflow(Graph(name="held", nodes=nodes, output="next"))
    assert hook.pause_workflow(workflow_id) == [workflow_id]
    assert hook.read_workflow_states([workflow_id])[workflow_id].state is WorkflowState.PAUSED
    assert hook.resume_workflow(workflow_id) == [workflow_id]
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 2


def test_pause_inside_is_seen_by_who_waits_for_the_outer_one(hook: HorsiesHook, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    workflow_id = hook.start_workflow(wrap_definition("contract.outer", {"marker": str(marker)}))
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS, until_paused=True)
    assert (outcome.state, outcome.is_paused) == (WorkflowState.RUNNING, True)
    assert outcome.failure is not None and outcome.failure.path == ("contract.outer", "inner", "check")

    async def wait() -> set[str]:
        async with hook.subscribe_workflows([workflow_id]) as waiter:
            while waiter.pending and not waiter.paused:
                await asyncio.wait_for(waiter.news(), SECONDS)
            return set(waiter.paused)

    assert asyncio.run(wait()) == {workflow_id}
    # The failed node stays failed: upstream goes on without it.
    assert hook.resume_workflow(workflow_id)
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).state is WorkflowState.FAILED


@controlled
def test_pause_inside_wakes_waiters_by_a_notification(hook: HorsiesHook, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    workflow_id = hook.start_workflow(wrap_definition("contract.outer", {"marker": str(marker)}))

    async def wait() -> float:
        # The slow poll alone would take half a minute.
        async with hook.subscribe_workflows([workflow_id]) as waiter:
            began = time.monotonic()
            while not waiter.paused:
                await asyncio.wait_for(waiter.news(), SECONDS)
            return time.monotonic() - began

    assert asyncio.run(wait()) < 20
    hook.cancel_workflow(workflow_id)
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).state is WorkflowState.CANCELLED


def test_failed_node_of_a_paused_workflow_runs_again(hook: HorsiesHook, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    workflow_id = hook.start_workflow(wrap_definition("contract.outer", {"marker": str(marker)}))
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS, until_paused=True).is_paused
    marker.unlink()
    assert hook.retry_workflow(workflow_id).retried == ("check",)
    outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    assert (outcome.state, outcome.output) == (WorkflowState.COMPLETED, 101)


def test_only_a_paused_workflow_can_be_tried_again(hook: HorsiesHook) -> None:
    workflow_id = hook.start_workflow(Graph(name="fails", nodes={"a": node("w.fail")}))
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).state is WorkflowState.FAILED
    with pytest.raises(WorkflowNotPaused, match="is not paused"):
        hook.retry_workflow(workflow_id)


@pytest.mark.parametrize("release", [known for known in RELEASES if keeps_history(known)], indirect=True)
def test_paused_workflow_expires_where_the_workers_allow_no_longer_pause(
    make_hook: MakeHook, database: str, postgres: EmbeddedPostgres, release: str, tmp_path: Path
) -> None:
    hook = make_hook(database)
    marker = tmp_path / "marker"
    marker.touch()
    with make_worker(postgres, database, release, tmp_path, environ={"PAUSED_AT_MOST": "2"}):
        nodes = {"a": node("w.fetch", n=1), "b": node("w.check", x=ref("a"), marker=str(marker))}
        plain = hook.start_workflow(Graph(name="pauses", nodes=nodes, output="b", on_error="pause"))
        outer = hook.start_workflow(wrap_definition("contract.outer", {"marker": str(marker)}))
        assert hook.wait_workflow(plain, timeout_seconds=SECONDS, until_paused=True).is_paused
        outcome = hook.wait_workflow(plain, timeout_seconds=SECONDS)
        assert (outcome.state, outcome.output, outcome.is_paused) == (WorkflowState.EXPIRED, None, False)
        assert live_remains(hook, plain) == []
        assert hook.cancel_workflow(plain) is CancelOutcome.ALREADY_FINISHED
        # The workflow around one that has expired ends, too.
        outcome = hook.wait_workflow(outer, timeout_seconds=SECONDS)
        print(outcome)
        assert outcome.state is WorkflowState.FAILED
        assert live_remains(hook, outer) == []


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_end_wakes_waiters_of_an_event_loop(hook: HorsiesHook) -> None:
    async def run() -> list[Any]:
        graph = wrap_definition("contract.child", {"n": 1, "sleep": 0.3})
        ids = [await hook.start_workflow_async(graph) for _ in range(3)]
        began = time.monotonic()
        outcomes = await asyncio.gather(*(hook.wait_workflow_async(one, timeout_seconds=SECONDS) for one in ids))
        assert time.monotonic() - began < 20
        return [outcome.output for outcome in outcomes]

    assert asyncio.run(run()) == [101, 101, 101]


def test_poll_covers_lost_notifications(make_hook: MakeHook, workflow_database: str) -> None:
    hook = make_hook(workflow_database, extra={"listen": "poll"})
    workflow_id = hook.start_workflow(wrap_definition("contract.child", {"n": 1}))
    (status,) = hook.wait_workflows([workflow_id], timeout_seconds=SECONDS, poll_seconds=0.5)
    assert status.state is WorkflowState.COMPLETED
