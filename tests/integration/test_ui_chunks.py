"""The pages of a batch in chunks: its items one by one, whatever task runs them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts
from airflow_horsies.models import LogChunk, TaskState
from tests.integration.chunk_rig import INSTANCE, NOON, batch, end, run, sql, start, submit, tried, write
from tests.integration.releases import MOVED
from tests.integration.test_repair import cleared
from tests.integration.test_ui_scale import NO_SESSION, RIGHTS, answer

with warnings.catch_warnings():
    # Airflow's security module brings Starlette's test client along, which warns of the httpx it finds.
    warnings.simplefilter("ignore")
    from airflow_horsies.ui.routes import instance as instance_routes
    from airflow_horsies.ui.routes.instance import CancelBody, ItemBody, Sort

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

LARGE, SMALL, PER_CHUNK = 100_000, 1_000, 100
ROUNDS = 7


@pytest.fixture(autouse=True)
def pages(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PageClient]]:
    def client(*, seconds: float = 0) -> PageClient:
        return PageClient(hook.settings)

    monkeypatch.setattr(instance_routes, "read_tries", lambda *_: [])
    monkeypatch.setattr(instance_routes, "read_rendered", lambda *_: {})
    monkeypatch.setattr(instance_routes, "page_client", client)
    yield client


def show(**asked: Any) -> dict[str, Any]:
    return answer(instance_routes.read_instance(INSTANCE, NO_SESSION, RIGHTS, **asked))


def items(sort: Sort = Sort.POSITION, **asked: Any) -> dict[str, Any]:
    return answer(instance_routes.read_items(INSTANCE, sort, **asked))


def column(name: str, sort: Sort = Sort.POSITION, **asked: Any) -> list[Any]:
    return [item[name] for item in items(sort, **asked)["items"]]


def mixed(hook: HorsiesHook) -> list[str]:
    """Items 0 to 3 in ended chunks, of which 1 and 2 failed; 4 has completed in a running chunk, 5 has not started;
    6 waits."""
    ids = list(submit(hook, range(7)).task_ids)
    run(hook, ids[0], 1)
    run(hook, ids[1], 2)
    start(hook, ids[2])
    write(hook, ids[2], {0: 40})
    return ids


def test_items_are_counted_by_their_own_state(hook: HorsiesHook) -> None:
    mixed(hook)
    shown = show()
    assert shown["positions"] == 7
    assert shown["counts"] == {"PENDING": 1, "RUNNING": 1, "COMPLETED": 3, "FAILED": 2}
    assert shown["past_retention"] == 0


def test_items_are_shown_by_place_with_their_own_outcome(hook: HorsiesHook) -> None:
    mixed(hook)
    assert column("position") == list(range(7))
    assert column("state") == ["COMPLETED", "FAILED", "FAILED", "COMPLETED", "COMPLETED", "RUNNING", "PENDING"]
    assert column("error_code") == [None, "BROKEN", "BROKEN", None, None, None, None]
    assert column("error_message")[1] == "it was BROKEN"
    assert column("hostname")[:5] == ["here"] * 5
    assert [seconds is not None for seconds in column("duration")] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("sort", list(Sort))
def test_each_order_is_the_same_forwards_and_backwards_page_by_page(hook: HorsiesHook, sort: Sort) -> None:
    mixed(hook)
    for descending in (False, True):
        whole = column("position", sort, descending=descending)
        paged = [
            position
            for offset in range(0, 7, 3)
            for position in column("position", sort, descending=descending, limit=3, offset=offset)
        ]
        assert sorted(whole) == list(range(7))
        assert paged == whole
    by_state = column("state", Sort.STATE)
    assert by_state == sorted(by_state)
    assert column("position", Sort.ERROR_CODE)[:2] == [1, 2]
    assert column("position", descending=True) == list(range(7))[::-1]


@pytest.mark.parametrize("sort", [Sort.POSITION, Sort.DURATION])
def test_items_that_are_no_longer_requested_are_on_no_page(hook: HorsiesHook, sort: Sort) -> None:
    submit(hook, range(4), chunk_size=4)
    submit(hook, (0, 2), chunk_size=4, at=tried(2))
    for descending in (False, True):
        shown = items(sort, descending=descending)
        assert shown["total"] == 2
        assert sorted(item["position"] for item in shown["items"]) == [0, 1]
        assert not items(sort, descending=descending, offset=2)["items"]


@pytest.mark.parametrize("sort", [Sort.POSITION, Sort.DURATION])
def test_items_are_filtered_by_state(hook: HorsiesHook, sort: Sort) -> None:
    mixed(hook)
    for state, count in show()["counts"].items():
        found = items(sort, state=TaskState(state), limit=1)
        assert (found["total"], len(found["items"])) == (count, 1)
        assert found["items"][0]["state"] == state


@pytest.mark.parametrize("sort", list(Sort))
def test_items_are_filtered_by_their_own_state_and_not_by_that_of_their_chunk(hook: HorsiesHook, sort: Sort) -> None:
    """Of chunks that failed: one with all outcomes, one without its last, one without any; and items that moved or are
    no longer asked for."""
    ids = list(submit(hook, range(8)).task_ids)
    run(hook, ids[0], 1)
    start(hook, ids[1])
    write(hook, ids[1], {0: "BROKEN"})
    end(hook, ids[1], TaskState.FAILED)
    end(hook, ids[2], TaskState.FAILED)
    run(hook, ids[3])
    for at in (tried(), tried(2)):
        if at.try_number == 2:
            submit(hook, [7, 5, 3, 1, 0], at=at)
        shown = {item["position"]: item["state"] for item in items()["items"]}
        assert set(shown) == set(range(8 if at.try_number == 1 else 5))
        for state in TaskState:
            found = items(sort, state=state)
            expected = sorted(position for position, each in shown.items() if each == state)
            assert (found["total"], sorted(each["position"] for each in found["items"])) == (len(expected), expected)


def test_one_item_is_shown_with_its_values_lines_and_attempts(hook: HorsiesHook) -> None:
    ids = mixed(hook)
    for number, text in ((0, "of another item"), (1, "of this one"), (None, "of none")):
        line = LogChunk((number or 5) + 1, NOON, "INFO", [text], item=number)
        hook.client.run(lambda line=line: attempts.append_lines(ids[0], 1, [line]))  # type: ignore[misc]
    shown = show(position=1)
    (submission,) = shown["submissions"]
    assert (submission["number"], submission["task_name"], submission["position"]) == (1, "add", 1)
    assert (submission["task"]["state"], submission["task"]["error_code"]) == ("FAILED", "BROKEN")
    assert [attempt["error_message"] for attempt in submission["attempts"]] == ["it was BROKEN"]
    assert [line["text"] for line in shown["log"]["lines"]] == ["of this one"]
    assert answer(instance_routes.read_values(INSTANCE, NO_SESSION, 3))["result"] == "30"
    with instance_routes.page_client() as client:
        (chosen,) = client.read_rounds(INSTANCE, 1)
    assert b"of this one" in b"".join(instance_routes._written_lines(chosen, None))


def test_the_rounds_of_an_item_are_shown_whatever_ran_them(hook: HorsiesHook) -> None:
    ids = list(submit(hook, range(4)).task_ids)
    run(hook, ids[0], 1)
    run(hook, ids[1])
    submit(hook, range(4), None, at=tried(2))
    shown = show(position=1)
    assert [(each["round"], each["number"], each["task"]["state"]) for each in shown["submissions"]] == [
        (2, None, "PENDING"),
        (1, 1, "FAILED"),
    ]
    assert shown["counts"] == {"PENDING": 1, "COMPLETED": 3}
    assert column("state", Sort.STATE) == ["COMPLETED"] * 3 + ["PENDING"]


def test_a_kept_item_is_shown_once_after_a_repair(hook: HorsiesHook) -> None:
    ids = list(submit(hook, range(4)).task_ids)
    run(hook, ids[0], 1)
    run(hook, ids[1])
    request_repair(hook.client, INSTANCE, clear_number=0, requested_by="ann")
    submit(hook, range(4), at=cleared())
    assert column("state") == ["COMPLETED", "PENDING", "COMPLETED", "COMPLETED"]
    assert show()["counts"] == {"PENDING": 1, "COMPLETED": 3}
    assert [(each["life"], each["round"]) for each in show(position=0)["submissions"]] == [(2, 1)]
    assert [(each["life"], each["task"]["state"]) for each in show(position=1)["submissions"]] == [
        (2, "PENDING"),
        (1, "FAILED"),
    ]


def cancel(position: int | None) -> dict[str, Any]:
    if position is None:
        return answer(instance_routes.cancel(INSTANCE, CancelBody()))
    newest = show(position=position)["submissions"][0]
    item = ItemBody(**{name: newest[name] for name in ("position", "horsies_task_id", "number")})
    return answer(instance_routes.cancel(INSTANCE, CancelBody(item=item)))


def test_one_item_is_cancelled_and_the_rest_of_its_chunk_goes_on(hook: HorsiesHook) -> None:
    ids = mixed(hook)
    assert cancel(1)["outcomes"] == {"ALREADY_FINISHED": 1}
    assert cancel(4)["outcomes"] == {"ALREADY_FINISHED": 1}
    again = list(submit(hook, range(7), at=tried(2)).task_ids)
    waiting = next(task_id for task_id in again if task_id not in ids)
    assert cancel(1)["outcomes"] == {"REQUESTED": 1}
    assert sql(hook, "SELECT dropped FROM airflow_horsies.chunks WHERE horsies_task_id = %s", waiting) == [([0],)]
    assert hook.read_task(waiting).state is TaskState.PENDING
    # Nothing else is left to run in the chunk.
    assert cancel(2)["outcomes"] == {"CANCELLED": 1}
    assert hook.read_task(waiting).state is TaskState.CANCELLED
    assert cancel(5)["outcomes"] == {"CANCELLED": 1}
    assert column("state") == ["COMPLETED", "CANCELLED", "CANCELLED", "COMPLETED", "COMPLETED", "CANCELLED", "PENDING"]


def test_all_items_are_cancelled(hook: HorsiesHook) -> None:
    mixed(hook)
    assert cancel(None)["outcomes"] == {"ALREADY_FINISHED": 2, "CANCELLED": 2}
    assert show()["counts"] == {"COMPLETED": 3, "FAILED": 2, "CANCELLED": 2}


def fill(hook: HorsiesHook, count: int) -> None:
    """A batch of which one item in a hundred failed, one in every chunk of the first half."""
    ids = submit(hook, range(count), PER_CHUNK, at=tried(run_key=f"run of {count}")).task_ids
    sql(
        hook,
        "INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, started_at, finished_at,"
        " error_code, value, hostname) SELECT chunk.horsies_task_id, number,"
        " CASE WHEN number = 7 AND chunk.places[1] < %s THEN 'FAILED' ELSE 'COMPLETED' END, 1, 1, now(), now(),"
        " CASE WHEN number = 7 AND chunk.places[1] < %s THEN 'BROKEN' END, '1', 'here'"
        " FROM airflow_horsies.chunks AS chunk, generate_series(0, chunk.size - 1) AS number",
        *(count // 2, count // 2),
    )
    sql(hook, "UPDATE horsies_tasks SET status = 'RUNNING', started_at = now()")
    for place, task_id in enumerate(ids):
        end(hook, task_id, TaskState.FAILED if place * PER_CHUNK < count // 2 else TaskState.COMPLETED)
    sql(hook, "ANALYZE")


def measure(ask: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@pytest.mark.timeout(300)
def test_the_page_of_a_batch_that_was_cleared_several_times(hook: HorsiesHook) -> None:
    """All lives together are many times the last one."""
    once, often = (replace(INSTANCE, run_id=run_id) for run_id in ("once", "often"))
    hook.client.submit_batch(batch(range(LARGE // 10), PER_CHUNK // 10), once, tried())
    for clears in range(6):
        hook.client.submit_batch(batch(range(LARGE // 10), PER_CHUNK // 10), often, cleared(clears + 1, clears))
    sql(hook, "ANALYZE")
    shown = {key: partial(instance_routes.read_instance, key, NO_SESSION, RIGHTS, position=5) for key in (once, often)}
    assert len(answer(shown[often]())["submissions"]) == 6
    seconds = {key: measure(ask) for key, ask in shown.items()}
    # Only the search for the rounds of the item reads all lives.
    assert seconds[often] < 4 * seconds[once], seconds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_of_a_very_large_batch_answers_like_that_of_a_small_one(
    hook: HorsiesHook, record_property: Callable[[str, Any], None]
) -> None:
    asked: dict[str, Callable[[], Any]] = {
        "instance": lambda: show(position=500),
        "items": lambda: items(offset=500),
        "failed items": lambda: items(state=TaskState.FAILED),
        "by duration": lambda: items(Sort.DURATION),
    }
    fill(hook, SMALL)
    small = {name: measure(ask) for name, ask in asked.items()}
    sql(hook, "TRUNCATE airflow_horsies.submissions, airflow_horsies.chunks, airflow_horsies.items")
    fill(hook, LARGE)
    assert show()["counts"] == {"COMPLETED": LARGE - LARGE // PER_CHUNK // 2, "FAILED": LARGE // PER_CHUNK // 2}
    large = {name: measure(ask) for name, ask in asked.items()}
    times = {name: round(large[name] / small[name], 2) for name in asked}
    print({name: (round(small[name] * 1000), round(large[name] * 1000)) for name in asked}, times)
    record_property("times", times)
    assert max(times["items"], times["instance"]) < 3, times
