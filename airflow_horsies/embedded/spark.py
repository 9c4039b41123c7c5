"""A Spark beside ours, from the pyspark wheel: a standalone cluster or a Spark Connect server, for demo and tests.

Each listens on loopback ports of its own. Logs stay in its folder; work folders are gone after ``stop``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from airflow_horsies.embedded.airflow import inherited_environ
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.guard import descendants
from airflow_horsies.embedded.java import find_java_home
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess, require_linux

Answer = TypeVar("Answer")

START_SECONDS = 90.0
STOP_GRACE_SECONDS = 5.0
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
CONNECT_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Spark is given port 0 and logs the port it took: nobody can take a chosen one in between.
MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+:[1-9]\d*)")
MASTER_PAGE = re.compile(r"MasterWebUI to .* started at (http://\S+:[1-9]\d*)")
CONNECT_PORT = re.compile(r"Spark Connect server started at: \S*:([1-9]\d*)")


class EmbeddedSpark:
    """The processes of one Spark below a folder; usable as a context manager that waits until it can be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.processes: list[GuardedProcess] = []
        self._url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        if not self._url:
            raise EmbeddedError("The embedded Spark has no address: it is not running.")
        return self._url

    @cached_property
    def environ(self) -> dict[str, str]:
        """What its processes, and a driver that uses it, need in their environment."""
        return {
            "JAVA_HOME": str(find_java_home(self.folder / "java")),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.work_folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def work_folder(self) -> Path:
        """What Spark writes while it runs: shuffle files, the executors' folders, a warehouse."""
        return self.folder / "spark-work"

    def start(self) -> None:
        """Start everything; returns when it can be used."""
        require_linux()
        if self.processes:
            raise EmbeddedError(f"The embedded Spark in {self.folder} is running already.")
        self.work_folder.mkdir(parents=True, exist_ok=True)
        try:
            self._url = self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything at once and remove what it wrote, except the logs."""
        for process in self.processes:
            process.request_stop()
        for process in self.processes:
            process.stop()
        self.processes.clear()
        self._url = ""
        shutil.rmtree(self.work_folder, ignore_errors=True)

    def _start(self) -> str:
        raise NotImplementedError

    def _run(self, name: str, log: str, arguments: Sequence[str]) -> GuardedProcess:
        temporary = self.work_folder / "tmp"
        temporary.mkdir(exist_ok=True)
        # A killed Spark leaves its temporary files, the Connect server some of them in any case.
        java_options = {"JAVA_TOOL_OPTIONS": f'"-Djava.io.tmpdir={temporary}"'}
        process = GuardedProcess(
            name,
            [spark_home() / "bin" / "spark-class", *arguments],
            log=self.folder / log,
            environ=inherited_environ() | self.environ | java_options,
            folder=self.work_folder,
            grace_seconds=STOP_GRACE_SECONDS,
        )
        process.start()
        self.processes.append(process)
        return process

    def _wait_for(self, process: GuardedProcess, missing: str, ask: Callable[[], Answer | None]) -> Answer:
        """The first answer that says something, while all processes run and time is left."""
        give_up = time.monotonic() + START_SECONDS
        while not (answer := ask()):
            if ended := next((each for each in self.processes if not each.running), None):
                raise EmbeddedError(f"{ended.name} ended with exit code {ended.exit_code}.{ended.log_tail()}")
            if time.monotonic() > give_up:
                raise EmbeddedError(f"{process.name} {missing} after {START_SECONDS:.0f} s.{process.log_tail()}")
            time.sleep(0.1)
        return answer


class EmbeddedSparkCluster(EmbeddedSpark):
    """A standalone master and its workers, each worker a machine of its own as far as Spark can tell.

    Drivers choose the Python of the executors: set ``PYSPARK_PYTHON`` where the session is made.

    :param folder: for the logs and, while it runs, the work folders; created if missing.
    :param workers: how many workers.
    :param cores: what each worker offers.
    :param memory: what each worker offers, as Spark spells it.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        super().__init__(folder)
        self.workers = workers
        self.cores = cores
        self.memory = memory

    def executors(self) -> list[int]:
        """The process ids of the executors that run now, those of the first worker first."""
        return [pid for worker in self.processes[1:] for pid in descendants(worker.pid) if _runs(pid, EXECUTOR_CLASS)]

    def _start(self) -> str:
        listen = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        master = self._run("The Spark master", "spark-master.log", [MASTER_CLASS, *listen])
        url = self._wait_for(master, "has no address", lambda: logged(master, MASTER_URL))
        page = self._wait_for(master, "has no web page", lambda: logged(master, MASTER_PAGE))
        offer = ["--cores", str(self.cores), "--memory", self.memory]
        for number in range(1, self.workers + 1):
            work = ["--work-dir", str(self.work_folder / f"worker-{number}")]
            self._run(
                f"Spark worker {number}", f"spark-worker-{number}.log", [WORKER_CLASS, *listen, *offer, *work, url]
            )
        self._wait_for(self.processes[-1], "and its siblings are not registered", lambda: self._all_registered(page))
        return url

    def _all_registered(self, page: str) -> bool:
        # No proxy stands before the loopback address.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{page}/json/", timeout=10) as answer:
                alive = [worker for worker in json.load(answer)["workers"] if worker["state"] == "ALIVE"]
        except OSError:
            return False
        return len(alive) == self.workers


class EmbeddedSparkConnect(EmbeddedSpark):
    """A Spark Connect server; it asks for no token and serves whoever reaches the loopback address.

    :param folder: for the log and, while it runs, the work folder; created if missing.
    :param master: where it runs its jobs: ``local[2]``, or the ``url`` of an :class:`EmbeddedSparkCluster`.
    """

    def __init__(self, folder: Path, *, master: str = "local[2]") -> None:
        super().__init__(folder)
        self.master = master

    def _start(self) -> str:
        settings = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = self._run(
            "The Spark Connect server",
            "spark-connect.log",
            ["org.apache.spark.deploy.SparkSubmit", "--class", CONNECT_CLASS, "--master", self.master, *options],
        )
        port = self._wait_for(server, "has no address", lambda: logged(server, CONNECT_PORT))
        socket.create_connection((LOOPBACK, int(port)), timeout=10).close()
        return f"sc://{LOOPBACK}:{port}"


def spark_home() -> Path:
    """The folder of the pyspark wheel, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(location) / "bin" / "spark-class").exists():
            return Path(location)
    raise EmbeddedError("The embedded Spark needs pyspark: pip install 'airflow-horsies[worker]'.")


def logged(process: GuardedProcess, line: re.Pattern[str]) -> str | None:
    """What a process has logged about itself, if it has."""
    found = line.search(process.log.read_text(errors="replace"))
    return found[1] if found else None


def _runs(pid: int, main_class: str) -> bool:
    try:
        return main_class.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
