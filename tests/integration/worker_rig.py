"""A real worker with its own database, for the tests of its runtime."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk import Connection

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.worker import SPARK_WORKER, HorsiesWorker
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts as ledger
from airflow_horsies.models import (
    AttemptRecord,
    LogLine,
    Progress,
    RetryPolicy,
    TaskSpec,
    TaskState,
    TaskView,
)

HERE = Path(__file__).parent
WAIT_SECONDS = 180
LOG_LINES = 500
HANG_SECONDS = 3
SYSTEMD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

MakeRig = Callable[..., "Rig"]


class Rig:
    """A worker with its database, and short ways to ask of it."""

    def __init__(
        self,
        folder: Path,
        postgres: EmbeddedPostgres,
        database: str,
        *,
        app: str = "worker_tasks:app",
        processes: int = 1,
        **environ: str,
    ) -> None:
        info = postgres.conninfo(database)
        self.postgres = postgres
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.log = folder / "worker.log"
        self.worker = HorsiesWorker(
            app,
            conninfo=info,
            processes=processes,
            log=self.log,
            folder=folder,
            environ={
                "PYTHONPATH": str(HERE),
                "JAVA_HOME": str(find_java_home(folder / "java")),
                # What systemd gives: neither the interpreter nor anything else of this environment is on it.
                "PATH": SYSTEMD_PATH,
                "TMPDIR": str(self.temporary),
                "HORSIES_SPARK_MASTER": "local[2]",
                "HORSIES_LOG_LINES": str(LOG_LINES),
                "HORSIES_SPARK_HANG_SECONDS": str(HANG_SECONDS),
                "MY_API_TOKEN": "a-token-of-the-environment",
                **environ,
            },
            command=SPARK_WORKER,
        )
        fields = {"host": info["host"], "port": info["port"], "login": info["user"], "password": info["password"]}
        extra = json.dumps({"application_name": "the test itself"})
        connection = Connection(
            conn_id="horsies_rig", conn_type="horsies", schema=info["dbname"], extra=extra, **fields
        )
        self.hook = HorsiesHook("horsies_rig", connection=connection)

    def send(
        self, name: str, /, *, retry_for: list[str] | None = None, spec: dict[str, Any] | None = None, **given: Any
    ) -> str:
        policy = RetryPolicy.fixed([1], auto_retry_for=retry_for, jitter=False) if retry_for else None
        return self.hook.enqueue_task(TaskSpec(task_name=name, kwargs=given, retry_policy=policy, **(spec or {})))

    def start(self) -> None:
        self.worker.start()
        self.worker.wait_live()
        migrate_ledger(self.hook.client)

    def run(self, name: str, /, **given: Any) -> TaskView:
        return self.wait(self.send(name, **given))

    def wait(self, task_id: str) -> TaskView:
        (task,) = self.hook.wait([task_id], timeout_seconds=WAIT_SECONDS)
        return task

    def ok(self, name: str, /, **given: Any) -> Any:
        task = self.run(name, **given)
        assert task.state is TaskState.COMPLETED, (task, self.lines(task.id)[-5:])
        assert task.result
        return task.result.ok

    def lines(self, task_id: str) -> list[LogLine]:
        lines: list[LogLine] = []
        while more := self.hook.read_lines(task_id, after=lines[-1].cursor if lines else None):
            lines += more
        return lines

    def texts(self, task_id: str) -> list[str]:
        return [line.text for line in self.lines(task_id)]

    def records(self, task_id: str) -> tuple[AttemptRecord, ...]:
        return self.hook.client.session.run(lambda: ledger.read_attempts([task_id])).get(task_id, ())

    def progress(self, task_id: str) -> Progress | None:
        return self.hook.client.session.run(lambda: ledger.read_progress([task_id])).get(task_id)

    def until(self, holds: Callable[[], Any], what: str, *, seconds: float = WAIT_SECONDS) -> Any:
        give_up = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < give_up, f"{what} did not come\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)
        return found

    def until_running(self, task_id: str) -> None:
        self.until(lambda: self.hook.read_states([task_id])[task_id] is TaskState.RUNNING, "the start")
        self.until(lambda: self.records(task_id), "the record of the start")

    def family(self) -> list[psutil.Process]:
        return [self._leader(), *self._leader().children(recursive=True)]

    def child(self) -> psutil.Process:
        def runs_tasks(process: psutil.Process) -> bool:
            return "spawn_main" in " ".join(process.cmdline())

        (found,) = [process for process in self._leader().children() if runs_tasks(process)]
        return found

    def jvm(self) -> psutil.Process:
        (found,) = [process for process in self.child().children() if process.name() == "java"]
        return found

    def _leader(self) -> psutil.Process:
        return psutil.Process(self.worker.process.pid)


@pytest.fixture(scope="module")
def make_rig(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(name: str, **options: Any) -> Rig:
        postgres.create_database(name)
        rig = Rig(tmp_path_factory.mktemp(name), postgres, name, **options)
        made.append(rig)
        rig.start()
        return rig

    yield make
    for rig in made:
        rig.hook.close()
        rig.worker.stop()
        postgres.drop_database(rig.hook.settings.database.connect_args["dbname"])
