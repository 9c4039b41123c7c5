"""A real PgBouncer in front of the embedded Postgres, from the system or unpacked from Debian's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess, RunAs, free_ports

CACHE = Path(__file__).parents[2] / ".cache" / "pgbouncer"
PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")


def find_pgbouncer() -> Path:
    """The program; skips the test, saying why, where it cannot be had."""
    installed = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if installed:
        return Path(installed)
    unpacked = CACHE / "usr" / "sbin" / "pgbouncer"
    if not unpacked.exists():
        _unpack_from_debian()
    if not unpacked.exists():
        pytest.skip("PgBouncer is not installed and Debian's packages cannot be had: LISTEN through it is NOT tested")
    return unpacked


def _unpack_from_debian() -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return
    downloads = CACHE / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    for command in (["apt-get", "download", *PACKAGES], ["apt-get", "update"], ["apt-get", "download", *PACKAGES]):
        if subprocess.run(command, cwd=downloads, capture_output=True).returncode == 0 and "download" in command:
            break
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True)


@contextmanager
def pgbouncer(
    postgres: EmbeddedPostgres,
    folder: Path,
    *,
    pool_mode: str = "transaction",
    settings: str | None = None,
    users: Mapping[str, str] | None = None,
    database: str = "postgres",
) -> Iterator[int]:
    """The port of a running PgBouncer.

    :param settings: those of a guide; its address, port and file of users are replaced.
    :param users: names to passwords; the first is used to see that it answers.
    """
    info = postgres.conninfo(database)
    known = dict(users or {info["user"]: info["password"]})
    info["user"], info["password"] = next(iter(known.items()))
    if settings is None:
        settings = plain_settings(info["port"], pool_mode)
    process, port = make_pgbouncer(folder, settings, known)
    with process:
        wait_until_it_answers(process, {**info, "port": port})
        yield port


def plain_settings(server_port: int, pool_mode: str) -> str:
    return (
        f"[databases]\n* = host={LOOPBACK} port={server_port}\n"
        "[pgbouncer]\nlisten_addr =\nlisten_port =\nauth_file =\n"
        f"auth_type = trust\npool_mode = {pool_mode}\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )


def make_pgbouncer(folder: Path, settings: str, users: Mapping[str, str]) -> tuple[GuardedProcess, int]:
    """A PgBouncer that is not started yet, and its port."""
    program = find_pgbouncer()
    [port] = free_ports(1)
    user_file = folder / "users.txt"
    user_file.write_text("".join(f'"{name}" "{password}"\n' for name, password in users.items()))
    text = settings
    for name, value in {"listen_addr": LOOPBACK, "listen_port": port, "auth_file": user_file}.items():
        text = re.sub(rf"^{name} =.*$", f"{name} = {value}", text, flags=re.MULTILINE)
    settings_file = folder / "pgbouncer.ini"
    settings_file.write_text(f"{text}unix_socket_dir =\n")
    run_as = None
    if os.geteuid() == 0:
        run_as = RunAs.nobody()
        for path in (folder, user_file, settings_file):
            os.chown(path, run_as.uid, run_as.gid)
        for parent in (folder, *folder.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
    libraries = next(CACHE.glob("usr/lib/*-linux-gnu"), CACHE)
    process = GuardedProcess(
        "PgBouncer",
        [program, settings_file],
        log=folder / "pgbouncer.log",
        environ={"PATH": os.defpath, "LD_LIBRARY_PATH": str(libraries)},
        run_as=run_as,
    )
    return process, port


def wait_until_it_answers(process: GuardedProcess, conninfo: Mapping[str, Any]) -> None:
    give_up = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(**conninfo).close()
            return
        except psycopg.OperationalError:
            assert process.running and time.monotonic() < give_up, process.log_tail()
            time.sleep(0.05)
