from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_horsies.core.paging import MAX_PAGE
from airflow_horsies.exceptions import InvalidTask, TaskNotFound
from airflow_horsies.models import PageCursor, TaskState
from airflow_horsies.wire import reading
from airflow_horsies.wire.encoding import mint_task_id
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import IN_PLACE, MOVED, drive
from tests.unit.wire.test_decoding import task_row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = "0198a0de-0000-7000-8000-000000000001"
SECOND = "0198a0de-0000-7000-8000-000000000002"


def test_task_that_is_not_there_is_not_found() -> None:
    row = task_row(id=FIRST)
    assert drive(reading.read_task(Wire(MOVED), FIRST), {"moved/read_tasks": [row]}).outcome.id == FIRST
    with pytest.raises(TaskNotFound, match="past its retention") as caught:
        drive(reading.read_task(Wire(MOVED), SECOND), {"moved/read_tasks": []})
    assert caught.value.task_id == SECOND


def test_states_of_tasks_that_exist_are_told() -> None:
    answers = {"in_place/read_states": [{"id": FIRST, "status": "RUNNING"}]}
    assert drive(reading.read_states(Wire(IN_PLACE), [FIRST, SECOND]), answers).outcome == {FIRST: TaskState.RUNNING}


def test_page_has_a_next_one_only_if_there_is_more() -> None:
    rows = [task_row(id=FIRST, enqueued_at=NOON), task_row(id=SECOND, enqueued_at=NOON)]
    more = drive(reading.list_tasks(Wire(MOVED), limit=1), {"moved/list_tasks": rows})
    assert more.params("moved/list_tasks")["limit"] == 2
    assert [task.id for task in more.outcome.tasks] == [FIRST]
    assert more.outcome.next == PageCursor(at=NOON, task_id=FIRST)
    last = drive(reading.list_tasks(Wire(MOVED), limit=2), {"moved/list_tasks": rows}).outcome
    assert (len(last.tasks), last.next) == (2, None)


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE + 1])
def test_page_size_is_bounded(limit: int) -> None:
    with pytest.raises(InvalidTask, match="limit"):
        drive(reading.list_tasks(Wire(MOVED), limit=limit))


def test_many_ids_are_looked_for_in_statements_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ROWS_PER_STATEMENT", 2)
    driven = drive(reading.find_commands(Wire(MOVED), [mint_task_id() for _ in range(5)]))
    assert [len(params["ids"]) for _, params in driven.ran] == [2, 2, 1]
