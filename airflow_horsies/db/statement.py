"""A statement is SQL from a file plus its parameters; a script is a generator of statements.

Neither depends on a driver. The same script runs on a synchronous connection for operators and on an asynchronous one
for triggers, so every rule is written once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

T = TypeVar("T")

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with named parameters, for any driver that accepts ``%(name)s``."""

    sql: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CopyIn(Statement):
    """``COPY ... FROM STDIN``, and the lines it reads. Not in a pipeline; it returns no rows."""

    lines: Iterable[str] = ()


Script = Generator[Statement, Rows, T]
"""Yields statements, receives the rows of each, and returns a result; all in one transaction."""


@cache
def sql_text(package: str, name: str) -> str:
    """The text of ``<package>/sql/<name>.sql``."""
    return files(package).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def fetch(statement: Statement) -> Script[Rows]:
    """The script of a single statement."""
    return (yield statement)
