"""Run every DAG of a folder with ``dag.test()`` and write a line of JSON about each; a process of its own."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session


def main(folder: str, report: Path, logical_date: datetime) -> None:
    bag = DagBag(folder)
    with report.open("w", buffering=1) as lines:
        for path, error in bag.import_errors.items():
            print(json.dumps({"dag_id": Path(path).stem, "error": error}), file=lines)
        for dag_id in sorted(bag.dags):
            print(f"==> {dag_id}", flush=True)
            try:
                run = bag.dags[dag_id].test(logical_date=logical_date)
                instances = run.get_task_instances()
                told = {
                    "state": str(run.state),
                    "tasks": {ti.task_id: ti.state for ti in instances},
                    "values": {ti.task_id: _pushed(ti, "return_value") for ti in instances},
                    "horsies": {ti.task_id: _pushed(ti, "horsies_task_id") for ti in instances},
                }
            except Exception:
                told = {"error": traceback.format_exc()}
            print(json.dumps({"dag_id": dag_id, **told}, default=str), file=lines)


def _pushed(ti: TaskInstance, key: str) -> Any:
    """The XCom of a task instance that was not mapped."""
    with create_session() as session:
        found = XComModel.get_many(
            run_id=ti.run_id, key=key, task_ids=ti.task_id, dag_ids=ti.dag_id, map_indexes=ti.map_index
        )
        row = session.scalars(found.limit(1)).first()
        return None if row is None else XComModel.deserialize_value(row)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), datetime.fromisoformat(sys.argv[3]))
