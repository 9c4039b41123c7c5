"""The operators' extra link from a task instance to the attempts of its horsies tasks."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import Context, conf
from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

from airflow_horsies.core.report import Report

log = logging.getLogger(__name__)

# Where the plugin mounts its routes, below the path of Airflow itself.
URL_PREFIX = "/horsies"


class HorsiesAttemptsLink(BaseOperatorLink):
    """
    Link to the horsies tasks of a task instance and their attempts.

    Airflow stores the link when the task's process ends, also after a deferral or a failure, but not while it runs. An
    operator that needs it earlier calls :meth:`push`.

    .. code-block:: python

        class MyOperator(BaseOperator):
            operator_extra_links = (HorsiesAttemptsLink(),)
    """

    name = "Horsies attempts"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The path on this Airflow, without a host, so that it works for every address of Airflow."""
        map_index = -1 if ti_key.map_index is None else ti_key.map_index
        run = f"dags/{_segment(ti_key.dag_id)}/runs/{_segment(ti_key.run_id)}"
        return f"{base_path()}{URL_PREFIX}/{run}/tasks/{_segment(ti_key.task_id)}/{map_index}"

    def push(self, context: Context) -> None:
        """Store the link now. A failure is only logged."""
        ti = context["ti"]
        try:
            # Airflow reads links from its own database, not from a custom XCom backend.
            BaseXCom.set(
                key=self.xcom_key,
                value=self.get_link(ti.task, ti_key=ti),
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=-1 if ti.map_index is None else ti.map_index,
            )
        except Exception:
            log.warning("The link %r could not be stored.", self.name, exc_info=True)


def report_path(report: Report) -> str:
    """The path at which this Airflow shows a report."""
    parts = (report.name, report.period_start.isoformat(), report.period_end.isoformat())
    return f"{base_path()}{URL_PREFIX}/reports/{'/'.join(_segment(part) for part in parts)}"


def base_path() -> str:
    """The path below which Airflow is served, without a trailing slash."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def _segment(text: str) -> str:
    return quote(text, safe="")
