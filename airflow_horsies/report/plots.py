"""Small SVG plots in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

WIDTH, HEIGHT = 460, 190
LEFT, RIGHT, TOP, BOTTOM = 60, 8, 10, 22
STEPS = (1, 2, 2.5, 5, 10)
LABELS = 8
TICKS = 4

Unit = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one series by place; None is a gap. ``colour`` is a CSS class."""

    name: str
    colour: str
    values: Sequence[float | None]


def bars(title: str, labels: Sequence[str], series: Sequence[Series], unit: Unit) -> str:
    """Stacked bars."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(labels))]
    frame = _Frame(labels, Scale.up_to(max(totals, default=0)), unit)
    width = frame.step * 0.62
    shapes = []
    for at, label in enumerate(labels):
        below = 0.0
        for one in series:
            value = one.values[at] or 0
            if value:
                top = frame.y(below + value)
                shapes.append(
                    f'<rect class="{one.colour}" x="{frame.x(at) - width / 2:.1f}" y="{top:.1f}" '
                    f'width="{width:.1f}" height="{max(frame.y(below) - top, 0.5):.1f}">'
                    f"<title>{escape(f'{label}: {one.name} {unit(value)}')}</title></rect>"
                )
            below += value
    return _figure(title, series, frame, shapes)


def lines(title: str, labels: Sequence[str], series: Sequence[Series], unit: Unit, scale: Scale) -> str:
    """Lines with a dot at each value."""
    frame = _Frame(labels, scale, unit)
    shapes = []
    for one in series:
        for stretch in _stretches(one.values):
            points = " ".join(f"{frame.x(at):.1f},{frame.y(value):.1f}" for at, value in stretch)
            shapes.append(f'<polyline class="{one.colour}" points="{points}"/>')
            shapes += [
                f'<circle class="{one.colour}" cx="{frame.x(at):.1f}" cy="{frame.y(value):.1f}" r="3">'
                f"<title>{escape(f'{labels[at]}: {one.name} {unit(value)}')}</title></circle>"
                for at, value in stretch
            ]
    return _figure(title, series, frame, shapes)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps a value to a height between the lowest tick (0) and the highest (1)."""

    ticks: Sequence[float]
    is_logarithmic: bool = False

    @classmethod
    def up_to(cls, highest: float) -> Self:
        """A scale from zero to a round number."""
        if highest <= 0:
            return cls((0, 1))
        power = 10.0 ** math.floor(math.log10(highest))
        top = next(step * power for step in STEPS if step * power >= highest)
        return cls((0, top / 2, top))

    @classmethod
    def over_powers(cls, values: Iterable[float | None]) -> Self:
        """A logarithmic scale of powers of ten around the values."""
        known = [value for value in values if value]
        low = math.floor(math.log10(min(known, default=1)))
        high = max(math.ceil(math.log10(max(known, default=1))), low + 1)
        every = -(-(high - low) // TICKS)
        return cls(tuple(10.0**power for power in range(low, high + every, every)), is_logarithmic=True)

    def place(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return (value - low) / (high - low)


class _Frame:
    """The axes: places from left to right, values from bottom to top."""

    def __init__(self, labels: Sequence[str], scale: Scale, unit: Unit) -> None:
        self.labels = labels
        self.scale = scale
        self.unit = unit
        self.step = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)

    def x(self, at: int) -> float:
        return LEFT + self.step * (at + 0.5)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.scale.place(value)

    def shapes(self) -> list[str]:
        shapes = []
        for tick in self.scale.ticks:
            y = self.y(tick)
            shapes.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            shapes.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(self.unit(tick))}</text>')
        every = -(-len(self.labels) // LABELS)
        shapes += [
            f'<text x="{self.x(at):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>'
            for at, label in enumerate(self.labels)
            if at % every == 0
        ]
        return shapes


def _figure(title: str, series: Sequence[Series], frame: _Frame, shapes: Sequence[str]) -> str:
    legend = "".join(f'<span><i class="{one.colour}"></i>{escape(one.name)}</span>' for one in series)
    drawn = "".join([*frame.shapes(), *shapes])
    return (
        f"<figure><figcaption>{escape(title)}<small>{legend}</small></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{drawn}</svg></figure>'
    )


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The runs of values between gaps, with their places."""
    stretches: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            stretches[-1].append((at, value))
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]
