"""Every order of every pair, on both generations, also with connections that break; the figures go to a file.

python -m tests.interleavings --out benchmarks/interleavings.json
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

import tests.conftest  # noqa: F401 - Airflow's settings, before anything imports Airflow
from airflow_horsies.embedded.postgres import EmbeddedPostgres
from tests.integration.releases import IN_PLACE, MOVED
from tests.interleavings.batch_pairs import BATCH_PAIRS
from tests.interleavings.pairs import PAIRS
from tests.interleavings.stage import staged
from tests.interleavings.trials import Tried, describe, summary, try_pair


def main() -> int:
    parser = argparse.ArgumentParser(prog="make interleavings", description="every order in which two writers can meet")
    parser.add_argument("--out", type=Path, help="the file for the figures")
    parser.add_argument("--pair", action="append", help="only the pairs with this in their name")
    options = parser.parse_args()
    pairs = [
        pair for pair in (*PAIRS, *BATCH_PAIRS) if not options.pair or any(part in pair.name for part in options.pair)
    ]
    logging.getLogger("airflow_horsies").setLevel(logging.WARNING)
    tried: list[Tried] = []
    with (
        tempfile.TemporaryDirectory(prefix="interleavings-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres", durable=False) as postgres,
    ):
        for release in (IN_PLACE, MOVED):
            with staged(postgres, release, Path(folder)) as stage:
                for pair in pairs:
                    if release in pair.releases:
                        tried.append(try_pair(stage, pair, with_cuts=True))
                        print(tried[-1].line(), flush=True)
    if options.out and not options.pair:
        options.out.write_text(json.dumps(summary(tried), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    wrong = [one for one in tried if one.violations]
    print("\n".join(["", describe(tried), *(one.describe() for one in wrong)]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
