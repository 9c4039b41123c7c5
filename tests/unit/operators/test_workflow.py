"""The operators of workflows, with the test kit: what they refuse, send, return and raise."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG

from airflow_horsies.exceptions import (
    HorsiesError,
    InvalidTask,
    QueueNotServed,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    WorkerLost,
    WorkflowPaused,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import Node, RetryPolicy, WorkflowState, node, ref
from airflow_horsies.operators import HorsiesGraphOperator, HorsiesOperator, HorsiesWorkflowOperator
from airflow_horsies.operators.graph import node_of, plain_node
from airflow_horsies.operators.outcomes import TaskTimedOut
from airflow_horsies.operators.workflow import GraphOperator
from airflow_horsies.testing import FakeHorsies, ImpossibleOutcome, UndeclaredTask, make_context, run_task
from airflow_horsies.triggers import HorsiesTrigger
from airflow_horsies.triggers.workflow_log import describe_pause
from tests.unit.worker_free import needs_worker_free

DAY = datetime(2026, 1, 1, tzinfo=UTC)
BOTH_WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["inline", "deferrable"])


def month(**options: Any) -> HorsiesWorkflowOperator:
    given = {"task_id": "month", "workflow": "flights.month", "kwargs": {"day": "{{ ds }}"}}
    return HorsiesWorkflowOperator(**{**given, **options})


def sales(**options: Any) -> HorsiesGraphOperator:
    nodes = {"fetch": node("s.fetch", day="{{ ds }}"), "load": node("s.load", table=ref("fetch"), size=3)}
    return HorsiesGraphOperator(**{"task_id": "sales", "nodes": nodes, "output": "load", **options})


# -- ends --------------------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_workflow_returns_its_output(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_returns("flights.month", {"rows": 3})
    context: dict[str, Any] = {}
    operator = month(queue="spark", priority=5, deferrable=deferrable)
    assert run_task(operator, logical_date=DAY, **context) == {"rows": 3}
    assert horsies.started("flights.month") == [{"day": "2026-01-01"}]
    (graph,) = horsies.graphs("flights.month")
    assert (graph.queue, graph.priority, graph.is_wrapper) == ("spark", 5, True)
    assert operator.workflow_kwargs == {"day": "{{ ds }}"}, "the task of the DAG stays as it is"


@BOTH_WAYS
def test_graph_is_rendered_and_returns_its_output(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_returns("sales", 7)
    assert run_task(sales(deferrable=deferrable), logical_date=DAY) == 7
    (graph,) = horsies.graphs("sales")
    assert graph.nodes["fetch"].kwargs == {"day": "2026-01-01"}
    assert graph.nodes["load"].args_from == {"table": "fetch"}


@BOTH_WAYS
def test_failure_names_the_node_and_its_code(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_fails("flights.month", "BAD_DAY", "There is no such day.", node="load/parse")
    with pytest.raises(
        TaskFailed, match=r"failed at node flights\.month/load/parse .*: BAD_DAY: There is no"
    ) as failed:
        run_task(month(deferrable=deferrable))
    assert failed.value.error_code == "BAD_DAY"


@pytest.mark.parametrize(
    ("code", "options", "expected"),
    [
        ("BROKEN", {}, TaskFailed),
        ("WORKER_CRASHED", {}, WorkerLost),
        ("BAD_INPUT", {}, AirflowFailException),
        ("WORKFLOW_NOT_REGISTERED", {}, AirflowFailException),
        ("BROKEN", {"fail_fast_codes": ["BROKEN"]}, AirflowFailException),
    ],
)
def test_code_decides_whether_airflow_retries(
    horsies: FakeHorsies, code: str, options: dict[str, Any], expected: type[Exception]
) -> None:
    horsies.workflow_fails("flights.month", code)
    with pytest.raises(expected) as failed:
        run_task(month(**options))
    assert isinstance(failed.value, AirflowFailException) is (expected is AirflowFailException)


@BOTH_WAYS
@pytest.mark.parametrize("make", [month, sales])
@pytest.mark.parametrize("choice", ["fail", "skip"])
def test_workflow_that_nobody_starts_expires(horsies: FakeHorsies, make: Any, choice: Any, deferrable: bool) -> None:
    horsies.workflow_expires("flights.month" if make is month else "sales")
    operator = make(good_until=timedelta(hours=1), on_expired=choice, deferrable=deferrable)
    with pytest.raises(
        TaskExpired if choice == "fail" else AirflowSkipException, match="no worker started it within 1:00:00"
    ):
        run_task(operator)


@pytest.mark.parametrize("choice", ["fail", "skip"])
def test_cancelled_workflow_fails_or_skips(horsies: FakeHorsies, choice: Any) -> None:
    horsies.workflow_is_cancelled("flights.month")
    with pytest.raises(TaskCancelled if choice == "fail" else AirflowSkipException, match="was cancelled"):
        run_task(month(on_cancelled=choice))


@BOTH_WAYS
def test_time_out_cancels_it(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_never_ends("flights.month")
    with pytest.raises(TaskTimedOut, match="1 workflow did not end within"):
        run_task(month(execution_timeout=timedelta(seconds=5), deferrable=deferrable), logical_date=DAY)
    (workflow_id,) = _ids(horsies)
    assert HorsiesHook().read_workflow_outcome(workflow_id).state is WorkflowState.CANCELLED


def test_wait_without_an_end_is_an_error_of_the_test(horsies: FakeHorsies) -> None:
    horsies.workflow_never_ends("flights.month")
    with pytest.raises(HorsiesError, match=r"'flights\.month' does not end in this test"):
        run_task(month())


@BOTH_WAYS
def test_queue_that_nobody_serves(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.workflow_returns("flights.month")
    horsies.queue("gpu", workers=0)
    with pytest.raises(QueueNotServed, match="'gpu'"):
        run_task(month(queue="gpu", queue_timeout=timedelta(seconds=5), deferrable=deferrable))


def test_output_that_airflow_cannot_store_is_an_error(horsies: FakeHorsies) -> None:
    horsies.workflow_returns("flights.month", {"text": "a\0b"})
    with pytest.raises(AirflowFailException, match="NUL character"):
        run_task(month())


def test_id_is_returned_at_once_and_pushed(horsies: FakeHorsies) -> None:
    horsies.workflow_never_ends("flights.month")
    operator = month(wait_for_completion=False)
    context = make_context(operator)
    operator.render_template_fields(context)
    workflow_id = operator.execute(context)
    assert context["ti"].xcoms["month", "horsies_workflow_id"] == workflow_id
    assert _ids(horsies) == [workflow_id]


def test_retry_reattaches_adopts_or_starts_again(horsies: FakeHorsies) -> None:
    horsies.workflow_fails("flights.month", "BROKEN", times=1, then=3)
    with pytest.raises(TaskFailed):
        run_task(month(), logical_date=DAY)
    assert run_task(month(), logical_date=DAY, try_number=2) == 3
    assert run_task(month(), logical_date=DAY, try_number=3) == 3
    assert len(horsies.started("flights.month")) == 2


# -- pauses ------------------------------------------------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize(("choice", "expected"), [("fail", WorkflowPaused), ("cancel", TaskCancelled)])
def test_pause_fails_or_cancels(horsies: FakeHorsies, choice: Any, expected: Any, deferrable: bool) -> None:
    horsies.workflow_is_paused("flights.month", error_code="BAD_DAY", node="load")
    with pytest.raises(expected, match=r"is paused at node flights\.month/load \(BAD_DAY"):
        run_task(month(on_paused=choice, deferrable=deferrable))
    state = HorsiesHook().read_workflow_outcome(*_ids(horsies)).state
    assert state is (WorkflowState.PAUSED if choice == "fail" else WorkflowState.CANCELLED)


@BOTH_WAYS
def test_pause_is_waited_for_until_the_time_out(
    horsies: FakeHorsies, deferrable: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    horsies.workflow_is_paused("flights.month", 3)
    for kind in (GraphOperator, HorsiesTrigger):
        monkeypatch.setattr(kind, "log", logging.getLogger("the log of Airflow"), raising=False)
    with pytest.raises(TaskTimedOut):
        run_task(month(execution_timeout=timedelta(seconds=5), deferrable=deferrable))
    assert sum("is paused by a user" in record.getMessage() for record in caplog.records) == 1


def test_resumed_workflow_goes_on(horsies: FakeHorsies) -> None:
    horsies.workflow_is_paused("flights.month", 3, error_code="BAD_DAY", node="load")
    workflow_id = run_task(month(wait_for_completion=False), logical_date=DAY)
    hook = HorsiesHook()
    paused = hook.wait_workflow(workflow_id, until_paused=True)
    assert "retry_workflow" in describe_pause(paused)
    assert hook.retry_workflow(workflow_id).retried == ("load",)
    assert run_task(month(), logical_date=DAY, try_number=2) == 3


def test_unknown_choice_is_refused() -> None:
    with pytest.raises(InvalidTask, match="on_paused: must be 'wait', 'fail' or 'cancel', not 'retry'"):
        month(on_paused="retry")


# -- what is refused when the DAG is parsed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nodes": {}}, "nodes: must not be empty"),
        ({"nodes": [node("t.a")]}, "nodes: must be a mapping of names to nodes, not list"),
        ({"nodes": {"a": node("t.a", x=ref("b"))}}, "refers to 'b', which is not a node"),
        ({"nodes": {"a": node("t.a", after="b"), "b": node("t.b", after="a")}}, "wait for each other in a circle"),
        ({"nodes": {"a": node("t.a", x=[ref("b")]), "b": node("t.b")}}, r"nodes\.a\.x\[0\]: contains ref\('b'\)"),
        ({"nodes": {"a": node("t.a", x=timedelta(1))}}, r"nodes\.a\.x: is of type timedelta"),
        ({"nodes": {"a": node("t.a", x=float("nan"))}}, r"nodes\.a\.x: is nan"),
        ({"nodes": {"a": node("t.a", x={1: 2})}}, r"nodes\.a\.x: has the key 1"),
        ({"nodes": {"a": "t.a"}}, r"nodes\.a: must be a Node, not str"),
        ({"nodes": {"a": {"task": "t.a"}}}, "nodes: must be nodes, as airflow_horsies.models.node makes them"),
        ({"output": "lode"}, "Use 'load', or add the node"),
        ({"success": [["nobody"]]}, "success: refers to 'nobody'"),
        ({"on_error": "stop"}, "on_error: must be 'fail' or 'pause', not 'stop'"),
        ({"queue": "x" * 500}, "queue"),
        ({"priority": 1000}, "priority"),
        ({"good_until": datetime(2026, 1, 1)}, "good_until"),
    ],
)
def test_impossible_graph_is_refused_when_the_dag_is_parsed(options: dict[str, Any], problem: str) -> None:
    output = {"output": None} if "nodes" in options else {}
    with pytest.raises(InvalidTask, match=problem):
        sales(**{**output, **options})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"workflow": ""}, "workflow"),
        ({"kwargs": {"day": {1, 2}}}, r"kwargs\.day: is of type set"),
        ({"priority": 0}, "priority"),
    ],
)
def test_impossible_workflow_is_refused_when_the_dag_is_parsed(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        month(**options)


def test_arguments_from_other_tasks_are_dependencies() -> None:
    with DAG("d", schedule=None):
        first = HorsiesOperator(task_id="first", task_name="t.first")
        graph = sales(nodes={"a": node("t.a", x=first.output)}, output="a")
        other = month(kwargs={"x": first.output})
    assert graph.upstream_task_ids == other.upstream_task_ids == {"first"}


def test_deadline_is_that_of_the_nodes_that_wait_for_no_other(horsies: FakeHorsies) -> None:
    horsies.workflow_returns("sales", 1)
    own = datetime(2100, 1, 1, tzinfo=UTC)
    nodes = {"a": node("t.a"), "b": node("t.b", good_until=own), "c": node("t.c", after=["a", "b"])}
    run_task(sales(nodes=nodes, output="c", good_until="{{ '2099-01-01T00:00:00+00:00' }}"))
    (graph,) = horsies.graphs("sales")
    found = {name: known.good_until for name, known in graph.nodes.items()}
    assert found == {"a": datetime(2099, 1, 1, tzinfo=UTC), "b": own, "c": None}


def test_node_survives_the_way_to_a_triggerer() -> None:
    policy = RetryPolicy.fixed([1, 2], auto_retry_for=["WORKER_CRASHED"])
    many = [
        node("t.a", x=ref("b"), y={"z": [1]}, after=["c"], join="quorum", min_success=2, retry_policy=policy),
        node("t.a", timeout=timedelta(seconds=90), good_until=DAY, queue="q", priority=3, allow_failed=True),
        Node(workflow="w", kwargs={"queue": 1}),
    ]
    for one in many:
        assert node_of(json.loads(json.dumps(plain_node(one)))) == one


# -- worker-free -------------------------------------------------------------------------------------------------------


@needs_worker_free
@pytest.mark.parametrize("make", [month, sales])
def test_worker_free_task_takes_its_arguments_to_the_triggerer(make: Any) -> None:
    with DAG("d", schedule=None):
        operator = make(worker_free=True, on_paused="cancel", good_until=timedelta(hours=1))
    args = operator.start_trigger_args
    trigger = resolve_name(args.trigger_cls)(**args.trigger_kwargs)
    given = {name: value for name, value in trigger._given.items() if name != "kind"}
    again = type(operator)(task_id=operator.task_id, **given)
    assert again._start_fields() == operator._start_fields()


@needs_worker_free
def test_worker_free_graph_refuses_what_a_triggerer_cannot_do() -> None:
    nodes = {"a": node("t.a", x="{{ ti.xcom_pull('other') }}")}
    with DAG("d", schedule=None), pytest.raises(InvalidTask, match=r"nodes\.a\.kwargs\.x uses ti\.xcom_pull"):
        sales(nodes=nodes, output="a", worker_free=True)


# -- the test kit ------------------------------------------------------------------------------------------------------


def test_workflow_that_is_not_declared_is_refused() -> None:
    with (
        pytest.raises(UndeclaredTask, match=r"The horsies workflow 'flights\.month' was started with day="),
        FakeHorsies() as horsies,
    ):
        horsies.returns("flights.month", "a task of this name is something else")
        with pytest.raises(UndeclaredTask):
            run_task(month())


def test_workflow_without_a_deadline_never_expires() -> None:
    with pytest.raises(ImpossibleOutcome, match=r"workflow 'flights\.month' expires"), FakeHorsies() as horsies:
        horsies.workflow_expires("flights.month")
        with pytest.raises(ImpossibleOutcome):
            run_task(month())


def _ids(horsies: FakeHorsies) -> list[str]:
    return [task_id for task_id in horsies.memory.tasks if horsies.memory.is_workflow(task_id)]
