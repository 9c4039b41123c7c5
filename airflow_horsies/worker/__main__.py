"""``python -m airflow_horsies.worker my_tasks:app`` is ``horsies worker my_tasks:app`` with defaults for Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# One child, because a crash of one child ends all of them. It is never recycled, as that would end its Spark session.
SPARK_DEFAULTS = {"--processes": "1", "--max-tasks-per-child": "1000000"}


def with_defaults(arguments: Sequence[str]) -> list[str]:
    """Put our defaults before the arguments: the last value of an option wins."""
    return ["worker", *(part for default in SPARK_DEFAULTS.items() for part in default), *arguments]


def main() -> None:
    from airflow_horsies.borrowed.horsies import run_command_line

    sys.argv = ["horsies", *with_defaults(sys.argv[1:])]
    run_command_line()


if __name__ == "__main__":
    main()
