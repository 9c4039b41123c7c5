"""Task instances that are retried, edited, cleared or made again while their task is parked, on a real worker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from airflow_horsies.exceptions import LedgerOutdated, SignalRefused
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import (
    AirflowTry,
    RetryPolicy,
    SubmitOutcome,
    SubmitResult,
    TaskInstanceKey,
    TaskSpec,
    TaskState,
)
from tests.integration.releases import MOVED
from tests.integration.test_signals import APP, ok, until_settled
from tests.integration.test_workflow_changes import make_ledger
from tests.integration.worker_rig import MakeRig, Rig

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SENT, REATTACHED = SubmitOutcome.SENT, SubmitOutcome.REATTACHED


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("signal_changes", app=APP, processes=1)


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> TaskInstanceKey:
    return TaskInstanceKey(dag_id="d", run_id=f"manual__{request.node.name}", task_id="t")


def submit(rig: Rig, instance: TaskInstanceKey, number: int = 1, *, name: str = "go", **tried: Any) -> SubmitResult:
    spec = TaskSpec(task_name="park_here", kwargs={"name": name}, retry_policy=RetryPolicy.parking())
    given = {"try_number": number, "max_tries": 2, "run_started_at": NOON, "run_key": "a run", **tried}
    return rig.hook.submit_task(spec, instance, AirflowTry(**given))


def test_a_retry_goes_on_with_the_parked_task(rig: Rig, instance: TaskInstanceKey) -> None:
    first = submit(rig, instance)
    until_settled(rig, first.task_id)
    again = submit(rig, instance, 2)
    assert (again.outcome, again.task_id) == (REATTACHED, first.task_id)
    assert rig.hook.signal(instance, "go", {"by": "bo"}).resumed == 1
    assert ok(rig, first.task_id) == {"by": "bo"}


@pytest.mark.parametrize(
    "changed",
    [{"clear_number": 1}, {"run_key": "another", "run_started_at": NOON.replace(day=2)}, {"name": "unused"}],
    ids=["cleared", "made again", "edited"],
)
def test_parked_task_that_nobody_wants_any_more_is_cancelled_and_its_signals_are_not_those_of_the_next(
    rig: Rig, instance: TaskInstanceKey, changed: dict[str, Any]
) -> None:
    first = submit(rig, instance)
    until_settled(rig, first.task_id)
    # Received by nobody: it belongs to this task.
    rig.hook.signal(instance, "unused", "old")
    again = submit(rig, instance, 2, **{"name": "unused", **changed})
    assert again.outcome is SENT
    assert rig.hook.read_task(first.task_id).state is TaskState.CANCELLED
    with pytest.raises(SignalRefused, match="is CANCELLED"):
        rig.hook.signal(first.task_id, "go")
    until_settled(rig, again.task_id)
    assert rig.hook.signal(instance, "unused", "new").target == again.task_id
    assert ok(rig, again.task_id) == "new"


def test_clear_after_the_signal_waits_for_another_one(rig: Rig, instance: TaskInstanceKey) -> None:
    first = submit(rig, instance)
    until_settled(rig, first.task_id)
    rig.hook.signal(instance, "go", 1)
    assert ok(rig, first.task_id) == 1
    again = submit(rig, instance, 2, clear_number=1)
    until_settled(rig, again.task_id)
    rig.hook.signal(instance, "go", 2)
    assert ok(rig, again.task_id) == 2


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_older_ledger_that_may_not_be_migrated_stores_no_signal(
    make_hook: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook: HorsiesHook = make_hook(database)
    make_ledger(hook, 8)
    task_id = hook.enqueue_task(TaskSpec(task_name="park_here"))
    monkeypatch.setenv("AIRFLOW__HORSIES__AUTO_MIGRATE", "False")
    with pytest.raises(LedgerOutdated, match="Run 'airflow horsies db migrate'"):
        make_hook(database).signal(task_id, "go")
    monkeypatch.setenv("AIRFLOW__HORSIES__AUTO_MIGRATE", "True")
    assert make_hook(database).signal(task_id, "go").is_new
    with psycopg.connect(**hook.settings.database.connect_args) as connection:
        assert connection.execute("SELECT count(*) FROM airflow_horsies.messages").fetchone() == (1,)
