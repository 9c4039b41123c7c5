from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.exceptions import InvalidTask, NamespaceTaken, StaleSubmission, TaskIdTaken, TaskNotFound
from airflow_horsies.ledger import submissions
from airflow_horsies.ledger.submissions import Submitter, cancel_and_signal, submit_tasks
from airflow_horsies.models import (
    LIVE_STATES,
    CancelOutcome,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
)
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.statement import Rows
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, Answer, drive

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WIRE = Wire(MOVED)
SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED


@dataclass
class Database:
    """Just enough of horsies' tables and ours to be submitted to."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[bytes, str] = field(default_factory=dict)
    submissions: list[dict[str, Any]] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)

    def submit(
        self,
        *specs: TaskSpec,
        life: int = 1,
        try_number: int = 1,
        base_url: str = "http://airflow",
        namespace: str = "default",
    ) -> list[SubmitResult]:
        submitter = Submitter(
            namespace=namespace, base_url=base_url, task_instance=INSTANCE, life=life, try_number=try_number
        )
        encoded = [encode_task(spec) for spec in specs or [TaskSpec(task_name="load")]]
        driven = drive(submit_tasks(WIRE, submitter, encoded), self.answers)
        self.statements = driven.names
        return driven.outcome

    def end(self, state: TaskState, *, position: int = 0) -> None:
        """The latest task of a position gets a state."""
        (*_, last) = [row for row in self.submissions if row["position"] == position]
        self.tasks[last["horsies_task_id"]]["status"] = state.value

    def states(self) -> list[str]:
        return [task["status"] for task in self.tasks.values()]

    @property
    def answers(self) -> dict[str, Answer]:
        return {
            "read_latest_submissions": self._read_latest,
            "moved/read_states": self._read_tasks,
            "moved/find_commands": self._read_tasks,
            "moved/claim_idempotency_keys": self._claim_keys,
            "moved/enqueue_tasks": self._enqueue,
            "moved/cancel_task": self._cancel,
            "record_signal": self._signal,
            "record_submissions": self._record,
        }

    def _read_latest(self, key: Mapping[str, Any]) -> Rows:
        latest: dict[int, dict[str, Any]] = {}
        for row in sorted(self.submissions, key=lambda row: (row["life"], row["round"])):
            if row["namespace"] == key["namespace"]:
                latest[row["position"]] = row
        return list(latest.values())

    def _read_tasks(self, params: Mapping[str, Any]) -> Rows:
        return [self.tasks[task_id] for task_id in params["ids"] if task_id in self.tasks]

    def _claim_keys(self, params: Mapping[str, Any]) -> Rows:
        rows = []
        for task_id, digest in zip(params["ids"], params["idempotency_digests"], strict=True):
            first = self.keys.setdefault(digest, task_id)
            rows.append({"id": task_id, "outcome": "APPLIED" if first == task_id else "REPLAY", "task_id": first})
        return rows

    def _enqueue(self, params: Mapping[str, Any]) -> Rows:
        for new in json.loads(params["tasks"]):
            assert new["id"] not in self.tasks
            fingerprint = bytes.fromhex(new["command_fingerprint"].removeprefix(r"\x"))
            self.tasks[new["id"]] = {"id": new["id"], "status": "PENDING", "command_fingerprint": fingerprint}
        return []

    def _cancel(self, params: Mapping[str, Any]) -> Rows:
        task = self.tasks[params["id"]]
        found, task["status"] = task["status"], "CANCELLED"
        return [{"outcome": "APPLIED", "observed_status": found}]

    def _signal(self, params: Mapping[str, Any]) -> Rows:
        self.signals.append(params["horsies_task_id"])
        return []

    def _record(self, params: Mapping[str, Any]) -> Rows:
        row = {name: params[name] for name in ("namespace", "life", "base_url", "try_number", "run_started_at")}
        for each in json.loads(params["rounds"]):
            new = {name: each[name] for name in ("position", "round", "horsies_task_id")}
            self.submissions.append({**row, **new})
        return []


@pytest.fixture
def database() -> Database:
    return Database()


def test_first_submission_is_sent_and_recorded_as_round_1_under_a_lock(database: Database) -> None:
    (result,) = database.submit()
    assert (result.outcome, result.state, result.life, result.round) == (SENT, TaskState.PENDING, 1, 1)
    assert list(database.tasks) == [result.task_id]
    assert [row["horsies_task_id"] for row in database.submissions] == [result.task_id]
    assert database.statements[:2] == ["lock_task_instance", "read_latest_submissions"]


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_live_task_is_reattached_to_whatever_the_try(database: Database, state: TaskState) -> None:
    (first,) = database.submit()
    database.end(state)
    (again,) = database.submit(try_number=2)
    assert (again.task_id, again.outcome, again.state, again.round) == (first.task_id, REATTACHED, state, 1)
    assert len(database.tasks) == len(database.submissions) == 1


def test_completed_task_is_adopted(database: Database) -> None:
    (first,) = database.submit()
    database.end(TaskState.COMPLETED)
    (again,) = database.submit(try_number=2)
    assert (again.task_id, again.outcome, again.state) == (first.task_id, ADOPTED, TaskState.COMPLETED)
    assert len(database.tasks) == 1


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED])
def test_task_that_ended_badly_is_followed_by_the_next_round(database: Database, state: TaskState) -> None:
    (first,) = database.submit()
    database.end(state)
    (second,) = database.submit(try_number=2)
    assert (second.outcome, second.round, second.state) == (SENT, 2, TaskState.PENDING)
    assert second.task_id != first.task_id
    database.end(state)
    assert database.submit(try_number=3)[0].round == 3


@pytest.mark.parametrize("state", sorted(TaskState))
def test_new_life_is_sent_again_and_cancels_what_the_earlier_one_left(database: Database, state: TaskState) -> None:
    (first,) = database.submit()
    database.end(state)
    (again,) = database.submit(life=2, try_number=2)
    assert (again.outcome, again.life, again.round) == (SENT, 2, 1)
    assert database.states() == ["CANCELLED" if state in LIVE_STATES else state, "PENDING"]
    assert database.signals == ([first.task_id] if state is TaskState.RUNNING else [])


def test_life_that_was_cleared_meanwhile_submits_nothing(database: Database) -> None:
    database.submit(life=2)
    with pytest.raises(StaleSubmission, match=r"sales.load of run manual__1 has been cleared since"):
        database.submit(life=1)
    assert len(database.tasks) == 1


def test_task_past_its_retention_is_not_sent_again_by_a_retry(database: Database) -> None:
    database.submit()
    database.tasks.clear()
    with pytest.raises(TaskNotFound, match="Clear the task instance"):
        database.submit(try_number=2)
    assert database.submit(life=2)[0].outcome is SENT


def test_other_deployment_is_refused_unless_it_has_a_namespace_of_its_own(database: Database) -> None:
    (ours,) = database.submit()
    with pytest.raises(NamespaceTaken, match=r"at http://airflow, and this one is http://other.*'default'"):
        database.submit(base_url="http://other")
    (theirs,) = database.submit(base_url="http://other", namespace="other")
    assert theirs.task_id != ours.task_id


def test_batch_is_decided_position_by_position(database: Database) -> None:
    parts = [TaskSpec(task_name="load", kwargs={"part": part}) for part in range(4)]
    first = database.submit(*parts)
    assert [result.position for result in first] == [0, 1, 2, 3]
    assert len({result.task_id for result in first}) == 4
    database.end(TaskState.COMPLETED, position=0)
    database.end(TaskState.FAILED, position=1)
    database.end(TaskState.RUNNING, position=2)
    again = database.submit(*parts, try_number=2)
    assert [(result.outcome, result.round) for result in again] == [
        (ADOPTED, 1),
        (SENT, 2),
        (REATTACHED, 1),
        (REATTACHED, 1),
    ]
    assert len(database.tasks) == 5


def test_positions_a_shorter_batch_of_a_new_life_lacks_are_cancelled_too(database: Database) -> None:
    database.submit(TaskSpec(task_name="load"), TaskSpec(task_name="load"))
    database.submit(TaskSpec(task_name="load"), life=2)
    assert database.states() == ["CANCELLED", "CANCELLED", "PENDING"]


def test_task_whose_record_was_lost_is_taken_up(database: Database) -> None:
    (first,) = database.submit()
    database.submissions.clear()
    (again,) = database.submit()
    assert (again.task_id, again.outcome) == (first.task_id, REATTACHED)
    assert (len(database.tasks), len(database.submissions)) == (1, 1)


def test_task_that_failed_and_whose_record_was_lost_is_followed_by_a_round(database: Database) -> None:
    database.submit()
    database.end(TaskState.FAILED)
    database.submit(try_number=2)
    database.end(TaskState.CANCELLED)
    database.submissions.clear()
    (again,) = database.submit(try_number=3)
    assert (again.outcome, again.round, len(database.tasks)) == (SENT, 3, 3)


def test_lost_record_does_not_pass_off_another_command_as_ours(database: Database) -> None:
    database.submit(TaskSpec(task_name="load", kwargs={"day": 1}))
    database.submissions.clear()
    with pytest.raises(TaskIdTaken, match="other arguments"):
        database.submit(TaskSpec(task_name="load", kwargs={"day": 2}))


def test_key_used_before_gives_the_earlier_task(database: Database) -> None:
    keyed = TaskSpec(task_name="load", idempotency_key="2026-03-01")
    (ours,) = database.submit(keyed)
    (theirs,) = database.submit(keyed, namespace="other")
    assert (theirs.task_id, theirs.outcome) == (ours.task_id, REATTACHED)
    assert len(database.tasks) == 1
    database.end(TaskState.COMPLETED)
    assert database.submit(keyed, namespace="third")[0].outcome is ADOPTED


@pytest.mark.parametrize("later", [{"try_number": 2}, {"life": 2}], ids=["retry", "clear"])
def test_key_guards_the_first_submission_only(database: Database, later: dict[str, int]) -> None:
    keyed = TaskSpec(task_name="load", idempotency_key="2026-03-01")
    database.submit(keyed)
    database.end(TaskState.FAILED)
    (again,) = database.submit(keyed, **later)
    assert again.outcome is SENT
    assert "moved/claim_idempotency_keys" not in database.statements


def test_empty_batch_submits_nothing(database: Database) -> None:
    submitter = Submitter(namespace="n", base_url="u", task_instance=INSTANCE, life=1, try_number=1)
    driven = drive(submit_tasks(WIRE, submitter, []), database.answers)
    assert (driven.outcome, database.submissions) == ([], [])


def test_id_of_a_submission_is_never_the_callers(database: Database) -> None:
    with pytest.raises(InvalidTask, match="task_id"):
        database.submit(TaskSpec(task_name="load", task_id=str(uuid.UUID(int=1))))


def derived(position: int = 0, round_: int = 1, **given: Any) -> str:
    instance = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1}
    instance |= {name: value for name, value in given.items() if name in instance}
    submitter = Submitter(
        namespace=given.get("namespace", "n"),
        base_url=given.get("base_url", "u"),
        task_instance=TaskInstanceKey(**instance),  # type: ignore[arg-type]
        life=given.get("life", 1),
        try_number=given.get("try_number", 1),
    )
    return submitter.derive_task_id(position, round_)


def test_derived_id_is_fixed_for_ever() -> None:
    # Ids like this one are in databases: a change here would double running tasks.
    assert derived() == "374452c3-1dab-515a-afc2-afa15a8ea3f7"
    assert derived(base_url="v", try_number=2) == derived()


def test_derived_ids_differ_by_instance_position_life_and_round() -> None:
    ids = [
        derived(),
        derived(1),
        derived(0, 2),
        derived(life=2),
        derived(namespace="m"),
        derived(dag_id="x"),
        derived(run_id="x"),
        derived(task_id="x"),
        derived(map_index=1),
        derived(dag_id='d","r', run_id="r"),
    ]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("given", [{"life": 0}, {"try_number": 0}, {"life": True}, {"life": "1"}], ids=str)
def test_life_and_try_count_from_1(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="whole number from 1"):
        Submitter(**{"namespace": "n", "base_url": "u", "task_instance": INSTANCE, "life": 1, "try_number": 1, **given})


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_cancel_tells_a_running_task_to_stop(database: Database, state: TaskState) -> None:
    (sent,) = database.submit()
    database.end(state)
    outcome = drive(cancel_and_signal(WIRE, sent.task_id), database.answers).outcome
    assert outcome is CancelOutcome.CANCELLED
    assert database.signals == ([sent.task_id] if state is TaskState.RUNNING else [])


def test_prune_forgets_what_horsies_no_longer_keeps_batch_by_batch() -> None:
    ids = [str(uuid.UUID(int=number)) for number in range(1, 4)]
    pages = iter([ids[:2], ids[2:], []])
    answers: dict[str, Answer] = {
        "read_prunable": lambda _: [{"horsies_task_id": task_id} for task_id in next(pages)],
        "moved/read_states": lambda params: [{"id": each, "status": "COMPLETED"} for each in params["ids"][:1]],
        "prune_tasks": lambda params: [{"pruned": len(params["ids"])}],
    }
    driven = drive(submissions.prune(WIRE, older_than=timedelta(days=1)), answers)
    assert driven.outcome == 1
    read = [params for name, params in driven.ran if name == "read_prunable"]
    assert [(params["older_than_seconds"], params["after"]) for params in read] == [
        (86_400, None),
        (86_400, ids[1]),
        (86_400, ids[2]),
    ]
    assert driven.params("prune_tasks") == {"ids": [ids[1]]}


SUBMISSION_ROW = {
    "namespace": "n",
    "dag_id": "d",
    "run_id": "r",
    "task_id": "t",
    "map_index": 3,
    "position": 0,
    "life": 1,
    "round": 2,
    "try_number": 3,
    "horsies_task_id": str(uuid.UUID(int=1)),
    "task_name": "load",
    "queue_name": "default",
    "good_until": None,
    "submitted_at": NOON,
}


def test_submissions_are_read_by_instance_and_by_task() -> None:
    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t", map_index=3)
    (of_instance,) = drive(submissions.read_submissions("n", instance), {"read_submissions": [SUBMISSION_ROW]}).outcome
    (of_task,) = drive(
        submissions.read_submissions_of_task(str(uuid.UUID(int=1))), {"read_submissions_of_task": [SUBMISSION_ROW]}
    ).outcome
    assert of_instance == of_task
    assert (of_task.task_instance, of_task.round, of_task.try_number) == (instance, 2, 3)


def test_change_of_base_url_counts_what_it_changed() -> None:
    driven = drive(submissions.change_base_url("n", old="a", new="b"), {"change_base_url": [{}, {}]})
    assert driven.outcome == 2
    assert driven.params("change_base_url") == {"namespace": "n", "old": "a", "new": "b"}
