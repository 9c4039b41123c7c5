from __future__ import annotations

from typing import Any

import pytest

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.models import AirflowTry, Submission, TaskInstanceKey, latest_task_ids
from tests.unit.fakes import make_submission


def test_task_instance_names_itself_with_its_map_index_if_it_has_one() -> None:
    assert str(TaskInstanceKey(dag_id="d", run_id="r", task_id="t")) == "d.t of run r"
    assert str(TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=0)) == "d.t[0] of run r"


@pytest.mark.parametrize("given", [{"dag_id": ""}, {"run_id": None}, {"task_id": "a\x00"}, {"map_index": -2}], ids=str)
def test_task_instance_refuses_what_cannot_be_one(given: dict[str, Any]) -> None:
    (field,) = given
    with pytest.raises(InvalidTask, match=field):
        TaskInstanceKey(**{"dag_id": "d", "run_id": "r", "task_id": "t", **given})


@pytest.mark.parametrize("given", [{"try_number": 0}, {"clear_number": -1}, {"try_number": True}], ids=str)
def test_a_try_counts_from_1_and_clears_from_0(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="must be an integer from"):
        AirflowTry(**{"try_number": 1, **given})


@pytest.mark.parametrize(
    ("submissions", "latest"),
    [
        ([], []),
        ([make_submission(position=1), make_submission(position=0)], ["0/1/1", "1/1/1"]),
        (
            [
                make_submission(position=1, is_latest=False),
                make_submission(position=0),
                make_submission(position=1, round=2),
            ],
            ["0/1/1", "1/1/2"],
        ),
    ],
    ids=["none", "by position", "the latest"],
)
def test_only_what_was_submitted_last_counts(submissions: list[Submission], latest: list[str]) -> None:
    assert latest_task_ids(submissions) == latest
