"""Prunes our tables: records of tasks that horsies no longer keeps, with their items, and old log lines.

Every page of ids is a transaction of its own, so that pruning blocks other processes only briefly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.callbacks import SINCE as CALLBACKS_SINCE
from airflow_horsies.ledger.callbacks import prune_callbacks
from airflow_horsies.ledger.catalog import SINCE as CATALOG_SINCE
from airflow_horsies.ledger.catalog import prune_catalog
from airflow_horsies.ledger.messages import SINCE as MESSAGES_SINCE
from airflow_horsies.ledger.repairing import SINCE as REPAIRS_SINCE
from airflow_horsies.ledger.repairing import prune_repairs
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.workflows import find_workflows, know_workflows, read_workflow_states
from airflow_horsies.wire.reading import read_statuses
from airflow_horsies.wire.statements import Wire

# The first version of the ledger with all tables of this module.
SINCE = 5
PAGE_IDS = 500
PAGE_LINES = 5_000
PAGE_ITEMS = 5_000
# Of the targets of messages, in one transaction.
MAX_TARGET_PAGES = 20
PRUNE_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """What to remove.

    :param older_than: remove records of tasks that horsies no longer keeps this long after their last activity.
    :param lines_older_than: remove log lines of any task at this age; None keeps them with their task.
    """

    older_than: timedelta = PRUNE_AFTER
    lines_older_than: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedPage:
    """What one page removed.

    :param last_id: the next page starts after this id.
    :param is_last: whether there is no next page.
    """

    submissions: int = 0
    lines: int = 0
    last_id: str | None = None
    is_last: bool = False


def prune_page(wire: Wire, rule: PruneRule, *, after: str | None) -> Script[PrunedPage | None]:
    """Prune the next page of ids; None if another process is pruning."""
    yield Statement(sql_text(PACKAGE, "limit_pruning"))
    (lock,) = yield Statement(sql_text(PACKAGE, "lock_pruning"))
    if not lock["locked"]:
        return None
    rows = yield Statement(
        sql_text(PACKAGE, "read_prunable"),
        {"older_than_seconds": rule.older_than.total_seconds(), "after": after, "limit": PAGE_IDS},
    )
    if not rows:
        version = yield from read_version()
        if version >= REPAIRS_SINCE:
            yield prune_repairs()
        if version >= CATALOG_SINCE:
            yield prune_catalog()
        if version >= MESSAGES_SINCE:
            yield from _prune_messages(wire, rule)
        if version >= CALLBACKS_SINCE:
            yield prune_callbacks()
        return PrunedPage(is_last=True, last_id=after)
    old = [row["horsies_task_id"] for row in rows if row["is_old"]]
    kept = (yield from read_statuses(wire, old)) if old else {}
    gone = yield from _without_workflows(wire, [task_id for task_id in old if task_id not in kept])
    lines = yield from _prune_lines(rule, [row["horsies_task_id"] for row in rows], gone)
    if lines == PAGE_LINES:
        # There may be more lines: repeat the same page.
        return PrunedPage(lines=lines, last_id=after)
    if gone and (yield from _prune_items(gone)) == PAGE_ITEMS:
        return PrunedPage(lines=lines, last_id=after)
    submissions = (yield from _prune_tasks(rule, gone)) if gone else 0
    return PrunedPage(submissions=submissions, lines=lines, last_id=rows[-1]["horsies_task_id"])


def _without_workflows(wire: Wire, absent: list[str]) -> Script[list[str]]:
    """Those of which no workflow exists either."""
    workflows = yield from find_workflows(absent)
    kept = (yield from read_workflow_states(wire, workflows)) if workflows else {}
    return [one for one in absent if one not in kept]


def _prune_lines(rule: PruneRule, ids: list[str], gone: list[str]) -> Script[int]:
    age = rule.lines_older_than
    if not gone and age is None:
        return 0
    (row,) = yield Statement(
        sql_text(PACKAGE, "prune_lines"),
        {
            "ids": ids,
            "gone": gone,
            "older_than_seconds": None if age is None else age.total_seconds(),
            "limit": PAGE_LINES,
        },
    )
    lines: int = row["pruned"]
    return lines


def _prune_items(gone: list[str]) -> Script[int]:
    (row,) = yield Statement(sql_text(PACKAGE, "prune_items"), {"gone": gone, "limit": PAGE_ITEMS})
    items: int = row["pruned"]
    return items


def _prune_tasks(rule: PruneRule, gone: list[str]) -> Script[int]:
    yield know_workflows()
    (row,) = yield Statement(
        sql_text(PACKAGE, "prune_tasks"), {"ids": gone, "older_than_seconds": rule.older_than.total_seconds()}
    )
    pruned: int = row["pruned"]
    return pruned


def _prune_messages(wire: Wire, rule: PruneRule) -> Script[None]:
    """Remove signals, waits and checkpoints of tasks and workflows that horsies no longer keeps."""
    seconds = rule.older_than.total_seconds()
    after: str | None = None
    for _ in range(MAX_TARGET_PAGES):
        values = {"older_than_seconds": seconds, "after": after, "limit": PAGE_IDS}
        rows = yield Statement(sql_text(PACKAGE, "find_old_messages"), values)
        if not rows:
            return
        old = [row["id"] for row in rows if row["is_old"]]
        if old:
            kept = set((yield from read_statuses(wire, old)))
            kept |= {row["id"] for row in (yield wire.find_workflows(old))}
            gone = [target for target in old if target not in kept]
            yield Statement(sql_text(PACKAGE, "prune_messages"), {"gone": gone, "older_than_seconds": seconds})
        after = rows[-1]["id"]
