"""Airflow's REST API, as far as the demo needs it."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote

import httpx

from airflow_horsies.embedded.errors import EmbeddedError

ENDED = ("success", "failed")


class AirflowApi:
    """Of an Airflow without log-in.

    :param base_url: where it is.
    """

    def __init__(self, base_url: str) -> None:
        # Nothing of the user's may stand between this machine and itself.
        self._client = httpx.Client(timeout=60, trust_env=False)
        token = self._client.get(f"{base_url}/auth/token").raise_for_status().json()["access_token"]
        self._client.base_url = httpx.URL(f"{base_url}/api/v2")
        self._client.headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def call(self, method: str, path: str, *, may_conflict: bool = False, **content: Any) -> Any:
        answer = self._client.request(method, path, **content)
        if may_conflict and answer.status_code == HTTPStatus.CONFLICT:
            return None
        if not answer.is_success:
            raise EmbeddedError(f"Airflow refused {method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None

    def missing_dags(self, wanted: Sequence[str]) -> set[str]:
        """Those that Airflow has not read yet; an error if it cannot read a file."""
        for each in self.call("GET", "/importErrors")["import_errors"]:
            raise EmbeddedError(f"Airflow cannot read {each['filename']}:\n{each['stack_trace']}")
        return set(wanted) - {dag["dag_id"] for dag in self.call("GET", "/dags?limit=200")["dags"]}

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def backfill(self, dag_id: str, first: str, last: str, *, at_once: int) -> None:
        """Runs of the days that have none; harmless while a backfill of this DAG goes on."""
        asked = {
            "dag_id": dag_id,
            "from_date": first,
            "to_date": last,
            "max_active_runs": at_once,
            "reprocess_behavior": "none",
        }
        self.call("POST", "/backfills", json=asked, may_conflict=True)

    def trigger(self, dag_id: str, run_id: str, *, logical_date: str | None = None, **conf: Any) -> None:
        """A run, unless there is one of this id or date."""
        asked = {"dag_run_id": run_id, "logical_date": logical_date, "conf": conf}
        self.call("POST", f"/dags/{dag_id}/dagRuns", json=asked, may_conflict=True)

    def runs(self, dag_id: str, **query: Any) -> list[dict[str, Any]]:
        """The newest last."""
        runs: list[dict[str, Any]] = self.call(
            "GET", f"/dags/{dag_id}/dagRuns", params={"limit": 100, "order_by": "run_after", **query}
        )["dag_runs"]
        return runs

    def clear(self, dag_id: str, run_id: str) -> None:
        """Run all of it again: what a time-out of the run left undone is not failed, but skipped."""
        asked = {"dry_run": False, "only_failed": False}
        self.call("POST", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/clear", json=asked)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}")
        return run

    def errors(self, dag_id: str, run_id: str) -> dict[str, str]:
        """The last error in the log of each task instance that failed."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        found = {}
        for each in self.call("GET", path, params={"state": "failed"})["task_instances"]:
            log = self.call("GET", f"{path}/{each['task_id']}/logs/{each['try_number']}", params={"full_content": True})
            lines = [line for line in log["content"] if isinstance(line, dict) and line.get("level") == "error"]
            found[each["task_id"]] = _error(lines[-1]) if lines else "no error is in its log"
        return found

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", path, params={"deserialize": False, "stringify": False})["value"]


def _error(line: dict[str, Any]) -> str:
    """A line of a log, with the exception that it tells of."""
    causes = line.get("error_detail") or []
    return " ".join([str(line["event"]), *(f"{each['exc_type']}: {each['exc_value']}" for each in causes[:1])])
