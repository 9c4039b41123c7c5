"""What runs while faults and changes happen: light task instances, each tried until it succeeds."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.plan import Fault
from tests.chaos.played import (
    CHUNK_SIZES,
    DEFERRED,
    ENDED,
    RESTARTING,
    RETRY,
    RUNNING,
    Code,
    Light,
    new_item,
    next_version,
)
from tests.chaos.stack import ELSEWHERE, Stack

AT_ONCE = 10
START_EVERY = 0.15
RETRY_SECONDS = 0.3
CANCEL_AGAIN_SECONDS = 1.0
# How long Airflow's supervisor and its triggerer wait for one that was told to end.
SUPERVISOR_SECONDS, TRIGGERER_SECONDS = 5.0, 30.0
# Longer than anybody may need to hear that work is no longer wanted.
LINGER_SECONDS = 75.0
# So many of those that are over can still be cleared, or their runs made again.
KEPT = 6
# How many submitters may pass a point without reaching it before a fault is given up.
PATIENCE = 12
MODES = ("blocking", "deferred", "batch", "chunked", "cancelled")
EDITS_OF_KINDS = {
    "retries edited": "retries",
    "priority edited": "priority",
    "arguments edited": "arguments",
    "max_failures edited": "max_failures",
    "items reordered": "order",
    "items dropped": "fewer",
    "items added": "more",
    "chunk_size edited": "chunk_size",
    "on_clear edited": "on_clear",
}
OF_BATCHES = frozenset({"max_failures edited", "items reordered", "items dropped", "items added"})
OF_CHUNKED = frozenset({"chunk_size edited", "on_clear edited"})


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
    """A running child of a host; one without a task instance serves them all."""

    light: Light | None
    role: str
    pid: int = 0
    armed: Armed | None = None
    was_killed: bool = False
    # What it says no longer matters, as Airflow goes on without it.
    is_stale: bool = False
    # Airflow waits for its end before the next try begins.
    holds: bool = False
    signals: tuple[signal.Signals, ...] = ()
    kill_at: float | None = None

    def send(self, *signals: signal.Signals) -> None:
        """Now, or as soon as it has begun."""
        self.was_killed = self.was_killed or signal.SIGKILL in signals
        if not self.pid:
            self.signals += signals
            return
        for each in signals:
            _signal(self.pid, each)


class LightLoad(threading.Thread):
    """
    :param hit: called with each fault that reached its point, and with each change that happened by itself.
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
        self._over: deque[Light] = deque(maxlen=KEPT)
        self._jobs: dict[int, Job] = {}
        self._armed: list[Armed] = []
        self._lock = threading.RLock()
        self._next_job = 0
        self._next_start = 0.0
        self._draining = threading.Event()
        self._ending = threading.Event()

    # -- faults --------------------------------------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(Armed(fault))

    def kill_any(self, pick: float) -> bool:
        """SIGKILL to a running submitter."""
        with self._lock:
            job = self._pick_job(pick)
            if job is None:
                return False
            job.send(signal.SIGKILL)
            return True

    def pause_any(self, pick: float) -> Callable[[str], None] | None:
        """SIGSTOP to a running submitter; what is returned ends the pause with a signal."""
        with self._lock:
            job = self._pick_job(pick)
            if job is None or not _signal(job.pid, signal.SIGSTOP):
                return None
            return self._waker(job)

    def _waker(self, job: Job, *more: signal.Signals) -> Callable[[str], None]:
        def go_on(then: str) -> None:
            with self._lock:
                if job in self._jobs.values():
                    job.send(signal.Signals[then], *more)

        return go_on

    # -- changes -------------------------------------------------------------------------------------------------

    def change(self, change: Fault) -> bool:
        """Whether there was a task instance to which it could happen."""
        with self._lock:
            light = self._pick_light(change)
            if light is None:
                return False
            light.note(str(change))
            self._change(light, change)
            self._write_state(light)
            return True

    def move_connection(self, change: Fault) -> Callable[[], None] | None:
        """Of a deferred task instance; what is returned moves it back."""
        with self._lock:
            light = self._pick(change, (each for each in self._open if each.state == DEFERRED and not each.moved))
            if light is None:
                return None
            light.note(str(change))
            is_namespace = change.kind == "namespace moved"
            light.moved = {"namespace": "elsewhere"} if is_namespace else {"database": ELSEWHERE}
            # The triggerer that waits for it is started again, and reads the connection.
            self._let_go_of_job(light, signal.SIGKILL)

            def move_back() -> None:
                with self._lock:
                    light.moved = {}

            return move_back

    def put_triggerer_to_sleep(self, change: Fault) -> Callable[[str], None] | None:
        """Another takes over; the one that wakes takes its triggers for cancelled by a user."""
        return self._take_over(change, "trigger", then=(signal.SIGTERM,))

    def take_for_dead(self, change: Fault) -> Callable[[str], None] | None:
        """A process that says nothing for a while is followed by the next try; when it wakes it is told to end."""
        return self._take_over(change, "execute", "resume", then=(signal.SIGTERM,))

    def _take_over(self, change: Fault, *roles: str, then: tuple[signal.Signals, ...]) -> Callable[[str], None] | None:
        with self._lock:
            light = self._pick(change, (each for each in self._open if self._runs_as(each, roles)))
            if light is None or light.job is None:
                return None
            job = self._jobs[light.job]
            if not _signal(job.pid, signal.SIGSTOP):
                return None
            light.note(str(change))
            # It sleeps for as long as the change lasts.
            self._let_go_of_job(light)
            job.kill_at = time.monotonic() + float(change.drawn["seconds"]) + TRIGGERER_SECONDS
            if job.role != "trigger":
                light.retry()
                self._write_state(light)
            light.due = time.monotonic()
            return self._waker(job, *then)

    def prune(self, change: Fault) -> bool:
        with self._lock:
            connections = sorted(self._stack.connections())
            connection = connections[int(change.drawn["pick"] * len(connections))]
            self._send_job(_host_of(connection), Job(None, "prune"), {"connection": connection})
            return True

    def _change(self, light: Light, change: Fault) -> None:
        random = Random(f"{change.number} {change.drawn}")
        match change.kind:
            case kind if kind in EDITS_OF_KINDS:
                light.edit(EDITS_OF_KINDS[kind], random)
                self._then(light, change.drawn["then"])
            case "clear":
                self._clear(light)
            case "clear, its worker dead":
                if light.job is not None:
                    self._let_go_of_job(light, signal.SIGKILL)
                light.clear()
            case "repair":
                place = random.randrange(len(light.code.items))
                light.ask_for_repair([place] if change.drawn["items"] == "one" else None)
            case "clear of another task":
                light.clear_another()
                self._then(light, change.drawn["then"])
            case "mark failed" | "mark success" as kind:
                light.mark(kind.removeprefix("mark "))
                self._write_state(light)
                self._let_go_of_job(light, signal.SIGTERM)
            case "run deleted and made again":
                light.remake()
                self._write_state(light)
                self._let_go_of_job(light, signal.SIGTERM)
            case "run queued again":
                light.queue_again()
                self._then(light, change.drawn["then"])
            case "worker drained":
                # Told to end, though nobody gave the task instance up; the next try follows.
                light.retry()
                self._let_go_of_job(light, signal.SIGTERM)
            case kind:
                raise ValueError(kind)
        light.due = time.monotonic() + RETRY_SECONDS
        if light not in self._open:
            self._over.remove(light)
            self._open.append(light)

    def _clear(self, light: Light) -> None:
        light.clear()
        self._write_state(light)
        self._let_go_of_job(light, signal.SIGTERM)

    def _then(self, light: Light, then: str) -> None:
        """What follows an edit: nothing, the next try after a failure, or a clear."""
        if then == "clear":
            self._clear(light)
        elif then == "retry" and light.state not in ENDED:
            self._let_go_of_job(light, signal.SIGKILL)
            light.retry()

    def _let_go_of_job(self, light: Light, *signals: signal.Signals) -> None:
        """What runs for it counts no more; it is told to end, and killed if it does not."""
        if light.job is None:
            return
        job = self._jobs[light.job]
        job.is_stale = True
        job.holds = light.state in (RESTARTING, RETRY) and signal.SIGTERM in signals
        job.kill_at = time.monotonic() + (TRIGGERER_SECONDS if job.role == "trigger" else SUPERVISOR_SECONDS)
        light.stale.add(light.job)
        light.job = None
        job.send(*signals)

    def _pick_light(self, change: Fault) -> Light | None:
        lights: Iterable[Light] = [each for each in (*self._open, *self._over) if each.can_change]
        kind = change.kind
        if kind in OF_BATCHES:
            lights = [each for each in lights if each.is_batch]
        if kind in OF_CHUNKED:
            lights = [each for each in lights if each.mode == "chunked"]
        if kind == "repair":
            lights = [each for each in lights if each.can_be_repaired]
        if kind in EDITS_OF_KINDS and change.drawn["then"] != "clear":
            lights = [each for each in lights if each.state not in ENDED]
        if kind.startswith("mark") or kind == "run queued again":
            lights = [each for each in lights if each.state not in ENDED]
        if kind == "clear, its worker dead":
            lights = [each for each in lights if each.state == RUNNING]
        if kind == "clear of another task":
            lights = [each for each in lights if each.state not in ENDED]
        if kind == "worker drained":
            lights = [each for each in lights if self._runs_as(each, ("execute", "resume"))]
        return self._pick(change, lights)

    def _runs_as(self, light: Light, roles: Iterable[str]) -> bool:
        job = None if light.job is None else self._jobs[light.job]
        return light.can_change and job is not None and job.role in roles and bool(job.pid) and not job.was_killed

    def _pick(self, change: Fault, lights: Iterable[Light]) -> Light | None:
        found = [] if self._draining.is_set() else list(lights)
        return found[int(change.drawn["pick"] * len(found))] if found else None

    # -- called by others ----------------------------------------------------------------------------------------

    def ask_where_it_is(self) -> list[str]:
        """What is open; those that run write where they are into their logs."""
        with self._lock:
            for job in self._jobs.values():
                _signal(job.pid, signal.SIGUSR1)
            return [
                f"{light.key}, {light.life}, try {light.try_number}, {light.state} through {light.connection}: "
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
        for job in self._jobs.values():
            if job.kill_at is not None and now > job.kill_at:
                job.kill_at = None
                job.send(signal.SIGKILL)
        for light in list(self._open):
            if light.is_over:
                self._open.remove(light)
                self._over.append(light)
                continue
            if light.change_after is not None and now - light.began_at > light.change_after:
                self._end_lingering(light)
            if light.wants_cancel(now):
                (self._stack.folder / "cancelled" / light.key).touch()
                light.cancel_began = light.cancel_began or now
                light.cancelling = self._start_job(light, "cancel")
            if light.repair_due is not None and now >= light.repair_due:
                light.repair_due, light.repairing = None, self._start_job(light, "repair")
            held = any(self._jobs[number].holds for number in light.stale)
            if light.job is None and light.state not in ENDED and now >= light.due and not held:
                light.job = self._start_job(light, light.role)

    def _draw(self) -> Light:
        random = self._random
        number = len(self.lights) + 1
        connections = list(self._stack.connections())
        connection = random.choice(connections)
        mode = random.choices(MODES, (20, 28, 20, 22, 10))[0]
        lingers = mode in ("deferred", "batch") and random.random() < 0.08
        return Light(
            number=number,
            mode=mode,
            host=_host_of(connection),
            connection=connection,
            code=_draw_code(random, f"run-{number}-{mode}", mode, lingers=lingers),
            cancel_after=random.uniform(0.5, 3),
            change_after=random.uniform(1, 4) if lingers else None,
        )

    def _end_lingering(self, light: Light) -> None:
        """Nobody is to wait for work that takes so long: other arguments, or none."""
        light.change_after = None
        if light.state in ENDED:
            return
        how = self._random.choice(("arguments edited, then clear", "arguments edited, then retry", "mark failed"))
        light.code = Code(tuple(map(next_version, light.code.items)), retries=light.code.retries)
        if how == "mark failed":
            light.mark("failed")
            self._write_state(light)
            self._let_go_of_job(light, signal.SIGTERM)
        else:
            self._then(light, how.rpartition(" ")[2])
            light.due = time.monotonic() + RETRY_SECONDS
        self._write_state(light)
        light.note(how)
        kind, _, then = how.partition(", then ")
        self._hit(Fault(0, 0.0, kind, {"of": light.key, **({"then": then} if then else {})}))

    def _start_job(self, light: Light, role: str) -> int:
        job = Job(light, role)
        job.armed = next((each for each in self._armed if each.role == role), None)
        if role in ("execute", "resume"):
            light.state = RUNNING
        if role == "execute":
            light.begin_try()
        self._write_state(light)
        told: dict[str, Any] = {
            "run_id": light.run_id,
            "mode": light.mode,
            "connection": light.connection,
            "code": asdict(light.code),
            "generation": light.generation,
            "clear_number": light.clear_number,
            "max_tries": light.max_tries,
            "try_number": light.try_number,
            "began": light.began.isoformat(),
            "moved": light.moved if role in ("trigger", "resume") else {},
            "places": light.repair_places,
            **light.deferral,
        }
        if job.armed is not None:
            self._armed.remove(job.armed)
            told |= {"point": job.armed.point, "occurrence": job.armed.fault.drawn["occurrence"]}
        return self._send_job(light.host, job, told)

    def _send_job(self, host: str, job: Job, told: dict[str, Any]) -> int:
        self._next_job += 1
        self._jobs[self._next_job] = job
        if job.light is not None:
            job.light.note(f"job {self._next_job}: {job.role} of {job.light.life}, try {job.light.try_number}")
        self._stack.channels[host].send({"id": self._next_job, "role": job.role, **told})
        return self._next_job

    def _write_state(self, light: Light) -> None:
        """What Airflow says to those who ask."""
        path = self._stack.folder / "states" / f"{light.run_id}-{light.mode}"
        half = path.with_suffix(".half")
        half.write_text(json.dumps({"exists": light.exists, "state": light.state}))
        half.rename(path)

    def _hear(self, message: dict[str, Any]) -> None:
        number = message["job"]
        job = self._jobs[number]
        if "pid" in message:
            job.pid = message["pid"]
            job.send(*job.signals)
            return
        del self._jobs[number]
        self._settle_armed(job, message["status"])
        told = _take(self._stack.folder / "told" / f"{number}.json")
        if job.light is None:
            return
        stale = ", of which nobody hears" if job.is_stale else ""
        job.light.note(f"job {number} ended with {message['status']}: {json.dumps(told)[:300]}{stale}")
        if job.is_stale:
            job.light.stale.discard(number)
        elif job.role == "cancel":
            self._cancelled(job.light, told)
        elif job.role == "repair":
            self._requested(job.light, told)
        else:
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
        if told is None:
            if light.role != "trigger":
                light.retry()
            light.due = time.monotonic() + RETRY_SECONDS
        elif "path" in told:
            light.defer(told)
        elif "event" in told:
            light.hear_event(told)
        else:
            light.succeed(told["value"])
        self._write_state(light)

    def _cancelled(self, light: Light, told: dict[str, Any] | None) -> None:
        light.cancelling = None
        light.cancel_due = time.monotonic() + CANCEL_AGAIN_SECONDS
        if told is not None and told["cancelled"] is not None:
            light.acknowledged[told["cancelled"]] = told["at"]

    def _requested(self, light: Light, told: dict[str, Any] | None) -> None:
        """The page clears once the request is recorded."""
        if light.end_request(requested=None if told is None else told["requested"]):
            light.clear_for_repair()
            self._write_state(light)
            self._let_go_of_job(light, signal.SIGTERM)
            light.due = time.monotonic() + RETRY_SECONDS

    def _pick_job(self, pick: float) -> Job | None:
        running = [job for job in self._jobs.values() if job.pid and not job.was_killed and job.armed is None]
        return running[int(pick * len(running))] if running else None


def _host_of(connection: str) -> str:
    return "second" if connection == "second_host" else "first"


def _draw_code(random: Random, key: str, mode: str, *, lingers: bool) -> Code:
    if mode == "cancelled":
        return Code(({"key": key},))
    size = {"batch": random.randint(1, 4), "chunked": random.randint(2, 9)}.get(mode, 1)
    durations = (0.0, 0.05, 0.2, 0.5) if mode == "chunked" else (0.05, 0.2, 0.5, 1.0, 2.0)
    items = []
    for place in range(size):
        seconds = LINGER_SECONDS if lingers and place == 0 else random.choice(durations)
        fails = random.choices(("", "TRY_AGAIN", "BAD"), (85, 8, 7))[0]
        items.append(new_item(f"{key}-{place}", seconds=seconds, fails=fails))
    failures = {"batch": random.choice((0, 0, 1)), "chunked": random.choice((0, 0, 1, 9))}.get(mode, 0)
    code = Code(tuple(items), failures, retries=random.randint(0, 3))
    if mode != "chunked":
        return code
    return replace(code, chunk_size=random.choice(CHUNK_SIZES[1:]), on_clear=random.choice(("all", "all", "failed")))


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
