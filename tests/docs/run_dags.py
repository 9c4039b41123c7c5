"""Run every DAG of a folder with ``dag.test()`` and write a line of JSON about each; a process of its own."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import datetime
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag


def main(folder: str, report: Path, logical_date: datetime) -> None:
    bag = DagBag(folder)
    with report.open("w", buffering=1) as lines:
        for path, error in bag.import_errors.items():
            print(json.dumps({"dag_id": Path(path).stem, "error": error}), file=lines)
        for dag_id in sorted(bag.dags):
            print(f"==> {dag_id}", flush=True)
            try:
                run = bag.dags[dag_id].test(logical_date=logical_date)
                told = {"state": str(run.state), "tasks": {ti.task_id: ti.state for ti in run.get_task_instances()}}
            except Exception:
                told = {"error": traceback.format_exc()}
            print(json.dumps({"dag_id": dag_id, **told}), file=lines)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), datetime.fromisoformat(sys.argv[3]))
