"""The submissions of a deployment, for display; the view known_submissions defines the latest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.ledger.submissions import decode_submission, is_same_deployment, key_of


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
    """Task ids in the order of their positions, as a Postgres array in text form."""

    count: int
    array: str


def read_latest_ids(deployment: Deployment, key: TaskInstanceKey) -> Script[LatestIds]:
    (row,) = yield Statement(sql_text(PACKAGE, "read_latest_ids"), deployment.params(key))
    return LatestIds(row["count"], row["ids"])


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
