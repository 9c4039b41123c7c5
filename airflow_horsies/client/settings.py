"""The settings of a client."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_horsies.db.connection import Database
from airflow_horsies.exceptions import DeploymentUnknown
from airflow_horsies.wire.encoding import DEFAULT_MAX_PAYLOAD_BYTES

__all__ = ["DEFAULT_MAX_PAYLOAD_BYTES", "DEFAULT_NAMESPACE", "ClientSettings"]

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """
    :param database: horsies' database.
    :param name: the name of the connection, for messages.
    :param given_namespace: separates Airflow deployments that share the database; None if it is not set.
    :param base_url: the address of this Airflow deployment; empty if it has none.
    :param is_under_way: the namespace is that of earlier work, whose deployment may have moved.
    :param listens: whether notifications wake waiters; otherwise they poll.
    :param migrates: whether our tables are migrated on first use.
    """

    database: Database
    name: str = "this connection"
    given_namespace: str | None = None
    base_url: str = ""
    is_under_way: bool = False
    listens: bool = True
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES
    migrates: bool = True

    @property
    def namespace(self) -> str:
        return self.given_namespace or DEFAULT_NAMESPACE

    def require_deployment(self) -> None:
        """Deployments that share a database must be distinguishable, or their tasks would be mixed up."""
        if not self.base_url and not self.given_namespace:
            raise DeploymentUnknown(
                f"Nothing distinguishes this Airflow deployment from others that use the same horsies database. Set "
                f"'namespace' in the extra of {self.name} to a unique name, or set [api] base_url for every "
                "component, workers included."
            )
