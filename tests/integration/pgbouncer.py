"""A real PgBouncer in front of the embedded Postgres, from the system or unpacked from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import GuardedProcess, RunAs, free_ports

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
def pgbouncer(postgres: EmbeddedPostgres, folder: Path, *, pool_mode: str) -> Iterator[int]:
    """The port of a running PgBouncer."""
    program = find_pgbouncer()
    [port] = free_ports(1)
    info = postgres.conninfo()
    users = folder / "users.txt"
    users.write_text(f'"{info["user"]}" "{info["password"]}"\n')
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={info['host']} port={info['port']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {users}\npool_mode = {pool_mode}\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    run_as = None
    if os.geteuid() == 0:
        run_as = RunAs.nobody()
        for path in (folder, users, settings):
            os.chown(path, run_as.uid, run_as.gid)
        for parent in (folder, *folder.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
    libraries = next(CACHE.glob("usr/lib/*-linux-gnu"), CACHE)
    process = GuardedProcess(
        "PgBouncer",
        [program, settings],
        log=folder / "pgbouncer.log",
        environ={"PATH": os.defpath, "LD_LIBRARY_PATH": str(libraries)},
        run_as=run_as,
    )
    with process:
        give_up = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(**{**info, "port": port}).close()
                break
            except psycopg.OperationalError:
                assert process.running and time.monotonic() < give_up, process.log_tail()
                time.sleep(0.05)
        yield port
