"""Runs every order of a pair and tells what it found."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.interleavings.engine import Choose, Diverged, Order, Stepper, explore, follow, prefer
from tests.interleavings.invariants import digest, violations
from tests.interleavings.pairs import Ended, Pair
from tests.interleavings.stage import NAMES, Stage, without_pauses

SHOWN = 5
REPEATS = 3


@dataclass
class Tried:
    """What the orders of a pair came to."""

    name: str
    release: str
    orders: int = 0
    steps: int = 0
    blocked: int = 0
    deadlocks: int = 0
    rerun: int = 0
    cut: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def count(self, order: Order) -> None:
        self.orders += 1
        self.steps += len(order.choices)
        self.blocked += bool(order.blocked)
        self.deadlocks += bool(order.deadlocks)
        self.rerun += bool(order.rollbacks)
        self.cut += order.was_cut

    def line(self) -> str:
        return (
            f"horsies {self.release}, {self.name}: {self.orders} orders in {self.seconds:.1f} s, "
            f"{len(self.violations)} violations"
        )

    def describe(self) -> str:
        shown = "\n\n".join(self.violations[:SHOWN])
        return f"{self.name} on horsies {self.release}: {len(self.violations)} of {self.orders} orders\n\n{shown}"


def try_pair(stage: Stage, pair: Pair, *, with_cuts: bool, to_first_violation: bool = False) -> Tried:
    """Every order of a pair; with cuts, also those in which the connection of a writer breaks at one of its steps."""
    begun = time.monotonic()
    tried = Tried(pair.name, stage.release)
    if not with_cuts:
        pair = replace(pair, cuts={})
    with without_pauses():
        given = _begin(stage, pair)
        in_turn = [digest(_end(stage, given, _run(stage, pair, given, prefer(name)))) for name in NAMES]
        for order in explore(lambda prefix: _repeat(stage, pair, given, prefix)):
            tried.count(order)
            ended = _end(stage, given, order)
            wrong = violations(pair, ended)
            # A connection that breaks makes a writer meet what it did itself.
            if pair.as_if_in_turn and not order.was_cut and digest(ended) not in in_turn:
                wrong.append("neither of both, one after the other, would have come to that")
            if wrong:
                tried.violations.append(_tell(wrong, order))
                if to_first_violation:
                    break
    tried.seconds = time.monotonic() - begun
    return tried


def describe(tried: Sequence[Tried]) -> str:
    """The figures in a sentence."""
    figures = summary(tried)
    return (
        f"{figures['pairs']} pairs, {figures['orders']:,} orders, {figures['seconds']} seconds, "
        f"{figures['violations']} violations"
    )


def summary(tried: Sequence[Tried]) -> dict[str, Any]:
    """The figures of all pairs, as the file has them."""
    return {
        "pairs": len({one.name for one in tried}),
        "orders": sum(one.orders for one in tried),
        "violations": sum(len(one.violations) for one in tried),
        "seconds": round(sum(one.seconds for one in tried), 1),
        "by_pair": [
            {
                "pair": one.name,
                "horsies": one.release,
                "orders": one.orders,
                "steps": one.steps,
                "orders_with_a_wait": one.blocked,
                "orders_with_a_deadlock": one.deadlocks,
                "orders_with_a_rerun": one.rerun,
                "orders_with_a_lost_connection": one.cut,
                "violations": len(one.violations),
                "seconds": round(one.seconds, 2),
            }
            for one in tried
        ],
    }


def _begin(stage: Stage, pair: Pair) -> Any:
    if pair.from_ledger is None:
        return stage.begin(pair.given)
    return stage.begin_with_ledger(pair.from_ledger, pair.given)


def _repeat(stage: Stage, pair: Pair, given: Any, prefix: Sequence[str]) -> Order:
    """The order that begins with these choices; once more where something else, such as autovacuum, came between."""
    for _ in range(REPEATS):
        try:
            return _run(stage, pair, given, follow(prefix))
        except Diverged as error:
            print(error, file=sys.stderr)
    return _run(stage, pair, given, follow(prefix))


def _run(stage: Stage, pair: Pair, given: Any, choose: Choose) -> Order:
    stage.reset()
    for actor in stage.actors.values():
        actor.begin(knows_ledger=pair.knows_ledger, joined=pair.joined)
    bodies = {"a": pair.a, "b": pair.b}
    writers = {name: _writer(stage, name, bodies[name], given) for name in NAMES}
    gates = [actor.gate for actor in stage.actors.values()]
    return Stepper(stage.watcher, gates, cuts=pair.cuts).run(writers, choose)


def _writer(stage: Stage, name: str, body: Any, given: Any) -> Any:
    return lambda gate: body(stage.actors[name], stage, given)


def _end(stage: Stage, given: Any, order: Order) -> Ended:
    return Ended(order=order, found=stage.read(), given=given)


def _tell(wrong: Sequence[str], order: Order) -> str:
    steps = "\n".join(f"    {step}" for step in order.trace)
    return "\n".join(f"  {sentence}" for sentence in wrong) + f"\n{steps}"
