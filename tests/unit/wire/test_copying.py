from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.copying import task_lines
from airflow_horsies.wire.encoding import encode_task

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TASK = encode_task(TaskSpec(task_name="add", kwargs={"a": "x"}), sent_at=NOW + timedelta(seconds=9))


def fields(task: object = TASK, *, with_commands: bool = True) -> list[str]:
    (line,) = task_lines([task], NOW, with_commands=with_commands)  # type: ignore[list-item]
    assert line.endswith("\n")
    return line.removesuffix("\n").split("\t")


def test_columns_are_as_many_as_the_statement_names() -> None:
    assert (len(fields()), len(fields(with_commands=False))) == (29, 17)


def test_clock_ahead_of_the_server_is_not_believed() -> None:
    assert fields()[6] == fields()[7] == NOW.isoformat()


def test_delay_counts_from_the_transaction() -> None:
    assert fields(replace(TASK, delay_seconds=60))[7] == (NOW + timedelta(seconds=60)).isoformat()


@pytest.mark.parametrize(
    ("value", "written"), [("a\tb", r"a\tb"), ("a\nb\r", r"a\nb\r"), (r"\N", r"\\N"), ("", ""), ("馬", "馬")]
)
def test_text_is_escaped(value: str, written: str) -> None:
    assert fields(replace(TASK, kwargs=value))[4] == written


def test_nothing_is_null_and_bytes_are_hexadecimal() -> None:
    found = fields(replace(TASK, kwargs=None, good_until=None, input_digest=b"\x00\xff"))
    assert (found[4], found[8], found[19]) == (r"\N", r"\N", r"\\x00ff")
