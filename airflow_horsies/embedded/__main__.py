"""``python -m airflow_horsies.embedded``: the demo, or the same stack for tasks and DAGs of one's own."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from airflow_horsies.embedded import demo
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.story import ALL_DAYS, FEW_FROM, MOST_FEW
from airflow_horsies.exceptions import HorsiesError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airflow_horsies.embedded", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "demo", help="Postgres, Airflow and a horsies worker, and a month of flights through them"
    )
    run.add_argument("--once", action="store_true", help="end by itself: exit code 0 if all went as it should, else 1")
    run.add_argument("--end-with-parent", action="store_true", help="stop when the process that started it ends")
    run.add_argument(
        "--days",
        type=int,
        choices=[*range(1, MOST_FEW + 1), ALL_DAYS],
        default=ALL_DAYS,
        metavar="N",
        help=f"backfill so many days from {FEW_FROM} January on, up to {MOST_FEW}; without it, the whole month",
    )
    run.add_argument("--dags", type=Path, default=Path("dags"), help="the folder with the example pipeline (dags)")
    start = commands.add_parser("start", help="Postgres, Airflow and a worker for tasks and DAGs of your own")
    start.add_argument("app", metavar="MODULE:APP", help="the app of the worker; its module is in this folder")
    start.add_argument("--dags", type=Path, default=Path("dags"), help="the folder with the DAGs (dags)")
    start.add_argument("--folder", type=Path, default=demo.START_FOLDER, help="where everything is kept (.horsies)")
    clean = commands.add_parser("clean", help="delete the demo's data")
    for command in (run, clean):
        command.add_argument(
            "--folder", type=Path, default=demo.DEFAULT_FOLDER, help="where the demo keeps its data (.demo)"
        )
    # A terminal that cannot show a character shows a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options = parser.parse_args(arguments)
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
