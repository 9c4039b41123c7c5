"""The tables of the README and of the site are those of the results, and every figure is one that is known."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__
from benchmarks.__main__ import BEGIN, END, MINUTES, PAGE, README, RESULTS, run_all, short_table, table
from benchmarks.counting import Cost, count_kinds, per_task
from benchmarks.figures import AIMS, Aim, ratio, take_turns
from benchmarks.worker_cost import costs

META: dict[str, Any] = {"date": "2026-01-01", "machine": "a machine", "versions": {"horsies": "1"}}


@pytest.mark.parametrize(("path", "make"), [(PAGE, table), (README, short_table)], ids=["page", "README"])
def test_table_is_that_of_the_results(path: Path, make: Callable[[dict[str, Any]], str]) -> None:
    _, rest = path.read_text().split(BEGIN)
    shown = rest.split(END)[0].strip()
    assert shown == make(json.loads(RESULTS.read_text())), "run 'python -m benchmarks --table'"


def test_results_are_flat_and_known() -> None:
    results = json.loads(RESULTS.read_text())
    meta = results.pop("_meta")
    assert set(results) <= set(AIMS)
    assert all(isinstance(value, int | float) for value in results.values())
    assert set(meta["spread"]) == set(results)


def test_guide_tells_the_measured_hold() -> None:
    measured = json.loads((RESULTS.parent / "deferrals.json").read_text())
    half, most = round(measured["hold_p50_seconds"]), math.ceil(measured["hold_p95_seconds"])
    page = (PAGE.parents[1] / "how-to" / "troubleshooting.md").read_text()
    assert f"up to about {half} seconds, and 95 of 100 for {most} or less" in " ".join(page.split())


@pytest.mark.parametrize(
    ("aim", "value", "is_met"),
    [
        (Aim("", at_least=2), 2, True),
        (Aim("", at_least=2), 1.99, False),
        (Aim("", at_most=2), 2.01, False),
        (Aim(""), 0, True),
    ],
)
def test_aim_is_met_or_not(aim: Aim, value: float, is_met: bool) -> None:
    assert aim.is_met(value) is is_met


def test_figure_that_falls_short_is_marked_and_explained() -> None:
    dates = {"enqueue_many_vs_pgqueuer": "2026-01-01"}
    machines = {"enqueue_many_vs_pgqueuer": "a machine"}
    meta = {**META, "spread": {"enqueue_many_vs_pgqueuer": [0.4, 0.6]}, "dates": dates, "machines": machines}
    made = table({"enqueue_many_vs_pgqueuer": 0.5, "_meta": meta})
    assert "`make bench` on 2026-01-01:" in made
    assert "0.5 | 0.4 to 0.6 | ≥ 1 times: **missed** |" in made
    assert AIMS["enqueue_many_vs_pgqueuer"].bounded_by in made


def test_figures_of_several_days_and_machines_name_them() -> None:
    names = ["submit_vs_upstream_send", "enqueue_vs_upstream_send"]
    dates, machines = dict(zip(names, ["2026-01-03", "2026-01-01"], strict=True)), dict(zip(names, "AB", strict=True))
    meta = {**META, "spread": dict.fromkeys(names, (1, 1)), "dates": dates, "machines": machines}
    made = table({**dict.fromkeys(names, 1), "_meta": meta})
    assert "`make bench` from 2026-01-01 to 2026-01-03: A or B; horsies 1." in made


def test_both_sides_take_turns_and_their_rounds_are_compared() -> None:
    order = []
    said = take_turns({"a": lambda: order.append("a") or 4.0, "b": lambda: order.append("b") or 2.0}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    figure = ratio("a_vs_b", said["a"], said["b"])
    assert (figure.value, figure.low, figure.high) == (2, 2, 2)


def test_cost_of_a_task_is_without_what_an_idle_worker_costs() -> None:
    idle = Cost(transactions=2, statements=4, wal_bytes=100)
    before, after = Cost(1_000, 2_000, 50_000), Cost(1_000 + 1_420, 2_000 + 2_840, 50_000 + 501_000)
    assert per_task(before, after, idle, seconds=10, tasks=100) == Cost(14, 28, 5_000)


def test_every_cost_of_a_task_is_a_known_figure() -> None:
    found = {figure.name: figure.value for figure in costs(Cost(14.5, 28, 5_000), Cost(14, 26, 4_000))}
    assert found.keys() <= AIMS.keys()
    assert found["transactions_added_per_short_task"] == 0.5
    assert (found["transactions_per_short_task"], found["wal_bytes_per_short_task_upstream"]) == (14.5, 4_000)


def test_statements_are_counted_by_kind_for_one_database(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text(
        "ours|LOG:  statement: BEGIN\nours|LOG:  execute <unnamed>: \n\tUPDATE horsies_tasks\n"
        "\tSET status = 'RUNNING'\n"
        "ours|DETAIL:  Parameters: $1 = '1'\nplain|LOG:  statement: COMMIT\n|LOG:  checkpoint starting: time\n"
        "ours|LOG:  statement: ;\nours|LOG:  execute _pg3_0: SELECT 2\n"
    )
    assert count_kinds(log, "ours") == {"begin_commit": 1, "start": 1, "check": 1, "other": 1}
    assert count_kinds(log, "plain") == {"begin_commit": 1}


def test_run_that_is_interrupted_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def run(name: str) -> None:
        begun.append(name)
        if name == "waking":
            raise subprocess.CalledProcessError(3, name)
        if name == "readers":
            raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks.__main__, "run", run)
    failed = run_all(["submitting", "waking", "readers", "sizing"])
    assert begun == ["submitting", "waking", "readers"]
    assert failed == ["waking (exit code 3)", "readers", "sizing"]
    told = capsys.readouterr()
    assert "make bench ARGS='readers sizing'" in told.err
    assert f"== readers (3 of 4): about {MINUTES['readers']} minutes" in told.out


def test_every_benchmark_has_a_module() -> None:
    assert all(Path(RESULTS.parent, f"{name}.py").exists() for name in MINUTES)
