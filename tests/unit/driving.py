"""Runs scripts without a database: each statement is known by the name of its file, and the test answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Generic, TypeVar

from airflow_horsies.db.statement import Rows, Script, Statement
from airflow_horsies.wire.schema import Generation, Schema

T = TypeVar("T")

Answer = Rows | Callable[[Mapping[str, Any]], Rows]
SQL_FOLDERS = ("airflow_horsies.wire", "airflow_horsies.ledger")

IN_PLACE = Schema(generation=Generation.IN_PLACE, version=26, has_cancel_function=True, worker_has_started=True)
MOVED = Schema(generation=Generation.MOVED, version=51, has_cancel_function=True, worker_has_started=True)


@dataclass
class Driven(Generic[T]):
    """What a script returned, and the statements it ran on the way."""

    outcome: T
    ran: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ran]

    def params(self, name: str) -> Mapping[str, Any]:
        (found,) = [params for ran, params in self.ran if ran == name]
        return found


def drive(script: Script[T], answers: Mapping[str, Answer] | None = None) -> Driven[T]:
    """Run a script to its end; a statement without an answer finds no rows."""
    ran: list[tuple[str, Mapping[str, Any]]] = []
    rows: Rows | None = None
    try:
        while True:
            statement = script.send(rows)  # type: ignore[arg-type]
            name = file_of(statement)
            ran.append((name, statement.params))
            answer = (answers or {}).get(name, [])
            rows = answer(statement.params) if callable(answer) else answer
    except StopIteration as stop:
        return Driven(stop.value, ran)


def file_of(statement: Statement) -> str:
    """``moved/read_tasks`` for wire/sql/moved/read_tasks.sql."""
    return sql_files()[statement.sql]


@cache
def sql_files() -> dict[str, str]:
    """The statements of wire and ledger by their text, with the names they go by."""
    return {text: name for package in SQL_FOLDERS for name, text in _walk(files(package).joinpath("sql"), prefix="")}


def _walk(folder: Traversable, *, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, prefix=f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name.removesuffix('.sql')}", entry.read_text(encoding="utf-8")
