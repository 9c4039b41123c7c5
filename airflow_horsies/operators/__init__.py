"""Operators that send tasks to horsies, wait for them, and report their outcome to Airflow."""

from __future__ import annotations

from airflow_horsies.operators.base import HorsiesTaskOperator
from airflow_horsies.operators.batch import HorsiesBatchOperator
from airflow_horsies.operators.callback import CALLBACK_URL, HorsiesCallbackOperator
from airflow_horsies.operators.cancel import HorsiesCancelOperator
from airflow_horsies.operators.task import XCOM_TASK_ID, HorsiesOperator

__all__ = [
    "CALLBACK_URL",
    "XCOM_TASK_ID",
    "HorsiesBatchOperator",
    "HorsiesCallbackOperator",
    "HorsiesCancelOperator",
    "HorsiesOperator",
    "HorsiesTaskOperator",
]
