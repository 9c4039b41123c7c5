"""Processes that start a workflow are killed with SIGKILL, alone or beside seven others: it is started and run once."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    AirflowTry,
    Graph,
    RetryPolicy,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    WorkflowState,
    node,
    wrap_definition,
)
from tests.integration.conftest import MakeHook, _cloned
from tests.integration.releases import can_be_controlled, keeps_history
from tests.integration.test_submission_kills import COMMIT, LOCK, Moment, kill_at, moments_of, watch
from tests.integration.test_workflow_contract import SECONDS, make_worker, rows, states_of, until

KILLS = int(os.environ.get("WORKFLOW_KILLS", "16"))
STARTERS = 8
NAMESPACE = {"namespace": "tests"}
FIRST = AirflowTry(try_number=1)
CRASHES = RetryPolicy.fixed([1, 1], auto_retry_for=["WORKER_CRASHED"], jitter=False)

MakeGraph = Callable[[Path], Graph]
Everything = dict[str, list[tuple[Any, ...]]]


def adhoc(marker: Path) -> Graph:
    nodes = {"mark": node("w.mark", path=str(marker)), "next": node("w.count", after=["mark"])}
    return Graph(name="marked", nodes=nodes, output="next")


def registered(marker: Path) -> Graph:
    return wrap_definition("contract.marked", {"path": str(marker)})


@pytest.fixture(scope="module")
def workflow_database(
    postgres: EmbeddedPostgres, template: str, release: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    for name in _cloned(postgres, template):
        with make_worker(postgres, name, release, tmp_path_factory.mktemp(name), processes=2):
            yield name


def instance(run_id: str) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="killed", run_id=run_id, task_id="load")


def submit(hook: HorsiesHook, run_id: str, graph: Graph, try_number: int = 1) -> list[SubmitResult]:
    return [hook.submit_workflow(graph, instance(run_id), AirflowTry(try_number=try_number))]


# -- alone, at every moment, while no worker runs -------------------------------------------------------------------


def everything(hook: HorsiesHook, release: str) -> Everything:
    """Every row that starting a workflow could have written or changed, whole."""
    tables = ["horsies_tasks", "horsies_workflows", "horsies_workflow_tasks", "airflow_horsies.submissions"]
    if keeps_history(release):
        tables.append("horsies_task_history")
    statement = "SELECT (to_jsonb(t) - 'seen_try')::text FROM {} AS t ORDER BY 1"
    return {table: rows(hook, statement.format(table)) for table in tables}


def fail_workflow(hook: HorsiesHook, workflow_id: str) -> None:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE horsies_workflows SET status = 'FAILED' WHERE id::text = %s", (workflow_id,))


@pytest.mark.parametrize(
    ("make_graph", "case"),
    [
        (registered, "first"),
        (adhoc, "first"),
        (registered, "clear"),
        pytest.param(adhoc, "clear", marks=pytest.mark.slow),
        pytest.param(registered, "next round", marks=pytest.mark.slow),
        pytest.param(adhoc, "next round", marks=pytest.mark.slow),
    ],
)
def test_killed_start_left_all_or_nothing_and_is_done_once(
    make_hook: MakeHook, database: str, release: str, tmp_path: Path, make_graph: MakeGraph, case: str
) -> None:
    if case == "clear" and not can_be_controlled(release):
        pytest.skip("SQL cannot cancel a workflow of this release")

    def connect() -> HorsiesHook:
        return make_hook(database, extra=NAMESPACE)

    hook, graph = connect(), make_graph(tmp_path / "marker")
    migrate_ledger(hook.client)

    def prepare(run_id: str) -> str | None:
        if case == "first":
            return None
        (sent,) = submit(hook, run_id, graph)
        if case == "next round":
            fail_workflow(hook, sent.task_id)
        return sent.task_id

    def again(run_id: str, try_number: int) -> Callable[[HorsiesHook], list[SubmitResult]]:
        tried = AirflowTry(try_number=try_number, clear_number=int(case == "clear"))
        return lambda by: [by.submit_workflow(graph, instance(run_id), tried)]

    prepare("rehearsal")
    moments = moments_of(again("rehearsal", 2), connect())
    begin = min(moment.step for moment in moments if moment.what == LOCK)
    commit = max(moment.step for moment in moments if moment.what == COMMIT)
    moments = [moment for moment in moments if moment.step >= begin]
    print(f"{len(moments)} kills in {commit - begin} statements and a commit")
    for number, death in enumerate(moments):
        run_id = f"run-{number}"
        earlier = prepare(run_id)
        before = everything(hook, release)
        kill_at(death, again(run_id, 2), connect)
        killed = everything(hook, release)
        (result,) = again(run_id, 3)(hook)
        after = everything(hook, release)
        if death.step == commit and death.side == "after":
            assert killed == after, f"killed {death}, and doing it again changed something"
            assert result.outcome is SubmitOutcome.REATTACHED
        elif death.side != "during":
            assert killed == before, f"killed {death}, and it left something behind"
            assert result.outcome is SubmitOutcome.SENT, death
        for table, count in (
            ("horsies_workflows", 1),
            ("horsies_workflow_tasks", len(graph.with_begin().nodes)),
            ("airflow_horsies.submissions", 1),
        ):
            assert len(after[table]) - len(before[table]) == count, (death, table)
        assert [each.horsies_task_id for each in hook.read_submissions(instance(run_id))][-1] == result.task_id
        assert hook.read_workflow_outcome(result.task_id).state is WorkflowState.RUNNING
        if case == "clear":
            assert earlier is not None
            assert hook.read_workflow_outcome(earlier).state is WorkflowState.CANCELLED


# -- eight at once, while workers run -------------------------------------------------------------------------------


class Herd:
    """Processes that start the same workflow at the same time; most of them are killed while they do."""

    def __init__(self, start: Callable[[HorsiesHook], object], connect: Callable[[], HorsiesHook]) -> None:
        self._start = start
        self._connect = connect

    def run(self, deaths: list[Moment | None]) -> int:
        """Returns how many were killed."""
        gate_read, gate_write = os.pipe()
        children = []
        for death in deaths:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.close(gate_write)
                    hook = self._connect()
                    watch(hook, death)
                    os.read(gate_read, 1)
                    self._start(hook)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        os.close(gate_read)
        time.sleep(0.2)
        # The end of the pipe lets all of them go.
        os.close(gate_write)
        ended = [os.waitpid(child, 0)[1] for child in children]
        assert not any(os.WIFEXITED(status) and os.WEXITSTATUS(status) for status in ended), "a starter failed"
        return sum(os.WIFSIGNALED(status) for status in ended)


@pytest.mark.both_releases
@pytest.mark.parametrize("make_graph", [registered, adhoc])
@pytest.mark.parametrize("how", ["of a task instance", "by its id"])
def test_workflow_of_eight_starters_of_which_most_are_killed_runs_once(
    make_hook: MakeHook, workflow_database: str, tmp_path: Path, make_graph: MakeGraph, how: str
) -> None:
    def connect() -> HorsiesHook:
        return make_hook(workflow_database, extra=NAMESPACE)

    hook, draw = connect(), random.Random(f"{make_graph.__name__} {how}")
    migrate_ledger(hook.client)
    kills = rounds = 0
    known_before = rows(hook, "SELECT count(*) FROM horsies_workflows")[0][0]
    started: dict[str, Path] = {}

    def starting(run_id: str, graph: Graph) -> Callable[[HorsiesHook], str]:
        workflow_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{workflow_database} {run_id}"))
        if how == "by its id":
            return lambda by: by.start_workflow(graph, workflow_id=workflow_id)
        return lambda by: by.submit_workflow(graph, instance(run_id), FIRST).task_id

    rehearsal = starting(f"{make_graph.__name__} {how} rehearsal", make_graph(tmp_path / "rehearsal"))
    moments = moments_of(lambda by: [rehearsal(by)], connect())  # type: ignore[list-item]
    started[rehearsal(hook)] = tmp_path / "rehearsal"
    # What comes first only looks at the database.
    moments = moments[len(moments) // 3 :]
    while kills < KILLS // 4:
        run_id, marker = f"{make_graph.__name__} {how} {rounds}", tmp_path / f"marker-{rounds}"
        start = starting(run_id, make_graph(marker))
        kills += Herd(start, connect).run([draw.choice(moments) for _ in range(STARTERS - rounds % 2)])
        # As the next try of Airflow does.
        workflow_id = start(hook)
        assert workflow_id not in started
        started[workflow_id] = marker
        if how == "of a task instance":
            assert [each.horsies_task_id for each in hook.read_submissions(instance(run_id))] == [workflow_id]
        rounds += 1
    print(f"{kills} kills in {rounds} rounds of {STARTERS} starters")
    for workflow_id, marker in started.items():
        outcome = hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
        assert (outcome.state, outcome.output) == (WorkflowState.COMPLETED, 1), workflow_id
        assert marker.read_text() == "ran\n", marker
    outer = "SELECT count(*) FROM horsies_workflows WHERE parent_workflow_id IS NULL"
    below = "SELECT count(*) FROM horsies_workflows WHERE parent_workflow_id IS NOT NULL"
    assert (rows(hook, outer)[0][0] + rows(hook, below)[0][0]) - known_before == len(started) * (
        2 if make_graph is registered else 1
    )


# -- Postgres --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workflow_outlives_the_kill_of_postgres_and_is_heard_of(release: str, tmp_path: Path) -> None:
    """SIGKILL of the whole server, and its recovery, while a node runs, in it and with a waiter on the event loop."""
    postgres = EmbeddedPostgres(tmp_path / "postgres", durable=True)
    marker, gate = tmp_path / "marker", tmp_path / "gate"
    nodes = {
        "mark": node("w.mark", path=str(marker)),
        "gated": node("w.gated", path=str(gate), after=["mark"], retry_policy=CRASHES),
        "child": node(workflow="contract.child", n=1, after=["gated"]),
    }
    try:
        with postgres, make_worker(postgres, "postgres", release, tmp_path) as worker:
            hook = hook_of(postgres)
            workflow_id = hook.start_workflow(Graph(name="outlives", nodes=nodes, output="child"))
            until(lambda: states_of(hook, workflow_id)["gated"] == "RUNNING")

            async def wait() -> WorkflowState | None:
                async with hook.subscribe_workflows([workflow_id]) as waiter:
                    killing = asyncio.create_task(asyncio.to_thread(kill_and_recover, postgres))
                    await killing
                    if not worker.process.running:
                        worker.start()
                    gate.touch()
                    async with asyncio.timeout(4 * SECONDS):
                        while waiter.pending:
                            await waiter.news()
                    return waiter.ended[workflow_id]

            assert asyncio.run(wait()) is WorkflowState.COMPLETED
            assert hook.read_workflow_outcome(workflow_id).output == 101
            assert marker.read_text() == "ran\n"
            hook.close()
    finally:
        postgres.delete()


def hook_of(postgres: EmbeddedPostgres) -> HorsiesHook:
    info = postgres.conninfo()
    fields = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
    connection = Connection(conn_id="killed", conn_type="horsies", schema=info["dbname"], **fields)
    return HorsiesHook("killed", connection=connection)


def kill_and_recover(postgres: EmbeddedPostgres) -> None:
    server = psutil.Process(postgres.process.pid)
    for process in [server, *server.children(True)]:
        # A backend may end by itself meanwhile.
        with suppress(psutil.NoSuchProcess):
            process.kill()
    postgres.process.wait(60)
    time.sleep(2)
    (postgres.data_folder / "postmaster.pid").unlink(missing_ok=True)
    postgres.process.start()

    def answers() -> bool:
        try:
            psycopg.connect(**postgres.conninfo(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    until(answers)
