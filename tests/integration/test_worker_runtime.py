"""The runtime of workers, on a real worker with a real JVM."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.models import ResultReference, TaskState
from airflow_horsies.worker.errors import ERROR_CODES
from tests.integration.worker_rig import LOG_LINES, MakeRig, Rig
from tests.integration.worker_streams import assert_ends_with_its_task, assert_is_cancelled_with_its_task

pytest.importorskip("horsies")


@pytest.fixture(scope="module")
def shared_rig(make_rig: MakeRig) -> Rig:
    return make_rig("worker_runtime")


@pytest.fixture
def rig(shared_rig: Rig) -> Rig:
    return shared_rig


def cpu_seconds(processes: list[psutil.Process]) -> float:
    used = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


# -- arguments and results --------------------


def test_arguments_and_results_are_what_the_function_declares(rig: Rig) -> None:
    assert rig.ok("total", day="2026-01-02", rows=7) == {"day": "2026-01-02", "rows": 7}


def test_every_wrong_argument_is_named(rig: Rig) -> None:
    task = rig.run("total", day="someday", rows="many")
    assert task.error_code == "BAD_INPUT"
    assert task.result and task.result.error and task.result.error.message
    for part in ("'total'", "day", "'someday'", "rows", "'many'"):
        assert part in task.result.error.message
    assert rig.run("total").error_code == "BAD_INPUT"


def test_a_task_reads_the_history_as_a_frame_without_further_ado(rig: Rig) -> None:
    first = rig.run("total", day="2026-01-02")
    for _ in range(2):
        assert rig.ok("outcomes_of", task_id=first.id) == ["COMPLETED"]


def test_a_small_frame_is_returned_on_request(rig: Rig) -> None:
    assert rig.ok("rows", number=2) == [
        {"id": 0, "price": "0.00", "day": "2026-01-02"},
        {"id": 1, "price": "1.00", "day": "2026-01-02"},
    ]
    assert rig.run("rows", number=4).error_code == "RESULT_TOO_LARGE"


def test_a_large_result_is_written_once_and_referred_to(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "result"
    for number in (10, 5):
        reference = ResultReference(**rig.ok("save", path=str(path), number=number))
        assert (reference.format, reference.rows, list(reference.columns)) == ("parquet", number, ["id", "weekday"])
    assert list(Path(reference.uri).glob("*.parquet"))


# -- errors --------------------


@pytest.mark.parametrize(
    ("how", "code", "parts"),
    [
        ("missing column", "SPARK_ANALYSIS_ERROR", ["nope", "cannot be resolved"]),
        ("missing path", "SPARK_ANALYSIS_ERROR", ["/nowhere/at/all"]),
        ("bad SQL", "SPARK_ANALYSIS_ERROR", ["SELEKT"]),
        ("division", "SPARK_DATA_ERROR", ["Division by zero"]),
        ("cast", "SPARK_DATA_ERROR", ["'x'"]),
        ("udf", "PYTHON_UDF_ERROR", ["ValueError: no such day", "parse_day", "worker_tasks.py"]),
        ("pandas udf", "PYTHON_UDF_ERROR", ["KeyError", "column of the lookup", "lose_all"]),
        ("python worker", "PYTHON_WORKER_LOST", ["Python process of an executor was killed"]),
        ("corrupt file", "SPARK_JOB_FAILED", ["not a Parquet file"]),
        ("no room", "SPARK_JOB_FAILED", ["/proc/nowhere"]),
        ("own exception", "UNHANDLED_EXCEPTION", ["LookupError: no such thing"]),
        ("not JSON", "RESULT_NOT_JSON", ["object"]),
        ("NaN", "RESULT_NOT_JSON", ["['mean'][1]", "nan"]),
        ("frame", "RESULT_NOT_JSON", ["max_rows", "save_result"]),
        ("too large", "RESULT_TOO_LARGE", ["2,000,002", "save_result"]),
    ],
)
def test_an_error_shows_its_code_and_its_cause(rig: Rig, tmp_path: Path, how: str, code: str, parts: list[str]) -> None:
    task = rig.run("fail", how=how, path=str(tmp_path / "file"))
    assert (task.state, task.error_code) == (TaskState.FAILED, code)
    assert code == "UNHANDLED_EXCEPTION" or code in ERROR_CODES
    assert task.result and task.result.error and task.result.error.message
    message = task.result.error.message
    for part in parts:
        assert part in message, message
    assert "\tat " not in message
    assert len(message) < 700
    (record,) = rig.records(task.id)
    assert (record.outcome, record.error_code) == ("FAILED", code)
    texts = rig.texts(task.id)
    assert any(code in text for text in texts)
    if code.startswith(("SPARK_JOB", "PYTHON_UDF")):
        assert "Traceback (most recent call last):" in texts


@pytest.mark.slow
def test_a_task_that_stops_spark_harms_no_other(rig: Rig) -> None:
    before = rig.ok("leave_traces", name="before_the_stop")
    rig.run("fail", how="stop")
    after = rig.ok("leave_traces", name="after_the_stop")
    assert after["child"] == before["child"]
    assert after["jvm"] != before["jvm"]


# -- one warm session, shared by tasks that see nothing of each other --------------------


def test_tasks_share_a_jvm_and_see_nothing_of_each_other(rig: Rig) -> None:
    first, second = rig.ok("leave_traces", name="first"), rig.ok("leave_traces", name="second")
    assert (first["child"], first["jvm"]) == (second["child"], second["jvm"])
    for found in (first, second):
        assert (found["views"], found["global_views"], found["streams"], found["cached"]) == ([], [], 0, 0)
        assert (found["local_property"], found["database"], found["functions"]) == (None, "default", False)
        assert (found["hadoop"], found["property"], found["includes"], found["path"]) == (None, None, [], [])
        assert found["conf"] != "Asia/Tokyo"
    for what in ("hadoop_default", "home", "hour", "number", "checkpoints", "log_levels"):
        assert first[what] == second[what]
    for found in (first, second):
        assert found["same_session"] is True


def test_spark_says_as_much_to_a_task_as_before_another_one_silenced_it(rig: Rig) -> None:
    rig.ok("leave_traces", name="silencing")
    task = rig.run("say_in_spark", name="the next task")
    lines = rig.until(lambda: [text for text in rig.texts(task.id) if "the next task" in text], "a line of Spark")
    assert len(lines) == 1 and "the next task warns" in lines[0], lines


def test_a_stream_in_a_session_of_the_task_s_own_ends_with_the_task(rig: Rig, tmp_path: Path) -> None:
    assert_ends_with_its_task(rig, tmp_path)


def test_a_stream_in_a_session_of_the_task_s_own_ends_when_the_task_is_cancelled(rig: Rig, tmp_path: Path) -> None:
    assert_is_cancelled_with_its_task(rig, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_tasks_leave_nothing_in_their_child(make_rig: MakeRig) -> None:
    rig = make_rig("many_tasks")
    memory: list[int] = []
    inventories: list[dict[str, int]] = []
    rig.ok("inventory")
    for number in range(1, 201):
        assert rig.ok("count") == sum(range(0, 1000, 2))
        memory.append(rig.child().memory_info().rss)
        if number in (50, 200):
            inventories.append(rig.ok("inventory"))
    early, late = inventories
    assert memory[-1] < memory[49] * 1.1
    assert late["heap"] < early["heap"] * 1.5
    assert (late["cached"], early["cached"]) == (0, 0)
    for what in ("threads", "jvm_threads", "files"):
        assert late[what] <= early[what] + 5, (what, early, late)
    # Spark deletes the six files of a task's shuffle some tasks later. What is never deleted grows with every task.
    assert late["temporary"] < early["temporary"] + 150, (early, late)
    assert len([process for process in rig.family() if process.name() == "java"]) == 1


# -- stopping --------------------


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("long_spark", {}),
        ("loop", {"seconds": 60}),
        ("sleep", {"seconds": 60}),
        pytest.param("stubborn", {"seconds": 60}, marks=pytest.mark.slow),
    ],
)
def test_cancel_stops_what_runs_and_frees_the_slot(rig: Rig, name: str, given: dict[str, Any]) -> None:
    rig.ok("count")
    task_id = rig.send(name, **given)
    rig.until_running(task_id)
    if name == "long_spark":
        rig.until(lambda: rig.progress(task_id), "a Spark job")
    rig.hook.cancel_task(task_id)
    (record,) = rig.until(
        lambda: [record for record in rig.records(task_id) if record.finished_at], "the end of the attempt"
    )
    assert record.outcome == "CANCELLED"
    assert record.worker_id and record.hostname and record.pid
    give_up = time.monotonic() + 10
    while not any("cancelled" in text for text in rig.texts(task_id)):
        assert time.monotonic() < give_up, "the reason was not logged"
        time.sleep(0.1)
    if name == "stubborn":
        rig.until(lambda: not psutil.pid_exists(record.pid), "the end of its process")
    else:
        time.sleep(4)
        working = rig.family()
        used = cpu_seconds(working)
        time.sleep(2)
        assert cpu_seconds(working) - used < 1.0
    assert rig.ok("active_jobs") == 0
    assert rig.hook.read_task(task_id).state is TaskState.CANCELLED


def test_a_cancelled_task_has_the_time_to_clean_up(rig: Rig) -> None:
    task_id = rig.send("clean_up", seconds=1.5)
    rig.until(lambda: "working" in rig.texts(task_id), "the beginning")
    rig.hook.cancel_task(task_id)
    (record,) = rig.until(
        lambda: [record for record in rig.records(task_id) if record.finished_at], "the end of the attempt"
    )
    assert record.outcome == "CANCELLED"
    said = [text for text in rig.texts(task_id) if "closed" in text]
    assert said == [f"{name} closed, 1000 rows removed" for name in ("inner", "outer")]
    assert rig.child().pid == record.pid


def test_a_timeout_stops_the_task_and_keeps_the_session_warm(rig: Rig) -> None:
    jvm = rig.ok("leave_traces", name="before_timeout")["jvm"]
    task = rig.run("loop", seconds=60, spec={"timeout": timedelta(seconds=10)})
    assert (task.state, task.error_code) == (TaskState.FAILED, "TASK_TIMEOUT")
    assert rig.ok("leave_traces", name="after_timeout")["jvm"] == jvm


def test_good_until_stops_a_running_task_that_asked_for_it(rig: Rig) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=4)
    asked, silent = (rig.send(name, seconds=8, spec={"good_until": soon}) for name in ("until_late", "sleep"))
    task = rig.wait(asked)
    assert (task.state, task.error_code) == (TaskState.FAILED, "GOOD_UNTIL_PASSED")
    rig.hook.cancel_task(silent)


# -- deaths --------------------


@pytest.mark.parametrize(
    ("who", "number", "code"),
    [
        ("jvm", signal.SIGKILL, "SPARK_SESSION_LOST"),
        pytest.param("jvm", signal.SIGSTOP, "SPARK_SESSION_LOST", marks=pytest.mark.slow),
        pytest.param("child", signal.SIGKILL, "WORKER_CRASHED", marks=pytest.mark.slow),
    ],
)
def test_a_death_is_in_the_history_and_the_retry_succeeds(rig: Rig, who: str, number: int, code: str) -> None:
    rig.ok("count")
    task_id = rig.send("steps", number=12, retry_for=[code])
    rig.until(lambda: rig.progress(task_id), "progress")
    doomed = [rig.jvm(), *([rig.child()] if who == "child" else [])]
    getattr(rig, who)().send_signal(number)
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED, rig.texts(task_id)
    first, second = task.attempts
    assert (first.outcome, first.error_code, second.outcome) == ("FAILED", code, "COMPLETED")
    assert [record.outcome for record in rig.records(task_id)][-1] == "COMPLETED"
    assert [process for process in doomed if process.is_running()] == []


@pytest.mark.slow
def test_a_jvm_that_died_or_hangs_between_tasks_is_replaced_unnoticed(rig: Rig) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        rig.ok("count")
        rig.jvm().send_signal(number)
        assert rig.ok("count") == sum(range(0, 1000, 2))


@pytest.mark.slow
def test_nothing_outlives_a_killed_worker_and_another_one_takes_over(make_rig: MakeRig) -> None:
    rig = make_rig("killed_worker")
    rig.ok("count")
    task_id = rig.send("steps", number=10, retry_for=["WORKER_CRASHED"])
    rig.until(lambda: rig.progress(task_id), "progress")
    family = rig.family()
    os.kill(rig.worker.process.pid, signal.SIGKILL)
    rig.until(lambda: not any(process.is_running() for process in family), "the end of all of them")
    rig.until(lambda: not rig.worker.process.running, "the end of its guard")
    rig.worker.start()
    task = rig.wait(task_id)
    assert task.state is TaskState.COMPLETED
    assert [attempt.error_code for attempt in task.attempts] == ["WORKER_CRASHED", None]
    folders = list(rig.temporary.glob("airflow-horsies-spark-*"))
    assert len(folders) == 1, "the folder of the killed one is gone"


@pytest.mark.slow
def test_a_driver_without_memory_says_so(make_rig: MakeRig) -> None:
    rig = make_rig("small_driver", HORSIES_SPARK_CONF='{"spark.driver.memory": "512m"}')
    task = rig.run("fill_memory", numbers=400_000_000)
    assert (task.state, task.error_code) == (TaskState.FAILED, "SPARK_OUT_OF_MEMORY")
    assert task.result and task.result.error and "spark.driver.memory" in str(task.result.error.message)
    assert rig.ok("count") == sum(range(0, 1000, 2))


# -- logs, progress, metrics --------------------


def test_what_a_task_says_is_kept_in_order_and_without_secrets(rig: Rig) -> None:
    task = rig.run("talk", secret="hunter2-and-more")
    said = [(line.level, line.text) for line in rig.lines(task.id)]
    assert said == [
        ("INFO", "first printed"),
        ("INFO", "my.module: then logged"),
        ("WARNING", "my.module: the secret is ***"),
        ("INFO", "a line of parts 3"),
        ("INFO", "no end"),
    ]


def test_lines_beyond_the_limit_are_counted_and_told(rig: Rig) -> None:
    texts = rig.texts(rig.run("print_lines", lines=3_000).id)
    assert texts[:2] == ["line 0", "line 1"]
    assert len(texts) == LOG_LINES + 2
    assert f"{LOG_LINES:,} lines" in texts[-2]
    assert f"{3_000 - LOG_LINES:,} more lines were not stored" in texts[-1]


def test_lines_and_progress_come_while_the_task_runs(rig: Rig) -> None:
    task_id = rig.send("steps", number=8)
    # Before the task reports its own, Spark's jobs may be seen.
    progress = rig.until(lambda: (seen := rig.progress(task_id)) and seen.total == 8 and seen, "progress")
    assert progress.attempt == 1
    assert progress.stage.startswith("step ")
    assert rig.wait(task_id).state is TaskState.COMPLETED
    assert rig.progress(task_id) is None


def test_spark_tells_how_far_it_is_and_what_it_used(rig: Rig) -> None:
    task_id = rig.send("long_spark", parts=6)
    told = rig.until(lambda: rig.progress(task_id), "progress of Spark")
    assert told.total >= 6
    assert "Spark" in told.stage
    assert rig.wait(task_id).state is TaskState.COMPLETED
    (record,) = rig.records(task_id)
    assert record.metrics["tasks"] >= 6
    assert record.metrics["executor_seconds"] > 5
    task = rig.run("save", path=str(rig.temporary.parent / "saved"), number=1000)
    (record,) = rig.records(task.id)
    assert record.metrics["output_rows"] == 1000
    assert record.metrics["output_bytes"] > 1000
    assert record.metrics["input_rows"] >= 1000


@pytest.mark.slow
def test_a_restart_of_the_database_costs_no_line(make_rig: MakeRig, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres", durable=True) as postgres:
        postgres.create_database("restarted")
        folder = tmp_path / "rig"
        folder.mkdir()
        rig = Rig(folder, postgres, "restarted")
        try:
            rig.start()
            task_id = rig.send("sleep", seconds=6)
            rig.until(lambda: rig.texts(task_id), "the first line")
            postgres.restart()
            assert rig.wait(task_id).state is TaskState.COMPLETED
            rig.until(lambda: len(rig.texts(task_id)) > 1, "the last line")
            said = [text for text in rig.texts(task_id) if text in ("going to sleep", "awake")]
            assert said == ["going to sleep", "awake"]
        finally:
            rig.hook.close()
            rig.worker.stop()
            postgres.stop()
            postgres.delete()
