"""Quick deferrals on a busy machine: how many does Airflow fail though the work succeeded, and what does the hold cost?

.venv/bin/python -m benchmarks.deferrals [--deferrals 500] [--out benchmarks/deferrals.json]

Tasks of 0.2 to 8 s with ``retries=0`` on LocalExecutor, while busy loops take both cores: some with the operator's own
settings, of which only those defer that outlast the inline wait, and some without an inline wait.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import psycopg

from airflow_horsies.embedded.airflow_api import AirflowApi
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.stack import AIRFLOW_DATABASE, HORSIES_DATABASE, EmbeddedStack
from airflow_horsies.embedded.worker import HorsiesWorker

HERE = Path(__file__).parent
SHORTEST, LONGEST, INLINE_WAIT = 0.2, 8.0, 5.0
# Of the tasks of each kind, those that are expected to defer.
SHARES = {"default": (LONGEST - INLINE_WAIT) / (LONGEST - SHORTEST), "at_once": 0.9}
ENDED = ("success", "failed")
SETTINGS = {
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
    "AIRFLOW__CORE__PARALLELISM": "8",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(HERE / "plugins"),
}
WORKER_APP = "napping_tasks:app"
# The tasks only sleep. With fewer children they would wait for one, and their deferrals would not be quick.
MORE_WORKERS, CHILDREN = 2, 12
LINE_SECONDS = 20.0
IDLE_SECONDS = 600.0
# It ends with the trial, however that ends.
BUSY_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the task instances of a DAG run, and how long each event was held back."""

    tasks: int
    deferrals: int
    succeeded: int
    false_failures: int
    held: tuple[float, ...]

    def figures(self) -> dict[str, float]:
        return {
            "tasks": self.tasks,
            "deferrals": self.deferrals,
            "succeeded": self.succeeded,
            "false_failures": self.false_failures,
            "hold_p50_seconds": round(percentile(self.held, 0.5), 2),
            "hold_p95_seconds": round(percentile(self.held, 0.95), 2),
        }

    def __add__(self, other: Trial) -> Trial:
        return Trial(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


@contextlib.contextmanager
def running_stack(folder: Path) -> Iterator[EmbeddedStack]:
    """With a few workers, so that the naps do not wait for each other."""
    dags = folder / "dags"
    dags.mkdir()
    shutil.copy(HERE / "dags" / "deferrals.py", dags)
    environ = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    with contextlib.ExitStack() as open_things:
        stack = open_things.enter_context(
            EmbeddedStack(
                folder / "stack", durable=True, dags_folder=dags, worker_app=WORKER_APP, worker_environ=environ,
                all_admins=True, airflow_settings=SETTINGS,
            )
        )  # fmt: skip
        info = stack.postgres.conninfo(HORSIES_DATABASE)
        for number in range(MORE_WORKERS):
            log = folder / f"worker-{number}.log"
            worker = HorsiesWorker(
                WORKER_APP, conninfo=info, log=log, folder=folder, environ=environ, processes=CHILDREN
            )
            open_things.enter_context(worker)
        yield stack


def lengths(count: int, seed: int) -> list[float]:
    """Evenly spread, in a drawn order."""
    step = (LONGEST - SHORTEST) / max(count - 1, 1)
    drawn = [round(SHORTEST + number * step, 2) for number in range(count)]
    random.Random(seed).shuffle(drawn)
    return drawn


def run_trials(stack: EmbeddedStack, api: AirflowApi, wanted: Mapping[str, int], seed: int) -> dict[str, Trial]:
    """DAG runs until so many tasks of each kind deferred; a task that ends before Airflow's process looks does not."""
    for number in itertools.count(1):
        trials = {kind: read_trial(stack, f"deferrals_{kind}") for kind in wanted}
        missing = {kind: wanted[kind] - trials[kind].deferrals for kind in wanted}
        if max(missing.values()) <= 0:
            break
        counts = {kind: math.ceil(count / SHARES[kind]) for kind, count in missing.items() if count > 0}
        for kind, count in counts.items():
            api.trigger(f"deferrals_{kind}", f"trial_{number}", seconds=lengths(count, seed + number))
        wait_for(stack, api, [f"deferrals_{kind}" for kind in counts], f"trial_{number}")
    return trials


def wait_for(stack: EmbeddedStack, api: AirflowApi, dag_ids: Sequence[str], run_id: str) -> None:
    ended, idle_since = -1, time.monotonic()
    while any(api.run(dag_id, run_id)["state"] not in ENDED for dag_id in dag_ids):
        time.sleep(LINE_SECONDS)
        trials = {dag_id: read_trial(stack, dag_id) for dag_id in dag_ids}
        for dag_id, trial in trials.items():
            print(
                f"  {dag_id}: {trial.succeeded} of {trial.tasks} succeeded, {trial.deferrals} deferred, "
                f"{trial.false_failures} failed by Airflow",
                flush=True,
            )
        so_far = sum(trial.succeeded for trial in trials.values())
        if so_far != ended:
            ended, idle_since = so_far, time.monotonic()
        elif time.monotonic() - idle_since > IDLE_SECONDS:
            raise EmbeddedError(f"No task has ended for {IDLE_SECONDS:.0f} s.")


def read_trial(stack: EmbeddedStack, dag_id: str) -> Trial:
    """From Airflow's own tables: a false failure is one that its scheduler logged as a mismatch of states."""
    with psycopg.connect(**stack.postgres.conninfo(AIRFLOW_DATABASE)) as connection:
        row = connection.execute(TRIAL, {"dag_id": dag_id}).fetchone()
        held = connection.execute(HELD, {"dag_id": dag_id}).fetchall()
    assert row is not None
    return Trial(*row, held=tuple(float(each) for (each,) in held))


# Airflow's state and event names, as its 3.3 writes them.
TRIAL = """
SELECT count(*),
       (SELECT count(*) FROM log WHERE dag_id = %(dag_id)s AND task_id = 'nap' AND event = 'deferred'),
       count(*) FILTER (WHERE state = 'success'),
       (SELECT count(*) FROM log WHERE dag_id = %(dag_id)s AND task_id = 'nap' AND event = 'state mismatch')
  FROM task_instance
 WHERE dag_id = %(dag_id)s AND task_id = 'nap' AND map_index >= 0
"""
HELD = """
SELECT (value #>> '{}')::json ->> 'held_seconds'
  FROM xcom
 WHERE dag_id = %(dag_id)s AND task_id = 'nap' AND key = 'return_value'
   AND (value #>> '{}')::json ->> 'held_seconds' IS NOT NULL
"""


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


def keep_logs(stack: EmbeddedStack, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in (stack.folder / "airflow" / "logs").glob("*.log"):
        shutil.copy(log, folder)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def measure(wanted: Mapping[str, int], *, busy: int, seed: int, keep: Path | None) -> dict[str, Trial]:
    with (
        temporary_folder() as folder,
        running_stack(folder) as stack,
        AirflowApi(stack.airflow.base_url) as api,
    ):
        while api.missing_dags([f"deferrals_{kind}" for kind in wanted]):
            time.sleep(1)
        try:
            with busy_cores(busy):
                return run_trials(stack, api, wanted, seed)
        finally:
            if keep is not None:
                keep_logs(stack, keep)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--deferrals", type=int, default=500)
    options.add_argument("--default-share", type=float, default=0.2, help="of the deferrals, with default settings")
    options.add_argument("--busy", type=int, default=2, help="busy loops")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep", type=Path, help="a folder for Airflow's logs")
    options.add_argument("--out", type=Path, help="a file for the figures")
    given = options.parse_args()
    default = math.ceil(given.deferrals * given.default_share)
    wanted = {"default": default, "at_once": given.deferrals - default}
    trials = measure(wanted, busy=given.busy, seed=given.seed, keep=given.keep)
    together = reduce(add, trials.values())
    figures: dict[str, Any] = {**together.figures(), "seed": given.seed, "busy_loops": given.busy}
    figures |= {kind: trial.figures() for kind, trial in trials.items()}
    print(json.dumps(figures, indent=2))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=2) + "\n")
    return int(together.false_failures > 0 or together.succeeded < together.tasks)


if __name__ == "__main__":
    sys.exit(main())
