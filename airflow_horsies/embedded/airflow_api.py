"""The parts of Airflow's REST API that the demo needs."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote

import httpx

from airflow_horsies.embedded.errors import EmbeddedError

ENDED = ("success", "failed")


class AirflowApi:
    """The API of an Airflow without login.

    :param base_url: the address of Airflow.
    """

    def __init__(self, base_url: str) -> None:
        # Proxies and other settings of the user must not apply to the loopback address.
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
            raise EmbeddedError(f"Airflow rejected {method} {path} with {answer.status_code}: {answer.text[:500]}")
        return answer.json() if answer.content else None

    def missing_dags(self, wanted: Sequence[str]) -> set[str]:
        """The DAGs that Airflow has not parsed yet; raises an error if it cannot parse a file."""
        for problem in self.call("GET", "/importErrors")["import_errors"]:
            raise EmbeddedError(f"Airflow cannot import {problem['filename']}:\n{problem['stack_trace']}")
        return set(wanted) - {dag["dag_id"] for dag in self.call("GET", "/dags?limit=200")["dags"]}

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def backfill(self, dag_id: str, first: str, last: str, *, at_once: int) -> None:
        """Create the missing runs of the days; does nothing while a backfill of this DAG is running."""
        body = {
            "dag_id": dag_id,
            "from_date": first,
            "to_date": last,
            "max_active_runs": at_once,
            "reprocess_behavior": "none",
        }
        self.call("POST", "/backfills", json=body, may_conflict=True)

    def trigger(self, dag_id: str, run_id: str, *, logical_date: str | None = None, **conf: Any) -> None:
        """Create a run, unless a run of this id or date exists."""
        body = {"dag_run_id": run_id, "logical_date": logical_date, "conf": conf}
        self.call("POST", f"/dags/{dag_id}/dagRuns", json=body, may_conflict=True)

    def runs(self, dag_id: str, **query: Any) -> list[dict[str, Any]]:
        """The runs, the newest last."""
        runs: list[dict[str, Any]] = self.call(
            "GET", f"/dags/{dag_id}/dagRuns", params={"limit": 100, "order_by": "run_after", **query}
        )["dag_runs"]
        return runs

    def runs_with_failures(self, dag_id: str, **query: Any) -> list[str]:
        """The ids of the runs with a failed task instance: a run fails only when all its tasks have ended."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/~/taskInstances", params={"state": "failed", **query})
        return sorted({instance["dag_run_id"] for instance in found["task_instances"]})

    def clear(self, dag_id: str, run_id: str) -> None:
        """Run all tasks again, as those that a timeout of the run has skipped are not failed."""
        body = {"dry_run": False, "only_failed": False}
        self.call("POST", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/clear", json=body)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}")
        return run

    def errors(self, dag_id: str, run_id: str) -> dict[str, str]:
        """The last error in the log of each task instance that failed."""
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        found = {}
        for instance in self.call("GET", path, params={"state": "failed"})["task_instances"]:
            log = self.call(
                "GET", f"{path}/{instance['task_id']}/logs/{instance['try_number']}", params={"full_content": True}
            )
            lines = [line for line in log["content"] if isinstance(line, dict) and line.get("level") == "error"]
            found[instance["task_id"]] = _error(lines[-1]) if lines else "Its log contains no error."
        return found

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", path, params={"deserialize": False, "stringify": False})["value"]


def _error(line: dict[str, Any]) -> str:
    """A log line with its exception."""
    causes = line.get("error_detail") or []
    return " ".join([str(line["event"]), *(f"{cause['exc_type']}: {cause['exc_value']}" for cause in causes[:1])])
