from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_horsies.cli import commands, main
from airflow_horsies.cli.definition import format_cursor
from airflow_horsies.client.health import Finding, Status
from airflow_horsies.exceptions import AccessDenied, TaskNotFound
from airflow_horsies.ledger.schema import Migration, latest_version
from airflow_horsies.models import (
    Attempt,
    AttemptRecord,
    CancelOutcome,
    LogCursor,
    LogLine,
    PageCursor,
    Progress,
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
    steps: tuple[TaskView, ...] = ()
    records: tuple[AttemptRecord, ...] = ()
    told_progress: tuple[Progress | None, ...] = ()
    lines: tuple[LogLine, ...] = ()
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

    def attempt_records(self, task_id: str) -> tuple[AttemptRecord, ...]:
        return self.records

    def progress(self, task_ids: list[str]) -> dict[str, Progress]:
        progress, *FakeHook.told_progress = FakeHook.told_progress or (None,)  # type: ignore[assignment,misc]
        return {} if progress is None else {ID: progress}

    def logs(self, task_id: str, after: LogCursor) -> list[LogLine]:
        return [line for line in self.lines if line.cursor > after][:2]

    def wait(self, task_ids: list[str], meanwhile: Any = None) -> list[TaskView]:
        """One turn for each step of the task."""
        for task in self.steps:
            type(self).task = task
            if meanwhile is not None:
                meanwhile()
        return [self.task]

    def submitters_of(self, task_id: str) -> list[Submission]:
        return list(self.submissions)

    def list_tasks(self, **asked: Any) -> TaskPage:
        FakeHook.asked = asked
        return self.page

    def cancel(self, task_id: str) -> CancelOutcome:
        return self.outcome

    def ensure_ledger(self, *, by_hand: bool) -> list[Migration]:
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

    FakeHook.contexts, FakeHook.asked, FakeHook.told_progress = [], {}, ()
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
    hook.task = replace(TASK, attempts=(), state=TaskState.PENDING)
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


RECORDS = (
    AttemptRecord(
        number=1,
        worker_id="w",
        hostname="host",
        pid=42,
        started_at=NOON,
        finished_at=NOON,
        outcome="FAILED",
        metrics={"jobs": 3, "input_bytes": 2_048},
    ),
    AttemptRecord(number=3, worker_id="w", hostname="host", pid=43, started_at=NOON),
)


def test_attempts_that_only_their_worker_told_of_are_shown_with_metrics(
    hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    hook.task, hook.records = replace(TASK, state=TaskState.RUNNING), RECORDS
    _, _, _, first, second, third, *rest = run(f"attempts {ID}", capsys).splitlines()
    assert [line.split("|")[0].strip() for line in (first, second, third)] == ["1", "2", "3"]
    cells = [cell.strip() for cell in third.split("|")]
    assert cells == ["3", "RUNNING", "2026-03-01 12:00:00", "", "", "", "no", "host:43"]
    assert [line for line in rest if line.strip()] == ["attempt 1, metrics: jobs 3, input 2.0 KiB"]
    told = json.loads(run(f"attempts {ID} -o json", capsys))["attempts"]
    assert [(each["attempt"], each["outcome"]) for each in told] == [(1, "FAILED"), (2, "COMPLETED"), (3, "RUNNING")]
    assert [each["metrics"] for each in told] == [{"jobs": 3, "input_bytes": 2_048}, {}, {}]
    assert len({frozenset(each) for each in told}) == 1, "all have the same keys"


def test_attempt_that_was_cancelled_is_shown_though_horsies_keeps_none(
    hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    end = NOON + timedelta(seconds=2)
    hook.task = replace(TASK, attempts=(), state=TaskState.CANCELLED, finished_at=end)
    hook.records = RECORDS[1:]
    _, _, _, row, *_ = run(f"attempts {ID}", capsys).splitlines()
    assert [cell.strip() for cell in row.split("|")][:4] == ["3", "CANCELLED", "2026-03-01 12:00:00", "2.00 s"]


RUNNING = replace(TASK, state=TaskState.RUNNING, attempts=ATTEMPTS[:1])


def watch(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = 0
    try:
        main(line.split())
    except SystemExit as ended:
        code = int(str(ended.code))
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("state", "code"), [(TaskState.COMPLETED, 0), (TaskState.FAILED, 1), (TaskState.CANCELLED, 1)])
def test_watch_tells_what_changes_and_ends_as_the_task_does(
    state: TaskState, code: int, hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    hook.task = replace(TASK, state=TaskState.PENDING, attempts=())
    hook.steps = (hook.task, RUNNING, RUNNING, RUNNING, replace(TASK, state=state))
    hook.records = RECORDS[:1]
    four = Progress(attempt=2, done=4, total=10, stage="stage 3 of 7")
    FakeHook.told_progress = (None, None, four, four, replace(four, done=5))
    ended, told = watch(f"attempts {ID} --watch", capsys)
    headline, *lines = told.splitlines()
    assert ended == code
    assert headline.startswith(f"load {ID}: PENDING")
    assert [line[:45].rstrip() for line in lines] == [
        "PENDING",
        "attempt 1: FAILED in 1.50 s on host, FLAKY: [",
        "attempt 1, metrics: jobs 3, input 2.0 KiB",
        "RUNNING, 40 % (4 of 10), stage 3 of 7",
        "RUNNING, 50 % (5 of 10), stage 3 of 7",
        "attempt 2: COMPLETED in 0.00 s on None",
        f"load {ID}: {state}"[:45],
    ]


def test_watch_draws_a_bar_on_a_terminal(
    hook: type[FakeHook], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    hook.task = replace(RUNNING, attempts=())
    hook.steps = (hook.task, TASK)
    FakeHook.told_progress = (
        Progress(attempt=1, done=0, total=10, stage="begin"),
        Progress(attempt=1, done=5, total=10, stage="x" * 100),
    )
    _, told = watch(f"attempts {ID} --watch", capsys)
    drawn = told.split("\r\x1b[K")
    assert drawn[1] == "[------------------------------] RUNNING, 0 % (0 of 10), begin"
    assert drawn[2].startswith("[###############---------------] RUNNING, 50 % (5 of 10), xx")
    assert len(drawn[2]) == 69, "it never breaks into a second line"
    assert drawn[-2] == f"load {ID}: COMPLETED\n"
    assert drawn[-1] == ""


def test_watch_for_programs_is_one_value_at_the_end(hook: type[FakeHook], capsys: pytest.CaptureFixture[str]) -> None:
    hook.task = RUNNING
    hook.steps = (replace(TASK, state=TaskState.FAILED),)
    code, told = watch(f"attempts {ID} --watch -o json", capsys)
    assert (code, json.loads(told)["state"]) == (1, "FAILED")


@pytest.mark.parametrize("line", [f"attempts {ID} --watch", f"logs {ID} --follow", f"attempts {ID}"])
def test_interrupt_ends_the_command_and_nothing_else(
    line: str, hook: type[FakeHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(hook, "wait", interrupted)
    if line == f"attempts {ID}":
        monkeypatch.setattr(hook, "get_task", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 130


def log_line(number: int, *, attempt: int = 1, level: str = "INFO") -> LogLine:
    at = NOON + timedelta(milliseconds=5)
    return LogLine(attempt=attempt, number=number, logged_at=at, level=level, text=f"[/red] line {number}")


LINES = (log_line(1), log_line(2, level="WARNING"), log_line(3), log_line(1, attempt=2))


def test_lines_come_with_time_level_and_attempt(hook: type[FakeHook], capsys: pytest.CaptureFixture[str]) -> None:
    hook.lines = LINES
    assert run(f"logs {ID}", capsys).splitlines() == [
        "2026-03-01 12:00:00.005 INFO     [attempt 1] [/red] line 1",
        "2026-03-01 12:00:00.005 WARNING  [attempt 1] [/red] line 2",
        "2026-03-01 12:00:00.005 INFO     [attempt 1] [/red] line 3",
        "2026-03-01 12:00:00.005 INFO     [attempt 2] [/red] line 1",
    ]


@pytest.mark.parametrize(("attempt", "count"), [(1, 3), (2, 1)])
def test_lines_of_one_attempt_are_those_alone(
    attempt: int, count: int, hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    hook.lines = LINES
    lines = run(f"logs {ID} --attempt {attempt}", capsys).splitlines()
    assert len(lines) == count
    assert all(f"[attempt {attempt}]" in line for line in lines)


def test_lines_are_followed_until_the_task_ends(
    hook: type[FakeHook], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(self: FakeHook, task_ids: list[str], meanwhile: Any) -> list[TaskView]:
        for count in (1, 1, 3):
            self.lines = LINES[:count]
            meanwhile()
        self.lines = LINES
        return [TASK]

    monkeypatch.setattr(hook, "wait", wait)
    lines = run(f"logs {ID} --follow", capsys).splitlines()
    assert [line[-6:] for line in lines] == ["line 1", "line 2", "line 3", "line 1"]


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_lines_for_programs_are_one_value(
    output: str, load: Any, hook: type[FakeHook], capsys: pytest.CaptureFixture[str]
) -> None:
    hook.lines = LINES
    told = load(run(f"logs {ID} -o {output}", capsys))
    assert [(line["attempt"], line["number"], line["level"]) for line in told][1] == (1, 2, "WARNING")
    hook.lines = ()
    main(f"logs {ID} -o {output}".split())
    printed = capsys.readouterr()
    assert load(printed.out) == []
    assert "airflow_horsies.worker" in printed.err


@pytest.mark.parametrize(
    ("task", "records", "asked", "said"),
    [
        (replace(TASK, state=TaskState.PENDING, attempts=()), (), "", "Nothing is written yet: the task is PENDING"),
        (replace(TASK, state=TaskState.EXPIRED, attempts=()), (), "", "Nothing is written: the task is EXPIRED"),
        (TASK, (), "", "it ran on a worker that does not use airflow_horsies.worker"),
        (replace(RUNNING, attempts=()), (), "", "does not use airflow_horsies.worker, or began only now"),
        (RUNNING, RECORDS, "", "Its attempts have written nothing yet: the task is RUNNING"),
        (TASK, RECORDS, "", "Its attempts have written nothing: the task is COMPLETED"),
        (RUNNING, RECORDS, "--attempt 3", "Attempt 3 has written nothing yet."),
        (RUNNING, RECORDS, "--attempt 4", "There is no attempt 4 yet; there are 1, 3."),
        (TASK, (), "--attempt 1", "does not use airflow_horsies.worker"),
    ],
)
def test_no_lines_are_explained(
    task: TaskView,
    records: tuple[AttemptRecord, ...],
    asked: str,
    said: str,
    hook: type[FakeHook],
    capsys: pytest.CaptureFixture[str],
) -> None:
    hook.task, hook.records = task, records
    assert said in run(f"logs {ID} {asked}", capsys)


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
        ("db migrate", f"Applied first: now at version {latest_version()}", [{"version": 1, "name": "first"}]),
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
    assert run("db migrate", capsys) == f"Nothing to do: already at version {latest_version()}\n"


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


def test_escape_sequences_of_a_task_do_not_reach_the_terminal() -> None:
    line = replace(log_line(1), text="\x1b]52;c;cm0=\x07\x1b[2Jä\tharmless")
    assert commands._line_text(line).endswith(r"\x1b]52;c;cm0=\x07\x1b[2Jä" + "\tharmless")
