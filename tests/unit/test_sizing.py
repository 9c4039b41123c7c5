"""What a deployment needs is computed from what was measured, and the pages show what is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import needs, upstream
from benchmarks.counting import KINDS
from benchmarks.needs import DAY_SECONDS, WAYS, Demand, Server
from benchmarks.sizing import Kept, kept

COST = {
    "transactions": 10.0,
    "notifying_commits": 4.0,
    "wal_syncs": 5.0,
    "wal_bytes": 5_000.0,
    "postgres_seconds": 0.004,
    "worker_seconds": 0.008,
    "statements": {"claim": 1.5, "end": 1.0},
    "kept": {
        "horsies_task_history": {"rows": 1.0, "bytes": 1_000.0},
        "airflow_horsies.submissions": {"rows": 1.0, "bytes": 500.0},
    },
}
SIZING: dict[str, Any] = {
    "commits_per_second": {kind: {"1": 900.0, "4": 950.0, "16": 1_000.0} for kind in ("plain", "notifying")},
    "ways": {"task": COST, "batch": COST, "chunked": COST | {"notifying_commits": 0.08, "postgres_seconds": 0.0001}},
    "upstream": {name: value for name, value in COST.items() if name not in ("kept", "notifying_commits")},
    "connections": dict.fromkeys(needs.CONNECTIONS, 5),
    "_meta": {"chunk_size": 50},
}
SERVER = Server(notifying=1_000, cores=16, busy=0.5)


@pytest.mark.parametrize(
    ("page", "blocks"), [(needs.PAGE, needs.BLOCKS), (upstream.PAGE, upstream.BLOCKS)], ids=["guide", "decision"]
)
def test_page_shows_what_was_measured(page: Path, blocks: Mapping[str, Any]) -> None:
    text = page.read_text()
    assert text == needs.with_tables(text, blocks, needs.read_sizing()), "run 'python -m benchmarks --table'"
    assert re.findall(r"<!-- sizing: (.+) -->", text) == list(blocks)


def test_needs_follow_from_the_costs() -> None:
    # Ten a second on average, thirty at the peak.
    found = needs.needs(COST, Demand(items=10 * DAY_SECONDS, peak=3, days=30), SERVER)
    assert found.per_second == 30
    assert found.postgres_cores == pytest.approx(30 * 0.004 / 0.5)
    assert found.worker_cores == pytest.approx(30 * 0.008 / 0.5)
    assert found.notifying == 120
    assert found.wal_bytes_per_day == 10 * DAY_SECONDS * 5_000
    assert found.disk_bytes == 10 * DAY_SECONDS * 30 * 1_500
    assert found.servers == 1


@pytest.mark.parametrize(
    ("changed", "bound"),
    [({"notifying_commits": 8.0}, 1_000 / 2 / 8), ({"postgres_seconds": 0.5}, 16 / 2 / 0.5)],
    ids=["the disk", "the cores"],
)
def test_one_server_ends_at_what_is_used_up_first(changed: dict[str, float], bound: float) -> None:
    cost = COST | changed
    most = needs.most_items(cost, SERVER, peak=3)
    assert most == pytest.approx(bound * DAY_SECONDS / 3)
    assert needs.needs(cost, Demand(items=most * 0.99), SERVER).servers == 1
    assert needs.needs(cost, Demand(items=most * 1.01), SERVER).servers == 2


def test_tables_have_every_way_and_every_size() -> None:
    shown = needs.needs_table(SIZING).splitlines()
    assert len(shown) == 2 + len(needs.ITEMS) * len(WAYS)
    assert shown[-1] == "| 100,000,000 | an item in a chunk | 3,472 | 0.694 | 278 | 500 GB | 4,500 GB | 55.6 | 1 |"
    assert "| kept in our tables | 0.5 kB | 0.5 kB | 0.5 kB |  |" in needs.costs_table(SIZING)
    assert "| with a notification | 900 | 950 | 1,000 |" in needs.commits_table(SIZING)
    assert "3,600,000 for a task of its own" in needs.assumptions(SIZING)


def test_page_without_a_measurement_says_so() -> None:
    text = "<!-- sizing: costs -->\n\nold\n\n<!-- end of sizing --> rest"
    made = needs.with_tables(text, {"costs": needs.costs_table}, None)
    assert needs.NOT_MEASURED in made and "old" not in made and made.endswith(" rest")


def test_every_kind_of_statement_is_told() -> None:
    shown = upstream.statements_table(SIZING)
    assert set(upstream.KINDS) | {"ours"} == {*KINDS, "other"}
    assert "`horsies_claim`, woken by each new and each finished task | 1.5 | 1.5 |" in shown
    assert "| **all** | 2.5 | 2.5 |" in shown
    assert "900 per second with one client, 1,000 with 16" in upstream.costs_text(SIZING)


def test_only_what_grows_with_the_items_is_kept() -> None:
    before = {"horsies_tasks": (5, 80_000), "history": (100, 8_000), "workers": (1, 8_000)}
    after = {"horsies_tasks": (0, 160_000), "history": (2_100, 2_008_000), "workers": (2, 8_000)}
    assert kept(before, after, 2_000) == {"history": Kept(1.0, 1_000.0)}
