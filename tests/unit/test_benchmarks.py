"""The tables of the README and of the site are those of the results, and every figure is one that is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import BEGIN, END, PAGE, README, RESULTS, short_table, table
from benchmarks.figures import AIMS, Aim, ratio, take_turns

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
    meta = {**META, "spread": {"enqueue_many_vs_pgqueuer": [0.4, 0.6]}}
    made = table({"enqueue_many_vs_pgqueuer": 0.5, "_meta": meta})
    assert "0.5 | 0.4 to 0.6 | ≥ 1 times: **missed** |" in made
    assert AIMS["enqueue_many_vs_pgqueuer"].bounded_by in made


def test_both_sides_take_turns_and_their_rounds_are_compared() -> None:
    order = []
    said = take_turns({"a": lambda: order.append("a") or 4.0, "b": lambda: order.append("b") or 2.0}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    figure = ratio("a_vs_b", said["a"], said["b"])
    assert (figure.value, figure.low, figure.high) == (2, 2, 2)
