from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.exceptions import AccessDenied, DatabaseUnreachable
from airflow_horsies.worker import outcomes as outcomes_module
from airflow_horsies.worker import reporter as reporter_module
from airflow_horsies.worker.attempt import Assignment
from airflow_horsies.worker.child import Child
from airflow_horsies.worker.chunk import ChunkOrder, ItemTask
from airflow_horsies.worker.errors import Failure, SparkLost, TaskFault
from airflow_horsies.worker.settings import WorkerSettings
from airflow_horsies.worker.stopping import STOP_SIGNAL
from tests.unit.worker.tables import Tables, eventually

URL = "postgresql+psycopg://worker:s3cret-word@db/horsies"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tables: Tables) -> Iterator[Child]:
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(outcomes_module, "WRITE_SECONDS", 0.05)
    monkeypatch.setattr(outcomes_module, "RETRY_SECONDS", 0.01)
    made = Child(WorkerSettings(database_url=URL), uses_spark=False)
    before = signal.getsignal(STOP_SIGNAL)
    made._stopper.install()
    made._reporter.start()
    yield made
    signal.signal(STOP_SIGNAL, before)


def run(
    child: Child, function: Callable[[Any], Any], items: list[Any], *, with_spark: bool = False, **given: Any
) -> Any:
    task = ItemTask(
        lambda session, item: json.dumps(function(item) if not with_spark else function(session)),
        lambda error, failure: Failure("UNHANDLED_EXCEPTION", failure.message),
        with_spark=with_spark,
        stops_at_good_until=False,
    )
    return child.run_chunk(Assignment("t1", "w1", None, None), task, {"items": items, **given})


def written(tables: Tables) -> dict[int, str]:
    return {number: item["outcome"] for number, item in tables.items.get("t1", {}).items()}


# -- the order --------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "items must be a list"),
        ({"items": {}}, "items must be a list"),
        ({"items": [], "timeout_ms": 0}, "timeout_ms must be an integer ≥ 1 or null"),
        ({"items": [], "timeout_ms": True}, "timeout_ms must be an integer ≥ 1 or null"),
        ({"items": [], "retry_policy": []}, "retry_policy must be an object or null"),
        ({"items": [], "isolate": "x"}, "isolate must be 'chunk' or 'item'"),
    ],
)
def test_wrong_arguments_of_a_chunk_are_named(given: Mapping[str, Any], says: str) -> None:
    with pytest.raises(TaskFault, match=says) as caught:
        ChunkOrder.parse(given)
    assert caught.value.code == "BAD_INPUT"


def test_an_item_is_tried_again_by_the_rules_of_horsies() -> None:
    policy = {"max_retries": 2, "intervals": [3, 7], "backoff_strategy": "fixed", "jitter": False}
    order = ChunkOrder.parse({"items": [], "retry_policy": {**policy, "auto_retry_for": ["FLAKY"]}})
    assert [order.find_delay("FLAKY", tries) for tries in (1, 2, 3)] == [3.0, 7.0, None]
    assert order.find_delay("OTHER", 1) is None
    assert ChunkOrder.parse({"items": []}).find_delay("FLAKY", 1) is None
    assert ChunkOrder.parse({"items": [], "retry_policy": {"max_retries": 2}}).find_delay("FLAKY", 1) is None


# -- outcomes --------------------


def test_a_short_chunk_is_written_in_few_transactions(
    child: Child, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What comes with time comes in a short chunk only where the machine is busy.
    monkeypatch.setattr(outcomes_module, "WRITE_SECONDS", 60)
    monkeypatch.setattr(outcomes_module, "CONFIRMED_SECONDS", 60)
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 60)
    monkeypatch.setattr(reporter_module, "WATCH_SECONDS", 60)
    assert run(child, lambda item: item, [1, 2]).is_ok()
    before = tables.runs
    outcome = run(child, lambda item: item, list(range(50)))
    assert outcome.ok == {"items": 50, "completed": 50}
    assert set(written(tables).values()) == {"COMPLETED"}
    # Its begin and its outcomes, and begin and end of the attempt.
    assert tables.runs - before <= 4


def test_a_long_item_without_outcomes_to_write_asks_the_database_only_now_and_then(
    child: Child, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "REPORT_SECONDS", 60)
    monkeypatch.setattr(reporter_module, "WATCH_SECONDS", 60)
    asked: list[int] = []

    def nap(item: int) -> None:
        time.sleep(0.2)
        before = tables.runs
        time.sleep(0.5)
        asked.append(tables.runs - before)

    assert run(child, nap, [0]).is_ok()
    assert asked[0] <= 1


def test_outcomes_are_not_written_without_the_claim(child: Child, tables: Tables) -> None:
    def lose(item: int) -> int:
        if item == 1:
            tables.lost.add("t1")
        return item

    outcome = run(child, lose, [0, 1, 2])
    assert outcome.is_err() and outcome.err.error_code.value == "TASK_CANCELLED"
    assert written(tables) == {}


def test_no_item_starts_on_a_claim_that_was_confirmed_long_ago(
    child: Child, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was suspended in the middle of an item."""
    monkeypatch.setattr(outcomes_module, "WRITE_SECONDS", 60)
    monkeypatch.setattr(reporter_module, "WATCH_SECONDS", 60)
    monkeypatch.setattr(outcomes_module, "CONFIRMED_SECONDS", 0.1)
    started: list[int] = []

    def be_suspended(item: int) -> None:
        started.append(item)
        tables.lost.add("t1")
        time.sleep(0.15)

    assert run(child, be_suspended, [0, 1, 2]).is_err()
    assert started == [0]


def test_recorded_items_do_not_run_again(child: Child, tables: Tables) -> None:
    tables.items["t1"] = {0: {"outcome": "COMPLETED"}, 2: {"outcome": "FAILED"}}
    started: list[int] = []
    outcome = run(child, started.append, [0, 1, 2])
    assert started == [1]
    assert outcome.err.error_code == "ITEMS_FAILED"
    assert outcome.err.message == "1 of 3 items did not complete: 1 FAILED."


def test_a_claim_that_is_lost_before_the_first_item_runs_nothing(child: Child, tables: Tables) -> None:
    tables.lost.add("t1")
    started: list[int] = []
    assert run(child, started.append, [0]).is_err()
    assert started == []


def test_the_end_of_a_chunk_waits_for_the_database(child: Child, tables: Tables) -> None:
    def go_away(item: int) -> int:
        tables.down = DatabaseUnreachable("gone")
        threading.Timer(0.2, lambda: setattr(tables, "down", None)).start()
        return item

    assert run(child, go_away, [0]).is_ok()
    assert written(tables) == {0: "COMPLETED"}


def test_outcomes_that_cannot_be_written_fail_the_chunk(
    child: Child, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "GIVE_UP_SECONDS", 0.1)

    def go_away(error: Exception) -> Callable[[int], None]:
        return lambda item: setattr(tables, "down", error)

    for error in (DatabaseUnreachable("gone for good"), AccessDenied("not allowed")):
        outcome = run(child, go_away(error), [0])
        tables.down = None
        assert outcome.err.error_code == "OUTCOMES_UNAVAILABLE"
        assert str(error) in outcome.err.message
        assert written(tables) == {}


def test_tables_without_chunks_are_refused(child: Child, tables: Tables) -> None:
    tables.version = 4
    outcome = run(child, lambda item: item, [0])
    assert outcome.err.error_code == "CHUNKS_UNSUPPORTED"
    assert "version 4" in outcome.err.message and "airflow horsies db migrate" in outcome.err.message
    tables.version = 5
    assert run(child, lambda item: item, [0]).is_ok()


def test_large_values_are_not_all_kept_in_memory(child: Child, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes_module, "WRITE_SECONDS", 60)
    counts: list[int] = []

    def return_much(item: int) -> str:
        counts.append(len(written(tables)))
        return "x" * (outcomes_module.MAX_PENDING_CHARS // 2)

    assert run(child, return_much, list(range(5))).is_ok()
    assert counts == [0, 0, 2, 2, 4]


def test_dropped_and_late_items_are_not_started(child: Child, tables: Tables) -> None:
    started: list[int] = []
    tables.dropped["t1"] = [1]
    run(child, started.append, [0, 1])
    assert (started, written(tables)) == ([0], {0: "COMPLETED", 1: "CANCELLED"})
    tables.items.clear()
    tables.good_until = datetime.now(UTC) - timedelta(seconds=1)
    run(child, started.append, [0, 1])
    assert (started, written(tables)) == ([0], {0: "EXPIRED", 1: "CANCELLED"})
    assert tables.items["t1"][0]["started_at"] is None


def test_an_item_that_is_dropped_while_it_runs_is_stopped(child: Child, tables: Tables) -> None:
    def wait(item: int) -> int:
        if item == 1:
            tables.dropped["t1"] = [1]
            eventually(lambda: False)
        return item

    outcome = run(child, wait, [0, 1, 2])
    assert outcome.err.error_code == "ITEMS_FAILED"
    assert written(tables) == {0: "COMPLETED", 1: "CANCELLED", 2: "COMPLETED"}
    assert tables.items["t1"][1]["error_code"] == "TASK_CANCELLED"


def test_a_retry_gets_the_arguments_that_were_sent(child: Child, tables: Tables) -> None:
    given: list[list[int]] = []

    def consume(item: list[int]) -> int:
        given.append(list(item))
        item.clear()
        if len(given) == 1:
            raise TaskFault("FLAKY", "Half-way.")
        return len(given)

    policy = {"max_retries": 1, "intervals": [0], "backoff_strategy": "fixed", "jitter": False}
    assert run(child, consume, [[1, 2]], retry_policy={**policy, "auto_retry_for": ["FLAKY"]}).is_ok()
    assert given == [[1, 2], [1, 2]]


def test_lines_have_the_number_of_their_item(child: Child, tables: Tables) -> None:
    def speak(item: str) -> None:
        assert child.current is not None
        child.current.log.add("INFO", [item])

    run(child, speak, ["a", "b"])
    eventually(lambda: ("t1", 1) in tables.ended)
    assert tables.texts("t1") == [(1, "a"), (2, "b")]
    assert tables.line_items["t1", 1] == {1: 0, 2: 1}


# -- Spark --------------------


class MortalSpark:
    """Counts its sessions. A task can kill it."""

    def __init__(self) -> None:
        self.numbers: Iterator[int] = itertools.count(1)
        self.open: int | None = None
        self.is_lost = False
        self.closed = 0

    def open_session(self, task_id: str) -> int:
        assert self.open is None
        self.open = next(self.numbers)
        return self.open

    def close_session(self) -> None:
        self.open, self.is_lost = None, False
        self.closed += 1

    def explain_loss(self, failure: Failure) -> Failure:
        return Failure("SPARK_SESSION_LOST", "The JVM is gone.")

    def metrics(self, task_id: str) -> dict[str, float]:
        assert self.open is not None
        return {"jobs": 3.0}

    def poll_progress(self) -> None:
        return None


@pytest.mark.parametrize(("isolate", "sessions"), [("chunk", [1, 1, 1]), ("item", [1, 2, 3])])
def test_items_share_a_session_unless_they_are_isolated(
    child: Child, tables: Tables, isolate: str, sessions: list[int]
) -> None:
    spark = MortalSpark()
    child._spark = spark  # type: ignore[assignment]
    run(child, lambda session: session, [{}, {}, {}], with_spark=True, isolate=isolate)
    assert [json.loads(tables.items["t1"][number]["value"]) for number in range(3)] == sessions
    assert (spark.open, spark.closed) == (None, sessions[-1])
    assert json.loads(tables.ended["t1", 1]["metrics"]) == {"jobs": 3.0}


@pytest.mark.parametrize("is_noticed", [True, False])
def test_after_a_lost_spark_the_next_item_has_another_one(child: Child, tables: Tables, is_noticed: bool) -> None:
    """Its connections may be gone before it counts as dead."""
    spark = MortalSpark()
    child._spark = spark  # type: ignore[assignment]

    def die_once(session: int) -> int:
        if session == 1:
            spark.is_lost = is_noticed
            raise ConnectionError("the answer from Java is empty") if is_noticed else SparkLost("The JVM is gone.")
        return session

    outcome = run(child, die_once, [{}, {}, {}], with_spark=True)
    assert outcome.err.error_code == "ITEMS_FAILED"
    assert tables.items["t1"][0]["error_code"] == "SPARK_SESSION_LOST"
    assert [json.loads(tables.items["t1"][number]["value"]) for number in (1, 2)] == [2, 2]


def test_outside_a_worker_a_chunk_is_refused() -> None:
    from airflow_horsies.worker.child import run_chunk

    task = ItemTask(
        lambda session, item: "1", lambda error, failure: failure, with_spark=False, stops_at_good_until=False
    )
    assert run_chunk(task, {"items": []}).err.error_code == "CHUNKS_UNSUPPORTED"


def test_errors_of_many_items_and_tries_stay_within_the_limit_of_the_log(child: Child, tables: Tables) -> None:
    child._settings = WorkerSettings(database_url=URL, log_lines=10)

    def fail(item: Any) -> Any:
        raise TaskFault("BROKEN", "no")

    policy = {"max_retries": 2, "intervals": [0, 0], "auto_retry_for": ["BROKEN"], "jitter": False}
    run(child, fail, [{}] * 50, retry_policy=policy)
    assert len(written(tables)) == 50
    # Ten, and our own notes: that the limit was reached, how many lines were dropped, and the end of the chunk.
    assert len(tables.lines["t1", 1]) <= 13
