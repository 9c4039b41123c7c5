"""What Airflow discovers about this provider."""

from __future__ import annotations

from typing import Any

from airflow_horsies import __version__

CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": "horsies",
    "hook-class-name": "airflow_horsies.hook.HorsiesHook",
    "hook-name": "Horsies",
    "ui-field-behaviour": {
        "relabeling": {"schema": "Database"},
        "placeholders": {
            "host": "postgres.example.com",
            "port": "5432",
            "schema": "horsies",
            "extra": '{"sslmode": "require"}',
        },
    },
    "conn-fields": {
        "namespace": {
            "label": "Namespace",
            "schema": {"type": ["string", "null"]},
            "description": "Keeps Airflow deployments apart that share one horsies database. Default: default",
        },
        "listen": {
            "label": "Waiting",
            "schema": {"type": ["string", "null"], "enum": ["notify", "poll", None]},
            "description": "notify wakes at once; poll is for a pooler in transaction mode without a way past it",
        },
        "listen_host": {
            "label": "Host for notifications",
            "schema": {"type": ["string", "null"]},
            "description": "A direct way to Postgres where the host above is a pooler in transaction mode",
        },
        "listen_port": {
            "label": "Port for notifications",
            "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 65535},
        },
        "max_payload_bytes": {
            "label": "Largest payload in bytes",
            "schema": {"type": ["integer", "null"], "minimum": 1},
            "description": "A task with larger arguments is refused. Default: 8388608",
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, as the entry point apache_airflow_provider gives it to Airflow."""
    return {
        "package-name": "airflow-horsies",
        "name": "Horsies",
        "description": "Run work on horsies, the Postgres-backed task queue, while Airflow orchestrates.",
        "versions": [__version__],
        "integrations": [{"integration-name": "Horsies", "tags": ["software"]}],
        "hooks": [{"integration-name": "Horsies", "python-modules": ["airflow_horsies.hook"]}],
        "connection-types": [CONNECTION_TYPE],
        "cli": ["airflow_horsies.cli.get_cli_commands"],
    }
