"""Harm that chunks, their pages, repair and the lean worker do to what they live in."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from airflow_horsies.models import TaskSpec
from tests.integration.worker_rig import MakeRig, Rig

pytest.importorskip("horsies")


@pytest.fixture(scope="module")
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("hunt_harm", app="harm_tasks:app", processes=2)


@pytest.mark.parametrize("code", ["enum", "NUL", "surrogate"])
def test_one_odd_error_code_does_not_take_the_outcomes_of_the_other_items(rig: Rig, tmp_path: Path, code: str) -> None:
    """They have run, and would all run again."""
    file = str(tmp_path / "calls")
    items = [{"number": number, "code": code, "file": file} for number in range(6)]
    (chunk,) = rig.hook.enqueue_items(TaskSpec(task_name="fail_with"), items, chunk_size=6)
    task = rig.wait(chunk)
    with psycopg.connect(**rig.hook.settings.database.connect_args) as own:
        recorded = own.execute("SELECT outcome FROM airflow_horsies.items WHERE horsies_task_id = %s", (chunk,))
        outcomes = sorted(outcome for (outcome,) in recorded)
    assert outcomes == ["COMPLETED"] * 5 + ["FAILED"], (task.error_code, Path(file).read_text().split())
