"""The report as a self-contained HTML page without scripts, other files or network access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from html import escape
from importlib.resources import files

from airflow_horsies.report.markup import (
    MAX_ROWS,
    NOTHING,
    PERCENTILES,
    STATES,
    Row,
    bar,
    number,
    percent,
    percentiles,
    seconds,
    section,
)
from airflow_horsies.report.plots import Scale, Series, bars, lines
from airflow_horsies.report.workflow_section import workflow_section

GROUP_COLUMNS = ("Tasks", "Success", "Failed", "Expired", "Cancelled", "Retries", "Healed", "Wait p50 / p95 / p99")
RUN_COLUMN = "Run p50 / p95 / p99"


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From ``start``, inclusive, to ``end``, exclusive."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """A name that can be used for a folder."""
        return "--".join(f"{instant.astimezone(UTC):%Y-%m-%dT%H%M%S}" for instant in (self.start, self.end))

    @property
    def days(self) -> list[date]:
        first, last = self.start.astimezone(UTC).date(), (self.end - timedelta(microseconds=1)).astimezone(UTC).date()
        return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def render_page(
    period: Period,
    *,
    groups: Sequence[Row],
    errors: Sequence[Row],
    slowest: Sequence[Row],
    workers: Sequence[Row],
    workflows: Sequence[Row] = (),
    nodes: Sequence[Row] = (),
    failed_nodes: Sequence[Row] = (),
    made_at: datetime,
) -> str:
    """Render the rows of Figures and WorkflowFigures."""
    whole = [row for row in groups if row["day"] is None]
    of_days = [row for row in groups if row["day"] is not None and row["dimension"] == "all"]
    total = next((row for row in whole if row["dimension"] == "all"), None)
    if total is None:
        content = '<p class="empty">No task ended in this period.</p>'
    else:
        content = "".join(
            [
                _tiles(total, workers),
                _plots(period, of_days),
                _errors([row for row in errors if row["day"] is None and row["dimension"] == "all"]),
                *(
                    _group_table(title, [row for row in whole if row["dimension"] == dimension])
                    for title, dimension in (("DAGs", "dag"), ("Tasks", "task"), ("Queues", "queue"))
                ),
                _days_table(of_days),
                _slowest(slowest),
                _workers(workers),
            ]
        )
    content += workflow_section(period.days, workflows, nodes, failed_nodes)
    return _template().format(
        style=_style(),
        period=escape(f"{_instant(period.start)} to {_instant(period.end)}, UTC"),
        made_at=escape(_instant(made_at)),
        content=content,
    )


@cache
def _template() -> str:
    return _file("page.html")


@cache
def _style() -> str:
    return _file("page.css")


def _file(name: str) -> str:
    return files("airflow_horsies.report").joinpath(name).read_text(encoding="utf-8")


def _tiles(total: Row, workers: Sequence[Row]) -> str:
    bad = total["tasks"] - total["completed"]
    tiles = [
        ("Tasks that ended", number(total["tasks"]), f"{number(bad)} not completed"),
        ("Success rate", percent(total["success_rate"]), f"{number(total['completed'])} completed"),
        ("Retries", number(total["retries"]), f"completed after a retry: {number(total['healed'])}"),
        ("Wait, p95", seconds(total["wait_p95"]), f"median {seconds(total['wait_p50'])}"),
        ("Run time, p95", seconds(total["run_p95"]), f"median {seconds(total['run_p50'])}"),
        ("Workers", number(len({row["worker_id"] for row in workers})), f"{number(total['attempts'])} attempts"),
    ]
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles)}</div>'


def _tile(title: str, figure: str, note: str) -> str:
    return f"<div><h3>{escape(title)}</h3><strong>{escape(figure)}</strong><small>{escape(note)}</small></div>"


def _plots(period: Period, rows: Sequence[Row]) -> str:
    of_day = {row["day"]: row for row in rows}
    days = period.days
    labels = [f"{day:%a} {day.day}" for day in days]

    def values(name: str) -> list[float | None]:
        return [of_day[day][name] if day in of_day else None for day in days]

    plots = [
        bars("Tasks that ended", labels, [Series(name, name, values(name)) for name in STATES], number),
        lines(
            "Success rate",
            labels,
            [Series("of tasks", "completed", values("success_rate"))],
            percent,
            Scale((0, 0.25, 0.5, 0.75, 1)),
        ),
    ]
    for title, what in (("Wait, from sending to the first attempt", "wait"), ("Run time of attempts", "run")):
        series = [Series(name, colour, values(f"{what}_{name}")) for name, colour in PERCENTILES]
        scale = Scale.over_powers(value for one in series for value in one.values)
        plots.append(lines(title, labels, series, seconds, scale))
    return f'<section><h2>By day</h2><div class="plots">{"".join(plots)}</div></section>'


def _errors(rows: Sequence[Row]) -> str:
    most = max((row["times"] for row in rows), default=0)
    cells = [
        [
            f"<code>{escape(row['error_code'])}</code>",
            bar(row["times"] / most, "failed") + escape(number(row["times"])),
            escape(number(row["tasks"])),
            escape(number(row["retried"])),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return section("Error codes", ("Code", "Times", "Tasks", "Retried"), cells, len(rows), "Nothing failed.")


def _group_table(title: str, rows: Sequence[Row]) -> str:
    rows = sorted(rows, key=lambda row: (-row["tasks"], row["value"]))
    cells = [[f"<code>{escape(row['value'])}</code>", *_group_cells(row)] for row in rows[:MAX_ROWS]]
    return section(title, (title[:-1], *GROUP_COLUMNS, RUN_COLUMN), cells, len(rows))


def _days_table(rows: Sequence[Row]) -> str:
    cells = [
        [escape(f"{row['day']:%A, %-d %B}"), *_group_cells(row)] for row in sorted(rows, key=lambda row: row["day"])
    ]
    return section("Days", ("Day", *GROUP_COLUMNS, RUN_COLUMN), cells, len(cells))


def _group_cells(row: Row) -> list[str]:
    times = [escape(percentiles(row, what)) for what in ("wait", "run")]
    counts = [escape(number(row[name])) for name in ("failed", "expired", "cancelled", "retries", "healed")]
    rate = bar(row["success_rate"], "completed") + escape(percent(row["success_rate"]))
    return [escape(number(row["tasks"])), rate, *counts, *times]


def _slowest(rows: Sequence[Row]) -> str:
    longest = max((row["run_seconds"] for row in rows), default=0) or 1
    cells = [
        [
            f"<code>{escape(row['task_name'])}</code>",
            f"<code>{escape(_sender(row))}</code>",
            escape(number(row["attempt"])),
            escape(row["outcome"].lower()),
            bar(row["run_seconds"] / longest, "running") + escape(seconds(row["run_seconds"])),
            escape(_instant(row["started_at"])),
            escape(row["hostname"] or NOTHING),
        ]
        for row in rows
    ]
    columns = ("Task", "Sent by", "Attempt", "Outcome", "Run time", "Started", "Worker's host")
    return section("Slowest attempts", columns, cells, len(cells), "No attempt was made.")


def _sender(row: Row) -> str:
    if row["run_id"] is None:
        return str(row["dag_id"])
    mapped = "" if row["map_index"] is None or row["map_index"] < 0 else f"[{row['map_index']}]"
    return f"{row['dag_id']}.{row['task_id']}{mapped}, {row['run_id']}"


def _workers(rows: Sequence[Row]) -> str:
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        of_worker = sums.setdefault((row["hostname"] or NOTHING, row["worker_id"] or NOTHING), [0, 0, 0])
        for at, name in enumerate(("attempts", "failed", "busy_seconds")):
            of_worker[at] += row[name] or 0
    all_busy = sum(busy for _, _, busy in sums.values()) or 1
    cells = [
        [
            escape(hostname),
            f"<code>{escape(worker_id)}</code>",
            escape(number(attempts)),
            escape(number(failed)),
            escape(seconds(busy)),
            bar(busy / all_busy, "running") + escape(percent(busy / all_busy)),
        ]
        for (hostname, worker_id), (attempts, failed, busy) in sorted(sums.items(), key=lambda item: -item[1][2])
    ]
    columns = ("Host", "Worker", "Attempts", "Not completed", "Busy", "Share of the work")
    return section("Workers", columns, cells[:MAX_ROWS], len(cells), "No worker made an attempt.")


def _instant(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M}"
