from __future__ import annotations

import inspect
import re
import textwrap
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG, task

from airflow_horsies import testing
from airflow_horsies.exceptions import (
    BatchFailed,
    HorsiesError,
    InvalidTask,
    QueueNotServed,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskNotFound,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import RetryPolicy, TaskSpec, TaskState
from airflow_horsies.notifications import HorsiesNotifier
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesCancelOperator, HorsiesOperator
from airflow_horsies.outcomes import TaskFailedForGood, TaskTimedOut
from airflow_horsies.sensors import HorsiesQueueSensor, HorsiesSensor
from airflow_horsies.testing import FakeHorsies, ImpossibleOutcome, UndeclaredTask, make_context, run_task
from tests.unit.worker_free import needs_worker_free

DAY = datetime(2026, 1, 1, tzinfo=UTC)
BOTH_WAYS = pytest.mark.parametrize("deferrable", [False, True], ids=["inline", "deferrable"])


def load(**options: Any) -> HorsiesOperator:
    given = {"task_id": "load", "task_name": "sales.load", "kwargs": {"day": "{{ ds }}"}}
    return HorsiesOperator(**{**given, **options})


# -- how tasks end -----------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_task_returns_its_value_and_what_was_sent_is_known(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.returns("sales.load", {"rows": 3})
    operator = load(queue="spark", deferrable=deferrable)
    assert run_task(operator, logical_date=DAY) == {"rows": 3}
    assert horsies.sent("sales.load") == [{"day": "2026-01-01"}]
    (spec,) = horsies.specs("sales.load")
    assert (spec.queue, spec.kwargs) == ("spark", {"day": "2026-01-01"})
    assert [task.state for task in horsies.tasks("sales.load")] == [TaskState.COMPLETED]
    assert operator.task_kwargs == {"day": "{{ ds }}"}, "the task of the DAG stays as it is"


def test_value_may_depend_on_the_arguments_and_is_what_json_makes_of_it(horsies: FakeHorsies) -> None:
    horsies.returns("sales.load", lambda day: {"day": day, "pair": (1, 2), 3: None})
    assert run_task(load(), ds="today") == {"day": "today", "pair": [1, 2], "3": None}
    with pytest.raises(TypeError, match="not JSON serializable"):
        horsies.returns("sales.load", {1, 2})


def test_function_that_raises_fails_the_task(horsies: FakeHorsies) -> None:
    def refuse(day: str) -> None:
        raise KeyError(day)

    horsies.returns("sales.load", refuse)
    with pytest.raises(TaskFailed, match="UNHANDLED_EXCEPTION: KeyError: 'today'"):
        run_task(load(), ds="today")


@BOTH_WAYS
def test_failure_has_the_code_and_the_message(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.fails("sales.load", "NO_DATA_YET", "Nothing has arrived.")
    with pytest.raises(TaskFailed, match=r"after 1 attempt.*NO_DATA_YET: Nothing has arrived") as caught:
        run_task(load(deferrable=deferrable))
    assert caught.value.error_code == "NO_DATA_YET"
    horsies.fails("sales.load", "BAD_INPUT")
    with pytest.raises(TaskFailedForGood):
        run_task(load(deferrable=deferrable))
    with pytest.raises(InvalidTask, match="looks like an exception class"):
        horsies.fails("sales.load", "ValueError")


def attempts_of(horsies: FakeHorsies) -> list[list[tuple[int, str, bool]]]:
    tasks = horsies.tasks("sales.load")
    return [[(each.number, each.outcome, each.will_retry) for each in task.attempts] for task in tasks]


@pytest.mark.parametrize(
    ("codes", "retries", "attempts"),
    [
        (["RATE_LIMITED"], 3, [(1, "FAILED", True), (2, "FAILED", True), (3, "COMPLETED", False)]),
        (["RATE_LIMITED"], 2, [(1, "FAILED", True), (2, "FAILED", True), (3, "COMPLETED", False)]),
        (["RATE_LIMITED"], 1, [(1, "FAILED", True), (2, "FAILED", False)]),
        (["WORKER_CRASHED"], 3, [(1, "FAILED", False)]),
    ],
    ids=["more than enough", "enough", "too few", "another code"],
)
def test_attempts_follow_the_retry_policy(
    horsies: FakeHorsies, codes: list[str], retries: int, attempts: list[tuple[int, str, bool]]
) -> None:
    horsies.fails("sales.load", "RATE_LIMITED", times=2, then={"rows": 1})
    operator = load(retry_policy=RetryPolicy.fixed([60] * retries, auto_retry_for=codes))
    if attempts[-1][1] == "COMPLETED":
        assert run_task(operator) == {"rows": 1}
    else:
        with pytest.raises(TaskFailed):
            run_task(operator)
    assert attempts_of(horsies) == [attempts]
    (sent,) = horsies.tasks("sales.load")
    assert (sent.retry_count, sent.max_retries) == (len(attempts) - 1, retries)


def test_tries_of_airflow_count_like_retries_of_horsies(horsies: FakeHorsies) -> None:
    horsies.fails("sales.load", "RATE_LIMITED", times=2, then={"rows": 1})
    for try_number in (1, 2):
        with pytest.raises(TaskFailed):
            run_task(load(), logical_date=DAY, try_number=try_number)
    assert run_task(load(), logical_date=DAY, try_number=3) == {"rows": 1}
    assert run_task(load(), logical_date=DAY, try_number=4) == {"rows": 1}, "what completed is adopted"
    assert attempts_of(horsies) == [[(1, "FAILED", False)], [(1, "FAILED", False)], [(1, "COMPLETED", False)]]


@BOTH_WAYS
def test_task_that_expires_or_is_cancelled_fails_or_skips(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.expires("sales.load")
    late = {"good_until": timedelta(hours=1), "deferrable": deferrable}
    with pytest.raises(TaskExpired):
        run_task(load(**late))
    with pytest.raises(AirflowSkipException):
        run_task(load(on_expired="skip", **late))
    horsies.is_cancelled("sales.load")
    with pytest.raises(TaskCancelled):
        run_task(load(deferrable=deferrable))


def test_task_without_good_until_cannot_expire() -> None:
    with pytest.raises(ImpossibleOutcome) as at_the_end, FakeHorsies() as horsies:
        horsies.expires("sales.load")
        with pytest.raises(ImpossibleOutcome):
            run_task(load(on_expired="skip"))
        horsies.returns("sales.load")
        task_id = run_task(load(wait_for_completion=False))
        horsies.expires("sales.load")
        with pytest.raises(ImpossibleOutcome):
            HorsiesHook().read_task(task_id)
    assert str(at_the_end.value) == (
        "The test declares that the horsies task 'sales.load' expires, but it was sent without good_until and so waits "
        "for a worker forever. Set good_until where it is sent, or declare another end."
    )


@BOTH_WAYS
def test_task_that_never_ends_times_out_at_once_and_is_cancelled(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.never_ends("sales.load")
    with pytest.raises(TaskTimedOut, match=r"execution_timeout of 1:00:00;.* Unfinished tasks were cancelled\."):
        run_task(load(execution_timeout=timedelta(hours=1), deferrable=deferrable))
    assert [task.state for task in horsies.tasks("sales.load")] == [TaskState.CANCELLED]
    with pytest.raises(
        HorsiesError, match=r"'sales\.load' does not end in this test, and the wait for it has no time-out"
    ):
        run_task(load(deferrable=deferrable))


def test_task_that_never_ends_is_deferred_for_and_reattached_to(horsies: FakeHorsies) -> None:
    horsies.never_ends("sales.load")
    operator = load(deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute(make_context(operator, logical_date=DAY))
    horsies.returns("sales.load", 3)
    assert run_task(operator, logical_date=DAY, try_number=2, ds="{{ ds }}") == 3
    assert len(horsies.sent("sales.load")) == 1


@BOTH_WAYS
def test_queue_that_nobody_serves_starts_no_task(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.returns("sales.load")
    horsies.queue("gpu", workers=0)
    with pytest.raises(QueueNotServed, match="'gpu'"):
        run_task(load(queue="gpu", queue_timeout=timedelta(hours=1), deferrable=deferrable))
    assert run_task(load(queue="spark", queue_timeout=timedelta(hours=1), deferrable=deferrable)) is None


@BOTH_WAYS
def test_items_of_a_batch_may_end_differently(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.returns("sales.double", lambda number: 2 * number)
    batch = HorsiesBatchOperator(
        task_id="b", task_name="sales.double", items=[{"number": n} for n in range(3)], deferrable=deferrable
    )
    assert run_task(batch) == [0, 2, 4]
    horsies.fails("sales.double", "BAD_INPUT", "not that one", kwargs={"number": 1})
    with pytest.raises(BatchFailed, match=r"1 of 3 tasks did not complete.*item 1: BAD_INPUT: not that one"):
        run_task(batch)


# -- deferring ---------------------------------------------------------------------------------------------------------


class Unresumable:
    """In front of an operator: its override of execute_complete is broken."""

    def execute_complete(self, context: Any, event: Any) -> Any:
        raise RuntimeError("resumed")


class UnresumableOperator(Unresumable, HorsiesOperator):
    pass


class UnresumableBatch(Unresumable, HorsiesBatchOperator):
    pass


class Forgetful(HorsiesOperator):
    """Keeps in memory what another process cannot know."""

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self.seen: list[str] = []

    def execute(self, context: Any) -> Any:
        self.began = True
        self.seen.append("execute")
        context["ti"].xcom_push("begun", True)
        return super().execute(context)

    def execute_complete(self, context: Any, event: Any) -> Any:
        value = super().execute_complete(context, event)
        ti = context["ti"]
        assert ti.task is self
        return {"value": value, "kept": hasattr(self, "began"), "seen": self.seen, "xcom": ti.xcom_pull(key="begun")}


@pytest.mark.parametrize("inline", [timedelta(0), timedelta(seconds=5)], ids=["no inline wait", "inline wait"])
@pytest.mark.parametrize(
    "kind", [UnresumableOperator, partial(UnresumableBatch, items=[{"a": 1}])], ids=["operator", "batch"]
)
def test_deferrable_task_always_goes_through_its_trigger(horsies: FakeHorsies, kind: Any, inline: timedelta) -> None:
    horsies.returns("sales.load", 3)
    given = {"task_id": "load", "task_name": "sales.load", "inline_wait": inline}
    with pytest.raises(RuntimeError, match="resumed"):
        run_task(kind(deferrable=True, **given))
    operator = kind(deferrable=True, **given)
    with pytest.raises(TaskDeferred):
        operator.execute(make_context(operator))
    assert run_task(kind(deferrable=False, **given)) in (3, [3])


@pytest.mark.parametrize("seconds", [1, 3_600], ids=["shorter than the inline wait", "longer"])
def test_task_in_time_is_not_timed_out_by_the_deferral(horsies: FakeHorsies, seconds: int) -> None:
    horsies.returns("sales.load", 3)
    assert run_task(load(deferrable=True, execution_timeout=timedelta(seconds=seconds))) == 3


def test_task_is_resumed_as_in_another_process(horsies: FakeHorsies) -> None:
    horsies.returns("sales.load", 3)
    operator = Forgetful(task_id="load", task_name="sales.load", deferrable=True)
    assert run_task(operator) == {"value": 3, "kept": False, "seen": [], "xcom": True}
    assert operator.seen == []


# -- other operators ---------------------------------------------------------------------------------------------------


@BOTH_WAYS
def test_sensor_waits_for_what_was_sent(horsies: FakeHorsies, deferrable: bool) -> None:
    horsies.returns("sales.load")
    task_id = run_task(load(wait_for_completion=False))
    assert [task.state for task in horsies.tasks("sales.load")] == [TaskState.PENDING]
    run_task(HorsiesSensor(task_id="wait", task_ids=task_id, deferrable=deferrable))
    horsies.never_ends("sales.load")
    slow = run_task(load(wait_for_completion=False), ds="another day")
    with pytest.raises(AirflowSensorTimeout):
        run_task(HorsiesSensor(task_id="wait", task_ids=slow, deferrable=True))


def test_queue_sensor_sees_the_queue_that_was_declared(horsies: FakeHorsies) -> None:
    sensor = HorsiesQueueSensor(task_id="room", queue="spark", max_depth=10)
    horsies.queue("spark", ready=9)
    assert sensor.poke({}) is True
    horsies.queue("spark", ready=10)
    assert sensor.poke({}) is False


def test_tasks_are_cancelled(horsies: FakeHorsies) -> None:
    horsies.never_ends("sales.load")
    task_id = run_task(load(wait_for_completion=False))
    cancel = HorsiesCancelOperator(task_id="stop", horsies_task_ids="{{ ti.xcom_pull('load') }}")
    assert run_task(cancel, xcoms={"load": task_id}) == {task_id: "CANCELLED"}


def test_notifier_sends(horsies: FakeHorsies) -> None:
    horsies.returns("alerts.page")
    HorsiesNotifier(task_name="alerts.page", kwargs={"run": "{{ run_id }}"})({"run_id": "manual__1"})
    assert horsies.sent("alerts.page") == [{"run": "manual__1"}]


def test_decorated_function_and_output_of_another_task(horsies: FakeHorsies) -> None:
    horsies.returns("sales.load", {"rows": 3})
    horsies.returns("sales.export")
    with DAG("sales", schedule=None) as dag:

        @task.horsies("sales.export", deferrable=True)
        def export(loaded: dict[str, int], ds: str | None = None) -> dict[str, Any]:
            return {"day": ds, **loaded}

        export(load().output)
    loaded = run_task(dag.get_task("load"), logical_date=DAY)
    run_task(dag.get_task("export"), logical_date=DAY, xcoms={"load": loaded})
    assert horsies.sent("sales.export") == [{"day": "2026-01-01", "rows": 3}]


def test_mapped_task_is_left_to_airflow() -> None:
    with DAG("sales", schedule=None) as dag:
        HorsiesOperator.partial(task_id="each", task_name="sales.load").expand(kwargs=[{"day": 1}])
    with pytest.raises(TypeError, match=r"each is a mapped task.*dag\.test\(\)"):
        run_task(dag.get_task("each"))


def test_lines_of_a_task_are_in_the_log(horsies: FakeHorsies, capsys: pytest.CaptureFixture[str]) -> None:
    horsies.returns("sales.load")
    horsies.logs("sales.load", ["3 rows"])
    run_task(load())
    assert "[attempt 1] 3 rows" in capsys.readouterr().out


# -- connections -------------------------------------------------------------------------------------------------------


def test_connections_lead_to_different_databases(horsies: FakeHorsies) -> None:
    horsies.returns("sales.load", 3)
    task_id = run_task(load(horsies_conn_id="one", wait_for_completion=False))
    with pytest.raises(TaskNotFound, match="has not sent it on this connection"):
        HorsiesHook("two").read_task(task_id)
    with pytest.raises(AirflowFailException):
        run_task(HorsiesSensor(task_id="wait", task_ids=task_id, horsies_conn_id="two"))
    run_task(HorsiesSensor(task_id="wait", task_ids=task_id, horsies_conn_id="one"))
    again = TaskSpec(task_name="sales.load", task_id=task_id, kwargs={"day": "other"})
    assert HorsiesHook("two").enqueue_task(again) == task_id
    assert HorsiesHook("two").wait([task_id])[0].kwargs == {"day": "other"}


def test_what_was_sent_is_in_order_for_all_connections(horsies: FakeHorsies) -> None:
    horsies.returns("add")
    for number, connection in enumerate(["one", "two", "one"]):
        HorsiesHook(connection).enqueue_task(TaskSpec(task_name="add", kwargs={"n": number}))
    assert horsies.sent("add") == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [spec.kwargs for spec in horsies.specs("add")] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [task.kwargs for task in horsies.tasks("add")] == [{"n": 0}, {"n": 1}, {"n": 2}]


# -- what is not declared ----------------------------------------------------------------------------------------------


def test_task_that_was_not_declared_is_refused_where_it_is_sent_and_at_the_end() -> None:
    with pytest.raises(UndeclaredTask) as at_the_end, FakeHorsies() as horsies:
        horsies.returns("sales.load", kwargs={"day": "monday"})
        for send in (
            lambda: run_task(load(), ds="sunday"),
            lambda: HorsiesHook().enqueue_task(TaskSpec(task_name="sales.other", kwargs={"day": 1})),
        ):
            with pytest.raises(UndeclaredTask):
                send()
        run_task(load(), ds="monday")
    assert str(at_the_end.value) == (
        "The horsies task 'sales.load' was sent with day='sunday', and the test does not say how it ends. "
        "Declare it before it is sent, for example with horsies.returns('sales.load', value)."
    )


def test_failure_of_the_test_itself_has_a_note_of_it() -> None:
    with pytest.raises(ValueError, match="of the test") as caught, FakeHorsies():
        with pytest.raises(UndeclaredTask):
            run_task(load())
        raise ValueError("of the test")
    (note,) = caught.value.__notes__
    assert "The horsies task 'sales.load' was sent with day=" in note


def test_queue_that_was_not_declared_is_refused() -> None:
    with pytest.raises(UndeclaredTask, match=r"horsies\.queue\('spark'\)"), FakeHorsies():
        HorsiesQueueSensor(task_id="room", queue="spark").poke({})


# -- documentation -----------------------------------------------------------------------------------------------------

DOCUMENTED = [getattr(testing, name) for name in testing.__all__]
EXAMPLES = {
    each.__name__: textwrap.dedent(code)
    for each in DOCUMENTED
    for code in re.findall(r"code-block:: python\n\n((?: +\S.*\n|\n)+)", f"{inspect.getdoc(each)}\n")
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str) -> None:
    known = {"FakeHorsies": FakeHorsies, "make_context": make_context, "load": load(deferrable=True)}
    exec(EXAMPLES[name], known)


def test_what_users_name_is_documented() -> None:
    assert set(EXAMPLES) == {"FakeAsyncClient", "FakeClient", "FakeHorsies", "make_context", "run_task"}
    methods = [each for name, each in vars(FakeHorsies).items() if not name.startswith("_")]
    for each in methods:
        documentation = inspect.getdoc(each) or ""
        assert "horsies." in documentation, each
        for parameter in list(inspect.signature(each).parameters)[1:]:
            assert f":param {parameter}:" in documentation, (each, parameter)


@needs_worker_free
def test_task_without_a_worker_runs_as_a_deferrable_one() -> None:
    with DAG("sales", schedule=None):
        load = HorsiesOperator(task_id="load", task_name="add", kwargs={"day": "{{ ds }}"}, worker_free=True)
    with FakeHorsies() as horsies:
        horsies.returns("add", 3)
        assert run_task(load, ds="2026-01-01") == 3
        assert horsies.sent("add") == [{"day": "2026-01-01"}]


# -- chunks -----------------------------------------------------------------------------------------------------------


def chunked(**given: Any) -> HorsiesBatchOperator:
    items = [{"part": part} for part in range(5)]
    return HorsiesBatchOperator(**{"task_id": "b", "task_name": "load", "items": items, "chunk_size": 2, **given})


@pytest.mark.parametrize("deferrable", [True, False])
def test_chunked_batch_runs_each_item_as_it_was_declared(deferrable: bool) -> None:
    with FakeHorsies() as horsies:
        horsies.returns("load", lambda part: 10 * part)
        horsies.fails("load", "BROKEN", "not this one", kwargs={"part": 3})
        assert run_task(chunked(max_failures=1, deferrable=deferrable)) == [0, 10, 20, None, 40]
        assert [sent["part"] for sent in horsies.sent("load")] == [0, 1, 2, 3, 4]
        assert len(horsies.memory.chunks) == 3
        with pytest.raises(BatchFailed, match=r"1 of 5 items did not complete.* item 3: BROKEN: not this one\."):
            run_task(chunked(deferrable=deferrable))


@pytest.mark.parametrize("deferrable", [True, False])
def test_chunk_that_does_not_end_is_decided_by_the_items_that_failed(deferrable: bool) -> None:
    with FakeHorsies() as horsies:
        horsies.returns("load")
        horsies.never_ends("load", kwargs={"part": 0})
        horsies.fails("load", "BROKEN", kwargs={"part": 1})
        with pytest.raises(BatchFailed, match=r"1 item had not ended\. Unfinished tasks were cancelled\."):
            run_task(chunked(deferrable=deferrable))
        assert horsies.tasks("load")[0].state is TaskState.CANCELLED


def test_retry_of_a_chunked_batch_sends_only_what_failed() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with FakeHorsies() as horsies:
        horsies.returns("load", 1)
        horsies.fails("load", "BROKEN", kwargs={"part": 3}, times=1, then=3)
        with pytest.raises(BatchFailed):
            run_task(chunked(), logical_date=noon)
        for size in (2, None):
            again = chunked(chunk_size=size)
            assert run_task(again, logical_date=noon, try_number=2) == [1, 1, 1, 3, 1]
        assert [sent["part"] for sent in horsies.sent("load")] == [0, 1, 2, 3, 4, 3]


def test_results_of_a_chunked_batch_by_reference() -> None:
    with FakeHorsies() as horsies:
        horsies.returns("load", lambda part: part)
        assert run_task(chunked(results="counts")) == {"COMPLETED": 5}
        reference = run_task(chunked(results="reference", deferrable=True))
        assert list(HorsiesHook().read_values(reference)) == [0, 1, 2, 3, 4]
        ids = HorsiesHook().enqueue_items(
            TaskSpec(task_name="load"), [{"part": 7}, {"part": 8}, {"part": 9}], chunk_size=2
        )
        assert [item.value for task_id in ids for item in HorsiesHook().read_items(task_id)] == [7, 8, 9]
