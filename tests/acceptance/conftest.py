"""The real stack: Postgres, the four components of Airflow, a horsies worker; and Airflow as a script sees it."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from airflow.sdk import Connection

from airflow_horsies.client.settings import DEFAULT_NAMESPACE
from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.hook import HorsiesHook

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "dags"
# Where workers find the tasks of the tests, and of the examples.
WORKER_PATH = f"{HERE}{os.pathsep}{EXAMPLES}"
RUN_SECONDS = 120.0
# As many as Airflow gives at once.
PAGE = 100


class AirflowApi:
    """Airflow's REST API, as far as the tests need it."""

    def __init__(self, base_url: str) -> None:
        token = httpx.get(f"{base_url}/auth/token").raise_for_status().json()["access_token"]
        self._origin = f"http://{urlsplit(base_url).netloc}"
        self._client = httpx.Client(
            base_url=f"{base_url}/api/v2", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, **content: Any) -> Any:
        answer = self._client.request(method, path, **content)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get_page(self, path: str) -> Any:
        """A page beside the API, by the path a link gives."""
        answer = self._client.get(f"{self._origin}{path}")
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text

    def dag_ids(self) -> set[str]:
        return {dag["dag_id"] for dag in self.call("GET", "/dags?limit=200")["dags"]}

    def import_errors(self) -> list[str]:
        return [each["stack_trace"] for each in self.call("GET", "/importErrors")["import_errors"]]

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def trigger(self, dag_id: str, *, logical_date: str | None = None, **conf: Any) -> str:
        run_id = f"test-{uuid.uuid4().hex[:8]}"
        wanted = {"dag_run_id": run_id, "logical_date": logical_date, "conf": conf}
        self.call("POST", f"/dags/{dag_id}/dagRuns", json=wanted)
        return run_id

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}")["state"])

    def wait(self, dag_id: str, run_id: str, seconds: float = RUN_SECONDS) -> str:
        """The state in which the run ended."""
        self.until(lambda: self.run_state(dag_id, run_id) in ("success", "failed"), seconds, f"the end of {dag_id}")
        return self.run_state(dag_id, run_id)

    def run(self, dag_id: str, **conf: Any) -> tuple[str, str]:
        """Trigger, wait; the run and its state."""
        run_id = self.trigger(dag_id, **conf)
        return run_id, self.wait(dag_id, run_id)

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Task instances by id; a mapped one as ``task[index]``."""
        path, found = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit={PAGE}", []
        while len(found) % PAGE == 0 and (page := self.call("GET", f"{path}&offset={len(found)}")["task_instances"]):
            found += page
        return {
            each["task_id"] if each["map_index"] < 0 else f"{each['task_id']}[{each['map_index']}]": each
            for each in found
        }

    def state(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        state = self.tasks(dag_id, run_id)[task_id]["state"]
        return None if state is None else str(state)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}?map_index={map_index}"
        return self.call("GET", f"{path}&deserialize=false&stringify=false")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}?full_content=true"
        content = self.call("GET", path, headers={"Accept": "application/json"})["content"]
        return "\n".join(str(line.get("event", line)) + str(line.get("error_detail") or "") for line in content)

    def story(self, dag_id: str, run_id: str) -> str:
        """What happened in a run, for the message of a failed test."""
        told = []
        for name, each in self.tasks(dag_id, run_id).items():
            told.append(f"{name}: {each['state']}")
            if each["state"] in ("failed", "up_for_retry") and each["map_index"] < 0:
                told.append(self.log(dag_id, run_id, name, each["try_number"]))
        return "\n".join(told)

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": task_ids, "only_failed": False}
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", json=body | {"reset_dag_runs": True})

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.call("PATCH", path, json={"new_state": state})

    @staticmethod
    def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
        give_up = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < give_up, f"{what} did not come within {seconds:.0f} s"
            time.sleep(0.2)


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    folder = tmp_path_factory.mktemp("stack")
    dags = folder / "dags"
    dags.mkdir()
    for source in (*EXAMPLES.glob("*.py"), *(HERE / "dags").glob("*.py")):
        shutil.copy(source, dags)
    embedded = EmbeddedStack(
        folder,
        durable=True,
        dags_folder=dags,
        worker_app="acceptance_tasks:app",
        worker_environ={
            "PYTHONPATH": WORKER_PATH,
            "FLIGHTS_LAKE": str(folder / "lake"),
            "HORSIES_REPORT_FOLDER": str(folder / "reports"),
        },
        all_admins=True,
        base_path="/team/airflow",
        airflow_settings={
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__HORSIES__CALLBACKS": "True",
            # What a killed triggerer waited for is taken over after this long.
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        },
    )
    try:
        with embedded:
            yield embedded
    finally:
        embedded.postgres.delete()


@pytest.fixture(scope="package")
def api(stack: EmbeddedStack) -> Iterator[AirflowApi]:
    """Airflow with every DAG parsed."""
    client = AirflowApi(stack.airflow.base_url)
    expected = {
        "batch",
        "batch_in_chunks",
        "workflows",
        "workflows_killed",
        "callback",
        *(path.stem for path in EXAMPLES.glob("*.py")),
    }
    client.until(lambda: bool(client.import_errors()) or client.dag_ids() >= expected, 120, "the DAGs")
    assert client.import_errors() == []
    yield client
    client.close()


@pytest.fixture
def hook(stack: EmbeddedStack) -> Iterator[HorsiesHook]:
    with hook_of(stack) as made:
        yield made


def hook_of(stack: EmbeddedStack) -> HorsiesHook:
    fields = stack.connection()
    extra = fields.get("extra") or {}
    connection = Connection(conn_id="horsies_default", **{**fields, "extra": json.dumps(extra)})
    # Given, so that what the stack submitted is found from here, which has another address.
    namespace = extra.get("namespace", DEFAULT_NAMESPACE)
    return HorsiesHook("horsies_default", connection=connection, namespace=namespace)
