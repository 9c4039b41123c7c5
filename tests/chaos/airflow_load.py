"""Runs of the real Airflow, and what people change about them; and whether its api-server answers all the while."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from airflow_horsies.embedded.airflow_api import ENDED, AirflowApi
from airflow_horsies.embedded.errors import EmbeddedError
from tests.chaos import DAG_ID
from tests.chaos.facts import Violation
from tests.chaos.plan import Fault
from tests.chaos.stack import Component, Stack

RUNS_AT_ONCE = 2
# The sensor waits for 'deferred', which therefore has to end well.
CLEARED, MARKED = ("deferred", "blocking", "batch", "chunked"), ("blocking", "batch", "chunked")
ASK_EVERY = 1.0
# On two cores that everything else keeps busy.
ANSWER_SECONDS = 30.0
# How long it may take to answer for the first time after it was started or paused; from then on it has to.
GRACE_SECONDS = 300.0


@dataclass(frozen=True)
class AirflowWish:
    """Something that a person did to a run, or to one of its task instances."""

    at: float
    run_id: str
    task_id: str | None


class AirflowLoad(threading.Thread):
    """Keeps a few runs of the DAG going, whatever Airflow's api-server says to it."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="Airflow load", daemon=True)
        self.runs: dict[str, str] = {}
        self.wishes: list[AirflowWish] = []
        self.marked: set[tuple[str, str]] = set()
        self._stack = stack
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._ending = threading.Event()

    def drain(self) -> None:
        self._draining.set()

    def end(self) -> None:
        self._ending.set()
        self.join()

    @property
    def open_count(self) -> int:
        return sum(state not in ENDED for state in self.runs.values())

    @property
    def over_count(self) -> int:
        return len(self.runs) - self.open_count

    def change(self, change: Fault) -> bool:
        """Whether there was a run to which it could happen, and Airflow did it."""
        with self._lock:
            runs = list(self.runs)[-2 * RUNS_AT_ONCE :]
            if not runs or self._draining.is_set():
                return False
            run_id = runs[int(change.drawn["pick"] * len(runs))]
            with suppress(httpx.HTTPError, EmbeddedError, KeyError), self._api() as api:
                self._change(api, change, run_id)
                return True
        return False

    def _change(self, api: AirflowApi, change: Fault, run_id: str) -> None:
        run = f"/dags/{DAG_ID}/dagRuns/{run_id}"
        match change.kind:
            case "Airflow task cleared":
                task_id = CLEARED[change.drawn["task"] % len(CLEARED)]
                # Also of one whose answer is lost it may have happened.
                self._wish(run_id, task_id)
                asked = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [task_id]}
                api.call("POST", f"/dags/{DAG_ID}/clearTaskInstances", json=asked)
                self.marked.discard((run_id, task_id))
            case "Airflow task marked":
                task_id = MARKED[change.drawn["task"] % len(MARKED)]
                self._wish(run_id, task_id)
                self.marked.add((run_id, task_id))
                api.call("PATCH", f"{run}/taskInstances/{task_id}", json={"new_state": change.drawn["state"]})
            case "Airflow run deleted and made again":
                self._wish(run_id, None)
                api.call("DELETE", run)
                self.marked -= {(run_id, task_id) for task_id in MARKED}
                api.trigger(DAG_ID, run_id)
            case kind:
                raise ValueError(kind)
        self.runs[run_id] = "queued"

    def _wish(self, run_id: str, task_id: str | None) -> None:
        self.wishes.append(AirflowWish(time.monotonic(), run_id, task_id))

    def _api(self) -> AirflowApi:
        assert self._stack.airflow is not None
        return AirflowApi(self._stack.airflow.base_url)

    def run(self) -> None:
        while not self._ending.wait(1.0):
            with suppress(httpx.HTTPError, EmbeddedError, KeyError), self._api() as api:
                while not self._ending.wait(1.0):
                    with self._lock:
                        self._look(api)

    def _look(self, api: AirflowApi) -> None:
        for run_id, state in self.runs.items():
            if state not in ENDED:
                self.runs[run_id] = self._state(api, run_id)
        if self.open_count < RUNS_AT_ONCE and not self._draining.is_set():
            run_id = f"chaos-{len(self.runs) + 1}"
            # Refused if an earlier request, whose answer was lost, made it.
            api.trigger(DAG_ID, run_id)
            self.runs[run_id] = "queued"

    def _state(self, api: AirflowApi, run_id: str) -> str:
        found: list[dict[str, Any]] = api.runs(DAG_ID, run_id_pattern=run_id)
        states = {run["dag_run_id"]: str(run["state"]) for run in found}
        if run_id not in states:
            # It was deleted, and what was to make it again did not come through.
            api.trigger(DAG_ID, run_id)
        return states.get(run_id, "queued")


class ApiWatcher(threading.Thread):
    """Asks the api-server for its health again and again; faults of its own process are no excuse for long."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="api watcher", daemon=True)
        self.violations: list[Violation] = []
        self.answers = 0
        self.slowest = 0.0
        self._answered_at = 0.0
        self._stack = stack
        self._ending = threading.Event()

    def end(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        assert self._stack.airflow is not None
        component = self._stack.components["api-server"]
        with httpx.Client(base_url=self._stack.airflow.base_url, timeout=ANSWER_SECONDS, trust_env=False) as client:
            while not self._ending.wait(ASK_EVERY):
                self._ask(client, component)

    def _ask(self, client: httpx.Client, component: Component) -> None:
        began = time.monotonic()
        try:
            client.get("/api/v2/monitor/health").raise_for_status()
        except httpx.HTTPError as error:
            if not self._is_excused(component, began) and not self._ending.is_set():
                now = time.monotonic()
                silent = f"the last answer came {now - self._answered_at:.0f} s ago"
                what = f"{type(error).__name__} after {now - began:.1f} s; {silent}"
                self.violations.append(Violation("the api-server answers", "/api/v2/monitor/health", what, began))
        else:
            self.answers += 1
            self._answered_at = time.monotonic()
            if not component.was_disturbed_since(began - ASK_EVERY):
                self.slowest = max(self.slowest, self._answered_at - began)

    def _is_excused(self, component: Component, began: float) -> bool:
        """Whether it was disturbed meanwhile, or has not come up yet since it last was."""
        is_coming_up = component.was_disturbed_since(self._answered_at)
        return component.was_disturbed_since(began if not is_coming_up else began - GRACE_SECONDS)
