from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from airflow_horsies.embedded import postgres as embedded
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.postgres import ROOT_DATA_FOLDER, EmbeddedPostgres

PROJECT = Path(__file__).parents[2]
ROOT = os.geteuid() == 0
LAUNCH = """
import sys, time
from pathlib import Path
from airflow_horsies.embedded.postgres import EmbeddedPostgres

with EmbeddedPostgres(Path(sys.argv[1]), durable=sys.argv[2] == "durable") as server:
    print(server.process.pid, server.process.guard_pid, server.data_folder, flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a space and more than ASCII in its name; data that root had to keep elsewhere are deleted."""
    here = tmp_path / "mit Lücke 馬"
    yield here
    if here.exists():
        EmbeddedPostgres(here, durable=True).delete()


@contextmanager
def launched(folder: Path, *, seconds: float = 60, prefix: tuple[str, ...] = (), **environ: str) -> Iterator[list[str]]:
    """A launcher in a process of its own; yields its pid, then what it printed: server, guard, data folder."""
    command = [*prefix, sys.executable, "-c", LAUNCH, str(folder), "durable", str(seconds)]
    launcher = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PROJECT)} | environ,
    )
    try:
        assert launcher.stdout and launcher.stderr
        told = launcher.stdout.readline().split(maxsplit=2)
        assert told, launcher.stderr.read()
        yield [str(launcher.pid), *told]
    finally:
        launcher.kill()
        launcher.communicate()


def wait_until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)


def processes_with(text: str) -> list[str]:
    """Command lines of living processes that mention a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(f"{entry.name}: {command}")
    return found


def write_row(server: EmbeddedPostgres) -> int:
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (id serial)")
        connection.execute("INSERT INTO kept DEFAULT VALUES")
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row
    return int(row[0])


def setting(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(**server.conninfo()) as connection:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row
    return str(row[0])


def test_durable_data_survive_a_restart(folder: Path) -> None:
    for expected in (1, 2):
        with EmbeddedPostgres(folder, durable=True) as server:
            assert write_row(server) == expected
            assert setting(server, "fsync") == "on"
    assert stat.S_IMODE((folder / "postgres.password").stat().st_mode) == 0o600
    assert processes_with(str(server.data_folder)) == []


def test_throw_away_data_are_gone_after_the_stop(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=False)
    with server:
        assert write_row(server) == 1
        assert {setting(server, name) for name in embedded.THROW_AWAY_SETTINGS} == {"off"}
        place = server.data_folder.parent
    assert not place.exists()
    with server:
        assert write_row(server) == 1


def test_databases_are_created_cloned_and_dropped(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=False) as server:
        server.create_database('a "quoted" näme')
        with psycopg.connect(server.dsn('a "quoted" näme')) as connection:
            connection.execute("CREATE TABLE held AS SELECT 7 AS n")
        server.create_database("clone", template='a "quoted" näme')
        held_open = psycopg.connect(server.dsn("clone"))
        assert held_open.execute("SELECT n FROM held").fetchone() == (7,)
        server.drop_database("clone")
        assert not server.has_database("clone")
        held_open.close()
        server.drop_database("clone")


def test_nobody_gets_in_without_the_password(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=False) as server:
        for password in ("", "postgres"):
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(**server.conninfo() | {"password": password})
        password = server.conninfo()["password"]
        assert not any(password in line for line in processes_with(""))
        assert password not in (folder / "postgres.log").read_text()


def test_two_servers_run_at_once_in_two_folders(folder: Path) -> None:
    with (
        EmbeddedPostgres(folder / "a", durable=False) as first,
        EmbeddedPostgres(folder / "b", durable=False) as second,
    ):
        assert first.port != second.port
        assert write_row(first) == write_row(second) == 1


def test_a_second_server_in_the_same_folder_is_refused_by_name(folder: Path) -> None:
    with launched(folder) as (launcher, *_), pytest.raises(EmbeddedError, match=f"in use by process {launcher}"):
        EmbeddedPostgres(folder, durable=True).start()


def test_sigkill_of_the_launcher_leaves_no_process_and_a_restart_works(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=True) as server:
        write_row(server)
    with launched(folder) as (launcher, _, _, data):
        os.kill(int(launcher), signal.SIGKILL)
        with EmbeddedPostgres(folder, durable=True) as server:
            assert write_row(server) == 2
    wait_until(lambda: not processes_with(data.strip()))


def test_a_stale_pid_file_of_a_killed_server_does_not_hinder_the_start(folder: Path) -> None:
    with launched(folder) as (launcher, server_pid, guard_pid, data):
        os.kill(int(launcher), signal.SIGSTOP)
        os.kill(int(guard_pid), signal.SIGKILL)
        os.kill(int(server_pid), signal.SIGKILL)
    pid_file = Path(data.strip()) / "postmaster.pid"
    wait_until(lambda: not processes_with(data.strip()))
    assert pid_file.exists()
    # The worst case: its process id belongs to a living process of the same user by now.
    with subprocess.Popen(["sleep", "60"], user=pid_file.owner() if ROOT else None) as other:
        try:
            lines = pid_file.read_text().splitlines()
            pid_file.write_text("\n".join([str(other.pid), *lines[1:]]))
            with EmbeddedPostgres(folder, durable=True) as server:
                assert write_row(server) == 1
        finally:
            other.kill()


def test_an_interrupted_first_start_is_begun_anew(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=True)
    folder.mkdir(parents=True)
    unfinished = server.data_folder.with_name("data.unfinished")
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18")
    with server:
        assert write_row(server) == 1
    assert not unfinished.exists()


def test_data_of_another_major_version_are_left_alone_with_a_clear_error(folder: Path) -> None:
    server = EmbeddedPostgres(folder, durable=True)
    with server:
        version_file = server.data_folder / "PG_VERSION"
    version_file.write_text("12\n")
    with pytest.raises(EmbeddedError, match="created by PostgreSQL 12"):
        server.start()
    assert version_file.exists()


def test_a_failing_initdb_shows_the_end_of_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "USER", "pg_reserved")
    with pytest.raises(EmbeddedError, match=r"(?s)initdb could not.*pg_reserved"):
        EmbeddedPostgres(folder, durable=True).start()


def test_the_start_leaves_the_callers_postgres_settings_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGUSER", "somebody")
    with EmbeddedPostgres(folder, durable=False) as server:
        assert setting(server, "port") == str(server.port)


@pytest.mark.skipif(not ROOT, reason="only root runs the server as another user")
def test_root_runs_the_server_as_nobody_from_a_closed_folder(tmp_path: Path, folder: Path) -> None:
    """Neither the data's folder nor the wheel's can be entered by others: both move."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    install = embedded.find_install()
    shutil.copytree(install, closed / embedded.WHEEL_MODULE / install.name)
    (closed / embedded.WHEEL_MODULE / "__init__.py").touch()
    libraries = install.parents[1] / f"{embedded.WHEEL_MODULE}.libs"
    shutil.copytree(libraries, closed / libraries.name)
    folder.mkdir(mode=0o700)
    with launched(folder, PYTHONPATH=f"{PROJECT}:{closed}") as (_, server_pid, _, data):
        assert Path(f"/proc/{server_pid}").stat().st_uid == embedded.RunAs.nobody().uid
        assert Path(data.strip()).is_relative_to(ROOT_DATA_FOLDER)
        assert Path(f"/proc/{server_pid}/exe").readlink().is_relative_to(ROOT_DATA_FOLDER)


@pytest.mark.skipif(not ROOT, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_keeps_everything_in_the_folder(tmp_path: Path) -> None:
    nobody = embedded.RunAs.nobody()
    prefix = ("setpriv", f"--reuid={nobody.uid}", f"--regid={nobody.gid}", "--clear-groups")
    if subprocess.run([*prefix, sys.executable, "-c", "import psycopg"], capture_output=True).returncode != 0:
        pytest.skip("an ordinary user cannot run this Python: it is in a folder closed to others")
    place = Path("/var/tmp") / f"airflow-horsies-test-{os.getpid()}"
    place.mkdir()
    os.chown(place, nobody.uid, nobody.gid)
    try:
        with launched(place / "own", prefix=prefix) as (launcher, server_pid, _, data):
            assert Path(data.strip()).is_relative_to(place)
            assert Path(f"/proc/{server_pid}").stat().st_uid == nobody.uid
            os.kill(int(launcher), signal.SIGTERM)
        wait_until(lambda: not processes_with(str(place)))
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("name", [".demo", ".horsies"])
def test_make_clean_deletes_the_data_of_a_stack_unless_it_runs(tmp_path: Path, name: str) -> None:
    """Also the data that root keeps elsewhere, because others may not enter the folder."""
    root = Path(__file__).parents[2]
    shutil.copy(root / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(root / ".venv")
    tmp_path.chmod(0o700)
    server = EmbeddedPostgres(tmp_path / name, durable=True)
    server.start()
    try:
        refused = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode != 0
        assert "is in use by process" in refused.stderr
        assert write_row(server)
    finally:
        server.stop()
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    assert not server.data_folder.exists()
    assert not (tmp_path / name).exists()
