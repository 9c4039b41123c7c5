"""Airflow's simple auth manager, made to know a user who may not see every DAG."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

STRANGER = "stranger"
DAG_OF_STRANGER = "dag_of_stranger"


class AuthByDag(SimpleAuthManager):
    def is_authorized_dag(self, *, user: Any, details: Any = None, **asked: Any) -> bool:
        if user.username == STRANGER and (details is None or details.id != DAG_OF_STRANGER):
            return False
        return super().is_authorized_dag(user=user, details=details, **asked)
