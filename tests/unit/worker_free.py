"""Worker-free tasks need an Airflow that starts tasks in a triggerer."""

from __future__ import annotations

from typing import Any

import pytest
from airflow import __version__
from airflow.sdk import DAG
from packaging.version import Version

from airflow_horsies.operators.worker_free import NEEDED_AIRFLOW

needs_worker_free = pytest.mark.skipif(
    Version(Version(__version__).base_version) < NEEDED_AIRFLOW, reason=f"worker_free needs Airflow {NEEDED_AIRFLOW}"
)


def as_stored(dag: DAG) -> Any:
    """The DAG as the scheduler and the triggerer know it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(DagSerialization.to_dict(dag))
