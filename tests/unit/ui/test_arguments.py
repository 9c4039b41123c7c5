"""Which arguments a page shows, and how much of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_horsies.models import Submission, TaskInstanceKey
from airflow_horsies.ui.arguments import HIDDEN, Rendered, hides, shown_arguments

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
        ({"b": ["hunter2", "x"]}, {"b": ["x", "***"]}, {"b": [HIDDEN, "***"]}),
        ({"b": {"c": [{"d": "hunter2"}]}}, {"b": {"c": [{"d": "***"}]}}, {"b": {"c": [{"d": "***"}]}}),
        ({"b": ["hunter2"]}, {"b": "***"}, {"b": "***"}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, 2]}),
        ({"a": ["x", "y"]}, {"a": ["x"]}, {"a": ["x", HIDDEN]}),
        ({"a": "ab"}, {"a": "ab***ab"}, {"a": "***"}),
        ({"a": "1-x-2-y-3"}, {"a": "1-***-2-***-3"}, {"a": "1-***-2-***-3"}),
        # Without a rendering only what Airflow never masks.
        (
            {"a": 1, "b": "hunter2", "c": ["hunter2", True, None, ""]},
            None,
            {"a": 1, "b": HIDDEN, "c": [HIDDEN, True, None, ""]},
        ),
        ({"a": 1, "b": "x"}, {"a": 1}, {"a": 1, "b": HIDDEN}),
        ({"a": {"b": "x"}}, {"a": "other"}, {"a": {"b": HIDDEN}}),
        # Of one that was cut, what can be read in it.
        (
            {"a": "x", "b": "hunter2", "c": "x y"},
            "Truncated. \"{'a': 'x', 'b': '***', 'c': 'x",
            {"a": "x", "b": HIDDEN, "c": HIDDEN},
        ),
    ],
)
def test_what_was_sent_is_shown_as_airflow_shows_it(sent: Any, rendered: Any, shown: Any) -> None:
    assert shown_arguments(sent, Rendered(fields={"task_kwargs": rendered}, try_number=7), SUBMISSION) == shown


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([{"a": "x"}, {"a": "y", "b": "***"}], {"a": "y", "b": "***"}),
        # The items have changed places since.
        ([{"a": "z"}, {"a": "***", "b": "y"}], {"a": "***", "b": HIDDEN}),
        ([{"a": "***"}], {"a": HIDDEN, "b": HIDDEN}),
        ([{"a": "z"}, {"a": "z", "b": "z"}], {"a": "y", "b": "hunter2"}),
        ("Truncated. \"[{'a': 'x', 'b': '***'}, {'a': 'y', 'b': '*", {"a": "y", "b": HIDDEN}),
        (None, {"a": HIDDEN, "b": HIDDEN}),
    ],
)
def test_items_of_a_batch_are_shown_as_airflow_shows_them(items: Any, shown: Any) -> None:
    rendered = Rendered(fields={"items": items}, position=1)
    assert shown_arguments({"a": "y", "b": "hunter2"}, rendered, SUBMISSION) == shown


def test_what_a_function_returns_is_shown_where_airflow_shows_it_as_its_input() -> None:
    rendered = Rendered(fields={"op_args": ["2026-01-02"], "op_kwargs": {"place": "***"}})
    shown = shown_arguments({"day": "2026-01-02", "login": "hunter2"}, rendered, SUBMISSION)
    assert shown == {"day": "2026-01-02", "login": HIDDEN}
    assert hides(shown)
    assert not hides({"a": ["***", 1]})


def test_what_airflow_rendered_stands_in_for_what_horsies_dropped() -> None:
    rendered = Rendered(fields={"task_kwargs": {"a": 1}}, try_number=2)
    assert shown_arguments(None, rendered, SUBMISSION) == {"a": 1}


@pytest.mark.parametrize("try_number", [1, 3, None])
def test_what_another_try_rendered_is_not_taken_for_the_arguments_of_the_task(try_number: int | None) -> None:
    rendered = Rendered(fields={"task_kwargs": {"a": 1}}, try_number=try_number)
    assert shown_arguments(None, rendered, SUBMISSION) is None
