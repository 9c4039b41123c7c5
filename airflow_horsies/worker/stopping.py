"""Stops a running task: first its Spark jobs, then its Python code, and finally the whole child."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_horsies.worker.attempt import Running

log = logging.getLogger(__name__)

STOP_SIGNAL = signal.SIGUSR2
# Spark is stopped first, because interrupting a call to the JVM closes the task's connection to it.
PYTHON_AFTER_SECONDS = 0.75
# The total time for Spark to cancel its jobs and for the task to clean up.
KILL_AFTER_SECONDS = 10.0
REPEAT_SECONDS = 0.25
SETTLE_SECONDS = 5.0


class TaskStopped(KeyboardInterrupt):
    """Raised inside the task's code to stop it.

    It is raised once, so that ``finally`` and ``__exit__`` can run, and again only if the code has caught it and
    continues. Like every KeyboardInterrupt it passes ``except Exception``, and makes py4j close the connection it was
    waiting on.
    """


class Stopper:
    """Raises TaskStopped in the main thread while a task runs there."""

    def __init__(self) -> None:
        self._armed: Running | None = None

    def install(self) -> None:
        signal.signal(STOP_SIGNAL, self._raise)

    def armed(self, attempt: Running) -> Armed:
        """A context in which the attempt can be interrupted."""
        return Armed(self, attempt)

    def arm(self, attempt: Running | None) -> None:
        self._armed = attempt

    def settle(self, attempt: Running) -> bool:
        """Wait until stopping the attempt is complete, as it would affect the next one; False on a timeout."""
        return attempt.settled.wait(SETTLE_SECONDS)

    def bring_to_stop(
        self, attempt: Running, interrupt_spark: Callable[[], None] | None, before_kill: Callable[[], bool]
    ) -> None:
        """Stop an attempt or an item. Returns when it no longer runs; if it cannot be stopped, the child is killed.

        :param before_kill: reports the end of the attempt; False if it has ended, so that nothing must be killed.
        """
        attempt.settled.clear()
        interrupting = self._bring_to_stop(attempt, interrupt_spark, before_kill)
        if interrupting is not None:
            interrupting.join(SETTLE_SECONDS)
        if interrupting is None or not interrupting.is_alive():
            attempt.settled.set()

    def _bring_to_stop(
        self, attempt: Running, interrupt_spark: Callable[[], None] | None, before_kill: Callable[[], bool]
    ) -> threading.Thread | None:
        began = time.monotonic()
        interrupting: threading.Thread | None = None
        python_after = PYTHON_AFTER_SECONDS if interrupt_spark else 0.0
        while self._is_armed(attempt):
            elapsed = time.monotonic() - began
            cleans_up = _was_stopped(_handled_by_main_thread())
            if interrupt_spark and not cleans_up and (interrupting is None or not interrupting.is_alive()):
                attempt.is_interrupted = True
                interrupting = threading.Thread(target=_quietly, args=(interrupt_spark,), daemon=True)
                interrupting.start()
            if elapsed > KILL_AFTER_SECONDS:
                # It may have stopped meanwhile, and the next task must not be killed.
                if before_kill():
                    log.error("Task %s does not stop. Killing its process.", attempt.task_id)
                    os.kill(os.getpid(), signal.SIGKILL)
                return interrupting
            if elapsed >= python_after and not cleans_up:
                signal.pthread_kill(threading.main_thread().ident or 0, STOP_SIGNAL)
            time.sleep(REPEAT_SECONDS)
        return interrupting

    def _is_armed(self, attempt: Running) -> bool:
        armed = self._armed
        return armed is not None and armed.is_part_of(attempt)

    def _raise(self, number: int, frame: Any) -> None:
        if frame is not None and frame.f_code.co_filename == __file__:
            # Just before or after the task's own code. The signal is repeated while the task runs.
            return
        if self._armed is None or self._armed.stop_reason is None or _was_stopped(sys.exception()):
            return
        self._armed.is_interrupted = True
        raise TaskStopped


def _handled_by_main_thread() -> BaseException | None:
    handled: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    return handled if isinstance(handled, BaseException) else None


def _was_stopped(handled: BaseException | None) -> bool:
    """Whether the code that handles this exception cleans up after a stop, even if its clean-up has failed."""
    while handled is not None:
        if isinstance(handled, TaskStopped):
            return True
        handled = handled.__context__
    return False


def _quietly(interrupt: Callable[[], None]) -> None:
    try:
        interrupt()
    except Exception as error:
        log.info("Interrupting Spark failed: %s", error)


class Armed:
    """A class and not a generator, as an exception on entry would leave the attempt armed."""

    def __init__(self, stopper: Stopper, attempt: Running) -> None:
        self._stopper = stopper
        self._attempt = attempt

    def __enter__(self) -> None:
        self._stopper.arm(self._attempt)
        # The stop may have come before arming. Checked after arming, so that one of the two sides notices it.
        if self._attempt.stop_reason is not None:
            self._stopper.arm(None)
            raise TaskStopped

    def __exit__(self, *_: object) -> None:
        self._stopper.arm(None)
