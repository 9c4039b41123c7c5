from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("horsies")

import airflow_horsies
from airflow_horsies.worker.engines import jvm
from airflow_horsies.worker.engines.jvm import FOLDER_PREFIX, LOCK_FILE, Jvm, remove_orphaned_folders

OTHER_PROCESS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from airflow_horsies.worker.engines.jvm import Jvm
jvm = Jvm({}, lambda level, line: None)
print(jvm.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def child_elsewhere(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A child of another container: it shares the folder, and its pid means nothing here."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(airflow_horsies.__file__).parents[1])},
    )
    try:
        assert process.stdout
        folder = Path(process.stdout.readline().strip())
        # As if there were no such process: pids of another container are not seen.
        renamed = folder.rename(folder.with_name(f"{FOLDER_PREFIX}{2**22 + 1}-x"))
        yield process, renamed
    finally:
        process.kill()
        process.communicate()


def test_the_folder_of_a_live_child_stays_also_where_its_pid_is_not_known(temporary: Path) -> None:
    with child_elsewhere(temporary) as (process, folder):
        remove_orphaned_folders()
        assert folder.exists()
        process.kill()
        process.wait()
        remove_orphaned_folders()
        assert not folder.exists()


def test_what_is_not_ours_stays(temporary: Path) -> None:
    for name in (f"{FOLDER_PREFIX}x", "other"):
        (temporary / name).mkdir()
    remove_orphaned_folders()
    assert {path.name for path in temporary.iterdir()} == {f"{FOLDER_PREFIX}x", "other"}


def test_folders_of_other_users_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = temporary / f"{FOLDER_PREFIX}1-x"
    folder.mkdir()
    (folder / LOCK_FILE).touch()
    other = os.getuid() + 1
    monkeypatch.setattr(jvm.os, "getuid", lambda: other)
    remove_orphaned_folders()
    assert folder.exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    remove_orphaned_folders()
    assert not folder.exists()


def test_the_end_of_a_jvm_lets_its_folder_go(temporary: Path) -> None:
    made = Jvm({}, lambda level, line: None)
    remove_orphaned_folders()
    assert made.folder.exists()
    made.kill()
    assert list(temporary.iterdir()) == []


def test_a_jvm_is_gone_as_soon_as_it_is_killed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread waits for the end of a process, poll() of another one does not see that end."""
    java = Jvm({}, lambda level, line: None)
    process = java._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    is_ended = threading.Event()
    killing = threading.Thread(target=java.kill)
    try:
        assert java.is_running
        # As if the kernel took its time.
        monkeypatch.setattr(process, "kill", lambda: is_ended.wait(30) and os.kill(process.pid, signal.SIGKILL))
        killing.start()
        assert wait_for(lambda: not java.is_running)
        assert process.poll() is None
    finally:
        is_ended.set()
        killing.join(30)
    assert java.exit_code(1) == -signal.SIGKILL


def wait_for(condition: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + 10
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.01)
    return condition()
