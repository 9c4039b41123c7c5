"""The triggers. Airflow's database keeps their paths and arguments: treat them as schema."""

from __future__ import annotations

from airflow_horsies.triggers.base import HorsiesTrigger, Reason
from airflow_horsies.triggers.batch import HorsiesBatchTrigger
from airflow_horsies.triggers.callback import HorsiesCallbackTrigger
from airflow_horsies.triggers.queue import HorsiesQueueTrigger
from airflow_horsies.triggers.sensing import HorsiesSensorTrigger, HorsiesSubmissionTrigger
from airflow_horsies.triggers.workflow import HorsiesWorkflowTrigger
from airflow_horsies.triggers.workflow_sensing import HorsiesWorkflowSensorTrigger, HorsiesWorkflowSubmissionTrigger

__all__ = [
    "HorsiesBatchTrigger",
    "HorsiesCallbackTrigger",
    "HorsiesQueueTrigger",
    "HorsiesSensorTrigger",
    "HorsiesSubmissionTrigger",
    "HorsiesTrigger",
    "HorsiesWorkflowSensorTrigger",
    "HorsiesWorkflowSubmissionTrigger",
    "HorsiesWorkflowTrigger",
    "Reason",
]
