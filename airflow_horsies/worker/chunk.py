"""Runs a chunk: many items of a task in one attempt, each with an outcome of its own."""

from __future__ import annotations

import heapq
import json
import logging
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_horsies.borrowed.horsies import OutcomeCode, calculate_retry_delay
from airflow_horsies.client.reporting import BegunChunk
from airflow_horsies.core.chunk import ISOLATE, ITEMS, ITEMS_FAILED, RETRY_POLICY, TIMEOUT_MS
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.worker.attempt import RunningAttempt, RunningItem, StopReason
from airflow_horsies.worker.engines.engine import Spark, close_session
from airflow_horsies.worker.errors import Failure, TaskFault, code_text, describe, short
from airflow_horsies.worker.forking import end_copy
from airflow_horsies.worker.logs import Capture
from airflow_horsies.worker.outcomes import OutcomeWriter
from airflow_horsies.worker.stopping import Stopper

log = logging.getLogger(__name__)

SESSION_LOST = "SPARK_SESSION_LOST"
ISOLATED_CHUNK, ISOLATED_ITEM = "chunk", "item"
# How often a wait for a retry looks whether the attempt must stop.
LOOK_SECONDS = 0.25
KILLED_SECONDS = 60.0
# The outcome and the error code of a stopped item.
STOPPED_ITEMS: dict[StopReason, tuple[str, str]] = {
    StopReason.CANCELLED: ("CANCELLED", OutcomeCode.TASK_CANCELLED.value),
    StopReason.ITEM_TIMED_OUT: ("FAILED", OutcomeCode.TASK_TIMEOUT.value),
    StopReason.GOOD_UNTIL_PASSED: ("FAILED", "GOOD_UNTIL_PASSED"),
}


@dataclass(frozen=True, slots=True)
class ItemTask:
    """
    The task of the items of a chunk.

    :param call: takes the Spark session, or None, and the arguments of an item; returns the result as JSON.
    :param name_failure: completes the code and the message of an exception without a code.
    """

    call: Callable[[Any, Any], str]
    name_failure: Callable[[BaseException, Failure], Failure]
    with_spark: bool
    stops_at_good_until: bool


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """The arguments of a chunk."""

    items: Sequence[Any]
    timeout_seconds: float | None = None
    retry_policy: Mapping[str, Any] | None = None
    isolates_items: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> ChunkOrder:
        items, timeout_ms, policy = given.get(ITEMS), given.get(TIMEOUT_MS), given.get(RETRY_POLICY)
        isolate = given.get(ISOLATE) or ISOLATED_CHUNK
        problems = [
            text
            for holds, text in (
                (isinstance(items, list), f"{ITEMS} must be a list"),
                (timeout_ms is None or _is_positive(timeout_ms), f"{TIMEOUT_MS} must be an integer ≥ 1 or null"),
                (policy is None or isinstance(policy, dict), f"{RETRY_POLICY} must be an object or null"),
                (isolate in (ISOLATED_CHUNK, ISOLATED_ITEM), f"{ISOLATE} must be 'chunk' or 'item'"),
            )
            if not holds
        ]
        if problems or not isinstance(items, list):
            raise TaskFault("BAD_INPUT", f"The chunk has invalid arguments: {'; '.join(problems)}. Correct them.")
        timeout = None if timeout_ms is None else timeout_ms / 1000
        return cls(items, timeout, policy, isolates_items=isolate == ISOLATED_ITEM)

    def arguments_of(self, number: int) -> Any:
        """The arguments of an item. The task may change them, so what may be tried again is decoded for each try."""
        given = self.items[number]
        return json.loads(json.dumps(given)) if self.retry_policy else given

    def find_delay(self, code: str, tries: int) -> float | None:
        """The seconds until an item that failed is tried again, by the rules of horsies; None if it is not."""
        policy = self.retry_policy or {}
        codes, most = policy.get("auto_retry_for"), policy.get("max_retries")
        if not isinstance(codes, list) or not isinstance(most, int) or code not in codes or tries > most:
            return None
        return calculate_retry_delay(tries, dict(policy))


@dataclass(frozen=True, slots=True)
class Tools:
    """What a chunk uses of its child."""

    stopper: Stopper
    capture: Capture
    outcomes: OutcomeWriter
    spark: Spark | None
    restart_spark: Callable[[RunningItem], None]


class ChunkRun:
    """One attempt of a chunk, on the main thread."""

    def __init__(
        self, attempt: RunningAttempt, task: ItemTask, order: ChunkOrder, begun: BegunChunk, tools: Tools
    ) -> None:
        self._attempt = attempt
        self._task = task
        self._order = order
        self._begun = begun
        self._tools = tools
        self._hostname = socket.gethostname()
        self._pid = os.getpid()
        self._size = len(order.items)
        self._ready = deque(number for number in range(self._size) if number not in begun.recorded)
        # Items that are tried again, by the time of the next try.
        self._waiting: list[tuple[float, int]] = []
        self._tries: dict[int, int] = {}
        self._session: Any = None
        # A JVM that is being killed closes its connections before it counts as dead.
        self._session_is_suspect = False
        self._ending = threading.Lock()
        self._counts = Counter(outcome for number, outcome in begun.recorded.items() if number < self._size)
        self._first_failure: str | None = None
        # Whether every item has an outcome that is written.
        self.is_done = False

    def run(self) -> None:
        """Run the items that have no outcome. Returns early if the attempt is stopped."""
        self._show_progress()
        while (number := self._next()) is not None:
            dropped = self._tools.outcomes.confirm()
            if self._attempt.stop_reason is not None:
                break
            if number in dropped:
                self._skip(number, "CANCELLED", OutcomeCode.TASK_CANCELLED, "The item is no longer requested.")
            elif self._is_late(datetime.now(UTC)):
                self._skip(number, "EXPIRED", OutcomeCode.TASK_EXPIRED, "good_until passed before the item started.")
            else:
                self._try(number)
        self.is_done = self._tools.outcomes.flush() and self._counts.total() == self._size

    @property
    def summary(self) -> dict[str, int]:
        return {"items": self._size, "completed": self._counts["COMPLETED"]}

    def find_failure(self) -> Failure | None:
        """Why the chunk has not completed; None if all its items have."""
        failed = self._size - self._counts["COMPLETED"]
        if not failed:
            return None
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self._counts.items() if outcome != "COMPLETED")
        first = f" First {self._first_failure}" if self._first_failure else ""
        return Failure(ITEMS_FAILED, short(f"{failed} of {self._size} items did not complete: {counts}.{first}"))

    def describe_progress(self, done: int, total: int | None, text: str | None) -> None:
        """Show what an item reports of itself with the progress of the whole."""
        item = self._attempt.item
        if item is not None:
            amount = f"{done} of {total}" if total is not None else str(done)
            self._show_progress(f"Item {item.number}: {text or amount}")

    def record_killed(self, item: RunningItem, reason: StopReason) -> bool:
        """Record the end of an item before its process is killed; False if it has ended meanwhile."""
        outcome, code = STOPPED_ITEMS[reason]
        message = f"The process of the item was killed because {reason}."
        if not self._end(item):
            return False
        self._add(self._ended(item, outcome, Failure(code, message)))
        self._tools.outcomes.flush_once()
        return True

    # -- one item ------------------------------------------------------------------------------------------------------

    def _next(self) -> int | None:
        """The next item to try; waits if all that is left are retries."""
        while self._attempt.stop_reason is None:
            now = time.monotonic()
            if self._waiting and self._waiting[0][0] <= now:
                return heapq.heappop(self._waiting)[1]
            if self._ready:
                return self._ready.popleft()
            if not self._waiting:
                return None
            time.sleep(min(self._waiting[0][0] - now, LOOK_SECONDS))
        return None

    def _try(self, number: int) -> None:
        item = self._begin(number)
        value: str | None = None
        error: BaseException | None = None
        try:
            with self._tools.stopper.armed(item):
                value = self._task.call(self._open_session(), self._order.arguments_of(number))
        except BaseException as raised:
            error = raised
        end_copy(self._pid, error)
        self._tools.capture.end_lines()
        if item.own_stop_reason is not None and not self._tools.stopper.settle(item):
            self._session = None
            self._tools.restart_spark(item)
        if not self._end(item):
            # Another thread has recorded the item and kills this process.
            time.sleep(KILLED_SECONDS)
        self._conclude(item, value, error)
        self._attempt.item = self._attempt.log.item = None

    def _begin(self, number: int) -> RunningItem:
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        timeout = self._order.timeout_seconds
        item = RunningItem(
            self._attempt,
            number,
            tries,
            deadline=None if timeout is None else time.monotonic() + timeout,
            good_until=self._begun.good_until if self._task.stops_at_good_until else None,
        )
        self._attempt.log.item = number
        self._attempt.item = item
        return item

    def _end(self, item: RunningItem) -> bool:
        """Whether the caller is the first to end the item."""
        with self._ending:
            is_first, item.has_ended = not item.has_ended, True
        return is_first

    def _conclude(self, item: RunningItem, value: str | None, error: BaseException | None) -> None:
        is_cut_short = error is not None or item.is_interrupted or self._attempt.is_interrupted
        if item.stop_reason is not None and is_cut_short:
            self._conclude_stopped(item, error)
        elif error is None:
            self._add(self._ended(item, "COMPLETED", value=value))
        else:
            if not isinstance(error, TaskFault):
                item.log.add_exception(error)
            self._fail(item, "FAILED", self._describe(error))

    def _conclude_stopped(self, item: RunningItem, error: BaseException | None) -> None:
        if error is not None:
            item.log.add_place(error)
        # An item that ran when the whole attempt was stopped has no outcome, as those that were not started.
        if self._attempt.stop_reason is None and item.own_stop_reason is not None:
            outcome, code = STOPPED_ITEMS[item.own_stop_reason]
            self._fail(item, outcome, Failure(code, f"The item was stopped because {item.own_stop_reason}."))

    def _fail(self, item: RunningItem, outcome: str, failure: Failure) -> None:
        code = failure.code or ""
        # Within the limit of the log: there may be very many items and tries, and their errors are in their records.
        delay = self._order.find_delay(code, item.tries)
        if delay is None:
            item.log.add("ERROR", [f"{code}: {failure.message}"])
            self._add(self._ended(item, outcome, failure))
        elif self._is_late(datetime.now(UTC) + timedelta(seconds=delay)):
            message = f"good_until passes before the item is tried again. Its last error: {code}: {failure.message}"
            self._add(self._ended(item, "EXPIRED", Failure(OutcomeCode.TASK_EXPIRED.value, message)))
        else:
            item.log.add("WARNING", [f"{code}: {failure.message} Trying again in {delay:.1f} s."])
            heapq.heappush(self._waiting, (time.monotonic() + delay, item.number))

    def _skip(self, number: int, outcome: str, code: OutcomeCode, message: str) -> None:
        item = RunningItem(self._attempt, number, self._tries.get(number, 0))
        self._add(self._ended(item, outcome, Failure(code.value, message), is_started=False))

    def _ended(
        self,
        item: RunningItem,
        outcome: str,
        failure: Failure | None = None,
        *,
        value: str | None = None,
        is_started: bool = True,
    ) -> ItemOutcome:
        return ItemOutcome(
            number=item.number,
            outcome=outcome,
            attempt=self._begun.number,
            tries=item.tries,
            started_at=item.started_at if is_started else None,
            finished_at=datetime.now(UTC),
            error_code=None if failure is None else failure.code,
            error_message=None if failure is None else failure.message,
            value=value,
            hostname=self._hostname,
        )

    def _add(self, ended: ItemOutcome) -> None:
        if ended.outcome != "COMPLETED" and self._first_failure is None:
            self._first_failure = f"item {ended.number}: {ended.error_code}: {ended.error_message}"
        self._counts[ended.outcome] += 1
        self._show_progress()
        self._tools.outcomes.add(ended)

    def _show_progress(self, text: str | None = None) -> None:
        self._attempt.progress = (self._counts.total(), self._size, text)

    def _is_late(self, at: datetime) -> bool:
        return self._begun.good_until is not None and at >= self._begun.good_until

    # -- Spark ---------------------------------------------------------------------------------------------------------

    def _open_session(self) -> Any:
        """The session of the chunk; a new one for each item if items are isolated, or if Spark was lost in between."""
        spark = self._tools.spark
        if spark is None:
            return None
        is_over = self._order.isolates_items or self._session_is_suspect
        if self._session is not None and (is_over or spark.is_lost):
            # Only now, as the metrics are read from an open session.
            self._session = None
            close_session(spark, self._attempt.task_id)
        if self._session is None:
            self._session = spark.open_session(self._attempt.task_id)
            self._session_is_suspect = False
        return self._session

    def _describe(self, error: BaseException) -> Failure:
        failure = describe(error)
        spark = self._tools.spark
        if spark is not None and self._session is not None and spark.is_lost:
            failure = spark.explain_loss(failure)
        self._session_is_suspect = failure.code == SESSION_LOST
        failure = failure if failure.code is not None else self._task.name_failure(error, failure)
        return replace(failure, code=code_text(failure.code))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
