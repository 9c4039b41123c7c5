from __future__ import annotations

import pytest

from airflow_horsies.core.log import lines_of_each
from airflow_horsies.models import LogCursor


def test_cursor_of_a_later_attempt_is_greater() -> None:
    assert LogCursor() < LogCursor(1, 1) < LogCursor(1, 2) < LogCursor(2, 1)


@pytest.mark.parametrize(("tasks", "lines"), [(0, 1_000), (1, 1_000), (10, 1_000), (200, 50), (50_000, 1)])
def test_many_tasks_share_what_is_read_at_once(tasks: int, lines: int) -> None:
    assert lines_of_each(tasks) == lines
