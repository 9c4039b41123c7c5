"""The reliability report: success rates, retries, waiting and run times from horsies' history.

.. code-block:: python

    from airflow_horsies.report import add_report_task
    from airflow_horsies.worker import horsies_app

    app = horsies_app()
    add_report_task(app)
"""

from __future__ import annotations

from airflow_horsies.report.task import REPORT_TASK, add_report_task

__all__ = ["REPORT_TASK", "add_report_task"]
