"""Which arguments a page shows, and how much of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_horsies.models import Submission, TaskInstanceKey
from airflow_horsies.ui.arguments import Rendered, masked_alike, shown_arguments

SUBMISSION = Submission(
    horsies_task_id="1",
    namespace="default",
    task_instance=TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load"),
    position=0,
    life=1,
    round=1,
    try_number=2,
    task_name="load",
    queue="default",
    good_until=None,
    submitted_at=datetime(2026, 1, 2, tzinfo=UTC),
)


@pytest.mark.parametrize(
    ("sent", "rendered", "shown"),
    [
        ({"a": 1, "b": "hunter2"}, {"a": 1, "b": "***"}, {"a": 1, "b": "***"}),
        ({"uri": "x://etl:hunter2@db"}, {"uri": "x://etl:***@db"}, {"uri": "x://etl:***@db"}),
        # Rendered anew, with other arguments: what was sent is shown, but never where a secret may stand.
        ({"a": 1, "b": "before"}, {"a": 2, "b": "after"}, {"a": 1, "b": "before"}),
        ({"b": "y://etl:hunter2@old"}, {"b": "x://etl:***@new"}, {"b": "***"}),
        ({"b": ["hunter2", 1]}, {"b": ["***", 2, 3]}, {"b": ["***", 1]}),
        ({"b": {"c": [{"d": "hunter2"}]}}, {"b": {"c": [{"d": "***"}]}}, {"b": {"c": [{"d": "***"}]}}),
        ({"b": ["hunter2"]}, {"b": "***"}, {"b": "***"}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, 2]}),
        ({"a": 1}, "Truncated. {'a': 1", {"a": 1}),
        ({"a": 1}, None, {"a": 1}),
        ({"a": "ab"}, {"a": "ab***ab"}, {"a": "***"}),
        ({"a": "1-x-2-y-3"}, {"a": "1-***-2-***-3"}, {"a": "1-***-2-***-3"}),
    ],
)
def test_what_was_sent_is_masked_where_airflow_masks(sent: Any, rendered: Any, shown: Any) -> None:
    assert masked_alike(sent, rendered) == shown
    assert shown_arguments(sent, Rendered(kwargs=rendered, try_number=7), SUBMISSION) == shown


def test_what_airflow_rendered_stands_in_for_what_horsies_dropped() -> None:
    assert shown_arguments(None, Rendered(kwargs={"a": 1}, try_number=2), SUBMISSION) == {"a": 1}


@pytest.mark.parametrize("try_number", [1, 3, None])
def test_what_another_try_rendered_is_not_taken_for_the_arguments_of_the_task(try_number: int | None) -> None:
    assert shown_arguments(None, Rendered(kwargs={"a": 1}, try_number=try_number), SUBMISSION) is None
