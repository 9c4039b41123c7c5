"""The command ``airflow horsies``. Airflow imports this module for every command, so it must stay small."""

from __future__ import annotations

from airflow_horsies.cli.definition import get_cli_commands, main

__all__ = ["get_cli_commands", "main"]
