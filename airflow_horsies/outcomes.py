"""The errors of operators that are also errors of Airflow."""

from __future__ import annotations

from airflow_horsies.operators.outcomes import TaskFailedForGood, TaskTimedOut

__all__ = ["TaskFailedForGood", "TaskTimedOut"]
