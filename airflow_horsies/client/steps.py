"""The steps of a call: what a client does for a generator that is written once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_horsies.db.limits import Limits
from airflow_horsies.db.statement import Script
from airflow_horsies.wire.known import WireScript

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A script to run in one transaction, with the detected schema."""

    make_script: WireScript[Any]
    pipelined: bool = True


@dataclass(frozen=True, slots=True)
class PlainTransaction:
    """A script that does not use the tables of horsies."""

    make_script: Callable[[], Script[Any]]
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Step = Transaction | PlainTransaction | Pause
Call = Generator[Step, Any, T]
