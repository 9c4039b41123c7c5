from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_horsies import notifications
from airflow_horsies.exceptions import AccessDenied, DatabaseBusy, DatabaseUnreachable, InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.notifications import HorsiesNotifier


class FakeHook(nullcontext[Any]):
    def __init__(self) -> None:
        super().__init__(self)
        self.sent: list[TaskSpec] = []
        self.connections: list[str] = []
        self.refusals: list[Exception] = []
        self.refused: list[TaskSpec] = []

    def enqueue(self, spec: TaskSpec) -> str:
        self.sent.append(spec)
        return "0198a0de-0000-7000-8000-000000000001"

    async def enqueue_async(self, spec: TaskSpec) -> str:
        if self.refusals:
            self.refused.append(spec)
            raise self.refusals.pop(0)
        return self.enqueue(spec)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> FakeHook:
    hook = FakeHook()

    def connect(conn_id: str) -> FakeHook:
        hook.connections.append(conn_id)
        return hook

    monkeypatch.setattr(notifications, "HorsiesHook", connect)
    return hook


def context() -> Any:
    return {"run_id": "manual__1", "ti": SimpleNamespace(task_id="load")}


def test_callback_sends_the_rendered_task(hook: FakeHook) -> None:
    notifier = HorsiesNotifier(
        task_name="alerts.{{ ti.task_id }}",
        kwargs={"run": "{{ run_id }}", "level": 3, "tags": ["{{ ti.task_id }}"]},
        queue="alerts",
        priority=1,
        retry_policy={"intervals": [5], "auto_retry_for": ["SMTP_DOWN"]},
        idempotency_key="{{ run_id }}/{{ ti.task_id }}",
        horsies_conn_id="horsies_alerts",
    )
    notifier(context())
    assert hook.sent == [
        TaskSpec(
            task_name="alerts.load",
            kwargs={"run": "manual__1", "level": 3, "tags": ["load"]},
            queue="alerts",
            priority=1,
            retry_policy=RetryPolicy.fixed([5], auto_retry_for=["SMTP_DOWN"]),
            idempotency_key="manual__1/load",
        )
    ]
    assert hook.connections == ["horsies_alerts"]


def test_one_notifier_serves_many_tasks(hook: FakeHook) -> None:
    notifier = HorsiesNotifier(task_name="alerts.page", kwargs={"run": "{{ run_id }}"}, idempotency_key="{{ run_id }}")
    for run_id in ("first", "second"):
        notifier({**context(), "run_id": run_id})
    assert [(spec.kwargs, spec.idempotency_key) for spec in hook.sent] == [
        ({"run": "first"}, "first"),
        ({"run": "second"}, "second"),
    ]


def test_time_it_is_good_for_counts_from_the_callback(hook: FakeHook) -> None:
    HorsiesNotifier(task_name="alerts.page", good_until=timedelta(minutes=5))(context())
    (spec,) = hook.sent
    assert spec.good_until is not None
    assert timedelta(minutes=4) < spec.good_until - datetime.now(UTC) <= timedelta(minutes=5)


def test_deadline_alert_awaits_it_with_the_context_it_has(hook: FakeHook) -> None:
    async def alert() -> None:
        await HorsiesNotifier(task_name="alerts.page", kwargs={"run": "{{ run_id }}"}, context=context())
        await HorsiesNotifier(task_name="alerts.page")

    asyncio.run(alert())
    assert [spec.kwargs for spec in hook.sent] == [{"run": "manual__1"}, {}]


def test_deadline_alert_is_sent_once_the_database_answers(hook: FakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "FIRST_RETRY_SECONDS", 0.01)
    hook.refusals = [DatabaseBusy("locked"), DatabaseUnreachable("gone")]
    asyncio.run(HorsiesNotifier(task_name="alerts.page").async_notify({}))
    assert len({spec.task_id for spec in (*hook.refused, *hook.sent)}) == 1
    assert len(hook.sent) == 1


@pytest.mark.parametrize("error", [DatabaseBusy("locked"), AccessDenied("no")], ids=lambda error: type(error).__name__)
def test_deadline_alert_that_cannot_be_sent_fails(
    error: Exception, hook: FakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SEND_SECONDS", 0.0)
    hook.refusals = [error]
    with pytest.raises(type(error)):
        asyncio.run(HorsiesNotifier(task_name="alerts.page").async_notify({}))
    assert hook.sent == []


def test_failure_to_send_is_not_swallowed(hook: FakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: TaskSpec) -> str:
        raise DatabaseUnreachable("gone")

    monkeypatch.setattr(hook, "enqueue", refuse)
    with pytest.raises(DatabaseUnreachable):
        HorsiesNotifier(task_name="alerts.page")(context())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"task_name": ""}, "task_name"),
        ({"priority": 0}, "priority"),
        ({"queue": " "}, "queue"),
        ({"retry_policy": {"intervals": [5]}}, "retry_policy"),
        ({"good_until": datetime(2026, 1, 1)}, "good_until"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_mistake_is_found_when_the_dag_is_parsed(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        HorsiesNotifier(**{"task_name": "alerts.page", **options})
    assert caught.value.field == field


def test_what_is_templated_is_checked_when_it_is_rendered(hook: FakeHook) -> None:
    notifier = HorsiesNotifier(task_name="{{ '' }}")
    with pytest.raises(InvalidTask, match="task_name"):
        notifier(context())
