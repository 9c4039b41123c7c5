"""The worker task that makes the report."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from horsies import Horsies
from pydantic import AwareDatetime
from pyspark.sql import DataFrame, SparkSession

from airflow_horsies.client.reporting import WorkerClient
from airflow_horsies.core.environment import REPORT_FOLDER
from airflow_horsies.core.report import Report
from airflow_horsies.report.figures import Figures, attempts_of, compute_figures, ended_tasks
from airflow_horsies.report.page import Period, render_page
from airflow_horsies.report.workflow_figures import (
    WorkflowFigures,
    compute_workflow_figures,
    ended_workflows,
    nodes_of,
)
from airflow_horsies.source.connecting import find_database
from airflow_horsies.worker import TaskFault, progress, spark_task
from airflow_horsies.worker.settings import SettingsError

REPORT_TASK = "horsies.reliability_report"
REPORT_NAME = "reliability"
TABLES = tuple(field.name for kind in (Figures, WorkflowFigures) for field in fields(kind))


def add_report_task(app: Horsies, *, folder: str | None = None, name: str = REPORT_TASK, **options: Any) -> None:
    """
    Register the task that makes the reliability report of a period, with the arguments ``start`` and ``end``.

    .. code-block:: python

        app = horsies_app()
        add_report_task(app, folder="s3a://lake/horsies")

    :param app: the app made by ``horsies_app``.
    :param folder: where the figures are written as Parquet files. A local folder also gets the HTML page
        [``HORSIES_REPORT_FOLDER``].
    :param name: the name that operators use for the task.
    :param options: options of ``spark_task``.
    """
    place = folder or os.environ.get(REPORT_FOLDER)
    if not place:
        raise SettingsError(f"The report has no folder. Pass folder to add_report_task(), or set {REPORT_FOLDER}.")

    @spark_task(app, name, **options)
    def reliability_report(spark: SparkSession, *, start: AwareDatetime, end: AwareDatetime) -> dict[str, Any]:
        """Report the tasks and workflows that ended from ``start``, inclusive, to ``end``, exclusive."""
        if end <= start:
            raise TaskFault(
                "BAD_INPUT", f"Argument end must be after start: {end.isoformat()} is not after {start.isoformat()}."
            )
        return write_report(spark, Period(start=start, end=end), place)


def write_report(spark: SparkSession, period: Period, folder: str) -> dict[str, Any]:
    """Compute the figures, write them to the folder, and store the page for Airflow's web server."""
    # Days are in UTC.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    progress(0, len(TABLES) + 1, "Reading the tasks that ended")
    tasks = ended_tasks(spark, period.start, period.end).cache()
    found = tasks.count()
    attempts = attempts_of(spark, tasks, period.end).cache()
    print(f"{found:,} tasks ended from {period.start} to {period.end}.")
    figures = compute_figures(tasks, attempts)
    workflows = ended_workflows(spark, period.start, period.end).cache()
    print(f"{workflows.count():,} workflows ended.")
    of_workflows = compute_workflow_figures(workflows, nodes_of(spark, workflows, period.end).cache())
    rows: dict[str, list[dict[str, Any]]] = {}
    for done, table in enumerate(TABLES, start=1):
        progress(done, len(TABLES) + 1, f"Computing the {table}")
        frame = getattr(figures if hasattr(figures, table) else of_workflows, table)
        rows[table] = _write_table(spark, frame, f"{folder}/{table}/period={period.key}")
    page = render_page(period, **rows, made_at=datetime.now(UTC))
    place = _write_page(page, folder, period)
    report = Report(name=REPORT_NAME, period_start=period.start, period_end=period.end, location=place or folder)
    _show_in_airflow(report, page)
    total = next((row for row in rows["groups"] if row["dimension"] == "all" and row["day"] is None), None)
    return {
        "tasks": found,
        "success_rate": total and total["success_rate"],
        "retries": total and total["retries"],
        "folder": folder,
        "page": place,
    }


def _write_table(spark: SparkSession, frame: DataFrame, uri: str) -> list[dict[str, Any]]:
    """Write a table and return its rows. They are few, so they are computed once for the file and the page."""
    rows = frame.collect()
    spark.createDataFrame(rows, frame.schema).coalesce(1).write.mode("overwrite").parquet(uri)
    return [row.asDict() for row in rows]


def _write_page(page: str, folder: str, period: Period) -> str | None:
    """The path of the page; None if the folder is not local."""
    scheme = urlsplit(folder).scheme
    if scheme not in ("", "file"):
        return None
    place = Path(url2pathname(urlsplit(folder).path) if scheme else folder).absolute() / "pages" / f"{period.key}.html"
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = place.with_suffix(f".{os.getpid()}.tmp")
    staged.write_text(page, encoding="utf-8")
    staged.replace(place)
    return str(place)


def _show_in_airflow(report: Report, page: str) -> None:
    client = WorkerClient(find_database(None), is_limited=False)
    try:
        client.save_report(report, page)
    finally:
        client.close()
