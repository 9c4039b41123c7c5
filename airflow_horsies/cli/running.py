"""Runs a command with a client of its connection, and turns errors into one message."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import wraps

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.utils.cli import action_cli, suppress_logs_and_warning

from airflow_horsies.borrowed.airflow import as_server
from airflow_horsies.client.client import Client
from airflow_horsies.exceptions import HorsiesError
from airflow_horsies.hook import HorsiesHook

Command = Callable[[Namespace], None]
ClientCommand = Callable[[Namespace, Client], None]

# The exit code of a command that Ctrl-C ended.
INTERRUPTED = 130


def command(run: ClientCommand) -> Command:
    """Pass a client to the command, and turn errors into one message and exit code 1."""

    @suppress_logs_and_warning
    @wraps(run)
    def run_it(args: Namespace) -> None:
        try:
            with as_server(), HorsiesHook(args.conn_id).client as client:
                run(args, client)
        except AirflowNotFoundException:
            sys.exit(f"error: {_no_such_connection(args.conn_id)}")
        except HorsiesError as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader has closed the pipe. Python would report an error when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    return run_it


def audited(run: ClientCommand) -> ClientCommand:
    """Write the command to Airflow's audit log."""
    with_entry: ClientCommand = action_cli(run, check_db=False)  # type: ignore[no-untyped-call]
    return with_entry


def _no_such_connection(conn_id: str) -> str:
    return (
        f"Airflow has no connection {conn_id!r}, or its database cannot be read. Add the connection with 'airflow "
        f"connections add {conn_id} --conn-type horsies --conn-host HOST --conn-port 5432 --conn-login USER "
        f"--conn-password PASSWORD --conn-schema DATABASE', or set AIRFLOW_CONN_{conn_id.upper()}."
    )
