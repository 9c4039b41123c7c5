"""Repair on real databases: a clear that runs again only what did not complete, whatever changes in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import prune_ledger
from airflow_horsies.client.repairing import request_repair, withdraw_repair
from airflow_horsies.core.batch import SubmittedBatch
from airflow_horsies.core.submission import OnClear
from airflow_horsies.exceptions import InvalidTask, StaleSubmission, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.item_pages import cancel_item
from airflow_horsies.ledger.latest import Deployment
from airflow_horsies.models import AirflowTry, CancelOutcome, SubmitOutcome, TaskState
from tests.integration.chunk_rig import INSTANCE, NOON, batch, interrupt_release, items_of, sql, start, tried
from tests.integration.releases import keeps_history
from tests.integration.test_submit import end_task, rows

SENT, REATTACHED, ADOPTED, KEPT = (
    SubmitOutcome.SENT,
    SubmitOutcome.REATTACHED,
    SubmitOutcome.ADOPTED,
    SubmitOutcome.KEPT,
)
DONE, FAILED, EXPIRED, CANCELLED, RUNNING = (
    TaskState.COMPLETED,
    TaskState.FAILED,
    TaskState.EXPIRED,
    TaskState.CANCELLED,
    TaskState.RUNNING,
)
pytestmark = pytest.mark.both_releases

Item = tuple[str, int]


@pytest.fixture(params=["setting", "request"])
def how(request: pytest.FixtureRequest) -> str:
    """What asks for the repair: on_clear of the operator, or a user."""
    return str(request.param)


@pytest.fixture(params=[None, 2], ids=["tasks", "chunks"])
def chunk_size(request: pytest.FixtureRequest) -> int | None:
    return None if request.param is None else int(request.param)


@pytest.fixture
def rig(hook: HorsiesHook, release: str, chunk_size: int | None) -> Rig:
    return Rig(hook, release, chunk_size)


def cleared(number: int = 2, clears: int = 1, **more: Any) -> AirflowTry:
    """The first try after a clear: of a run that had ended, so that it starts anew."""
    started = NOON + timedelta(hours=clears)
    return tried(number, **{"max_tries": 2 + number, "clear_number": clears, "run_started_at": started, **more})


class Rig:
    """A batch whose items are tasks of their own, or parts of chunks; and the worker that ends them."""

    def __init__(self, hook: HorsiesHook, release: str, chunk_size: int | None) -> None:
        self.hook = hook
        self.release = release
        self.chunk_size = chunk_size

    def submit(
        self, numbers: Iterable[int], at: AirflowTry, *, on_clear: OnClear | str = OnClear.ALL
    ) -> SubmittedBatch:
        return self.hook.client.submit_batch(batch(numbers, self.chunk_size), INSTANCE, at, on_clear=on_clear)

    def repair(self, how: str, numbers: Iterable[int], at: AirflowTry | None = None) -> SubmittedBatch:
        again = at or cleared()
        if how == "request":
            self.request(clear_number=again.clear_number - 1)
        return self.submit(numbers, again, on_clear="failed" if how == "setting" else "all")

    def request(self, *, clear_number: int = 0, items: list[int] | None = None, started: datetime = NOON) -> int:
        made = request_repair(
            self.hook.client,
            INSTANCE,
            clear_number=clear_number,
            run_started_at=started,
            requested_by="ann",
            items=items,
        )
        return made.id

    def requests(self) -> list[tuple[object, ...]]:
        query = "SELECT requested_by, taken_at IS NOT NULL, taken_life FROM airflow_horsies.repairs ORDER BY id"
        return rows(self.hook, query)

    def begin(self, *states: TaskState) -> list[Item]:
        """A batch in its first life, whose items have these states; where they run."""
        self.submit(range(len(states)), tried())
        return self.end(*states)

    def end(self, *states: TaskState | None, life: int = 1) -> list[Item]:
        """Let the items at these places end like this; None leaves one as it is."""
        items = self.items(life)
        wanted = {item: state for item, state in zip(items, states, strict=True) if state is not None}
        for task_id in dict.fromkeys(task_id for task_id, _ in wanted):
            of_task = {number: state for (task, number), state in wanted.items() if task == task_id}
            if -1 in of_task:
                self._end_task(task_id, of_task[-1])
            else:
                self._end_chunk(task_id, of_task)
        return items

    def _end_task(self, task_id: str, state: TaskState) -> None:
        if state is RUNNING:
            start(self.hook, task_id)
        elif state.is_terminal:
            end_task(self.hook, task_id, state, self.release)

    def _end_chunk(self, task_id: str, states: dict[int, TaskState]) -> None:
        start(self.hook, task_id)
        for number, state in states.items():
            if state.is_terminal:
                sql(
                    self.hook,
                    "INSERT INTO airflow_horsies.items (horsies_task_id, number, outcome, attempt, tries, finished_at,"
                    " value) VALUES (%s, %s, %s, 1, 1, now(), %s)",
                    *(task_id, number, state.value, "7" if state is DONE else None),
                )
        if all(state.is_terminal for state in states.values()):
            ended = DONE if set(states.values()) == {DONE} else FAILED
            end_task(self.hook, task_id, ended, self.release)

    def items(self, life: int = 1) -> list[Item]:
        """Where the items of the batch run: task and number, by place."""
        places = self.hook.client.read_batch(INSTANCE, life=life)
        return places.page(0, len(places))

    def states(self, life: int) -> list[TaskState]:
        return [item.state for item in items_of(self.hook, len(self.items(life)), life=life)]


def same(first: Sequence[Item], second: Sequence[Item]) -> list[bool]:
    return [one == other for one, other in zip(first, second, strict=True)]


def test_only_what_did_not_complete_runs_again(rig: Rig, how: str) -> None:
    first = rig.begin(DONE, FAILED, EXPIRED, CANCELLED, DONE)
    again = rig.repair(how, range(5))
    assert (again.outcomes, again.life) == ({ADOPTED: 2, SENT: 3}, 2)
    assert same(first, rig.items(2)) == [True, False, False, False, True]
    assert rig.states(2) == [DONE, *[TaskState.PENDING] * 3, DONE]


def test_a_plain_clear_runs_everything(rig: Rig) -> None:
    first = rig.begin(DONE, FAILED, DONE)
    assert rig.submit(range(3), cleared()).outcomes == {SENT: 3}
    assert not {task_id for task_id, _ in first} & {task_id for task_id, _ in rig.items(2)}


def test_a_plain_clear_after_a_repair_runs_everything(rig: Rig) -> None:
    first = rig.begin(DONE, FAILED, DONE)
    rig.repair("request", range(3))
    second = rig.end(None, DONE, None, life=2)
    again = rig.submit(range(3), cleared(3, 2))
    assert (again.outcomes, again.life) == ({SENT: 3}, 3)
    assert not {task_id for task_id, _ in (*first, *second)} & {task_id for task_id, _ in rig.items(3)}


def test_a_repair_of_a_repair_keeps_what_completed_in_any_life(rig: Rig, how: str) -> None:
    first = rig.begin(DONE, FAILED, FAILED)
    rig.repair(how, range(3))
    second = rig.end(None, DONE, FAILED, life=2)
    third = rig.repair(how, range(3), cleared(3, 2))
    assert third.outcomes == {ADOPTED: 2, SENT: 1}
    assert rig.items(3)[:2] == [first[0], second[1]]
    rig.end(None, None, DONE, life=3)
    assert rig.states(3) == [DONE, DONE, DONE]


def test_retries_before_and_after_the_repair_follow_the_rules_of_a_life(rig: Rig, how: str) -> None:
    rig.begin(DONE, FAILED, FAILED, FAILED)
    rig.submit(range(4), tried(2))
    rig.end(None, FAILED, DONE, FAILED)
    second = rig.repair(how, range(4), cleared(3))
    assert second.outcomes == {ADOPTED: 2, SENT: 2}
    rig.end(None, DONE, None, FAILED, life=2)
    retried = rig.submit(range(4), replace(cleared(3), try_number=4))
    assert (retried.outcomes, retried.life) == ({ADOPTED: 3, SENT: 1}, 2)
    rig.end(None, None, None, DONE, life=2)
    assert rig.states(2) == [DONE] * 4


def test_live_items_are_reattached_to(rig: Rig, how: str) -> None:
    first = rig.begin(RUNNING, TaskState.PENDING, FAILED, FAILED)
    again = rig.repair(how, range(4))
    assert again.outcomes == {REATTACHED: 2, SENT: 2}
    assert rig.items(2)[:2] == first[:2]
    assert all(not rig.hook.read_task(task_id).state.is_terminal for task_id, _ in first[:2])


def test_items_that_the_clear_cancelled_run_again(rig: Rig, how: str) -> None:
    """Airflow stops the process or the trigger of a cleared task instance, which cancels what has not ended."""
    first = rig.begin(DONE, RUNNING, TaskState.PENDING)
    rig.hook.client.release_tasks({task_id for task_id, _ in first}, INSTANCE)
    assert rig.repair(how, range(3)).outcomes == {ADOPTED: 1, SENT: 2}


def test_a_late_kill_of_the_earlier_life_cancels_nothing_that_the_repair_took_over(rig: Rig, how: str) -> None:
    first = [task_id for task_id, _ in rig.begin(FAILED, DONE, RUNNING)]
    again = rig.repair(how, range(3))
    release = rig.hook.client.release_tasks
    assert set(release(first, INSTANCE, life=1).values()) == {CancelOutcome.STILL_WANTED}
    assert set(release(first, INSTANCE, try_number=1).values()) == {CancelOutcome.STILL_WANTED}
    assert rig.hook.read_task(first[2]).state is RUNNING
    # A user may still cancel it.
    release(again.task_ids, INSTANCE, life=2)
    assert rig.states(2) == [CANCELLED, DONE, CANCELLED]


def test_a_late_submission_of_the_earlier_life_is_refused(rig: Rig, how: str) -> None:
    rig.begin(DONE, FAILED)
    rig.repair(how, range(2))
    with pytest.raises(StaleSubmission, match="has been cleared"):
        rig.submit(range(2), tried(2), on_clear="failed")


def test_nothing_is_kept_over_a_run_that_was_made_again(rig: Rig, how: str) -> None:
    rig.begin(DONE, FAILED)
    remade = cleared(2, 1, run_key="another run", run_started_at=NOON + timedelta(days=1))
    assert rig.repair(how, range(2), remade).outcomes == {SENT: 2}


@pytest.mark.parametrize("number", [1, 2])
def test_without_a_key_of_the_run_only_a_request_keeps_and_only_for_the_next_try(
    rig: Rig, how: str, number: int
) -> None:
    """Before Airflow 3.3, a clear of a run that had ended resets all that identifies it."""
    rig.submit(range(2), tried(run_key=None))
    rig.end(DONE, FAILED)
    again = rig.repair(how, range(2), cleared(number, run_key=None))
    keeps = how == "request" and number == 2
    assert again.outcomes == ({ADOPTED: 1, SENT: 1} if keeps else {SENT: 2})


@pytest.mark.parametrize("hours", [0, 1], ids=["it goes on", "it was made again"])
def test_without_a_key_of_the_run_a_request_is_taken_in_the_run_in_which_it_was_made(rig: Rig, hours: int) -> None:
    """Airflow counts no clear in a run that goes on. Its own start tells it from one that was deleted and made again,
    whose first try died before it submitted. The run was cleared once after the first submission."""
    rig.submit(range(2), tried(run_key=None))
    rig.end(DONE, FAILED)
    restarted = NOON + timedelta(minutes=5)
    rig.request(clear_number=1, started=restarted)
    started = restarted + timedelta(hours=hours)
    again = rig.submit(range(2), cleared(run_key=None, run_started_at=started))
    assert again.outcomes == ({SENT: 2} if hours else {ADOPTED: 1, SENT: 1})


def test_items_are_matched_by_what_they_are(rig: Rig, how: str) -> None:
    """Item 0 is edited, 1 and 2 change places, and 4 is removed while it runs."""
    first = rig.begin(DONE, DONE, FAILED, DONE, RUNNING)
    again = rig.repair(how, [7, 2, 1, 3])
    assert again.outcomes == {SENT: 2, ADOPTED: 2}
    assert rig.items(2)[2:] == [first[1], first[3]]
    assert rig.hook.read_task(first[4][0]).state is CANCELLED


def test_equal_items_keep_their_own_tasks(rig: Rig, how: str) -> None:
    rig.submit([1, 1, 1], tried())
    rig.end(DONE, FAILED, DONE)
    assert rig.repair(how, [1, 1, 1]).outcomes == {ADOPTED: 2, SENT: 1}
    assert len(set(rig.items(2))) == 3


def test_a_completed_item_past_its_retention_runs_again(rig: Rig, how: str) -> None:
    first = rig.begin(DONE, DONE, DONE, DONE)
    table, column = ("horsies_task_history", "task_id") if keeps_history(rig.release) else ("horsies_tasks", "id")
    with psycopg.connect(**rig.hook.settings.database.connect_args) as connection:
        connection.execute(f"DELETE FROM {table} WHERE {column} = '{first[0][0]}'")  # type: ignore[arg-type]
    gone = 1 if rig.chunk_size is None else 2
    assert rig.repair(how, range(4)).outcomes == {SENT: gone, ADOPTED: 4 - gone}


def test_an_item_that_is_to_be_cancelled_runs_again(rig: Rig, how: str) -> None:
    first = rig.begin(RUNNING, RUNNING, DONE, DONE)
    sql(
        rig.hook,
        "INSERT INTO airflow_horsies.cancel_requests (horsies_task_id) SELECT DISTINCT unnest(%s::uuid[])",
        [task_id for task_id, _ in first[:2]],
    )
    assert rig.repair(how, range(4)).outcomes == {SENT: 2, ADOPTED: 2}


def test_a_request_to_cancel_that_came_too_late_changes_nothing(rig: Rig, how: str) -> None:
    """A release of many tasks first records requests for all of them; its process is killed before it goes on."""
    first = rig.begin(DONE, DONE, DONE, FAILED)
    interrupt_release(rig.hook, [task_id for task_id, _ in first])
    assert rig.repair(how, range(4)).outcomes == {ADOPTED: 3, SENT: 1}


def test_a_batch_may_be_cut_in_another_way_between_the_lives(hook: HorsiesHook, release: str, how: str) -> None:
    rig = Rig(hook, release, 3)
    first = rig.begin(DONE, FAILED, DONE, FAILED, DONE)
    rig.chunk_size = None
    assert rig.repair(how, range(5)).outcomes == {ADOPTED: 3, SENT: 2}
    rig.end(None, DONE, None, FAILED, None, life=2)
    rig.chunk_size = 2
    assert rig.repair(how, range(5), cleared(3, 2)).outcomes == {ADOPTED: 4, SENT: 1}
    assert [item for item in rig.items(3) if item in first] == [first[0], first[2], first[4]]
    rig.end(None, None, None, DONE, None, life=3)
    assert rig.states(3) == [DONE] * 5


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_request_is_taken_once_and_recorded(rig: Rig) -> None:
    rig.begin(DONE, FAILED)
    rig.request()
    rig.submit(range(2), cleared())
    assert rig.requests() == [("ann", True, 2)]
    assert rig.submit(range(2), cleared(3, 2)).outcomes == {SENT: 2}


def test_a_retry_before_the_clear_does_not_take_the_request(rig: Rig) -> None:
    rig.begin(DONE, FAILED)
    rig.request()
    rig.submit(range(2), tried(2))
    assert rig.requests() == [("ann", False, None)]
    rig.end(None, FAILED)
    assert rig.submit(range(2), cleared(3)).outcomes == {ADOPTED: 1, SENT: 1}


@pytest.mark.parametrize(
    ("change", "clears"),
    [
        ("", 2),
        ("UPDATE airflow_horsies.repairs SET requested_at = now() - interval '25 hours'", 1),
        ("UPDATE airflow_horsies.repairs SET base_url = 'http://elsewhere'", 1),
        ("UPDATE airflow_horsies.repairs SET namespace = 'elsewhere'", 1),
        ("UPDATE airflow_horsies.repairs SET life = 0", 1),
    ],
    ids=["cleared twice", "old", "another deployment", "another namespace", "an earlier life"],
)
def test_a_request_that_is_not_of_this_clear_is_void(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: str, clears: int
) -> None:
    monkeypatch.setattr(rig.hook.client.scope, "settings", replace(rig.hook.settings, base_url="http://here"))
    rig.begin(DONE, FAILED)
    rig.request()
    if change:
        sql(rig.hook, change)
    assert rig.submit(range(2), cleared(2, clears)).outcomes == {SENT: 2}
    assert rig.submit(range(2), cleared(3, clears + 1)).outcomes == {SENT: 2}


def test_a_request_is_withdrawn_once(rig: Rig) -> None:
    rig.begin(DONE, FAILED)
    made = rig.request()
    assert withdraw_repair(rig.hook.client, INSTANCE, made)
    assert not withdraw_repair(rig.hook.client, INSTANCE, made)
    assert rig.submit(range(2), cleared()).outcomes == {SENT: 2}


def test_another_deployment_of_the_namespace_neither_withdraws_nor_replaces_a_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act_as(base_url: str) -> None:
        monkeypatch.setattr(rig.hook.client.scope, "settings", replace(rig.hook.settings, base_url=base_url))

    act_as("http://here")
    rig.begin(DONE, FAILED)
    made = rig.request()
    act_as("http://elsewhere")
    assert not withdraw_repair(rig.hook.client, INSTANCE, made)
    with pytest.raises(TaskNotFound):
        rig.request()
    act_as("http://here")
    assert rig.submit(range(2), cleared()).outcomes == {ADOPTED: 1, SENT: 1}


def test_a_newer_request_replaces_an_older_one(rig: Rig) -> None:
    first = rig.begin(FAILED, FAILED, FAILED)
    rig.request(items=[0])
    rig.request(items=[2])
    assert rig.submit(range(3), cleared()).outcomes == {KEPT: 2, SENT: 1}
    assert same(first, rig.items(2)) == [True, True, False]
    assert rig.requests() == [("ann", True, None), ("ann", True, 2)]


def test_a_request_that_was_replaced_or_withdrawn_keeps_no_items(rig: Rig) -> None:
    """A user may click often, and a request may name a thousand items."""
    rig.begin(*[FAILED] * 9)
    for _ in range(9):
        rig.request(items=range(9))
    bytes_of_items = (
        "SELECT sum(length(works))::integer, sum(cardinality(occurrences))::integer FROM airflow_horsies.repairs"
    )
    assert sql(rig.hook, bytes_of_items) == [(9 * 32, 9)]
    withdraw_repair(rig.hook.client, INSTANCE, rig.request(items=range(9)))
    assert sql(rig.hook, bytes_of_items) == [(None, None)]


@pytest.mark.parametrize("on_clear", list(OnClear))
def test_a_single_item_runs_again_and_the_others_stay_as_they_are(rig: Rig, on_clear: OnClear) -> None:
    first = rig.begin(FAILED, DONE, FAILED, FAILED)
    rig.request(items=[2])
    again = rig.submit([3, 2, 1, 0], cleared(), on_clear=on_clear)
    assert again.outcomes == {KEPT: 2, SENT: 1, ADOPTED: 1}
    assert same(first[::-1], rig.items(2)) == [True, False, True, True]
    assert rig.states(2) == [FAILED, TaskState.PENDING, DONE, FAILED]


def test_a_repair_of_one_item_does_not_run_another_that_was_cancelled(hook: HorsiesHook, release: str) -> None:
    """Item 2 was cancelled on the page, and its chunk ended before the worker had recorded that."""
    rig = Rig(hook, release, 3)
    rig.submit(range(3), tried())
    ((chunk, _), *_) = rig.end(DONE, FAILED, RUNNING)
    deployment = Deployment(hook.client.namespace, hook.settings.base_url)
    hook.client.write(partial(cancel_item, deployment=deployment, task_instance=INSTANCE, task_id=chunk, number=2))
    assert hook.read_task(chunk).state is CANCELLED
    rig.request(items=[1])
    assert rig.submit(range(3), cleared()).outcomes == {ADOPTED: 1, SENT: 1, KEPT: 1}


def test_a_repair_of_one_item_leaves_others_that_are_to_be_cancelled(rig: Rig) -> None:
    first = rig.begin(RUNNING, RUNNING, FAILED, FAILED)
    interrupt_release(rig.hook, [task_id for task_id, _ in first])
    rig.request(items=[2])
    assert rig.submit(range(4), cleared()).outcomes == {REATTACHED: 2, SENT: 1, KEPT: 1}


def test_a_retry_within_a_repair_of_one_item_runs_only_that(rig: Rig) -> None:
    """The process of the repair dies, and Airflow retries: the user still asked for item 1 alone. An item that the DAG
    adds meanwhile is retried as ever."""
    rig.begin(DONE, FAILED, FAILED)
    rig.request(items=[1])
    rig.submit(range(3), cleared())
    retry = partial(cleared, max_tries=4)
    assert rig.submit(range(3), retry(3)).outcomes == {ADOPTED: 1, REATTACHED: 1, KEPT: 1}
    rig.end(None, FAILED, None, life=2)
    assert rig.submit(range(4), retry(4)).outcomes == {ADOPTED: 1, SENT: 2, KEPT: 1}
    rig.end(None, DONE, None, FAILED, life=2)
    assert rig.submit(range(4), retry(5)).outcomes == {ADOPTED: 2, SENT: 1, KEPT: 1}


def test_a_repair_of_one_of_several_equal_items_runs_that_one_whatever_is_edited(
    hook: HorsiesHook, release: str
) -> None:
    """Equal items, another order and another chunk size; then a retry, a repair of the rest, and a plain clear."""
    rig = Rig(hook, release, 2)
    rig.submit([1, 1, 1, 2], tried())
    first = rig.end(FAILED, FAILED, DONE, FAILED)
    rig.request(items=[1])
    rig.chunk_size = 3
    assert rig.submit([2, 1, 1, 1], cleared()).outcomes == {KEPT: 2, SENT: 1, ADOPTED: 1}
    assert same([first[3], *first[:3]], rig.items(2)) == [True, True, False, True]
    rig.end(None, None, FAILED, None, life=2)
    rig.chunk_size = None
    assert rig.submit([1, 2, 1, 1], replace(cleared(), try_number=3)).outcomes == {KEPT: 2, SENT: 1, ADOPTED: 1}
    rig.end(None, None, DONE, None, life=2)
    rig.request(clear_number=1, items=[0])
    rig.request(clear_number=1)
    assert rig.submit([1, 2, 1, 1], cleared(4, 2)).outcomes == {SENT: 2, ADOPTED: 2}
    assert rig.submit([1, 2, 1, 1], cleared(5, 3)).outcomes == {SENT: 4}


def test_a_repair_of_one_item_does_not_bind_a_later_life_with_the_same_number(rig: Rig) -> None:
    """The records of a run were pruned, and the run was made again."""
    rig.begin(DONE, FAILED, FAILED)
    rig.request(items=[1])
    rig.submit(range(3), cleared())
    sql(rig.hook, "DELETE FROM airflow_horsies.submissions")
    sql(rig.hook, "DELETE FROM airflow_horsies.chunks")
    remade = partial(tried, run_key="another run")
    rig.submit([5, 6, 7], remade())
    rig.end(DONE, FAILED, RUNNING)
    again = partial(cleared, run_key="another run", max_tries=4)
    assert rig.submit([5, 6, 7], again(2), on_clear="failed").outcomes == {ADOPTED: 1, SENT: 1, REATTACHED: 1}
    rig.end(None, None, FAILED, life=2)
    assert rig.submit([5, 6, 7], again(3)).outcomes[SENT] == 1


@pytest.mark.parametrize(("items", "error"), [([7], TaskNotFound), ([], InvalidTask), (list(range(1001)), InvalidTask)])
def test_a_request_for_items_that_do_not_exist_is_refused(rig: Rig, items: list[int], error: type[Exception]) -> None:
    rig.begin(FAILED, FAILED)
    with pytest.raises(error):
        rig.request(items=items)
    assert rig.requests() == []


def test_there_is_nothing_to_repair_before_the_first_submission(rig: Rig) -> None:
    with pytest.raises(TaskNotFound, match="has not submitted"):
        rig.request()


def test_an_unknown_setting_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidTask, match="must be 'all' or 'failed'"):
        rig.submit([1], tried(), on_clear="some")


def test_requests_are_pruned(rig: Rig) -> None:
    rig.begin(FAILED)
    rig.request()
    prune_ledger(rig.hook.client)
    assert len(rig.requests()) == 1
    sql(rig.hook, "UPDATE airflow_horsies.repairs SET requested_at = now() - interval '31 days'")
    prune_ledger(rig.hook.client)
    assert rig.requests() == []
