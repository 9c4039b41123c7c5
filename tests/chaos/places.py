"""A second host, a clock that goes wrong and a small disk, as far as this machine lets us make them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_horsies.embedded.process import GuardedProcess

HERE = Path(__file__).parent
DATABASE_NAME = "database.chaos"
SECOND_HOST_NAME = "second-host"
DISK_BYTES = 48 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
# Sets up what a process sees of the second host, and becomes the process.
ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class Unable(Exception):
    """This machine does not let us."""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Unable(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


def require(*programs: str) -> None:
    if os.geteuid() != 0:
        raise Unable("needs root")
    for program in programs:
        if shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            raise Unable(f"needs the program {program}")


def leave_mounts_of_others() -> None:
    """What is mounted from now on is seen by us alone, and gone with us."""
    os.unshare(os.CLONE_NEWNS)
    run("mount", "--make-rprivate", "/")


class SecondHost:
    """A network namespace with a name, a resolver and a cable of its own; it ends with the process that holds it."""

    def __init__(self, folder: Path) -> None:
        require("unshare", "nsenter", "ip", "mount", "hostname")
        self._hosts = folder / "hosts"
        self._holder = GuardedProcess(
            "The second host",
            ["unshare", "--net", "sleep", "infinity"],
            log=folder / "second-host.log",
            environ=dict(os.environ),
        )
        number = os.getpid() % 250 + 1
        self._cable = f"chaos{os.getpid() % 100_000}"
        self.gateway = f"10.213.{number}.1"
        self._address = f"10.213.{number}.2"

    def start(self) -> None:
        self._holder.start()
        pid = str(self._holder.pid)
        inside = ("nsenter", f"--target={pid}", "--net", "ip")
        try:
            _wait_for_namespace(self._holder.pid)
            run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
            run("ip", "address", "add", f"{self.gateway}/30", "dev", self._cable)
            run("ip", "link", "set", self._cable, "up")
            run(*inside, "address", "add", f"{self._address}/30", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "link", "set", "lo", "up")
            self._write_hosts(knows_database=True)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._holder.stop()

    def command(self, *command: str | Path) -> list[str]:
        """The command, run on this host."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--net", "unshare", "--mount", "--uts"]
        return [*enter, "sh", "-c", ENTER, "sh", SECOND_HOST_NAME, str(self._hosts), *map(str, command)]

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        run("ip", "link", "set", self._cable, "down")
        try:
            yield
        finally:
            run("ip", "link", "set", self._cable, "up")

    @contextmanager
    def without_dns(self) -> Iterator[None]:
        self._write_hosts(knows_database=False)
        try:
            yield
        finally:
            self._write_hosts(knows_database=True)

    def _write_hosts(self, *, knows_database: bool) -> None:
        # In place: processes of the host see this very file.
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {SECOND_HOST_NAME}"]
        if knows_database:
            lines.append(f"{self.gateway} {DATABASE_NAME}")
        self._hosts.write_text("\n".join(lines) + "\n")


def _wait_for_namespace(pid: int) -> None:
    ours = Path("/proc/self/ns/net").readlink()
    for _ in range(200):
        if Path(f"/proc/{pid}/ns/net").readlink() != ours:
            return
        time.sleep(0.02)
    raise Unable("the network namespace did not come")


class Clock:
    """The time of day of processes that are started with ``environ``; how wrong it is can be changed at any time."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise Unable("needs a C compiler")
        library = folder / "skew.so"
        run(compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "skew.c"), "-ldl")
        self._file = folder / "skew"
        self._file.write_bytes(struct.pack("q", 0))
        self.environ = {"LD_PRELOAD": str(library), "SKEW_FILE": str(self._file)}

    @contextmanager
    def wrong_by(self, seconds: int) -> Iterator[None]:
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))


class FastDisk:
    """A disk in memory: Postgres recovers from a crash in a moment, and outlives its own death as on any other."""

    options = "mode=0711"

    def __init__(self, folder: Path) -> None:
        require("mount", "umount")
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", self.options, "chaos", str(folder))
        self.folder = folder

    def stop(self) -> None:
        run("umount", "--lazy", str(self.folder))


class SmallDisk(FastDisk):
    """A disk that is quickly full."""

    options = f"size={DISK_BYTES},mode=0711"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._filler = folder / "filler"

    @contextmanager
    def full(self) -> Iterator[None]:
        with self._filler.open("wb", buffering=0) as file:
            # Large pieces first, then the rest of the last one.
            for size in (CHUNK_BYTES, 4096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
        try:
            yield
        finally:
            self._filler.unlink(missing_ok=True)

    def stop(self) -> None:
        """What was written on it stays beside it, for people to read."""
        for path in self.folder.iterdir():
            shutil.copy(path, self.folder.parent)
        super().stop()
