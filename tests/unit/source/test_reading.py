from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_horsies.exceptions import WireError
from airflow_horsies.source import reading
from airflow_horsies.source.tables import Column, Kind, arrow_schema

ESCAPED = {"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\"}
ODD = ['"', "\\", "\\N", "\\\\N", "\\n", "\t", "\n", "\r", ",", "\x01", "\u2028", "é", ""]
texts = st.lists(st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_characters="\x00", codec="utf-8"))))
text = st.one_of(st.none(), texts.map("".join))


def copied(rows: list[tuple[Any, ...]]) -> bytearray:
    """As Postgres writes them in the text format of COPY."""
    lines = ["\t".join(map(_escaped, row)) + "\n" for row in rows]
    return bytearray("".join(lines).encode())


def _escaped(value: str | None) -> str:
    return r"\N" if value is None else re.sub(r"[\b\f\n\r\t\v\\]", lambda found: ESCAPED[found[0]], value)


def parsed(chunk: bytearray, *kinds: Kind) -> list[tuple[Any, ...]]:
    columns = [Column(f"c{number}", kind) for number, kind in enumerate(kinds)]
    batches = reading._parse(chunk, columns, arrow_schema(columns))
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


@given(st.lists(st.tuples(text, text), min_size=1))
def test_every_text_comes_as_it_is(rows: list[tuple[Any, ...]]) -> None:
    assert parsed(copied(rows), Kind.TEXT, Kind.TEXT) == rows


@given(st.lists(st.tuples(text), min_size=1))
def test_an_empty_text_alone_in_its_row_is_a_row(rows: list[tuple[Any, ...]]) -> None:
    assert parsed(copied(rows), Kind.TEXT) == rows


def test_values_of_every_kind() -> None:
    kinds = (Kind.ID, Kind.INTEGER, Kind.DOUBLE, Kind.BOOLEAN, Kind.TIME, Kind.TEXTS)
    row = ("id", "-7", "0.1", "t", "2026-01-31 12:00:00.000001+00", '["a\\"\\n", "b"]')
    at = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    assert parsed(copied([row, (None,) * 6]), *kinds) == [("id", -7, 0.1, True, at, ['a"\n', "b"]), (None,) * 6]


def test_a_value_that_spark_cannot_hold_is_told() -> None:
    with pytest.raises(WireError, match="infinity"):
        parsed(copied([("infinity",)]), Kind.TIME)
