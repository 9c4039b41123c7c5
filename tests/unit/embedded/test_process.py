from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_horsies.embedded import process
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.process import GuardedProcess, free_ports, is_free, private_file


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def shell(script: str, folder: Path, **options: object) -> GuardedProcess:
    return GuardedProcess(
        "the script",
        ["/bin/sh", "-c", script],
        log=folder / "log",
        environ=dict(os.environ),
        folder=folder,
        **options,  # type: ignore[arg-type]
    )


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert is_free(ports[0])


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind((process.LOOPBACK, 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


def test_a_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    with private_file(tmp_path / "new" / "secret") as file:
        file.write(b"x")
    assert stat.S_IMODE((tmp_path / "new" / "secret").stat().st_mode) == 0o600


def test_output_goes_to_the_log_and_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    with shell("echo out; echo err >&2; exit 3", tmp_path) as child:
        assert child.wait(10) == 3
    assert child.log.read_text() == "out\nerr\n"
    assert child.exit_code == 3
    assert "    err" in child.log_tail()


def test_a_command_that_does_not_exist_is_named_in_the_log(tmp_path: Path) -> None:
    missing = GuardedProcess("it", [tmp_path / "missing"], log=tmp_path / "log", environ=dict(os.environ))
    with missing:
        assert missing.wait(10) == 127
    assert "Cannot run" in missing.log_tail()


def test_stop_sends_the_stop_signal(tmp_path: Path) -> None:
    child = shell("trap 'echo stopped; exit 0' INT; echo on; while :; do sleep 0.05; done", tmp_path)
    child.stop_signal = signal.SIGINT
    with child:
        wait_until(lambda: "on" in child.log.read_text())
    assert child.log.read_text().splitlines()[-1] == "stopped"
    assert not alive(child.pid)


def test_a_child_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    child = shell("trap '' TERM; echo on; while :; do sleep 0.05; done", tmp_path, grace_seconds=0.3)
    with child:
        wait_until(lambda: "on" in child.log.read_text())
    assert child.exit_code == 128 + signal.SIGKILL
    assert not alive(child.pid)


def test_orphans_in_other_sessions_end_with_their_ancestor(tmp_path: Path) -> None:
    script = """
        setsid sh -c 'sleep 300 & echo $! > orphan; echo $$ > middle; wait' &
        while ! [ -s middle ]; do sleep 0.02; done
    """
    with shell(script, tmp_path) as child:
        assert child.wait(15) == 0
    pids = [int((tmp_path / name).read_text()) for name in ("orphan", "middle")]
    assert not any(alive(pid) for pid in pids)


def test_a_process_started_by_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    child = shell("sleep 300", tmp_path)
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    try:
        time.sleep(0.3)
        assert child.running
        assert alive(child.pid)
    finally:
        child.stop()


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    with shell("sleep 300", tmp_path) as child, pytest.raises(EmbeddedError, match="already running"):
        child.start()


def test_another_platform_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "platform", "darwin")
    with pytest.raises(EmbeddedError, match="only on Linux, not on darwin"):
        process.require_linux()
