"""Test DAGs that send horsies tasks, without a database and without a worker.

A test declares how each task ends, runs the DAG or one of its tasks, and checks what was sent: see
:class:`FakeHorsies`.
"""

from __future__ import annotations

from airflow_horsies.testing.async_client import FakeAsyncClient
from airflow_horsies.testing.client import FakeClient
from airflow_horsies.testing.fake_horsies import FakeHorsies
from airflow_horsies.testing.plan import ImpossibleOutcome, UndeclaredTask
from airflow_horsies.testing.running import make_context, run_task

__all__ = [
    "FakeAsyncClient",
    "FakeClient",
    "FakeHorsies",
    "ImpossibleOutcome",
    "UndeclaredTask",
    "make_context",
    "run_task",
]
