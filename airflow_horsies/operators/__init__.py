"""Operators that send tasks and workflows to horsies, wait for them, and report their outcome to Airflow."""

from __future__ import annotations

from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.operators.batch import HorsiesBatchOperator
from airflow_horsies.operators.callback import CALLBACK_URL, HorsiesCallbackOperator
from airflow_horsies.operators.cancel import HorsiesCancelOperator
from airflow_horsies.operators.graph import HorsiesGraphOperator
from airflow_horsies.operators.signal import HorsiesSignalOperator
from airflow_horsies.operators.task import XCOM_TASK_ID, HorsiesOperator
from airflow_horsies.operators.workflow import XCOM_WORKFLOW_ID, HorsiesWorkflowOperator

__all__ = [
    "CALLBACK_URL",
    "HorsiesBatchOperator",
    "HorsiesCallbackOperator",
    "HorsiesCancelOperator",
    "HorsiesGraphOperator",
    "HorsiesOperator",
    "HorsiesSignalOperator",
    "HorsiesTaskOperator",
    "HorsiesWorkflowOperator",
    "XCOM_TASK_ID",
    "XCOM_WORKFLOW_ID",
]
