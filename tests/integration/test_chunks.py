"""Chunks on a real worker: many items in one horsies task."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.core.batch import BatchSpec
from airflow_horsies.models import RetryPolicy, TaskSpec, TaskState, TaskView
from tests.integration.chunk_rig import INSTANCE, tried
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("chunks", app="chunk_tasks:app")


def ask(rig: Rig, text: str, *params: Any) -> list[Row]:
    info = rig.postgres.conninfo(rig.hook.settings.database.connect_args["dbname"])
    with psycopg.connect(**info, row_factory=psycopg.rows.dict_row, autocommit=True) as connection:
        cursor = connection.execute(text.encode(), params or None)
        return cursor.fetchall() if cursor.description else []


def send(rig: Rig, name: str, items: list[Any], *, spec: dict[str, Any] | None = None, **given: Any) -> str:
    kwargs = {"items": items, "timeout_ms": None, "retry_policy": None, "isolate": "chunk", **given}
    return rig.hook.enqueue_task(TaskSpec(task_name=f"{name}[]", kwargs=kwargs, **(spec or {})))


def outcomes(rig: Rig, task_id: str) -> list[Row]:
    return ask(rig, "SELECT * FROM airflow_horsies.items WHERE horsies_task_id = %s ORDER BY number", task_id)


def run(rig: Rig, name: str, items: list[Any], **options: Any) -> tuple[TaskView, list[Row]]:
    task = rig.wait(send(rig, name, items, **options))
    return task, outcomes(rig, task.id)


def codes(rows: list[Row]) -> list[tuple[int, str, str | None]]:
    return [(row["number"], row["outcome"], row["error_code"]) for row in rows]


def policy(codes: list[str], intervals: list[int]) -> dict[str, Any]:
    return {
        "max_retries": len(intervals),
        "intervals": intervals,
        "backoff_strategy": "fixed",
        "jitter": False,
        "auto_retry_for": codes,
    }


# -- outcomes --------------------


def test_every_item_has_an_outcome_and_the_chunk_a_summary(rig: Rig) -> None:
    task, rows = run(rig, "add", [{"day": "2026-01-02", "number": number} for number in range(50)])
    assert task.state is TaskState.COMPLETED and task.result
    assert task.result.ok == {"items": 50, "completed": 50}
    assert codes(rows) == [(number, "COMPLETED", None) for number in range(50)]
    assert [json.loads(row["value"]) for row in rows] == [{"day": "2026-01-02", "number": n} for n in range(50)]
    for row in rows:
        assert (row["attempt"], row["tries"], row["error_message"]) == (1, 1, None)
        assert row["hostname"] and row["started_at"] <= row["finished_at"]
    (record,) = rig.records(task.id)
    assert record.outcome == "COMPLETED"


@pytest.mark.parametrize("how", ["fault", "own", "mapped by the task", "mapped by the app", "not JSON"])
def test_an_item_fails_with_the_code_and_the_message_of_a_task(rig: Rig, how: str) -> None:
    given = {"day": "2026-01-02", "number": 7, "how": how}
    alone = rig.run("add", **given)
    task, rows = run(rig, "add", [{"day": "2026-01-02"}, given])
    assert alone.result and alone.result.error
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", alone.error_code)]
    assert rows[1]["error_message"] == alone.result.error.message
    assert rows[1]["value"] is None
    assert (task.state, task.error_code) == (TaskState.FAILED, "ITEMS_FAILED")
    assert task.result and task.result.error and task.result.error.message
    assert task.result.error.message.startswith("1 of 2 items did not complete: 1 FAILED. First item 1: ")


@pytest.mark.parametrize("given", [{"day": "someday", "number": "many"}, {}, {"day": "2026-01-02", "unknown": 1}])
def test_bad_arguments_fail_only_their_item_as_they_fail_a_task(rig: Rig, given: dict[str, Any]) -> None:
    alone = rig.run("add", **given)
    _, rows = run(rig, "add", [{"day": "2026-01-02"}, given, {"day": "2026-01-03"}])
    assert [row["outcome"] for row in rows] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert alone.result and alone.result.error
    assert (rows[1]["error_code"], rows[1]["error_message"]) == (alone.error_code, alone.result.error.message)


def test_an_item_that_is_no_object_is_bad_input(rig: Rig) -> None:
    _, rows = run(rig, "add", [7])
    assert codes(rows) == [(0, "FAILED", "BAD_INPUT")]


def test_wrong_arguments_of_the_chunk_itself_are_named(rig: Rig) -> None:
    task = rig.run("add[]", items=7, isolate="never")
    assert (task.error_code, outcomes(rig, task.id)) == ("BAD_INPUT", [])
    assert task.result and task.result.error and task.result.error.message
    assert "items must be a list; isolate must be 'chunk' or 'item'" in task.result.error.message


def test_an_empty_chunk_completes(rig: Rig) -> None:
    task, rows = run(rig, "add", [])
    assert (task.state, rows) == (TaskState.COMPLETED, [])


def test_odd_text_is_kept_as_it_is(rig: Rig) -> None:
    odd = {"message": 'quote " backslash \\ newline \n and é 𝄞'}
    _, rows = run(rig, "echo", [{"value": odd}])
    assert [json.loads(row["value"]) for row in rows] == [odd]


def test_text_that_postgres_cannot_hold_does_not_fail_the_chunk(rig: Rig) -> None:
    _, rows = run(rig, "add", [{"day": "2026-01-02", "how": "surrogate"}, {"day": "2026-01-02"}])
    assert [row["outcome"] for row in rows] == ["COMPLETED", "COMPLETED"]
    assert json.loads(rows[0]["value"]) == {"x": "\ud800"}


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("enum", "LATE"),
        ("surrogate", r"BAD\ud800CODE"),
        ("NUL", "BAD\N{REPLACEMENT CHARACTER}CODE"),
        ("number", "7"),
        ("long", "LONG" * 25),
    ],
)
def test_a_code_that_cannot_be_stored_is_made_readable_and_fails_only_its_item(rig: Rig, how: str, code: str) -> None:
    alone = rig.run("odd_code", how=how)
    task, rows = run(rig, "odd_code", [{}, {"how": how}, {}])
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", code), (2, "COMPLETED", None)]
    assert (task.error_code, alone.error_code) == ("ITEMS_FAILED", code)


# -- logs and progress --------------------


def test_every_line_is_under_the_number_of_its_item(rig: Rig) -> None:
    task, _ = run(rig, "talk", [{"number": number} for number in range(3)])
    lines = [(line.item, line.text) for line in rig.lines(task.id)]
    expected = [
        (number, text)
        for number in range(3)
        for text in (f"printed by {number}", f"my.module: logged by {number}", f"without an end {number}")
    ]
    assert lines == expected


def test_the_trace_of_a_failed_item_is_under_its_number(rig: Rig) -> None:
    task, _ = run(rig, "add", [{"day": "2026-01-02"}, {"day": "2026-01-02", "how": "own"}])
    of_item = [line.text for line in rig.lines(task.id) if line.item == 1]
    assert any("Traceback" in text for text in of_item)
    assert of_item[-1].startswith("UNHANDLED_EXCEPTION: ")
    assert [line.item for line in rig.lines(task.id) if "ITEMS_FAILED" in line.text] == [None]


def test_the_progress_is_that_of_the_whole(rig: Rig) -> None:
    task_id = send(rig, "show", [{"seconds": 0}, {"seconds": 0}, {"seconds": 3}, {"seconds": 0}])
    rig.until(lambda: (found := rig.progress(task_id)) and found.stage, "the progress")
    progress = rig.progress(task_id)
    assert progress and (progress.done, progress.total, progress.stage) == (2, 4, "Item 2: loading")
    rig.wait(task_id)


def test_outcomes_are_written_while_the_chunk_runs(rig: Rig) -> None:
    task_id = send(rig, "nap", [{"seconds": 0}, {"seconds": 0}, {"seconds": 4}])
    rig.until_running(task_id)
    time.sleep(1.5)
    assert codes(outcomes(rig, task_id)) == [(0, "COMPLETED", None), (1, "COMPLETED", None)]
    assert rig.wait(task_id).state is TaskState.COMPLETED


# -- retries --------------------


def test_an_item_is_tried_again_by_code_while_others_run(rig: Rig, tmp_path: Path) -> None:
    items = [
        {"folder": str(tmp_path), "key": "flaky", "tries": 3},
        {"folder": str(tmp_path), "key": "steady", "tries": 1},
        {"folder": str(tmp_path), "key": "other", "tries": 3, "code": "NOT_LISTED"},
        {"folder": str(tmp_path), "key": "hopeless", "tries": 9},
    ]
    task, rows = run(rig, "fail_until", items, retry_policy=policy(["FLAKY"], [1, 2]))
    assert codes(rows) == [
        (0, "COMPLETED", None),
        (1, "COMPLETED", None),
        (2, "FAILED", "NOT_LISTED"),
        (3, "FAILED", "FLAKY"),
    ]
    assert [row["tries"] for row in rows] == [3, 1, 1, 3]
    first, second, third = (float(line) for line in (tmp_path / "flaky").read_text().split())
    assert second - first >= 1 and third - second >= 2
    assert len(rig.records(task.id)) == 1
    # The other items did not wait for the first one.
    assert float((tmp_path / "hopeless").read_text().split()[0]) < second
    assert any(line.item == 0 and "Trying again in 1.0 s" in line.text for line in rig.lines(task.id))


def test_a_retry_gets_the_arguments_that_were_sent(rig: Rig, tmp_path: Path) -> None:
    """The first try changes what it was given. A task of its own is decoded anew for each attempt."""
    given = {"order": {"rows": [1, 2, 3, 4]}, "folder": str(tmp_path)}
    alone = rig.wait(rig.send("consume", retry_for=["FLAKY"], key="alone", **given))
    assert alone.result and alone.result.ok == 10
    _, rows = run(rig, "consume", [{**given, "key": "item"}], retry_policy=policy(["FLAKY"], [1]))
    assert [(row["outcome"], row["tries"], json.loads(row["value"])) for row in rows] == [("COMPLETED", 2, 10)]


def test_a_retry_that_would_come_too_late_expires(rig: Rig, tmp_path: Path) -> None:
    late = datetime.now(UTC) + timedelta(seconds=20)
    _, rows = run(
        rig,
        "fail_until",
        [{"folder": str(tmp_path), "key": "flaky", "tries": 2}],
        retry_policy=policy(["FLAKY"], [600]),
        spec={"good_until": late},
    )
    assert codes(rows) == [(0, "EXPIRED", "TASK_EXPIRED")]


# -- limits --------------------


def test_an_item_that_takes_too_long_fails_alone(rig: Rig) -> None:
    task, rows = run(rig, "nap", [{"seconds": 0}, {"seconds": 30}, {"seconds": 0}], timeout_ms=1_000)
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", "TASK_TIMEOUT"), (2, "COMPLETED", None)]
    assert rows[1]["finished_at"] - rows[1]["started_at"] < timedelta(seconds=5)
    assert rows[1]["error_message"] == "The item was stopped because it reached its timeout."
    assert task.error_code == "ITEMS_FAILED"
    (record,) = rig.records(task.id)
    assert record.outcome == "FAILED"


def test_an_item_that_does_not_stop_is_recorded_before_its_process_is_killed(rig: Rig) -> None:
    child = rig.child().pid
    crash = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    task, rows = run(
        rig,
        "stubborn",
        [{"seconds": 0}, {"seconds": 60}, {"seconds": 0}],
        timeout_ms=1_000,
        spec={"retry_policy": crash},
    )
    assert codes(rows) == [(0, "COMPLETED", None), (1, "FAILED", "TASK_TIMEOUT"), (2, "COMPLETED", None)]
    assert [row["attempt"] for row in rows] == [1, 1, 2]
    assert rig.child().pid != child
    assert task.error_code == "ITEMS_FAILED"


def test_items_expire_that_were_not_started_in_time(rig: Rig) -> None:
    late = datetime.now(UTC) + timedelta(seconds=3)
    task, rows = run(rig, "nap", [{"seconds": 4}, {"seconds": 0}, {"seconds": 0}], spec={"good_until": late})
    assert codes(rows) == [(0, "COMPLETED", None), (1, "EXPIRED", "TASK_EXPIRED"), (2, "EXPIRED", "TASK_EXPIRED")]
    assert rows[1]["started_at"] is None and rows[1]["tries"] == 0
    assert (task.state, task.error_code) == (TaskState.FAILED, "ITEMS_FAILED")


def test_a_task_that_stops_at_good_until_stops_its_item_and_the_rest_expires(rig: Rig) -> None:
    late = datetime.now(UTC) + timedelta(seconds=3)
    _, rows = run(rig, "nap_until_late", [{"seconds": 0}, {"seconds": 30}, {"seconds": 0}], spec={"good_until": late})
    assert codes(rows) == [
        (0, "COMPLETED", None),
        (1, "FAILED", "GOOD_UNTIL_PASSED"),
        (2, "EXPIRED", "TASK_EXPIRED"),
    ]


# -- cancelling --------------------


def test_a_cancelled_chunk_stops_and_items_without_an_outcome_stay_without_one(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    items = [{"seconds": seconds, "file": str(file), "key": str(key)} for key, seconds in enumerate([0, 60, 0])]
    task_id = send(rig, "nap", items)
    rig.until(lambda: file.exists() and len(file.read_text().splitlines()) == 2, "the second item")
    rig.until(lambda: outcomes(rig, task_id), "the first outcome")
    rig.hook.cancel_task(task_id)
    assert rig.wait(task_id).state is TaskState.CANCELLED
    rig.until(lambda: rig.records(task_id)[0].outcome == "CANCELLED", "the end of the attempt")
    assert codes(outcomes(rig, task_id)) == [(0, "COMPLETED", None)]
    assert len(file.read_text().splitlines()) == 2


def test_a_dropped_item_is_stopped_or_not_started(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    items = [{"seconds": seconds, "file": str(file), "key": str(key)} for key, seconds in enumerate([60, 0, 0, 0])]
    task_id = send(rig, "nap", items)
    ask(
        rig,
        "INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places)"
        " VALUES (%s, 'nap', 4, '', '{0,1,2,3}')",
        task_id,
    )
    rig.until(lambda: file.exists(), "the first item")
    ask(rig, "UPDATE airflow_horsies.chunks SET dropped = '{0,2}' WHERE horsies_task_id = %s", task_id)
    task = rig.wait(task_id)
    assert codes(outcomes(rig, task_id)) == [
        (0, "CANCELLED", "TASK_CANCELLED"),
        (1, "COMPLETED", None),
        (2, "CANCELLED", "TASK_CANCELLED"),
        (3, "COMPLETED", None),
    ]
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["0", "1", "3"]
    assert task.error_code == "ITEMS_FAILED"


def test_a_dropped_item_that_does_not_stop_is_recorded_before_its_process_is_killed(rig: Rig) -> None:
    child = rig.child().pid
    crash = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    task_id = send(rig, "stubborn", [{"seconds": each} for each in (0, 60, 0)], spec={"retry_policy": crash})
    ask(
        rig,
        "INSERT INTO airflow_horsies.chunks (horsies_task_id, task_name, size, works, places)"
        " VALUES (%s, 'stubborn', 3, '', '{0,1,2}')",
        task_id,
    )
    rig.until(lambda: outcomes(rig, task_id), "the first outcome")
    ask(rig, "UPDATE airflow_horsies.chunks SET dropped = '{1}' WHERE horsies_task_id = %s", task_id)
    task = rig.wait(task_id)
    rows = outcomes(rig, task_id)
    assert codes(rows) == [(0, "COMPLETED", None), (1, "CANCELLED", "TASK_CANCELLED"), (2, "COMPLETED", None)]
    assert [row["attempt"] for row in rows] == [1, 1, 2]
    assert rows[1]["error_message"] == "The process of the item was killed because it was cancelled."
    assert rig.child().pid != child
    assert task.error_code == "ITEMS_FAILED"
    first, _ = rig.records(task_id)
    assert (first.outcome, first.error_code) == ("FAILED", "WORKER_CRASHED")
    assert first.error_message == "The process of the attempt was killed because a cancelled item did not stop."


def test_an_item_that_is_removed_while_it_runs_and_asked_for_again_does_not_end_twice(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "lines"

    def ask_for(keys: str, number: int) -> tuple[str, ...]:
        items: list[dict[str, Any]] = [{"seconds": 5, "file": str(file), "key": key} for key in keys]
        batch = BatchSpec(task=TaskSpec(task_name="work"), items=items, chunk_size=2)
        return rig.hook.client.submit_batch(batch, INSTANCE, tried(number)).task_ids

    ask_for("ab", 1)
    rig.until(lambda: file.exists() and "a began" in file.read_text(), "the start")
    ask_for("b", 2)
    rig.hook.wait(list(ask_for("ab", 3)), timeout_seconds=120)
    assert sorted(file.read_text().splitlines()) == ["a began", "a began", "a ended", "b began", "b ended"]


# -- several attempts --------------------


def test_a_second_attempt_runs_only_what_has_no_outcome(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    items = [{"seconds": 4 if key == 3 else 0, "file": str(file), "key": str(key)} for key in range(5)]
    crash = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    task_id = send(rig, "nap", items, spec={"retry_policy": crash})
    rig.until(lambda: len(outcomes(rig, task_id)) == 3, "three outcomes")
    os.kill(rig.child().pid, signal.SIGKILL)
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED
    rows = outcomes(rig, task_id)
    assert [row["attempt"] for row in rows] == [1, 1, 1, 2, 2]
    assert [line.split()[0] for line in file.read_text().splitlines()] == ["0", "1", "2", "3", "3", "4"]
    assert [record.outcome for record in rig.records(task_id)][-1] == "COMPLETED"


def test_a_chunk_without_a_policy_fails_and_keeps_the_outcomes(rig: Rig) -> None:
    task_id = send(rig, "nap", [{"seconds": 0}, {"seconds": 30}])
    rig.until(lambda: outcomes(rig, task_id), "the first outcome")
    os.kill(rig.child().pid, signal.SIGKILL)
    task = rig.wait(task_id)
    assert (task.state, task.error_code) == (TaskState.FAILED, "WORKER_CRASHED")
    assert codes(outcomes(rig, task_id)) == [(0, "COMPLETED", None)]


# -- workers --------------------


@pytest.mark.parametrize(("how", "status"), [("return", "0"), ("raise", "1"), ("exit", "3")])
def test_a_copy_that_an_item_forked_runs_no_item_and_ends_none(rig: Rig, tmp_path: Path, how: str, status: str) -> None:
    file = str(tmp_path / "runs")
    items = [{"how": each, "file": file} for each in (how, "no", "no")]
    task, ended = run(rig, "fork", items)
    assert task.state is TaskState.COMPLETED
    assert [(row["outcome"], json.loads(row["value"])) for row in ended] == [
        ("COMPLETED", status),
        ("COMPLETED", "done"),
        ("COMPLETED", "done"),
    ]
    assert Path(file).read_text().split() == [how, "no", "no"]
    # A task of its own, too.
    assert rig.ok("fork", how=how, file=file) == status


def test_a_worker_records_what_it_can_do(rig: Rig) -> None:
    from airflow_horsies import __version__

    def recorded() -> list[Row]:
        return ask(
            rig,
            "SELECT worker.release, worker.features, worker.seen_at >= state.worker_started_at AS is_new"
            " FROM airflow_horsies.workers AS worker INNER JOIN horsies_worker_states AS state USING (hostname, pid)"
            " WHERE state.pid = %s LIMIT 1",
            rig.worker.process.pid,
        )

    rig.until(recorded, "the record of the worker")
    assert recorded() == [{"release": __version__, "features": ["chunks", "callbacks"], "is_new": True}]
