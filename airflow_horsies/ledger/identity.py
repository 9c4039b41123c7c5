"""Identifies submissions: the task instance and its life, and the work of an item."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from airflow_horsies.core.submission import TRACE_PREFIX, AirflowTry, TaskInstanceKey
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Row, Rows
from airflow_horsies.exceptions import NamespaceTaken, StaleSubmission
from airflow_horsies.ledger.submissions import key_of
from airflow_horsies.wire.encoding import EncodedTask

# Never change this value: ids derived from it are in databases.
TASK_ID_NAMESPACE = uuid.UUID("5d1a0f0e-7f0c-5b39-9c58-0a8f3f0c6f51")
# The place of an item that is no longer requested.
NO_LONGER_REQUESTED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """The submitting task instance, its try and its deployment."""

    namespace: str
    base_url: str
    task_instance: TaskInstanceKey
    tried: AirflowTry

    @property
    def key(self) -> dict[str, str | int]:
        return key_of(self.namespace, self.task_instance)

    def derive_task_id(self, item: Item, round_: int) -> str:
        """The id of a submission, always the same even if its record was lost."""
        return self._derive_id(item.work.hex(), item.occurrence, round_)

    def derive_chunk_id(self, digest: bytes) -> str:
        """The same for a chunk, by the digest of its items and their rounds."""
        return self._derive_id("chunk", digest.hex())

    def derive_callback_id(self, life: int, number: int) -> str:
        """The same for a callback."""
        return self._derive_id("callback", life, number)

    def _derive_id(self, *what: str | int) -> str:
        name = [*self.key.values(), *self.tried.life_key, *what]
        return str(uuid.uuid5(TASK_ID_NAMESPACE, json.dumps(name, separators=(",", ":"))))


@dataclass(frozen=True, slots=True)
class Item:
    """The work of an item, and its number among equal items."""

    work: bytes
    occurrence: int


class UnknownRunKey(Exception):
    """Ask Airflow, outside of the transaction, whether a key belongs to the submitting DAG run."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Life(Enum):
    """The life of a try, compared with the newest life that submitted."""

    SAME = auto()
    NEWER = auto()
    OLDER = auto()


def items_of(tasks: Sequence[EncodedTask]) -> Iterator[Item]:
    return number_works(task.work for task in tasks)


def number_works(works: Iterable[bytes]) -> Iterator[Item]:
    seen: Counter[bytes] = Counter()
    for work in works:
        yield Item(work, seen[work])
        seen[work] += 1


def continues_life(submitter: Submitter, newest: Rows) -> bool:
    """Whether this try belongs to the life that submitted last."""
    for row in newest:
        if row["base_url"] and submitter.base_url and row["base_url"] != submitter.base_url:
            raise NamespaceTaken(
                f"{submitter.task_instance} was submitted before by the Airflow deployment at {row['base_url']}, "
                f"and this deployment is at {submitter.base_url}. Deployments that share a horsies database must "
                f"differ in the 'namespace' of their connection's extra (here it is {submitter.namespace!r}). If this "
                "is the same deployment under a new URL, run 'airflow horsies db change-base-url'."
            )
    if not newest:
        return False
    last = max(newest, key=lambda row: int(row["try_number"]))
    match compare_lives(submitter.tried, last):
        case Life.SAME:
            if submitter.tried.try_number < last_try(newest):
                raise StaleSubmission(
                    f"{submitter.task_instance} is in try {submitter.tried.try_number}, and try {last_try(newest)} "
                    f"has already asked for task {last['horsies_task_id']}. This try submits nothing."
                )
            # What is only sent succeeds at once, so a later try is a clear, with the same trace if that did not reset
            # the run. Nothing has cancelled what was sent.
            return submitter.tried.waits or not is_later_trace(submitter.tried, newest)
        case Life.NEWER:
            return False
        case Life.OLDER:
            raise StaleSubmission(
                f"{submitter.task_instance} has been cleared, or its DAG run was created again, and the newer life has "
                f"submitted task {last['horsies_task_id']}. This try submits nothing."
            )


def last_try(newest: Rows) -> int:
    """The newest try that submitted, whether or not it had to send a task."""
    tries: list[int] = [max(row["try_number"], row["seen_try"] or 0) for row in newest]
    return max(tries)


def is_of_same_try(tried: AirflowTry, row: Row) -> bool:
    """Whether another triggerer has taken the try over after it submitted: it waits for the same task, even if that has
    failed by now. On a worker, each process has a try of its own."""
    is_requested = row.get("place") != NO_LONGER_REQUESTED
    return tried.is_traced and is_requested and bool(row["try_number"] == tried.try_number)


def follows_success(tried: AirflowTry, newest: Rows, states: Mapping[str, TaskState], *, max_failures: int = 0) -> bool:
    """Whether the try is not a retry, because the earlier try succeeded with its tasks. A clear that does not reset the
    DAG run may leave the trace as it is."""
    wanted = [row for row in newest if row.get("place") != NO_LONGER_REQUESTED]
    ended = [states.get(row["horsies_task_id"]) for row in wanted]
    return is_later_trace(tried, newest) and have_succeeded(ended, max_failures)


def is_later_trace(tried: AirflowTry, newest: Rows) -> bool:
    """Whether only the trace connects a later try with the last one, on a worker or in a triggerer."""
    if not newest or tried.try_number <= last_try(newest):
        return False
    last = max(newest, key=lambda row: int(row["try_number"]))
    return tried.is_traced or is_key_of_trace(last["run_key"])


def have_succeeded(states: Sequence[TaskState | None], max_failures: int) -> bool:
    """Whether a try succeeded with items in these states. One that was given up has cancelled some."""
    others = [state for state in states if state is not TaskState.COMPLETED]
    return len(others) <= max_failures and {*others} <= {TaskState.FAILED, TaskState.EXPIRED}


def compare_lives(tried: AirflowTry, row: Row) -> Life:
    """If the records are inconclusive, a newer life: running again is safer than returning an old result."""
    if tried.is_traced or is_key_of_trace(row["run_key"]):
        return _compare_traces(tried, row)
    if not is_same_run(tried, row):
        began: datetime | None = row["run_started_at"]
        is_earlier = began is not None and tried.run_started_at is not None and tried.run_started_at < began
        return Life.OLDER if is_earlier else Life.NEWER
    if row["clear_number"] is None:
        # Recorded by a release without clear numbers: certain only if no task of the run was ever cleared.
        return Life.SAME if tried.clear_number == 0 else Life.NEWER
    if tried.clear_number != row["clear_number"]:
        return Life.NEWER if tried.clear_number > row["clear_number"] else Life.OLDER
    if tried.max_tries != row["max_tries"]:
        return Life.OLDER if tried.try_number < row["try_number"] else Life.NEWER
    return Life.SAME


def is_key_of_trace(key: str | None) -> bool:
    """Whether a triggerer recorded the key, which belongs to a life and not to a run."""
    return key is not None and key.startswith(TRACE_PREFIX)


def _compare_traces(tried: AirflowTry, row: Row) -> Life:
    """A triggerer submits, or has submitted: only the traces tell a retry from a clear and from another run."""
    if tried.trace_key is not None and tried.trace_key == row["run_key"]:
        return Life.SAME
    began, other = tried.run_started_at, row["run_started_at"]
    if began is None or other is None or began == other:
        return Life.OLDER if tried.try_number < row["try_number"] else Life.NEWER
    return Life.OLDER if began < other else Life.NEWER


def is_same_run(tried: AirflowTry, row: Row) -> bool:
    key = row["run_key"]
    if tried.run_key is None or key is None:
        return bool(tried.run_started_at == row["run_started_at"])
    if tried.run_key == key or tried.is_key_of_run is None:
        return bool(tried.run_key == key)
    if key not in tried.run_keys:
        raise UnknownRunKey(key)
    is_same = tried.run_keys[key]
    return bool(tried.run_started_at == row["run_started_at"]) if is_same is None else is_same
