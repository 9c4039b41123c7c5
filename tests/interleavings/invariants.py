"""What must hold after every order of every pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_horsies.models import SubmitOutcome, TaskState
from tests.interleavings.batches import SentBatch
from tests.interleavings.pairs import Ended, Pair, Sent
from tests.interleavings.stage import NAMES, Found


def violations(pair: Pair, ended: Ended) -> list[str]:
    """What is wrong after an order, in sentences."""
    return [
        *_unexpected_errors(pair, ended),
        *(["both waited for each other"] if ended.order.deadlocks and not pair.deadlocks else []),
        *_tasks(pair, ended),
        *_records(pair, ended.found),
        *_answers(ended),
        *_locks(ended.found),
        *([] if _refused(pair, ended) else pair.check(ended)),
    ]


def digest(ended: Ended) -> Any:
    """What an order came to, without times: two orders that mean the same have the same."""
    found = ended.found
    return (
        [_said(ended.order.outcomes[name].value, ended.error(name)) for name in NAMES],
        sorted((task_id, task.state.value, task.work) for task_id, task in found.tasks.items()),
        [sorted(_kept(row, found).items(), key=str) for row in found.submissions],
        [(task_id, chunk.works, chunk.places, _dropped(task_id, found)) for task_id, chunk in found.chunks.items()],
        [(item, outcome) for item, (outcome, _) in found.items.items()],
        [sorted(row.items(), key=str) for row in found.repairs],
        sorted(found.signals),
        found.versions,
    )


def _kept(row: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """A row as readers take it: whether a task that has ended is still wanted means nothing."""
    place = row["position"] if row["place"] is None else row["place"]
    wanted = {"is_released": row["is_released"]} if row["horsies_task_id"] in found.live else {}
    return {**{column: row[column] for column in row if column != "is_released"}, "place": place, **wanted}


def _dropped(task_id: str, found: Found) -> list[int]:
    """That an item that has ended must not be started means nothing."""
    return sorted(number for number in found.chunks[task_id].dropped if (task_id, number) not in found.items)


def _refused(pair: Pair, ended: Ended) -> bool:
    """An answer that is not there cannot be looked at."""
    return any(
        (error := ended.error(name)) is not None and not isinstance(error, pair.may_raise.get(name, ()))
        for name in NAMES
    )


def _unexpected_errors(pair: Pair, ended: Ended) -> Iterator[str]:
    for name in NAMES:
        error = ended.error(name)
        if error is not None and not isinstance(error, pair.may_raise.get(name, ())):
            yield f"{name} ended with {type(error).__name__}: {error}"


def _tasks(pair: Pair, ended: Ended) -> Iterator[str]:
    found = ended.found
    for task_id in found.doubled:
        yield f"task {task_id} is both live and in the history"
    for task_id in sorted(found.in_state(TaskState.CANCELLED) - pair.may_cancel(ended)):
        yield f"task {task_id} was cancelled, and nobody wished it"
    sent = {row["horsies_task_id"] for row in found.submissions}
    if not pair.loose:
        for task_id in sorted(found.live.keys() - sent):
            yield f"task {task_id} is live, and no submission knows it"
    for (key, work), count in Counter(
        (_instance(row), work)
        for row in {(row["horsies_task_id"], _instance(row)): row for row in found.submissions}.values()
        if not row["is_released"]
        for work in found.open_works(row["horsies_task_id"])
    ).items():
        if count > 1:
            yield f"{count} live tasks of {work} belong to {key}"


def _records(pair: Pair, found: Found) -> Iterator[str]:
    if not pair.forgets:
        for row in found.submissions:
            if row["horsies_task_id"] not in found.tasks:
                yield f"a submission points at task {row['horsies_task_id']}, which does not exist"


def _answers(ended: Ended) -> Iterator[str]:
    """Whoever submitted was told of tasks that exist and do what was asked for."""
    for name in NAMES:
        sent = ended.value(name)
        if not isinstance(sent, Sent):
            continue
        for work, result in zip(sent.works, sent.results, strict=True):
            task = ended.found.tasks.get(result.task_id)
            if task is None:
                yield f"{name} was told of task {result.task_id}, which does not exist"
            elif task.work != work:
                yield f"{name} asked for {work} and was told of a task of {task.work}"
            elif result.outcome is SubmitOutcome.ADOPTED and task.state is not TaskState.COMPLETED:
                yield f"{name} adopted a task that is {task.state}"


def _locks(found: Found) -> Iterator[str]:
    for kind, mode in found.locks:
        yield f"a lock is left: {kind}, {mode}"


def _instance(row: Any) -> str:
    return "/".join(str(row[column]) for column in ("namespace", "dag_id", "run_id", "task_id", "map_index"))


def _said(value: Any, error: Exception | None) -> Any:
    if error is not None:
        return type(error).__name__
    if isinstance(value, Sent):
        return [(result.task_id, result.outcome.value, result.life, result.round) for result in value.results]
    if isinstance(value, SentBatch):
        batch = value.batch
        return [batch.task_ids, batch.life, sorted((outcome.value, count) for outcome, count in batch.outcomes.items())]
    if isinstance(value, dict):
        return sorted((key, str(outcome)) for key, outcome in value.items())
    return value
