from __future__ import annotations

from typing import Any

import pytest

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators import HorsiesBatchOperator
from airflow_horsies.testing import make_context
from tests.unit.fakes import INSTANCE


def test_batch_allows_as_many_failures_as_both_bounds_do() -> None:
    def allowed(**given: Any) -> int:
        return HorsiesBatchOperator(task_id="b", task_name="add", items=[{}] * 10, **given)._allowed_failures(10)

    assert allowed() == 0
    assert allowed(max_failures=3) == 3
    assert allowed(max_failures="3", min_success="9") == 1
    assert allowed(max_failures=10, min_success=4) == 6
    assert allowed(min_success=4) == 6
    assert allowed(min_success=10) == 0


def test_batch_of_something_else_than_a_list_is_refused() -> None:
    operator = HorsiesBatchOperator(task_id="b", task_name="add", items="{{ items }}")
    with pytest.raises(InvalidTask, match="items: must be a list of dicts, not str"):
        operator._specs(make_context(operator))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"chunk_size": 0}, "chunk_size: must be None, 'auto' or an integer from 1 to 10000, not 0"),
        ({"chunk_size": "large"}, "chunk_size: must be None, 'auto'"),
        ({"chunk_size": 5, "isolate": "session"}, "isolate: must be 'chunk' or 'item'"),
        ({"isolate": "item"}, "isolate: needs chunk_size"),
        ({"results": "all"}, "results: must be 'values', 'counts' or 'reference', not 'all'"),
    ],
)
def test_chunks_are_checked_when_the_dag_is_parsed(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidTask, match=problem):
        HorsiesBatchOperator(task_id="b", task_name="add", items=[], **given)


# What HorsiesBatchTrigger accepted before there were chunks.
FORMER_TRIGGER = {
    *("task_instance", "life", "horsies_conn_id", "deadline", "queue_deadline", "cancel_on_kill", "max_failures"),
    *("size", "namespace", "seen", "deferred_at"),
}


def test_plain_batch_can_wait_in_a_triggerer_of_the_former_release() -> None:
    """Neither chunks nor counts are asked for: nothing here needs the new release of the triggerer."""
    operator = HorsiesBatchOperator(task_id="b", task_name="add", items=[{}] * 3)
    operator._instance, operator._life, operator._size = INSTANCE, 2, 3
    _, kwargs = operator._trigger(make_context(operator), None).serialize()
    assert kwargs.keys() <= FORMER_TRIGGER


def test_trigger_carries_what_was_asked_for_and_no_items() -> None:
    operator = HorsiesBatchOperator(task_id="b", task_name="add", items=[{}] * 3, chunk_size=2, results="counts")
    operator._instance, operator._life, operator._size = INSTANCE, 2, 3
    path, kwargs = operator._trigger(make_context(operator), None).serialize()
    assert path == "airflow_horsies.triggers.HorsiesBatchTrigger"
    agreed = {name: kwargs[name] for name in ("life", "size", "max_failures", "results")}
    assert agreed == {"life": 2, "size": 3, "max_failures": 0, "results": "counts"}
    assert "task_ids" not in kwargs
