"""The JVM of a child's Spark. It is started by the child and ends with it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from airflow_horsies.borrowed import pyspark as borrowed
from airflow_horsies.worker.parent_death import die_with_parent

FOLDER_PREFIX = "airflow-horsies-spark-"
CONNECTION_FILE = "connection"
LOCK_FILE = "lock"
LEVEL = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ")
STOP_SECONDS = 5.0
LOOPBACK = "127.0.0.1"

OnLine = Callable[[str, str], None]


class JvmError(Exception):
    """The JVM did not start or is gone; the message contains its last output."""


class Jvm:
    """A JVM with Spark's Python gateway in it.

    :param conf: Spark's settings. They are passed in a file that only this user can read, not on a command line.
    :param on_line: called with level and text for each line of output.
    """

    def __init__(self, conf: Mapping[str, str], on_line: OnLine) -> None:
        self._conf = conf
        self._on_line = on_line
        self._last_lines: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self._lock = _lock(self.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def launch(self) -> None:
        """Start the JVM on the main thread, without waiting. The JVM ends with the thread that started it."""
        from pyspark.find_spark_home import _find_spark_home

        spark_home = _find_spark_home()
        self._name_python()
        properties = self.folder / "spark.properties"
        properties.write_text("".join(f"{name} {_escaped(value)}\n" for name, value in self._full_conf().items()))
        child_pid = os.getpid()

        def before_exec() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            die_with_parent(child_pid)

        process = self._process = subprocess.Popen(
            [
                str(Path(spark_home, "bin", "spark-submit")),
                *("--load-spark-defaults", "--properties-file", str(properties), "pyspark-shell"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                # Spark's own script would run the python3 of the PATH, which may be another one or missing.
                "SPARK_HOME": spark_home,
                "SPARK_CONNECT_MODE": "0",
                **({"SPARK_LOCAL_IP": LOOPBACK} if self._is_local and "SPARK_LOCAL_IP" not in os.environ else {}),
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self.folder / CONNECTION_FILE),
            },
            preexec_fn=before_exec,
        )
        threading.Thread(target=self._read, args=(process.stdout,), name="horsies-jvm-lines", daemon=True).start()

    def _name_python(self) -> None:
        """Run Python functions of queries with this interpreter, except on the executors of a cluster."""
        named = self._conf.get("spark.pyspark.python") or (sys.executable if self._is_local else None)
        if named:
            os.environ.setdefault("PYSPARK_PYTHON", named)

    @property
    def _is_local(self) -> bool:
        return self._conf.get("spark.master", "").startswith("local")

    def exit_code(self, timeout_seconds: float) -> int | None:
        """The exit code, after a short wait for a JVM that may be about to exit."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(timeout_seconds)
        return None

    @property
    def is_running(self) -> bool:
        # While another thread waits for its end, poll() does not see it.
        return self._process is not None and not self._is_killed and self._process.poll() is None

    def gateway(self, timeout_seconds: float) -> Any:
        """The py4j gateway, once the JVM has reported its port."""
        port, secret = self._wait_for_connection(time.monotonic() + timeout_seconds)
        known = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        os.environ.update(known)
        try:
            return borrowed.open_gateway()
        finally:
            for name in known:
                del os.environ[name]

    def kill(self) -> None:
        self._is_killed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def stop(self) -> None:
        """Close the input of the JVM, which makes it exit."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    @property
    def last_output(self) -> str:
        lines = "\n".join(self._last_lines[-10:])
        return f"Its last output: {lines}" if lines else "It has no output."

    def _full_conf(self) -> dict[str, str]:
        conf = dict(self._conf)
        conf.setdefault("spark.local.dir", str(self.folder))
        options = conf.get("spark.driver.extraJavaOptions", "")
        conf["spark.driver.extraJavaOptions"] = f'"-Djava.io.tmpdir={self.folder}" {options}'.strip()
        return conf

    def _wait_for_connection(self, give_up: float) -> tuple[int, str]:
        path = self.folder / CONNECTION_FILE
        while not path.exists():
            if not self.is_running:
                time.sleep(0.1)  # its last lines are still being read
                raise JvmError(
                    f"The JVM of Spark exited during its start. Check Java and the free memory. {self.last_output}"
                )
            if time.monotonic() > give_up:
                raise JvmError(f"The JVM of Spark did not start in time. Check the Spark master. {self.last_output}")
            time.sleep(0.05)
        data = path.read_bytes()
        path.unlink()
        port, length = struct.unpack_from("!ii", data)
        return port, data[8 : 8 + length].decode()

    def _read(self, stream: IO[bytes]) -> None:
        level = "INFO"
        for line in stream:
            text = line.decode("utf-8", "backslashreplace").rstrip()
            found = LEVEL.match(text)
            if found:
                level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(found[1], found[1])
            self._last_lines = [*self._last_lines[-20:], text]
            self._on_line(level, text)


def _lock(folder: Path) -> IO[bytes]:
    """A lock that is held while the child lives. It also works between containers with different process ids."""
    # Renamed after it is locked, so that nobody sees it unlocked.
    unnamed = folder / f"{LOCK_FILE}.new"
    lock = unnamed.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / LOCK_FILE)
    return lock


def remove_orphaned_folders() -> None:
    """Remove the folders of children that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                with (folder / LOCK_FILE).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
