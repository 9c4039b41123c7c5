from __future__ import annotations

import asyncio
import re
import uuid
from contextlib import suppress
from unittest import mock

import pytest
from airflow.sdk import Connection

from airflow_horsies.client import former_names
from airflow_horsies.client.former_names import OF_THE_LEDGER, ON_ASYNC_CLIENT, OTHERS, RENAMED, VALUES, FormerNames
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from airflow_horsies.testing import FakeHorsies

EVERY = [*RENAMED, *VALUES, *ON_ASYNC_CLIENT, *OF_THE_LEDGER, *OTHERS]


@pytest.mark.parametrize("name", EVERY)
def test_former_name_still_works_and_says_what_to_use(name: str, horsies: FakeHorsies) -> None:
    horsies.queue("spark")
    hook = HorsiesHook()
    warning = rf"^HorsiesHook\.{name} is deprecated\. Use .+ instead\.$"
    # Called with no argument, or on an empty database.
    with pytest.warns(DeprecationWarning, match=warning), suppress(HorsiesError, TypeError, AttributeError):
        member = getattr(hook, name)
        if name not in VALUES:
            called = member()
            if name.endswith("_async"):
                asyncio.run(called)


@pytest.mark.parametrize("former", EVERY)
def test_hook_defines_no_member_under_a_former_name(former: str) -> None:
    assert former in vars(FormerNames)
    assert former not in vars(HorsiesHook)


@pytest.mark.parametrize("name", RENAMED.values())
def test_hook_has_the_new_name(name: str) -> None:
    assert "." in name or callable(getattr(HorsiesHook, name))


@pytest.mark.filterwarnings("ignore:HorsiesHook")
def test_former_members_do_what_they_did(horsies: FakeHorsies) -> None:
    horsies.fails("add", "FLAKY")
    hook = HorsiesHook()
    task_id = hook.enqueue(TaskSpec(task_name="add"))  # type: ignore[attr-defined]
    assert hook.get_task(task_id).state is TaskState.FAILED  # type: ignore[attr-defined]
    assert [each.outcome for each in hook.attempts(task_id)] == ["FAILED"]  # type: ignore[attr-defined]
    assert [each.outcome for each in hook.attempt_records(task_id.upper())] == ["FAILED"]  # type: ignore[attr-defined]
    assert list(asyncio.run(hook.get_tasks_async([task_id]))) == [task_id]  # type: ignore[attr-defined]
    assert hook.namespace == hook.client.namespace  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:HorsiesHook")
def test_former_functions_of_the_ledger_get_the_client(horsies: FakeHorsies) -> None:
    hook = HorsiesHook()
    version = mock.Mock(return_value=5)
    member = former_names._of_the_ledger(version)
    assert member(hook, "given", key=1) == 5
    version.assert_called_once_with(hook.client, "given", key=1)


@pytest.mark.filterwarnings("ignore:HorsiesHook")
def test_records_are_found_by_any_form_of_the_id(horsies: FakeHorsies) -> None:
    horsies.fails("add", "FLAKY")
    hook = HorsiesHook()
    task_id = hook.enqueue_task(TaskSpec(task_name="add"))
    hook.read_task(task_id)
    assert len(hook.attempt_records(uuid.UUID(task_id).hex)) == 1  # type: ignore[attr-defined]


class Counting(HorsiesHook):
    """A subclass that was written for the former names."""

    calls = 0

    def enqueue(self, spec: TaskSpec) -> str:
        self.calls += 1
        return str(super().enqueue(spec))  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore:HorsiesHook")
def test_subclass_overrides_a_former_name_and_calls_it(horsies: FakeHorsies) -> None:
    horsies.returns("add", 3)
    hook = Counting()
    assert hook.read_task(hook.enqueue(TaskSpec(task_name="add"))).state is TaskState.COMPLETED
    assert hook.calls == 1


def test_former_names_can_be_replaced_in_a_test() -> None:
    with mock.patch.object(HorsiesHook, "enqueue", return_value="an id"):
        assert HorsiesHook().enqueue(TaskSpec(task_name="add")) == "an id"  # type: ignore[attr-defined]
    double = mock.create_autospec(HorsiesHook, instance=True)
    double.get_task("an id")
    assert isinstance(double.get_task_async, mock.AsyncMock)


@pytest.mark.filterwarnings("ignore:HorsiesHook")
def test_both_clients_stay_in_the_namespace_of_work_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    hook = HorsiesHook(connection=Connection(conn_id="here", conn_type="horsies", host="localhost"))
    assert hook.client.namespace == "default"
    hook.stay_in("before")  # type: ignore[attr-defined]
    hook.require_deployment()  # type: ignore[attr-defined]
    assert hook.client.namespace == "before"
    assert asyncio.run(hook.async_client()).settings.namespace == "before"


def test_warning_names_the_line_of_the_caller(horsies: FakeHorsies) -> None:
    horsies.queue("spark")
    with pytest.warns(DeprecationWarning) as caught:
        HorsiesHook().queues()  # type: ignore[attr-defined]
    assert caught[0].filename == __file__


def test_other_names_are_no_members() -> None:
    with pytest.raises(AttributeError, match=re.escape("'HorsiesHook' object has no attribute 'nothing'")):
        HorsiesHook().nothing  # type: ignore[attr-defined]  # noqa: B018
