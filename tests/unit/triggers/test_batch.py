from __future__ import annotations

import logging

import pytest

from airflow_horsies.models import Submission, TaskState
from airflow_horsies.testing import FakeHorsies
from airflow_horsies.triggers import HorsiesBatchTrigger
from tests.unit.fakes import make_submission, put_submissions
from tests.unit.triggers.rig import ID, INSTANCE, OTHER_ID, put_lines, put_states, run, soon

pytestmark = pytest.mark.usefixtures("horsies")


def test_lines_of_a_batch_name_their_item(horsies: FakeHorsies, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    put_states(horsies, {ID: TaskState.COMPLETED, OTHER_ID: TaskState.COMPLETED})
    put_submissions(horsies, [make_submission(OTHER_ID, position=1), make_submission(ID, position=0)])
    for task_id in (ID, OTHER_ID):
        put_lines(horsies, task_id, 1)
    event = run(HorsiesBatchTrigger(task_instance=INSTANCE, life=1, seen={}))
    assert event["seen"] == {OTHER_ID: [1, 1], ID: [1, 1]}
    assert sorted(caplog.messages) == [
        "[item 0, attempt 1] line 1",
        "[item 1, attempt 1] line 1",
    ]


@pytest.mark.parametrize(
    ("max_failures", "reason"),
    [(0, "decided"), (1, "timed_out"), (None, "timed_out")],
)
def test_batch_fires_early_when_too_many_failed(horsies: FakeHorsies, max_failures: int | None, reason: str) -> None:
    put_states(horsies, {ID: TaskState.EXPIRED})
    put_submissions(horsies, [make_submission(ID, position=0), make_submission(OTHER_ID, position=1)])
    trigger = HorsiesBatchTrigger(task_instance=INSTANCE, life=1, max_failures=max_failures, deadline=soon())
    assert run(trigger)["reason"] == reason


@pytest.mark.parametrize(
    ("submissions", "size"),
    [
        ([], 2),
        ([], None),
        ([make_submission(position=0)], 2),
        ([make_submission(position=1)], None),
        ([make_submission(position=1), make_submission(position=2)], 2),
        ([make_submission(position=0, life=2), make_submission(position=1, life=2)], 2),
        ([make_submission(position=0), make_submission(position=1, is_latest=False)], 2),
    ],
    ids=["none", "none of an older release", "one", "the second", "moved up", "of another life", "let go of"],
)
def test_batch_that_is_not_whole_is_an_error_and_never_a_success(
    horsies: FakeHorsies, submissions: list[Submission], size: int | None
) -> None:
    put_submissions(horsies, submissions)
    event = run(HorsiesBatchTrigger(task_instance=INSTANCE, life=1, size=size))
    assert event["reason"] == "not_found"
    assert "items of the batch in the airflow_horsies tables" in event["message"]
