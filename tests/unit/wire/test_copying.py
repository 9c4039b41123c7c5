from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_horsies.models import TaskSpec
from airflow_horsies.wire.copying import task_lines
from airflow_horsies.wire.encoding import EncodedTask, encode_task

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


def of(**given: Any) -> EncodedTask:
    return encode_task(TaskSpec(**{"task_name": "add", **given}), sent_at=NOW)


def test_delay_counts_from_the_transaction() -> None:
    assert fields(of(delay=timedelta(seconds=60)))[7] == (NOW + timedelta(seconds=60)).isoformat()


@pytest.mark.parametrize(
    ("value", "written"), [("a\tb", r"a\\tb"), ("a\nb\r", r"a\\nb\\r"), (r"\N", r"\\\\N"), ("", ""), ("馬", "馬")]
)
def test_arguments_are_escaped(value: str, written: str) -> None:
    assert fields(of(kwargs={"x": value}))[4] == f'{{"x":"{written}"}}'


def test_names_are_escaped() -> None:
    odd = EncodedTask(TASK.id, False, replace(TASK.command, task_name="a\tb\\", queue_name="c\nd\r"), None, b"{}")
    assert fields(odd)[1:3] == [r"a\tb\\", r"c\nd\r"]


def test_nothing_is_null_and_bytes_are_hexadecimal() -> None:
    task = of()
    found = fields(task)
    assert (found[4], found[8], found[19]) == (r"\N", r"\N", rf"\\x{task.input_digest.hex()}")


def test_each_task_has_the_columns_of_its_own_command() -> None:
    tasks = [of(), of(priority=7), of(retain_rerun_input=True, kwargs={"a": 1}), of()]
    lines = [line.removesuffix("\n").split("\t") for line in task_lines(tasks, NOW, with_commands=True)]
    assert [line[3] for line in lines] == ["100", "7", "100", "100"]
    assert [line[21] for line in lines] == ["f", "f", "t", "f"]
    assert [line[23] for line in lines] == ["DECLINED_BY_POLICY", "DECLINED_BY_POLICY", "INLINE", "DECLINED_BY_POLICY"]
    assert lines[2][24:27] == ["1", "json-utf8", "application/json"]
    assert lines[2][28] == rf"\\x{(tasks[2].rerun_input or b'').hex()}"
