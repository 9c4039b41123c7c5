"""The demo as a user sees it: first ``--once``, then a second start in the same folder, ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_horsies.embedded.guard import PR_SET_CHILD_SUBREAPER, descendants, prctl

COMMAND = [sys.executable, "-m", "airflow_horsies.embedded"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("demo") / "with a space"
    yield here
    subprocess.run([*COMMAND, "clean", "--folder", here], check=True)
    assert not here.exists()


@pytest.fixture
def before() -> Iterator[set[int]]:
    """Our descendants before the test."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield set(descendants(os.getpid()))
    prctl(PR_SET_CHILD_SUBREAPER, 0)


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", "--folder", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_behind(before: set[int]) -> list[str]:
    """Living processes that came since; as a subreaper we inherit even those whose parents have died."""
    found = []
    for pid in set(descendants(os.getpid())) - before:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            found.append(f"{pid} {command}")
    return found


def assert_shows_the_tasks(output: str) -> None:
    for line in (
        r"sample\.add +COMPLETED +1 +COMPLETED +[\d.]+ +42",
        r"sample\.fail_once +COMPLETED +1 +FAILED +[\d.]+ +TRY_AGAIN: .*\(retried\)",
        r" +2 +COMPLETED +[\d.]+ +\"healed by a retry\"",
        r"sample\.fail_always +FAILED +1 +FAILED .*\(retried\)",
        r'sample\.count_by_remainder +COMPLETED .*\{"0": 333334, "1": 333333, "2": 333333\}',
    ):
        assert re.search(line, output), f"{line} is not in\n{output}"


@pytest.mark.timeout(400)
def test_once_runs_the_tasks_and_ends_with_exit_code_0(folder: Path, before: set[int]) -> None:
    demo = start_demo(folder, "--once")
    try:
        output, _ = demo.communicate(timeout=350)
    finally:
        demo.kill()
    assert demo.returncode == 0, output
    assert_shows_the_tasks(output)
    assert "earlier runs" not in output
    assert left_behind(before) == []
    for secret in ("postgres.password", "environment", "airflow/secrets.json"):
        assert (folder / secret).stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_start_finds_the_data_and_ctrl_c_leaves_nothing_behind(folder: Path, before: set[int]) -> None:
    demo = start_demo(folder)
    try:
        assert demo.stdout
        output = ""
        while "Ctrl-C stops everything" not in output:
            line = demo.stdout.readline()
            assert line, output
            output += line
        assert_shows_the_tasks(output)
        assert "4 task(s) of earlier runs" in output
        address = re.search(r"http://127\.0\.0\.1:\d+", output)
        assert address
        with urllib.request.urlopen(f"{address[0]}/api/v2/monitor/health") as answer:
            assert json.load(answer)["triggerer"]["status"] == "healthy"

        refused = subprocess.run([*COMMAND, "demo", "--folder", folder], capture_output=True, text=True)
        assert refused.returncode == 1
        assert f"in use by process {demo.pid}" in refused.stderr

        assert len(left_behind(before)) > 20
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
        assert demo.returncode == 0
        assert left_behind(before) == []
    finally:
        demo.kill()
        demo.communicate()
