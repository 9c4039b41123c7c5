"""The metadata of this provider for Airflow."""

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
            "description": "Separates Airflow deployments that share one horsies database. Required if [api] base_url "
            "is not set. Default: default.",
        },
        "listen": {
            "label": "Waiting",
            "schema": {"type": ["string", "null"], "enum": ["notify", "poll", None]},
            "description": "notify reacts at once. poll is for a pooler in transaction mode that cannot be bypassed.",
        },
        "listen_host": {
            "label": "Host for notifications",
            "schema": {"type": ["string", "null"]},
            "description": "The Postgres server itself, if the host above is a pooler in transaction mode.",
        },
        "listen_port": {
            "label": "Port for notifications",
            "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 65535},
        },
        "max_payload_bytes": {
            "label": "Largest payload in bytes",
            "schema": {"type": ["integer", "null"], "minimum": 1},
            "description": "A task with larger arguments is refused. Default: 8388608.",
        },
    },
}

CONFIG: dict[str, Any] = {
    "horsies": {
        "description": "How the components of Airflow work with horsies.",
        "options": {
            "conn_id": {
                "description": "The connection that the api-server uses for the link of the operators and for the UI. "
                "It must name the database and the namespace that the operators submit to.",
                "version_added": "0.1.0",
                "type": "string",
                "example": None,
                "default": "horsies_default",
            },
            "auto_migrate": {
                "description": "Whether the first process of a newer release migrates the airflow_horsies tables "
                "automatically. With False, submitting is refused until 'airflow horsies db migrate' has run; waiting "
                "and cancelling continue.",
                "version_added": "0.2.0",
                "type": "boolean",
                "example": None,
                "default": "True",
            },
            "callbacks": {
                "description": "Whether outside parties may answer callbacks at /horsies/callbacks, below [api] "
                "base_url, with a token and without a login. Set it for the api-server and for the components that "
                "run tasks.",
                "version_added": "0.2.0",
                "type": "boolean",
                "example": None,
                "default": "False",
            },
            "callback_rate": {
                "description": "How many requests a minute one client may send to the addresses of callbacks, for each "
                "process of the api-server. All clients together may send five times as many. Behind a proxy, all "
                "clients are one unless the api-server runs with --proxy-headers.",
                "version_added": "0.2.0",
                "type": "integer",
                "example": None,
                "default": "120",
            },
            "docs_url": {
                "description": "The address at which you serve this documentation. If it is set, the log of a failed "
                "task and the pages in the Airflow UI link to the explanation of the error.",
                "version_added": "0.2.0",
                "type": "string",
                "example": "https://docs.example.com/airflow-horsies",
                "default": "",
            },
            "resume_hold_seconds": {
                "description": "The minimum number of seconds from the deferral of a task to its resume, so that the "
                "scheduler of Airflow does not fail it with a state mismatch (apache/airflow#72716); also the shortest "
                "time after which a sensor is rescheduled. 0 disables the delay. By default it is derived from "
                "[workers] min_heartbeat_interval and the heartbeats of the scheduler, and is at most 45.",
                "version_added": "0.1.0",
                "type": "float",
                "example": "10",
                "default": None,
            },
        },
    },
}


def get_provider_info() -> dict[str, Any]:
    """The metadata of the provider, for the entry point apache_airflow_provider."""
    return {
        "package-name": "airflow-horsies",
        "name": "Horsies",
        "description": "Run work on horsies, the Postgres-backed task queue, while Airflow orchestrates.",
        "versions": [__version__],
        "integrations": [{"integration-name": "Horsies", "tags": ["software"]}],
        "operators": [{"integration-name": "Horsies", "python-modules": ["airflow_horsies.operators"]}],
        "hooks": [{"integration-name": "Horsies", "python-modules": ["airflow_horsies.hook"]}],
        "sensors": [{"integration-name": "Horsies", "python-modules": ["airflow_horsies.sensors"]}],
        "triggers": [
            {
                "integration-name": "Horsies",
                "python-modules": ["airflow_horsies.triggers", "airflow_horsies.operators.starting"],
            }
        ],
        "task-decorators": [{"name": "horsies", "class-name": "airflow_horsies.decorators.horsies_task"}],
        "notifications": ["airflow_horsies.notifications.HorsiesNotifier"],
        "connection-types": [CONNECTION_TYPE],
        "cli": ["airflow_horsies.cli.get_cli_commands"],
        "extra-links": ["airflow_horsies.links.HorsiesAttemptsLink"],
        "config": CONFIG,
    }
