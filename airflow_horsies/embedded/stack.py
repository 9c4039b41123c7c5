"""Postgres, Airflow and a horsies worker, started and stopped together."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_horsies.client import ledger
from airflow_horsies.client.client import Client
from airflow_horsies.client.settings import ClientSettings
from airflow_horsies.db.connection import Database
from airflow_horsies.embedded.airflow import EmbeddedAirflow
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.java import find_java
from airflow_horsies.embedded.postgres import EmbeddedPostgres, make_folder
from airflow_horsies.embedded.process import LOOPBACK, private_file
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker

AIRFLOW_DATABASE = "airflow"
HORSIES_DATABASE = "horsies"
CONNECTION_ID = "horsies_default"
DEFAULT_NAMESPACE = "default"
SAMPLE_APP = "airflow_horsies.worker.sample_tasks:app"

Step = Callable[[str], contextlib.AbstractContextManager[object]]


def silent(title: str) -> contextlib.AbstractContextManager[object]:
    """A step without output."""
    return contextlib.nullcontext(title)


class EmbeddedStack:
    """The whole stack in one folder; usable as a context manager.

    :param folder: the folder of all files.
    :param durable: keep the databases over restarts.
    :param dags_folder: DAG files for Airflow; by default an empty folder in ``folder``.
    :param worker_app: the horsies app of the worker.
    :param worker_environ: more environment variables of the worker.
    :param all_admins: run Airflow without a login.
    :param users: maps names of Airflow's users to roles, without ``all_admins``.
    :param airflow_settings: more environment variables of Airflow's components.
    :param base_path: the URL path that Airflow is served under.
    :param namespace: the namespace of the Airflow connection; by default none.
    :param step: called with the title of each step; returns a context that spans the step.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool,
        dags_folder: Path | None = None,
        worker_app: str = SAMPLE_APP,
        worker_environ: Mapping[str, str] | None = None,
        all_admins: bool = False,
        users: Mapping[str, str] | None = None,
        airflow_settings: Mapping[str, str] | None = None,
        base_path: str = "",
        namespace: str | None = None,
        step: Step = silent,
    ) -> None:
        self.folder = folder.absolute()
        self.postgres = EmbeddedPostgres(self.folder, durable=durable)
        self._dags_folder = dags_folder or self.folder / "dags"
        self._worker_app = worker_app
        self._worker_environ = dict(worker_environ or {})
        self._all_admins = all_admins
        self._users = users
        self._airflow_settings = airflow_settings
        self._base_path = base_path
        self._namespace = namespace
        self._step = step
        self._airflow: EmbeddedAirflow | None = None
        self._worker: HorsiesWorker | None = None
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def airflow(self) -> EmbeddedAirflow:
        if self._airflow is None:
            raise EmbeddedError("The embedded Airflow is not running. Call start() first.")
        return self._airflow

    @property
    def worker(self) -> HorsiesWorker:
        if self._worker is None:
            raise EmbeddedError("The horsies worker is not running. Call start() first.")
        return self._worker

    def start(self) -> None:
        """Start everything; on an error, stop what was started."""
        with contextlib.ExitStack() as starting:
            with self._step("PostgreSQL"):
                make_folder(self.folder)
                starting.enter_context(self.postgres)
                for database in (AIRFLOW_DATABASE, HORSIES_DATABASE):
                    if not self.postgres.has_database(database):
                        self.postgres.create_database(database)
            with self._step("Java for Spark"):
                java = find_java(self.folder / "java")
            # The worker and Airflow create their tables at the same time.
            self._worker = self._make_worker(java.home)
            starting.callback(self._worker.stop)
            self._worker.start()
            self._airflow = self._make_airflow()
            starting.callback(self._airflow.stop)
            self._write_environment()
            with self._step("Airflow's database"):
                self._airflow.migrate()
            self._keep_submissions(self._airflow)
            self._airflow.start()
            with self._step("horsies worker"):
                self._worker.wait_live()
            with self._step("Airflow: api-server, scheduler, dag-processor, triggerer"):
                self._airflow.wait_healthy()
            self._running = starting.pop_all()

    def stop(self) -> None:
        """Stop everything in reverse order; does nothing if nothing is running."""
        self._running.close()

    def environ(self) -> dict[str, str]:
        """The environment for code that uses this Airflow or the hook."""
        return self.airflow.environ()

    def connection(self) -> dict[str, Any]:
        """The Airflow connection to the horsies database."""
        info = self.postgres.conninfo(HORSIES_DATABASE)
        return {
            "conn_type": "horsies",
            "host": info["host"],
            "port": info["port"],
            "login": info["user"],
            "password": info["password"],
            "schema": info["dbname"],
            **({"extra": {"namespace": self._namespace}} if self._namespace else {}),
        }

    def _make_worker(self, java_home: Path) -> HorsiesWorker:
        folder = self.folder / "worker"
        folder.mkdir(mode=0o700, exist_ok=True)
        # Here and not in the system's temporary folder, as a killed JVM cannot clean up.
        temporary = folder / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        spark_environ = {
            "JAVA_HOME": str(java_home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "TMPDIR": str(temporary),
        }
        return HorsiesWorker(
            self._worker_app,
            conninfo=self.postgres.conninfo(HORSIES_DATABASE),
            log=folder / "worker.log",
            folder=folder,
            environ=spark_environ | self._worker_environ,
            command=SPARK_WORKER,
        )

    def _make_airflow(self) -> EmbeddedAirflow:
        return EmbeddedAirflow(
            self.folder / "airflow",
            database_url=self.postgres.dsn(AIRFLOW_DATABASE, scheme="postgresql+psycopg2"),
            dags_folder=self._dags_folder,
            all_admins=self._all_admins,
            users=self._users,
            connections={CONNECTION_ID: self.connection()},
            base_path=self._base_path,
            settings=self._airflow_settings,
        )

    def _keep_submissions(self, airflow: EmbeddedAirflow) -> None:
        """Update the address in the submissions, as a submission belongs to the Airflow of its address."""
        if (old := airflow.former_base_url) is None:
            return
        info = self.postgres.conninfo(HORSIES_DATABASE)
        with Client(ClientSettings(database=Database(info, info), given_namespace=self._namespace)) as client:
            if ledger.read_ledger_version(client):
                ledger.change_base_url(client, old=old, new=airflow.base_url)

    def _write_environment(self) -> None:
        """Write the settings for a shell: ``set -a; . environment; airflow …`` uses this stack."""
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in self.environ().items() if "AIRFLOW" in name)
        with private_file(self.folder / "environment") as file:
            file.write("".join(lines).encode())
