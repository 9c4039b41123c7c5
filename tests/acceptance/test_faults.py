"""Something is killed or restarted while real DAG runs wait: each ends as it should, nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from airflow.sdk import Connection

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import GuardedProcess
from airflow_horsies.embedded.stack import AIRFLOW_DATABASE, EmbeddedStack
from airflow_horsies.embedded.worker import HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, TaskState, TaskView
from tests.acceptance.conftest import WORKER_PATH, AirflowApi

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

WAITERS = int(os.environ.get("WAITERS", "10"))
MANY, FEW = f"waiting_{WAITERS}", "waiting_3"
FAULTS = ("triggerer", "connections", "database", "scheduler")
SHORT_RUNS = int(os.environ.get("SHORT_RUNS", "20"))
PATIENCE = 300.0


@dataclass
class Apart:
    """A horsies database on a server of its own with a worker of its own: Airflow outlives what happens to them."""

    postgres: EmbeddedPostgres
    worker: HorsiesWorker
    hook: HorsiesHook

    def query(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(**self.postgres.conninfo(), autocommit=True) as connection:
            return connection.execute(query, params or None).fetchall()

    def sent(self, dag_id: str, run_id: str) -> list[TaskView]:
        """What a run sent, in the order of its task instances; one of them twice would be there twice."""
        found = self.query(
            "SELECT horsies_task_id::text FROM airflow_horsies.submissions "
            "WHERE dag_id = %s AND run_id = %s ORDER BY map_index, life, round",
            *(dag_id, run_id),
        )
        tasks = self.hook.read_tasks(task_id for (task_id,) in found)
        return [tasks[task_id] for (task_id,) in found]

    def let_go(self, dag_id: str, run_id: str) -> None:
        """The delay of the tasks is over: the worker may run them."""
        ids = [task.id for task in self.sent(dag_id, run_id)]
        self.query("UPDATE horsies_tasks SET enqueued_at = now() WHERE id = ANY(%s::uuid[]) RETURNING 1", ids)
        self.query("SELECT pg_notify('task_new', id) FROM unnest(%s::text[]) AS id", ids)

    def until_completed(self, dag_id: str, run_id: str) -> None:
        for task in self.hook.wait([task.id for task in self.sent(dag_id, run_id)], timeout_seconds=PATIENCE):
            assert task.state is TaskState.COMPLETED

    def listeners(self) -> int:
        """Connections of Airflow's side that listen; the test's own are not counted."""
        return len(self.backends("query = 'LISTEN task_done'"))

    def backends(self, condition: str = "true") -> list[int]:
        query = f"SELECT pid FROM pg_stat_activity WHERE application_name = 'airflow-horsies' AND {condition}"
        return [pid for (pid,) in self.query(query)]


@dataclass
class Waiting:
    """DAG runs whose tasks are all deferred: one of fifty, and a small one for each fault."""

    many: str
    few: dict[str, str]


@pytest.fixture(scope="module")
def apart(api: AirflowApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    folder = tmp_path_factory.mktemp("apart")
    with EmbeddedPostgres(folder, durable=False) as postgres:
        info = postgres.conninfo()
        worker = HorsiesWorker(
            "acceptance_tasks:app",
            conninfo=info,
            log=folder / "worker.log",
            folder=folder,
            processes=2,
            environ={"PYTHONPATH": WORKER_PATH, "HORSIES_REPORT_FOLDER": str(folder / "reports")},
        )
        fields = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
        fields |= {"conn_type": "horsies", "schema": info["dbname"]}
        api.call("POST", "/connections", json={"connection_id": "horsies_apart", **fields})
        extra = json.dumps({"application_name": "the test itself"})
        connection = Connection(conn_id="horsies_apart", extra=extra, **fields)
        with worker, HorsiesHook("horsies_apart", connection=connection) as hook:
            yield Apart(postgres, worker, hook)


@pytest.fixture(scope="module")
def waiting(api: AirflowApi, apart: Apart) -> Waiting:
    runs = Waiting(api.trigger(MANY), {fault: api.trigger(FEW) for fault in FAULTS})
    for dag_id, run_id in ((MANY, runs.many), *((FEW, run_id) for run_id in runs.few.values())):
        until_waited_for(api, dag_id, run_id)
    return runs


def until_waited_for(api: AirflowApi, dag_id: str, run_id: str, *, not_by: int | None = None) -> int:
    """Returns the triggerer's job once it has taken up every task of a run."""
    jobs: set[int | None] = set()

    def taken_up() -> bool:
        found = api.tasks(dag_id, run_id).values()
        assert {each["state"] for each in found} <= {None, "scheduled", "queued", "running", "deferred"}, found
        jobs.clear()
        jobs.update(each["triggerer_job"] and each["triggerer_job"]["id"] for each in found)
        return len(jobs) == 1 and not jobs & {None, not_by}

    api.until(taken_up, PATIENCE, f"the deferral of {dag_id}")
    (job,) = jobs
    assert job is not None
    return job


def assert_all_wait(api: AirflowApi, apart: Apart, waiting: Waiting) -> None:
    """The fifty are where they were, and the triggerer waits for all of them on one connection."""
    states = Counter(each["state"] for each in api.tasks(MANY, waiting.many).values())
    assert states == {"deferred": WAITERS}, api.story(MANY, waiting.many)
    api.until(lambda: apart.listeners() == 1, PATIENCE, "the one listening connection")
    assert {task.state for task in apart.sent(MANY, waiting.many)} == {TaskState.PENDING}


def assert_ended_well(api: AirflowApi, apart: Apart, dag_id: str, run_id: str, size: int) -> None:
    """Every task instance succeeded with its value, by one horsies task, in one attempt."""
    assert api.wait(dag_id, run_id, seconds=PATIENCE) == "success", api.story(dag_id, run_id)
    assert [(task["state"], task["try_number"]) for task in api.tasks(dag_id, run_id).values()] == [
        ("success", 1)
    ] * size
    sent = apart.sent(dag_id, run_id)
    assert [task.result and task.result.ok for task in sent] == list(range(1, size + 1))
    assert [api.xcom(dag_id, run_id, "one", map_index=index) for index in range(0, size, 5)] == list(
        range(1, size + 1, 5)
    )
    assert [[attempt.outcome for attempt in task.attempts] for task in sent] == [["COMPLETED"]] * size


def kill(process: GuardedProcess) -> None:
    """SIGKILL of a process and everything below it, as when its machine goes down."""
    root = psutil.Process(process.pid)
    for each in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(60)


@contextmanager
def dead(process: GuardedProcess) -> Iterator[None]:
    """Killed, and started again at the end."""
    kill(process)
    try:
        yield
    finally:
        process.start()


@contextmanager
def frozen(process: GuardedProcess) -> Iterator[None]:
    """It does nothing for a while, so what happens meanwhile surely happens before it can react."""
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    try:
        for each in tree:
            each.suspend()
        yield
    finally:
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.resume()


def test_short_tasks_never_fail_by_a_state_mismatch(api: AirflowApi, hook: HorsiesHook) -> None:
    """Runs whose task ends before it would be deferred; the environment variable SHORT_RUNS tells how many."""
    begun = time.monotonic()
    runs = [api.trigger("short") for _ in range(SHORT_RUNS)]
    states = [api.wait("short", run_id, seconds=PATIENCE + 5 * SHORT_RUNS) for run_id in runs]
    print(f"{SHORT_RUNS} short runs in {time.monotonic() - begun:.0f} s")
    assert Counter(states) == {"success": SHORT_RUNS}
    assert api.call("GET", "/eventLogs?event=state%20mismatch&dag_id=short")["event_logs"] == []
    sent = [hook.read_submissions(TaskInstanceKey(dag_id="short", run_id=run_id, task_id="one")) for run_id in runs]
    assert Counter(map(len, sent)) == {1: SHORT_RUNS}


def test_end_while_the_triggerer_is_dead_is_not_lost(
    stack: EmbeddedStack, api: AirflowApi, apart: Apart, waiting: Waiting
) -> None:
    run_id = waiting.few["triggerer"]
    assert_all_wait(api, apart, waiting)
    earlier = until_waited_for(api, MANY, waiting.many)
    with dead(stack.airflow.processes["triggerer"]):
        apart.let_go(FEW, run_id)
        apart.until_completed(FEW, run_id)
        assert apart.listeners() == 0
    assert_ended_well(api, apart, FEW, run_id, 3)
    until_waited_for(api, MANY, waiting.many, not_by=earlier)
    assert_all_wait(api, apart, waiting)


def test_end_while_the_connections_of_the_triggerer_are_cut_is_not_lost(
    stack: EmbeddedStack, api: AirflowApi, apart: Apart, waiting: Waiting
) -> None:
    run_id = waiting.few["connections"]
    assert_all_wait(api, apart, waiting)
    with frozen(stack.airflow.processes["triggerer"]):
        cut = apart.backends()
        assert apart.query("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s) AS pid", cut) == [(True,)] * 2
        apart.let_go(FEW, run_id)
        apart.until_completed(FEW, run_id)
        assert apart.backends() == []
    assert_ended_well(api, apart, FEW, run_id, 3)
    assert_all_wait(api, apart, waiting)


def test_restart_of_the_database_is_outlived(api: AirflowApi, apart: Apart, waiting: Waiting) -> None:
    run_id = waiting.few["database"]
    assert_all_wait(api, apart, waiting)
    apart.postgres.restart()
    apart.let_go(FEW, run_id)
    assert_ended_well(api, apart, FEW, run_id, 3)
    assert_all_wait(api, apart, waiting)


def test_end_while_the_scheduler_is_dead_is_not_lost(
    stack: EmbeddedStack, api: AirflowApi, apart: Apart, waiting: Waiting
) -> None:
    run_id = waiting.few["scheduler"]
    assert_all_wait(api, apart, waiting)
    with dead(stack.airflow.processes["scheduler"]):
        apart.let_go(FEW, run_id)
        apart.until_completed(FEW, run_id)
    assert_ended_well(api, apart, FEW, run_id, 3)
    assert_all_wait(api, apart, waiting)


def test_tasks_of_a_killed_worker_are_run_again_by_horsies_alone(api: AirflowApi, apart: Apart, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    runs = [api.trigger("crashing", path=str(gate)) for _ in range(3)]

    def states() -> Counter[TaskState]:
        return Counter(task.state for run_id in runs for task in apart.sent("crashing", run_id))

    api.until(lambda: states()[TaskState.RUNNING] == 2 and states().total() == 3, PATIENCE, "two running tasks")
    running = {task.id for run_id in runs for task in apart.sent("crashing", run_id) if task.state is TaskState.RUNNING}
    kill(apart.worker.process)
    apart.worker.start()
    api.until(
        lambda: all(task.attempts for task in apart.hook.read_tasks(running).values()), PATIENCE, "the crashes' record"
    )
    gate.touch()
    assert [api.wait("crashing", run_id, seconds=PATIENCE) for run_id in runs] == ["success"] * 3
    for run_id in runs:
        (task,) = apart.sent("crashing", run_id)
        told = [(attempt.error_code, attempt.will_retry) for attempt in task.attempts]
        assert told == ([("WORKER_CRASHED", True)] if task.id in running else []) + [(None, False)]
        assert api.tasks("crashing", run_id)["one"]["try_number"] == 1


@pytest.mark.parametrize("ending", ["Reattached to", "Adopted"])
@pytest.mark.parametrize("victims", ["task process", "task process and its supervisor"])
def test_retry_after_the_task_process_was_killed_goes_on_with_the_same_horsies_task(
    stack: EmbeddedStack, api: AirflowApi, hook: HorsiesHook, tmp_path: Path, victims: str, ending: str
) -> None:
    gate = tmp_path / "gate"
    run_id = api.trigger("one_surviving", task_name="acceptance.wait_for_file", kwargs={"path": str(gate)})
    instance = TaskInstanceKey(dag_id="one_surviving", run_id=run_id, task_id="one")
    api.until(lambda: len(hook.read_submissions(instance)) == 1, PATIENCE, "the submission")
    (submission,) = hook.read_submissions(instance)
    api.until(lambda: hook.read_task(submission.horsies_task_id).state is TaskState.RUNNING, PATIENCE, "the start")

    ti_id = api.tasks("one_surviving", run_id)["one"]["id"]
    process = task_process(stack, ti_id)
    parent = process.parent()
    assert parent
    for each in [process] if victims == "task process" else [parent, process]:
        each.kill()
    if ending == "Adopted":
        gate.touch()
        hook.wait([submission.horsies_task_id], timeout_seconds=PATIENCE)
    if victims != "task process":
        let_heartbeat_lapse(stack, ti_id)
    api.until(lambda: api.tasks("one_surviving", run_id)["one"]["try_number"] == 2, PATIENCE, "the second try")
    said = f"{ending} task {submission.horsies_task_id}"
    api.until(lambda: said in api.log("one_surviving", run_id, "one", 2), PATIENCE, said)
    gate.touch()

    assert api.wait("one_surviving", run_id) == "success", api.story("one_surviving", run_id)
    assert hook.read_submissions(instance) == [submission]
    assert [attempt.outcome for attempt in hook.read_task(submission.horsies_task_id).attempts] == ["COMPLETED"]


def test_all_that_waited_through_the_faults_end_well_and_leave_nothing_behind(
    stack: EmbeddedStack, api: AirflowApi, apart: Apart, waiting: Waiting
) -> None:
    assert_all_wait(api, apart, waiting)
    apart.let_go(MANY, waiting.many)
    assert_ended_well(api, apart, MANY, waiting.many, WAITERS)
    for run_id in waiting.few.values():
        apart.let_go(FEW, run_id)
        assert_ended_well(api, apart, FEW, run_id, 3)
    [(live,)] = apart.query("SELECT count(*) FROM horsies_tasks")
    [(ended,)] = apart.query("SELECT count(*) FROM horsies_task_history")
    [(submitted,)] = apart.query("SELECT count(*) FROM airflow_horsies.submissions")
    assert (live, ended) == (0, submitted)
    api.until(lambda: apart.backends() == [], 60, "the end of the connections")
    with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
        assert connection.execute("SELECT count(*) FROM trigger").fetchone() == (0,)


def task_process(stack: EmbeddedStack, ti_id: str) -> psutil.Process:
    scheduler = psutil.Process(stack.airflow.processes["scheduler"].pid)
    for each in scheduler.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if f"airflow worker -- {ti_id}" in " ".join(each.cmdline()):
                return each
    raise AssertionError(f"no process runs {ti_id}")


def let_heartbeat_lapse(stack: EmbeddedStack, ti_id: str) -> None:
    """Nobody is left to tell of the end: Airflow finds out by the missing heartbeat, after five minutes or now."""
    with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
        query = "UPDATE task_instance SET last_heartbeat_at = now() - interval '1 hour' WHERE id = %s"
        connection.execute(query, (ti_id,))
