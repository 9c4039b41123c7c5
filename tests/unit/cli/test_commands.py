from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_horsies.cli import commands, main
from airflow_horsies.cli.definition import format_cursor
from airflow_horsies.client import ledger
from airflow_horsies.client.health import Finding, Status
from airflow_horsies.exceptions import AccessDenied, TaskNotFound
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.schema import Migration, latest_version
from airflow_horsies.models import (
    Attempt,
    AttemptRecord,
    CancelOutcome,
    KnownKind,
    KnownTask,
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
from airflow_horsies.testing import FakeClient
from airflow_horsies.testing.client import make_settings

URLS = ("http://a", "http://b")
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


class WatchedClient(FakeClient):
    """Has one task, which takes a step each time somebody who waits for it has a turn; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(make_settings(namespace="default"))
        self.task = TASK
        self.steps: Sequence[TaskView] = ()
        self.told_progress: list[Progress | None] = []
        self.submissions: Sequence[Submission] = (SUBMISSION,)
        self.page = TaskPage(tasks=(TASK,), next=CURSOR)
        self.outcome = CancelOutcome.CANCELLED
        self.fails: Exception | None = None
        self.contexts: list[str | None] = []
        self.asked: dict[str, Any] = {}
        self.known: list[KnownTask] = []

    def connect(self, hook: HorsiesHook) -> WatchedClient:
        """In the place of ``HorsiesHook.client``, which looks the connection up."""
        self.contexts.append(os.environ.get("_AIRFLOW_PROCESS_CONTEXT"))
        if self.fails is not None:
            raise self.fails
        return self

    @property
    def task(self) -> TaskView:
        return self.memory.tasks[ID]

    @task.setter
    def task(self, task: TaskView) -> None:
        self.memory.tasks = {ID: task}

    def read_progress(self, task_ids: Iterable[str]) -> dict[str, Progress]:
        progress = self.told_progress.pop(0) if self.told_progress else None
        return {} if progress is None else {ID: progress}

    def read_lines(self, task_id: str, after: LogCursor | None = None, limit: int = 2) -> list[LogLine]:
        return super().read_lines(task_id, after=after, limit=limit)

    def wait(self, task_ids: Iterable[str], *, meanwhile: Callable[[], None] | None = None, **_: Any) -> list[TaskView]:
        for step in self.steps:
            self.task = step
            if meanwhile is not None:
                meanwhile()
        return super().wait(task_ids)

    def read_submissions_of_task(self, task_id: str) -> list[Submission]:
        return list(self.submissions)

    def list_tasks(self, **asked: Any) -> TaskPage:
        self.asked = asked
        return self.page

    def read_catalog(self, **asked: Any) -> list[KnownTask]:
        self.asked = asked
        return self.known

    def cancel_task(self, task_id: str, **_: Any) -> CancelOutcome:
        return self.outcome


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> WatchedClient:
    client = WatchedClient()
    monkeypatch.setattr(HorsiesHook, "client", property(client.connect))
    monkeypatch.setattr(ledger, "migrate_ledger", lambda client, by_hand: [Migration(1, "first", "")])
    monkeypatch.setattr(ledger, "prune_ledger", lambda client: 7)
    monkeypatch.setattr(ledger, "change_base_url", lambda client, old, new: 3 if (old, new) == URLS else 0)
    monkeypatch.setattr("airflow.utils.cli_action_loggers.on_pre_execution", lambda **_: None)
    monkeypatch.setattr("airflow.utils.cli_action_loggers.on_post_execution", lambda **_: None)
    return client


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


def test_attempts_of_a_task_that_never_ran(client: WatchedClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.task = replace(TASK, attempts=(), state=TaskState.PENDING)
    client.submissions = ()
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
    client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.task, client.memory.records[ID] = replace(TASK, state=TaskState.RUNNING), RECORDS
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
    client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    end = NOON + timedelta(seconds=2)
    client.task = replace(TASK, attempts=(), state=TaskState.CANCELLED, finished_at=end)
    client.memory.records[ID] = RECORDS[1:]
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
    state: TaskState, code: int, client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.task = replace(TASK, state=TaskState.PENDING, attempts=())
    client.steps = (client.task, RUNNING, RUNNING, RUNNING, replace(TASK, state=state))
    client.memory.records[ID] = RECORDS[:1]
    four = Progress(attempt=2, done=4, total=10, stage="stage 3 of 7")
    client.told_progress = [None, None, four, four, replace(four, done=5)]
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
    client: WatchedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    client.task = replace(RUNNING, attempts=())
    client.steps = (client.task, TASK)
    client.told_progress = [
        Progress(attempt=1, done=0, total=10, stage="begin"),
        Progress(attempt=1, done=5, total=10, stage="x" * 100),
    ]
    _, told = watch(f"attempts {ID} --watch", capsys)
    drawn = told.split("\r\x1b[K")
    assert drawn[1] == "[------------------------------] RUNNING, 0 % (0 of 10), begin"
    assert drawn[2].startswith("[###############---------------] RUNNING, 50 % (5 of 10), xx")
    assert len(drawn[2]) == 69, "it never breaks into a second line"
    assert drawn[-2] == f"load {ID}: COMPLETED\n"
    assert drawn[-1] == ""


def test_watch_for_programs_is_one_value_at_the_end(client: WatchedClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.task = RUNNING
    client.steps = (replace(TASK, state=TaskState.FAILED),)
    code, told = watch(f"attempts {ID} --watch -o json", capsys)
    assert (code, json.loads(told)["state"]) == (1, "FAILED")


@pytest.mark.parametrize("line", [f"attempts {ID} --watch", f"logs {ID} --follow", f"attempts {ID}"])
def test_interrupt_ends_the_command_and_nothing_else(
    line: str, client: WatchedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "wait", interrupted)
    if line == f"attempts {ID}":
        monkeypatch.setattr(client, "read_task", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 130


def log_line(number: int, *, attempt: int = 1, level: str = "INFO") -> LogLine:
    at = NOON + timedelta(milliseconds=5)
    return LogLine(attempt=attempt, number=number, logged_at=at, level=level, text=f"[/red] line {number}")


LINES = (log_line(1), log_line(2, level="WARNING"), log_line(3), log_line(1, attempt=2))


def test_lines_come_with_time_level_and_attempt(client: WatchedClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.memory.lines[ID] = list(LINES)
    assert run(f"logs {ID}", capsys).splitlines() == [
        "2026-03-01 12:00:00.005 INFO     [attempt 1] [/red] line 1",
        "2026-03-01 12:00:00.005 WARNING  [attempt 1] [/red] line 2",
        "2026-03-01 12:00:00.005 INFO     [attempt 1] [/red] line 3",
        "2026-03-01 12:00:00.005 INFO     [attempt 2] [/red] line 1",
    ]


@pytest.mark.parametrize(("attempt", "count"), [(1, 3), (2, 1)])
def test_lines_of_one_attempt_are_those_alone(
    attempt: int, count: int, client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.memory.lines[ID] = list(LINES)
    lines = run(f"logs {ID} --attempt {attempt}", capsys).splitlines()
    assert len(lines) == count
    assert all(f"[attempt {attempt}]" in line for line in lines)


def test_lines_are_followed_until_the_task_ends(
    client: WatchedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(task_ids: list[str], meanwhile: Any) -> list[TaskView]:
        for count in (1, 1, 3):
            client.memory.lines[ID] = list(LINES[:count])
            meanwhile()
        client.memory.lines[ID] = list(LINES)
        return [TASK]

    monkeypatch.setattr(client, "wait", wait)
    lines = run(f"logs {ID} --follow", capsys).splitlines()
    assert [line[-6:] for line in lines] == ["line 1", "line 2", "line 3", "line 1"]


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_lines_for_programs_are_one_value(
    output: str, load: Any, client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.memory.lines[ID] = list(LINES)
    told = load(run(f"logs {ID} -o {output}", capsys))
    assert [(line["attempt"], line["number"], line["level"]) for line in told][1] == (1, 2, "WARNING")
    client.memory.lines[ID] = []
    main(f"logs {ID} -o {output}".split())
    printed = capsys.readouterr()
    assert load(printed.out) == []
    assert "airflow_horsies.worker" in printed.err


@pytest.mark.parametrize(
    ("task", "records", "asked", "said"),
    [
        (
            replace(TASK, state=TaskState.PENDING, attempts=()),
            (),
            "",
            "There are no log lines yet. The task is PENDING",
        ),
        (replace(TASK, state=TaskState.EXPIRED, attempts=()), (), "", "There are no log lines. The task is EXPIRED"),
        (TASK, (), "", "Its worker does not use airflow_horsies.worker"),
        (
            replace(RUNNING, attempts=()),
            (),
            "",
            "does not use airflow_horsies.worker, or has not reported yet",
        ),
        (RUNNING, RECORDS, "", "The attempts have written nothing yet. The task is RUNNING"),
        (TASK, RECORDS, "", "The attempts have written nothing. The task is COMPLETED"),
        (RUNNING, RECORDS, "--attempt 3", "Attempt 3 has written nothing yet."),
        (RUNNING, RECORDS, "--attempt 4", "There is no attempt 4 yet. Attempts: 1, 3."),
        (TASK, (), "--attempt 1", "does not use airflow_horsies.worker"),
    ],
)
def test_no_lines_are_explained(
    task: TaskView,
    records: tuple[AttemptRecord, ...],
    asked: str,
    said: str,
    client: WatchedClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client.task, client.memory.records[ID] = task, records
    assert said in run(f"logs {ID} {asked}", capsys)


def test_listing_passes_filters_on_and_ends_with_the_cursor(
    client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "tasks --state failed,expired --queue q --task-name n --error-code E --limit 5 --before "
    *_, last = run(line + format_cursor(CURSOR), capsys).splitlines()
    assert last == f"More: --before {format_cursor(CURSOR)}"
    assert client.asked == {
        "states": {TaskState.FAILED, TaskState.EXPIRED},
        "queue": "q",
        "task_name": "n",
        "error_code": "E",
        "before": CURSOR,
        "limit": 5,
    }


def test_listing_without_filters_asks_for_every_state(
    client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.page = TaskPage(tasks=(), next=None)
    assert run("tasks", capsys).strip() == "No data found"
    assert client.asked["states"] is None


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
    ("outcome", "text"),
    [
        (CancelOutcome.CANCELLED, "was cancelled"),
        (CancelOutcome.ALREADY_CANCELLED, "was already cancelled"),
        (CancelOutcome.ALREADY_FINISHED, "had already ended as COMPLETED"),
    ],
)
def test_cancel_says_what_it_found(
    outcome: CancelOutcome, text: str, client: WatchedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.outcome = outcome
    assert run(f"cancel {ID}", capsys) == f"Task {ID} {text}.\n"
    assert json.loads(run(f"cancel {ID} -o json", capsys)) == {
        "task_id": ID,
        "outcome": outcome,
        "state": "COMPLETED",
    }


def test_signal_sends_its_payload_once(client: WatchedClient, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"signal {ID} approved --payload 7 --dedup-key one"
    assert run(line, capsys) == f"Sent the signal approved to {ID}. Tasks that it resumed: 0.\n"
    assert run(line, capsys) == f"The signal approved was sent to {ID} before.\n"
    assert json.loads(run(f"{line} -o json", capsys))["is_new"] is False
    assert [payload for _, payload in client.memory.signals] == ["7"]


def test_signal_refuses_what_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["signal", ID, "approved", "--payload", "yes"])
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text", "value"),
    [
        (
            "db migrate",
            f"Applied first. The tables are now at version {latest_version()}.",
            [{"version": 1, "name": "first"}],
        ),
        ("db prune", "Removed 7 submissions of tasks that are no longer in the horsies database.", {"forgotten": 7}),
        (
            "db change-base-url --old http://a --new http://b",
            "Changed the base URL of 3 submissions in namespace 'default' to http://b.",
            {"changed": 3},
        ),
    ],
)
def test_database_commands_say_what_they_did(
    line: str, text: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line, capsys) == f"{text}\n"
    assert json.loads(run(f"{line} --output json", capsys)) == value


def test_migrate_says_when_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger, "migrate_ledger", lambda client, by_hand: [])
    assert run("db migrate", capsys) == f"The tables are already at version {latest_version()}.\n"


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
    monkeypatch.setattr(commands, "check_health", lambda client: iter(found))
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
            "Airflow has no connection 'nope'.*airflow connections add nope --conn-type horsies.*AIRFLOW_CONN_NOPE",
        ),
    ],
)
def test_error_is_one_message_and_exit_code_1(error: Exception, said: str, client: WatchedClient) -> None:
    client.fails = error
    with pytest.raises(SystemExit, match=said) as ended:
        main(["attempts", ID, "--conn-id", "nope"])
    # Python prints a text it is left with to stderr and ends with 1.
    assert isinstance(ended.value.code, str)
    assert "\n" not in ended.value.code


@pytest.mark.parametrize("before", [None, "client"])
def test_connections_are_looked_up_as_core_commands_do_and_the_environment_is_put_back(
    before: str | None, client: WatchedClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "_AIRFLOW_PROCESS_CONTEXT"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    run("tasks", capsys)
    assert client.contexts == ["server"]
    assert os.environ.get(name) == before


def test_escape_sequences_of_a_task_do_not_reach_the_terminal() -> None:
    line = replace(log_line(1), text="\x1b]52;c;cm0=\x07\x1b[2Jä\tharmless")
    assert commands._line_text(line).endswith(r"\x1b]52;c;cm0=\x07\x1b[2Jä" + "\tharmless")


KNOWN = KnownTask(
    kind=KnownKind.WORKFLOW,
    name="flights.month",
    parameters={"properties": {"year": {"type": "integer"}, "month": {"type": "integer", "default": 1}}},
    doc="The flights of a month.\nMore.",
    queue=None,
    served_queues=("a", "b"),
    workers=2,
    releases=("1.2.3",),
    hosts=("here",),
    seen_at=NOON,
    is_live=True,
    is_disputed=True,
)


def test_what_workers_know_is_listed(client: WatchedClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.known = [KNOWN]
    header, _, row = run("tasks --known --queue a --task-name flights.month", capsys).splitlines()[:3]
    assert client.asked == {"name": "flights.month", "queue": "a"}
    assert [name.strip() for name in header.split("|")][:5] == ["kind", "name", "parameters", "queues", "workers"]
    assert "2 live, others disagree" in row
    (told,) = json.loads(run("tasks --known --output json", capsys))
    assert (told["kind"], told["parameters"], told["seen_at"]) == ("workflow", dict(KNOWN.parameters), NOON.isoformat())


def test_nothing_known_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tasks", "--known"])
    assert commands.NOTHING_KNOWN in capsys.readouterr().err
