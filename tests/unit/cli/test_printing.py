"""What a task wrote, on a terminal."""

from __future__ import annotations

import pytest

from airflow_horsies.cli.commands import _item_row, _item_values
from airflow_horsies.cli.printing import print_data
from airflow_horsies.core.batch import ItemView
from airflow_horsies.models import TaskState

HOSTILE = ItemView(
    task_id="t",
    number=0,
    state=TaskState.FAILED,
    error_code="BAD\x1b[2J",
    message="\x1b]0;title\x07cannot connect to postgresql://etl:hunter2@db/x",
)


@pytest.mark.parametrize("output", ["table", "plain", "json", "yaml"])
def test_errors_of_items_neither_control_the_terminal_nor_show_secrets(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_data([(_item_row if output in ("table", "plain") else _item_values)(HOSTILE)], output)
    printed = capsys.readouterr().out
    assert "BAD" in printed
    assert "\x1b" not in printed and "\x07" not in printed
    assert "hunter2" not in printed
