"""Writes the outcomes of items of a chunk, and knows whether this child may go on with it.

The main thread writes what is left at the end. A thread writes in between, so that no outcome waits for a long item.
Both confirm the claim of the chunk with each write. No item is started on a claim that was confirmed too long ago: the
process may have been suspended, and the chunk may belong to another worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from airflow_horsies.client.reporting import BegunChunk, ClaimState, WorkerClient
from airflow_horsies.core.item import ItemOutcome
from airflow_horsies.exceptions import TRANSIENT_ERRORS, HorsiesError, LedgerOutdated
from airflow_horsies.worker.attempt import Running, RunningAttempt, StopReason
from airflow_horsies.worker.errors import TaskFault, short

T = TypeVar("T")

log = logging.getLogger(__name__)

# An outcome is written within about twice this time.
WRITE_SECONDS = 0.4
# An item starts only if the claim was confirmed within this time. A worker that misses its heartbeats loses its claims
# after two seconds at the earliest.
CONFIRMED_SECONDS = 1.0
# How long the end of a chunk waits for a database that is away.
GIVE_UP_SECONDS = 60.0
RETRY_SECONDS = 1.0
# Values are kept in memory until they are written.
MAX_PENDING_CHARS = 1_000_000
REASONS_TO_STOP = {ClaimState.CANCELLED: StopReason.CANCELLED, ClaimState.LOST: StopReason.CLAIM_LOST}


class _OpenChunk:
    """The chunk that runs now. Its outcomes are added and taken by different threads."""

    def __init__(self, attempt: RunningAttempt, dropped: frozenset[int], confirmed: float) -> None:
        self.attempt = attempt
        self.dropped = dropped
        self.confirmed = confirmed
        self.pending: deque[ItemOutcome] = deque()
        self.pending_chars = 0
        self.is_held = True

    @property
    def pause_seconds(self) -> float:
        """A long item has nothing to write. Its claim is confirmed, so that it is stopped if that is lost."""
        return WRITE_SECONDS if self.pending else CONFIRMED_SECONDS

    def take(self) -> list[ItemOutcome]:
        return [self.pending.popleft() for _ in range(len(self.pending))]


class OutcomeWriter:
    """
    :param make_client: makes a client with a connection of its own.
    :param stop: called when the attempt must stop.
    """

    def __init__(self, make_client: Callable[[], WorkerClient], stop: Callable[[Running, StopReason], None]) -> None:
        self._make_client = make_client
        self._stop = stop
        self._client: WorkerClient | None = None
        self._chunk: _OpenChunk | None = None
        self._opened = threading.Event()
        # One request at a time.
        self._asking = threading.Lock()

    def open(self, attempt: RunningAttempt) -> BegunChunk | None:
        """Read what earlier attempts have left; None if the chunk no longer belongs to this worker."""
        client = self._start()
        asked = time.monotonic()
        begun = self._insist(attempt, lambda: client.begin_chunk(attempt.claim))
        if begun is None:
            self._stop(attempt, StopReason.CLAIM_LOST)
            return None
        self._chunk = _OpenChunk(attempt, begun.dropped, asked)
        self._opened.set()
        return begun

    def confirm(self) -> frozenset[int]:
        """Make sure that the chunk is still ours; returns the items that must not be started.

        The attempt has a stop reason if the chunk is not ours.
        """
        chunk = self._current()
        if time.monotonic() - chunk.confirmed > CONFIRMED_SECONDS:
            self._insist(chunk.attempt, lambda: self._write(chunk))
        return chunk.dropped

    def add(self, ended: ItemOutcome) -> None:
        chunk = self._current()
        chunk.pending.append(ended)
        chunk.pending_chars += len(ended.value or "")
        if chunk.pending_chars > MAX_PENDING_CHARS:
            self._insist(chunk.attempt, lambda: self._write(chunk))

    def flush(self) -> bool:
        """Write everything; called at the end. False if the chunk is not ours; the attempt then has a stop reason."""
        chunk = self._current()
        with self._asking:
            is_written = not chunk.pending
        if not is_written:
            self._insist(chunk.attempt, lambda: self._write(chunk))
        return chunk.is_held

    def flush_once(self) -> None:
        """Write everything if the database answers; called before this process is killed."""
        chunk = self._chunk
        if chunk is not None:
            with suppress(HorsiesError):
                self._write(chunk)

    def close(self) -> None:
        self._chunk = None

    def _start(self) -> WorkerClient:
        if self._client is None:
            self._client = self._make_client()
            threading.Thread(target=self._serve, name="horsies-items", daemon=True).start()
        return self._client

    def _current(self) -> _OpenChunk:
        if self._chunk is None:
            raise RuntimeError("A chunk must be open.")
        return self._chunk

    def _serve(self) -> None:
        while True:
            if self._chunk is None:
                self._opened.clear()
                if self._chunk is None:
                    self._opened.wait()
            time.sleep(WRITE_SECONDS)
            chunk = self._chunk
            if chunk is not None and time.monotonic() - chunk.confirmed >= chunk.pause_seconds:
                self._write_quietly(chunk)

    def _write_quietly(self, chunk: _OpenChunk) -> None:
        try:
            self._write(chunk)
        except HorsiesError as error:
            log.warning("Writing the outcomes of items failed and is tried again: %s", error)
            time.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("Writing the outcomes of items failed and is tried again.")
            time.sleep(RETRY_SECONDS)

    def _write(self, chunk: _OpenChunk) -> None:
        with self._asking:
            ended = chunk.take()
            asked = time.monotonic()
            try:
                news = self._start().report_items(chunk.attempt.claim, ended)
            except BaseException:
                chunk.pending.extendleft(reversed(ended))
                raise
            chunk.pending_chars = sum(len(item.value or "") for item in list(chunk.pending))
            chunk.dropped = news.dropped
            chunk.confirmed = asked
            chunk.is_held = chunk.is_held and news.claim is ClaimState.HELD
        reason, item = REASONS_TO_STOP.get(news.claim), chunk.attempt.item
        if reason is not None:
            self._stop(chunk.attempt, reason)
        elif item is not None and item.number in news.dropped:
            self._stop(item, StopReason.CANCELLED)

    def _insist(self, attempt: RunningAttempt, ask: Callable[[], T]) -> T:
        """Ask again while the database is away, up to a limit."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                return ask()
            except LedgerOutdated as error:
                raise TaskFault("CHUNKS_UNSUPPORTED", str(error)) from None
            except HorsiesError as error:
                if not _may_pass(error) or attempt.stop_reason is not None or time.monotonic() > give_up:
                    raise TaskFault("OUTCOMES_UNAVAILABLE", _explain(error)) from error
                log.warning("Reading or writing the outcomes of items failed and is tried again: %s", error)
                time.sleep(RETRY_SECONDS)


def _may_pass(error: HorsiesError) -> bool:
    return isinstance(error, TRANSIENT_ERRORS)


def _explain(error: HorsiesError) -> str:
    return short(
        f"The outcomes of the items could not be read or written: {error} Items without a recorded outcome run again "
        "with the chunk."
    )
