"""``python -m airflow_horsies.embedded``: runs the demo, or the same stack for your own tasks and DAGs."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from airflow_horsies.embedded import demo
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.story import ALL_DAYS, MAX_SHORT_DAYS, SHORT_FIRST_DAY
from airflow_horsies.exceptions import HorsiesError


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_horsies.embedded", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "demo", help="start Postgres, Airflow and a horsies worker, and process a month of flight data"
    )
    run.add_argument(
        "--once", action="store_true", help="exit after the demo, with code 0 if everything succeeded, else 1"
    )
    run.add_argument("--end-with-parent", action="store_true", help="stop when the parent process ends")
    run.add_argument(
        "--days",
        type=int,
        choices=[*range(1, MAX_SHORT_DAYS + 1), ALL_DAYS],
        default=ALL_DAYS,
        metavar="N",
        help=f"backfill N days from {SHORT_FIRST_DAY} January, at most {MAX_SHORT_DAYS} (default: the whole month)",
    )
    run.add_argument(
        "--dags", type=Path, default=Path("dags"), help="the folder of the example pipeline (default: dags)"
    )
    start = commands.add_parser("start", help="start Postgres, Airflow and a worker for your own tasks and DAGs")
    start.add_argument(
        "app", metavar="MODULE:APP", help="the app of the worker; its module must be in the current folder"
    )
    start.add_argument("--dags", type=Path, default=Path("dags"), help="the folder of the DAGs (default: dags)")
    start.add_argument(
        "--folder", type=Path, default=demo.START_FOLDER, help="the folder of the data (default: .horsies)"
    )
    clean = commands.add_parser("clean", help="delete the data of the demo or of another stack")
    for command in (run, clean):
        command.add_argument(
            "--folder", type=Path, default=demo.DEFAULT_FOLDER, help="the folder of the data (default: .demo)"
        )
    return parser


def main(arguments: list[str] | None = None) -> int:
    # A character that the terminal cannot show becomes a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options = _make_parser().parse_args(arguments)
    try:
        if options.command == "clean":
            demo.clean(options.folder)
            return 0
        if options.command == "start":
            return demo.start(options.folder, app=options.app, dags_folder=options.dags)
        return demo.run(
            options.folder,
            once=options.once,
            dags_folder=options.dags,
            days=options.days,
            end_with_parent=options.end_with_parent,
        )
    except (EmbeddedError, HorsiesError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
