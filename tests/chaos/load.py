"""What runs while faults happen: light task instances, each tried until it succeeds, and runs of the real Airflow."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

import httpx

from airflow_horsies.embedded.airflow_api import ENDED, AirflowApi
from airflow_horsies.embedded.errors import EmbeddedError
from tests.chaos import DAG_ID
from tests.chaos.plan import Fault
from tests.chaos.stack import Stack

AT_ONCE = 8
START_EVERY = 0.15
RETRY_SECONDS = 0.3
CANCEL_AGAIN_SECONDS = 1.0
# How many submitters may pass a point without reaching it before a fault is given up.
PATIENCE = 12
RUNS_AT_ONCE = 2
MODES = ("blocking", "deferred", "batch", "cancelled")


@dataclass
class Light:
    """A task instance outside of Airflow, and how far it is."""

    number: int
    mode: str
    host: str
    connection: str
    seconds: float
    fails_first: bool
    clear_after: float | None
    cancel_after: float
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    began_at: float = field(default_factory=time.monotonic)
    life: int = 1
    try_number: int = 1
    role: str = "execute"
    due: float = 0.0
    deferral: dict[str, Any] = field(default_factory=dict)
    job: int | None = None
    # The value of each life that succeeded.
    values: dict[int, Any] = field(default_factory=dict)
    lives: list[int] = field(default_factory=lambda: [1])
    cancelling: int | None = None
    cancel_due: float = 0.0
    acknowledged: dict[str, float] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return f"run-{self.number}"

    @property
    def key(self) -> str:
        return f"{self.run_id}-{self.mode}"

    @property
    def is_over(self) -> bool:
        return self.life in self.values and self.clear_after is None and self.job is None and self.cancelling is None

    def wants_cancel(self, now: float) -> bool:
        if self.mode != "cancelled" or self.cancelling is not None or self.acknowledged or self.values:
            return False
        return now - self.began_at > self.cancel_after and now >= self.cancel_due


@dataclass
class Armed:
    """A fault that waits for a submitter to reach its point."""

    fault: Fault
    left: int = PATIENCE

    @property
    def role(self) -> str:
        return str(self.fault.drawn["point"]).partition(": ")[0]

    @property
    def point(self) -> str:
        return str(self.fault.drawn["point"]).partition(": ")[2]


@dataclass
class Job:
    """A running child of a host."""

    light: Light
    role: str
    host: str
    pid: int = 0
    armed: Armed | None = None
    was_killed: bool = False


class LightLoad(threading.Thread):
    """
    :param hit: called with each fault that reached its point.
    """

    def __init__(self, stack: Stack, seed: int, hit: Callable[[Fault], None]) -> None:
        super().__init__(name="light load", daemon=True)
        self.lights: list[Light] = []
        self.points_hit: Counter[str] = Counter()
        self.missed = 0
        self.error: BaseException | None = None
        self._stack = stack
        self._random = Random(f"{seed} load")
        self._hit = hit
        self._open: list[Light] = []
        self._jobs: dict[int, Job] = {}
        self._armed: list[Armed] = []
        self._lock = threading.RLock()
        self._next_job = 0
        self._next_start = 0.0
        self._draining = threading.Event()
        self._ending = threading.Event()

    # -- called by others ----------------------------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(Armed(fault))

    def kill_any(self, pick: float) -> bool:
        """SIGKILL to a running submitter."""
        with self._lock:
            job = self._pick(pick)
            if job is None:
                return False
            job.was_killed = True
            return _signal(job.pid, signal.SIGKILL)

    def pause_any(self, pick: float) -> Callable[[str], None] | None:
        """SIGSTOP to a running submitter; what is returned ends the pause with a signal."""
        with self._lock:
            job = self._pick(pick)
            if job is None or not _signal(job.pid, signal.SIGSTOP):
                return None

        def go_on(then: str) -> None:
            with self._lock:
                if job in self._jobs.values():
                    job.was_killed = job.was_killed or then == "SIGKILL"
                    _signal(job.pid, signal.Signals[then])

        return go_on

    def ask_where_it_is(self) -> list[str]:
        """What is open; those that run write where they are into their logs."""
        with self._lock:
            for job in self._jobs.values():
                _signal(job.pid, signal.SIGUSR1)
            return [
                f"{light.key}, life {light.life}, try {light.try_number}, {light.role} through {light.connection}: "
                + ("; ".join(f"{job.role} runs as {job.pid}" for job in self._jobs.values() if job.light is light))
                for light in self._open
            ]

    def drain(self) -> None:
        """Nothing new; what is open goes on to its end, and no fault waits any more."""
        with self._lock:
            self._armed.clear()
        self._draining.set()

    def end(self) -> None:
        self._ending.set()
        self.join()

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def over_count(self) -> int:
        return len(self.lights) - len(self._open)

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                for channel in wait(list(self._stack.channels.values()), timeout=0.05):
                    with self._lock:
                        self._hear(channel.recv())  # type: ignore[union-attr]
                with self._lock:
                    self._go_on()
        except BaseException as error:
            self.error = error
            raise

    def _go_on(self) -> None:
        now = time.monotonic()
        if not self._draining.is_set() and len(self._open) < AT_ONCE and now >= self._next_start:
            self._next_start = now + START_EVERY
            light = self._draw()
            self.lights.append(light)
            self._open.append(light)
        for light in list(self._open):
            if light.is_over:
                self._open.remove(light)
                continue
            if light.clear_after is not None and now - light.began_at > light.clear_after:
                self._clear(light)
            if light.wants_cancel(now):
                (self._stack.folder / "cancelled" / light.key).touch()
                light.cancelling = self._start_job(light, "cancel")
            if light.job is None and light.life not in light.values and now >= light.due:
                light.job = self._start_job(light, light.role)

    def _draw(self) -> Light:
        random = self._random
        connections = list(self._stack.connections())
        connection = random.choice(connections)
        mode = random.choices(MODES, (35, 35, 15, 15))[0]
        return Light(
            number=len(self.lights) + 1,
            mode=mode,
            host="second" if connection == "second_host" else "first",
            connection=connection,
            seconds=random.choice((0.05, 0.2, 0.5, 1.0, 2.5)),
            fails_first=random.random() < 0.1,
            clear_after=random.uniform(0.2, 4) if mode != "cancelled" and random.random() < 0.2 else None,
            cancel_after=random.uniform(0.5, 3),
        )

    def _clear(self, light: Light) -> None:
        """As a user does, whether it runs or has ended: what runs is killed, and the next try begins a life."""
        if light.job is not None:
            job = self._jobs[light.job]
            job.was_killed = True
            _signal(job.pid, signal.SIGKILL)
            job.role = "cleared"
        light.clear_after = None
        light.try_number += 1
        light.life = light.try_number
        light.lives.append(light.life)
        light.role, light.deferral, light.job = "execute", {}, None
        light.due = time.monotonic() + RETRY_SECONDS

    def _start_job(self, light: Light, role: str) -> int:
        self._next_job += 1
        number = self._next_job
        armed = next((each for each in self._armed if each.role == role), None)
        told: dict[str, Any] = {
            "id": number,
            "role": role,
            "run_id": light.run_id,
            "mode": light.mode,
            "connection": light.connection,
            "seconds": light.seconds,
            "fails_first": light.fails_first,
            "life": light.life,
            "try_number": light.try_number,
            "began": light.began.isoformat(),
            **light.deferral,
        }
        if armed is not None:
            self._armed.remove(armed)
            told |= {"point": armed.point, "occurrence": armed.fault.drawn["occurrence"]}
        self._jobs[number] = Job(light, role, light.host, armed=armed)
        self._stack.channels[light.host].send(told)
        return number

    def _hear(self, message: dict[str, Any]) -> None:
        job = self._jobs.get(message["job"])
        if job is None:
            return
        if "pid" in message:
            job.pid = message["pid"]
            if job.role == "cleared":
                _signal(job.pid, signal.SIGKILL)
            return
        del self._jobs[message["job"]]
        self._settle_armed(job, message["status"])
        path = self._stack.folder / "told" / f"{message['job']}.json"
        told = _take(path)
        if job.role == "cancel":
            self._cancelled(job.light, told)
        elif job.role != "cleared":
            self._ended(job.light, told)

    def _settle_armed(self, job: Job, status: int) -> None:
        armed = job.armed
        if armed is None:
            return
        if status == -signal.SIGKILL and not job.was_killed:
            self.points_hit[str(armed.fault.drawn["point"])] += 1
            self._hit(armed.fault)
            return
        armed.left -= 1
        if armed.left > 0 and not self._draining.is_set():
            self._armed.append(armed)
        else:
            self.missed += 1

    def _ended(self, light: Light, told: dict[str, Any] | None) -> None:
        """As Airflow goes on: by what is stored, and by a retry where nothing is."""
        light.job = None
        if told is None and light.role == "trigger":
            light.due = time.monotonic() + RETRY_SECONDS
        elif told is None:
            light.role, light.deferral = "execute", {}
            light.try_number += 1
            light.due = time.monotonic() + RETRY_SECONDS
        elif "path" in told:
            light.role, light.deferral = "trigger", told
        elif "event" in told:
            light.role, light.deferral = "resume", told
        else:
            light.values[light.life] = told["value"]

    def _cancelled(self, light: Light, told: dict[str, Any] | None) -> None:
        light.cancelling = None
        light.cancel_due = time.monotonic() + CANCEL_AGAIN_SECONDS
        if told is not None and told["cancelled"] is not None:
            light.acknowledged[told["cancelled"]] = told["at"]

    def _pick(self, pick: float) -> Job | None:
        running = [job for job in self._jobs.values() if job.pid and not job.was_killed and job.armed is None]
        return running[int(pick * len(running))] if running else None


def _take(path: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    path.unlink()
    return told


def _signal(pid: int, number: signal.Signals) -> bool:
    # Zero, of one that has not begun, would be all of us.
    if pid <= 0:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


class AirflowLoad(threading.Thread):
    """Keeps a few runs of the DAG going, whatever Airflow's api-server says to it."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="Airflow load", daemon=True)
        self.runs: dict[str, str] = {}
        self._stack = stack
        self._draining = threading.Event()
        self._ending = threading.Event()

    def drain(self) -> None:
        self._draining.set()

    def end(self) -> None:
        self._ending.set()
        self.join()

    @property
    def open_count(self) -> int:
        return sum(state not in ENDED for state in self.runs.values())

    @property
    def over_count(self) -> int:
        return len(self.runs) - self.open_count

    def run(self) -> None:
        while not self._ending.wait(1.0):
            with suppress(httpx.HTTPError, EmbeddedError, KeyError):
                self._look()

    def _look(self) -> None:
        assert self._stack.airflow is not None
        with AirflowApi(self._stack.airflow.base_url) as api:
            while not self._ending.wait(1.0):
                for run_id, state in self.runs.items():
                    if state not in ENDED:
                        self.runs[run_id] = str(api.run(DAG_ID, run_id)["state"])
                if self.open_count < RUNS_AT_ONCE and not self._draining.is_set():
                    run_id = f"chaos-{len(self.runs) + 1}"
                    # Refused if an earlier request, whose answer was lost, made it.
                    api.trigger(DAG_ID, run_id)
                    self.runs[run_id] = "queued"
