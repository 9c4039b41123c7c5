from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.db.statement import Rows
from airflow_horsies.exceptions import InvalidTask, TaskIdTaken
from airflow_horsies.models import RetentionClass, TaskSpec
from airflow_horsies.wire import cluster, sending
from airflow_horsies.wire.encoding import EncodedTask, encode_task
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import IN_PLACE, MOVED, Driven, drive

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = "0198a0de-0000-7000-8000-000000000001"
SECOND = "0198a0de-0000-7000-8000-000000000002"
BOTH = pytest.mark.parametrize("schema", [IN_PLACE, MOVED], ids=lambda schema: schema.generation)


def encoded(**given: Any) -> EncodedTask:
    return encode_task(TaskSpec(**{"task_name": "add", **given}), sent_at=NOON)


def found(task: EncodedTask, *, status: str = "PENDING") -> Rows:
    return [{"id": task.id, "status": status, "command_fingerprint": task.command_fingerprint}]


@BOTH
def test_task_with_a_minted_id_is_inserted_without_lock_or_look(schema: Any) -> None:
    task = encoded()
    driven = drive(sending.enqueue_task(Wire(schema), task))
    assert (driven.outcome, driven.names) == (task.id, [f"{schema.generation}/enqueue_tasks"])


def test_task_with_a_given_id_is_looked_for_under_a_lock_before_it_is_inserted() -> None:
    driven = drive(sending.enqueue_task(Wire(MOVED), encoded(task_id=FIRST)))
    assert driven.names == ["lock_task_ids", "moved/find_commands", "moved/enqueue_tasks"]


def test_only_given_ids_of_many_are_locked() -> None:
    tasks = [encoded(), encoded(task_id=SECOND), encoded(task_id=FIRST)]
    driven = drive(sending.enqueue_tasks(Wire(MOVED), tasks))
    assert driven.outcome == [task.id for task in tasks]
    assert driven.params("lock_task_ids")["buckets"] == [1, 2]
    assert driven.params("moved/find_commands") == {"ids": [SECOND, FIRST]}


@pytest.mark.parametrize("status", ["PENDING", "COMPLETED"])
def test_same_command_under_a_known_id_is_not_sent_again(status: str) -> None:
    task = encoded(task_id=FIRST)
    driven = drive(sending.enqueue_task(Wire(MOVED), task), {"moved/find_commands": found(task, status=status)})
    assert driven.outcome == FIRST
    assert "moved/enqueue_tasks" not in driven.names


def test_same_command_is_known_by_its_columns_where_no_fingerprint_is_kept() -> None:
    task = encoded(task_id=FIRST, kwargs={"a": 1}, good_until=NOON)
    row = {
        "id": FIRST,
        "status": "PENDING",
        "command_fingerprint": None,
        "task_name": "add",
        "queue_name": "default",
        "priority": 100,
        "kwargs": '{"a":1}',
        "good_until": NOON,
        "task_options": task.task_options,
    }
    script = sending.enqueue_task(Wire(IN_PLACE), task)
    assert drive(script, {"in_place/find_commands": [row]}).outcome == FIRST
    with pytest.raises(TaskIdTaken, match="other arguments"):
        drive(sending.enqueue_task(Wire(IN_PLACE), task), {"in_place/find_commands": [{**row, "kwargs": "{}"}]})


def test_other_command_under_a_known_id_is_refused() -> None:
    answers = {"moved/find_commands": [{**found(encoded(task_id=FIRST))[0], "command_fingerprint": b"x" * 32}]}
    with pytest.raises(TaskIdTaken, match="other arguments or options") as caught:
        drive(sending.enqueue_task(Wire(MOVED), encoded(task_id=FIRST)), answers)
    assert (caught.value.task_id, caught.value.queue) == (FIRST, "default")


def test_many_are_refused_when_one_id_exists() -> None:
    task = encoded(task_id=FIRST)
    with pytest.raises(TaskIdTaken, match=rf"{FIRST} already exists\. Nothing was sent"):
        drive(sending.enqueue_tasks(Wire(MOVED), [encoded(), task]), {"moved/find_commands": found(task)})


def test_many_are_refused_when_an_id_is_given_twice() -> None:
    with pytest.raises(InvalidTask, match="given more than once"):
        drive(sending.enqueue_tasks(Wire(MOVED), [encoded(task_id=FIRST), encoded(task_id=FIRST)]))


def test_many_tasks_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "COPIED_FROM", 3)
    tasks = [encoded() for _ in range(5)]
    driven = drive(sending.enqueue_tasks(Wire(MOVED), tasks), {"read_transaction_time": [{"at": datetime.now(UTC)}]})
    assert driven.names == ["read_transaction_time", "moved/copy_tasks"]
    assert driven.outcome == [task.id for task in tasks]


def test_run_after_one_whose_commit_was_cut_short_looks_whether_it_happened() -> None:
    tasks = [encoded(idempotency_key="k"), encoded()]
    happened = {"moved/find_commands": [row for task in tasks for row in found(task, status="COMPLETED")]}
    one = drive(sending.enqueue_task(Wire(MOVED), tasks[0], is_rerun=True), happened)
    assert (one.outcome, one.names) == (tasks[0].id, ["moved/find_commands"])
    many = drive(sending.enqueue_tasks(Wire(MOVED), tasks, is_rerun=True), happened)
    assert (many.outcome, many.names) == ([task.id for task in tasks], ["moved/find_commands"])
    did_not = drive(sending.enqueue_tasks(Wire(MOVED), tasks, is_rerun=True), claimed("APPLIED"))
    assert did_not.names[-1] == "moved/enqueue_tasks"


def test_no_tasks_run_no_statement() -> None:
    assert drive(sending.enqueue_tasks(Wire(MOVED), [])) == Driven([], [])


CLASSES = {"moved/read_retention_classes": [{"class_key": "q_reports_7d", "duration": timedelta(days=7)}]}


@pytest.mark.parametrize("key", ["standard_30d", "forever"])
def test_built_in_retention_class_is_not_looked_up(key: str) -> None:
    driven = drive(sending.enqueue_task(Wire(MOVED), encoded(retention=key)))
    assert driven.names == ["moved/enqueue_tasks"]


def test_other_retention_class_must_exist() -> None:
    known = encoded(retention="q_reports_7d")
    assert drive(sending.enqueue_task(Wire(MOVED), known), CLASSES).outcome == known.id
    with pytest.raises(InvalidTask, match=r"'nope' is not a retention class.*forever, q_reports_7d, standard_30d"):
        drive(sending.enqueue_task(Wire(MOVED), encoded(retention="nope")), CLASSES)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["q_reports_7d"], "q_reports_7d"),
        (["q_reports_7d", "q_reports_36h"], None),
        (["q_reports_daily_7d", "q_report_7d", "reports_7d", "standard_30d"], None),
        (["q_reports_90m", "q_other_7d"], "q_reports_90m"),
        ([], None),
    ],
)
def test_a_queue_has_the_class_it_is_mapped_to_where_there_is_one(keys: list[str], found: str | None) -> None:
    classes = [RetentionClass(key=key, duration=None) for key in keys]
    assert sending.class_of_queue(classes, "reports") == found


def test_retention_classes_need_a_release_that_has_them() -> None:
    with pytest.raises(InvalidTask, match=r"'forever' needs horsies 0\.5 or newer"):
        drive(sending.enqueue_task(Wire(IN_PLACE), encoded(retention="forever")))
    assert drive(cluster.read_retention_classes(Wire(IN_PLACE))) == Driven([], [])


def claimed(outcome: str, task_id: str = FIRST) -> dict[str, Any]:
    def answer(params: Mapping[str, Any]) -> Rows:
        return [{"id": each, "outcome": outcome, "task_id": task_id} for each in params["ids"]]

    return {"moved/claim_idempotency_keys": answer}


def test_idempotency_key_is_claimed_before_the_insert() -> None:
    task = encoded(idempotency_key="k")
    driven = drive(sending.enqueue_task(Wire(MOVED), task), claimed("APPLIED"))
    assert (driven.outcome, driven.names) == (task.id, ["moved/claim_idempotency_keys", "moved/enqueue_tasks"])


def test_idempotency_key_used_before_returns_the_first_task() -> None:
    driven = drive(sending.enqueue_task(Wire(MOVED), encoded(idempotency_key="k")), claimed("REPLAY"))
    assert (driven.outcome, driven.names) == (FIRST, ["moved/claim_idempotency_keys"])


def test_idempotency_key_of_another_command_is_refused() -> None:
    with pytest.raises(TaskIdTaken, match=f"belongs to task {FIRST}"):
        drive(sending.enqueue_task(Wire(MOVED), encoded(idempotency_key="k")), claimed("CONFLICT"))


def test_many_are_refused_when_one_key_was_used_before() -> None:
    tasks = [encoded(), encoded(idempotency_key="k")]
    with pytest.raises(TaskIdTaken, match=rf"in use by task {FIRST}\. Nothing was sent"):
        drive(sending.enqueue_tasks(Wire(MOVED), tasks), claimed("REPLAY"))


@pytest.mark.parametrize(
    ("schema", "tasks", "problem"),
    [
        (IN_PLACE, [{"idempotency_key": "k"}], "needs horsies 0.5"),
        (MOVED, [{"idempotency_key": "k"}, {"idempotency_key": "k"}], "given twice for the same task name"),
    ],
)
def test_idempotency_keys_that_cannot_be_claimed_are_refused(
    schema: Any, tasks: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(InvalidTask, match=problem):
        drive(sending.enqueue_tasks(Wire(schema), [encoded(**task) for task in tasks]), claimed("APPLIED"))


def test_one_key_serves_different_task_names() -> None:
    tasks = [encoded(task_name=name, idempotency_key="k") for name in ("a", "b")]
    assert drive(sending.enqueue_tasks(Wire(MOVED), tasks), claimed("APPLIED")).outcome == [t.id for t in tasks]
