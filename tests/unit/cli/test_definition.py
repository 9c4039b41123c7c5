from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentTypeError, Namespace
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_horsies.cli import get_cli_commands, main
from airflow_horsies.cli.definition import format_cursor, make_parser, parse_cursor, parse_states
from airflow_horsies.models import PageCursor, TaskState, WorkflowState

ID = "0198a0de-0000-7000-8000-000000000001"
CURSOR = PageCursor(at=datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC), task_id=ID)


def actions(commands: Any, path: tuple[str, ...] = ()) -> dict[str, ActionCommand]:
    found: dict[str, ActionCommand] = {}
    for command in commands:
        here = (*path, command.name)
        if isinstance(command, GroupCommand):
            found |= actions(command.subcommands, here)
        else:
            found[" ".join(here)] = command
    return found


COMMANDS = actions(get_cli_commands())


def test_commands_are_those_that_are_documented() -> None:
    assert sorted(COMMANDS) == [
        "horsies attempts",
        "horsies cancel",
        "horsies check",
        "horsies db change-base-url",
        "horsies db migrate",
        "horsies db prune",
        "horsies items",
        "horsies logs",
        "horsies rerun",
        "horsies signal",
        "horsies tasks",
        "horsies workflows cancel",
        "horsies workflows list",
        "horsies workflows pause",
        "horsies workflows resume",
        "horsies workflows retry",
        "horsies workflows show",
    ]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_has_help_a_function_and_the_options_all_share(command: ActionCommand) -> None:
    assert command.help
    modules = [import_module(f"airflow_horsies.cli.{name}") for name in ("commands", "workflows")]
    assert [
        callable(getattr(module, command.func.__name__)) for module in modules if command.func.__name__ in vars(module)
    ]
    flags = {flag for arg in command.args for flag in arg.flags}
    assert {"--conn-id", "--output", "--verbose"} <= flags


@pytest.mark.skipif(
    version("apache-airflow-core").startswith("3.1."), reason="Airflow 3.1 knows no commands of providers"
)
def test_airflow_takes_the_commands_into_its_parser(capsys: pytest.CaptureFixture[str]) -> None:
    cli_parser = import_module("airflow.cli.cli_parser")
    args = cli_parser.get_parser().parse_args(["horsies", "cancel", ID, "-o", "json"])
    assert (args.horsies_task_id, args.conn_id, args.output) == (ID, "horsies_default", "json")
    with pytest.raises(SystemExit) as ended:
        cli_parser.get_parser().parse_args(["horsies", "cancel", "42"])
    assert ended.value.code == 2
    assert "must be a UUID, not '42'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "parsed"),
    [
        ("check", {"conn_id": "horsies_default", "output": "table", "verbose": False}),
        ("check --conn-id h --output json -v", {"conn_id": "h", "output": "json", "verbose": True}),
        ("db change-base-url --old a --new b", {"old": "a", "new": "b"}),
        ("tasks", {"state": None, "queue": None, "task_name": None, "error_code": None, "before": None, "limit": 20}),
        ("tasks --queue q --task-name n --error-code E --limit 5", {"queue": "q", "error_code": "E", "limit": 5}),
        (
            "tasks --state failed,EXPIRED --state cancelled",
            {"state": [[TaskState.FAILED, TaskState.EXPIRED], [TaskState.CANCELLED]]},
        ),
        (f"tasks --before {format_cursor(CURSOR)}", {"before": CURSOR}),
        (f"attempts {ID.upper()}", {"horsies_task_id": ID, "watch": False}),
        (f"attempts {ID} --watch", {"watch": True}),
        (f"logs {ID}", {"horsies_task_id": ID, "attempt": None, "follow": False}),
        (f"logs {ID} --attempt 2 -f", {"attempt": 2, "follow": True}),
        ("workflows list", {"state": None, "name": None, "before": None, "limit": 20}),
        ("workflows list --state paused,FAILED", {"state": [[WorkflowState.PAUSED, WorkflowState.FAILED]]}),
        (f"workflows show {ID}", {"workflow": [ID], "map_index": -1}),
        ("workflows retry d r t --map-index 3 --queue q", {"workflow": ["d", "r", "t"], "map_index": 3, "queue": "q"}),
    ],
)
def test_command_line_is_parsed_without_airflows_own_command(argv: str, parsed: dict[str, Any]) -> None:
    args = vars(make_parser().parse_args(argv.split()))
    assert {name: args[name] for name in parsed} == parsed


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "required"),
        ("db", "required"),
        ("db change-base-url --old a", "--new"),
        ("tasks --state gone", "'gone' is not a state. Use one of PENDING"),
        ("tasks --limit many", "--limit"),
        ("tasks --before yesterday", "not a cursor"),
        ("attempts 42", "must be a UUID, not '42'"),
        (f"logs {ID} --attempt 0", "'0' is not an attempt number"),
        (f"logs {ID} --attempt last", "'last' is not an attempt number"),
        (f"logs {ID} --attempt 9999999999", "is not an attempt number"),
        ("check --output xml", "xml"),
        ("workflows", "required"),
        ("workflows list --state CLAIMED", "'CLAIMED' is not a state. Use one of PENDING"),
        ("workflows show", "WORKFLOW"),
    ],
)
def test_wrong_command_line_ends_with_2_and_says_why(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", ",", "PENDING,gone"])
def test_state_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not a state"):
        parse_states(text)


@pytest.mark.parametrize("text", ["", ID, f"2026-03-01,{ID}", f"2026-03-01T12:00:00+00:00,{ID[:-1]}"])
def test_cursor_that_was_not_shown_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="cursor"):
        parse_cursor(text)


def test_main_runs_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Namespace] = []
    monkeypatch.setattr(import_module("airflow_horsies.cli.commands"), "horsies_cancel", ran.append)
    main(["cancel", ID])
    assert [args.horsies_task_id for args in ran] == [ID]


def test_import_is_cheap_because_airflow_does_it_for_every_command() -> None:
    code = (
        "import sys, airflow_horsies.cli; "
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'psycopg', 'psycopg2') "
        "or name in ('airflow_horsies.hook', 'airflow_horsies.cli.commands', 'airflow_horsies.client.health')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
