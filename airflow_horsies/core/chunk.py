"""Chunks: many items of a batch in one horsies task."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from airflow_horsies.core.spec import RetryPolicy
from airflow_horsies.core.task import TaskState

# The task that runs many items of a task has its name with this suffix.
CHUNK_SUFFIX = "[]"
# The feature that workers record if they run chunks.
CHUNKS = "chunks"
# The error code of a chunk of which some items did not complete.
ITEMS_FAILED = "ITEMS_FAILED"
# The arguments of a chunk.
ITEMS, TIMEOUT_MS, RETRY_POLICY, ISOLATE = "items", "timeout_ms", "retry_policy", "isolate"

Isolation = Literal["chunk", "item"]
ISOLATIONS: tuple[Isolation, ...] = ("chunk", "item")
# What a chunk needs beside its items: to start, to write the outcomes, to stop code that does not stop.
CHUNK_MARGIN = timedelta(seconds=60)
# horsies varies each wait by up to a quarter.
LONGEST_JITTER = 1.25


def item_state(outcome: str | None, chunk: TaskState) -> TaskState:
    """The state of an item: its recorded outcome, or else the state of its chunk."""
    return chunk if outcome is None else TaskState(outcome)


def chunk_timeout(timeout: timedelta | None, policy: RetryPolicy | None, size: int) -> timedelta | None:
    """The time limit of a chunk: every item may use all its tries, and the last one may wait between them."""
    if timeout is None:
        return None
    tries = 1 + (policy.max_retries if policy else 0)
    return size * tries * timeout + _longest_wait(policy) + CHUNK_MARGIN


def _longest_wait(policy: RetryPolicy | None) -> timedelta:
    if policy is None:
        return timedelta(0)
    if policy.backoff_strategy == "fixed":
        waits = [float(seconds) for seconds in policy.intervals]
    else:
        waits = [float(policy.intervals[0] * 2**number) for number in range(policy.max_retries)]
    longest = policy.max_delay_seconds
    seconds = sum(wait if longest is None else min(wait, longest) for wait in waits)
    return timedelta(seconds=seconds * LONGEST_JITTER)
