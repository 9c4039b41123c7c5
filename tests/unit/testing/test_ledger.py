"""The submissions of the test kit follow the rules of the real ledger: asked the same, both answer alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_horsies.exceptions import InvalidTask, StaleSubmission, TaskIdTaken
from airflow_horsies.models import (
    AirflowTry,
    CancelOutcome,
    Submission,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
    latest_task_ids,
)
from airflow_horsies.testing import FakeClient, FakeHorsies
from tests.unit.ledger.test_submitting import INSTANCE, Database

OTHER = replace(INSTANCE, task_id="other")


@dataclass(frozen=True)
class Submit:
    parts: list[int]
    is_clear: bool


@dataclass(frozen=True)
class End:
    place: int
    state: TaskState


STEPS = st.lists(
    st.one_of(
        st.builds(Submit, st.lists(st.integers(0, 3), max_size=4), st.booleans()),
        st.builds(End, st.integers(0, 3), st.sampled_from(sorted(TaskState))),
    ),
    min_size=2,
    max_size=8,
)


def make_client() -> FakeClient:
    horsies = FakeHorsies()
    horsies.never_ends("load")
    return FakeClient(memory=horsies.memory, ledger=horsies.ledger)


def spec_of(part: int, **values: Any) -> TaskSpec:
    return TaskSpec(task_name="load", kwargs={"part": part}, **values)


def seen(results: list[SubmitResult]) -> list[tuple[Any, ...]]:
    # A task of the kit is looked at when it is read, and runs from then on.
    return [(each.outcome, each.state.is_terminal, each.life, each.round, each.position) for each in results]


def shown(submissions: list[Submission]) -> list[tuple[Any, ...]]:
    return [(each.life, each.round, each.position, each.try_number) for each in submissions]


def shown_rows(database: Database) -> list[tuple[Any, ...]]:
    """As the view known_submissions and read_submissions.sql show them."""
    places = [row["position"] if row["place"] in (None, -1) else row["place"] for row in database.submissions]
    rows = zip(database.submissions, places, strict=True)
    return sorted((row["life"], row["round"], place, row["try_number"]) for row, place in rows)


@settings(max_examples=300)
@example(steps=[Submit(parts, False) for parts in ([0, 0, 1, 1], [0], [0, 0, 0, 1], [0, 0, 0, 0])])
@given(steps=STEPS)
def test_submissions_are_those_of_the_real_ledger(steps: list[Submit | End]) -> None:
    database, client = Database(), make_client()
    real: list[SubmitResult] = []
    fake: list[SubmitResult] = []
    tried = AirflowTry(try_number=1)
    for step in steps:
        if isinstance(step, Submit):
            tried = replace(tried, try_number=tried.try_number + 1, clear_number=tried.clear_number + step.is_clear)
            specs = [spec_of(part) for part in step.parts]
            if not specs:
                continue
            real = database.submit(*specs, try_number=tried.try_number, clear_number=tried.clear_number)
            fake = client.submit_tasks(specs, INSTANCE, tried)
            assert seen(fake) == seen(real)
            assert shown(client.read_submissions(INSTANCE)) == shown_rows(database)
            assert latest_task_ids(client.read_submissions(INSTANCE)) == [each.task_id for each in fake]
        elif step.place < len(real):
            row, task_id = database.tasks[real[step.place].task_id], fake[step.place].task_id
            if not TaskState(row["status"]).is_terminal:
                row["status"] = step.state.value
                client.memory.tasks[task_id] = replace(client.memory.tasks[task_id], state=step.state)
        ended = [TaskState(task["status"]).is_terminal for task in database.tasks.values()]
        assert [task.state.is_terminal for task in client.memory.tasks.values()] == ended


def test_earlier_try_or_life_submits_nothing() -> None:
    client = make_client()
    (sent,) = submit(client, spec_of(1), try_number=2)
    with pytest.raises(StaleSubmission, match=f"is in try 1, and try 2 has already asked for task {sent.task_id}"):
        submit(client, spec_of(1), try_number=1)
    submit(client, spec_of(1), try_number=3, clear_number=1)
    with pytest.raises(StaleSubmission, match="has been cleared"):
        submit(client, spec_of(2), try_number=4)
    assert len(client.memory.tasks) == 2


def test_key_twice_in_one_submission_is_refused_and_nothing_changes() -> None:
    client = make_client()
    (before,) = submit(client, spec_of(1))
    twice = spec_of(2, idempotency_key="k")
    with pytest.raises(InvalidTask, match="idempotency_key"):
        submit(client, twice, twice, try_number=2)
    assert client.read_states([before.task_id]) == {before.task_id: TaskState.RUNNING}
    assert latest_task_ids(client.read_submissions(INSTANCE)) == [before.task_id]


def test_task_of_another_task_instance_is_not_released() -> None:
    client = make_client()
    (theirs,) = submit(client, spec_of(1), instance=OTHER)
    assert client.release_tasks([theirs.task_id], INSTANCE) == {theirs.task_id: CancelOutcome.STILL_WANTED}
    sent = client.enqueue_task(spec_of(2, idempotency_key="k"))
    (shared,) = submit(client, spec_of(2, idempotency_key="k"))
    assert shared.task_id == sent
    assert client.release_tasks([sent], INSTANCE) == {sent: CancelOutcome.STILL_WANTED}, "who sent it still wants it"


def test_clear_does_not_take_a_key() -> None:
    client = make_client()
    submit(client, spec_of(1))
    (cleared,) = submit(client, spec_of(1, idempotency_key="k"), try_number=2, clear_number=1)
    assert client.enqueue_task(spec_of(1, idempotency_key="k")) != cleared.task_id


def submit(client: FakeClient, *specs: TaskSpec, instance: TaskInstanceKey = INSTANCE, **tried: int) -> Any:
    return client.submit_tasks(specs, instance, AirflowTry(**{"try_number": 1, **tried}))


def test_task_of_a_key_is_shared_and_goes_on_until_nobody_wants_it() -> None:
    client = make_client()
    keyed = spec_of(1, idempotency_key="k")
    ((ours,), (theirs,)) = submit(client, keyed), submit(client, keyed, instance=OTHER)
    assert (theirs.task_id, theirs.outcome) == (ours.task_id, SubmitOutcome.REATTACHED)
    assert client.release_tasks([ours.task_id], INSTANCE) == {ours.task_id: CancelOutcome.STILL_WANTED}
    assert client.release_tasks([ours.task_id], OTHER) == {ours.task_id: CancelOutcome.CANCELLED}
    with pytest.raises(TaskIdTaken, match="key belongs to task"):
        submit(client, spec_of(2, idempotency_key="k"), instance=replace(OTHER, map_index=1))


def test_try_that_was_followed_by_another_cancels_nothing() -> None:
    client = make_client()
    (sent,) = submit(client, spec_of(1))
    submit(client, spec_of(1), try_number=2)
    assert client.release_tasks([sent.task_id], INSTANCE, try_number=1) == {sent.task_id: CancelOutcome.STILL_WANTED}
    assert client.release_tasks([sent.task_id], INSTANCE, try_number=2) == {sent.task_id: CancelOutcome.CANCELLED}


def test_empty_batch_cancels_what_was_asked_for_before() -> None:
    client = make_client()
    submit(client, spec_of(1))
    assert submit(client, try_number=2) == []
    assert [task.state for task in client.memory.tasks.values()] == [TaskState.CANCELLED]
    assert latest_task_ids(client.read_submissions(INSTANCE)) == []


def test_id_of_a_submission_is_never_the_callers() -> None:
    with pytest.raises(InvalidTask, match="task_id"):
        submit(make_client(), spec_of(1, task_id="0198a0de-0000-7000-8000-000000000001"))
