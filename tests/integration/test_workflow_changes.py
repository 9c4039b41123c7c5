"""What is edited, cleared, deleted, moved or pruned while a workflow is under way, on a real worker.

A value that is returned belongs to what was asked for, and what cannot be known is an error that tells what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_horsies.client.ledger import migrate_ledger, read_ledger_version
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import LedgerOutdated, TaskCancelled, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import latest_version, migrations
from airflow_horsies.models import Graph, WorkflowState, WorkKind, node, ref
from tests.integration.releases import MOVED
from tests.integration.test_triggers import CONN_ID, event_of, store_connection
from tests.integration.test_workflow_operators import (
    Run,
    graph,
    hook,
    log_of_airflow,
    month,
    run,
    slow,
    stored_connection,
    workflow_database,
)

__all__ = ["hook", "log_of_airflow", "run", "stored_connection", "workflow_database"]

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)


def fire(trigger: Any) -> dict[str, Any]:
    return asyncio.run(asyncio.wait_for(event_of(trigger), 90))


def query(hook: HorsiesHook, statement: str, *params: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        cursor = connection.execute(statement.encode(), params)
        return cursor.fetchall() if cursor.description else []


def forget(hook: HorsiesHook, workflow_id: str) -> None:
    """As horsies deletes a workflow that is past its retention."""
    for statement in (
        "DELETE FROM horsies_workflow_tasks AS n USING horsies_workflows AS w "
        "WHERE w.id = n.workflow_id AND w.root_workflow_id::text = %s",
        "DELETE FROM horsies_workflows WHERE root_workflow_id::text = %s",
    ):
        query(hook, statement, workflow_id)


# -- the DAG is edited ----------------------------------------------------------------------------------------------


def test_edited_parameters_do_not_change_what_a_deferred_task_waits_for(run: Run) -> None:
    event = fire(run.defer(month()))
    edited = month(kwargs={"n": 7}, workflow="contract.child", retries=9)
    assert edited.execute_complete(run.context(), event) == 220
    assert len(run.ids) == 1


def test_edited_graph_does_not_change_what_a_deferred_task_waits_for(run: Run) -> None:
    event = fire(run.defer(graph()))
    edited = graph(nodes={"only": node("w.fetch", n=1)}, output="only")
    assert edited.execute_complete(run.context(), event) == 216
    # The edited graph is other work, whose value the next try gets.
    assert run.play(lambda: graph(nodes={"only": node("w.fetch", n=1)}, output="only"), try_number=2) == 1
    # Back to the first one, which has completed in this life.
    assert run.play(graph, try_number=3) == 216
    assert len(run.ids) == 2


@pytest.mark.parametrize("max_tries", [2, 0], ids=["kept", "lowered by hand"])
def test_edited_retries_are_no_clear(run: Run, max_tries: int) -> None:
    """Airflow stores max_tries when a task instance is made and when it is cleared, whatever the code says since."""
    assert run.play(lambda: month(retries=0)) == 220
    assert run.play(lambda: month(retries=5), try_number=2, **({} if max_tries else {"max_tries": 2})) == 220
    assert len(run.ids) == 1


@pytest.mark.parametrize(
    "edited",
    [
        {"queue": "nobody"},
        {"priority": 3},
        {"good_until": timedelta(hours=3)},
        {"on_paused": "cancel"},
        {"show_logs": True},
        {"horsies_queue": "nobody"},
    ],
    ids=lambda edited: next(iter(edited)),
)
def test_what_is_not_the_work_may_be_edited(run: Run, edited: dict[str, Any]) -> None:
    run.defer(month())
    assert run.play(lambda: month(**edited), try_number=2) == 220
    assert len(run.ids) == 1


def test_order_of_nodes_is_not_the_work(run: Run) -> None:
    nodes = {"a": node("w.fetch", n=1), "b": node("w.fetch", n=2), "sum": node("w.sum", a=ref("a"), b=ref("b"))}
    turned = dict(reversed(nodes.items()))
    assert run.play(lambda: graph(nodes=nodes, output="sum")) == 3
    assert run.play(lambda: graph(nodes=turned, output="sum"), try_number=2) == 3
    assert len(run.ids) == 1


@pytest.mark.parametrize(
    "edited",
    [
        {"output": "a"},
        {"output": None},
        {"nodes": {"a": node("w.fetch", n=1), "b": node("w.fetch", n=2), "sum": node("w.sum", a=ref("a"), b=ref("a"))}},
        {
            "nodes": {
                "a": node("w.fetch", n=1),
                "b": node("w.fetch", n=2),
                "sum": node("w.sum", a=ref("a"), b=ref("b"), allow_failed=True),
            }
        },
        {"success": [["sum"]]},
    ],
    ids=["output", "no output", "reference", "failure allowed", "success"],
)
def test_what_changes_the_value_is_other_work(run: Run, edited: dict[str, Any]) -> None:
    nodes = {"a": node("w.fetch", n=1), "b": node("w.fetch", n=2), "sum": node("w.sum", a=ref("a"), b=ref("b"))}
    first = {"nodes": nodes, "output": "sum"}
    assert run.play(lambda: graph(**first)) == 3
    expected = {"a": 1, "b": 2, "sum": 3}
    value = run.play(lambda: graph(**{**first, **edited}), try_number=2)
    assert value in (1, 2, 3, expected, {"sum": 3})
    assert len(run.ids) == 2


# -- cleared, deleted and made again --------------------------------------------------------------------------------


def test_process_that_a_clear_left_behind_gets_no_value(run: Run) -> None:
    trigger = run.defer(slow())
    assert run.play(lambda: slow(kwargs={"n": 2}), try_number=2, clear_number=1) == 102
    event = fire(trigger)
    with pytest.raises(TaskCancelled):
        slow().execute_complete(run.context(), event)
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.COMPLETED]


def test_clear_ends_a_workflow_that_is_paused(run: Run) -> None:
    run.defer(slow())
    run.hook.pause_workflow(run.ids[0])
    assert run.play(month, try_number=2, clear_number=1) == 220
    assert [run.state(0), run.state(1)] == [WorkflowState.CANCELLED, WorkflowState.COMPLETED]


@pytest.mark.parametrize("had_ended", [True, False], ids=["completed", "running"])
def test_run_that_was_deleted_and_made_again_starts_another_workflow(run: Run, had_ended: bool) -> None:
    make = month if had_ended else slow
    if had_ended:
        assert run.play(month) == 220
    else:
        run.defer(slow())
    again = run.context(max_tries=2)
    again["dag_run"].start_date = datetime(2026, 1, 2, tzinfo=UTC)
    operator = make(wait_for_completion=False)
    operator.execute(again)
    assert [sent.life for sent in run.submissions] == [1, 2]
    assert run.state(0) is (WorkflowState.COMPLETED if had_ended else WorkflowState.CANCELLED)
    run.hook.wait_workflow(run.ids[1], timeout_seconds=60)
    assert run.state(1) is WorkflowState.COMPLETED


# -- the connection -------------------------------------------------------------------------------------------------


def test_address_of_the_deployment_may_change_while_it_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = run.defer(month())
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://moved.test")
    assert month().execute_complete(run.context(), fire(trigger)) == 220


def test_time_out_after_the_namespace_was_moved_cancels_what_was_started(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = run.defer(slow(execution_timeout=timedelta(seconds=1)))
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    monkeypatch.setenv(name, json.dumps({**json.loads(os.environ[name]), "extra": {"namespace": "moved"}}))
    event = fire(trigger)
    assert event["reason"] == "timed_out"
    with pytest.raises(Exception, match="1 workflow did not end within"):
        slow(execution_timeout=timedelta(seconds=1)).execute_complete(run.context(), event)
    assert run.state() is WorkflowState.CANCELLED


# -- rows are gone --------------------------------------------------------------------------------------------------


def test_workflow_that_was_pruned_before_anybody_looked_is_an_error(run: Run) -> None:
    trigger = run.defer(month())
    run.until(lambda: run.state() is WorkflowState.COMPLETED)
    forget(run.hook, run.ids[0])
    event = fire(trigger)
    assert event["reason"] == "not_found"
    with pytest.raises(TaskNotFound, match=r"no longer keeps workflow .*Clear the Airflow task"):
        month().execute_complete(run.context(), event)
    with pytest.raises(TaskNotFound, match=r"Workflow .* is past its retention .*Clear the task instance"):
        run.play(month, try_number=2)
    assert len(run.ids) == 1
    assert run.play(month, try_number=3, clear_number=1) == 220


def test_workflow_that_was_pruned_after_the_event_is_an_error(run: Run) -> None:
    event = fire(run.defer(month()))
    assert event["reason"] == "ended"
    forget(run.hook, run.ids[0])
    with pytest.raises(TaskNotFound, match="past its retention"):
        month().execute_complete(run.context(), event)


def test_value_is_that_of_the_workflow_also_when_its_tasks_are_pruned(run: Run) -> None:
    trigger = run.defer(month(show_logs=True))
    run.until(lambda: run.state() is WorkflowState.COMPLETED)
    query(run.hook, "DELETE FROM horsies_task_history WHERE workflow_id IS NOT NULL")
    assert month(show_logs=True).execute_complete(run.context(), fire(trigger)) == 220
    assert run.play(month, try_number=2) == 220
    assert len(run.ids) == 1


def test_failure_is_told_also_when_its_tasks_are_pruned(run: Run, tmp_path: Any) -> None:
    (tmp_path / "broken").touch()
    broken = {"workflow": "contract.child", "kwargs": {"n": 1, "marker": str(tmp_path / "broken")}}
    trigger = run.defer(month(**broken))
    run.until(lambda: run.state() is WorkflowState.FAILED)
    query(run.hook, "DELETE FROM horsies_task_history WHERE workflow_id IS NOT NULL")
    with pytest.raises(Exception, match=r"at node contract\.child/check .*BROKEN"):
        month(**broken).execute_complete(run.context(), fire(trigger))


# -- the workers ----------------------------------------------------------------------------------------------------


def test_definition_that_no_worker_knows_in_the_middle_of_a_graph_is_told_by_its_name(run: Run) -> None:
    nodes = {"a": node("w.fetch", n=1), "b": node(workflow="contract.unknown", after=["a"])}
    with pytest.raises(Exception, match=r"failed at node b .*contract\.unknown"):
        run.play(lambda: graph(nodes=nodes, output="b"))
    assert run.state() is WorkflowState.FAILED


def test_task_that_no_worker_knows_in_the_middle_of_a_graph_is_no_success(run: Run) -> None:
    nodes = {"a": node("w.fetch", n=1), "b": node("w.unknown", after=["a"])}
    with pytest.raises(AirflowFailException, match=r"failed at node b .*WORKER_RESOLUTION_ERROR"):
        run.play(lambda: graph(nodes=nodes, output="a"))
    assert run.state() is WorkflowState.FAILED


# -- the ledger -----------------------------------------------------------------------------------------------------


def make_ledger(hook: HorsiesHook, version: int) -> None:
    """The tables as an older release of this package left them."""
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        for migration in migrations()[:version]:
            connection.execute(migration.sql.encode())
            connection.execute(
                "INSERT INTO airflow_horsies.migrations (version, name) VALUES (%s, %s)",
                (migration.version, migration.name),
            )


@pytest.fixture
def older(make_hook: Any, database: str, monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres) -> HorsiesHook:
    store_connection(monkeypatch, postgres, database)
    made: HorsiesHook = make_hook(database)
    make_ledger(made, 6)
    return made


def test_first_workflow_migrates_an_older_ledger_and_is_recorded_as_one(older: HorsiesHook) -> None:
    run = Run(older)
    run.defer(month())
    assert read_ledger_version(older.client) == latest_version()
    assert [sent.kind for sent in run.submissions] == [WorkKind.WORKFLOW]
    assert run.hook.cancel_workflow(run.ids[0])


@pytest.mark.parametrize("make", [month, graph])
def test_older_ledger_that_may_not_be_migrated_starts_nothing(
    older: HorsiesHook, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__AUTO_MIGRATE", "False")
    with pytest.raises(LedgerOutdated, match="Run 'airflow horsies db migrate'"):
        make().execute(Run(older).context())
    assert query(older, "SELECT count(*) FROM horsies_workflows") == [(0,)]
    assert query(older, "SELECT count(*) FROM horsies_tasks") == [(0,)]


def test_workflow_that_is_started_without_a_task_instance_needs_no_ledger(make_hook: Any, database: str) -> None:
    hook: HorsiesHook = make_hook(database)
    workflow_id = hook.start_workflow(Graph(name="g", nodes={"a": node("load")}))
    assert hook.pause_workflow(workflow_id) == hook.resume_workflow(workflow_id) == [workflow_id]
    make_ledger(hook, 6)
    assert hook.cancel_workflow(workflow_id)
    migrate_ledger(hook.client)
    assert hook.read_workflow_outcome(workflow_id).state is WorkflowState.CANCELLED
