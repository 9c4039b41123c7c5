"""Filters of a query that Postgres evaluates as Spark would: the others stay with Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from airflow_horsies.core.paging import Slice
from airflow_horsies.source.tables import Column, Kind, Table

TextFilter = StringStartsWith | StringEndsWith | StringContains
OPERATORS: dict[type[Filter], sql.SQL] = {
    EqualTo: sql.SQL("="),
    EqualNullSafe: sql.SQL("IS NOT DISTINCT FROM"),
    GreaterThan: sql.SQL(">"),
    GreaterThanOrEqual: sql.SQL(">="),
    LessThan: sql.SQL("<"),
    LessThanOrEqual: sql.SQL("<="),
}
TYPES: dict[Kind, type] = {Kind.ID: str, Kind.TEXT: str, Kind.INTEGER: int, Kind.BOOLEAN: bool, Kind.TIME: datetime}
CASTS: dict[Kind, sql.SQL] = {
    Kind.ID: sql.SQL("text"),
    Kind.TEXT: sql.SQL("text"),
    Kind.INTEGER: sql.SQL("bigint"),
    Kind.BOOLEAN: sql.SQL("boolean"),
    Kind.TIME: sql.SQL("timestamptz"),
}


class Conditions:
    """Filters as conditions on the columns of a table, and the parameters of these."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = {column.name: column for column in columns}
        self._conditions: list[sql.Composable] = [sql.SQL("TRUE")]
        self.params: dict[str, Any] = {}

    def add(self, given: Filter) -> bool:
        """Whether Postgres can do it."""
        condition = self._condition(given)
        if condition is None:
            return False
        self._conditions.append(condition)
        return True

    @property
    def all(self) -> sql.Composed:
        return sql.SQL(" AND ").join(self._conditions)

    def _condition(self, given: Filter) -> sql.Composable | None:
        if isinstance(given, Not):
            child = self._condition(given.child)
            return None if child is None else sql.SQL("NOT ({})").format(child)
        column = self._column(given)
        if column is None:
            return None
        name = sql.Identifier(column.name)
        if isinstance(given, IsNull):
            return sql.SQL("{} IS NULL").format(name)
        if isinstance(given, IsNotNull):
            return sql.SQL("{} IS NOT NULL").format(name)
        if column.kind not in TYPES:
            return None
        if isinstance(given, In):
            if not given.value or not all(_is_usable(value, column) for value in given.value):
                return None
            values = sql.SQL(", ").join(self._value(value, column) for value in given.value)
            return sql.SQL("{} IN ({})").format(_comparable(column, given.value), values)
        if isinstance(given, TextFilter):
            return self._text_condition(given, column)
        operator = OPERATORS.get(type(given))
        value = getattr(given, "value", None)
        if operator is None or not _is_usable(value, column):
            return None
        return sql.SQL("{} {} {}").format(_comparable(column, [value]), operator, self._value(value, column))

    def _column(self, given: Filter) -> Column | None:
        path: tuple[str, ...] = getattr(given, "attribute", ())
        return self._columns.get(path[0]) if len(path) == 1 else None

    def _text_condition(
        self, given: StringStartsWith | StringEndsWith | StringContains, column: Column
    ) -> sql.Composable | None:
        if column.kind not in (Kind.ID, Kind.TEXT) or not _is_usable(given.value, column):
            return None
        text, wanted = (
            sql.SQL("{}::text").format(sql.Identifier(column.name)),
            self._value(given.value, column, as_text=True),
        )
        if isinstance(given, StringStartsWith):
            return sql.SQL("starts_with({}, {})").format(text, wanted)
        if isinstance(given, StringEndsWith):
            # right() with the length of an empty text is empty, too.
            return sql.SQL("right({}, length({})) = {}").format(text, wanted, wanted)
        return sql.SQL("strpos({}, {}) > 0").format(text, wanted)

    def _value(self, value: Any, column: Column, *, as_text: bool = False) -> sql.Composable:
        name = f"value_{len(self.params)}"
        self.params[name] = _utc(value) if isinstance(value, datetime) else value
        if column.kind is Kind.ID and _is_uuid(value) and not as_text:
            return sql.Placeholder(name)
        return sql.SQL("{}::{}").format(sql.Placeholder(name), CASTS[column.kind])


def narrowed(part: Slice, filters: Iterable[Filter], table: Table) -> Slice:
    """Filters on the time of a table bound what is looked at."""
    for each in filters:
        if getattr(each, "attribute", None) != (table.time,) or not isinstance(getattr(each, "value", None), datetime):
            continue
        at = _utc(each.value)  # type: ignore[attr-defined]
        if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo):
            part = replace(part, since=at if part.since is None else max(part.since, at))
        if isinstance(each, LessThan | LessThanOrEqual | EqualTo):
            after = at if isinstance(each, LessThan) else at + timedelta(microseconds=1)
            part = replace(part, until=after if part.until is None else min(part.until, after))
    return part


def _is_usable(value: Any, column: Column) -> bool:
    """A value of the column's own type that Postgres can hold."""
    if value is None:
        return True
    if type(value) is not TYPES[column.kind]:
        return False
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return "\x00" not in value
    return not isinstance(value, int) or abs(value) < 2**63


def _comparable(column: Column, values: Sequence[Any]) -> sql.Composable:
    name = sql.Identifier(column.name)
    if column.kind is Kind.ID and all(_is_uuid(value) for value in values):
        # The column itself, so that its index is used.
        return name
    if column.kind in (Kind.ID, Kind.TEXT):
        # Spark orders by bytes, and so does this collation.
        return sql.SQL('{}::text COLLATE "C"').format(name)
    return name


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
