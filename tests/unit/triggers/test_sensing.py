from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.core.batch import ChunkCount
from airflow_horsies.models import TaskInstanceKey, TaskState
from airflow_horsies.testing import FakeAsyncClient, FakeHorsies
from airflow_horsies.triggers import HorsiesSensorTrigger, HorsiesSubmissionTrigger, sensing
from tests.unit.fakes import make_submission, put_submissions
from tests.unit.triggers.rig import ID, INSTANCE, OTHER_ID, put_states, run, soon

pytestmark = pytest.mark.usefixtures("horsies")


@pytest.mark.parametrize(
    ("state", "reason"), [(TaskState.FAILED, "decided"), (TaskState.COMPLETED, "timed_out")], ids=str
)
def test_sensor_fires_early_when_a_task_failed(horsies: FakeHorsies, state: TaskState, reason: str) -> None:
    put_states(horsies, {ID: state})
    trigger = HorsiesSensorTrigger(task_ids=[ID, OTHER_ID], failed_states=["FAILED"], deadline=soon())
    assert run(trigger)["reason"] == reason


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (TaskState.COMPLETED, "ended"),
        (TaskState.FAILED, "decided"),
        (TaskState.EXPIRED, "timed_out"),
        (None, "not_found"),
    ],
    ids=str,
)
def test_submission_is_waited_for_until_its_end_means_something(
    horsies: FakeHorsies, state: TaskState | None, reason: str
) -> None:
    put_states(horsies, {ID: state})
    put_submissions(horsies, [make_submission(ID, position=0)])
    trigger = HorsiesSubmissionTrigger(
        task_instance=INSTANCE, failed_states=["FAILED"], poll_seconds=0.02, deadline=soon()
    )
    assert run(trigger)["reason"] == reason


@pytest.mark.parametrize(
    ("ended", "reason"),
    [(TaskState.COMPLETED, "ended"), (TaskState.FAILED, "decided"), (None, "not_found")],
    ids=["completed", "failed", "gone"],
)
def test_submission_of_an_instance_that_was_cleared_since_is_not_the_end(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch, ended: TaskState | None, reason: str
) -> None:
    states = iter(["queued", None, "running", "success"])

    async def read_state(instance: TaskInstanceKey) -> InstanceState | None:
        state = next(states)
        return InstanceState(exists=True, state=state) if state else None

    monkeypatch.setattr(sensing, "can_ask", lambda: True)
    monkeypatch.setattr(sensing, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(sensing, "read_state_async", read_state)
    put_states(horsies, {ID: ended})
    put_submissions(horsies, [make_submission(ID, position=0)])
    trigger = HorsiesSubmissionTrigger(task_instance=INSTANCE, failed_states=["FAILED"], poll_seconds=0.02)
    assert run(trigger)["reason"] == reason
    assert list(states) == []


def test_task_instance_that_never_submits_is_waited_for_until_the_deadline() -> None:
    trigger = HorsiesSubmissionTrigger(task_instance=INSTANCE, poll_seconds=0.02, deadline=soon())
    assert run(trigger)["reason"] == "timed_out"


def test_chunk_is_counted_again_after_a_repair_took_its_failed_items(
    horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [ChunkCount(wanted=2, completed=2, failed=0), ChunkCount(wanted=3, completed=2, failed=1)]

    async def count_items(
        client: FakeAsyncClient, task_ids: Collection[str], requested: Sequence[str] | None = None
    ) -> dict[str, ChunkCount]:
        if ID not in task_ids:
            return {}
        # A repair submits right after the first count.
        put_submissions(horsies, [make_submission(ID, position=0), make_submission(OTHER_ID, position=1)])
        return {ID: counts.pop() if len(counts) > 1 else counts[0]}

    monkeypatch.setattr(FakeAsyncClient, "count_items", count_items)
    put_states(horsies, {ID: TaskState.FAILED, OTHER_ID: TaskState.COMPLETED})
    put_submissions(horsies, [make_submission(ID, position=0)])
    trigger = HorsiesSubmissionTrigger(task_instance=INSTANCE, poll_seconds=0.02, deadline=soon())
    assert run(trigger)["reason"] == "ended"
