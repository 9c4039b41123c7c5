"""Caches the detected schema. Hooks and hubs keep running while horsies is upgraded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from airflow_horsies.db.statement import Script
from airflow_horsies.wire.schema import Schema, detect_schema
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")
WireScript: TypeAlias = Callable[[Wire], Script[T]]

DETECT_AGAIN_SECONDS = 60.0


class KnownSchema:
    """The detected schema, detected again when it is old or a statement does not match it."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self._found_at = 0.0

    def invalidate(self) -> None:
        """Detect the schema again before the next use."""
        self._schema = None

    def find(self) -> Script[Schema]:
        schema = self._schema
        if schema is None or time.monotonic() - self._found_at > DETECT_AGAIN_SECONDS:
            self._schema = None
            schema = yield from detect_schema()
            self._schema, self._found_at = schema, time.monotonic()
        return schema

    def on_wire(self, make_script: WireScript[T]) -> Script[T]:
        """Run a script with the current schema, in the same transaction."""
        return (yield from make_script(Wire((yield from self.find()))))


def writing(make_script: WireScript[T]) -> WireScript[T]:
    """The script, preceded by a check that the schema may be written."""

    def checked(wire: Wire) -> Script[T]:
        wire.schema.require_writable()
        return (yield from make_script(wire))

    return checked
