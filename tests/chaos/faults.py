"""How each kind of fault and change is made to happen."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psutil
import psycopg

from tests.chaos.changes import Changes, NoTarget
from tests.chaos.load import LightLoad
from tests.chaos.plan import CHANGE_KINDS, Fault
from tests.chaos.stack import HORSIES, Component, Stack, paused

AT_ONCE = 12
# How often, and how far apart, something is looked for to which it can happen.
LOOKS, LOOK_AGAIN_SECONDS = 5, 0.7
TASK_TITLE = "airflow worker -- "
SUPERVISOR_TITLE = f"{TASK_TITLE}LocalExecutor"
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name <> 'chaos' ORDER BY pid"

RUNNING_CHUNKS = "SELECT worker_pid FROM horsies_tasks WHERE status = 'RUNNING' AND right(task_name, 2) = '[]'"


class Injector:
    """Makes faults happen, several at a time, and keeps what happened when."""

    def __init__(self, stack: Stack) -> None:
        self.counts: Counter[str] = Counter()
        self.journal: list[tuple[float, str]] = []
        self.without_target: Counter[str] = Counter()
        self._missed: dict[str, Fault] = {}
        self.errors: list[str] = []
        self.load: LightLoad | None = None
        self.changes = Changes(stack)
        self._stack = stack
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fault")
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}

    @property
    def total(self) -> int:
        return self.counts.total()

    def happened(self, fault: Fault) -> None:
        with self._lock:
            self.counts[fault.kind] += 1
            self.journal.append((time.monotonic(), str(fault)))

    def inject(self, fault: Fault) -> None:
        """Returns once it has begun, or is about to."""
        self._room.acquire()
        self._pool.submit(self._inject, fault).add_done_callback(lambda _: self._room.release())

    def never_happened(self) -> list[Fault]:
        """One of each kind that was drawn, and never found something to happen to."""
        with self._lock:
            return [fault for kind, fault in self._missed.items() if not self.counts[kind]]

    def finish(self) -> None:
        """Wait until all that lasts is over, so that nothing is started behind anybody's back."""
        self._pool.shutdown(cancel_futures=True)

    def near(self, at: float | None, count: int = 5) -> list[str]:
        """The last faults before a time, or of all."""
        return [said for when, said in self.journal if at is None or when <= at][-count:]

    def _inject(self, fault: Fault) -> None:
        try:
            for _ in range(LOOKS):
                if self._try(fault):
                    return
                time.sleep(LOOK_AGAIN_SECONDS)
            with self._lock:
                self.without_target[fault.kind] += 1
                self._missed[fault.kind] = fault
        except BaseException as error:
            with self._lock:
                self.errors.append(f"{fault}: {type(error).__name__}: {error}")

    def _try(self, fault: Fault) -> bool:
        """Whether there was something to do it to, and it happened."""
        began = False
        try:
            with self._made(fault) as counts:
                began = True
                if counts is not False:
                    self.happened(fault)
                time.sleep(fault.drawn.get("seconds", 0))
        except (NoTarget, psycopg.Error, psutil.NoSuchProcess):
            return began
        return True

    def _made(self, fault: Fault) -> AbstractContextManager[Any]:
        """A context within which the fault lasts."""
        if fault.kind in CHANGE_KINDS:
            return self.changes.made(fault)
        stack, drawn = self._stack, fault.drawn
        match fault.kind.rsplit(" ", 1):
            case ["scheduler" | "triggerer" | "api-server" | "dag-processor" as name, how]:
                return self._of_component(stack.components[name], how, drawn)
            case ["worker", how]:
                worker = stack.workers[int(drawn["pick"] * len(stack.workers))]
                return self._of_component(worker, how, drawn)
            case ["PgBouncer", how]:
                return self._of_component(stack.pools[drawn["pool"]], how, drawn)
        made: Callable[..., AbstractContextManager[Any]] = {
            "submitter SIGKILL at a named point": self._armed,
            "submitter SIGKILL at any time": self._submitter_killed,
            "submitter SIGSTOP": self._submitter_paused,
            "worker child SIGKILL": self._child_killed,
            "worker child SIGKILL in a chunk": self._chunk_killed,
            "worker child SIGSTOP": self._child_paused,
            "connections cut": self._cut,
            "half-open connections": self._half_open,
            "slow network": self._slow,
            "connections refused": self._refused,
            "backend terminated": self._backend_terminated,
            "backend SIGSTOP": self._backend_paused,
            "backend SIGKILL": self._backend_killed,
            "Postgres restart": self._restarted,
            "Postgres immediate shutdown": self._shut_down,
            "Postgres SIGKILL": self._database_killed,
            "host cut off": self._host_cut_off,
            "DNS failing": self._without_dns,
            "clock skew": self._skewed,
            "full disk for logs": self._full_disk,
            "Airflow task SIGKILL": self._airflow_task_killed,
        }[fault.kind]
        return made(fault)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Two of the same would end each other."""
        with self._lock:
            lock = self._busy.setdefault(what, threading.Lock())
        with lock:
            yield

    # -- processes ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _of_component(self, component: Component, how: str, drawn: Any) -> Iterator[None]:
        with component.lock:
            if not component.process.running:
                raise NoTarget
            if how == "SIGKILL":
                with component.dead(whole=drawn.get("whole", True)):
                    yield
                return
            with component.paused():
                yield
            if drawn["then"] == "SIGKILL":
                with component.dead():
                    pass

    def _armed(self, fault: Fault) -> AbstractContextManager[Any]:
        return _Uncounted(lambda: self._load().arm(fault))

    @contextmanager
    def _submitter_killed(self, fault: Fault) -> Iterator[None]:
        if not self._load().kill_any(fault.drawn["pick"]):
            raise NoTarget
        yield

    @contextmanager
    def _submitter_paused(self, fault: Fault) -> Iterator[None]:
        go_on = self._load().pause_any(fault.drawn["pick"])
        if go_on is None:
            raise NoTarget
        try:
            yield
        finally:
            go_on(fault.drawn["then"])

    @contextmanager
    def _child_killed(self, fault: Fault) -> Iterator[None]:
        self._child(fault).kill()
        yield

    @contextmanager
    def _chunk_killed(self, fault: Fault) -> Iterator[None]:
        """Of a child that has some items of a chunk behind it, and others before it."""
        running = {pid for (pid,) in self._stack.query(RUNNING_CHUNKS)}
        _picked([child for child in self._children() if child.pid in running], fault).kill()
        yield

    @contextmanager
    def _child_paused(self, fault: Fault) -> Iterator[None]:
        child = self._child(fault)
        with paused([child]):
            yield
        if fault.drawn["then"] == "SIGKILL":
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def _child(self, fault: Fault) -> psutil.Process:
        child: psutil.Process = _picked(self._children(), fault)
        return child

    def _children(self) -> list[psutil.Process]:
        return [
            each
            for worker in self._stack.workers
            for each in worker.tree()[1:]
            if "spawn_main" in " ".join(each.cmdline())
        ]

    @contextmanager
    def _airflow_task_killed(self, fault: Fault) -> Iterator[None]:
        task = _picked([each for each in self._stack.components["scheduler"].tree()[1:] if _runs_task(each)], fault)
        supervisor = task.parent()
        if fault.drawn["victim"] != "task" and supervisor is not None:
            with paused([supervisor]):
                # Without a task it uses the queues of LocalExecutor. If it is killed while it holds their lock, no
                # task of that scheduler starts any more.
                if not _runs_task(task):
                    raise NoTarget
                supervisor.kill()
        with suppress(psutil.NoSuchProcess):
            task.kill()
        yield

    # -- the network -------------------------------------------------------------------------------------------------

    @contextmanager
    def _cut(self, fault: Fault) -> Iterator[None]:
        if not self._stack.proxy.cut(fault.drawn["route"], None if fault.drawn["all"] else fault.drawn["pick"]):
            raise NoTarget
        yield

    @contextmanager
    def _half_open(self, fault: Fault) -> Iterator[None]:
        route = fault.drawn["route"]
        with self._alone(f"half-open {route}"), self._stack.proxy.half_open(route):
            yield

    @contextmanager
    def _slow(self, fault: Fault) -> Iterator[None]:
        route = fault.drawn["route"]
        with self._alone(f"slow {route}"), self._stack.proxy.slow(route, fault.drawn["delay"]):
            yield

    @contextmanager
    def _refused(self, fault: Fault) -> Iterator[None]:
        route = fault.drawn["route"]
        with self._alone(f"refused {route}"), self._stack.proxy.refusing(route):
            yield

    @contextmanager
    def _host_cut_off(self, fault: Fault) -> Iterator[None]:
        assert self._stack.second_host is not None
        with self._alone("second host"), self._stack.second_host.cut_off():
            yield

    @contextmanager
    def _without_dns(self, fault: Fault) -> Iterator[None]:
        assert self._stack.second_host is not None
        with self._alone("DNS"), self._stack.second_host.without_dns():
            # Who has a connection needs no name.
            self._stack.proxy.cut("second_host")
            yield

    # -- Postgres ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _backend_terminated(self, fault: Fault) -> Iterator[None]:
        pid = self._backend(fault)
        self._stack.query("SELECT pg_terminate_backend(%s)", pid)
        yield

    @contextmanager
    def _backend_paused(self, fault: Fault) -> Iterator[None]:
        with paused([psutil.Process(self._backend(fault))]):
            yield

    @contextmanager
    def _backend_killed(self, fault: Fault) -> Iterator[None]:
        """Postgres then ends all others and recovers, as after a crash."""
        with self._database_lock():
            with suppress(ProcessLookupError):
                os.kill(self._backend(fault), signal.SIGKILL)
            yield

    def _backend(self, fault: Fault) -> int:
        found = self._stack.query(BACKENDS, HORSIES)
        (pid,) = _picked(found, fault)
        return int(pid)

    def _restarted(self, fault: Fault) -> AbstractContextManager[Any]:
        return self._database_down(signal.SIGINT)

    def _shut_down(self, fault: Fault) -> AbstractContextManager[Any]:
        return self._database_down(signal.SIGQUIT)

    def _database_killed(self, fault: Fault) -> AbstractContextManager[Any]:
        return self._database_down(signal.SIGKILL)

    @contextmanager
    def _database_down(self, how: signal.Signals) -> Iterator[None]:
        with self._database_lock():
            self._stack.stop_database(how)
            try:
                yield
            finally:
                self._stack.start_database()

    def _database_lock(self) -> threading.RLock:  # type: ignore[valid-type]
        assert self._stack.database is not None
        return self._stack.database.lock

    # -- clock and disk ----------------------------------------------------------------------------------------------

    @contextmanager
    def _skewed(self, fault: Fault) -> Iterator[None]:
        assert self._stack.clock is not None
        with self._alone("clock"), self._stack.clock.wrong_by(fault.drawn["skew"]):
            yield

    @contextmanager
    def _full_disk(self, fault: Fault) -> Iterator[None]:
        assert self._stack.disk is not None
        with self._alone("disk"), self._stack.disk.full():
            yield

    def _load(self) -> LightLoad:
        assert self.load is not None
        return self.load


class _Uncounted:
    """Of a fault that happens later, and is counted then."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do

    def __enter__(self) -> bool:
        self._do()
        return False

    def __exit__(self, *_: object) -> None:
        return None


def _runs_task(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        title = " ".join(process.cmdline())
        is_task = title.startswith(TASK_TITLE) and not title.startswith(SUPERVISOR_TITLE)
        return is_task and process.status() != psutil.STATUS_ZOMBIE
    return False


def _picked(found: list[Any], fault: Fault) -> Any:
    if not found:
        raise NoTarget
    return found[int(fault.drawn["pick"] * len(found))]
