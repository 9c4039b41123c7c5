from __future__ import annotations

from typing import Any

import pytest

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators import HorsiesBatchOperator
from airflow_horsies.testing import make_context


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
