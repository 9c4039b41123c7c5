"""Processes that do with the real operators and triggers what Airflow's do, at a hundredth of the cost.

One process has imported everything; it forks a child for each part of a task instance's way: ``execute``, ``trigger``,
``resume`` and ``cancel``. What a child has to tell is in a file that is there whole or not at all, as Airflow's
database would have it.
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

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.links import HorsiesAttemptsLink
from airflow_horsies.models import CancelOutcome, RetryPolicy, TaskInstanceKey
from airflow_horsies.operators import HorsiesBatchOperator, HorsiesOperator
from airflow_horsies.worker.parent_death import die_with_parent
from tests.chaos import BATCH_SIZE, LIGHT_DAG_ID, points

log = logging.getLogger(__name__)

RETRIES = RetryPolicy.fixed([1] * 10, auto_retry_for=["WORKER_CRASHED", "TRY_AGAIN"], jitter=False)
Job = Mapping[str, Any]


def make_operator(job: Job) -> Any:
    """The operator of a task instance; the same for each try."""
    key = f"{job['run_id']}-{job['mode']}"
    common: dict[str, Any] = {
        "task_id": job["mode"],
        "horsies_conn_id": job["connection"],
        "retry_policy": RETRIES,
        "inline_wait": timedelta(seconds=0.2),
    }
    work = {"seconds": job["seconds"], "fails_first": job["fails_first"]}
    match job["mode"]:
        case "cancelled":
            return HorsiesOperator(task_name="chaos.until_cancelled", kwargs={"key": key}, **common)
        case "batch":
            items = [{"key": f"{key}-{position}", **work} for position in range(BATCH_SIZE)]
            return HorsiesBatchOperator(task_name="chaos.work", items=items, deferrable=True, **common)
        case mode:
            deferrable = mode == "deferred"
            return HorsiesOperator(task_name="chaos.work", kwargs={"key": key, **work}, deferrable=deferrable, **common)


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
        try:
            return {"value": make_operator(self._job).execute(self._context())}
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            return {"path": path, "arguments": arguments}

    def _trigger(self) -> dict[str, Any]:
        module, _, name = self._job["path"].rpartition(".")
        trigger = getattr(importlib.import_module(module), name)(**self._job["arguments"])

        async def first_event() -> Any:
            async for event in trigger.run():
                return event.payload

        event = asyncio.run(first_event())
        points.death.reached("event")
        return {"event": event}

    def _resume(self) -> dict[str, Any]:
        return {"value": make_operator(self._job).execute_complete(self._context(), self._job["event"])}

    def _cancel(self) -> dict[str, Any]:
        with HorsiesHook(self._job["connection"]) as hook:
            sent = hook.submissions_of(self._instance())
            if not sent:
                return {"cancelled": None}
            task_id = sent[-1].horsies_task_id
            outcome = hook.cancel_many([task_id])[task_id]
        acknowledged = time.monotonic()
        points.death.reached("acknowledged")
        did = outcome in (CancelOutcome.CANCELLED, CancelOutcome.ALREADY_CANCELLED)
        return {"cancelled": task_id if did else None, "at": acknowledged}

    def _instance(self) -> TaskInstanceKey:
        return TaskInstanceKey(dag_id=LIGHT_DAG_ID, run_id=self._job["run_id"], task_id=self._job["mode"])

    def _context(self) -> dict[str, Any]:
        """As much of Airflow's context as operators ask for; with no retries, the life is max_tries + 1."""
        job = self._job
        ti = SimpleNamespace(
            dag_id=LIGHT_DAG_ID,
            run_id=job["run_id"],
            task_id=job["mode"],
            map_index=-1,
            try_number=job["try_number"],
            max_tries=job["life"] - 1,
            start_date=datetime.now(UTC),
            xcom_push=lambda **_: points.death.reached("submitted"),
        )
        return {"ti": ti, "dag_run": SimpleNamespace(start_date=datetime.fromisoformat(job["began"]))}


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
        points.death.at(job.get("point"), job.get("occurrence", 1))
        Way(folder, job).go()
        code = 0
    except BaseException as error:
        log.warning("Job %s (%s of %s): %s: %s", job["id"], job["role"], job["run_id"], type(error).__name__, error)
    finally:
        os._exit(code)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder = Path(os.environ["CHAOS_FOLDER"])
    # It would ask Airflow's api-server, which these processes have none of.
    HorsiesAttemptsLink.push = lambda *_: None  # type: ignore[method-assign]
    # Asked for, a child writes into the log where it is.
    faulthandler.register(signal.SIGUSR1)
    points.names()
    points.watch()
    with Client(sys.argv[1], "AF_UNIX") as channel:
        channel.send({"ready": os.getpid()})
        serve(folder, channel)


if __name__ == "__main__":
    main()
