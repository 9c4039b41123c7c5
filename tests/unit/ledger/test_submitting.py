from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_horsies.db.statement import Rows
from airflow_horsies.exceptions import InvalidTask, NamespaceTaken, StaleSubmission, TaskNotFound
from airflow_horsies.ledger.cancelling import cancel_task_and_signal
from airflow_horsies.ledger.identity import Submitter
from airflow_horsies.ledger.submitting import submit_tasks
from airflow_horsies.models import (
    LIVE_STATES,
    AirflowTry,
    CancelOutcome,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
)
from airflow_horsies.wire.encoding import encode_task
from airflow_horsies.wire.statements import Wire
from tests.unit.driving import MOVED, Answer, drive

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load")
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
        base_url: str = "http://airflow",
        namespace: str = "default",
        **tried: Any,
    ) -> list[SubmitResult]:
        submitter = Submitter(
            namespace=namespace,
            base_url=base_url,
            task_instance=INSTANCE,
            tried=AirflowTry(**{"try_number": 1, **tried}),
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
            "read_newest_life": self._read_newest_life,
            "moved/read_states": self._read_tasks,
            "moved/find_commands": self._read_tasks,
            "moved/claim_idempotency_keys": self._claim_keys,
            "moved/enqueue_tasks": self._enqueue,
            "moved/cancel_task": self._cancel,
            "find_wanted_by_others": [],
            "find_shared": [],
            "record_signal": self._signal,
            "move_items": self._move,
            "find_recorded": self._find_recorded,
            "record_submissions": self._record,
        }

    def _read_newest_life(self, key: Mapping[str, Any]) -> Rows:
        ours = [row for row in self.submissions if row["namespace"] == key["namespace"]]
        newest = max((row["life"] for row in ours), default=0)
        latest = {row["position"]: row for row in sorted(ours, key=lambda row: row["round"]) if row["life"] == newest}
        return list(latest.values())

    def _move(self, params: Mapping[str, Any]) -> Rows:
        for moved in json.loads(params["items"]):
            for row in self.submissions:
                if (row["life"], row["position"]) == (params["life"], moved["position"]):
                    row["place"] = moved["place"]
        return []

    def _find_recorded(self, params: Mapping[str, Any]) -> Rows:
        return [row for row in self.submissions if row["horsies_task_id"] in params["ids"]]

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
        names = (
            "namespace",
            "life",
            "base_url",
            "try_number",
            "run_started_at",
            "run_key",
            "clear_number",
            "max_tries",
        )
        row = {name: params[name] for name in names}
        for each in json.loads(params["rounds"]):
            work = bytes.fromhex(each["work"].removeprefix(r"\x"))
            kept = {"released_at": None, "is_to_be_cancelled": False, "seen_try": None, "kind": "TASK"}
            self.submissions.append({**row, **each, "work": work, **kept})
        return []


@pytest.fixture
def database() -> Database:
    return Database()


def test_first_submission_is_sent_and_recorded_as_round_1_under_a_lock(database: Database) -> None:
    (result,) = database.submit()
    assert (result.outcome, result.state, result.life, result.round) == (SENT, TaskState.PENDING, 1, 1)
    assert list(database.tasks) == [result.task_id]
    assert [row["horsies_task_id"] for row in database.submissions] == [result.task_id]
    assert database.statements[:2] == ["lock_task_instance", "read_newest_life"]


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
    (again,) = database.submit(clear_number=1, try_number=2)
    assert (again.outcome, again.life, again.round) == (SENT, 2, 1)
    assert database.states() == ["CANCELLED" if state in LIVE_STATES else state, "PENDING"]
    assert database.signals == ([first.task_id] if state is TaskState.RUNNING else [])


def test_life_that_was_cleared_meanwhile_submits_nothing(database: Database) -> None:
    database.submit(clear_number=1)
    with pytest.raises(StaleSubmission, match=r"sales.load of run manual__1 has been cleared, or its DAG run"):
        database.submit()
    assert len(database.tasks) == 1


def test_task_past_its_retention_is_not_sent_again_by_a_retry(database: Database) -> None:
    database.submit()
    database.tasks.clear()
    with pytest.raises(TaskNotFound, match="Clear the task instance"):
        database.submit(try_number=2)
    assert database.submit(clear_number=1)[0].outcome is SENT


def test_other_deployment_is_refused_unless_it_has_a_namespace_of_its_own(database: Database) -> None:
    (ours,) = database.submit()
    with pytest.raises(NamespaceTaken, match=r"at http://airflow, and this deployment is at http://other.*'default'"):
        database.submit(base_url="http://other")
    (theirs,) = database.submit(base_url="http://other", namespace="other")
    assert theirs.task_id != ours.task_id


def test_batch_is_decided_item_by_item(database: Database) -> None:
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
    database.submit(TaskSpec(task_name="load"), clear_number=1)
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


def test_lost_record_is_known_by_its_work_alone(database: Database) -> None:
    (first,) = database.submit(TaskSpec(task_name="load", kwargs={"day": 1}))
    database.submissions.clear()
    (other,) = database.submit(TaskSpec(task_name="load", kwargs={"day": 2}))
    assert (other.outcome, other.task_id != first.task_id) == (SENT, True)
    database.submissions.clear()
    (again,) = database.submit(TaskSpec(task_name="load", kwargs={"day": 1}, priority=3))
    assert (again.outcome, again.task_id) == (REATTACHED, first.task_id)


def test_key_used_before_gives_the_earlier_task(database: Database) -> None:
    keyed = TaskSpec(task_name="load", idempotency_key="2026-03-01")
    (ours,) = database.submit(keyed)
    (theirs,) = database.submit(keyed, namespace="other")
    assert (theirs.task_id, theirs.outcome) == (ours.task_id, REATTACHED)
    assert len(database.tasks) == 1
    database.end(TaskState.COMPLETED)
    assert database.submit(keyed, namespace="third")[0].outcome is ADOPTED


@pytest.mark.parametrize("later", [{"try_number": 2}, {"clear_number": 1}], ids=["retry", "clear"])
def test_key_does_not_keep_a_retry_or_a_clear_from_running(database: Database, later: dict[str, int]) -> None:
    keyed = TaskSpec(task_name="load", idempotency_key="2026-03-01")
    database.submit(keyed)
    database.end(TaskState.FAILED)
    (again,) = database.submit(keyed, **later)
    assert again.outcome is SENT


def test_empty_batch_submits_nothing(database: Database) -> None:
    submitter = Submitter(namespace="n", base_url="u", task_instance=INSTANCE, tried=AirflowTry(try_number=1))
    driven = drive(submit_tasks(WIRE, submitter, []), database.answers)
    assert (driven.outcome, database.submissions) == ([], [])


def test_id_of_a_submission_is_never_the_callers(database: Database) -> None:
    with pytest.raises(InvalidTask, match="task_id"):
        database.submit(TaskSpec(task_name="load", task_id=str(uuid.UUID(int=1))))


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_cancel_tells_a_running_task_to_stop(database: Database, state: TaskState) -> None:
    (sent,) = database.submit()
    database.end(state)
    outcome = drive(cancel_task_and_signal(WIRE, sent.task_id), database.answers).outcome
    assert outcome is CancelOutcome.CANCELLED
    assert database.signals == ([sent.task_id] if state is TaskState.RUNNING else [])
