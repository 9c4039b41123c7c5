"""The schema that was found last. Hooks and hubs live on while somebody upgrades horsies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from airflow_horsies.db.statement import Script
from airflow_horsies.wire.schema import Schema, detect_schema
from airflow_horsies.wire.statements import Wire

T = TypeVar("T")
WireScript: TypeAlias = Callable[[Wire], Script[T]]

LOOK_AGAIN_SECONDS = 60.0


class KnownSchema:
    """Looked at again when it is old, and when something does not fit it."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self._found_at = 0.0

    def doubt(self) -> None:
        """Look again before the next use."""
        self._schema = None

    def find(self) -> Script[Schema]:
        schema = self._schema
        if schema is None or time.monotonic() - self._found_at > LOOK_AGAIN_SECONDS:
            self._schema = None
            schema = yield from detect_schema()
            self._schema, self._found_at = schema, time.monotonic()
        return schema

    def speak(self, make_script: WireScript[T]) -> Script[T]:
        """Run a script on what is there now, in the same transaction."""
        return (yield from make_script(Wire((yield from self.find()))))


def writing(make_script: WireScript[T]) -> WireScript[T]:
    """The same script where the schema may be written; an error that says why where it may not."""

    def checked(wire: Wire) -> Script[T]:
        wire.schema.require_writable()
        return (yield from make_script(wire))

    return checked
