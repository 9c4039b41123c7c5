from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.client.mailbox import Answer, MailboxClient, ParkingTask, Verdict
from airflow_horsies.exceptions import DatabaseBusy, DatabaseError, HorsiesError, LedgerOutdated
from airflow_horsies.worker import checkpoint, last_checkpoint, park_for, park_until, receive
from airflow_horsies.worker import signals as signals_module
from airflow_horsies.worker.attempt import Assignment, Running, RunningAttempt, RunningItem, StopReason
from airflow_horsies.worker.errors import TaskFault
from airflow_horsies.worker.logs import AttemptLog
from airflow_horsies.worker.signals import Mailbox, TaskParked, _find_interval
from airflow_horsies.worker.stopping import TaskStopped

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Answers(MailboxClient):
    """Answers in the place of the database; raises those that are errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.closed = 0
        self.asked_at = None

    def require_messages(self) -> None:
        return

    def find_targets(self, task_id: str) -> tuple[str, ...]:
        return (task_id,)

    def close(self) -> None:
        self.closed += 1

    def _next(self, *_: Any, **__: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    receive = park = has_message = write_checkpoint = read_checkpoint = _next


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(signals_module, "RETRY_SECONDS", 0.001)


@pytest.fixture
def attempt() -> RunningAttempt:
    return RunningAttempt(Assignment("t1", "w1", None, None), AttemptLog(100, 10_000))


@pytest.fixture
def stopped() -> Iterator[list[StopReason]]:
    yield []


@pytest.fixture
def make_mailbox(stopped: list[StopReason]) -> Callable[..., tuple[Mailbox, Answers]]:
    def make(*answers: Any) -> tuple[Mailbox, Answers]:
        client = Answers(*answers)

        def stop(running: Running, reason: StopReason) -> None:
            stopped.append(reason)

        return Mailbox(lambda _: client, stop), client

    return make


def got(payload: str) -> Answer:
    return Answer(verdict=Verdict.RECEIVED, payload=payload)


NOTHING = Answer(verdict=Verdict.NOTHING)


def test_receive_asks_until_the_signal_is_there(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, _ = make_mailbox(NOTHING, False, False, True, got('{"a":1}'))
    assert mailbox.receive(attempt, "go", None) == {"a": 1}


def test_receive_times_out(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, _ = make_mailbox(NOTHING)
    with pytest.raises(TaskFault, match=r"The signal 'go' did not arrive within 0 s\."):
        mailbox.receive(attempt, "go", 0)


def test_a_task_that_parks_ends_its_attempt(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, _ = make_mailbox(Answer(verdict=Verdict.PARKED, attempt=1, due_at=NOON, seconds_left=60.0))
    with pytest.raises(TaskParked, match=r"waits for the signal 'go' until 2026-03-01 12:00:00 UTC") as parked:
        mailbox.park(attempt, "go", 60)
    assert parked.value.parked.due_at == NOON
    assert not isinstance(parked.value, Exception)


def test_a_time_that_is_over_lets_the_task_go_on(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, _ = make_mailbox(Answer(verdict=Verdict.TIMED_OUT), Answer(verdict=Verdict.TIMED_OUT))
    mailbox.sleep(attempt, 60)
    with pytest.raises(TaskFault, match="did not arrive in time"):
        mailbox.park(attempt, "go", 60)


def test_a_lost_claim_ends_the_attempt(make_mailbox: Any, attempt: RunningAttempt, stopped: list[StopReason]) -> None:
    mailbox, _ = make_mailbox(Answer(verdict=Verdict.CLAIM_LOST), False)
    with pytest.raises(TaskStopped):
        mailbox.receive(attempt, "go", None)
    with pytest.raises(TaskStopped):
        mailbox.write_checkpoint(attempt, "1")
    assert stopped == [StopReason.CLAIM_LOST] * 2


def test_a_database_that_is_away_is_asked_again(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, client = make_mailbox(DatabaseBusy("busy"), DatabaseBusy("busy"), "[1]")
    assert mailbox.read_checkpoint(attempt) == "[1]"
    assert client.answers == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(DatabaseError("no"), "SIGNALS_UNAVAILABLE"), (LedgerOutdated("old"), "SIGNALS_UNSUPPORTED")],
)
def test_other_errors_have_a_code(make_mailbox: Any, attempt: RunningAttempt, error: HorsiesError, code: str) -> None:
    mailbox, _ = make_mailbox(error)
    with pytest.raises(TaskFault) as fault:
        mailbox.read_checkpoint(attempt)
    assert fault.value.code == code


def test_an_interrupted_question_closes_its_connection(make_mailbox: Any, attempt: RunningAttempt) -> None:
    mailbox, client = make_mailbox(got("1"), TaskStopped())
    mailbox.receive(attempt, "go", None)
    with pytest.raises(TaskStopped):
        mailbox.receive(attempt, "go", None)
    assert client.closed == 1


def test_an_item_of_a_chunk_keeps_checkpoints_and_cannot_wait(make_mailbox: Any, attempt: RunningAttempt) -> None:
    attempt.item = RunningItem(attempt, 3, 1)
    mailbox, _ = make_mailbox(True)
    mailbox.write_checkpoint(attempt, "1")
    with pytest.raises(TaskFault, match="An item of a chunk cannot wait"):
        mailbox.park(attempt, "go", None)


@pytest.mark.parametrize("call", [lambda: receive("go"), lambda: park_until("go"), lambda: park_for(1)])
def test_outside_a_worker_nothing_can_be_waited_for(call: Callable[[], Any]) -> None:
    with pytest.raises(TaskFault, match="works only in a task of a horsies worker"):
        call()


def test_outside_a_worker_a_checkpoint_does_nothing() -> None:
    checkpoint({"part": 1})
    assert last_checkpoint(default=0) == 0


def parking(**policy: Any) -> ParkingTask:
    return ParkingTask(attempt=3, max_retries=1, policy=policy, good_until=None, now=NOON, queue="q")


def test_the_longest_interval_before_a_retry_includes_the_jitter() -> None:
    assert _find_interval(parking(intervals=[10, 20, 30], jitter=False)) == 30
    assert _find_interval(parking(intervals=[10], jitter=True)) == 12.5
    exponential = parking(intervals=[5], backoff_strategy="exponential", jitter=False)
    assert _find_interval(exponential) == 20


def test_an_exponential_policy_without_a_limit_ends_the_parking_in_time() -> None:
    late = ParkingTask(
        attempt=2_000,
        max_retries=1,
        policy={"intervals": [5], "backoff_strategy": "exponential"},
        good_until=None,
        now=NOON,
        queue="q",
    )
    with pytest.raises(TaskFault, match="Set max_delay_seconds"):
        _find_interval(late)
