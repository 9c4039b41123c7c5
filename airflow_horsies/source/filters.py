"""Translates filters that Postgres evaluates in the same way as Spark. Spark evaluates the others."""

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
    """Filters as SQL conditions on the columns of a table, with their parameters."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = {column.name: column for column in columns}
        self._conditions: list[sql.Composable] = [sql.SQL("TRUE")]
        self.params: dict[str, Any] = {}

    def add(self, pushed: Filter) -> bool:
        """Add a filter; False if Postgres cannot evaluate it."""
        condition = self._condition(pushed)
        if condition is None:
            return False
        self._conditions.append(condition)
        return True

    @property
    def all(self) -> sql.Composed:
        return sql.SQL(" AND ").join(self._conditions)

    def _condition(self, pushed: Filter) -> sql.Composable | None:
        if isinstance(pushed, Not):
            child = self._condition(pushed.child)
            return None if child is None else sql.SQL("NOT ({})").format(child)
        column = self._column(pushed)
        if column is None:
            return None
        name = sql.Identifier(column.name)
        if isinstance(pushed, IsNull):
            return sql.SQL("{} IS NULL").format(name)
        if isinstance(pushed, IsNotNull):
            return sql.SQL("{} IS NOT NULL").format(name)
        if column.kind not in TYPES:
            return None
        if isinstance(pushed, In):
            if not pushed.value or not all(_is_usable(value, column) for value in pushed.value):
                return None
            values = sql.SQL(", ").join(self._value(value, column) for value in pushed.value)
            return sql.SQL("{} IN ({})").format(_comparable(column, pushed.value), values)
        if isinstance(pushed, TextFilter):
            return self._text_condition(pushed, column)
        operator = OPERATORS.get(type(pushed))
        value = getattr(pushed, "value", None)
        if operator is None or not _is_usable(value, column):
            return None
        return sql.SQL("{} {} {}").format(_comparable(column, [value]), operator, self._value(value, column))

    def _column(self, pushed: Filter) -> Column | None:
        path: tuple[str, ...] = getattr(pushed, "attribute", ())
        return self._columns.get(path[0]) if len(path) == 1 else None

    def _text_condition(
        self, pushed: StringStartsWith | StringEndsWith | StringContains, column: Column
    ) -> sql.Composable | None:
        if column.kind not in (Kind.ID, Kind.TEXT) or not _is_usable(pushed.value, column):
            return None
        text, wanted = (
            sql.SQL("{}::text").format(sql.Identifier(column.name)),
            self._value(pushed.value, column, as_text=True),
        )
        if isinstance(pushed, StringStartsWith):
            return sql.SQL("starts_with({}, {})").format(text, wanted)
        if isinstance(pushed, StringEndsWith):
            # For an empty text, right() also returns an empty text.
            return sql.SQL("right({}, length({})) = {}").format(text, wanted, wanted)
        return sql.SQL("strpos({}, {}) > 0").format(text, wanted)

    def _value(self, value: Any, column: Column, *, as_text: bool = False) -> sql.Composable:
        name = f"value_{len(self.params)}"
        self.params[name] = _utc(value) if isinstance(value, datetime) else value
        if column.kind is Kind.ID and _is_uuid(value) and not as_text:
            return sql.Placeholder(name)
        return sql.SQL("{}::{}").format(sql.Placeholder(name), CASTS[column.kind])


def narrowed(part: Slice, filters: Iterable[Filter], table: Table) -> Slice:
    """The slice limited by the filters on the table's time column."""
    for condition in filters:
        if getattr(condition, "attribute", None) != (table.time,) or not isinstance(
            getattr(condition, "value", None), datetime
        ):
            continue
        at = _utc(condition.value)  # type: ignore[attr-defined]
        if isinstance(condition, GreaterThan | GreaterThanOrEqual | EqualTo):
            part = replace(part, since=at if part.since is None else max(part.since, at))
        if isinstance(condition, LessThan | LessThanOrEqual | EqualTo):
            after = at if isinstance(condition, LessThan) else at + timedelta(microseconds=1)
            part = replace(part, until=after if part.until is None else min(part.until, after))
    return part


def _is_usable(value: Any, column: Column) -> bool:
    """Whether the value has the type of the column and Postgres can store it."""
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
        # Without a cast, so that the index of the column is used.
        return name
    if column.kind in (Kind.ID, Kind.TEXT):
        # Like Spark, this collation compares bytes.
        return sql.SQL('{}::text COLLATE "C"').format(name)
    return name


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
