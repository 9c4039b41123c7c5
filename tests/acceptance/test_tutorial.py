"""The tutorial, followed: its task, its DAG and its command, and what comes of them in Airflow."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_horsies.embedded.airflow_api import ENDED, AirflowApi
from tests.docs.blocks import START_COMMAND, Block, all_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = "tutorial.md"
SECONDS = 600


def block_of(info: str) -> Block:
    (found,) = [block for block in all_blocks(info) if block.guide == PAGE]
    return found


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where Airflow is, as the command says."""
    hello = tmp_path / "hello"
    (hello / "dags").mkdir(parents=True)
    (hello / "hello_tasks.py").write_text(block_of("python tasks").text)
    (hello / "dags" / "hello.py").write_text(block_of("python dag").text)
    command = [sys.executable, *START_COMMAND.split()[1:]]
    log = hello / "log"
    with log.open("w") as out, subprocess.Popen(command, cwd=hello, stdout=out, stderr=subprocess.STDOUT) as stack:
        try:
            give_up = time.monotonic() + SECONDS
            while not (found := re.search(r"Airflow +(http://\S+)", log.read_text())):
                assert stack.poll() is None and time.monotonic() < give_up, log.read_text()
                time.sleep(0.2)
            yield found[1]
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(120)
            # For root, the data of Postgres is outside the folder.
            clean = [sys.executable, "-m", "airflow_horsies.embedded", "clean", "--folder", hello / ".horsies"]
            subprocess.run(clean, check=True)
        assert stack.returncode == 0, log.read_text()


def test_tutorial_leads_to_its_results(address: str) -> None:
    with AirflowApi(address) as api:
        give_up = time.monotonic() + SECONDS
        while api.missing_dags(("hello",)):
            assert time.monotonic() < give_up, "Airflow does not show the DAG"
            time.sleep(0.5)
        api.unpause("hello")
        api.trigger("hello", "first")
        while (state := str(api.run("hello", "first")["state"])) not in ENDED:
            assert time.monotonic() < give_up, "the run does not end"
            time.sleep(0.5)
        assert state == "success", api.errors("hello", "first")
        shown = json.loads(block_of("json result").text)
        assert {task_id: api.xcom("hello", "first", task_id) for task_id in shown} == shown
