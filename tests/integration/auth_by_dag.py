"""Airflow's simple auth manager, made to know users who may not see every DAG."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

STRANGERS = ("stranger", "foreign_writer")
DAG_OF_STRANGERS = "dag_of_strangers"


class AuthByDag(SimpleAuthManager):
    def is_authorized_dag(self, *, user: Any, details: Any = None, **asked: Any) -> bool:
        if user.username in STRANGERS and (details is None or details.id != DAG_OF_STRANGERS):
            return False
        return super().is_authorized_dag(user=user, details=details, **asked)
