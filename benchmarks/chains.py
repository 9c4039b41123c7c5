"""A chain of twenty trivial steps, whole DAG run: as nodes of one workflow, and as tasks of Airflow.

.venv/bin/python -m benchmarks.chains [--rounds 3]

Both on the same Airflow with its LocalExecutor, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from airflow_horsies.embedded.airflow_api import AirflowApi
from airflow_horsies.embedded.stack import EmbeddedStack
from benchmarks.end_to_end import HERE, run_seconds
from benchmarks.figures import Figure, main, ratio, take_turns, told

DAGS = {"workflow": "bench_workflow_chain", "airflow": "bench_airflow_chain"}
STEPS = 20


def measure(given: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        print("  starting Airflow …", flush=True)
        stack = EmbeddedStack(
            folder / "stack",
            durable=True,
            dags_folder=HERE / "dags",
            worker_app="short_tasks:app",
            worker_environ={"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])},
            all_admins=True,
            airflow_settings={"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"},
        )
        with stack, AirflowApi(stack.airflow.base_url) as api:
            while api.missing_dags(list(DAGS.values())):
                time.sleep(1)
            return measure_chains(api, given.rounds)


def measure_chains(api: AirflowApi, rounds: int) -> list[Figure]:
    numbers = itertools.count()

    def seconds(dag_id: str) -> float:
        return run_seconds(api, dag_id, next(numbers), STEPS)

    runs = {name: partial(seconds, dag_id) for name, dag_id in DAGS.items()}
    # The first run of each also reads the DAG.
    for run in runs.values():
        run()
    said = take_turns(runs, rounds)
    for name, taken in said.items():
        told(f"a DAG run of {STEPS} steps, {name}", taken)
    return [ratio(f"workflow_chain_{STEPS}_vs_airflow_tasks", said["airflow"], said["workflow"])]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    sys.exit(main(measure, options))
