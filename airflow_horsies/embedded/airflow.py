"""The four components of Airflow as processes, with a given metadata database."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess, free_ports, is_free, private_file

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
# The names on Airflow's health endpoint.
HEALTHY_PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
# Settings of another installation that would affect ours.
FOREIGN_PREFIXES = ("AIRFLOW", "SPARK_", "PYSPARK_")
MIGRATE_SECONDS = 300.0
HEALTH_SECONDS = 180.0
STOP_GRACE_SECONDS = 15.0


class EmbeddedAirflow:
    """An Airflow on a free loopback port, with LocalExecutor.

    :param folder: AIRFLOW_HOME, with secrets, passwords and logs.
    :param database_url: SQLAlchemy URL of the metadata database.
    :param dags_folder: the folder of the DAG files.
    :param all_admins: no login, everyone is admin; for the demo only.
    :param users: maps names to roles (admin, op, user, viewer), without ``all_admins``; see :meth:`password`.
    :param connections: maps connection ids to fields, as in Airflow's JSON form of a connection.
    :param base_path: the URL path to serve under, for example ``/airflow``.
    :param settings: more environment variables for every component.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database_url: str,
        dags_folder: Path,
        all_admins: bool = False,
        users: Mapping[str, str] | None = None,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        base_path: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.dags_folder = dags_folder.absolute()
        self.base_path = base_path.rstrip("/")
        self._database_url = database_url
        self._all_admins = all_admins
        self._users = dict(users or {})
        self._connections = dict(connections or {})
        self._settings = dict(settings or {})
        self._processes: dict[str, GuardedProcess] = {}
        self._environ: dict[str, str] = {}
        self._port = 0
        self._former_port: int | None = None

    def __enter__(self) -> Self:
        self.migrate()
        self.start()
        self.wait_healthy()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        self.environ()
        return f"http://{LOOPBACK}:{self._port}{self.base_path}"

    @property
    def former_base_url(self) -> str | None:
        """The previous address, if its port has been taken since."""
        self.environ()
        return f"http://{LOOPBACK}:{self._former_port}{self.base_path}" if self._former_port else None

    @property
    def processes(self) -> Mapping[str, GuardedProcess]:
        """Maps component names to processes."""
        return dict(self._processes)

    def environ(self) -> dict[str, str]:
        """The environment of every component, and of other processes that use this Airflow."""
        if not self._environ:
            self._environ = self._build_environ()
        return dict(self._environ)

    def password(self, user: str) -> str:
        return str(self._kept_passwords()[user])

    def migrate(self) -> None:
        """Bring the metadata database up to date."""
        command = GuardedProcess(
            "airflow db migrate",
            [sys.executable, "-m", "airflow", "db", "migrate"],
            log=self.folder / "logs" / "db-migrate.log",
            environ=self.environ(),
            folder=self.folder,
        )
        with command:
            exit_code = command.wait(MIGRATE_SECONDS)
        if exit_code != 0:
            raise EmbeddedError(f"The command 'airflow db migrate' failed.{command.log_tail()}")

    def start(self) -> None:
        """Start the four components without waiting for them."""
        environ = self.environ()
        for name, arguments in COMPONENTS.items():
            component = GuardedProcess(
                f"Airflow's {name}",
                [sys.executable, "-m", "airflow", *arguments],
                log=self.folder / "logs" / f"{name}.log",
                environ=environ,
                folder=self.folder,
                grace_seconds=STOP_GRACE_SECONDS,
            )
            component.start()
            self._processes[name] = component

    def wait_healthy(self, timeout_seconds: float = HEALTH_SECONDS) -> None:
        """Wait until every component reports itself healthy."""
        give_up = time.monotonic() + timeout_seconds
        while not (health := self.health()) or any(health[part] != "healthy" for part in HEALTHY_PARTS):
            for component in self._processes.values():
                if not component.running:
                    raise EmbeddedError(
                        f"{component.name} ended with exit code {component.exit_code}.{component.log_tail()}"
                    )
            if time.monotonic() > give_up:
                state = ", ".join(f"{part}: {health.get(part, 'no answer')}" for part in HEALTHY_PARTS)
                raise EmbeddedError(
                    f"Airflow is not healthy after {timeout_seconds:.0f} s ({state}). "
                    f"See the logs in {self.folder / 'logs'}."
                )
            time.sleep(0.25)

    def health(self) -> dict[str, str]:
        """Maps component names to statuses; empty while the api-server does not answer."""
        self.environ()
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=10)
        try:
            connection.request("GET", f"{self.base_path}/api/v2/monitor/health")
            answer = connection.getresponse()
            report = json.loads(answer.read()) if answer.status == http.client.OK else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return {part: str((report.get(part) or {}).get("status")) for part in HEALTHY_PARTS} if report else {}

    def stop(self) -> None:
        """Stop all components at the same time; does nothing if they are not running."""
        for component in self._processes.values():
            component.request_stop()
        if triggerer := self._processes.get("triggerer"):
            # On the first signal it waits 10 s for its triggers. On the second signal it ends.
            time.sleep(1.0)
            triggerer.request_stop()
        for component in self._processes.values():
            component.stop()
        self._processes.clear()

    def _build_environ(self) -> dict[str, str]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.dags_folder.mkdir(parents=True, exist_ok=True)
        self._port = self._kept_port()
        worker_log_port, trigger_log_port = free_ports(2)
        keys = self._kept_keys()
        url = f"http://{LOOPBACK}:{self._port}{self.base_path}"
        environ = inherited_environ() | {
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": keys["fernet"],
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(self._port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": keys["api"],
            "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
            # Parsing a file takes seconds, and a changed file is parsed at once anyway.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._database_url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        if self._all_admins:
            environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] = "True"
        else:
            self._kept_passwords()
            environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = ",".join(
                f"{name}:{role}" for name, role in self._users.items()
            )
            environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(self.folder / "passwords.json")
        for connection_id, fields in self._connections.items():
            environ[f"AIRFLOW_CONN_{connection_id.upper()}"] = json.dumps(fields)
        return environ | self._settings

    def _kept_port(self) -> int:
        """The previous port if it is free, so that links stay valid."""
        kept = self.folder / "port"
        if kept.exists():
            if is_free(port := int(kept.read_text())):
                return port
            self._former_port = port
        [port] = free_ports(1)
        kept.write_text(str(port))
        return port

    def _kept_keys(self) -> dict[str, str]:
        return kept_json(
            self.folder / "secrets.json",
            {
                "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "api": secrets.token_urlsafe(32),
                "jwt": secrets.token_urlsafe(48),
            },
        )

    def _kept_passwords(self) -> dict[str, str]:
        return kept_json(self.folder / "passwords.json", {name: secrets.token_urlsafe(12) for name in self._users})


def kept_json(path: Path, defaults: Mapping[str, str]) -> dict[str, str]:
    """The content of a private file. Missing keys are added from the defaults and written."""
    values: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if missing := {name: value for name, value in defaults.items() if name not in values}:
        values |= missing
        with private_file(path) as file:
            file.write(json.dumps(values).encode())
    return values


def inherited_environ() -> dict[str, str]:
    """The caller's environment without settings of Airflow and Spark, and without a proxy for the loopback address."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
    # The output goes to log files, independent of the terminal's encoding.
    environ |= {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
    environ["NO_PROXY"] = environ["no_proxy"] = ",".join(
        part for part in (os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")), LOOPBACK, "localhost") if part
    )
    return environ
