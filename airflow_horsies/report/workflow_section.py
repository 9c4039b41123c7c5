"""The part of the page on workflows; empty if none ended in the period."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from html import escape

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

COLUMNS = ("Ended", "Success", "Failed", "Expired", "Cancelled", "Duration p50 / p95 / p99", "Nodes", "Completed nodes",
           "Wait p50 / p95 / p99", "Parked")  # fmt: skip
NODE_COLUMNS = ("Node", "Task", "Ran", "Success", "Failed", "Skipped", "Wait p50 / p95", "Run p50 / p95", "Parked")
FAILED_COLUMNS = ("Node", "Task", "Code", "Times", "Workflows", "Completed anyway")
SHORT_PERCENTILES = ("p50", "p95")


def workflow_section(
    days: Sequence[date], workflows: Sequence[Row], nodes: Sequence[Row], failed_nodes: Sequence[Row]
) -> str:
    """Render the rows of WorkflowFigures."""
    whole = [row for row in workflows if row["day"] is None]
    if not whole:
        return ""
    of_days = {row["day"]: row for row in workflows if row["day"] is not None and row["dimension"] == "all"}
    return "".join(
        [
            '<h2 class="part">Workflows</h2>',
            _plots(days, of_days),
            *(
                _table(title, [row for row in whole if row["dimension"] == dimension])
                for title, dimension in (("Workflows by name", "workflow"), ("Workflows by DAG", "dag"))
            ),
            _failed_nodes(failed_nodes),
            _nodes(nodes),
        ]
    )


def _plots(days: Sequence[date], of_day: dict[date, Row]) -> str:
    labels = [f"{day:%a} {day.day}" for day in days]

    def values(name: str) -> list[float | None]:
        return [of_day[day][name] if day in of_day else None for day in days]

    durations = [Series(name, colour, values(f"duration_{name}")) for name, colour in PERCENTILES]
    scale = Scale.over_powers(value for one in durations for value in one.values)
    plots = [
        bars("Workflows that ended", labels, [Series(name, name, values(name)) for name in STATES], number),
        lines("Duration of workflows", labels, durations, seconds, scale),
    ]
    return f'<section><h2>Workflows by day</h2><div class="plots">{"".join(plots)}</div></section>'


def _table(title: str, rows: Sequence[Row]) -> str:
    rows = sorted(rows, key=lambda row: (-row["workflows"], row["value"]))
    cells = [
        [
            f"<code>{escape(row['value'])}</code>",
            escape(number(row["workflows"])),
            bar(row["success_rate"], "completed") + escape(percent(row["success_rate"])),
            *(escape(number(row[name])) for name in ("failed", "expired", "cancelled")),
            escape(percentiles(row, "duration")),
            escape(number(row["nodes"])),
            escape(percent(row["node_success_rate"])),
            escape(percentiles(row, "wait")),
            escape(_parked(row)),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return section(title, (title.split()[-1].capitalize().replace("Dag", "DAG"), *COLUMNS), cells, len(rows))


def _failed_nodes(rows: Sequence[Row]) -> str:
    most = max((row["times"] for row in rows), default=0)
    cells = [
        [
            f"<code>{escape(_path(row))}</code>",
            f"<code>{escape(row['task_name'])}</code>",
            f"<code>{escape(row['error_code'])}</code>",
            bar(row["times"] / most, "failed") + escape(number(row["times"])),
            escape(number(row["workflows"])),
            escape(number(row["tolerated"])),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return section("Innermost failed nodes", FAILED_COLUMNS, cells, len(rows), "No node failed.")


def _nodes(rows: Sequence[Row]) -> str:
    cells = [
        [
            f"<code>{escape(_path(row))}</code>",
            f"<code>{escape(row['task_name'])}</code>",
            escape(number(row["nodes"])),
            bar(row["success_rate"] or 0, "completed") + escape(percent(row["success_rate"])),
            escape(number(row["failed"])),
            escape(number(row["skipped"])),
            escape(percentiles(row, "wait", SHORT_PERCENTILES)),
            escape(percentiles(row, "run", SHORT_PERCENTILES)),
            escape(_parked(row)),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return section("Nodes", NODE_COLUMNS, cells, len(rows), "No workflow had a node that runs a task.")


def _path(row: Row) -> str:
    """The workflow, an inner workflow if there is one, and the node."""
    inside = [] if row["inner_workflow"] in (None, row["workflow"]) else [row["inner_workflow"]]
    return " / ".join([row["workflow"], *inside, row["node_name"]])


def _parked(row: Row) -> str:
    if not row["parked"]:
        return NOTHING
    return f"{number(row['parked'])} for {seconds(row['parked_seconds'])}"
