"""``python -m airflow_horsies.worker my_tasks:app`` is ``horsies worker my_tasks:app`` with our own defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

# One child, because a crash of one child ends all of them. It is never recycled, as that would end its Spark session.
DEFAULTS = {"--processes": "1", "--max-tasks-per-child": "1000000"}


def with_defaults(arguments: Sequence[str]) -> list[str]:
    """Put our defaults before the arguments: the last value of an option wins."""
    return ["worker", *(part for default in DEFAULTS.items() for part in default), *arguments]


def leaves_processes_open(arguments: Sequence[str]) -> bool:
    """Whether the number of children is not given; an option may be abbreviated."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--processes")
    try:
        return parser.parse_known_args(list(arguments))[0].processes is None
    except argparse.ArgumentError:
        return False


def main() -> None:
    from airflow_horsies.borrowed.horsies import run_worker
    from airflow_horsies.worker.defaults import processes_of

    given = sys.argv[1:]
    sys.argv = ["horsies", *with_defaults(given)]
    run_worker(choose_processes=processes_of if leaves_processes_open(given) else None)


if __name__ == "__main__":
    main()
