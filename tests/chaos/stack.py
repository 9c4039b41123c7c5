"""The real stack under trial: Postgres, a proxy, PgBouncer, workers, Airflow, and the hosts of light submitters."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
import pytest
from psycopg import sql

from airflow_horsies.embedded.airflow import EmbeddedAirflow, inherited_environ
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.embedded.process import LOOPBACK, GuardedProcess
from tests.chaos.places import DATABASE_NAME, Clock, FastDisk, SecondHost, SmallDisk, Unable
from tests.chaos.proxy import Proxy
from tests.integration.pgbouncer import make_pgbouncer, plain_settings

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
DAGS = Path(__file__).parent / "dags"
HORSIES = "horsies"
# Another database with horsies' tables, which connections are moved to by mistake.
ELSEWHERE = "elsewhere"
# Who submits, waits and cancels: an ordinary role, whose time-outs and connections can be limited.
SUBMITTER = "submitter"
BASE_URL = "http://airflow.chaos:8080"
END_SECONDS = 60.0
START_SECONDS = 300.0
# Longer than horsies waits for a connection, twice.
HUNG_SECONDS = 70.0
LAST_LINES = 15
Say = Callable[[str], None]

# So that what died is noticed within seconds, and not within minutes.
AIRFLOW_SETTINGS = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "25",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "40",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__NUM_STUCK_IN_QUEUED_RETRIES": "500",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
}


class Component:
    """A process that faults happen to; one at a time."""

    def __init__(self, process: GuardedProcess) -> None:
        self.process = process
        self.lock = threading.RLock()
        self._log = process.log
        self._starts = 0
        self._disturbed_at = time.monotonic()

    def was_disturbed_since(self, at: float) -> bool:
        """Whether it was started, killed or paused, or ended by itself, after a time."""
        return self._disturbed_at >= at or not self.process.running

    def start(self) -> None:
        self._disturbed_at = time.monotonic()
        # A log of its own for each start: it begins anew.
        self._starts += 1
        self.process.log = self._log.with_suffix(f".{self._starts}.log")
        self.process.start()

    def kill(self, *, whole: bool = True) -> None:
        """SIGKILL to it and, as when its machine goes down, to everything below; wait until all has ended."""
        self._disturbed_at = time.monotonic()
        for each in self.tree() if whole else self.tree()[:1]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(END_SECONDS)

    def tree(self) -> list[psutil.Process]:
        try:
            leader = psutil.Process(self.process.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    @contextmanager
    def dead(self, *, whole: bool = True) -> Iterator[None]:
        with self.lock:
            self.kill(whole=whole)
            try:
                yield
            finally:
                self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self.lock:
            self._disturbed_at = time.monotonic()
            with paused(self.tree()):
                yield
            self._disturbed_at = time.monotonic()

    def revive(self) -> bool:
        """Whether it had ended, and nobody was about to start it."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.process.running:
                return False
            self.start()
            return True
        finally:
            self.lock.release()


@contextmanager
def paused(processes: list[psutil.Process]) -> Iterator[None]:
    """They do nothing for a while."""
    try:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        yield
    finally:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.resume()


class Keeper(threading.Thread):
    """Starts again what ended by itself, and workers that no longer say anything, as systemd or Kubernetes would."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="keeper", daemon=True)
        self.revived: Counter[str] = Counter()
        self.hung: Counter[str] = Counter()
        self._stack = stack
        self._ending = threading.Event()
        # The last word of a worker, by its process id, and when it was new.
        self._words: dict[int, tuple[object, float]] = {}

    def run(self) -> None:
        while not self._ending.wait(1.0):
            stack = self._stack
            for each in (*stack.pools.values(), *stack.workers, *stack.components.values()):
                if each.revive():
                    self.revived[each.process.name] += 1
            with suppress(psycopg.Error):
                self._probe(dict(stack.query("SELECT pid, max(snapshot_at) FROM horsies_worker_states GROUP BY pid")))

    def _probe(self, words: Mapping[int, object]) -> None:
        now = time.monotonic()
        for worker in self._stack.workers:
            pid = worker.process.pid
            word = words.get(pid)
            if self._words.get(pid, (None, 0.0))[0] != word or pid not in self._words:
                self._words[pid] = (word, now)
            elif now - self._words[pid][1] > HUNG_SECONDS and worker.lock.acquire(blocking=False):
                try:
                    self.hung[worker.process.name] += 1
                    self._stack.ask_workers_where_they_are()
                    time.sleep(1.0)
                    worker.kill()
                    worker.start()
                finally:
                    worker.lock.release()

    def end(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join()


class Stack:
    """Everything, started and stopped together.

    :param folder: where everything is kept.
    :param with_airflow: the four components of Airflow as well.
    :param say: told what is being done, and what cannot be.
    :param broken: a rule that light submitters break on purpose.
    """

    def __init__(self, folder: Path, *, with_airflow: bool, say: Say, broken: str | None = None) -> None:
        self.folder = folder
        self._broken = broken
        self.proxy = Proxy()
        self.postgres = EmbeddedPostgres(folder / "postgres", durable=True)
        self.database: Component | None = None
        self.second_host: SecondHost | None = None
        self.clock: Clock | None = None
        self.disk: SmallDisk | None = None
        self.pools: dict[str, Component] = {}
        self.pool_ports: dict[str, int] = {}
        self.workers: list[Component] = []
        self.channels: dict[str, Connection] = {}
        self.airflow: EmbeddedAirflow | None = None
        self.components: dict[str, Component] = {}
        self.keeper = Keeper(self)
        self._metadata = EmbeddedPostgres(folder / "metadata", durable=False)
        self._hosts: list[Component] = []
        self._with_airflow = with_airflow
        self._say = say
        self._opened = ExitStack()

    @property
    def able(self) -> set[str]:
        """What there is of that which kinds of faults need."""
        parts = {
            "airflow": self.airflow,
            "second host": self.second_host,
            "clock": self.clock,
            "small disk": self.disk,
            "pgbouncer": self.pools,
        }
        return {name for name, part in parts.items() if part}

    def start(self) -> None:
        for name in ("beats", "ran", "tried", "cancelled", "told", "states", "runs", "tmp", "pools"):
            (self.folder / name).mkdir()
        self._opened.callback(self.proxy.close)
        self._start_postgres()
        self.second_host = self._able("a second host", lambda: SecondHost(self.folder))
        if self.second_host is not None:
            self.second_host.start()
            self._opened.callback(self.second_host.stop)
        self.clock = self._able("clock skew", lambda: Clock(self.folder))
        self.disk = self._able("a disk that is full", lambda: SmallDisk(self.folder / "disk"))
        if self.disk is not None:
            self._opened.callback(self.disk.stop)
        for name in ("workers", "submitters", "airflow"):
            self.proxy.add(name, self.postgres.port)
        gateway = self.second_host.gateway if self.second_host else LOOPBACK
        self.proxy.add("second_host", self.postgres.port, gateway)
        for mode in ("session", "transaction"):
            pool = self._able(f"PgBouncer in {mode} mode", lambda mode=mode: self._make_pool(mode))
            if pool is None:
                break
            self.pools[mode] = pool
            self._start(pool)
        # What takes longest to import comes first.
        listeners = {name: self._start_host(name) for name in ("first", "second")}
        self._start_workers()
        if self._with_airflow:
            self._start_airflow()
        for name, listener in listeners.items():
            self.channels[name] = listener.accept()
            self.channels[name].recv()
        if self.airflow is not None:
            self._say("waiting for Airflow")
            self.airflow.wait_healthy()
        self._opened.callback(self.keeper.end)
        self.keeper.start()

    def ask_workers_where_they_are(self) -> None:
        """Into their logs: for people who wonder why nothing moves."""
        for worker in self.workers:
            for each in worker.tree():
                with suppress(psutil.Error):
                    if "airflow_horsies.worker" in " ".join(each.cmdline()) or "spawn_main" in " ".join(each.cmdline()):
                        each.send_signal(signal.SIGUSR1)

    def tell_processes(self) -> None:
        """The processes of Airflow and the last lines of their logs."""
        for component in self.components.values():
            for each in component.tree():
                with suppress(psutil.Error):
                    self._say(f"process {each.pid}, {each.status()}: {' '.join(each.cmdline())[:120]}")
            with suppress(OSError):
                for line in component.process.log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
                    self._say(f"{component.process.name}: {line[:300]}")

    def stop_clients(self) -> None:
        """All but the databases, gently, as one would."""
        self.keeper.end()
        for channel in self.channels.values():
            channel.close()
        for each in self._hosts:
            each.process.stop()
        if self.airflow is not None:
            self.airflow.stop()
        for each in (*self.workers, *self.pools.values()):
            each.process.request_stop()
        for each in (*self.workers, *self.pools.values()):
            each.process.stop()

    def stop(self) -> None:
        self._opened.close()

    def ports(self) -> list[tuple[str, int]]:
        return [
            (LOOPBACK, self.postgres.port),
            *((route.address, route.port) for route in self.proxy.routes.values()),
            *((LOOPBACK, port) for port in self.pool_ports.values()),
        ]

    # -- Postgres ----------------------------------------------------------------------------------------------------

    def query(self, query: str | sql.Composed, *params: Any) -> list[tuple[Any, ...]]:
        """Past the proxy, whatever happens there."""
        return self._query(self.postgres.conninfo(HORSIES), query, *params)

    def query_airflow(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return self._query(self._metadata.conninfo(), query, *params)

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        """A connection past the proxy, of somebody who looks after the database."""
        info = self.postgres.conninfo(HORSIES)
        with psycopg.connect(**info, connect_timeout=5, application_name="chaos") as connection:
            yield connection

    def _query(self, info: Mapping[str, Any], query: str | sql.Composed, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(**info, autocommit=True, connect_timeout=5, application_name="chaos") as connection:
            cursor = connection.execute(query, params or None)
            return cursor.fetchall() if cursor.description else []

    def stop_database(self, how: signal.Signals) -> None:
        """SIGINT is a fast shutdown, SIGQUIT an immediate one, SIGKILL none."""
        assert self.database is not None
        with suppress(ProcessLookupError):
            os.kill(self.database.process.pid, how)
        self.database.process.wait(END_SECONDS)
        # The guard has ended all of it, so the file is stale; its process id may belong to another by now.
        (self.postgres.data_folder / "postmaster.pid").unlink(missing_ok=True)

    def start_database(self) -> None:
        assert self.database is not None
        self.database.start()
        give_up = time.monotonic() + END_SECONDS
        while True:
            try:
                self.query("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > give_up or not self.database.process.running:
                    raise
                time.sleep(0.05)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _able(self, what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except (Unable, OSError) as error:
            self._say(f"NOT TRIED: {what}: {error}")
            return None

    def _start(self, component: Component) -> None:
        component.start()
        self._opened.callback(component.process.stop)

    def _start_postgres(self) -> None:
        fast = self._able("Postgres in memory", lambda: FastDisk(self.folder / "postgres"))
        if fast is not None:
            self._opened.callback(fast.stop)
        self.postgres.start()
        self._opened.callback(self.postgres.delete)
        self._opened.callback(self.postgres.stop)
        self.database = Component(self.postgres.process)
        self.postgres.create_database(HORSIES)
        owner = self.postgres.conninfo(HORSIES)
        self.query(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                sql.Identifier(SUBMITTER), sql.Literal(owner["password"]), sql.Identifier(owner["user"])
            )
        )

    def _make_pool(self, mode: str) -> Component:
        folder = self.folder / "pools" / mode
        folder.mkdir()
        info = self.postgres.conninfo(HORSIES)
        settings = plain_settings(self.proxy.routes["submitters"].port, mode)
        settings += "max_client_conn = 500\nserver_login_retry = 1\n"
        try:
            users = dict.fromkeys((info["user"], SUBMITTER), info["password"])
            process, port = make_pgbouncer(folder, settings, users)
        except pytest.skip.Exception as error:
            raise Unable(str(error)) from None
        self.pool_ports[mode] = port
        return Component(process)

    def _environ(self, **more: str) -> dict[str, str]:
        return inherited_environ() | {
            "CHAOS_FOLDER": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder / "tmp"),
            "CHAOS_BREAK": self._broken or "",
            **more,
        }

    def _url(self, host: str, port: int) -> str:
        info = self.postgres.conninfo(HORSIES)
        return f"postgresql://{info['user']}:{info['password']}@{host}:{port}/{HORSIES}"

    def _second(self) -> tuple[str, int]:
        """How the database is reached from the second host."""
        route = self.proxy.routes["second_host"]
        return DATABASE_NAME if self.second_host else route.address, route.port

    def _start_workers(self) -> None:
        """One through PgBouncer, one on the second host with a clock of its own, and a plain one.

        Each with one child: with more, horsies 0.5.4 hangs for good where a child is killed that waits for the others
        to be ready.
        """
        self._say("starting three workers")
        direct = self._url(LOOPBACK, self.proxy.routes["workers"].port)
        pooled = {"HORSIES_DATABASE_URL": direct}
        if "transaction" in self.pool_ports:
            pool = self._url(LOOPBACK, self.pool_ports["transaction"])
            pooled = {"HORSIES_DATABASE_URL": pool, "HORSIES_DIRECT_DATABASE_URL": direct}
        urls = {
            "pooled": pooled,
            "distant": {"HORSIES_DATABASE_URL": self._url(*self._second())},
            "plain": {"HORSIES_DATABASE_URL": direct},
        }
        skewed = [f"{name}={value}" for name, value in (self.clock.environ if self.clock else {}).items()]
        logs = self.disk.folder if self.disk else self.folder
        for name, databases in urls.items():
            command = ["env", *(skewed if name == "distant" else []), sys.executable, "-m", "airflow_horsies.worker"]
            command += ["tests.chaos.tasks:app", "--processes", "1", "--loglevel", "WARNING"]
            if name == "distant" and self.second_host is not None:
                command = self.second_host.command(*command)
            worker = Component(
                GuardedProcess(
                    f"The {name} worker",
                    command,
                    log=logs / f"{name}-worker.log",
                    environ=self._environ(**databases),
                    folder=ROOT,
                    grace_seconds=8,
                )
            )
            self.workers.append(worker)
            self._start(worker)
            if len(self.workers) == 1:
                # It makes the tables, which only one can.
                self._wait_for_worker(worker)
                self._copy_database()
        for worker in self.workers:
            self._wait_for_worker(worker)

    def _wait_for_worker(self, worker: Component) -> None:
        give_up = time.monotonic() + START_SECONDS
        while True:
            with suppress(psycopg.Error):
                if self.query("SELECT 1 FROM horsies_worker_states WHERE pid = %s", worker.process.pid):
                    return
            if not worker.process.running or time.monotonic() > give_up:
                raise RuntimeError(f"{worker.process.name} did not start.{worker.process.log_tail()}")
            time.sleep(0.1)

    def _copy_database(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        while True:
            self.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                HORSIES,
            )
            try:
                self.postgres.create_database(ELSEWHERE, template=HORSIES)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > give_up:
                    raise

    def connections(self) -> dict[str, dict[str, Any]]:
        """Each way from a submitter to horsies' database, as Airflow's connections."""
        info = self.postgres.conninfo(HORSIES)
        common = {"conn_type": "horsies", "login": SUBMITTER, "password": info["password"], "schema": HORSIES}
        direct = {"host": LOOPBACK, "port": self.proxy.routes["submitters"].port}
        host, port = self._second()
        found = {"direct": {**common, **direct}, "second_host": {**common, "host": host, "port": port}}
        if self.pool_ports:
            listen = {"listen_host": direct["host"], "listen_port": direct["port"]}
            found["session"] = {**common, "host": LOOPBACK, "port": self.pool_ports["session"]}
            pooled = {**common, "host": LOOPBACK, "port": self.pool_ports["transaction"]}
            found["transaction"] = {**pooled, "extra": listen}
        return found

    def _start_host(self, name: str) -> Listener:
        """Where light submitters are forked; it calls when it is ready."""
        folder = self.folder / f"{name}-host"
        folder.mkdir()
        address = str(self.folder / f"{name}.socket")
        command = [sys.executable, "-m", "tests.chaos.submitter", address]
        if name == "second" and self.second_host is not None:
            command = self.second_host.command(*command)
        settings = {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__API__BASE_URL": BASE_URL,
        }
        for connection, fields in self.connections().items():
            settings[f"AIRFLOW_CONN_{connection.upper()}"] = json.dumps(fields)
        host = Component(
            GuardedProcess(
                f"The {name} host of submitters",
                command,
                log=folder / "host.log",
                environ=self._environ(**settings),
                folder=ROOT,
            )
        )
        listener = self._opened.enter_context(Listener(address, "AF_UNIX"))
        self._hosts.append(host)
        self._start(host)
        return listener

    def _start_airflow(self) -> None:
        self._say("starting Airflow")
        # On a server of its own: Airflow without its own database is Airflow's matter.
        self._metadata.start()
        self._opened.callback(self._metadata.stop)
        info = self.postgres.conninfo(HORSIES)
        horsies = {"conn_type": "horsies", "login": SUBMITTER, "password": info["password"], "schema": HORSIES}
        horsies |= {"host": LOOPBACK, "port": self.proxy.routes["airflow"].port}
        settings: Mapping[str, str] = AIRFLOW_SETTINGS | {"TMPDIR": str(self.folder / "tmp")}
        airflow = EmbeddedAirflow(
            self.folder / "airflow",
            database_url=self._metadata.dsn(scheme="postgresql+psycopg2"),
            dags_folder=DAGS,
            all_admins=True,
            connections={"horsies_default": horsies},
            settings=settings,
        )
        airflow.migrate()
        self._opened.callback(airflow.stop)
        airflow.start()
        self.airflow = airflow
        self.components = {name: Component(process) for name, process in airflow.processes.items()}
