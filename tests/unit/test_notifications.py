from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_horsies import notifications
from airflow_horsies.exceptions import AccessDenied, DatabaseBusy, DatabaseUnreachable, InvalidTask
from airflow_horsies.models import RetryPolicy, TaskSpec
from airflow_horsies.notifications import HorsiesNotifier
from airflow_horsies.testing import FakeClient, FakeHorsies
from tests.unit.fakes import failing


@pytest.fixture(autouse=True)
def _declared(horsies: FakeHorsies) -> None:
    horsies.returns("alerts.load")
    horsies.returns("alerts.page")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, TaskSpec]]:
    """The connection and the task of each call, also of one that fails."""
    asked: list[tuple[str, TaskSpec]] = []
    enqueue_task = FakeClient.enqueue_task

    def remember(client: FakeClient, spec: TaskSpec) -> str:
        asked.append((client.settings.name, spec))
        return enqueue_task(client, spec)

    monkeypatch.setattr(FakeClient, "enqueue_task", remember)
    return asked


def sent(horsies: FakeHorsies) -> list[TaskSpec]:
    return [task.spec for task in horsies.memory.sent.values()]


def context() -> Any:
    return {"run_id": "manual__1", "ti": SimpleNamespace(task_id="load")}


def test_callback_sends_the_rendered_task(horsies: FakeHorsies, asked: list[tuple[str, TaskSpec]]) -> None:
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
    assert horsies.specs("alerts.load") == [
        TaskSpec(
            task_name="alerts.load",
            kwargs={"run": "manual__1", "level": 3, "tags": ["load"]},
            queue="alerts",
            priority=1,
            retry_policy=RetryPolicy.fixed([5], auto_retry_for=["SMTP_DOWN"]),
            idempotency_key="manual__1/load",
        )
    ]
    assert [connection for connection, _ in asked] == ["connection horsies_alerts"]


def test_one_notifier_serves_many_tasks(horsies: FakeHorsies) -> None:
    notifier = HorsiesNotifier(task_name="alerts.page", kwargs={"run": "{{ run_id }}"}, idempotency_key="{{ run_id }}")
    for run_id in ("first", "second"):
        notifier({**context(), "run_id": run_id})
    assert [(spec.kwargs, spec.idempotency_key) for spec in sent(horsies)] == [
        ({"run": "first"}, "first"),
        ({"run": "second"}, "second"),
    ]


def test_time_it_is_good_for_counts_from_the_callback(horsies: FakeHorsies) -> None:
    HorsiesNotifier(task_name="alerts.page", good_until=timedelta(minutes=5))(context())
    (spec,) = sent(horsies)
    assert spec.good_until is not None
    assert timedelta(minutes=4) < spec.good_until - datetime.now(UTC) <= timedelta(minutes=5)


def test_deadline_alert_awaits_it_with_the_context_it_has(horsies: FakeHorsies) -> None:
    async def alert() -> None:
        await HorsiesNotifier(task_name="alerts.page", kwargs={"run": "{{ run_id }}"}, context=context())
        await HorsiesNotifier(task_name="alerts.page")

    asyncio.run(alert())
    assert [spec.kwargs for spec in sent(horsies)] == [{"run": "manual__1"}, {}]


def test_deadline_alert_is_sent_once_the_database_answers(
    horsies: FakeHorsies, asked: list[tuple[str, TaskSpec]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "FIRST_RETRY_SECONDS", 0.01)
    errors = [DatabaseBusy("locked"), DatabaseUnreachable("gone")]
    monkeypatch.setattr(horsies.memory, "enqueue_task", failing(errors, then=horsies.memory.enqueue_task))
    asyncio.run(HorsiesNotifier(task_name="alerts.page").async_notify({}))
    assert len(asked) == 3
    assert len({spec.task_id for _, spec in asked}) == 1
    assert len(sent(horsies)) == 1


@pytest.mark.parametrize("error", [DatabaseBusy("locked"), AccessDenied("no")], ids=lambda error: type(error).__name__)
def test_deadline_alert_that_cannot_be_sent_fails(
    error: Exception, horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SEND_SECONDS", 0.0)
    monkeypatch.setattr(horsies.memory, "enqueue_task", failing([error]))
    with pytest.raises(type(error)):
        asyncio.run(HorsiesNotifier(task_name="alerts.page").async_notify({}))
    assert sent(horsies) == []


def test_failure_to_send_is_not_swallowed(horsies: FakeHorsies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horsies.memory, "enqueue_task", failing([DatabaseUnreachable("gone")]))
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


def test_what_is_templated_is_checked_when_it_is_rendered(horsies: FakeHorsies) -> None:
    notifier = HorsiesNotifier(task_name="{{ '' }}")
    with pytest.raises(InvalidTask, match="task_name"):
        notifier(context())
