"""The submissions of a deployment, for display; the view known_submissions defines the latest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_horsies.core.submission import SentIds, Submission, TaskInstanceKey
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE, read_version
from airflow_horsies.ledger.submissions import decode_submission, is_same_deployment, key_of

# The first version of the ledger with chunks.
CHUNKS_SINCE = 5


@dataclass(frozen=True, slots=True)
class Deployment:
    """An Airflow deployment; another one may use the same namespace by mistake."""

    namespace: str
    base_url: str

    def owns(self, submission: Submission) -> bool:
        return submission.namespace == self.namespace and is_same_deployment(submission.base_url, self.base_url)

    def params(self, key: TaskInstanceKey) -> dict[str, str | int]:
        return {**key_of(self.namespace, key), "base_url": self.base_url}


@dataclass(frozen=True, slots=True)
class LatestIds:
    """Task ids in the order of their positions, as a Postgres array in text form.

    :param count: the number of items; a chunk has several.
    """

    count: int
    array: str
    has_chunks: bool = False

    @property
    def task_ids(self) -> list[str]:
        return _split(self.array)


def read_latest_ids(deployment: Deployment, key: TaskInstanceKey) -> Script[LatestIds]:
    if (yield from read_version()) < CHUNKS_SINCE:
        (row,) = yield Statement(sql_text(PACKAGE, "read_latest_ids"), deployment.params(key))
        return LatestIds(row["count"], row["ids"])
    (row,) = yield Statement(sql_text(PACKAGE, "read_latest_items"), deployment.params(key))
    return LatestIds(row["count"], row["ids"], row["chunks"] > 0)


def read_ids_of_try(deployment: Deployment, key: TaskInstanceKey, try_number: int) -> Script[SentIds]:
    """The ids of the last submission, if this try has made it."""
    params = {**deployment.params(key), "try_number": try_number}
    (row,) = yield Statement(sql_text(PACKAGE, "read_ids_of_try"), params)
    return SentIds(row["life"], _split(row["ids"]))


def read_latest(
    deployment: Deployment, key: TaskInstanceKey, *, ids: Collection[str] | None = None
) -> Script[list[Submission]]:
    """The last submission of the task instance, by position; all items, or those with the given ids."""
    wanted = None if ids is None else list(ids)
    rows = yield Statement(sql_text(PACKAGE, "read_latest"), {**deployment.params(key), "ids": wanted})
    return [decode_submission(row) for row in rows]


def read_rounds(
    deployment: Deployment,
    key: TaskInstanceKey,
    position: int,
    *,
    life: int | None = None,
    round_: int | None = None,
    limit: int,
) -> Script[list[Submission]]:
    """The submissions of a task instance at a position, in one life or in all, newest first."""
    which = {"position": position, "life": life, "round": round_, "limit": limit}
    rows = yield Statement(sql_text(PACKAGE, "read_rounds"), {**deployment.params(key), **which})
    return [decode_submission(row) for row in rows]


def _split(array: str) -> list[str]:
    """The ids of a Postgres array in text form."""
    return [task_id for task_id in array.strip("{}").split(",") if task_id]
