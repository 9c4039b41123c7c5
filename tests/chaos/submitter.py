"""Processes that do with the real operators and triggers what Airflow's do, at a hundredth of the cost.

One process has imported everything; it forks a child for each part of a task instance's way: ``execute``, ``trigger``,
``resume``, ``cancel``, ``repair``, and ``prune`` of what belongs to nobody. What a child has to tell is in a file that
is there whole or not at all, as Airflow's database would have it. SIGTERM is what Airflow's supervisor and triggerer
make of a kill; what Airflow says of a task instance is in a file of its own.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk.execution_time import comms, task_runner

from airflow_horsies.client.ledger import prune_ledger
from airflow_horsies.client.repairing import request_repair
from airflow_horsies.exceptions import TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import CancelOutcome, RetryPolicy, TaskInstanceKey
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.worker.parent_death import die_with_parent
from tests.chaos import LIGHT_DAG_ID, broken, points

log = logging.getLogger(__name__)

RETRIES = RetryPolicy.fixed([1] * 10, auto_retry_for=["WORKER_CRASHED", "TRY_AGAIN"], jitter=False)
Job = Mapping[str, Any]


def make_operator(job: Job) -> Any:
    """The operator of a task instance, as its DAG file is now."""
    code = job["code"]
    common: dict[str, Any] = {
        "task_id": job["mode"],
        "horsies_conn_id": job["connection"],
        "retry_policy": RETRIES,
        "retries": code["retries"],
        "priority": code["priority"],
        "inline_wait": timedelta(seconds=0.2),
    }
    match job["mode"]:
        case "cancelled":
            return HorsiesOperator(task_name="chaos.until_cancelled", kwargs=code["items"][0], **common)
        case "batch" | "chunked":
            batch = {"items": code["items"], "max_failures": code["max_failures"], "deferrable": True}
            batch |= {"chunk_size": code["chunk_size"], "on_clear": code["on_clear"]}
            return HorsiesBatchOperator(task_name="chaos.work", **batch, **common)
        case mode:
            single = {"kwargs": code["items"][0], "deferrable": mode == "deferred"}
            return HorsiesOperator(task_name="chaos.work", **single, **common)


class PlayedSupervisor:
    """Answers what the operators and triggers ask Airflow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, question: Any) -> Any:
        if not isinstance(question, comms.GetTaskStates):
            raise TypeError(f"this Airflow does not answer {type(question).__name__}")
        found: dict[str, Any] = {}
        for run_id in question.run_ids or ():
            for task_id in question.task_ids or ():
                said = json.loads((self._folder / "states" / f"{run_id}-{task_id}").read_text())
                if said["exists"]:
                    found.setdefault(run_id, {})[task_id] = said["state"]
        return comms.TaskStatesResult(task_states=found)

    async def asend(self, question: Any) -> Any:
        return self.send(question)


class PlayedStore:
    """Airflow's task state store: values that live as long as the DAG run does, a file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return json.loads((self._folder / key).read_text())
        except FileNotFoundError:
            return default

    def set(self, key: str, value: Any, **_: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        half = self._folder.with_name(f"{self._folder.name}.half.{os.getpid()}")
        half.write_text(json.dumps(value))
        half.rename(self._folder / key)


class Way:
    """A child's part of the way."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._folder = folder
        self._job = job

    def go(self) -> None:
        role = self._job["role"]
        said = getattr(self, f"_{role}")()
        points.death.reached("before storing")
        path = self._folder / "told" / f"{self._job['id']}.json"
        path.with_suffix(".half").write_text(json.dumps(said))
        points.death.reached("while storing")
        path.with_suffix(".half").rename(path)
        points.death.reached("after storing")

    def _execute(self) -> dict[str, Any]:
        operator = self._operator()
        try:
            return {"value": operator.execute(self._context(operator))}
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            return {"path": path, "arguments": arguments}

    def _trigger(self) -> dict[str, Any]:
        module, _, name = self._job["path"].rpartition(".")
        trigger = getattr(importlib.import_module(module), name)(**self._job["arguments"])
        event = asyncio.run(_first_event(trigger))
        points.death.reached("event")
        return {"event": event}

    def _resume(self) -> dict[str, Any]:
        operator = self._operator()
        try:
            return {"value": operator.execute_complete(self._context(operator), self._job["event"])}
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            return {"path": path, "arguments": arguments}

    def _cancel(self) -> dict[str, Any]:
        with HorsiesHook(self._job["connection"]) as hook:
            sent = hook.read_submissions(self._instance())
            if not sent:
                return {"cancelled": None}
            task_id = sent[-1].horsies_task_id
            outcome = hook.cancel_tasks([task_id])[task_id]
        acknowledged = time.monotonic()
        points.death.reached("acknowledged")
        did = outcome in (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED)
        return {"cancelled": task_id if did else None, "at": acknowledged}

    def _repair(self) -> dict[str, Any]:
        """What the button of the page asks for, before it clears."""
        with HorsiesHook(self._job["connection"]) as hook:
            try:
                request_repair(
                    hook.client,
                    self._instance(),
                    clear_number=self._job["clear_number"],
                    requested_by="somebody",
                    items=self._job["places"],
                )
            except TaskNotFound:
                return {"requested": False}
        return {"requested": True}

    def _prune(self) -> dict[str, Any]:
        with HorsiesHook(self._job["connection"]) as hook:
            return {"pruned": prune_ledger(hook.client, older_than=timedelta(0))}

    def _operator(self) -> Any:
        operator = make_operator(self._job)
        # As Airflow does: what is told to end goes on afterwards, until it is killed.
        signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
        return operator

    def _instance(self) -> TaskInstanceKey:
        return TaskInstanceKey(dag_id=LIGHT_DAG_ID, run_id=self._job["run_id"], task_id=self._job["mode"])

    def _context(self, operator: Any) -> dict[str, Any]:
        """As much of Airflow's context as operators ask for."""
        job = self._job
        ti = SimpleNamespace(
            task=operator,
            dag_id=LIGHT_DAG_ID,
            run_id=job["run_id"],
            task_id=job["mode"],
            map_index=-1,
            try_number=job["try_number"],
            max_tries=job["max_tries"],
            start_date=datetime.now(UTC),
            xcom_push=lambda **_: points.death.reached("submitted"),
        )
        began = datetime.fromisoformat(job["began"])
        return {
            "ti": ti,
            "dag_run": SimpleNamespace(start_date=began, clear_number=job["clear_number"]),
            "task_state_store": PlayedStore(
                self._folder / "runs" / f"{job['run_id']}.{job['generation']}" / job["mode"]
            ),
        }


async def _first_event(trigger: Any) -> Any:
    """The payload of the trigger's event; SIGTERM is a user's action, as Airflow's triggerer understands it."""

    async def watch() -> Any:
        async for event in trigger.run():
            return event.payload

    watching = asyncio.ensure_future(watch())

    async def kill() -> None:
        try:
            await trigger.on_kill()
        finally:
            watching.cancel()

    killing: list[asyncio.Future[None]] = []
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: None if killing else killing.append(asyncio.ensure_future(kill()))
    )
    return await watching


def move_connection(job: Job) -> None:
    """The connection, as somebody has changed it since."""
    name = f"AIRFLOW_CONN_{job['connection'].upper()}"
    fields = json.loads(os.environ[name])
    if "database" in job["moved"]:
        fields["schema"] = job["moved"]["database"]
    if "namespace" in job["moved"]:
        fields["extra"] = {**fields.get("extra", {}), "namespace": job["moved"]["namespace"]}
    os.environ[name] = json.dumps(fields)


def serve(folder: Path, channel: Connection) -> None:
    """Fork a child for each job that comes, and tell how each ended."""
    jobs: dict[int, int] = {}
    while True:
        try:
            if channel.poll(0.03):
                job = channel.recv()
                pid = fork(folder, job, channel)
                jobs[pid] = job["id"]
                channel.send({"job": job["id"], "pid": pid})
        except (EOFError, OSError):
            return
        while jobs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            channel.send({"job": jobs.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def fork(folder: Path, job: Job, channel: Connection) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        channel.close()
        die_with_parent(parent)
        if job.get("moved"):
            move_connection(job)
        points.death.at(job.get("point"), job.get("occurrence", 1))
        Way(folder, job).go()
        code = 0
    except BaseException as error:
        log.warning("Job %s (%s of %s): %s: %s", job["id"], job["role"], job.get("run_id"), type(error).__name__, error)
    finally:
        os._exit(code)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder = Path(os.environ["CHAOS_FOLDER"])
    # It would ask Airflow's api-server, which these processes have none of.
    HorsiesAttemptsLink.push = lambda *_: None  # type: ignore[method-assign]
    # Asked for, a child writes into the log where it is.
    faulthandler.register(signal.SIGUSR1)
    task_runner.SUPERVISOR_COMMS = PlayedSupervisor(folder)  # type: ignore[assignment]
    broken.apply(os.environ.get("CHAOS_BREAK"))
    # Loads what children would have to load, each for itself.
    HorsiesHook.get_connection("direct")
    points.names()
    points.watch()
    with Client(sys.argv[1], "AF_UNIX") as channel:
        channel.send({"ready": os.getpid()})
        serve(folder, channel)


if __name__ == "__main__":
    main()
