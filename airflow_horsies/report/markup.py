"""Parts of the page: tables, bars, and how figures are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Row = Mapping[str, Any]
MAX_ROWS = 50
NOTHING = "\u2013"
STATES = ("completed", "failed", "expired", "cancelled")
PERCENTILES = (("p50", "running"), ("p95", "expired"), ("p99", "failed"))


def section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], found: int, empty: str = "None.") -> str:
    """Render a table; the cells are already HTML."""
    if not rows:
        return f"<section><h2>{escape(title)}</h2><p>{escape(empty)}</p></section>"
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    more = (
        f"<p>The first {len(rows)} of {number(found)} rows. The Parquet files contain all rows.</p>"
        if found > len(rows)
        else ""
    )
    return (
        f'<section><h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}</section>"
    )


def bar(part: float, colour: str) -> str:
    return f'<svg class="bar" viewBox="0 0 100 8"><rect class="{colour}" width="{100 * part:.1f}" height="8"/></svg>'


def number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def percent(part: float | None) -> str:
    """Shows 100 % only if the part is exactly 1."""
    if part is None:
        return NOTHING
    rounded = f"{100 * part:.1f}"
    if rounded == "100.0" and part < 1:
        return "> 99.9 %"
    return f"{rounded.removesuffix('.0')} %"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    for least, divisor, unit in ((3600, 3600, "h"), (120, 60, "min"), (1, 1, "s")):
        if value >= least:
            return f"{value / divisor:.3g} {unit}" if value / divisor < 1000 else f"{value / divisor:,.0f} {unit}"
    return f"{value * 1000:.3g} ms"


def percentiles(row: Row, what: str, names: Sequence[str] = ("p50", "p95", "p99")) -> str:
    return " / ".join(seconds(row[f"{what}_{name}"]) for name in names)
