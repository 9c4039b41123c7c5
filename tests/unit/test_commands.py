from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_horsies import commands
from airflow_horsies.cli import format_cursor, main
from airflow_horsies.exceptions import AccessDenied, TaskNotFound
from airflow_horsies.health import Finding, Status
from airflow_horsies.ledger.schema import Migration
from airflow_horsies.models import (
    Attempt,
    CancelOutcome,
    PageCursor,
    Submission,
    TaskInstanceKey,
    TaskPage,
    TaskState,
    TaskView,
)

ID = "0198a0de-0000-7000-8000-000000000001"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CURSOR = PageCursor(at=NOON, task_id=ID)
ATTEMPTS = (
    Attempt(
        number=1,
        outcome="FAILED",
        will_retry=True,
        started_at=NOON,
        finished_at=NOON + timedelta(seconds=1.5),
        error_code="FLAKY",
        error_message="\n[/red] no more coal " + "x" * 200 + "\nTraceback …",
        hostname="host",
        pid=42,
    ),
    Attempt(number=2, outcome="COMPLETED", will_retry=False, started_at=NOON, finished_at=NOON),
)
TASK = TaskView(
    id=ID,
    task_name="load",
    queue="default",
    priority=100,
    state=TaskState.COMPLETED,
    sent_at=NOON,
    enqueued_at=NOON,
    retry_count=1,
    max_retries=3,
    attempts=ATTEMPTS,
)
SUBMISSION = Submission(
    horsies_task_id=ID,
    namespace="default",
    task_instance=TaskInstanceKey(dag_id="sales", run_id="manual__1", task_id="load"),
    position=0,
    life=1,
    round=1,
    try_number=2,
    task_name="load",
    queue="default",
    good_until=None,
    submitted_at=NOON,
)


class FakeHook:
    """Stands where the hook would; a test changes what it answers."""

    namespace = "default"
    task = TASK
    submissions: tuple[Submission, ...] = (SUBMISSION,)
    page = TaskPage(tasks=(TASK,), next=CURSOR)
    outcome = CancelOutcome.CANCELLED
    applied: tuple[Migration, ...] = (Migration(1, "first", ""),)
    fails: Exception | None = None
    contexts: list[str | None]
    asked: dict[str, Any]

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id

    def __enter__(self) -> FakeHook:
        FakeHook.contexts.append(os.environ.get("_AIRFLOW_PROCESS_CONTEXT"))
        if self.fails is not None:
            raise self.fails
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def get_task(self, task_id: str) -> TaskView:
        assert task_id == ID
        return self.task

    def submitters_of(self, task_id: str) -> list[Submission]:
        return list(self.submissions)

    def list_tasks(self, **asked: Any) -> TaskPage:
        FakeHook.asked = asked
        return self.page

    def cancel(self, task_id: str) -> CancelOutcome:
        return self.outcome

    def ensure_ledger(self) -> list[Migration]:
        return list(self.applied)

    def prune(self) -> int:
        return 7

    def change_base_url(self, *, old: str, new: str) -> int:
        FakeHook.asked = {"old": old, "new": new}
        return 3


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> type[FakeHook]:
    class Hook(FakeHook):
        pass

    FakeHook.contexts, FakeHook.asked = [], {}
    monkeypatch.setattr(commands, "HorsiesHook", Hook)
    monkeypatch.setattr("airflow.utils.cli_action_loggers.on_pre_execution", lambda **_: None)
    monkeypatch.setattr("airflow.utils.cli_action_loggers.on_post_execution", lambda **_: None)
    return Hook


def run(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(line.split())
    return capsys.readouterr().out


def test_attempts_are_a_table_under_a_line_about_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    headline, header, _, first, second, *_ = run(f"attempts {ID}", capsys).splitlines()
    assert headline == (
        f"load {ID}: COMPLETED, queue default, 1 of 3 retries used, sent by sales.load of run manual__1 (try 2)"
    )
    assert [name.strip() for name in header.split("|")] == [
        "attempt",
        "outcome",
        "started_at",
        "duration",
        "error_code",
        "error",
        "will_retry",
        "worker",
    ]
    cells = [cell.strip() for cell in first.split("|")]
    assert cells[:5] == ["1", "FAILED", "2026-03-01 12:00:00", "1.50 s", "FLAKY"]
    assert cells[5].startswith("[/red] no more coal xx") and cells[5].endswith("…")
    assert len(cells[5]) == commands.MAX_MESSAGE_CHARS
    assert cells[6:] == ["yes", "host:42"]
    assert [cell.strip() for cell in second.split("|")][5:] == ["", "no", "?:?"]


def test_attempts_of_a_task_that_never_ran(hook: type[FakeHook], capsys: pytest.CaptureFixture[str]) -> None:
    hook.task = TaskView(
        **{**{name: getattr(TASK, name) for name in TASK.__slots__}, "attempts": (), "state": TaskState.PENDING}
    )
    hook.submissions = ()
    headline, rest = run(f"attempts {ID}", capsys).splitlines()
    assert headline.endswith("not sent by an Airflow task")
    assert rest == "No attempt has ended."


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_attempts_for_programs_are_one_value_with_all_there_is(
    output: str, load: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    told = load(run(f"attempts {ID} --output {output}", capsys))
    assert (told["id"], told["state"], told["retry_count"], told["max_retries"]) == (ID, "COMPLETED", 1, 3)
    assert told["sent_by"][0]["dag_id"] == "sales"
    assert [attempt["duration_seconds"] for attempt in told["attempts"]] == [1.5, 0.0]
    assert told["attempts"][0]["error_message"] == ATTEMPTS[0].error_message
    assert told["attempts"][0]["will_retry"] is True


def test_listing_passes_filters_on_and_ends_with_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    line = "tasks --state failed,expired --queue q --task-name n --error-code E --limit 5 --before "
    *_, last = run(line + format_cursor(CURSOR), capsys).splitlines()
    assert last == f"More: --before {format_cursor(CURSOR)}"
    assert FakeHook.asked == {
        "states": {TaskState.FAILED, TaskState.EXPIRED},
        "queue": "q",
        "task_name": "n",
        "error_code": "E",
        "before": CURSOR,
        "limit": 5,
    }


def test_listing_without_filters_asks_for_every_state(hook: type[FakeHook], capsys: pytest.CaptureFixture[str]) -> None:
    hook.page = TaskPage(tasks=(), next=None)
    assert run("tasks", capsys).strip() == "No data found"
    assert FakeHook.asked["states"] is None


@pytest.mark.parametrize("output", ["json", "plain"])
def test_cursor_stays_out_of_what_programs_read(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tasks", "--output", output])
    told = capsys.readouterr()
    assert "More:" not in told.out
    assert f"--before {format_cursor(CURSOR)}" in told.err
    if output == "json":
        (task,) = json.loads(told.out)
        assert (task["id"], task["max_retries"], task["error_code"]) == (ID, 3, None)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (CancelOutcome.CANCELLED, "was cancelled"),
        (CancelOutcome.ALREADY_CANCELLED, "was already cancelled"),
        (CancelOutcome.ALREADY_FINISHED, "had already finished as COMPLETED"),
    ],
)
def test_cancel_says_what_it_found(
    outcome: CancelOutcome, said: str, hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    hook.outcome = outcome
    assert run(f"cancel {ID}", capsys) == f"Task {ID} {said}\n"
    assert json.loads(run(f"cancel {ID} -o json", capsys)) == {
        "task_id": ID,
        "outcome": outcome,
        "state": "COMPLETED",
    }


@pytest.mark.parametrize(
    ("line", "text", "value"),
    [
        ("db migrate", "Applied first: now at version 2", [{"version": 1, "name": "first"}]),
        ("db prune", "7 submission(s) of tasks that horsies no longer keeps were forgotten", {"forgotten": 7}),
        (
            "db change-base-url --old http://a --new http://b",
            "3 submission(s) in namespace 'default' now belong to http://b",
            {"changed": 3},
        ),
    ],
)
def test_database_commands_say_what_they_did(
    line: str, text: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line, capsys) == f"{text}\n"
    assert json.loads(run(f"{line} --output json", capsys)) == value


def test_migrate_says_when_there_is_nothing_to_do(hook: type[FakeHook], capsys: pytest.CaptureFixture[str]) -> None:
    hook.applied = ()
    assert run("db migrate", capsys) == "Nothing to do: already at version 2\n"


FINDINGS = [
    Finding(check="connection", status=Status.OK, message="there"),
    Finding(check="privileges", status=Status.WARN, message="lacks one.\nGRANT it;"),
    Finding(check="queues", status=Status.SKIP, message="not checked"),
]


@pytest.mark.parametrize("worst", [Status.WARN, Status.FAIL])
@pytest.mark.parametrize("output", ["table", "json"])
def test_check_ends_with_1_only_if_something_fails(
    worst: Status, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [*FINDINGS, Finding(check="ledger", status=worst, message="hm")]
    monkeypatch.setattr(commands, "check_health", lambda hook: iter(found))
    code = 0
    try:
        main(["check", "--output", output])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == (1 if worst is Status.FAIL else 0)
    told = capsys.readouterr().out
    if output == "json":
        assert [(item["check"], item["status"]) for item in json.loads(told)][-1] == ("ledger", worst)
        assert {tuple(item) for item in json.loads(told)} == {("check", "status", "message")}
    else:
        assert [line.split()[0] for line in told.splitlines()] == ["OK", "WARN", "GRANT", "SKIP", worst]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TaskNotFound("there is no task", task_id=ID), "error: there is no task"),
        (AccessDenied("refused the log-in"), "error: refused the log-in"),
        (
            AirflowNotFoundException("The conn_id `nope` isn't defined"),
            "no Airflow connection 'nope'.*airflow connections add nope --conn-type horsies.*AIRFLOW_CONN_NOPE",
        ),
    ],
)
def test_error_is_one_message_and_exit_code_1(error: Exception, said: str, hook: type[FakeHook]) -> None:
    hook.fails = error
    with pytest.raises(SystemExit, match=said) as ended:
        main(["attempts", ID, "--conn-id", "nope"])
    # Python prints a text it is left with to stderr and ends with 1.
    assert isinstance(ended.value.code, str)
    assert "\n" not in ended.value.code


@pytest.mark.parametrize("before", [None, "client"])
def test_connections_are_looked_up_as_core_commands_do_and_the_environment_is_put_back(
    before: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "_AIRFLOW_PROCESS_CONTEXT"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    run("tasks", capsys)
    assert FakeHook.contexts == ["server"]
    assert os.environ.get(name) == before
