"""Prints what a command found, for people and for programs."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from airflow.cli.simple_table import AirflowConsole

from airflow_horsies.core.masking import mask_text, mask_value
from airflow_horsies.core.values import to_plain

MAX_MESSAGE_CHARS = 80
# For people; the other formats are for programs.
TEXT_FORMATS = ("table", "plain")


def print_data(data: Any, output: str) -> None:
    # Text from the database may look like the console's markup.
    console = AirflowConsole(markup=False, emoji=False, highlight=False)
    plain = mask_value(to_plain(data))
    match output:
        case "json":
            print(json.dumps(plain, ensure_ascii=False))
        case "yaml":
            console.print_as_yaml(plain)
        case _:
            console.print_as(plain, output)


def print_count(args: Namespace, key: str, count: int, sentence: str) -> None:
    if args.output in TEXT_FORMATS:
        print(sentence)
    else:
        print_data({key: count}, args.output)


def escape_controls(text: str) -> str:
    """Escape control characters that a terminal would interpret: a task may print anything."""
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def first_line(text: str) -> str:
    # Masked before it is cut: a cut secret would not be recognised.
    masked = escape_controls(mask_text(next((line.strip() for line in text.splitlines() if line.strip()), "")))
    return masked if len(masked) <= MAX_MESSAGE_CHARS else f"{masked[: MAX_MESSAGE_CHARS - 1]}…"


def short_time(instant: Any) -> str:
    return "" if instant is None else f"{instant:%Y-%m-%d %H:%M:%S}"
