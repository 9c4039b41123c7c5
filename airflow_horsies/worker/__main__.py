"""``python -m airflow_horsies.worker my_tasks:app`` is ``horsies worker my_tasks:app`` with defaults for Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# One child, as one crash ends all of them; and never replaced for its age, as its warm Spark session would go with it.
SPARK_DEFAULTS = {"--processes": "1", "--max-tasks-per-child": "1000000"}


def with_defaults(arguments: Sequence[str]) -> list[str]:
    """The arguments, and our defaults for those that are not among them."""
    given = {argument.partition("=")[0] for argument in arguments}
    missing = [part for name, value in SPARK_DEFAULTS.items() if name not in given for part in (name, value)]
    return ["worker", *arguments, *missing]


def main() -> None:
    from horsies.core.cli import main as horsies_main

    sys.argv = ["horsies", *with_defaults(sys.argv[1:])]
    horsies_main()


if __name__ == "__main__":
    main()
