"""All benchmarks, one after another: results.json and sizing.json beside this file, and the pages that show them.

.venv/bin/python -m benchmarks [NAME ...] [--table]

What each has found is written when it ends. A run that was interrupted goes on with the names that are left.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import needs, upstream
from benchmarks.figures import AIMS, SHORT, spell

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
README = HERE.parent / "README.md"
PAGE = HERE.parent / "docs" / "concepts" / "benchmarks.md"
BEGIN, END = "<!-- figures of make bench -->", "<!-- end of figures -->"
# How many minutes each takes, about, on two cores that do nothing else.
MINUTES = {
    "submitting": 2,
    "waking": 4,
    "growth": 5,
    "spark_jobs": 4,
    "spark_source": 4,
    "worker_cost": 9,
    "end_to_end": 10,
    "chains": 5,
    "readers": 9,
    "sizing": 7,
}
PACKAGES = ("airflow-horsies", "horsies", "apache-airflow", "pyspark", "psycopg")


def run(name: str) -> None:
    """Run one benchmark and keep what it found: figures with their least and most, or the whole of sizing.json."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}", "--out", out],
            cwd=HERE.parent,
            env={**os.environ, "AIRFLOW_HOME": str(Path(folder) / "airflow")},
            check=True,
        )
        found = json.loads(out.read_text())
    if name == "sizing":
        found["_meta"] |= facts()
        needs.SIZING.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        save({figure: spread for figure, *spread in found}, time.monotonic() - begun)


def machine() -> str:
    models = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {models[0] if models else platform.machine()}, {memory:.0f} GB, {platform.system()}"


def facts() -> dict[str, Any]:
    """Where and with what the figures are measured."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    return {"machine": machine(), "versions": versions, "date": datetime.now(UTC).date().isoformat()}


def save(figures: dict[str, list[float]], seconds: float) -> None:
    """Those of benchmarks that were not run stay as they are."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    meta = kept.get("_meta", {})
    values = {name: kept[name] for name in AIMS if name in kept} | {
        name: float(f"{value:.4g}") for name, (value, *_) in figures.items()
    }
    spread = meta.get("spread", {}) | {
        name: [float(f"{each:.4g}") for each in bounds] for name, (_, *bounds) in figures.items()
    }
    now = facts()
    dates = meta.get("dates", {}) | dict.fromkeys(figures, now["date"])
    machines = meta.get("machines", {}) | dict.fromkeys(figures, now["machine"])
    ordered: dict[str, Any] = {name: values[name] for name in AIMS if name in values}
    ordered["_meta"] = {
        **now,
        "seconds": round(seconds),
        "spread": {name: spread[name] for name in AIMS if name in spread},
        "dates": {name: dates[name] for name in AIMS if name in dates},
        "machines": {name: machines[name] for name in AIMS if name in machines},
    }
    RESULTS.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n")


def table(results: dict[str, Any]) -> str:
    """The figures in Markdown, each with its spread, its aim, and what bounds it if it falls short."""
    meta = results["_meta"]
    versions = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    first, last = min(meta["dates"].values()), max(meta["dates"].values())
    measured = f"on {first}" if first == last else f"from {first} to {last}"
    machines = " or ".join(dict.fromkeys(meta["machines"].values()))
    lines = [
        f"Measured by `make bench` {measured}: {machines}; {versions}. Each figure is the median of "
        "several rounds in which both sides took turns; the spread is the smallest and the largest.",
        "",
        "| what | figure | spread | aim |",
        "|---|---:|---:|---|",
    ]
    short = []
    for name, aim in AIMS.items():
        if name not in results:
            continue
        low, high = meta["spread"][name]
        wanted = aim.wanted
        if not aim.is_met(results[name]):
            wanted += ": **missed**"
            short.append(f"- `{name}`: {aim.bounded_by}." if aim.bounded_by else f"- `{name}`.")
        lines.append(f"| {aim.says} | {spell(results[name])} | {spell(low)} to {spell(high)} | {wanted} |")
    return "\n".join([*lines, *(["", "What limits the figures that miss their aim:", "", *short] if short else [])])


def short_table(results: dict[str, Any]) -> str:
    """A few figures for the README."""
    lines = ["| | measured | aim |", "|---|---:|---|"]
    for name, text in SHORT.items():
        if name in results:
            aim = AIMS[name]
            missed = "" if aim.is_met(results[name]) else ": **missed**"
            lines.append(f"| {text} | {spell(results[name])} {aim.unit} | {aim.wanted}{missed} |")
    return "\n".join(lines)


def write_tables() -> str:
    results = json.loads(RESULTS.read_text())
    made = table(results)
    for path, text in ((PAGE, made), (README, short_table(results))):
        before, rest = path.read_text().split(BEGIN)
        after = rest.split(END)[1]
        path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    sizing = needs.read_sizing()
    for path, blocks in ((needs.PAGE, needs.BLOCKS), (upstream.PAGE, upstream.BLOCKS)):
        path.write_text(needs.with_tables(path.read_text(), blocks, sizing))
    return made


def run_all(names: Sequence[str]) -> list[str]:
    """Those that could not be measured, with the reason."""
    failed = []
    for number, name in enumerate(names):
        left = sum(MINUTES[each] for each in names[number:])
        print(f"\n== {name} ({number + 1} of {len(names)}): about {MINUTES[name]} minutes; {left} are left", flush=True)
        try:
            run(name)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name} (exit code {error.returncode})")
        except KeyboardInterrupt:
            print(f"\nInterrupted. To go on: make bench ARGS='{' '.join(names[number:])}'", file=sys.stderr)
            return [*failed, *names[number:]]
    return failed


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "names", nargs="*", choices=[*MINUTES, []], default=[], metavar="NAME", help=", ".join(MINUTES)
    )
    arguments.add_argument("--table", action="store_true", help="only write the tables again")
    given = arguments.parse_args()
    failed = [] if given.table else run_all(given.names or list(MINUTES))
    print(f"\n{write_tables()}")
    if failed:
        print(f"\nnot measured: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
