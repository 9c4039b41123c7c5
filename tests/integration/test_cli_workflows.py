"""``airflow horsies workflows`` on workflows that real workers run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, Graph, TaskInstanceKey, TaskSpec, WorkflowState, node, wrap_definition
from tests.integration import test_cli, test_workflow_contract
from tests.integration.conftest import MakeHook
from tests.integration.test_cli import Ended, Run
from tests.integration.test_workflow_contract import SECONDS, until

__all__ = ["run", "workflow_database"]
run = test_cli.run
workflow_database = test_workflow_contract.workflow_database

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="month", map_index=2)
Workflows = Callable[..., Ended]


@pytest.fixture
def hook(make_hook: MakeHook, workflow_database: str) -> HorsiesHook:
    return make_hook(workflow_database)


@pytest.fixture
def workflows(run: Run, workflow_database: str, postgres: EmbeddedPostgres) -> Iterator[Workflows]:
    def workflows(*argv: str) -> Ended:
        return run(workflow_database, "workflows", *argv)

    yield workflows


def test_paused_workflow_is_found_shown_retried_and_completes(
    workflows: Workflows, hook: HorsiesHook, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    graph = wrap_definition("contract.outer", {"marker": str(marker)})
    workflow_id = hook.submit_workflow(graph, INSTANCE, AirflowTry(try_number=1)).task_id
    hook.wait_workflow(workflow_id, timeout_seconds=SECONDS, until_paused=True)
    # A pause inside leaves the outer one RUNNING.
    listed = json.loads(workflows("list", "--state", "paused", "--name", "contract.outer", "-o", "json").out)
    assert [(one["id"], one["state"], one["is_paused_inside"]) for one in listed] == [(workflow_id, "RUNNING", True)]
    assert json.loads(workflows("list", "--state", "failed", "--name", "contract.outer", "-o", "json").out) == []

    shown = workflows("show", "sales", "manual__1", "month", "--map-index", "2")
    assert shown.code == 0, shown.err
    headline, failed, *rest = shown.out.splitlines()
    assert headline.startswith(f"contract.outer {workflow_id}: RUNNING (paused inside)")
    assert headline.endswith("sent by sales.month[2] of run manual__1 (try 1)")
    assert failed == "failed at contract.outer/inner/check: BROKEN: the marker is there"
    names = [line.split("|")[0].rstrip() for line in rest if "|" in line]
    assert names == ["node", "begin", "workflow", "  inner", "    seed", "    check"]
    tree = json.loads(workflows("show", workflow_id, "-o", "json").out)
    (inner,) = [one["workflow"] for one in tree["nodes"] if one["workflow"]]
    check = inner["nodes"][0]["workflow"]["nodes"][1]
    assert (check["state"], check["error_code"], check["error"]) == ("FAILED", "BROKEN", "the marker is there")

    marker.unlink()
    retried = workflows("retry", workflow_id)
    assert (retried.code, retried.out.splitlines()[0]) == (
        0,
        f"These nodes of workflow {workflow_id} run again: check.",
    )
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).state is WorkflowState.COMPLETED
    assert workflows("show", workflow_id).out.startswith(f"contract.outer {workflow_id}: COMPLETED, 2 COMPLETED")
    again = workflows("retry", workflow_id)
    assert (again.code, "is not paused" in again.err) == (1, True)


def test_pause_resume_and_cancel_do_what_they_say(workflows: Workflows, hook: HorsiesHook) -> None:
    nodes = {"first": node("w.fetch", n=1, sleep=1.0), "second": node("w.fetch", n=2, after=["first"])}
    graph = Graph(name="two", nodes=nodes, output="second")
    workflow_id = hook.start_workflow(graph)
    paused = workflows("pause", workflow_id)
    assert paused.out == f"Workflow {workflow_id} was paused. Running nodes end as usual.\n", paused.err
    assert workflows("pause", workflow_id).out == f"Workflow {workflow_id} does not run: it is PAUSED.\n"
    assert workflows("show", workflow_id).out.startswith(f"two {workflow_id}: PAUSED")
    nothing = workflows("retry", workflow_id)
    assert (nothing.code, "it has no failed node. Nothing was changed" in nothing.err) == (1, True)
    assert hook.read_workflow(workflow_id).state is WorkflowState.PAUSED
    assert json.loads(workflows("resume", workflow_id, "-o", "json").out)["resumed"] == [workflow_id]
    assert hook.wait_workflow(workflow_id, timeout_seconds=SECONDS).output == 2
    assert workflows("resume", workflow_id).out == f"Workflow {workflow_id} is not paused: it is COMPLETED.\n"
    assert workflows("cancel", workflow_id).out == f"Workflow {workflow_id} had already ended as COMPLETED.\n"

    other = hook.start_workflow(graph)
    assert workflows("cancel", other).out.startswith(f"Workflow {other} was cancelled")
    assert workflows("cancel", other).out == f"Workflow {other} was already cancelled.\n"
    until(lambda: hook.read_workflow(other).state is WorkflowState.CANCELLED)
    shown = workflows("show", other)
    assert shown.out.startswith(f"two {other}: CANCELLED")


def test_pages_of_workflows_follow_one_another_and_leave_out_inner_ones(
    workflows: Workflows, hook: HorsiesHook
) -> None:
    ids = {hook.start_workflow(wrap_definition("contract.child", {"n": number})) for number in range(3)}
    for workflow_id in ids:
        hook.wait_workflow(workflow_id, timeout_seconds=SECONDS)
    seen: list[str] = []
    before: list[str] = []
    while True:
        page = workflows("list", "--name", "contract.child", "--limit", "2", "-o", "json", *before)
        seen += [one["id"] for one in json.loads(page.out)]
        if "More: " not in page.err:
            break
        before = page.err.strip().removeprefix("More: ").split()
    assert len(seen) == len(set(seen))
    assert ids == set(seen)


def test_unknown_workflow_and_a_task_instance_without_one_are_told(workflows: Workflows, hook: HorsiesHook) -> None:
    unknown = workflows("show", "00000000-0000-7000-8000-000000000000")
    assert (unknown.code, "is not in this database" in unknown.err) == (1, True)
    nobody = workflows("cancel", "sales", "manual__1", "nobody")
    assert (nobody.code, "has submitted nothing" in nobody.err) == (1, True)
    instance = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
    sent = hook.submit_task(TaskSpec(task_name="w.fetch", kwargs={"n": 1}), instance, AirflowTry(try_number=1))
    plain = workflows("pause", "sales", "manual__1", "load")
    assert plain.code == 1
    assert "submitted a task, and no workflow: sales.load of run manual__1. Use" in plain.err
    assert sent.task_id in plain.err
