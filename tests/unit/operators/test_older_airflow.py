"""Runs on every supported Airflow."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from airflow_horsies.exceptions import InvalidTask
from airflow_horsies.operators import HorsiesOperator, worker_free


def test_older_airflow_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_free, "airflow_version", "3.2.2")
    refused = r"needs Airflow 3\.3 or newer, and this is 3\.2\.2\. Set deferrable=True"
    with DAG("sales", schedule=None), pytest.raises(InvalidTask, match=refused):
        HorsiesOperator(task_id="one", task_name="add", worker_free=True)
