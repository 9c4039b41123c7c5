"""Callbacks on a real database: opened once per life, answered once, and void when nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.client.callbacks import (
    Told,
    Verdict,
    answer_callback,
    extend_callback,
    release_callback,
    settle_callback,
    submit_callback,
)
from airflow_horsies.client.ledger import migrate_ledger, prune_ledger
from airflow_horsies.client.pages import PageClient
from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.callback import (
    CALLBACK_URL,
    MAX_TOKENS,
    CallbackState,
    CallbackTerms,
    SubmittedCallback,
    digest_token,
    mint_token,
)
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.exceptions import (
    CallbackExpired,
    CallbackFailed,
    CallbacksDisabled,
    CallbackVoid,
    InvalidTask,
    StaleSubmission,
    TaskFailed,
)
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import SubmitOutcome, TaskSpec, TaskState
from airflow_horsies.operators import HorsiesCallbackOperator, releasing
from airflow_horsies.operators.outcomes import TaskTimedOut
from airflow_horsies.triggers import base as trigger_base
from tests.integration.releases import MOVED
from tests.integration.test_changes import INSTANCE, OTHER, tried
from tests.integration.test_operator_changes import context
from tests.integration.test_submit import end_task, rows
from tests.integration.test_triggers import CONN_ID, event_of, firing, run, store_connection

pytestmark = pytest.mark.parametrize("release", [MOVED], indirect=True)

SPEC = TaskSpec(task_name="echo", kwargs={"value": f"Answer at {CALLBACK_URL}, please", "order": 7})
TERMS = CallbackTerms(expires_after=timedelta(minutes=5))
BASE_URL = "https://airflow.example.com/team"
COMPLETED, FAILED = CallbackState.COMPLETED, CallbackState.FAILED


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch, postgres: EmbeddedPostgres, database: str) -> None:
    store_connection(monkeypatch, postgres, database)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", BASE_URL)
    monkeypatch.setenv("AIRFLOW__HORSIES__CALLBACKS", "True")


def submit(
    hook: HorsiesHook,
    attempt: Any = None,
    *,
    spec: TaskSpec = SPEC,
    terms: CallbackTerms = TERMS,
    instance: Any = INSTANCE,
) -> SubmittedCallback:
    return hook.client.drive(submit_callback(hook.client.scope, spec, terms, instance, attempt or tried()))


def task_of(submitted: SubmittedCallback) -> str:
    assert submitted.sent is not None
    return submitted.sent.task_id


def mint(hook: HorsiesHook, callback_id: str, task_id: str) -> str | None:
    """What a worker does when it starts the task."""
    token, client = mint_token(), WorkerClient(hook.settings.database)
    try:
        base_url = client.mint_callback_token(callback_id, task_id, digest_token(token))
    finally:
        client.close()
    assert base_url in (None, BASE_URL)
    return token if base_url else None


def token_of(hook: HorsiesHook, submitted: SubmittedCallback) -> str:
    token = mint(hook, submitted.callback.id, task_of(submitted))
    assert token is not None
    return token


def answer(hook: HorsiesHook, token: str, body: str = '{"ok": 1}', state: CallbackState = COMPLETED) -> Verdict:
    with PageClient(hook.settings, seconds=10) as client:
        return answer_callback(client, token, state, body, answered_from="10.0.0.1").verdict


def beat(hook: HorsiesHook, token: str) -> Told:
    with PageClient(hook.settings, seconds=10) as client:
        return extend_callback(client, token)


def state_of(hook: HorsiesHook, submitted: SubmittedCallback) -> CallbackState:
    callback = hook.client.drive(settle_callback(submitted.callback.id))
    assert callback is not None
    return callback.state


def let_expire(hook: HorsiesHook) -> None:
    """Time passes."""
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE airflow_horsies.callbacks SET expires_at = clock_timestamp() WHERE outcome IS NULL")


# -- once per life -------------------------------------------------------------------------------------------------


def test_a_retry_keeps_the_callback_and_reattaches_to_the_task(hook: HorsiesHook) -> None:
    first, second = submit(hook), submit(hook, tried(2))
    assert second.callback.id == first.callback.id
    assert second.sent is not None
    assert (second.sent.task_id, second.sent.outcome) == (task_of(first), SubmitOutcome.REATTACHED)
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.callbacks") == [(1,)]


def test_the_address_of_an_attempt_that_failed_stays_valid(hook: HorsiesHook, release: str) -> None:
    first = submit(hook)
    token = token_of(hook, first)
    end_task(hook, task_of(first), TaskState.FAILED, release)
    second = submit(hook, tried(2))
    assert second.callback.id == first.callback.id
    assert task_of(second) != task_of(first)
    assert mint(hook, first.callback.id, task_of(first)) is None
    other = token_of(hook, second)
    assert answer(hook, token) is Verdict.ACCEPTED
    assert answer(hook, other) is Verdict.REPEATED
    assert answer(hook, other, "2") is Verdict.REFUSED


def test_an_answer_is_adopted_and_nothing_is_sent_again(hook: HorsiesHook, release: str) -> None:
    first = submit(hook)
    assert answer(hook, token_of(hook, first)) is Verdict.ACCEPTED
    end_task(hook, task_of(first), TaskState.FAILED, release)
    again = submit(hook, tried(2))
    assert (again.sent, again.callback.id, again.callback.state) == (None, first.callback.id, COMPLETED)


def test_after_a_reported_failure_a_retry_asks_again(hook: HorsiesHook, release: str) -> None:
    first = submit(hook)
    token = token_of(hook, first)
    end_task(hook, task_of(first), TaskState.COMPLETED, release)
    assert answer(hook, token, '"no"', FAILED) is Verdict.ACCEPTED
    second = submit(hook, tried(2))
    assert second.callback.id != first.callback.id
    assert second.sent is not None
    assert (second.sent.outcome, second.callback.number) == (SubmitOutcome.SENT, 2)
    assert answer(hook, token, '"yes"') is Verdict.REFUSED


def test_after_the_expiry_a_retry_asks_again(hook: HorsiesHook) -> None:
    first = submit(hook)
    token = token_of(hook, first)
    let_expire(hook)
    second = submit(hook, tried(2))
    assert second.callback.id != first.callback.id
    assert state_of(hook, first) is CallbackState.EXPIRED
    assert answer(hook, token) is Verdict.OVER
    assert hook.read_task(task_of(first)).state is TaskState.CANCELLED


def test_a_clear_makes_the_callback_void(hook: HorsiesHook) -> None:
    first = submit(hook)
    token = token_of(hook, first)
    second = submit(hook, tried(2, clear_number=1, max_tries=3))
    assert second.callback.id != first.callback.id
    assert state_of(hook, first) is CallbackState.VOID
    assert answer(hook, token) is Verdict.OVER
    assert beat(hook, token).verdict is Verdict.OVER
    assert hook.read_task(task_of(first)).state is TaskState.CANCELLED
    assert answer(hook, token_of(hook, second)) is Verdict.ACCEPTED
    with pytest.raises(StaleSubmission):
        submit(hook)


def test_edited_arguments_go_on_with_the_callback(hook: HorsiesHook) -> None:
    first = submit(hook)
    token = token_of(hook, first)
    edited = replace(SPEC, kwargs={**SPEC.kwargs, "order": 8})
    second = submit(hook, tried(2), spec=edited)
    assert second.callback.id == first.callback.id
    assert task_of(second) != task_of(first)
    assert answer(hook, token) is Verdict.ACCEPTED


def test_of_many_submitters_one_opens_the_callback(make_hook: Any, database: str) -> None:
    hooks = [make_hook(database) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        submitted = list(pool.map(submit, hooks))
    assert len({each.callback.id for each in submitted}) == 1
    assert len({task_of(each) for each in submitted}) == 1


def test_a_later_try_is_not_disturbed_by_an_earlier_one_that_gives_up(hook: HorsiesHook) -> None:
    first = submit(hook)
    submit(hook, tried(2))
    hook.client.drive(
        release_callback(hook.client.scope, [task_of(first)], INSTANCE, callback_id=first.callback.id, try_number=1)
    )
    assert state_of(hook, first) is CallbackState.OPEN
    hook.client.drive(
        release_callback(hook.client.scope, [task_of(first)], INSTANCE, callback_id=first.callback.id, try_number=2)
    )
    assert state_of(hook, first) is CallbackState.VOID


# -- tokens --------------------------------------------------------------------------------------------------------


def test_only_the_task_that_hands_out_the_address_gets_a_token(hook: HorsiesHook) -> None:
    one, other = submit(hook), submit(hook, instance=OTHER)
    assert mint(hook, one.callback.id, task_of(other)) is None
    assert mint(hook, one.callback.id, task_of(one)) is not None


def test_tokens_of_a_callback_are_bounded(hook: HorsiesHook) -> None:
    submitted = submit(hook)
    tokens = [token_of(hook, submitted) for _ in range(MAX_TOKENS + 3)]
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.callback_tokens") == [(MAX_TOKENS,)]
    assert answer(hook, tokens[2]) is Verdict.UNKNOWN
    assert answer(hook, tokens[-1]) is Verdict.ACCEPTED


def test_no_token_is_given_for_a_callback_that_is_over(hook: HorsiesHook) -> None:
    answered, other = submit(hook), submit(hook, instance=OTHER)
    answer(hook, token_of(hook, answered))
    assert mint(hook, answered.callback.id, task_of(answered)) is None
    let_expire(hook)
    assert mint(hook, other.callback.id, task_of(other)) is None


def test_arguments_must_contain_the_address(hook: HorsiesHook) -> None:
    for kwargs in ({}, {"a": 1}, {"urls": [CALLBACK_URL]}):
        with pytest.raises(InvalidTask, match="contain no CALLBACK_URL"):
            submit(hook, spec=replace(SPEC, kwargs=kwargs))


# -- answers -------------------------------------------------------------------------------------------------------


def test_of_two_answers_at_once_one_counts(hook: HorsiesHook) -> None:
    migrate_ledger(hook.client)
    for _ in range(5):
        with psycopg.connect(**hook.settings.database.connect_args) as connection:
            connection.execute("DELETE FROM airflow_horsies.callbacks")
            connection.execute("DELETE FROM airflow_horsies.submissions")
        submitted = submit(hook, tried(run_key=f"run {time.monotonic_ns()}"))
        token = token_of(hook, submitted)
        with ThreadPoolExecutor(8) as pool:
            verdicts = list(pool.map(partial(answer, hook, token), map(str, range(8))))
        assert sorted(verdicts, key=lambda each: each.value) == [Verdict.ACCEPTED] + [Verdict.REFUSED] * 7
        ((body,),) = rows(hook, "SELECT body FROM airflow_horsies.callbacks")
        assert verdicts[int(str(body))] is Verdict.ACCEPTED


def test_the_same_value_is_the_same_answer_however_it_is_written(hook: HorsiesHook) -> None:
    token = token_of(hook, submit(hook))
    assert answer(hook, token, '{"a": 1, "b": "é"}') is Verdict.ACCEPTED
    assert answer(hook, token, '{"b":"\\u00e9","a":1}') is Verdict.REPEATED
    assert answer(hook, token, '{"a": 1, "b": "é"}', FAILED) is Verdict.REFUSED
    assert beat(hook, token).verdict is Verdict.REFUSED


def test_heartbeats_extend_up_to_the_maximum(hook: HorsiesHook) -> None:
    terms = CallbackTerms(expires_after=timedelta(minutes=5), max_duration=timedelta(minutes=8))
    submitted = submit(hook, terms=terms)
    token, opened = token_of(hook, submitted), submitted.callback.expires_at
    first = beat(hook, token)
    assert first.verdict is Verdict.ACCEPTED
    assert first.expires_at is not None
    assert opened is not None
    assert opened < first.expires_at < opened + timedelta(minutes=3)
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE airflow_horsies.callbacks SET last_expires_at = now() + interval '6 minutes'")
        connection.execute("UPDATE airflow_horsies.callbacks SET extended_by_seconds = 3600")
    last = beat(hook, token).expires_at
    assert rows(hook, "SELECT last_expires_at, heartbeats FROM airflow_horsies.callbacks") == [(last, 2)]
    # Never less than before.
    assert beat(hook, token).expires_at == last
    let_expire(hook)
    assert beat(hook, token).verdict is Verdict.OVER


def test_an_answer_and_the_expiry_never_both_count(hook: HorsiesHook) -> None:
    for number in range(5):
        submitted = submit(hook, instance=replace(INSTANCE, run_id=f"manual__{number}"))
        token = token_of(hook, submitted)
        with ThreadPoolExecutor(5) as pool:
            verdicts = [pool.submit(answer, hook, token) for _ in range(3)]
            let_expire(hook)
            state = state_of(hook, submitted)
            told = {each.result() for each in verdicts}
        assert state in (COMPLETED, CallbackState.EXPIRED)
        assert state_of(hook, submitted) is state
        assert (Verdict.ACCEPTED in told) == (state is COMPLETED)


def test_old_callbacks_are_pruned_with_their_tokens(hook: HorsiesHook) -> None:
    token_of(hook, submit(hook))
    prune_ledger(hook.client)
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.callbacks") == [(1,)]
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        connection.execute("UPDATE airflow_horsies.callbacks SET expires_at = now() - interval '31 days'")
    prune_ledger(hook.client)
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.callbacks") == [(0,)]
    assert rows(hook, "SELECT count(*) FROM airflow_horsies.callback_tokens") == [(0,)]


# -- the operator --------------------------------------------------------------------------------------------------


def asking(**given: Any) -> HorsiesCallbackOperator:
    defaults = {"task_id": "load", "task_name": "echo", "kwargs": {"value": CALLBACK_URL}, "show_logs": False}
    waiting = {"horsies_conn_id": CONN_ID, "deferrable": True, "inline_wait": timedelta(0)}
    return HorsiesCallbackOperator(**{**defaults, **waiting, **given})


def defer(operator: HorsiesCallbackOperator, **changed: Any) -> Any:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context(**changed))
    return deferred.value.trigger


def minted(hook: HorsiesHook) -> str:
    ((callback_id, task_id),) = rows(
        hook, "SELECT id::text, horsies_task_id::text FROM airflow_horsies.callbacks WHERE outcome IS NULL"
    )
    token = mint(hook, str(callback_id), str(task_id))
    assert token is not None
    return token


def test_a_deferred_task_returns_the_answer(hook: HorsiesHook, release: str) -> None:
    trigger = defer(asking())
    token = minted(hook)

    async def wait() -> dict[str, Any]:
        async with firing(trigger) as event:
            await asyncio.sleep(0.3)
            await asyncio.to_thread(end_task, hook, trigger.task_ids[0], TaskState.COMPLETED, release)
            await asyncio.sleep(0.3)
            assert not event.done()
            began = time.monotonic()
            await asyncio.to_thread(answer, hook, token, '{"approved": true}')
            told = await asyncio.wait_for(event, 60)
            print(f"from the answer to the event: {time.monotonic() - began:.3f} s")
            return told

    event = run(wait())
    assert (event["reason"], event["callback_id"]) == ("ended", trigger.callback_id)
    assert asking().execute_complete(context(), event) == {"approved": True}


def test_a_blocking_task_returns_the_answer(hook: HorsiesHook) -> None:
    operator = asking(deferrable=False)
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(operator.execute(context())))
    thread.start()
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            token = minted(hook)
            break
        except (ValueError, psycopg.Error):
            time.sleep(0.1)
    answer(hook, token, "[1, 2]")
    thread.join(120)
    assert values == [[1, 2]]


def test_an_answer_before_the_wait_counts(hook: HorsiesHook) -> None:
    trigger = defer(asking())
    answer(hook, minted(hook), '"early"')
    event = run(event_of(trigger))
    assert asking().execute_complete(context(), event) == "early"
    # A retry after its success, as when its process was lost, adopts it.
    assert asking().execute(context(try_number=2)) == "early"


def test_a_reported_failure_fails_the_task(hook: HorsiesHook) -> None:
    trigger = defer(asking())
    answer(hook, minted(hook), '{"message": "Refused: password=hunter2x", "more": 1}', FAILED)
    event = run(event_of(trigger))
    with pytest.raises(CallbackFailed, match=r"reported a failure .* said: Refused: password=\*\*\*"):
        asking().execute_complete(context(), event)


def test_a_callback_without_an_answer_expires(hook: HorsiesHook) -> None:
    trigger = defer(asking(expires_after=timedelta(seconds=2)))
    event = run(event_of(trigger))
    assert event["reason"] == "ended"
    with pytest.raises(CallbackExpired, match="No answer came"):
        asking().execute_complete(context(), event)


def test_a_heartbeat_keeps_the_trigger_waiting(hook: HorsiesHook) -> None:
    trigger = defer(asking(expires_after=timedelta(seconds=20), max_duration=timedelta(minutes=5)))
    token = minted(hook)

    async def wait() -> dict[str, Any]:
        async with firing(trigger) as event:
            await asyncio.sleep(1)
            with psycopg.connect(**hook.settings.database.connect_args) as connection:
                connection.execute("UPDATE airflow_horsies.callbacks SET expires_at = now() + interval '60 s'")
            await asyncio.sleep(20)
            assert not event.done()
            assert (await asyncio.to_thread(answer, hook, token)) is Verdict.ACCEPTED
            return await asyncio.wait_for(event, 60)

    assert run(wait())["reason"] == "ended"


def test_the_task_that_hands_out_the_address_may_fail(hook: HorsiesHook, release: str) -> None:
    trigger = defer(asking())
    end_task(hook, trigger.task_ids[0], TaskState.FAILED, release)
    event = run(event_of(trigger))
    assert event["reason"] == "decided"
    with pytest.raises(TaskFailed):
        asking().execute_complete(context(), event)
    # The outside party may have the address by now: the retry goes on with it.
    again = defer(asking(), try_number=2)
    assert again.callback_id == trigger.callback_id


def test_a_clear_while_it_waits_is_told_to_the_trigger(hook: HorsiesHook) -> None:
    trigger = defer(asking())
    submit(hook, tried(2, clear_number=1, max_tries=3, run_key=None), instance=INSTANCE)
    event = run(event_of(trigger))
    with pytest.raises(CallbackVoid):
        asking().execute_complete(context(), event)


def test_a_kill_of_the_deferred_task_makes_the_callback_void(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failed(_: object) -> InstanceState:
        return InstanceState(exists=True, state="failed")

    monkeypatch.setattr(trigger_base, "read_state_async", failed)
    trigger = defer(asking())
    token = minted(hook)
    run(trigger.on_kill())
    assert answer(hook, token) is Verdict.OVER
    assert hook.read_task(trigger.task_ids[0]).state is TaskState.CANCELLED


def test_a_shutdown_keeps_the_callback(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deferred(_: object) -> InstanceState:
        return InstanceState(exists=True, state="deferred")

    monkeypatch.setattr(trigger_base, "read_state_async", deferred)
    trigger = defer(asking())
    token = minted(hook)
    run(trigger.on_kill())
    assert answer(hook, token) is Verdict.ACCEPTED


def test_a_kill_of_the_process_makes_the_callback_void(hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "read_state", lambda _: InstanceState(exists=True, state="failed"))
    operator = asking()
    trigger = defer(operator)
    token = minted(hook)
    operator.on_kill()
    assert answer(hook, token) is Verdict.OVER
    assert hook.read_task(trigger.task_ids[0]).state is TaskState.CANCELLED


def test_the_execution_timeout_makes_the_callback_void(hook: HorsiesHook) -> None:
    operator = asking(deferrable=False, execution_timeout=timedelta(seconds=1))
    with pytest.raises(TaskTimedOut):
        operator.execute(context())
    ((outcome,),) = rows(hook, "SELECT outcome FROM airflow_horsies.callbacks")
    assert outcome == "VOID"


def test_callbacks_that_are_off_are_an_error_before_anything_is_sent(
    hook: HorsiesHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__CALLBACKS", "False")
    with pytest.raises(CallbacksDisabled, match=r"Set \[horsies\] callbacks = True"):
        asking().execute(context())
    monkeypatch.setenv("AIRFLOW__HORSIES__CALLBACKS", "True")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    with pytest.raises(CallbacksDisabled, match="base_url is not set"):
        asking().execute(context())
    assert rows(hook, "SELECT count(*) FROM horsies_tasks") == [(0,)]
