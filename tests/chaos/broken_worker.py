"""Rules broken on purpose in workers, which have no Airflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_horsies.client.reporting import WorkerClient


def chunk_from_its_start() -> None:
    """An attempt does not ask which items have an outcome."""
    begin = WorkerClient.begin_chunk

    def begin_chunk(self: WorkerClient, claim: Any) -> Any:
        begun = begin(self, claim)
        return None if begun is None else replace(begun, recorded={})

    WorkerClient.begin_chunk = begin_chunk  # type: ignore[method-assign]


WORKER_RULES: Mapping[str, Callable[[], None]] = {"chunk-from-its-start": chunk_from_its_start}


def apply(rule: str | None) -> None:
    if rule in WORKER_RULES:
        WORKER_RULES[rule]()
