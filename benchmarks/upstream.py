"""What of a short task's cost is that of horsies: the tables of the page about short tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import spell

PAGE = Path(__file__).parents[1] / "docs" / "decisions" / "short-tasks.md"
# Kinds of statements, see benchmarks.counting.
KINDS = {
    "claim": "claim: `horsies_claim`, woken by each new and each finished task",
    "start": "start: `UPDATE … RUNNING`",
    "heartbeat": "start: the first heartbeat, in the same transaction",
    "finalizing": "end in the child: `finalizing_at`",
    "end": "end in the parent: `horsies_complete_task_fused`",
    "begin_commit": "`BEGIN` and `COMMIT` of these",
    "check": "checks of pooled connections before use: `;`, `SELECT 1`, an empty statement",
    "other": "other",
}


def statements_table(sizing: Mapping[str, Any]) -> str:
    plain, ours = sizing["upstream"]["statements"], sizing["ways"]["batch"]["statements"]
    lines = [
        "| statements per task | a plain worker, nothing claimed ahead | our worker with its defaults, a batch |",
        "|---|---:|---:|",
    ]
    for kind, says in KINDS.items():
        lines.append(f"| {says} | {spell(plain.get(kind, 0.0))} | {spell(ours.get(kind, 0.0))} |")
    lines.append(f"| of our own tables: submission, attempt, value | 0 | {spell(ours.get('ours', 0.0))} |")
    lines.append(f"| **all** | {spell(sum(plain.values()))} | {spell(sum(ours.values()))} |")
    return "\n".join(lines)


def costs_text(sizing: Mapping[str, Any]) -> str:
    """One paragraph, with the figures that it rests on."""
    plain, ours = sizing["upstream"], sizing["ways"]["batch"]
    rates = sizing["commits_per_second"]
    alone, many = (rates["notifying"][str(clients)] for clients in (1, 16))
    return (
        f"A task of a plain worker is {spell(plain['transactions'])} transactions for Postgres, of which it waited for "
        f"the disk {spell(plain['wal_syncs'])} times, {spell(plain['wal_bytes'] / 1e3)} kB of WAL and "
        f"{spell(plain['postgres_seconds'] * 1e3)} ms of its CPU. Each change of a state notifies: "
        f"{spell(ours['notifying_commits'])} transactions of a task in a batch. Postgres commits one transaction with "
        f"a notification at a time: {spell(alone)} per second with one client, {spell(many)} with 16. Without a "
        f"notification, 16 clients commit {spell(rates['plain']['16'])} per second."
    )


BLOCKS = {"statements": statements_table, "cost of horsies": costs_text}
