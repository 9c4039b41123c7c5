"""From what an item costs to what a deployment needs: the tables of the sizing page, and an answer for your numbers.

.venv/bin/python -m benchmarks.needs 5e6 [--way chunked] [--cores 16] [--notifying 900] [--days 30] [--peak 3]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import spell

HERE = Path(__file__).parent
SIZING = HERE / "sizing.json"
PAGE = HERE.parent / "docs" / "how-to" / "size-a-deployment.md"
DAY_SECONDS = 86_400
# Fewer are not worth a figure.
LEAST_CORES = 0.1
ITEMS = tuple(10**power for power in range(4, 9))
WAYS = {"task": "a task of its own", "batch": "an item of a batch", "chunked": "an item in a chunk"}
OURS = "airflow_horsies."
NOT_MEASURED = "Not measured yet: `make bench ARGS=sizing` writes this."


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Postgres server.

    :param notifying: transactions with a notification that it commits in a second.
    :param busy: how much of that, and of its cores, may be in use at the peak.
    """

    notifying: float
    cores: int = 16
    busy: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """:param peak: the busiest hour relative to the mean of the day.
    :param days: how long horsies keeps what has ended.
    """

    items: float
    peak: float = 3.0
    days: int = 30

    @property
    def per_second(self) -> float:
        return self.items * self.peak / DAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Cores at the share that may be busy; ``servers`` is how many such servers share the queues."""

    per_second: float
    postgres_cores: float
    worker_cores: float
    notifying: float
    wal_bytes_per_day: float
    disk_bytes: float
    servers: int


def needs(cost: Mapping[str, Any], demand: Demand, server: Server) -> Needs:
    cores = demand.per_second * cost["postgres_seconds"] / server.busy
    notifying = demand.per_second * cost["notifying_commits"]
    return Needs(
        per_second=demand.per_second,
        postgres_cores=cores,
        worker_cores=demand.per_second * cost["worker_seconds"] / server.busy,
        notifying=notifying,
        wal_bytes_per_day=demand.items * cost["wal_bytes"],
        disk_bytes=demand.items * demand.days * sum(each["bytes"] for each in cost["kept"].values()),
        servers=max(1, math.ceil(cores / server.cores), math.ceil(notifying / (server.notifying * server.busy))),
    )


def most_items(cost: Mapping[str, Any], server: Server, peak: float = Demand(items=0).peak) -> float:
    """The items in a day at which one server ends."""
    by_cores = server.cores * server.busy / cost["postgres_seconds"]
    by_commits = server.notifying * server.busy / cost["notifying_commits"]
    return min(by_cores, by_commits) * DAY_SECONDS / peak


def server_of(sizing: Mapping[str, Any], **changed: Any) -> Server:
    """As measured, with as many clients as there were."""
    return Server(**{"notifying": max(sizing["commits_per_second"]["notifying"].values()), **changed})


# -- tables ------------------------------------------------------------------------------------------------------------


def costs_table(sizing: Mapping[str, Any]) -> str:
    columns = [flat(sizing["ways"][way]) for way in WAYS] + [flat(sizing["upstream"])]
    lines = [
        f"| | {' | '.join(WAYS.values())} | a task of horsies alone |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for says, name, factor, unit in ROWS:
        cells = (f"{spell(each[name] * factor)}{unit}" if name in each else "" for each in columns)
        lines.append(f"| {says} | {' | '.join(cells)} |")
    return "\n".join(lines)


ROWS = (
    ("transactions", "transactions", 1.0, ""),
    ("… of which notify", "notifying_commits", 1.0, ""),
    ("waits for the disk", "wal_syncs", 1.0, ""),
    ("statements, each a round trip", "statements", 1.0, ""),
    ("WAL", "wal_bytes", 1e-3, " kB"),
    ("CPU of Postgres", "postgres_seconds", 1e3, " ms"),
    ("CPU of the worker", "worker_seconds", 1e3, " ms"),
    ("rows kept in horsies' tables", "horsies_rows", 1.0, ""),
    ("rows kept in our tables", "our_rows", 1.0, ""),
    ("kept in horsies' tables", "horsies_bytes", 1e-3, " kB"),
    ("kept in our tables", "our_bytes", 1e-3, " kB"),
)


def flat(cost: Mapping[str, Any]) -> dict[str, float]:
    """Statements of all kinds together, and what is kept in horsies' tables and in ours."""
    found = {name: value for name, value in cost.items() if isinstance(value, float | int)}
    found["statements"] = sum(cost["statements"].values())
    for whose, is_ours in (("horsies", False), ("our", True)):
        tables = [each for name, each in cost.get("kept", {}).items() if name.startswith(OURS) is is_ours]
        if "kept" in cost:
            found |= {f"{whose}_{what}": sum(each[what] for each in tables) for what in ("rows", "bytes")}
    return found


def commits_table(sizing: Mapping[str, Any]) -> str:
    rates = sizing["commits_per_second"]
    clients = list(rates["plain"])
    return "\n".join(
        [
            f"| commits per second, by clients | {' | '.join(clients)} |",
            f"|---|{'---:|' * len(clients)}",
            *(
                f"| {says} | {' | '.join(spell(rates[kind][number]) for number in clients)} |"
                for kind, says in (("plain", "without a notification"), ("notifying", "with a notification"))
            ),
        ]
    )


def connections_table(sizing: Mapping[str, Any]) -> str:
    return "\n".join(
        ["| who | connections, at most |", "|---|---:|"]
        + [f"| {says} | {sizing['connections'][name]} |" for name, says in CONNECTIONS.items()]
    )


CONNECTIONS = {
    "worker": "a worker",
    "worker_process": "… and each of its processes",
    "triggerer": "a triggerer, whatever the number of waiting triggers",
    "triggerer_reads": "… and for other reads of its triggers",
    "waiting_task": "a task of Airflow that waits in its worker",
    "api_server_process": "a process of the api-server",
}


def needs_table(sizing: Mapping[str, Any]) -> str:
    server = server_of(sizing)
    lines = [
        "| items a day | each is | per second at the peak | cores of Postgres | notifying commits per second "
        "| WAL a day | disk | cores of workers | servers |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for items in ITEMS:
        for way, says in WAYS.items():
            lines.append(needs_row(sizing["ways"][way], says, Demand(items=items), server))
    return "\n".join(lines)


def needs_row(cost: Mapping[str, Any], says: str, demand: Demand, server: Server) -> str:
    found = needs(cost, demand, server)
    return (
        f"| {demand.items:,.0f} | {says} | {spell(found.per_second)} | {spell_cores(found.postgres_cores)} "
        f"| {spell(found.notifying)} | {gigabytes(found.wal_bytes_per_day)} | {gigabytes(found.disk_bytes)} "
        f"| {spell_cores(found.worker_cores)} | {found.servers} |"
    )


def assumptions(sizing: Mapping[str, Any]) -> str:
    server, demand = server_of(sizing), Demand(items=0)
    ends = ", ".join(f"{spell_many(most_items(sizing['ways'][way], server))} for {says}" for way, says in WAYS.items())
    return (
        f"Assumed: a server of {server.cores} cores that commits {spell(server.notifying)} notifying transactions per "
        f"second, both used by {server.busy:.0%} at the peak; a busiest hour of {demand.peak:g} times the mean; "
        f"{demand.days} days of history; chunks of {sizing['_meta']['chunk_size']}; items that take no time of their "
        f"own. One server ends at so many items a day: {ends}."
    )


def gigabytes(size: float) -> str:
    return f"{spell(size / 1e9)} GB"


def spell_cores(number: float) -> str:
    return spell(number) if number >= LEAST_CORES else f"below {LEAST_CORES:g}"


def spell_many(number: float) -> str:
    """Two digits that matter."""
    power = max(math.floor(math.log10(number)) - 1, 0)
    return f"{round(number / 10**power) * 10**power:,}"


BLOCKS = {
    "costs": costs_table,
    "commits": commits_table,
    "assumptions": assumptions,
    "needs": needs_table,
    "connections": connections_table,
}


def read_sizing() -> dict[str, Any] | None:
    """None if it was never measured."""
    return json.loads(SIZING.read_text()) if SIZING.exists() else None


def with_tables(
    text: str, blocks: Mapping[str, Callable[[Mapping[str, Any]], str]], sizing: Mapping[str, Any] | None
) -> str:
    """A page with each block between its two comments made anew."""
    for name, make in blocks.items():
        begin, end = f"<!-- sizing: {name} -->", "<!-- end of sizing -->"
        before, rest = text.split(begin)
        _, after = rest.split(end, 1)
        made = NOT_MEASURED if sizing is None else make(sizing)
        text = f"{before}{begin}\n\n{made}\n\n{end}{after}"
    return text


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("items", type=float, help="in a day")
    options.add_argument("--way", choices=WAYS, default="task")
    options.add_argument("--cores", type=int, default=16, help="of a server of Postgres")
    options.add_argument("--notifying", type=float, help="transactions with a notification that a server commits")
    options.add_argument("--days", type=int, default=30, help="that horsies keeps what has ended")
    options.add_argument("--peak", type=float, default=3.0, help="the busiest hour relative to the mean")
    given = options.parse_args()
    sizing = read_sizing()
    if sizing is None:
        sys.exit(NOT_MEASURED)
    server = server_of(sizing, cores=given.cores, **({"notifying": given.notifying} if given.notifying else {}))
    demand = Demand(items=given.items, peak=given.peak, days=given.days)
    for name, value in asdict(needs(sizing["ways"][given.way], demand, server)).items():
        print(f"{name:<20} {value:>20,.4g}" if isinstance(value, float) else f"{name:<20} {value:>20,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
