"""Random walks of one task instance: whatever Airflow, workers and users do, nothing is lost and nothing doubled.

The walk keeps its own idea of what must be there, and the database is asked after each step.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_horsies.client.ledger import migrate_ledger, read_ledger_version
from airflow_horsies.exceptions import StaleSubmission
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    LIVE_STATES,
    AirflowTry,
    CancelOutcome,
    SubmitOutcome,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
    TaskView,
)
from tests.integration.conftest import MakeHook
from tests.integration.releases import keeps_history
from tests.integration.test_submit import end_task

WALKS = int(os.environ.get("WALKS", "8"))
STEPS = 30
AT_ONCE = 3
HEARD_SECONDS = 60.0
ENDS = st.sampled_from([TaskState.COMPLETED, TaskState.FAILED, TaskState.EXPIRED])
DEATHS = ("before the commit", "after the commit")


@dataclass
class Sent:
    """A submission, as it must be."""

    task_id: str
    life: int
    round: int
    state: TaskState = TaskState.PENDING

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES


class CutConnection:
    """Breaks once, when the transaction ends."""

    def __init__(self, connection: Any, when: str) -> None:
        self._connection = connection
        self._when = when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        if self._when == "after the commit":
            self._connection.commit()
        self._connection.close()
        raise psycopg.OperationalError("the connection is lost")


class Waiter:
    """Somebody who waits for a task, in a thread."""

    def __init__(self, hook: HorsiesHook, task_id: str) -> None:
        self.task_id = task_id
        self.seen: list[TaskView] = []
        self._hook = hook
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        with self._hook:
            self.seen += self._hook.wait([self.task_id], timeout_seconds=HEARD_SECONDS)

    def require_heard(self, state: TaskState) -> None:
        self._thread.join(HEARD_SECONDS)
        assert [task.state for task in self.seen] == [state], f"nobody told the waiter of {self.task_id}"


class Walk(RuleBasedStateMachine):
    make_hook: Callable[[], HorsiesHook]
    release: str

    @initialize()
    def begin(self) -> None:
        self.hook = self.make_hook()
        self.connection = psycopg.connect(**self.hook.settings.database.connect_args, autocommit=True)
        self.key = TaskInstanceKey(dag_id="walk", run_id=uuid.uuid4().hex, task_id="load")
        self.spec = TaskSpec(task_name="add", kwargs={"a": 1, "b": 2})
        self.life = self.try_number = 1
        self.sent: list[Sent] = []
        self.waiters: list[Waiter] = []

    # -- what Airflow does ------------------------------------------------------------------------------------------

    @rule()
    def submit(self) -> None:
        self._expect(self._submit(self.hook))

    @rule(when=st.sampled_from(DEATHS))
    def submit_while_the_connection_breaks(self, when: str) -> None:
        with self.make_hook() as hook:
            read_ledger_version(hook.client)
            session = hook.client.session
            session._connection = CutConnection(session._connection, when)
            self._expect(self._submit(hook))

    @rule()
    def submit_at_once(self) -> None:
        """A zombie of the same try, or two schedulers that both think it is theirs."""
        hooks = [self.make_hook() for _ in range(AT_ONCE)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(self._submit, hooks))
        for hook in hooks:
            hook.close()
        assert len({result.task_id for result in results}) == 1
        results.sort(key=lambda result: result.outcome is not SubmitOutcome.SENT)
        for result in results:
            self._expect(result)

    @rule()
    def retry(self) -> None:
        self.try_number += 1

    @rule()
    def clear(self) -> None:
        self.try_number += 1
        self.life = self.try_number

    @precondition(lambda self: self.sent and self.sent[-1].life == self.life and self.life > 1)
    @rule()
    def try_of_an_earlier_life_wakes_up(self) -> None:
        with pytest.raises(StaleSubmission):
            self.hook.submit_task(self.spec, self.key, AirflowTry(clear_number=self.life - 2, try_number=self.life - 1))

    # -- what workers do --------------------------------------------------------------------------------------------

    @precondition(lambda self: self._live() and self._live().state is TaskState.PENDING)
    @rule()
    def claim(self) -> None:
        self._set("UPDATE horsies_tasks SET status = 'CLAIMED', claimed = TRUE, claimed_at = now() WHERE id = %s")
        self._live().state = TaskState.CLAIMED

    @precondition(lambda self: self._live() and self._live().state is TaskState.CLAIMED)
    @rule()
    def start(self) -> None:
        self._set("UPDATE horsies_tasks SET status = 'RUNNING', started_at = now() WHERE id = %s")
        self._live().state = TaskState.RUNNING

    @precondition(lambda self: self._live() and self._live().state is not TaskState.PENDING)
    @rule()
    def crash_or_retry(self) -> None:
        """The worker dies or the attempt fails, and horsies has the task run again."""
        self._set(
            "UPDATE horsies_tasks SET status = 'PENDING', claimed = FALSE, claimed_at = NULL, started_at = NULL,"
            " retry_count = retry_count + 1 WHERE id = %s"
        )
        self._live().state = TaskState.PENDING

    @precondition(lambda self: self._live())
    @rule(state=ENDS)
    def end(self, state: TaskState) -> None:
        live = self._live()
        end_task(self.hook, live.task_id, state, self.release)
        live.state = state

    # -- what users do ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Any of them, also one that ended long ago."""
        one = data.draw(st.sampled_from(self.sent))
        expected = CancelOutcome.ALREADY_FINISHED
        if one.is_live:
            expected = CancelOutcome.CANCELLED
        elif one.state is TaskState.CANCELLED:
            expected = CancelOutcome.ALREADY_CANCELLED
        assert self.hook.cancel_task(one.task_id) is expected
        if one.is_live:
            one.state = TaskState.CANCELLED

    @precondition(lambda self: self.sent and len(self.waiters) < AT_ONCE)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        self.waiters.append(Waiter(self.make_hook(), data.draw(st.sampled_from(self.sent)).task_id))

    # -- what must be so --------------------------------------------------------------------------------------------

    @invariant()
    def everything_sent_is_there_once(self) -> None:
        if not hasattr(self, "hook"):
            return
        recorded = [(each.horsies_task_id, each.life, each.round) for each in self.hook.read_submissions(self.key)]
        assert recorded == [(each.task_id, self._number(each.life), each.round) for each in self.sent]
        assert sum(each.is_live for each in self.sent) <= 1
        for each in self.sent:
            assert self._places(each.task_id) == 1
        assert self.hook.read_states(each.task_id for each in self.sent) == {
            each.task_id: each.state for each in self.sent
        }

    def teardown(self) -> None:
        if not hasattr(self, "hook"):
            return
        # Whoever waits still must hear of the end, though nobody of this walk waits for it any more.
        if live := self._live():
            end_task(self.hook, live.task_id, TaskState.COMPLETED, self.release)
            live.state = TaskState.COMPLETED
        states = {each.task_id: each.state for each in self.sent}
        for waiter in self.waiters:
            waiter.require_heard(states[waiter.task_id])
        self.hook.close()
        self.connection.close()

    # ---------------------------------------------------------------------------------------------------------------

    def _submit(self, hook: HorsiesHook) -> Any:
        return hook.submit_task(self.spec, self.key, AirflowTry(clear_number=self.life - 1, try_number=self.try_number))

    def _number(self, life: int) -> int:
        """A life in which nothing is sent is not counted."""
        return len({each.life for each in self.sent if each.life < life}) + 1

    def _expect(self, result: Any) -> None:
        """The table of the rules of submitting."""
        last = self.sent[-1] if self.sent else None
        if last is None or last.life < self.life:
            if last and last.is_live:
                last.state = TaskState.CANCELLED
            expected = (SubmitOutcome.SENT, 1)
        elif last.is_live:
            expected = (SubmitOutcome.REATTACHED, last.round)
        elif last.state is TaskState.COMPLETED:
            expected = (SubmitOutcome.ADOPTED, last.round)
        else:
            expected = (SubmitOutcome.SENT, last.round + 1)
        # One whose answer was lost in the commit finds what it sent itself.
        outcome, round_ = expected
        if result.outcome is SubmitOutcome.REATTACHED and outcome is SubmitOutcome.SENT:
            assert self.hook.read_submissions(self.key)[-1].horsies_task_id == result.task_id
        else:
            assert result.outcome is outcome
        assert (result.life, result.round) == (self._number(self.life), round_)
        if outcome is SubmitOutcome.SENT:
            self.sent.append(Sent(result.task_id, self.life, round_))
        else:
            assert last is not None
            assert result.task_id == last.task_id

    def _live(self) -> Any:
        return self.sent[-1] if self.sent and self.sent[-1].is_live else None

    def _set(self, statement: str) -> None:
        assert self.connection.execute(statement, (self._live().task_id,)).rowcount == 1

    def _places(self, task_id: str) -> int:
        """In how many tables the task is."""
        queries = ["SELECT count(*) FROM horsies_tasks WHERE id = %s"]
        if keeps_history(self.release):
            queries.append("SELECT count(*) FROM horsies_task_history WHERE task_id = %s")
        return sum((self.connection.execute(query, (task_id,)).fetchone() or (0,))[0] for query in queries)


def test_random_walks_lose_and_double_nothing(make_hook: MakeHook, database: str, release: str) -> None:
    migrate_ledger(make_hook().client)

    class WalkHere(Walk):
        pass

    WalkHere.make_hook = staticmethod(make_hook)  # type: ignore[assignment]
    WalkHere.release = release
    run_state_machine_as_test(
        WalkHere,
        settings=settings(
            max_examples=WALKS,
            stateful_step_count=STEPS,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
