"""A child process with its own log file. Its process tree ends even if the launcher is killed."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_horsies.embedded.errors import EmbeddedError

LOOPBACK = "127.0.0.1"
GUARD = Path(__file__).with_name("guard.py")
# The time after the grace period in which the guard stops and kills remaining processes.
GUARD_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user that a process runs as; only root can change it."""

    uid: int
    gid: int

    @classmethod
    def nobody(cls) -> RunAs:
        try:
            entry = pwd.getpwnam("nobody")
        except KeyError:
            return cls(65534, 65534)
        return cls(entry.pw_uid, entry.pw_gid)


class GuardedProcess:
    """A command with its own session and log, run by a guard. Its process tree ends with it or with the launcher."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environ: Mapping[str, str],
        folder: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_seconds: float = 10.0,
        run_as: RunAs | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self.environ = dict(environ)
        self.folder = folder
        self.stop_signal = stop_signal
        self.grace_seconds = grace_seconds
        self.run_as = run_as
        self.keep_open = tuple(keep_open)
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the command itself; the guard is its parent."""
        return self._pid

    @property
    def guard_pid(self) -> int:
        return self._guard.pid if self._guard else 0

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._guard.poll() if self._guard else None

    def start(self) -> None:
        """Start the command with a new log."""
        require_linux()
        if self.running:
            raise EmbeddedError(f"{self.name} is already running (pid {self.pid}). Stop it first.")
        user = f"{self.run_as.uid}:{self.run_as.gid}" if self.run_as else "-"
        read_fd, write_fd = os.pipe()
        settings = [os.getpid(), int(self.stop_signal), self.grace_seconds, user, write_fd]
        guard = [sys.executable, "-I", "-S", str(GUARD), *map(str, settings), *self.command]
        with os.fdopen(read_fd, "rb") as report, private_file(self.log) as log:
            try:
                self._guard = subprocess.Popen(
                    guard,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environ,
                    cwd=self.folder,
                    start_new_session=True,
                    pass_fds=(write_fd, *self.keep_open),
                )
            finally:
                os.close(write_fd)
            self._pid = int(report.readline() or 0)
        if not self._pid:
            self._guard.wait()
            raise EmbeddedError(f"{self.name} did not start.{self.log_tail()}")

    def request_stop(self) -> None:
        """Send the stop signal without waiting; a second request sends it again."""
        if self._guard is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(signal.SIGTERM)

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait for the whole process tree and return the exit code; raises TimeoutExpired."""
        if self._guard is None:
            raise EmbeddedError(f"{self.name} has not been started. Call start() first.")
        return self._guard.wait(timeout_seconds)

    def stop(self) -> None:
        """Stop the whole process tree: the stop signal, then SIGKILL after the grace period."""
        if self._guard is None:
            return
        self.request_stop()
        try:
            self._guard.wait(self.grace_seconds + GUARD_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The end of the log, to be appended to an error message."""
        try:
            text = self.log.read_text(errors="replace").rstrip()
        except OSError:
            return ""
        if not text:
            return f" Its log, {self.log}, is empty."
        tail = "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
        return f" The end of {self.log}:\n{tail}"


def require_linux() -> None:
    """Raise an error on other systems, as the guard needs Linux."""
    if not sys.platform.startswith("linux"):
        raise EmbeddedError(
            f"The embedded stack runs only on Linux, not on {sys.platform}. Use a Linux machine, container "
            "or virtual machine (WSL 2 on Windows), or point the connection at your own Postgres."
        )


def private_file(path: Path) -> FileIO:
    """An empty file that only its owner can read, opened for writing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In append mode, because the processes that share the file have separate positions.
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), "wb")


def free_ports(count: int) -> list[int]:
    """Different free ports on the loopback address; all are held until the last one is found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind((LOOPBACK, 0))
        return [bound.getsockname()[1] for bound in sockets]


def is_free(port: int) -> bool:
    """Whether a loopback port is free."""
    with socket.socket() as probe:
        # Like servers do: a port with connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
