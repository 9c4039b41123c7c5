"""Tasks that several task instances share through an idempotency key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import TaskIdTaken
from airflow_horsies.ledger.cancelling import lock_shared_tasks
from airflow_horsies.ledger.rounds import Round, needs_next_round
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.wire.encoding import EncodedTask, work_of
from airflow_horsies.wire.reading import read_states, read_tasks
from airflow_horsies.wire.sending import EarlierTask, claim_idempotency_keys
from airflow_horsies.wire.statements import Wire


def lock_keys(tasks: Sequence[EncodedTask]) -> Script[None]:
    digests = sorted({task.idempotency_digest for task in tasks if task.idempotency_digest is not None})
    if digests:
        yield Statement(sql_text(PACKAGE, "lock_keys"), {"digests": digests})


def reuse_shared(
    wire: Wire, pending: Sequence[Round], known: dict[str, TaskState], *, is_clear: bool
) -> Script[dict[str, str]]:
    """The tasks that others sent with the same idempotency key, by the ids that they replace.

    A task that failed, or that horsies no longer keeps, is not reused. Then another task of the same key is, or the
    work is sent without the key.
    """
    keyed = [item for item in pending if item.key_digest is not None and item.task.id not in known]
    if not keyed:
        return {}
    if is_clear:
        for item in keyed:
            item.task = item.task._replace(idempotency_digest=None)
        return {}
    tasks = [item.task for item in keyed if isinstance(item.task, EncodedTask)]
    claimed = yield from claim_idempotency_keys(wire, tasks)
    taken_keys = [item for item in keyed if item.task.id in claimed]
    if not taken_keys:
        return {}
    candidates = yield from _find_candidates(wire, taken_keys, claimed)
    every = {task_id for ids in candidates.values() for task_id in ids}
    to_be_cancelled = yield from lock_shared_tasks(every)
    states = yield from read_states(wire, sorted(every))
    taken = {}
    for item in taken_keys:
        for task_id in candidates[item.task.id]:
            state = states.get(task_id)
            is_to_be_cancelled = task_id in to_be_cancelled
            if state is not None and not needs_next_round(task_id, state, is_to_be_cancelled=is_to_be_cancelled):
                taken[item.task.id] = task_id
                known[task_id] = state
                break
        else:
            item.task = item.task._replace(idempotency_digest=None)
    return taken


def _find_candidates(
    wire: Wire, keyed: Sequence[Round], claimed: Mapping[str, EarlierTask]
) -> Script[dict[str, list[str]]]:
    """The owner of each key, and the tasks that others sent after it had failed."""
    holders = {item.task.id: claimed[item.task.id] for item in keyed}
    for item in keyed:
        holder = holders[item.task.id]
        if not holder.is_same_command and (yield from _work_of(wire, holder.task_id)) != item.item.work:
            raise key_of_other_work(holder.task_id)
    rows = yield Statement(sql_text(PACKAGE, "find_shared"), {"digests": [item.key_digest for item in keyed]})
    return {
        item.task.id: [
            holders[item.task.id].task_id,
            *(
                row["horsies_task_id"]
                for row in rows
                if (bytes(row["key_digest"]), bytes(row["work"])) == (item.key_digest, item.item.work)
            ),
        ]
        for item in keyed
    }


def key_of_other_work(owner: str) -> TaskIdTaken:
    return TaskIdTaken(
        f"The idempotency key belongs to task {owner}, which was sent with other arguments. Use another key.",
        task_id=owner,
    )


def _work_of(wire: Wire, task_id: str) -> Script[bytes | None]:
    """The work of a task; None if it is no longer known."""
    rows = yield Statement(sql_text(PACKAGE, "find_works"), {"ids": [task_id]})
    if rows:
        return bytes(rows[0]["work"])
    task = (yield from read_tasks(wire, [task_id], whole=True)).get(task_id)
    return None if task is None or task.kwargs is None else work_of(task.task_name, task.kwargs)
