"""The app of the demo's worker: the tasks of the pipeline, those of the other examples, and the reliability report."""

from __future__ import annotations

import flights.models  # noqa: F401 - registers its tasks
from airflow_horsies.report import add_report_task
from flights.tasks import app

add_report_task(app)

__all__ = ["app"]
