"""The test kit answers as a real database does: the same calls on both, with the same results and the same errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import AirflowTry, RetryPolicy, TaskInstanceKey, TaskSpec, TaskState
from airflow_horsies.testing import FakeHorsies
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

ID, OTHER_ID = "0199aaaa-0000-7000-8000-000000000001", "0199aaaa-0000-7000-8000-000000000002"
ONE = TaskInstanceKey(dag_id="d", run_id="r", task_id="one")
TWO = replace(ONE, task_id="two")
DAY = datetime(2026, 1, 1, tzinfo=UTC)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# What the kit says in words of its own, because it knows the reason.
OWN_WORDS = {"TaskNotFound"}


def spec(**values: Any) -> TaskSpec:
    return TaskSpec(**{"task_name": "add", "kwargs": {"a": 1}, **values})


def keyed(**values: Any) -> TaskSpec:
    return spec(idempotency_key="k", **values)


def tried(number: int = 1, **values: Any) -> AirflowTry:
    return AirflowTry(try_number=number, max_tries=3, run_started_at=DAY, **values)


def parts(*numbers: int) -> list[TaskSpec]:
    return [spec(kwargs={"n": number}) for number in numbers]


def seen(results: Any) -> list[tuple[Any, ...]]:
    return [(each.task_id, each.outcome, each.state, each.life, each.round, each.position) for each in results]


OPTIONS: dict[str, dict[str, Any]] = {
    "same": {},
    "queue": {"queue": "q2"},
    "priority": {"priority": 3},
    "policy": {"retry_policy": RetryPolicy.fixed([1], auto_retry_for=["A_B"])},
    "deadline": {"good_until": datetime(2100, 1, 1, tzinfo=UTC)},
    "delay": {"delay": timedelta(seconds=5)},
    "arguments": {"kwargs": {"a": 5}},
    "name": {"task_name": "sub"},
}


def key_again(hook: HorsiesHook, **option: Any) -> Any:
    return [hook.enqueue_task(keyed()), hook.enqueue_task(keyed(**option))]


def id_again(hook: HorsiesHook, **option: Any) -> Any:
    return [hook.enqueue_task(spec(task_id=ID)), hook.enqueue_task(spec(task_id=ID, **option))]


def many_again(hook: HorsiesHook, **option: Any) -> Any:
    return [hook.enqueue_task(keyed()), hook.enqueue_tasks([spec(), keyed(**option)])]


def submit_again(hook: HorsiesHook, **option: Any) -> Any:
    first = hook.submit_tasks([keyed()], ONE, tried())
    return seen([*first, *hook.submit_tasks([keyed(**option)], TWO, tried())])


def submit_after_enqueue(hook: HorsiesHook, **option: Any) -> Any:
    sent = hook.enqueue_task(keyed(**option))
    return [sent, seen(hook.submit_tasks([keyed()], ONE, tried())), hook.client.release_tasks([sent], ONE)]


def id_and_key(hook: HorsiesHook) -> Any:
    return [hook.enqueue_task(keyed(task_id=ID)), hook.enqueue_task(keyed(task_id=OTHER_ID))]


def many_with_one_id(hook: HorsiesHook) -> Any:
    with pytest.raises(HorsiesError) as refused:
        hook.enqueue_tasks([spec(), spec(task_id=ID), spec(task_id=ID)])
    return [str(refused.value), hook.list_tasks().tasks]


def cancel_twice(hook: HorsiesHook) -> Any:
    task_id = hook.enqueue_task(spec())
    return [hook.cancel_task(task_id), hook.cancel_task(task_id), hook.cancel_tasks([task_id, ID])]


def submissions(*tries: tuple[list[TaskSpec], AirflowTry]) -> Callable[[HorsiesHook], Any]:
    """The results of these tries of one task instance, what they left, and the states of all tasks."""

    def call(hook: HorsiesHook) -> Any:
        results = [seen(hook.submit_tasks(specs, ONE, try_)) for specs, try_ in tries]
        left = hook.read_submissions(ONE)
        states = hook.read_states([each.horsies_task_id for each in left])
        rows = [(s.horsies_task_id, s.position, s.round, s.life, s.is_latest, s.try_number) for s in left]
        run = [s.horsies_task_id for s in hook.client.read_submissions_of_run("d", "r")]
        return [results, rows, [states[s.horsies_task_id] for s in left], run]

    return call


def batches(*tries: tuple[list[int], Any, AirflowTry]) -> Callable[[HorsiesHook], Any]:
    """As above, for the items of a batch; a chunk size of None makes each a task."""

    def call(hook: HorsiesHook) -> Any:
        results = []
        for numbers, size, try_ in tries:
            items = [{"a": number, "b": 0} for number in numbers]
            sent = hook.submit_items(TaskSpec(task_name="add"), items, ONE, try_, chunk_size=size)
            results.append((sent.life, sent.size, sorted(sent.outcomes.items()), sent.is_chunked, sent.task_ids))
        left = [each for each in hook.read_submissions(ONE) if each.is_latest]
        rows = [(s.horsies_task_id, s.position, s.life, s.task_name, s.try_number) for s in left]
        states = hook.read_states([each.horsies_task_id for each in left])
        counts = hook.client.count_items(sorted(states))
        ids = sorted(states, key=[s.horsies_task_id for s in left].index)
        return [results, rows, [(states[each], counts.get(each)) for each in ids]]

    return call


def items_alone(hook: HorsiesHook) -> Any:
    ids = hook.enqueue_items(TaskSpec(task_name="add"), [{"a": 1}, {"a": 2}, {"a": 3}], chunk_size=2)
    return [[(item.task_id, item.number, item.state) for item in hook.read_items(each)] for each in ids]


def release_of_another(hook: HorsiesHook) -> Any:
    (sent,) = hook.submit_tasks([spec()], ONE, tried())
    return hook.client.release_tasks([sent.task_id], TWO)


def release_by_an_earlier_try(hook: HorsiesHook) -> Any:
    first = hook.submit_tasks(parts(1, 2), ONE, tried())
    hook.submit_tasks(parts(1, 3), ONE, tried(2))
    ids = [each.task_id for each in first]
    return [hook.client.release_tasks(ids, ONE, try_number=number) for number in (1, 2)]


CALLS: dict[str, Callable[[HorsiesHook], Any]] = {
    **{
        f"{call.__name__} {name}": lambda hook, call=call, option=option: call(hook, **option)  # type: ignore[misc]
        for call in (key_again, id_again, many_again, submit_again, submit_after_enqueue)
        for name, option in OPTIONS.items()
    },
    "id and key": id_and_key,
    "key twice": lambda hook: hook.enqueue_tasks([keyed(), keyed()]),
    "key twice in a batch": lambda hook: hook.submit_tasks([keyed(), keyed()], ONE, tried()),
    "id twice": many_with_one_id,
    "given id": lambda hook: hook.submit_tasks([spec(task_id=ID)], ONE, tried()),
    "no task": lambda hook: hook.enqueue_tasks([]),
    "no page": lambda hook: hook.list_tasks(limit=0),
    "large page": lambda hook: hook.list_tasks(limit=100_000),
    "page as text": lambda hook: hook.list_tasks(limit="3"),  # type: ignore[arg-type]
    "no lines": lambda hook: hook.read_lines(ID, limit=0),
    "states as text": lambda hook: [hook.enqueue_task(spec()), len(hook.list_tasks(states={"PENDING"}).tasks)],  # type: ignore[arg-type]
    "one state as text": lambda hook: hook.list_tasks(states="PENDING"),  # type: ignore[arg-type]
    "unknown state": lambda hook: hook.list_tasks(states={"NOPE"}),  # type: ignore[arg-type]
    "cancel in another state": lambda hook: hook.cancel_task(hook.enqueue_task(spec()), states={TaskState.RUNNING}),
    "cancel in an unknown state": lambda hook: hook.cancel_task(ID, states={"NOPE"}),  # type: ignore[arg-type]
    "cancel twice": cancel_twice,
    "cancel what is not there": lambda hook: hook.cancel_task(ID),
    "read what is not there": lambda hook: hook.read_task(ID),
    "wait for what is not there": lambda hook: hook.wait([ID], timeout_seconds=1),
    "wait for a string": lambda hook: hook.wait(ID),
    "wait for nothing": lambda hook: hook.wait([]),
    "wait without time": lambda hook: hook.wait([hook.enqueue_task(spec())], timeout_seconds=0),
    "arguments that are not JSON": lambda hook: hook.enqueue_task(spec(kwargs={"a": {1, 2}})),
    "earlier try": submissions(([spec()], tried(2)), ([spec()], tried(1))),
    "earlier life": submissions(([spec()], tried(2, clear_number=1)), ([spec()], tried(1))),
    "retry": submissions(([spec()], tried()), ([spec()], tried(2))),
    "other arguments and back": submissions((parts(1), tried()), (parts(2), tried(2)), (parts(1), tried(3))),
    "clear": submissions(([spec()], tried()), ([spec()], tried(2, clear_number=1))),
    "clear to nothing": submissions(([spec()], tried()), ([], tried(2, clear_number=1))),
    "clear with a key": submissions(([keyed()], tried()), ([keyed()], tried(2, clear_number=1))),
    "batch shrinks": submissions((parts(0, 1, 2, 3), tried()), (parts(3, 1), tried(2))),
    "batch is empty for a while": submissions((parts(0, 1), tried()), ([], tried(2)), (parts(0, 1), tried(3))),
    "batch is reordered": submissions((parts(0, 1, 2), tried()), (parts(2, 0, 7), tried(2))),
    "chunks": batches(([1, 2, 3], 2, tried())),
    "chunks again": batches(([1, 2, 3], 2, tried()), ([3, 2, 1], 5, tried(2)), ([1, 2, 3, 4], None, tried(3))),
    "tasks become chunks": batches(([1, 2], None, tried()), ([2, 3, 4], 2, tried(2))),
    "chunks shrink": batches(([1, 2, 3, 4], 2, tried()), ([1], 2, tried(2))),
    "chunks are cleared": batches(([1, 2, 3], 2, tried()), ([1, 2, 3], 2, tried(2, clear_number=1))),
    "chunks of nothing": batches(([], 2, tried())),
    "chunks of an earlier try": batches(([1], 2, tried(2)), ([1], 2, tried(1))),
    "chunks of a bad size": batches(([1], 0, tried())),
    "chunks of what is not JSON": lambda hook: hook.enqueue_items(spec(kwargs={}), [{"a": 1}, {"a": {2}}]),
    "chunks with arguments": lambda hook: hook.enqueue_items(spec(), [{"a": 1}]),
    "items alone": items_alone,
    "items of a task": lambda hook: list(hook.read_items(hook.enqueue_task(spec()))),
    "release of another": release_of_another,
    "release by an earlier try": release_by_an_earlier_try,
    "release of what is not there": lambda hook: hook.client.release_tasks([ID], ONE),
}


def answer(call: Callable[[HorsiesHook], Any], hook: HorsiesHook) -> str:
    try:
        text = repr(call(hook))
    except HorsiesError as error:
        name = type(error).__name__
        text = name if name in OWN_WORDS else f"{name}: {error}"
    names: dict[str, str] = {}
    return UUID.sub(lambda match: names.setdefault(match[0], f"<{len(names)}>"), text)


@pytest.mark.parametrize("name", CALLS)
def test_kit_answers_as_the_database_does(name: str, make_hook: MakeHook, database: str) -> None:
    with make_hook(database, extra={"namespace": "testing"}) as hook:
        real = answer(CALLS[name], hook)
    with FakeHorsies() as horsies:
        for task in ("add", "sub"):
            horsies.never_ends(task)
        for queue in ("default", "q2"):
            horsies.queue(queue, workers=0)
        assert answer(CALLS[name], HorsiesHook()) == real
