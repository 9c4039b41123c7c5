from __future__ import annotations

import pytest

from airflow_horsies.report.plots import Scale, Series, bars, lines


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.03, 0.05), (1, 1), (7, 10), (11, 20), (21, 25), (100, 100), (101, 200)]
)
def test_a_scale_ends_with_a_round_number(highest: float, top: float) -> None:
    assert Scale.up_to(highest).ticks[-1] == pytest.approx(top)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([], [1, 10]),
        ([None, 0], [1, 10]),
        ([0.02, 3], [0.01, 0.1, 1, 10]),
        ([100], [100, 1000]),
        ([0.001, 90_000], [0.001, 0.1, 10, 1_000, 100_000]),
    ],
)
def test_values_far_apart_are_set_between_powers_of_ten(values: list[float | None], ticks: list[float]) -> None:
    scale = Scale.over_powers(values)
    assert list(scale.ticks) == pytest.approx(ticks)
    assert all(0 <= scale.place(value) <= 1 for value in values if value is not None)


def test_bars_are_stacked_to_their_sum() -> None:
    drawn = bars("Tasks", ["Mon"], [Series("good", "completed", [6]), Series("bad", "failed", [4])], str)
    assert drawn.count("<rect") == 2
    assert "<title>Mon: good 6</title>" in drawn
    assert '<line class="grid"' in drawn


def test_a_gap_breaks_the_line() -> None:
    drawn = lines("Rate", ["a", "b", "c", "d"], [Series("rate", "completed", [1, None, 0.5, 1])], str, Scale((0, 1)))
    assert drawn.count("<polyline") == 2
    assert drawn.count("<circle") == 3


def test_names_are_words() -> None:
    drawn = bars("<b>", ["<i>"], [Series("<u>", "failed", [1])], str)
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert "<u>" not in drawn
