"""A real worker fills in the address of a callback, and its token is nowhere but with the outside party."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.client.callbacks import Verdict, submit_callback
from airflow_horsies.core.callback import CALLBACK_PATH, CALLBACK_URL, CallbackState, CallbackTerms, digest_token
from airflow_horsies.exceptions import CallbacksUnsupported
from airflow_horsies.models import RetryPolicy, TaskInstanceKey, TaskSpec, TaskState
from tests.integration.test_callbacks import answer, state_of
from tests.integration.test_changes import tried
from tests.integration.worker_rig import MakeRig, Rig

# That of all tests: a hook keeps the address that it has found.
BASE_URL = "http://airflow.test:8080"


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("callbacks_of_worker", app="callback_tasks:app")


def send(rig: Rig, name: str, place: Path, **given: Any) -> Any:
    spec = TaskSpec(task_name=name, kwargs={"url": CALLBACK_URL, "place": str(place)}, **given)
    instance = TaskInstanceKey(dag_id="d", run_id=f"manual__{place.name}", task_id="t")
    scope = rig.hook.client.scope
    return rig.hook.client.drive(submit_callback(scope, spec, CallbackTerms(), instance, tried()))


def token_at(rig: Rig, place: Path) -> str:
    rig.until(place.exists, "the address")
    base, _, token = place.read_text().rpartition("/")
    assert base == f"{BASE_URL}{CALLBACK_PATH}"
    return token


def require_nowhere(rig: Rig, token: str) -> None:
    """In no table, and in no log of the worker; only its digest is."""
    with psycopg.connect(**rig.hook.settings.database.connect_args) as connection:
        tables = connection.execute(
            "SELECT quote_ident(table_schema) || '.' || quote_ident(table_name) FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            # Columns of bytes are shown in hexadecimal.
            found = connection.execute(
                f"SELECT count(*) FROM {table} AS t WHERE to_jsonb(t)::text LIKE ANY(%s)".encode(),
                ([f"%{token[4:]}%", f"%{token[4:].encode().hex()}%"],),
            ).fetchone()
            assert found == (0,), table
        digests = connection.execute(
            "SELECT count(*) FROM airflow_horsies.callback_tokens WHERE digest = %s", (digest_token(token),)
        ).fetchone()
        assert digests == (1,)
    assert token not in rig.log.read_text()


def test_the_token_is_only_with_the_outside_party(rig: Rig, tmp_path: Path) -> None:
    sent = send(rig, "ask", tmp_path / "plain")
    token = token_at(rig, tmp_path / "plain")
    require_nowhere(rig, token)
    task = rig.wait(sent.sent.task_id)
    assert task.state is TaskState.COMPLETED, task
    masked = f"{BASE_URL}{CALLBACK_PATH}/hcb_***"
    assert task.result is not None
    assert task.result.ok == {masked: [masked]}
    rig.until(lambda: len(rig.texts(sent.sent.task_id)) >= 3, "the lines")
    assert all(masked in text for text in rig.texts(sent.sent.task_id))
    require_nowhere(rig, token)
    assert answer(rig.hook, token, '"yes"') is Verdict.ACCEPTED
    assert state_of(rig.hook, sent) is CallbackState.COMPLETED
    require_nowhere(rig, token)


def test_an_error_does_not_tell_the_token_either(rig: Rig, tmp_path: Path) -> None:
    sent = send(rig, "ask_and_fail", tmp_path / "failing")
    token = token_at(rig, tmp_path / "failing")
    task = rig.wait(sent.sent.task_id)
    assert (task.state, task.error_code) == (TaskState.FAILED, "UNHANDLED_EXCEPTION")
    assert task.result is not None
    assert task.result.error is not None
    assert "cannot ask at" in str(task.result.error.message)
    require_nowhere(rig, token)


def test_an_argument_of_another_type_does_not_tell_it(rig: Rig, tmp_path: Path) -> None:
    sent = send(rig, "misunderstand", tmp_path / "other")
    task = rig.wait(sent.sent.task_id)
    assert task.error_code == "BAD_INPUT"
    assert "hcb_***" in str(task.result)


def test_each_attempt_has_a_token_of_its_own_and_all_are_valid(rig: Rig, tmp_path: Path) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
    sent = send(rig, "ask_and_die", tmp_path / "dying", retry_policy=policy)
    first, second = token_at(rig, tmp_path / "dying"), token_at(rig, tmp_path / "dying.again")
    assert first != second
    assert rig.wait(sent.sent.task_id).state is TaskState.COMPLETED
    assert answer(rig.hook, first, "1") is Verdict.ACCEPTED
    assert answer(rig.hook, second, "1") is Verdict.REPEATED


def test_a_worker_that_cannot_fill_it_in_is_found_before_anything_is_sent(rig: Rig, tmp_path: Path) -> None:
    with psycopg.connect(**rig.hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE airflow_horsies.workers SET features = '{chunks}'")
        connection.execute("UPDATE horsies_worker_states SET worker_started_at = now() - interval '1 hour'")
        connection.execute("UPDATE airflow_horsies.migrations SET applied_at = now() - interval '1 hour'")
    before = _count(rig)
    with pytest.raises(CallbacksUnsupported, match="cannot fill in the address of a callback"):
        send(rig, "ask", tmp_path / "refused")
    assert _count(rig) == before


def _count(rig: Rig) -> int:
    return len(rig.hook.list_tasks(limit=100).tasks)
