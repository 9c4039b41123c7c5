"""What a running task writes, as a user sees it in the log of the Airflow task."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts
from airflow_horsies.models import LogChunk, Progress, TaskInstanceKey
from tests.acceptance.conftest import AirflowApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def write(hook: HorsiesHook, task_id: str, number: int) -> None:
    """As a worker of airflow_horsies.worker does."""
    chunk = LogChunk(number, datetime.now(UTC), "WARNING", [f"line number {number}"])
    hook.client.run(lambda: attempts.append_lines(task_id, 1, [chunk]))


@pytest.mark.parametrize("variant", ["deferred", "blocking"])
def test_lines_are_in_the_log_while_the_task_runs_and_each_is_there_once(
    api: AirflowApi, hook: HorsiesHook, tmp_path: Path, variant: str
) -> None:
    dag_id, go_on = f"one_{variant}", tmp_path / "go-on"
    run_id = api.trigger(dag_id, task_name="acceptance.wait_for_file", kwargs={"path": str(go_on)})
    instance = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id="one")
    api.until(lambda: bool(hook.read_submissions(instance)), 60, "the submission")
    (submission,) = hook.read_submissions(instance)
    if variant == "deferred":
        api.until(lambda: api.tasks(dag_id, run_id)["one"]["triggerer_job"] is not None, 60, "the deferral")
    task_id = submission.horsies_task_id
    hook.client.run(lambda: attempts.write_progress(task_id, Progress(attempt=1, done=4, total=10, stage="load")))
    write(hook, task_id, 1)
    api.until(lambda: "[attempt 1] line number 1" in api.log(dag_id, run_id, "one"), 20, "the first line")
    assert "Progress: 40 % (4 of 10), load" in api.log(dag_id, run_id, "one")
    assert not api.tasks(dag_id, run_id)["one"]["end_date"]
    # Airflow fails a task that is resumed before its executor was heard to have deferred it (apache/airflow#72716).
    time.sleep(5)
    write(hook, task_id, 2)
    go_on.touch()
    assert api.wait(dag_id, run_id) == "success", api.story(dag_id, run_id)
    log = api.log(dag_id, run_id, "one")
    assert [log.count(f"line number {number}") for number in (1, 2)] == [1, 1]
    assert log.index("line number 2") < log.index(f"Task {task_id}, attempt 1: COMPLETED")
