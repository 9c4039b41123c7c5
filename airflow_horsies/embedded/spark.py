"""A standalone Spark cluster or a Spark Connect server from the pyspark wheel, for the demo and the tests.

Each listens on its own loopback ports. Logs stay in its folder; ``stop`` deletes the work folders.
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
# Spark gets port 0 and logs the port it chose, so that no other process can take the port.
MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+:[1-9]\d*)")
MASTER_PAGE = re.compile(r"MasterWebUI to .* started at (http://\S+:[1-9]\d*)")
CONNECT_PORT = re.compile(r"Spark Connect server started at: \S*:([1-9]\d*)")


class EmbeddedSpark:
    """The processes of one Spark in a folder; as a context manager, it waits until Spark is ready."""

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
            raise EmbeddedError("The embedded Spark has no address, because it is not running. Call start() first.")
        return self._url

    @cached_property
    def environ(self) -> dict[str, str]:
        """The environment of its processes, and of a driver that uses it."""
        return {
            "JAVA_HOME": str(find_java_home(self.folder / "java")),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.work_folder / "local"),
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def work_folder(self) -> Path:
        """Files that Spark writes while it runs: shuffle files, folders of the executors, a warehouse."""
        return self.folder / "spark-work"

    def start(self) -> None:
        """Start all processes and wait until Spark is ready."""
        require_linux()
        if self.processes:
            raise EmbeddedError(f"The embedded Spark in {self.folder} is already running. Stop it first.")
        self.work_folder.mkdir(parents=True, exist_ok=True)
        try:
            self._url = self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all processes and delete their files, except the logs."""
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
        # A killed Spark leaves temporary files behind, and the Connect server always leaves some.
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
        """The first answer that is not empty; raises an error if a process ends or the time is up."""
        give_up = time.monotonic() + START_SECONDS
        while not (answer := ask()):
            if ended := next((other for other in self.processes if not other.running), None):
                raise EmbeddedError(f"{ended.name} ended with exit code {ended.exit_code}.{ended.log_tail()}")
            if time.monotonic() > give_up:
                raise EmbeddedError(f"{process.name} {missing} after {START_SECONDS:.0f} s.{process.log_tail()}")
            time.sleep(0.1)
        return answer


class EmbeddedSparkCluster(EmbeddedSpark):
    """A standalone master and its workers; to Spark, each worker is a separate machine.

    Drivers choose the Python of the executors: set ``PYSPARK_PYTHON`` where the session is created.

    :param folder: for the logs and, while it runs, the work folders; created if missing.
    :param workers: the number of workers.
    :param cores: the cores of each worker.
    :param memory: the memory of each worker, as in ``1g``.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        super().__init__(folder)
        self.workers = workers
        self.cores = cores
        self.memory = memory

    def executors(self) -> list[int]:
        """The process ids of the running executors, those of the first worker first."""
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
        # The loopback address needs no proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{page}/json/", timeout=10) as answer:
                alive = [worker for worker in json.load(answer)["workers"] if worker["state"] == "ALIVE"]
        except OSError:
            return False
        return len(alive) == self.workers


class EmbeddedSparkConnect(EmbeddedSpark):
    """A Spark Connect server without a token, reachable on the loopback address only.

    :param folder: for the log and, while it runs, the work folder; created if missing.
    :param master: where jobs run: ``local[2]``, or the ``url`` of an :class:`EmbeddedSparkCluster`.
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
    raise EmbeddedError("The embedded Spark needs pyspark. Run pip install 'airflow-horsies[worker]'.")


def logged(process: GuardedProcess, line: re.Pattern[str]) -> str | None:
    """The first group of a pattern in the log of a process, if it matches."""
    found = line.search(process.log.read_text(errors="replace"))
    return found[1] if found else None


def _runs(pid: int, main_class: str) -> bool:
    try:
        return main_class.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
