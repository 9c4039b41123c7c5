"""A submission is killed with SIGKILL before and after each of its statements, then done again: it is there once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.db.statement import sql_text
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import PACKAGE, migrations
from airflow_horsies.models import AirflowTry, SubmitOutcome, SubmitResult, TaskInstanceKey, TaskSpec, TaskState
from tests.chaos.points import send_commit
from tests.integration.conftest import MakeHook
from tests.integration.releases import MOVED, keeps_history
from tests.integration.test_submit import end_task, rows

COMMIT = "COMMIT"
LOCK = sql_text(PACKAGE, "lock_task_instance")
SENT, REATTACHED, ADOPTED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED, SubmitOutcome.ADOPTED
Prepare = Callable[[HorsiesHook, TaskInstanceKey, str], None]
Submit = Callable[[HorsiesHook], list[SubmitResult]]
Everything = dict[str, list[tuple[object, ...]]]


@dataclass(frozen=True)
class Moment:
    """When the submitting process dies: ``before``, ``during`` or ``after`` one of the things it asks of Postgres."""

    step: int
    side: str
    what: str

    def __str__(self) -> str:
        return f"{self.side} step {self.step}: {self.what}"


class WatchedConnection:
    """Writes down what is asked of a connection, or dies at a given moment of it."""

    def __init__(self, connection: Any, death: Moment | None = None) -> None:
        self._connection = connection
        self._death = death
        self.steps: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> WatchedCursor:
        return WatchedCursor(self, self._connection.cursor())

    def commit(self) -> None:
        with self.step(COMMIT):
            if self._is_now("during"):
                send_commit(self._connection)
                die()
            self._connection.commit()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.steps.append(what)
        if self._is_now("before"):
            die()
        yield
        if self._is_now("after"):
            die()

    def _is_now(self, side: str) -> bool:
        return self._death is not None and (self._death.step, self._death.side) == (len(self.steps) - 1, side)


class WatchedCursor:
    def __init__(self, watched: WatchedConnection, cursor: Any) -> None:
        self._watched = watched
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, statement: str, params: Any) -> None:
        with self._watched.step(statement):
            self._cursor.execute(statement, params)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch(hook: HorsiesHook, death: Moment | None = None) -> WatchedConnection:
    watched = WatchedConnection(hook.get_conn(), death)
    hook.client.session._connection = watched
    return watched


def moments_of(submit: Submit, hook: HorsiesHook) -> list[Moment]:
    """Every moment of a submission, found by doing one."""
    watched = watch(hook)
    submit(hook)
    found = []
    for number, step in enumerate(watched.steps):
        for side in ("before", "during", "after") if step == COMMIT else ("before", "after"):
            found.append(Moment(number, side, step))
    return found


def kill_at(death: Moment, submit: Submit, make_hook: MakeHook) -> None:
    child = os.fork()
    if child == 0:
        try:
            hook = make_hook()
            watch(hook, death)
            submit(hook)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"the child outlived {death}"


def everything(hook: HorsiesHook, release: str) -> Everything:
    """Every row a submission could have written or changed, whole."""
    tables = ["horsies_tasks", "airflow_horsies.submissions", "airflow_horsies.signals"]
    if keeps_history(release):
        tables.append("horsies_task_history")
    # Which try asked last is told by a later one that sends nothing.
    statement = "SELECT (to_jsonb(t) - 'seen_try')::text FROM {} AS t ORDER BY 1"
    return {table: rows(hook, statement.format(table)) for table in tables}


def count(found: Everything, *tables: str) -> int:
    return sum(len(found.get(table, [])) for table in tables)


# -- the submissions -----------------------------------------------------------------------------------------------


def numbered(count: int, **more: Any) -> list[TaskSpec]:
    return [TaskSpec(task_name="add", kwargs={"a": number, "b": 0}, **more) for number in range(count)]


def nothing(hook: HorsiesHook, instance: TaskInstanceKey, release: str) -> None:
    """The first submission of a task instance."""


def sent(*states: TaskState) -> Prepare:
    """Life 1 has sent as many tasks, and they are in these states."""

    def prepare(hook: HorsiesHook, instance: TaskInstanceKey, release: str) -> None:
        tasks = hook.submit_tasks(numbered(len(states)), instance, AirflowTry(try_number=1))
        for task, state in zip(tasks, states, strict=True):
            if state is TaskState.RUNNING:
                with psycopg.connect(**hook.settings.database.connect_args) as connection:
                    query = "UPDATE horsies_tasks SET status = 'RUNNING', started_at = now() WHERE id::text = %s"
                    connection.execute(query, (task.task_id,))
            elif state is not TaskState.PENDING:
                end_task(hook, task.task_id, state, release)

    return prepare


@dataclass(frozen=True)
class Case:
    """A submission and what it comes to: per position the round, and whether it is sent, reattached or adopted."""

    prepare: Prepare
    specs: Sequence[TaskSpec]
    outcomes: Sequence[tuple[int, SubmitOutcome]]
    life: int = 1
    cancelled: int = 0
    told_to_stop: int = 0
    with_keys: bool = False

    def submit(self, instance: TaskInstanceKey, try_number: int) -> Submit:
        specs = [
            replace(spec, idempotency_key=f"{instance.run_id}/{position}" if self.with_keys else None)
            for position, spec in enumerate(self.specs)
        ]
        return lambda hook: hook.submit_tasks(
            specs, instance, AirflowTry(clear_number=self.life - 1, try_number=try_number)
        )


CASES = {
    "first": Case(nothing, numbered(1), [(1, SENT)]),
    "reattaching": Case(sent(TaskState.PENDING), numbered(1), [(1, REATTACHED)]),
    "adopting": Case(sent(TaskState.COMPLETED), numbered(1), [(1, ADOPTED)]),
    "next round": Case(sent(TaskState.FAILED), numbered(1), [(2, SENT)]),
    "clear": Case(sent(TaskState.PENDING), numbered(1), [(1, SENT)], life=2, cancelled=1),
    "clear while running": Case(sent(TaskState.RUNNING), numbered(1), [(1, SENT)], life=2, cancelled=1, told_to_stop=1),
    "batch": Case(nothing, numbered(3), [(1, SENT)] * 3),
    "batch of all kinds": Case(
        sent(TaskState.COMPLETED, TaskState.EXPIRED, TaskState.PENDING),
        numbered(4),
        [(1, ADOPTED), (2, SENT), (1, REATTACHED), (1, SENT)],
    ),
    "clear of a batch": Case(
        sent(TaskState.COMPLETED, TaskState.RUNNING, TaskState.PENDING),
        numbered(2),
        [(1, SENT), (1, SENT)],
        life=2,
        cancelled=2,
        told_to_stop=1,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_killed_submission_left_all_or_nothing_and_is_done_once(
    hook: HorsiesHook, make_hook: MakeHook, release: str, case: Case
) -> None:
    kill_at_every_moment(case, hook, make_hook, release)


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_killed_submission_with_an_idempotency_key_is_done_once(
    hook: HorsiesHook, make_hook: MakeHook, release: str
) -> None:
    kill_at_every_moment(Case(nothing, numbered(2), [(1, SENT)] * 2, with_keys=True), hook, make_hook, release)


def kill_at_every_moment(case: Case, hook: HorsiesHook, make_hook: MakeHook, release: str) -> None:
    migrate_ledger(hook.client)
    rehearsed = _instance("rehearsal")
    case.prepare(hook, rehearsed, release)
    moments = moments_of(case.submit(rehearsed, 2), make_hook())
    # What comes before only looks at the database, and is the same in each case.
    begin = min(moment.step for moment in moments if moment.what == LOCK)
    commit = max(moment.step for moment in moments if moment.what == COMMIT)
    moments = [moment for moment in moments if moment.step >= begin]
    print(f"{len(moments)} kills in {commit - begin} statements and a commit")
    for number, death in enumerate(moments):
        instance = _instance(f"run-{number}")
        case.prepare(hook, instance, release)
        before = everything(hook, release)
        kill_at(death, case.submit(instance, 2), make_hook)
        killed = everything(hook, release)
        results = case.submit(instance, 3)(hook)
        after = everything(hook, release)

        is_known = death.side != "during"
        if is_known and death.step == commit and death.side == "after":
            assert killed == after, f"killed {death}, and doing it again changed something"
            assert {each.outcome for each in results} <= {REATTACHED, ADOPTED}
        elif is_known:
            assert killed == before, f"killed {death}, and it left something behind"
            assert [each.outcome for each in results] == [outcome for _, outcome in case.outcomes], death
        assert [(each.life, each.round) for each in results] == [(case.life, each) for each, _ in case.outcomes]
        _assert_sent_once(hook, case, instance, results, before, after, death)


def _assert_sent_once(
    hook: HorsiesHook,
    case: Case,
    instance: TaskInstanceKey,
    results: Sequence[SubmitResult],
    before: Everything,
    after: Everything,
    death: Moment,
) -> None:
    new = sum(outcome is SENT for _, outcome in case.outcomes)
    tasks = ("horsies_tasks", "horsies_task_history")
    assert count(after, *tasks) - count(before, *tasks) == new, death
    assert count(after, "airflow_horsies.submissions") - count(before, "airflow_horsies.submissions") == new, death
    assert count(after, "airflow_horsies.signals") - count(before, "airflow_horsies.signals") == case.told_to_stop

    submissions = hook.read_submissions(instance)
    places = [(each.position, each.life, each.round) for each in submissions]
    assert len({each.horsies_task_id for each in submissions}) == len(set(places)) == len(places), death
    recorded = dict(zip(places, (each.horsies_task_id for each in submissions), strict=True))
    assert [recorded[each.position, each.life, each.round] for each in results] == [each.task_id for each in results]
    states = hook.read_states(each.horsies_task_id for each in submissions)
    assert len(states) == len(submissions)
    earlier = [states[each.horsies_task_id] for each in submissions if each.life < case.life]
    assert earlier.count(TaskState.CANCELLED) == case.cancelled
    assert all(state.is_terminal for state in earlier)


def test_first_submission_to_a_new_database_killed_while_it_makes_the_ledger_is_done_once(
    hook: HorsiesHook, make_hook: MakeHook, release: str
) -> None:
    def submit(run_id: str) -> Submit:
        return lambda by: by.submit_tasks(numbered(1), _instance(run_id), AirflowTry(try_number=1))

    moments = moments_of(submit("rehearsal"), make_hook())
    assert len(moments) > 30, moments
    for number, death in enumerate(moments):
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute("DROP SCHEMA IF EXISTS airflow_horsies CASCADE")
        already = rows(hook, "SELECT count(*) FROM horsies_tasks")
        kill_at(death, submit(f"run-{number}"), make_hook)
        (result,) = submit(f"run-{number}")(make_hook())
        (submission,) = hook.read_submissions(_instance(f"run-{number}"))
        assert submission.horsies_task_id == result.task_id
        assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(already[0][0] + 1,)], death
        assert rows(hook, "SELECT version FROM airflow_horsies.migrations ORDER BY version") == [
            (migration.version,) for migration in migrations()
        ]


def _instance(run_id: str) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="killed", run_id=run_id, task_id="load")
