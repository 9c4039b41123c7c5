"""What goes wrong or is changed, and when: all of it is drawn from one seed, so that it can be drawn again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

MOST_PAUSE = 4.0
# What a submitter asks of Postgres, by the names of its SQL files, in the part of it that asks.
STATEMENTS = {
    "execute": (
        "probe_schema",
        "find_migrations_table",
        "read_version",
        "lock_task_instance",
        "read_newest_life",
        "read_states",
        "find_commands",
        "read_outcomes",
        "take_repair",
        "enqueue_tasks",
        "record_submissions",
        "record_chunks",
        "change_chunks",
        "keep_submissions",
        "move_items",
        "release_submissions",
        "LISTEN",
        "read_tasks",
        "COMMIT",
    ),
    "trigger": ("probe_schema", "LISTEN", "read_states"),
    "resume": ("probe_schema", "read_tasks", "COMMIT"),
    "cancel": ("read_submissions", "read_states", "cancel_task", "record_signal", "COMMIT"),
    "repair": ("lock_task_instance", "request_repair", "COMMIT"),
}
MOMENTS = {
    "execute": ("submitted", "before storing", "while storing", "after storing"),
    "trigger": ("event", "before storing"),
    "resume": ("before storing", "while storing", "after storing"),
    "cancel": ("acknowledged",),
}


def _points() -> list[str]:
    points = [
        f"{role}: {side} {statement}"
        for role, statements in STATEMENTS.items()
        for statement in statements
        for side in (("before", "during", "after") if statement == "COMMIT" else ("before", "after"))
    ]
    return points + [f"{role}: {moment}" for role, moments in MOMENTS.items() for moment in moments]


# Every named point at which a submitter can be killed.
POINTS = _points()
ROUTES = ("workers", "submitters", "airflow", "second_host")
POOLS = ("session", "transaction")

Draw = Callable[[Random], dict[str, Any]]


def _at_a_point(random: Random) -> dict[str, Any]:
    return {"point": random.choice(POINTS), "occurrence": random.choice((1, 1, 1, 2, 3))}


def _any(random: Random) -> dict[str, Any]:
    return {"pick": random.random()}


def _for_a_while(random: Random, *, least: float, most: float, **choices: Collection[Any]) -> dict[str, Any]:
    drawn = {name: random.choice(list(values)) for name, values in choices.items()}
    return {"pick": random.random(), "seconds": round(random.uniform(least, most), 2), **drawn}


def _paused(least: float, most: float, **choices: Collection[Any]) -> Draw:
    return partial(_for_a_while, least=least, most=most, then=("SIGCONT", "SIGCONT", "SIGKILL"), **choices)


def _lasting(least: float, most: float, **choices: Collection[Any]) -> Draw:
    return partial(_for_a_while, least=least, most=most, **choices)


@dataclass(frozen=True)
class Kind:
    """A kind of fault or change: how often it is drawn, what is drawn for one of it, and what it needs."""

    weight: float
    draw: Draw
    needs: str | None = None
    is_change: bool = False


def _change(weight: float, draw: Draw, needs: str | None = None) -> Kind:
    return Kind(weight, draw, needs, is_change=True)


# What follows an edit: a deferred task knows nothing of it, a retry and a clear do.
THEN = ("nothing", "retry", "retry", "clear")
LOCKED_TABLES = (
    "horsies_tasks",
    "horsies_task_history",
    "airflow_horsies.submissions",
    "airflow_horsies.chunks",
    "airflow_horsies.items",
    "airflow_horsies.attempts",
    "airflow_horsies.migrations",
)
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

FAULT_KINDS: Mapping[str, Kind] = {
    "submitter SIGKILL at a named point": Kind(45, _at_a_point),
    "submitter SIGKILL at any time": Kind(12, _any),
    "submitter SIGSTOP": Kind(8, _paused(0.2, 3)),
    "worker child SIGKILL": Kind(6, _any),
    "worker child SIGKILL in a chunk": Kind(9, _any),
    "worker child SIGSTOP": Kind(3, _paused(0.3, 8)),
    "worker SIGKILL": Kind(1.6, _lasting(0, 2, whole=(True, False))),
    "worker SIGSTOP": Kind(1.6, _paused(0.5, 8)),
    "connections cut": Kind(18, _lasting(0, 0, route=ROUTES, all=(True, False))),
    "half-open connections": Kind(5, _lasting(0.5, 4, route=ROUTES)),
    "slow network": Kind(6, _lasting(1, 5, route=ROUTES, delay=(0.02, 0.1, 0.3))),
    "connections refused": Kind(4, _lasting(0.3, 3, route=ROUTES)),
    "backend terminated": Kind(18, _any),
    "backend SIGSTOP": Kind(2, _lasting(0.2, 3)),
    "backend SIGKILL": Kind(1.6, _any),
    "Postgres restart": Kind(1.6, _lasting(0, 1.5)),
    "Postgres immediate shutdown": Kind(1.6, _lasting(0, 1.5)),
    "Postgres SIGKILL": Kind(1.6, _lasting(0, 1.5)),
    "PgBouncer SIGKILL": Kind(1.6, _lasting(0, 2, pool=POOLS), "pgbouncer"),
    "PgBouncer SIGSTOP": Kind(1.6, _paused(0.3, 3, pool=POOLS), "pgbouncer"),
    "host cut off": Kind(3, _lasting(0.3, 6), "second host"),
    "DNS failing": Kind(3, _lasting(0.5, 4), "second host"),
    "clock skew": Kind(3, _lasting(1, 6, skew=(-3600, -90, -7, 7, 90, 3600)), "clock"),
    "full disk for logs": Kind(3, _lasting(1, 5), "small disk"),
    "scheduler SIGKILL": Kind(1.4, _lasting(0, 2), "airflow"),
    "scheduler SIGSTOP": Kind(1.0, _paused(0.5, 8), "airflow"),
    "triggerer SIGKILL": Kind(1.4, _lasting(0, 2), "airflow"),
    "triggerer SIGSTOP": Kind(1.0, _paused(0.5, 8), "airflow"),
    "api-server SIGKILL": Kind(1.4, _lasting(0, 2), "airflow"),
    "api-server SIGSTOP": Kind(1.0, _paused(0.5, 5), "airflow"),
    "dag-processor SIGKILL": Kind(0.8, _lasting(0, 2), "airflow"),
    "dag-processor SIGSTOP": Kind(0.8, _paused(0.5, 8), "airflow"),
    "Airflow task SIGKILL": Kind(4, _lasting(0, 0, victim=("task", "task and supervisor")), "airflow"),
}


CHANGE_KINDS: Mapping[str, Kind] = {
    "retries edited": _change(8, _lasting(0, 0, then=THEN)),
    "priority edited": _change(3, _lasting(0, 0, then=THEN)),
    "arguments edited": _change(9, _lasting(0, 0, then=THEN)),
    "items reordered": _change(7, _lasting(0, 0, then=THEN)),
    "items dropped": _change(6, _lasting(0, 0, then=THEN)),
    "items added": _change(6, _lasting(0, 0, then=THEN)),
    "max_failures edited": _change(6, _lasting(0, 0, then=THEN)),
    "chunk_size edited": _change(9, _lasting(0, 0, then=THEN)),
    "on_clear edited": _change(4, _lasting(0, 0, then=THEN)),
    "repair": _change(10, _lasting(0, 0, items=("all", "all", "one"))),
    "clear": _change(10, _any),
    "clear, its worker dead": _change(5, _any),
    "clear of another task": _change(5, _lasting(0, 0, then=("nothing", "retry"))),
    "mark failed": _change(4, _any),
    "mark success": _change(3, _any),
    "run deleted and made again": _change(6, _any),
    "run queued again": _change(4, _lasting(0, 0, then=("nothing", "retry"))),
    "namespace moved": _change(5, _lasting(0.5, 5)),
    "connection moved to another database": _change(5, _lasting(0.5, 5)),
    "triggerer asleep, another took over": _change(6, _lasting(0.3, 6)),
    "worker drained": _change(5, _any),
    "submitter taken for dead": _change(6, _lasting(0.2, 4)),
    "role's time-out": _change(3, _lasting(0.5, 4, name=TIMEOUTS, milliseconds=(20, 100, 500))),
    "table locked": _change(4, _lasting(0.3, 4, table=LOCKED_TABLES)),
    "connections used up": _change(3, _lasting(0.5, 4)),
    "prune": _change(3, _any),
    "ledger migrated": _change(3, _lasting(0.2, 3, min_writer=("unchanged", "unchanged", "newer"))),
    "Airflow task cleared": _change(2, _lasting(0, 0, task=range(6)), "airflow"),
    "Airflow task marked": _change(1, _lasting(0, 0, task=range(6), state=("success", "failed")), "airflow"),
    "Airflow run deleted and made again": _change(1, _any, "airflow"),
}
KINDS: Mapping[str, Kind] = {**FAULT_KINDS, **CHANGE_KINDS}


@dataclass(frozen=True)
class Fault:
    """One fault or change, as it was drawn."""

    number: int
    pause: float
    kind: str
    drawn: Mapping[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self.drawn.items() if name != "pick")
        return f"#{self.number} {self.kind}" + (f" ({said})" if said else "")


def faults(seed: int, *, pace: float, able: Collection[str], only: Collection[str] = ()) -> Iterator[Fault]:
    """Without end: each kind once in any order, and from then on by weight.

    :param pace: the mean of the pauses between two, in seconds.
    :param able: what this run has, of the things that kinds need.
    :param only: nothing but these kinds.
    """
    random = Random(seed)
    names = [
        name for name, kind in KINDS.items() if (kind.needs is None or kind.needs in able) and name in (only or KINDS)
    ]
    begin = random.sample(names, len(names))
    weights = [KINDS[name].weight for name in names]
    number = 0
    while True:
        number += 1
        kind = begin.pop() if begin else random.choices(names, weights)[0]
        pause = round(min(random.expovariate(1 / pace), MOST_PAUSE * pace), 3)
        yield Fault(number, pause, kind, KINDS[kind].draw(random))
