from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_horsies.core.paging import Slice
from airflow_horsies.exceptions import WireError
from airflow_horsies.source import snapshots
from airflow_horsies.source.tables import ATTEMPTS

# What JSON, CSV and COPY write otherwise, what looks like a separator, and what some take for the end of a line.
ODD = [
    '"',
    "\\",
    ", ",
    "], [",
    "]], [[",
    "\t",
    "\n",
    "\r",
    "\x1f",
    "\x1f\x1f\x1f\n",
    "null",
    "\\N",
    "\u2028",
    "\x85",
    "é",
]
texts = st.lists(st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_characters="\x00", codec="utf-8"))))
text = texts.map("".join)
maybe = st.one_of(st.none(), text)
number = st.integers(0, 2**31 - 1)
time = st.one_of(st.none(), st.integers(0, 2**50))
attempt = st.tuples(
    number, text, st.one_of(st.none(), st.booleans()), time, time,
    maybe, maybe, maybe, maybe, maybe, st.one_of(st.none(), number), maybe,
)  # fmt: skip
tasks = st.lists(st.tuples(st.uuids().map(str), text, text, st.lists(attempt, min_size=1, max_size=3)), min_size=1)
COMPLETED = (1, "COMPLETED", False, 1, 2, None, None, None, "w", "h", 7, "p")
TASK = ("0198a0de-0000-7000-8000-0000000000ff", "load", "default")


def copied(found: list[Any], *, compact: bool = False) -> bytearray:
    """The lines of scan_snapshots.sql, as COPY sends them."""
    separators = (",", ":") if compact else (", ", ": ")
    lines = []
    for task_id, task_name, queue, attempts in found:
        whole = json.dumps(attempts, ensure_ascii=False, separators=separators)
        fields = [whole[2:-2], task_id, json.dumps(task_name, ensure_ascii=False), json.dumps(queue)]
        lines.append("\t".join(fields).replace("\\", "\\\\") + "\n")
    return bytearray("".join(lines).encode())


def taken_apart(chunk: bytearray, part: Slice | None = None) -> list[tuple[Any, ...]]:
    names = [column.name for column in ATTEMPTS.columns]
    rows = []
    for table in snapshots._tables(chunk, names):
        shown = snapshots._within(table, part or Slice()).select([*snapshots.ATTEMPT_FIELDS, *snapshots.TASK_FIELDS])
        rows += list(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    return rows


@given(tasks)
def test_every_attempt_comes_as_it_is(found: list[Any]) -> None:
    expected = [(*attempt, *of_task) for *of_task, attempts in found for attempt in attempts]
    assert sorted(map(repr, taken_apart(copied(found)))) == sorted(map(repr, expected))


def test_json_that_is_written_otherwise_is_read_as_well() -> None:
    assert taken_apart(copied([(*TASK, [COMPLETED, COMPLETED])], compact=True)) == [(*COMPLETED, *TASK)] * 2


def test_what_looks_like_a_separator_is_read_without_a_detour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_rewritten", lambda _: pytest.fail("read by way of Python"))
    failed = (*COMPLETED[:6], "a, b], [c, ", *COMPLETED[7:])
    assert taken_apart(copied([(*TASK, [failed])])) == [(*failed, *TASK)]


@pytest.mark.parametrize("attempts", [[(*COMPLETED, "more")], [COMPLETED[:-1]], [("one", *COMPLETED[1:])]])
def test_attempts_of_another_shape_are_refused(attempts: list[Any]) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        taken_apart(copied([(*TASK, attempts)]))


def test_since_and_until_are_of_the_attempt() -> None:
    ended_at = [1_000_000, 2_000_000, 3_000_000, None]
    attempts = [(*COMPLETED[:4], at, *COMPLETED[5:]) for at in ended_at]
    part = Slice(since=datetime.fromtimestamp(2, UTC), until=datetime.fromtimestamp(3, UTC))
    assert [row[4] for row in taken_apart(copied([(*TASK, attempts)]), part)] == [2_000_000]


def test_only_what_is_needed_is_made() -> None:
    (table,) = snapshots._tables(copied([(*TASK, [COMPLETED])]), {"pid", "queue"})
    assert table.schema == pa.schema([("pid", pa.int32()), ("queue", pa.string())])
