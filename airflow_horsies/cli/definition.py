"""The command ``airflow horsies``, and ``python -m airflow_horsies.cli`` for an Airflow that does not support it.

Airflow imports this module for every command, so the code of a command is imported when it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_horsies.core.paging import PageCursor
from airflow_horsies.core.task import TaskState
from airflow_horsies.core.validation import require_task_id
from airflow_horsies.core.workflow import WorkflowState
from airflow_horsies.exceptions import InvalidTask

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    CLICommand: TypeAlias = ActionCommand | GroupCommand

State = TypeVar("State", TaskState, WorkflowState)

DEFAULT_CONN_ID = "horsies_default"
CURSOR_SEPARATOR = ","
MAX_ATTEMPT = 2**31 - 1
ITEM_STATES = "Only items in these states; repeatable or comma-separated"


def get_cli_commands() -> list[GroupCommand]:
    """The command group ``horsies``, for the provider's key ``cli``."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="horsies",
            help="Inspect and manage horsies, the Postgres-backed task queue",
            subcommands=(
                _command(
                    "check",
                    "horsies_check",
                    "Check the connection, the database and the workers; exit code 1 if a check fails",
                ),
                GroupCommand(
                    name="db",
                    help="Manage this provider's own tables in the horsies database",
                    subcommands=_db_commands(),
                ),
                *_task_commands(),
                GroupCommand(
                    name="workflows",
                    help="List, show and control workflows",
                    subcommands=_workflow_commands(),
                ),
            ),
        )
    ]


def _db_commands() -> tuple[ActionCommand, ...]:
    return (
        _command("migrate", "horsies_db_migrate", "Create or migrate the tables"),
        _command(
            "prune",
            "horsies_db_prune",
            "Remove the submissions of tasks that are no longer in the horsies database",
        ),
        _command(
            "change-base-url",
            "horsies_db_change_base_url",
            "Assign the submissions of this Airflow to its new base URL",
            _arg("--old", required=True, help="The former [api] base_url"),
            _arg("--new", required=True, help="The new [api] base_url"),
        ),
    )


def _task_commands() -> tuple[ActionCommand, ...]:
    task_id = _arg("horsies_task_id", metavar="TASK_ID", type=parse_task_id, help="The id of a horsies task")
    watch = "Follow the task until it ends; exit code 1 unless it completes"
    attempt = "Only this attempt, 1 for the first"
    return (
        _command("tasks", "horsies_tasks", "List recent tasks, newest first", *_filters()),
        _command(
            "attempts",
            "horsies_attempts",
            "Show the attempts of a task and the task instance that sent it",
            task_id,
            _arg("--watch", action="store_true", help=watch),
        ),
        _command(
            "items",
            "horsies_items",
            "List the items of a chunk, which is a task that runs many items of a batch",
            task_id,
            _arg("--state", action="append", type=parse_states, metavar="STATE", help=ITEM_STATES),
        ),
        _command(
            "logs",
            "horsies_logs",
            "Print the log lines and output of a task that ran on a worker of airflow_horsies.worker",
            task_id,
            _arg("--attempt", type=parse_attempt, metavar="NUMBER", help=attempt),
            _arg("--item", type=parse_position, metavar="NUMBER", help="Only lines of this item of a chunk"),
            _arg("--follow", "-f", action="store_true", help="Print new lines until the task ends"),
        ),
        _command("cancel", "horsies_cancel", "Cancel a task that has not ended", task_id),
        _command("signal", "horsies_signal", "Send a signal to a task or a workflow", *_signal_args()),
        _command(
            "rerun",
            "horsies_rerun",
            "Clear a task instance and its downstream tasks, so that Airflow runs them again",
            *_rerun_args(),
        ),
    )


def _workflow_commands() -> tuple[ActionCommand, ...]:
    """For an address: the id of a workflow, or a task instance."""
    at_once = "Let a worker of airflow_horsies.worker on this queue resume it at once, not at the next check"
    queue = _arg("--queue", help=at_once)
    return (
        _command(
            "list",
            "workflows_list",
            "List workflows, the one that changed last first; not those inside other ones",
            *_workflow_filters(),
            module="workflows",
        ),
        _workflow_command("show", "Show a workflow and the tree of its nodes, with states, times and error codes"),
        _workflow_command("pause", "Pause a workflow and those inside it; running nodes end as usual"),
        _workflow_command("resume", "Resume a paused workflow and those inside it; a failed node stays failed", queue),
        _workflow_command("cancel", "Cancel a workflow and those inside it, with the nodes that run"),
        _workflow_command("retry", "Run the failed nodes of a paused workflow again, and resume it", queue),
    )


def _workflow_command(name: str, help: str, *args: Arg) -> ActionCommand:
    address = (
        "The id of a workflow; or DAG_ID RUN_ID TASK_ID of a task instance, for the workflow that it submitted last"
    )
    return _command(
        name,
        f"workflows_{name}",
        help,
        _arg("workflow", nargs="+", metavar="WORKFLOW", type=parse_address, help=address),
        _arg("--map-index", type=int, default=-1, metavar="INDEX", help="The map index of a mapped task"),
        *args,
        module="workflows",
    )


def _workflow_filters() -> tuple[Arg, ...]:
    states = (
        f"Only workflows in these states; repeatable or comma-separated: {', '.join(WorkflowState)}. PAUSED also finds "
        "workflows with a paused one inside"
    )
    before = "Continue after an earlier page, with the cursor printed at its end"
    return (
        _arg("--state", action="append", type=parse_workflow_states, metavar="STATE", help=states),
        _arg("--name", help="Only workflows with this name, or of the definition with this key"),
        _arg("--limit", type=int, default=20, help="The number of workflows (default: 20)"),
        _arg("--before", type=parse_cursor, metavar="CURSOR", help=before),
    )


def _signal_args() -> tuple[Arg, ...]:
    return (
        _arg("target", metavar="TARGET", type=parse_task_id, help="The id of a horsies task or of a horsies workflow"),
        _arg("name", metavar="NAME", help="The name of the signal, for example approved"),
        _arg("--payload", type=parse_json, metavar="JSON", help="What the task receives (default: null)"),
        _arg("--dedup-key", metavar="KEY", help="The same signal with the same key is stored once"),
    )


def _rerun_args() -> tuple[Arg, ...]:
    failed = "Run again only the items of the batch that did not complete, and keep the values of the others"
    item = "Run again only this item of the batch, by its position; repeatable. Other items stay as they are"
    return (
        _arg("dag_id", metavar="DAG_ID", help="The id of the DAG"),
        _arg("run_id", metavar="RUN_ID", help="The id of the DAG run"),
        _arg("task_id", metavar="TASK_ID", help="The id of the Airflow task"),
        _arg("--map-index", type=int, default=-1, metavar="INDEX", help="The map index of a mapped task"),
        _arg("--failed", action="store_true", help=failed),
        _arg("--item", action="append", type=parse_position, metavar="POSITION", help=item),
    )


def _filters() -> tuple[Arg, ...]:
    states = f"Only tasks in these states; repeatable or comma-separated: {', '.join(TaskState)}"
    before = "Continue after an earlier page, with the cursor printed at its end"
    known = "List the tasks and workflows that workers know, with their parameters; --queue and --task-name apply"
    return (
        _arg("--known", action="store_true", help=known),
        _arg("--state", action="append", type=parse_states, metavar="STATE", help=states),
        _arg("--queue", help="Only tasks of this queue"),
        _arg("--task-name", help="Only tasks with this name"),
        _arg("--error-code", help="Only tasks that ended with this error code"),
        _arg("--limit", type=int, default=20, help="The number of tasks (default: 20)"),
        _arg("--before", type=parse_cursor, metavar="CURSOR", help=before),
    )


def _command(name: str, function: str, help: str, *args: Arg, module: str = "commands") -> ActionCommand:
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, lazy_load_command

    conn_id = f"The id of the connection of type horsies (default: {DEFAULT_CONN_ID})"
    return ActionCommand(
        name=name,
        help=help,
        func=lazy_load_command(f"airflow_horsies.cli.{module}.{function}"),
        args=(*args, _arg("--conn-id", default=DEFAULT_CONN_ID, help=conn_id), ARG_OUTPUT, ARG_VERBOSE),
    )


def _arg(*flags: str, **options: Any) -> Arg:
    from airflow.cli.cli_config import Arg

    return Arg(flags, **options)  # type: ignore[no-untyped-call]


def parse_task_id(text: str) -> str:
    try:
        return require_task_id(text)
    except InvalidTask as error:
        raise argparse.ArgumentTypeError(error.problem) from None


def parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error}). Write a text as '\"text\"'.") from None


def parse_attempt(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_ATTEMPT:
        raise argparse.ArgumentTypeError(f"{text!r} is not an attempt number. Use 1 for the first attempt.")
    return int(text)


def parse_position(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_ATTEMPT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a position. Use 0 for the first item.")
    return int(text)


def parse_states(text: str) -> list[TaskState]:
    """One state, or several with commas, in upper or lower case."""
    return _parse_states(text, TaskState)


def parse_workflow_states(text: str) -> list[WorkflowState]:
    """As parse_states."""
    return _parse_states(text, WorkflowState)


def _parse_states(text: str, states: type[State]) -> list[State]:
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(states))
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a state. Use one of {', '.join(states)}.")
    return [states(name) for name in names]


def parse_address(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an id. Use the id of a workflow, or those of a task instance."
        )
    return text


def parse_cursor(text: str) -> PageCursor:
    """The inverse of format_cursor."""
    at, _, task_id = text.partition(CURSOR_SEPARATOR)
    try:
        cursor = PageCursor(at=datetime.fromisoformat(at), task_id=require_task_id(task_id))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a cursor. Use one that 'airflow horsies tasks' printed."
        ) from None
    if cursor.at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone. Use the cursor as it was printed.")
    return cursor


def format_cursor(cursor: PageCursor) -> str:
    return f"{cursor.at.isoformat()}{CURSOR_SEPARATOR}{cursor.task_id}"


def make_parser() -> argparse.ArgumentParser:
    """A parser for the same commands without ``airflow``."""
    parser = argparse.ArgumentParser(prog="python -m airflow_horsies.cli")
    _add_commands(parser, (command for group in get_cli_commands() for command in group.subcommands))
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: Iterable[CLICommand]) -> None:
    from airflow.cli.cli_config import GroupCommand

    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        if isinstance(command, GroupCommand):
            _add_commands(subparser, command.subcommands)
        else:
            for arg in command.args:
                arg.add_to_parser(subparser)
            subparser.set_defaults(func=command.func)


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    args.func(args)


if __name__ == "__main__":
    main()
