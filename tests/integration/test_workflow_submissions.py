"""The workflow of a task instance is started exactly once, on real tables, beside older releases and narrow roles."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.db.statement import sql_text
from airflow_horsies.exceptions import AccessDenied
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import PACKAGE, migrations
from airflow_horsies.models import (
    AirflowTry,
    CancelOutcome,
    Graph,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    WorkflowState,
    WorkKind,
    node,
    wrap_definition,
)
from tests.integration.conftest import MakeHook
from tests.integration.releases import keeps_history

NAMESPACE = {"namespace": "tests"}
MONTH = wrap_definition("flights.month", {"month": 3})


@pytest.fixture
def hook(make_hook: MakeHook, database: str) -> HorsiesHook:
    return make_hook(database, extra=NAMESPACE)


def instance(name: str = "load") -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="sales", run_id=f"manual__{uuid.uuid4()}", task_id=name)


def submit(hook: HorsiesHook, key: TaskInstanceKey, graph: Graph = MONTH, **tried: Any) -> SubmitResult:
    return hook.submit_workflow(graph, key, AirflowTry(**{"try_number": 1, **tried}))


def rows(hook: HorsiesHook, sql: str, *params: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        cursor = connection.execute(sql.encode(), params)
        return cursor.fetchall() if cursor.description else []


def set_state(hook: HorsiesHook, workflow_id: str, state: WorkflowState) -> None:
    rows(hook, "UPDATE horsies_workflows SET status = %s WHERE id::text = %s", state.value, workflow_id)


def test_eight_submitters_at_once_start_one_workflow(hook: HorsiesHook, make_hook: MakeHook, database: str) -> None:
    key, gate = instance(), threading.Barrier(8)
    migrate_ledger(hook.client)

    def start(one: HorsiesHook) -> SubmitResult:
        gate.wait()
        return submit(one, key)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(start, [make_hook(database, extra=NAMESPACE) for _ in range(8)]))
    assert len({result.task_id for result in results}) == 1
    assert sorted(result.outcome for result in results) == [SubmitOutcome.REATTACHED] * 7 + [SubmitOutcome.SENT]
    workflow_id = results[0].task_id
    assert rows(hook, "SELECT count(*) FROM horsies_workflow_tasks WHERE workflow_id::text = %s", workflow_id) == [(2,)]
    (submission,) = hook.read_submissions(key)
    assert (submission.kind, submission.horsies_task_id, submission.task_name) == (
        *(WorkKind.WORKFLOW, workflow_id, "flights.month"),
    )


def test_rounds_and_lives_are_those_of_tasks(hook: HorsiesHook) -> None:
    key = instance()
    first = submit(hook, key)
    set_state(hook, first.task_id, WorkflowState.PAUSED)
    assert submit(hook, key, try_number=2).outcome is SubmitOutcome.REATTACHED
    set_state(hook, first.task_id, WorkflowState.FAILED)
    second = submit(hook, key, try_number=3)
    assert (second.outcome, second.round, second.life) == (SubmitOutcome.SENT, 2, 1)
    set_state(hook, second.task_id, WorkflowState.COMPLETED)
    assert submit(hook, key, try_number=4).outcome is SubmitOutcome.ADOPTED
    cleared = submit(hook, key, try_number=5, clear_number=1)
    assert (cleared.outcome, cleared.life) == (SubmitOutcome.SENT, 2)
    assert len({first.task_id, second.task_id, cleared.task_id}) == 3


def test_clear_cancels_the_workflow_of_the_earlier_life(hook: HorsiesHook) -> None:
    key = instance()
    first = submit(hook, key)
    second = submit(hook, key, clear_number=1)
    states = hook.read_workflow_states([first.task_id, second.task_id])
    assert states[first.task_id].state is WorkflowState.CANCELLED
    assert states[second.task_id].state is WorkflowState.RUNNING
    sql = "SELECT t.status FROM horsies_tasks AS t WHERE t.kwargs LIKE %s AND t.status = 'PENDING'"
    assert rows(hook, sql, f"%{first.task_id}%") == []


def test_task_and_workflow_follow_each_other_in_one_life(hook: HorsiesHook) -> None:
    key = instance()
    workflow = submit(hook, key)
    task = hook.submit_task(
        TaskSpec(task_name="flights.month", delay=timedelta(hours=1)), key, AirflowTry(try_number=2)
    )
    assert task.outcome is SubmitOutcome.SENT
    assert hook.read_workflow_outcome(workflow.task_id).state is WorkflowState.CANCELLED
    again = submit(hook, key, wrap_definition("flights.year"), try_number=3)
    assert again.outcome is SubmitOutcome.SENT
    assert hook.read_task(task.task_id).state == "CANCELLED"


def test_workflow_whose_record_was_lost_is_used_again(hook: HorsiesHook) -> None:
    key = instance()
    first = submit(hook, key)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute(sql_text(PACKAGE, "know_workflows").encode())
        connection.execute("DELETE FROM airflow_horsies.submissions")
    again = submit(hook, key, try_number=2)
    assert (again.task_id, again.outcome) == (first.task_id, SubmitOutcome.REATTACHED)


def test_release_and_cancel_go_by_kind(hook: HorsiesHook) -> None:
    key = instance()
    sent = submit(hook, key)
    assert hook.client.release_tasks([sent.task_id], key) == {sent.task_id: CancelOutcome.CANCELLED}
    other = submit(hook, instance())
    assert hook.cancel_tasks([other.task_id]) == {other.task_id: CancelOutcome.CANCELLED}


def test_request_to_cancel_later_is_carried_out_by_a_release_that_knows_workflows(hook: HorsiesHook) -> None:
    sent = submit(hook, instance())
    rows(hook, "INSERT INTO airflow_horsies.cancel_requests (horsies_task_id) VALUES (%s::uuid)", sent.task_id)
    # As an older release takes requests: it would find no task, and drop the request.
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        taken = connection.execute(
            sql_text(PACKAGE, "take_cancel_requests").encode(), {"ids": None, "limit": 100}
        ).fetchall()
    assert taken == []
    assert hook.client.carry_out_requests() == 1
    assert hook.read_workflow_outcome(sent.task_id).state is WorkflowState.CANCELLED
    assert rows(hook, "SELECT FROM airflow_horsies.cancel_requests") == []


def test_record_is_kept_as_long_as_the_workflow_also_by_an_older_release(hook: HorsiesHook) -> None:
    key = instance()
    sent = submit(hook, key)
    rows(hook, "UPDATE airflow_horsies.submissions SET submitted_at = now() - interval '9 days'")
    assert prune_ledger(hook.client, older_than=timedelta(days=1)) == 0
    # As an older release prunes what it takes for a task that horsies no longer keeps.
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        params = {"ids": [sent.task_id], "older_than_seconds": 86_400}
        assert connection.execute(sql_text(PACKAGE, "prune_tasks").encode(), params).fetchall() == [(0,)]
    assert len(hook.read_submissions(key)) == 1
    rows(hook, "DELETE FROM horsies_workflows")
    assert prune_ledger(hook.client, older_than=timedelta(days=1)) == 1
    assert hook.read_submissions(key) == []


def test_submissions_in_tables_of_an_older_version_are_tasks(hook: HorsiesHook) -> None:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        for migration in migrations()[:6]:
            connection.execute(migration.sql.encode())
            connection.execute(
                "INSERT INTO airflow_horsies.migrations (version, name) VALUES (%s, %s)",
                (migration.version, migration.name),
            )
        connection.execute(
            "INSERT INTO airflow_horsies.submissions (namespace, dag_id, run_id, task_id, map_index, position, life, "
            "round, try_number, horsies_task_id, base_url, task_name, queue_name) "
            "VALUES ('tests', 'd', 'r', 't', -1, 0, 1, 1, 1, gen_random_uuid(), '', 'load', 'default')"
        )
    key = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
    (submission,) = hook.read_submissions(key)
    assert submission.kind is WorkKind.TASK
    assert hook.client.read_submissions_of_run("d", "r")[0].kind is WorkKind.TASK
    migrate_ledger(hook.client)
    assert hook.read_submissions(key) == [submission]


def test_role_without_the_grants_sends_tasks_and_is_told_what_workflows_need(
    hook: HorsiesHook, make_hook: MakeHook, database: str, release: str
) -> None:
    role = f"narrow_{uuid.uuid4().hex[:8]}"
    migrate_ledger(hook.client)
    grants = f"""
        CREATE ROLE {role} LOGIN PASSWORD 'narrow';
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
        GRANT INSERT, UPDATE, DELETE ON horsies_tasks, horsies_task_attempts TO {role};
        GRANT USAGE ON SCHEMA airflow_horsies TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO {role};
    """
    of_history = f"""
        GRANT INSERT ON horsies_task_history, horsies_task_history_clock_exceptions TO {role};
        GRANT UPDATE ON horsies_archive_access_gate TO {role};
    """
    with psycopg.connect(**hook.settings.database.connect_args, autocommit=True) as connection:
        connection.execute(grants.encode())
        if connection.execute("SELECT to_regclass('horsies_task_history') IS NOT NULL").fetchone() == (True,):
            connection.execute(of_history.encode())
        try:
            narrow = make_hook(database, login=role, password="narrow", extra=NAMESPACE)
            key = instance()
            task = narrow.submit_task(
                TaskSpec(task_name="load", delay=timedelta(hours=1)), key, AirflowTry(try_number=1)
            )
            assert narrow.cancel_task(task.task_id) is CancelOutcome.CANCELLED
            with pytest.raises(AccessDenied, match="GRANT SELECT, INSERT, UPDATE ON horsies_workflows"):
                submit(narrow, instance())
            needed = f"GRANT INSERT, UPDATE ON horsies_workflows, horsies_workflow_tasks TO {role}"
            connection.execute(needed.encode())
            sent = submit(narrow, instance(), Graph(name="g", nodes={"a": node("load"), "b": node("x", after=["a"])}))
            assert narrow.pause_workflow(sent.task_id) == narrow.resume_workflow(sent.task_id) == [sent.task_id]
            if keeps_history(release):
                with pytest.raises(AccessDenied, match="GRANT SELECT, UPDATE ON horsies_key_reservations"):
                    narrow.cancel_workflow(sent.task_id)
                assert narrow.read_workflow_outcome(sent.task_id).state is WorkflowState.RUNNING
                connection.execute(f"GRANT UPDATE ON horsies_key_reservations TO {role}".encode())
            assert narrow.cancel_workflow(sent.task_id) is CancelOutcome.CANCELLED
            narrow.close()
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
