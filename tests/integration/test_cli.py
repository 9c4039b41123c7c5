"""``airflow horsies`` on real databases, with real workers and as a command of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_horsies.cli import main
from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.attempts import append_lines
from airflow_horsies.models import AirflowTry, LogChunk, RetryPolicy, TaskInstanceKey, TaskSpec, TaskState
from tests.integration.chunk_rig import start, write
from tests.integration.chunk_rig import submit as submit_items
from tests.integration.conftest import MakeHook, make_worker
from tests.integration.pgbouncer import pgbouncer
from tests.integration.releases import IN_PLACE, MOVED
from tests.integration.test_attempts import begin_attempt, end_attempt, write_lines
from tests.integration.test_wait import until_listening

SECONDS = 60
PASSWORD = "s3cret-word"


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def findings(self) -> dict[str, tuple[str, str]]:
        """What ``check --output json`` found: status and message by check."""
        return {item["check"]: (item["status"], item["message"]) for item in json.loads(self.out)}

    @property
    def statuses(self) -> dict[str, str]:
        return {check: status for check, (status, _) in self.findings.items()}


Run = Callable[..., Ended]


def connection_json(postgres: EmbeddedPostgres, database: str, **changed: Any) -> str:
    info = postgres.conninfo(database)
    return json.dumps(
        {
            "conn_type": "horsies",
            "host": info["host"],
            "port": info["port"],
            "login": info["user"],
            "password": info["password"],
            "schema": info["dbname"],
            **changed,
        }
    )


@pytest.fixture
def run(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs a command of ``airflow horsies`` on a database, in this process."""

    def run(database: str, *argv: str, **changed: Any) -> Ended:
        monkeypatch.setenv("AIRFLOW_CONN_HORSIES_DEFAULT", connection_json(postgres, database, **changed))
        code, said = 0, ""
        try:
            main(argv)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            said = ended.code if isinstance(ended.code, str) else ""
        told = capsys.readouterr()
        ended_with = Ended(code, told.out, told.err + said)
        for secret in (postgres.conninfo()["password"], PASSWORD):
            assert secret not in ended_with.out + ended_with.err
        return ended_with

    yield run


@pytest.fixture
def hook(make_hook: MakeHook, served_database: str) -> HorsiesHook:
    return make_hook(served_database)


def administer(postgres: EmbeddedPostgres, database: str, *statements: str) -> None:
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_check_of_a_database_with_a_live_worker_is_ok(run: Run, served_database: str, hook: HorsiesHook) -> None:
    assert run(served_database, "db", "migrate").code == 0
    checked = run(served_database, "check")
    assert checked.code == 0, checked.out
    assert {line.split()[0] for line in checked.out.splitlines()} == {"OK"}
    (worker,) = [worker for worker in hook.read_workers() if worker.alive]
    assert f"{worker.hostname}:{worker.pid} serves default" in checked.out


def test_check_tells_who_waits_and_that_nobody_works(run: Run, database: str, make_hook: MakeHook) -> None:
    hook = make_hook(database)
    hook.enqueue_tasks(TaskSpec(task_name="add", queue="reports") for _ in range(2))
    hook.enqueue_task(TaskSpec(task_name="add", queue="later", delay=timedelta(hours=1)))
    checked = run(database, "check", "--output", "json")
    assert checked.code == 0
    assert checked.statuses == {
        "connection": "OK",
        "clock": "OK",
        "notifications": "OK",
        "schema": "OK",
        "privileges": "OK",
        "ledger": "WARN",
        "workers": "WARN",
        "worker releases": "SKIP",
        "claims": "OK",
        "queues": "WARN",
    }
    assert "No live worker serves 'reports' (2 waiting, the oldest since 20" in checked.findings["queues"][1]
    assert "later" not in checked.findings["queues"][1]


def test_check_of_a_database_without_horsies_fails_and_skips_the_rest(run: Run, empty_database: str) -> None:
    checked = run(empty_database, "check", "--output", "json")
    assert checked.code == 1
    assert checked.statuses["schema"] == "FAIL"
    assert [check for check, status in checked.statuses.items() if status == "SKIP"] == [
        "privileges",
        "workers",
        "worker releases",
        "queues",
        "claims",
    ]


def test_check_tells_that_everybody_may_create_functions(run: Run, database: str, postgres: EmbeddedPostgres) -> None:
    """As up to PostgreSQL 14, where nobody has changed it."""
    administer(postgres, database, "GRANT CREATE ON SCHEMA public TO PUBLIC")
    checked = run(database, "check", "--output", "json")
    status, message = checked.findings["privileges"]
    assert status == "WARN"
    _, remedy = message.splitlines()
    administer(postgres, database, remedy)
    assert run(database, "check", "--output", "json").statuses["privileges"] == "OK"


def test_check_names_a_view_that_may_not_be_read(
    run: Run, database: str, stranger: str, postgres: EmbeddedPostgres
) -> None:
    assert run(database, "db", "migrate").code == 0
    role = f'"{stranger}"'
    administer(
        postgres,
        database,
        f"GRANT USAGE ON SCHEMA airflow_horsies TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA airflow_horsies TO {role}",
        f"REVOKE ALL ON airflow_horsies.known_submissions FROM {role}",
    )
    checked = run(database, "check", "--output", "json", login=stranger, password=PASSWORD)
    status, message = checked.findings["ledger"]
    assert status == "FAIL"
    assert message.splitlines() == [
        "The user of this connection lacks SELECT on airflow_horsies.known_submissions. Run:",
        f"GRANT SELECT ON airflow_horsies.known_submissions TO {role};",
    ]


def test_check_of_a_wrong_password_fails_at_once(run: Run, empty_database: str) -> None:
    checked = run(empty_database, "check", "--output", "json", password=PASSWORD)
    assert checked.code == 1
    status, message = checked.findings.pop("connection")
    assert status == "FAIL"
    assert "Cannot log in" in message and "connection horsies_default" in message
    assert {status for check, status in checked.statuses.items() if check != "connection"} == {"SKIP"}


@pytest.fixture
def stranger(postgres: EmbeddedPostgres, database: str) -> Iterator[str]:
    """A user with no privilege at all."""
    name = f"stranger of {database}"
    with psycopg.connect(**postgres.conninfo(database), autocommit=True) as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(PASSWORD)))
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_grants_that_check_names_are_all_that_is_needed(
    run: Run, database: str, stranger: str, postgres: EmbeddedPostgres, make_hook: MakeHook
) -> None:
    as_stranger = {"login": stranger, "password": PASSWORD}
    checked = run(database, "check", "--output", "json", **as_stranger)
    assert checked.code == 1
    assert (checked.statuses["schema"], checked.statuses["privileges"], checked.statuses["ledger"]) == ("FAIL",) * 3
    for check in ("privileges", "ledger"):
        _, *grants = checked.findings[check][1].splitlines()
        administer(postgres, database, *grants)
    assert run(database, "db", "migrate", **as_stranger).code == 0
    checked = run(database, "check", "--output", "json", **as_stranger)
    assert checked.code == 0
    assert (checked.statuses["privileges"], checked.statuses["ledger"]) == ("OK", "OK")

    hook = make_hook(database, **as_stranger)
    sent = hook.submit_task(
        TaskSpec(task_name="add"), TaskInstanceKey(dag_id="d", run_id="r", task_id="t"), AirflowTry(try_number=1)
    )
    cancelled = run(database, "cancel", sent.task_id, **as_stranger)
    assert (cancelled.code, cancelled.out) == (0, f"Task {sent.task_id} was cancelled.\n")


def test_grants_on_our_own_tables_are_named_too(
    run: Run, database: str, stranger: str, postgres: EmbeddedPostgres
) -> None:
    assert run(database, "db", "migrate").code == 0
    as_stranger = {"login": stranger, "password": PASSWORD}
    status, message = run(database, "check", "--output", "json", **as_stranger).findings["ledger"]
    _, *grants = message.splitlines()
    assert status == "FAIL" and f'GRANT INSERT ON airflow_horsies.submissions TO "{stranger}";' in grants
    administer(postgres, database, *grants)
    assert run(database, "check", "--output", "json", **as_stranger).statuses["ledger"] == "OK"


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_worker_of_an_older_generation_is_found_out(
    run: Run, database: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with make_worker(postgres, database, IN_PLACE, tmp_path) as worker:
        checked = run(database, "check", "--output", "json")
        assert checked.code == 1
        status, message = checked.findings["worker releases"]
        assert status == "FAIL"
        assert (
            f":{worker.process.pid}: it runs horsies 0.4 or older. They claim tasks and never finish them. Upgrade"
            in message
        )


def test_worker_that_runs_since_before_an_upgrade_is_found_out(
    run: Run, served_database: str, postgres: EmbeddedPostgres
) -> None:
    shift = "UPDATE horsies_schema_version SET applied_at = applied_at {} interval '2 hours'"
    administer(postgres, served_database, shift.format("+"))
    try:
        checked = run(served_database, "check", "--output", "json")
    finally:
        administer(postgres, served_database, shift.format("-"))
    status, message = checked.findings["worker releases"]
    assert (checked.code, status) == (0, "WARN")
    assert "before the schema was upgraded" in message


def test_check_tells_of_a_pooler_that_swallows_notifications(
    run: Run, database: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with pgbouncer(postgres, tmp_path, pool_mode="transaction") as port:
        checked = run(database, "check", "--output", "json", port=port)
        assert checked.code == 1
        status, message = checked.findings["notifications"]
        assert status == "FAIL" and "listen_host" in message
        polled = run(database, "check", "--output", "json", port=port, extra={"listen": "poll"})
        assert (polled.code, polled.statuses["notifications"]) == (0, "OK")
        direct = {"listen_port": postgres.port}
        past = run(database, "check", "--output", "json", port=port, extra=direct)
        assert (past.code, past.statuses["notifications"]) == (0, "OK")


def test_attempts_of_a_retried_task_are_readable(run: Run, served_database: str, hook: HorsiesHook) -> None:
    policy = RetryPolicy.fixed([1], auto_retry_for=["FLAKY"], jitter=False)
    sent = hook.submit_task(
        TaskSpec(task_name="fail", kwargs={"code": "FLAKY"}, retry_policy=policy),
        TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load", map_index=3),
        AirflowTry(try_number=1),
    )
    (task,) = hook.wait([sent.task_id], timeout_seconds=SECONDS)
    headline, _, _, first, second, *_ = run(served_database, "attempts", sent.task_id).out.splitlines()
    assert headline == (
        f"fail {task.id}: FAILED, queue default, 1 of 1 retries used, sent by sales.load[3] of run manual__1 (try 1)"
    )
    worker = f"{task.attempts[0].hostname}:{task.attempts[0].pid}"
    for number, line, will_retry in (("1", first, "yes"), ("2", second, "no")):
        cells = [cell.strip() for cell in line.split("|")]
        assert (cells[0], cells[1], cells[4]) == (number, "FAILED", "FLAKY")
        assert cells[5:] == ["asked to fail with FLAKY", will_retry, worker]
    told = json.loads(run(served_database, "attempts", sent.task_id, "-o", "json").out)
    assert [attempt["will_retry"] for attempt in told["attempts"]] == [True, False]
    assert told["sent_by"][0]["map_index"] == 3


@pytest.mark.parametrize(("task_name", "kwargs", "code"), [("sleep", {"seconds": 1}, 0), ("fail", {"code": "BAD"}, 1)])
def test_watch_follows_a_task_to_its_end(
    run: Run, served_database: str, hook: HorsiesHook, task_name: str, kwargs: dict[str, Any], code: int
) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name=task_name, kwargs=kwargs))
    ended = run(served_database, "attempts", task_id, "--watch")
    state = "FAILED" if code else "COMPLETED"
    assert ended.code == code, ended.err
    *_, attempt, last = ended.out.splitlines()
    assert attempt.startswith(f"attempt 1: {state} in ")
    assert last == f"{task_name} {task_id}: {state}"
    again = run(served_database, "attempts", task_id, "--watch", "-o", "json")
    assert (again.code, json.loads(again.out)["state"]) == (code, state)


def test_lines_are_followed_and_the_cancelled_attempt_is_shown(run: Run, database: str, make_hook: MakeHook) -> None:
    hook = make_hook(database)
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    unheard = run(database, "logs", task_id)
    assert (unheard.code, unheard.out.split(".")[0]) == (0, "There are no log lines yet")

    def work() -> None:
        begin_attempt(hook, task_id)
        write_lines(hook, task_id, "first", level="WARNING")
        time.sleep(2.5)
        hook.cancel_task(task_id)
        time.sleep(0.5)
        write_lines(hook, task_id, "last", first=2)
        end_attempt(hook, task_id, outcome="CANCELLED", metrics={"jobs": 3})

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        followed = run(database, "logs", task_id, "--follow")
        working.result(30)
    assert [line.split(" ", 2)[2] for line in followed.out.splitlines()] == [
        "WARNING  [attempt 1] first",
        "INFO     [attempt 1] last",
    ]
    assert [line["text"] for line in json.loads(run(database, "logs", task_id, "-o", "json").out)] == ["first", "last"]
    shown = run(database, "attempts", task_id)
    assert "CANCELLED" in shown.out.splitlines()[3]
    assert "attempt 1, metrics: jobs 3" in shown.out
    assert run(database, "attempts", task_id, "--watch").code == 1


def test_missing_lines_are_explained(run: Run, served_database: str, hook: HorsiesHook) -> None:
    task_id = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}))
    hook.wait([task_id], timeout_seconds=SECONDS)
    assert "Its worker does not use airflow_horsies.worker" in run(served_database, "logs", task_id).out
    for follow in ([], ["--follow"]):
        unknown = run(served_database, "logs", "00000000-0000-7000-8000-000000000000", *follow)
        assert unknown.code == 1
        assert "never existed, or it has finished and is past its retention" in unknown.err


def test_pages_of_a_listing_follow_one_another(run: Run, database: str, make_hook: MakeHook) -> None:
    hook = make_hook(database)
    ids = set(hook.enqueue_tasks(TaskSpec(task_name="add", queue="paged") for _ in range(5)))
    hook.enqueue_task(TaskSpec(task_name="add", queue="other"))
    seen: list[str] = []
    before: list[str] = []
    while True:
        page = run(database, "tasks", "--queue", "paged", "--state", "pending", "--limit", "2", "-o", "json", *before)
        seen += [task["id"] for task in json.loads(page.out)]
        if "More: " not in page.err:
            break
        before = page.err.strip().removeprefix("More: ").split()
    assert len(seen) == 5
    assert set(seen) == ids


def test_cancel_tells_the_outcome(run: Run, served_database: str, hook: HorsiesHook) -> None:
    waiting = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}, delay=timedelta(hours=1)))
    assert run(served_database, "cancel", waiting).out == f"Task {waiting} was cancelled.\n"
    assert run(served_database, "cancel", waiting).out == f"Task {waiting} was already cancelled.\n"
    done = hook.enqueue_task(TaskSpec(task_name="add", kwargs={"a": 1, "b": 1}))
    hook.wait([done], timeout_seconds=SECONDS)
    finished = run(served_database, "cancel", done)
    assert (finished.code, finished.out) == (0, f"Task {done} had already ended as COMPLETED.\n")
    unknown = run(served_database, "cancel", "00000000-0000-7000-8000-000000000000")
    assert unknown.code == 1
    assert unknown.err.startswith("error: Task 00000000-0000-7000-8000-000000000000 is not in this database")


def test_database_commands_do_what_they_say(run: Run, database: str, make_hook: MakeHook) -> None:
    assert run(database, "db", "migrate").out.startswith("Applied submissions_")
    assert run(database, "db", "migrate", "--output", "json").out == "[]\n"
    hook = make_hook(database)
    instance = TaskInstanceKey(dag_id="d", run_id="r", task_id="t")
    hook.submit_task(TaskSpec(task_name="add"), instance, AirflowTry(try_number=1))
    changed = run(
        database, "db", "change-base-url", "--old", hook.settings.base_url, "--new", "http://new", "-o", "json"
    )
    assert json.loads(changed.out) == {"changed": 1}
    assert json.loads(run(database, "db", "prune", "--output", "json").out) == {"forgotten": 0}


# -- as a command of its own -----------------------------------------------------------------------------------------


def command(*argv: str | Path, environ: dict[str, str]) -> Ended:
    done = subprocess.run(
        [str(part) for part in argv], capture_output=True, text=True, env=os.environ | environ, check=False
    )
    assert "Traceback" not in done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_airflow_itself_runs_the_commands_on_a_connection_it_stores(
    database: str, make_hook: MakeHook, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    task_id = make_hook(database).enqueue_task(TaskSpec(task_name="add"))
    environ = {"AIRFLOW_HOME": str(tmp_path)}
    airflow = Path(sys.executable).with_name("airflow")
    assert command(airflow, "db", "migrate", environ=environ).code == 0
    added = command(
        *(airflow, "connections", "add", "horsies_stored", "--conn-json", connection_json(postgres, database)),
        environ=environ,
    )
    assert added.code == 0, added.err
    listed = command(airflow, "horsies", "tasks", "--conn-id", "horsies_stored", "-o", "json", environ=environ)
    assert listed.code == 0, listed.err
    assert [(task["id"], task["state"]) for task in json.loads(listed.out)] == [(task_id, TaskState.PENDING)]
    cancelled = command(airflow, "horsies", "cancel", task_id, "--conn-id", "horsies_stored", environ=environ)
    assert (cancelled.code, cancelled.out) == (0, f"Task {task_id} was cancelled.\n")


@pytest.mark.parametrize("release", [MOVED], indirect=True)
@pytest.mark.parametrize("follow", [("attempts", "--watch"), ("logs", "--follow")], ids=" ".join)
def test_interrupt_ends_the_watching_and_not_the_task(
    database: str, make_hook: MakeHook, postgres: EmbeddedPostgres, tmp_path: Path, follow: tuple[str, str]
) -> None:
    hook = make_hook(database)
    task_id = hook.enqueue_task(TaskSpec(task_name="add", delay=timedelta(hours=1)))
    environ = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_HORSIES_DEFAULT": connection_json(postgres, database)}
    module = (sys.executable, "-m", "airflow_horsies.cli", follow[0], task_id, follow[1])
    with subprocess.Popen(
        module,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
        # A shell that runs this in the background has it ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as watching:
        try:
            until_listening(hook)
            watching.send_signal(signal.SIGINT)
            _, err = watching.communicate(timeout=SECONDS)
        finally:
            watching.kill()
    assert watching.returncode == 130
    assert "Traceback" not in err
    assert hook.read_task(task_id).state is TaskState.PENDING


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_reader_that_has_seen_enough_is_no_error(
    database: str, make_hook: MakeHook, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    hook = make_hook(database)
    migrate_ledger(hook.client)
    task_id = hook.enqueue_task(TaskSpec(task_name="add"))
    write_lines(hook, task_id, *(["a line"] * 20_000))
    environ = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_HORSIES_DEFAULT": connection_json(postgres, database)}
    piped = command(
        "bash",
        "-c",
        f"{shlex.quote(sys.executable)} -m airflow_horsies.cli logs {task_id} | head -n 1",
        environ=environ,
    )
    assert (piped.code, len(piped.out.splitlines()), "BrokenPipe" in piped.err) == (0, 1, False)


def test_module_runs_without_airflows_command(empty_database: str, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    environ = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_CONN_EMPTY": connection_json(postgres, empty_database),
    }
    module = (sys.executable, "-m", "airflow_horsies.cli")
    checked = command(*module, "check", "--conn-id", "empty", environ=environ)
    assert checked.code == 1
    assert "FAIL  schema           The database has no table horsies_tasks" in checked.out
    missing = command(*module, "check", "--conn-id", "nowhere", environ=environ)
    assert (missing.code, missing.out) == (1, "")
    (line,) = [line for line in missing.err.splitlines() if line.startswith("error: ")]
    assert "Airflow has no connection 'nowhere'" in line
    assert "airflow connections add nowhere --conn-type horsies" in line


@pytest.mark.parametrize("release", [MOVED], indirect=True)
def test_items_of_a_chunk_and_their_lines_are_listed(run: Run, make_hook: MakeHook, database: str) -> None:
    hook = make_hook(database)
    (chunk_id,) = submit_items(hook, range(3), 3).task_ids
    start(hook, chunk_id)
    write(hook, chunk_id, {0: 1, 1: "BROKEN"})
    for number in range(2):
        line = LogChunk(number + 1, datetime.now(UTC), "INFO", [f"line of {number}"], item=number)
        hook.client.run(lambda line=line: append_lines(chunk_id, 1, [line]))  # type: ignore[misc]
    shown = run(database, "items", chunk_id, "-o", "json")
    assert shown.code == 0, shown.err
    listed = json.loads(shown.out)
    assert [(item["item"], item["state"], item["error_code"]) for item in listed] == [
        (0, "COMPLETED", None),
        (1, "FAILED", "BROKEN"),
        (2, "RUNNING", None),
    ]
    failed = run(database, "items", chunk_id, "--state", "failed").out
    assert "it was BROKEN" in failed and "COMPLETED" not in failed
    lines = run(database, "logs", chunk_id, "--item", "1").out
    assert "line of 1" in lines and "line of 0" not in lines
