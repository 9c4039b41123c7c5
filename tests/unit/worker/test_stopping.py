from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("horsies")

import airflow_horsies
from airflow_horsies.worker import stopping
from airflow_horsies.worker.attempt import Assignment, RunningAttempt, StopReason
from airflow_horsies.worker.logs import AttemptLog
from airflow_horsies.worker.stopping import STOP_SIGNAL, Stopper, TaskStopped

SOON_SECONDS = 5.0


def attempt(task_id: str = "t1") -> RunningAttempt:
    return RunningAttempt(Assignment(task_id, "w1", None, None), AttemptLog(10))


@pytest.fixture
def stopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopper]:
    """One that never gets as far as to kill this process."""
    monkeypatch.setattr(stopping, "KILL_AFTER_SECONDS", 600.0)
    monkeypatch.setattr(stopping, "PYTHON_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.05)
    monkeypatch.setattr(stopping, "SETTLE_SECONDS", 2.0)
    before = signal.getsignal(STOP_SIGNAL)
    stopper = Stopper()
    stopper.install()
    try:
        yield stopper
    finally:
        signal.signal(STOP_SIGNAL, before)


class Stop:
    """Stops an attempt a moment from now, on a thread of its own as the reporter does."""

    def __init__(
        self, stopper: Stopper, attempt: RunningAttempt, interrupt_spark: Callable[[], None] | None = None
    ) -> None:
        self._stopper, self._attempt, self._interrupt_spark = stopper, attempt, interrupt_spark
        self._thread = threading.Thread(target=self._stop, daemon=True)
        self.killed = False

    def _stop(self) -> None:
        time.sleep(0.1)
        self._attempt.stop_reason = StopReason.CANCELLED
        self._stopper.bring_to_stop(self._attempt, self._interrupt_spark, self._kill)

    def _kill(self) -> bool:
        self.killed = True
        return True

    def __enter__(self) -> Stop:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.join(SOON_SECONDS)
        assert not self._thread.is_alive(), "it goes on stopping what has stopped"
        assert not self.killed


def loop() -> None:
    number = 0
    while True:
        number += 1


def sleep() -> None:
    time.sleep(60)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)


def catch_exceptions() -> None:
    while True:
        with suppress(Exception):
            time.sleep(60)


def catch_the_first_interrupt() -> None:
    with suppress(KeyboardInterrupt):
        time.sleep(60)
    time.sleep(60)


@pytest.mark.parametrize("body", [loop, sleep, wait_for_a_lock, catch_exceptions, catch_the_first_interrupt])
def test_running_code_is_stopped_within_moments(stopper: Stopper, body: Callable[[], None]) -> None:
    running = attempt()
    began = time.monotonic()
    with Stop(stopper, running), pytest.raises(TaskStopped), stopper.armed(running):
        body()
    assert time.monotonic() - began < SOON_SECONDS


def test_code_can_clean_up_when_it_is_stopped(stopper: Stopper) -> None:
    running = attempt()
    cleaned: list[str] = []
    with Stop(stopper, running), pytest.raises(TaskStopped), stopper.armed(running):
        try:
            time.sleep(60)
        finally:
            cleaned.append("up")
    assert cleaned == ["up"]


class CleanUp:
    """Takes its time, as a rollback or the end of an upload does."""

    def __init__(self, done: list[str], name: str, seconds: float = 0.4) -> None:
        self._done, self._name, self._seconds = done, name, seconds

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        time.sleep(self._seconds)
        self._done.append(self._name)


def clean_up_in_context_managers(done: list[str]) -> None:
    with CleanUp(done, "outer"), CleanUp(done, "inner"):
        time.sleep(60)


def clean_up_in_finally(done: list[str]) -> None:
    try:
        try:
            time.sleep(60)
        finally:
            time.sleep(0.4)
            done.append("inner")
    finally:
        time.sleep(0.4)
        done.append("outer")


def clean_up_in_a_generator(done: list[str]) -> None:
    @contextmanager
    def opened(name: str) -> Iterator[None]:
        try:
            yield
        finally:
            time.sleep(0.4)
            done.append(name)

    with opened("outer"), opened("inner"):
        time.sleep(60)


def clean_up_that_fails_and_goes_on(done: list[str]) -> None:
    try:
        try:
            time.sleep(60)
        finally:
            done.append("inner")
            raise ConnectionError("the rollback failed")
    finally:
        time.sleep(0.6)
        done.append("outer")


def clean_up_on_the_stop_itself(done: list[str]) -> None:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.4)
        done.append("inner")
        time.sleep(0.4)
        done.append("outer")
        raise


@pytest.mark.parametrize(
    "body",
    [
        clean_up_in_context_managers,
        clean_up_in_finally,
        clean_up_in_a_generator,
        clean_up_that_fails_and_goes_on,
        clean_up_on_the_stop_itself,
    ],
)
def test_clean_up_gets_its_time(stopper: Stopper, body: Callable[[list[str]], None]) -> None:
    running = attempt()
    done: list[str] = []
    with Stop(stopper, running), pytest.raises((TaskStopped, ConnectionError)), stopper.armed(running):
        body(done)
    assert done == ["inner", "outer"]


def test_spark_is_left_alone_while_the_task_cleans_up(stopper: Stopper) -> None:
    """A clean-up may need it."""
    running = attempt()
    interrupted: list[float] = []
    cleaning = 0.0
    with (
        Stop(stopper, running, lambda: interrupted.append(time.monotonic())),
        pytest.raises(TaskStopped),
        stopper.armed(running),
    ):
        try:
            time.sleep(60)
        finally:
            cleaning = time.monotonic()
            time.sleep(0.6)
    assert interrupted and max(interrupted) <= cleaning + 0.1


def test_nothing_that_stopped_an_attempt_is_under_way_once_it_has_settled(stopper: Stopper) -> None:
    """An interrupt that comes late would hit the next attempt."""
    running = attempt()
    interrupts: list[str] = []

    def interrupt_in_two_steps() -> None:
        time.sleep(0.5)
        interrupts.append(running.task_id)

    with Stop(stopper, running, interrupt_in_two_steps), pytest.raises(TaskStopped), stopper.armed(running):
        time.sleep(60)
    assert stopper.settle(running)
    count = len(interrupts)
    time.sleep(0.7)
    assert len(interrupts) == count


def test_an_interrupt_that_hangs_is_told(stopper: Stopper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "SETTLE_SECONDS", 0.2)
    running = attempt()
    released = threading.Event()
    try:
        with (
            Stop(stopper, running, lambda: released.wait(60) and None),
            pytest.raises(TaskStopped),
            stopper.armed(running),
        ):
            time.sleep(60)
        assert not stopper.settle(running)
    finally:
        released.set()
    assert stopper.settle(attempt("next"))


def test_a_stop_passes_what_catches_exceptions_only() -> None:
    assert issubclass(TaskStopped, KeyboardInterrupt)
    assert not issubclass(TaskStopped, Exception)


def test_nothing_is_raised_while_no_attempt_runs(stopper: Stopper) -> None:
    running = attempt()
    os.kill(os.getpid(), STOP_SIGNAL)
    with stopper.armed(running):
        pass
    running.stop_reason = StopReason.CANCELLED
    os.kill(os.getpid(), STOP_SIGNAL)
    time.sleep(0.01)


def test_nothing_is_raised_in_an_attempt_that_need_not_stop(stopper: Stopper) -> None:
    with stopper.armed(attempt()):
        os.kill(os.getpid(), STOP_SIGNAL)
        time.sleep(0.01)


def test_an_attempt_that_was_stopped_before_it_began_does_not_begin(stopper: Stopper) -> None:
    running = attempt()
    running.stop_reason = StopReason.CANCELLED
    stopper.bring_to_stop(running, None, pytest.fail)
    with pytest.raises(TaskStopped), stopper.armed(running):
        pytest.fail("it ran")
    os.kill(os.getpid(), STOP_SIGNAL)
    time.sleep(0.01)


def test_the_next_attempt_is_not_stopped_for_the_last_one(stopper: Stopper) -> None:
    first, second = attempt("first"), attempt("second")
    with Stop(stopper, first), pytest.raises(TaskStopped), stopper.armed(first):
        time.sleep(60)
    with stopper.armed(second):
        stopper.bring_to_stop(first, None, pytest.fail)
        time.sleep(0.1)


def test_the_next_attempt_is_not_killed_for_one_that_stopped_at_last(
    stopper: Stopper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "KILL_AFTER_SECONDS", -1.0)
    monkeypatch.setattr(os, "kill", lambda *args: pytest.fail("it was killed"))
    first, second = attempt("first"), attempt("second")
    with ExitStack() as running:
        running.enter_context(stopper.armed(first))

        def first_stops_meanwhile() -> bool:
            running.close()
            running.enter_context(stopper.armed(second))
            return False

        first.stop_reason = StopReason.CANCELLED
        stopper.bring_to_stop(first, None, first_stops_meanwhile)


def test_a_signal_that_comes_while_a_task_is_armed_or_disarmed_waits_for_its_next_turn(stopper: Stopper) -> None:
    """At every line of it: a trace function sends the signal there."""
    running = attempt()
    sent: list[int] = []

    def send(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == stopping.__file__ and frame.f_code is not Stopper._raise.__code__:
            if event == "line":
                running.stop_reason = StopReason.CANCELLED
                sent.append(frame.f_lineno)
                stopper._raise(STOP_SIGNAL, frame)
            return send
        return None

    armed = stopper.armed(running)
    armed.__enter__()
    sys.settrace(send)
    try:
        armed.__exit__(None, None, None)
    finally:
        sys.settrace(None)
    assert len(sent) >= 2
    assert stopper._armed is None


def test_spark_is_interrupted_first_and_python_only_where_that_did_not_help(stopper: Stopper) -> None:
    running = attempt()
    interrupted = threading.Event()
    with Stop(stopper, running, interrupted.set), stopper.armed(running):
        # As a job that was cancelled: it returns by itself, before Python is interrupted.
        assert interrupted.wait(SOON_SECONDS)


def test_python_is_interrupted_where_interrupting_spark_did_not_help(stopper: Stopper) -> None:
    running = attempt()
    times: list[float] = []
    with (
        Stop(stopper, running, lambda: times.append(time.monotonic())),
        pytest.raises(TaskStopped),
        stopper.armed(running),
    ):
        time.sleep(60)
    assert time.monotonic() - times[0] >= stopping.PYTHON_AFTER_SECONDS - 0.05
    assert len(times) > 1


def test_a_spark_that_hangs_is_asked_once_and_not_waited_for(stopper: Stopper) -> None:
    running = attempt()
    asked: list[int] = []
    released = threading.Event()

    def hang() -> None:
        asked.append(1)
        released.wait(60)

    try:
        with Stop(stopper, running, hang), pytest.raises(TaskStopped), stopper.armed(running):
            time.sleep(60)
    finally:
        released.set()
    assert asked == [1]


def test_a_spark_that_cannot_be_interrupted_does_no_harm(stopper: Stopper) -> None:
    running = attempt()

    def refuse() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    with Stop(stopper, running, refuse), pytest.raises(TaskStopped), stopper.armed(running):
        time.sleep(60)


STUBBORN = """
import sys, threading, time
from airflow_horsies.worker import stopping
from airflow_horsies.worker.attempt import Assignment, RunningAttempt, StopReason
from airflow_horsies.worker.logs import AttemptLog

stopping.KILL_AFTER_SECONDS = 0.5
stopper = stopping.Stopper()
stopper.install()
attempt = RunningAttempt(Assignment("t1", "w1", None, None), AttemptLog(10))

def stop():
    attempt.stop_reason = StopReason.CANCELLED
    stopper.bring_to_stop(attempt, None, lambda: print("before the kill", flush=True) or True)

threading.Timer(0.2, stop).start()
with stopper.armed(attempt):
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("no", flush=True)
"""


def test_what_cannot_be_stopped_is_killed_with_its_process_once_that_is_told() -> None:
    ran: Any = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STUBBORN)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(airflow_horsies.__file__).parents[1])},
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    lines = ran.stdout.split("\n")
    assert lines[0] == "no"
    assert lines.count("before the kill") == 1
