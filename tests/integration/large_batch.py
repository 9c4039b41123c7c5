"""An Airflow task with a very large batch in chunks: submits it, resumes when it has ended, and tells how much memory
this took. Run in a process of its own: ``python -m tests.integration.large_batch CONN_ID ITEMS RESULTS STEP``."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_horsies.operators import HorsiesBatchOperator
from tests.integration.test_operator_changes import context


def make(conn_id: str, items: int, results: Any) -> HorsiesBatchOperator:
    return HorsiesBatchOperator(
        task_id="load",
        task_name="add",
        items=[{"a": number, "shop": f"shop number {number}"} for number in range(items)],
        chunk_size=50,
        results=results,
        horsies_conn_id=conn_id,
        deferrable=True,
        inline_wait=timedelta(0),
    )


def peak_mb() -> float:
    """Of this process alone: what getrusage says includes the process that started it."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1024


def main(conn_id: str, items: str, results: str, step: str) -> None:
    operator = make(conn_id, int(items), results)
    before = peak_mb()
    told: dict[str, Any] = {}
    if step == "submit":
        try:
            operator.execute(context())
        except TaskDeferred as deferred:
            told["trigger"] = deferred.trigger.serialize()
    else:
        asked = {"life": 1, "size": int(items), "max_failures": 0, "results": results}
        value = operator.execute_complete(context(), {"reason": "ended", "message": None, "task_ids": [], **asked})
        told["value"] = [len(value), value[0], value[-1]] if isinstance(value, list) else value
    told["before_mb"] = before
    told["peak_mb"] = peak_mb()
    print(f"\n{json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
