from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import pytest

from airflow_horsies.client import ledger
from airflow_horsies.client.former_names import OF_THE_LEDGER, ON_ASYNC_CLIENT, OTHERS, RENAMED
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskSpec, TaskState
from airflow_horsies.testing import FakeHorsies

EVERY = [*RENAMED, *ON_ASYNC_CLIENT, *OF_THE_LEDGER, *OTHERS]


@pytest.mark.parametrize("name", EVERY)
def test_former_name_still_works_and_says_what_to_use(name: str, horsies: FakeHorsies) -> None:
    hook = HorsiesHook()
    # What is read from the database at once is not there.
    warning = rf"^HorsiesHook\.{name} is deprecated\. Use .+ instead\.$"
    with pytest.warns(DeprecationWarning, match=warning), suppress(HorsiesError):
        getattr(hook, name)


@pytest.mark.parametrize(("former", "name"), RENAMED.items())
def test_hook_has_no_member_under_both_names(former: str, name: str) -> None:
    assert former not in dir(HorsiesHook)
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
    prune = hook.prune  # type: ignore[attr-defined]
    assert (prune.func, prune.args) == (ledger.prune_ledger, (hook.client,))


def test_warning_names_the_line_of_the_caller(horsies: FakeHorsies) -> None:
    with pytest.warns(DeprecationWarning) as caught:
        HorsiesHook().queues  # type: ignore[attr-defined]  # noqa: B018
    assert caught[0].filename == __file__


def test_other_names_are_no_members() -> None:
    with pytest.raises(AttributeError, match=re.escape("'HorsiesHook' object has no attribute 'nothing'")):
        HorsiesHook().nothing  # type: ignore[attr-defined]  # noqa: B018
