"""Rules broken on purpose, in the processes of light submitters or of workers: the trials must notice each.

python -m tests.chaos.broken
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_horsies import airflow_instance, operators, triggers
from airflow_horsies.airflow_instance import InstanceState
from airflow_horsies.core.batch import NO_NUMBER
from airflow_horsies.db.statement import sql_text
from airflow_horsies.ledger import batches, cancelling, repairing, submitting
from airflow_horsies.models import latest_task_ids
from airflow_horsies.operators import base as task_operator
from airflow_horsies.operators import releasing
from airflow_horsies.triggers import base, sensing
from tests.chaos.broken_worker import WORKER_RULES

IDENTITY = ("namespace", "life", "size", "max_failures")


def adopt_by_position() -> None:
    """Items are matched by where they stand, whatever they are."""

    def match(wire: Any, newest: Any, items: Any, tasks: Sequence[Any]) -> Any:
        yield from ()
        return {row["position"]: row for row in newest if row["position"] < len(tasks)}

    def find_held(wire: Any, newest: Any, sender: Any) -> Any:
        yield from ()
        held = {}
        for row in newest:
            alone = row["position"] if row["place"] is None else row["place"]
            for number, place in enumerate(row["places"] or [alone]):
                if 0 <= place < len(sender.items):
                    held[sender.items[place]] = batches.Held(row, number if row["places"] else NO_NUMBER, row["round"])
        return held

    _replace(submitting, "match_items", match)
    _replace(batches, "find_held", find_held)


def life_from_retries() -> None:
    """The life is counted by what the code says of retries at the moment."""
    recorded = airflow_instance.airflow_try

    def tried(context: Any, **more: Any) -> Any:
        known = recorded(context, **more)
        return replace(known, max_tries=max(known.max_tries - context["ti"].task.retries, 0), clear_number=0)

    _replace(task_operator, "airflow_try", tried)


def kill_without_asking() -> None:
    """Every kill is a person's wish."""
    wished = InstanceState(exists=True, state="failed")

    async def read_state_async(_: Any) -> InstanceState:
        return wished

    _replace(releasing, "read_state", lambda _: wished)
    for module in (base, sensing):
        _replace(module, "read_state_async", read_state_async)


def event_without_identity() -> None:
    """What waits and what resumes find their tasks by what code and settings say at the moment."""

    def stripped(make: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        return lambda *args, **more: {name: kept for name, kept in make(*args, **more).items() if name not in IDENTITY}

    for trigger in (triggers.HorsiesTrigger, triggers.HorsiesBatchTrigger):
        _replace(trigger, "_payload", stripped(trigger._payload))
    _replace(triggers.HorsiesTrigger, "_common", stripped(triggers.HorsiesTrigger._common))

    def find_sent_ids(self: Any, client: Any, event: Any) -> list[str]:
        return latest_task_ids(client.read_submissions(self._instance))

    _replace(operators.HorsiesBatchOperator, "_find_sent_ids", find_sent_ids)

    async def find_task_ids(self: Any, client: Any) -> list[str]:
        return latest_task_ids(await client.read_submissions(self._batch))

    _replace(triggers.HorsiesBatchTrigger, "_find_task_ids", find_task_ids)
    _replace(task_operator.HorsiesTaskOperator, "_is_unfinished", lambda self, client, tasks: False)


def clear_keeps() -> None:
    """Every clear is taken for a repair."""
    _replace(repairing, "repairs_by_setting", lambda *_: True)


def no_lock() -> None:
    """Nobody waits for anybody who submits for the same task instance."""
    without = "SELECT %(key)s::text AS key, %(idle_seconds)s::integer AS idle"

    def text(package: str, name: str) -> str:
        return without if name == "lock_task_instance" else sql_text(package, name)

    _replace(cancelling, "sql_text", text)


def _replace(module: Any, name: str, value: Any) -> None:
    if not hasattr(module, name):
        raise AssertionError(f"{module} has no {name} to break")
    setattr(module, name, value)


RULES: Mapping[str, Callable[[], None]] = {
    "adopt-by-position": adopt_by_position,
    "life-from-retries": life_from_retries,
    "kill-without-asking": kill_without_asking,
    "event-without-identity": event_without_identity,
    "clear-keeps": clear_keeps,
    "no-lock": no_lock,
}
ALL_RULES = (*RULES, *WORKER_RULES)


def apply(rule: str | None) -> None:
    if rule in RULES:
        RULES[rule]()


@dataclass(frozen=True)
class Trial:
    """What is drawn where a rule is broken, and the rules of the trials of which one must be found violated."""

    kinds: Sequence[str]
    found: Sequence[str]
    count: int = 60


TRIALS: Mapping[str, Trial] = {
    "adopt-by-position": Trial(
        ("items reordered", "arguments edited"), ("a value belongs to the arguments asked for",)
    ),
    "life-from-retries": Trial(
        ("retries edited", "clear, its worker dead", "clear"), ("an edit does not run again", "a clear runs again")
    ),
    "kill-without-asking": Trial(
        ("worker drained", "triggerer asleep, another took over"), ("nothing is cancelled without a wish",)
    ),
    "event-without-identity": Trial(("namespace moved",), ("no success over work that did not complete",)),
    "clear-keeps": Trial(("clear",), ("a clear runs again",)),
    "chunk-from-its-start": Trial(
        ("worker child SIGKILL in a chunk",), ("a recorded item does not run again",), count=15
    ),
}
# What the trials rarely meet, as derived ids and keys of tables stand behind the lock: all orders of two writers do.
BY_ORDERS: Mapping[str, str] = {
    "no-lock": "tests/interleavings/test_interleavings.py::test_submitting_without_its_lock_is_noticed"
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Each rule in a short run of its own; how many were not noticed."""
    rules = arguments or sys.argv[1:] or list(ALL_RULES)
    return sum(not (_by_orders(rule) if rule in BY_ORDERS else _by_trials(rule)) for rule in rules)


def _by_trials(rule: str) -> bool:
    trial = TRIALS[rule]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "chaos.json"
        command = [sys.executable, "-W", "ignore", "-m", "tests.chaos", "--no-airflow", "--break", rule, "--seed=7"]
        command += [f"--faults={trial.count}", "--pace=0.5", f"--out={out}"]
        command += [f"--only={kind}" for kind in trial.kinds]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        violated = json.loads(out.read_text())["violated"] if out.exists() else {}
    noticed = any(name.startswith(tuple(trial.found)) for name in violated)
    found = ", ".join(f"{name} ({count})" for name, count in violated.items()) or "nothing"
    _tell(rule, noticed, found, ended.stdout)
    return noticed


def _by_orders(rule: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", BY_ORDERS[rule]]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    _tell(rule, ended.returncode == 0, "in the interleavings", ended.stdout)
    return ended.returncode == 0


def _tell(rule: str, noticed: bool, found: str, output: str) -> None:
    print(f"{rule:24} {'caught' if noticed else 'MISSED'}: {found}", flush=True)
    if not noticed:
        print(output[-3000:])


if __name__ == "__main__":
    sys.exit(main())
