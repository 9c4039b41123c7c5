"""What task instances of a deployment submitted, for people to see; the view known_submissions knows what is latest."""

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
    """The ids of tasks in the order of their positions, as an array in the words of Postgres."""

    count: int
    array: str


def read_latest_ids(deployment: Deployment, key: TaskInstanceKey) -> Script[LatestIds]:
    (row,) = yield Statement(sql_text(PACKAGE, "read_latest_ids"), deployment.params(key))
    return LatestIds(row["count"], row["ids"])


def read_latest(
    deployment: Deployment, key: TaskInstanceKey, *, ids: Collection[str] | None = None
) -> Script[list[Submission]]:
    """What the task instance submitted last, by position; those of the given ids, or all."""
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
    """What the task instance submitted under a position, in all of its lives or in one, newest first."""
    which = {"position": position, "life": life, "round": round_, "limit": limit}
    rows = yield Statement(sql_text(PACKAGE, "read_rounds"), {**deployment.params(key), **which})
    return [decode_submission(row) for row in rows]
