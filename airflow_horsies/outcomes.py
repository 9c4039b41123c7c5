"""The errors of operators that are errors of Airflow's at the same time."""

from __future__ import annotations

from airflow_horsies.operators.outcomes import TaskFailedForGood, TaskTimedOut

__all__ = ["TaskFailedForGood", "TaskTimedOut"]
