"""Run every DAG of a folder with ``dag.test()`` and write a line of JSON about each; a process of its own."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag


def main(folder: str, report: Path) -> None:
    bag = DagBag(folder)
    with report.open("w", buffering=1) as lines:
        for path, error in bag.import_errors.items():
            print(json.dumps({"dag_id": Path(path).stem, "error": error}), file=lines)
        for dag_id, dag in sorted(bag.dags.items()):
            when = {}
            if dag.start_date is not None:
                when = {"logical_date": dag.start_date}
                # dag.test() has a run start at its logical date, so that its deadline would be over.
                dag.dagrun_timeout = datetime.now(UTC) - dag.start_date + timedelta(hours=1)
            try:
                run = dag.test(**when)
                told = {"run_id": run.run_id, "state": str(run.state)}
            except Exception:
                told = {"error": traceback.format_exc()}
            print(json.dumps({"dag_id": dag_id, **told}), file=lines)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
