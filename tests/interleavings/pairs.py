"""The pairs of writers, the state each pair begins with, and what must hold after each of its orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_horsies.client.ledger import change_base_url, migrate_ledger
from airflow_horsies.exceptions import NamespaceTaken, StaleSubmission, TaskNotFound
from airflow_horsies.ledger.pruning import PruneRule, prune_page
from airflow_horsies.ledger.schema import latest_version
from airflow_horsies.models import AirflowTry, CancelOutcome, SubmitOutcome, SubmitResult, TaskInstanceKey, TaskState
from tests.integration.releases import IN_PLACE, MOVED
from tests.interleavings.engine import Order
from tests.interleavings.stage import ADDRESS, Actor, Found, Stage

INSTANCE = TaskInstanceKey(dag_id="sales", run_id="scheduled__1", task_id="load")
OTHER = TaskInstanceKey(dag_id="sales", run_id="scheduled__1", task_id="other")
OLD_RUN = datetime(2026, 1, 1, tzinfo=UTC)
NEW_RUN = datetime(2026, 1, 2, tzinfo=UTC)
NEW_ADDRESS = "https://airflow.example"
GIVEN_ID = "5d1a0f0e-7f0c-4b39-9c58-0a8f3f0c6f51"
KEY = "one-of-a-kind"
# Whether there are tables, and of which version, is asked in two statements.
VERSION_READ = frozenset({"read_version"})
# Only one prunes at a time, and nobody else takes that lock.
PRUNING_BEGUN = frozenset({"limit_pruning", "lock_pruning"})
# What a submitter reads of its own task instance while it holds its lock, and what follows from the step before.
OWN_READS = VERSION_READ | {
    "read_newest_life",
    "moved/find_commands",
    "in_place/find_commands",
    "find_cancel_requests",
    "find_shared",
    "lock_keys",
    "record_signal",
}
# What is read of shared tasks while their lock is held: both writers take that one.
SHARED_READS = OWN_READS | {"moved/read_states", "find_wanted_by_others"}
# Who finds no task where one was looks at the schema and does all of it once more.
LOOKED_AGAIN = frozenset({"probe_schema", "lock_task_instance", "moved/find_commands", "in_place/find_commands"})
MADE_LONG_AGO = "UPDATE airflow_horsies.submissions SET submitted_at = now() - interval '30 days'"
PAST_GOOD_UNTIL = "UPDATE horsies_tasks SET good_until = now() - interval '1 minute'"
PAST_RETENTION = "DELETE FROM horsies_tasks"


@dataclass(frozen=True)
class Sent:
    """What a submission asked for, and what it was told."""

    instance: TaskInstanceKey
    works: tuple[str, ...]
    results: tuple[SubmitResult, ...]

    @property
    def ids(self) -> list[str]:
        return [result.task_id for result in self.results]


@dataclass(frozen=True)
class Ended:
    """One order at its end."""

    order: Order
    found: Found
    given: Any

    def value(self, name: str) -> Any:
        return self.order.outcomes[name].value

    def error(self, name: str) -> Exception | None:
        return self.order.outcomes[name].error


Check = Callable[[Ended], Iterator[str]]


def nothing_more(ended: Ended) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """
    Two writers that may meet.

    :param given: makes the start state; what it returns both writers are handed.
    :param from_ledger: the version of an empty ledger the orders begin with; only tasks are given then.
    :param may_raise: what a writer may be refused with, by its name.
    :param may_cancel: the ids of tasks that somebody wished to be cancelled.
    :param forgets: submissions of tasks that horsies no longer keeps may be there.
    :param loose: tasks that no task instance sent may be there.
    :param deadlocks: both may come to wait for each other; one of them is run again then.
    :param as_if_in_turn: every order comes to what one of both, after the other, would have come to.
    :param joined: statements that are one step with the one before them, where the orders would be too many.
    :param is_long: too many orders for 'make test'; 'make interleavings' and 'make test-slow' run them.
    :param in_both: 'make test' tries it on both generations, and not on the newer one only.
    :param cuts: how often the connection of a writer breaks, by its name, at each of its steps in turn.
    """

    name: str
    a: Callable[[Actor, Stage, Any], Any]
    b: Callable[[Actor, Stage, Any], Any]
    given: Callable[[Stage], Any] = lambda stage: None
    check: Check = nothing_more
    releases: Sequence[str] = (IN_PLACE, MOVED)
    from_ledger: int | None = None
    knows_ledger: bool = True
    may_raise: Mapping[str, tuple[type[Exception], ...]] = field(default_factory=dict)
    may_cancel: Callable[[Ended], set[str]] = lambda ended: set()
    forgets: bool = False
    loose: bool = False
    deadlocks: bool = False
    as_if_in_turn: bool = True
    joined: frozenset[str] = frozenset()
    is_long: bool = False
    in_both: bool = False
    cuts: Mapping[str, int] = field(default_factory=dict)


# -- writers ----------------------------------------------------------------------------------------------------------


def submit(
    hook: Any,
    stage: Stage,
    *works: str,
    instance: TaskInstanceKey = INSTANCE,
    clears: int = 0,
    try_number: int = 1,
    run: datetime = OLD_RUN,
    key: str | None = None,
) -> Sent:
    """A task instance submits these works; the one place that knows how."""
    tried = make_try(try_number, clears, run)
    results = hook.submit_tasks([stage.spec(work, idempotency_key=key) for work in works], instance, tried)
    return Sent(instance, works, tuple(results))


def make_try(try_number: int = 1, clears: int = 0, run: datetime = OLD_RUN) -> AirflowTry:
    return AirflowTry(
        try_number=try_number + clears,
        max_tries=2 + clears,
        clear_number=clears,
        run_started_at=run,
        run_key=run.isoformat(),
    )


def submitting(*works: str, **fields: Any) -> Callable[[Actor, Stage, Any], Sent]:
    return lambda actor, stage, given: submit(actor.hook, stage, *works, **fields)


def submitting_from(address: str, *works: str, **fields: Any) -> Callable[[Actor, Stage, Any], Sent]:
    def run(actor: Actor, stage: Stage, given: Any) -> Sent:
        actor.place(address)
        return submit(actor.hook, stage, *works, **fields)

    return run


def cancelling(actor: Actor, stage: Stage, sent: Sent) -> Any:
    return actor.hook.cancel_tasks(sent.ids)


def releasing(actor: Actor, stage: Stage, sent: Sent) -> Any:
    """The task instance that sent them no longer wants them."""
    return actor.hook.client.release_tasks(sent.ids, sent.instance)


def timing_out(actor: Actor, stage: Stage, sent: Sent) -> Any:
    """The first try gives up of its own accord."""
    return actor.hook.client.release_tasks(sent.ids, sent.instance, try_number=1)


def releasing_by_other(actor: Actor, stage: Stage, sent: Sent) -> Any:
    return actor.hook.client.release_tasks(sent.ids, OTHER)


def cancelling_backwards(actor: Actor, stage: Stage, sent: Sent) -> Any:
    return actor.hook.cancel_tasks(reversed(sent.ids))


def completing(actor: Actor, stage: Stage, sent: Sent) -> str:
    return actor.upstream().complete(sent.ids[0])


def failing(actor: Actor, stage: Stage, sent: Sent) -> str:
    return actor.upstream().fail(sent.ids[0])


def retrying(actor: Actor, stage: Stage, sent: Sent) -> str:
    return actor.upstream().retry(sent.ids[0])


def expiring(actor: Actor, stage: Stage, sent: Sent) -> int:
    return actor.upstream().expire()


def claiming(actor: Actor, stage: Stage, sent: Sent) -> int:
    return actor.upstream().claim()


def pruning(actor: Actor, stage: Stage, given: Any) -> int:
    """One page, which is one transaction."""
    page = actor.hook.client.write(lambda wire: prune_page(wire, PruneRule(), after=None))
    return page.submissions


def migrating(actor: Actor, stage: Stage, given: Any) -> int:
    return len(migrate_ledger(actor.hook.client))


def moving(actor: Actor, stage: Stage, given: Any) -> int:
    return change_base_url(actor.hook.client, old=ADDRESS, new=NEW_ADDRESS)


def enqueueing(**fields: Any) -> Callable[[Actor, Stage, Any], str]:
    return lambda actor, stage, given: actor.hook.enqueue_task(stage.spec("x", **fields))


# -- start states -----------------------------------------------------------------------------------------------------


def pending(*works: str, **fields: Any) -> Callable[[Stage], Sent]:
    return lambda stage: submit(stage.plain, stage, *works, **fields)


def running(*works: str, **fields: Any) -> Callable[[Stage], Sent]:
    def make(stage: Stage) -> Sent:
        sent = submit(stage.plain, stage, *works, **fields)
        worker = stage.worker()
        for task_id in sent.ids:
            worker.start(task_id)
        worker.connection.close()
        return sent

    return make


def shared(stage: Stage) -> Sent:
    """Both task instances wait for the one task of a key."""
    sent = running("x", key=KEY)(stage)
    assert submit(stage.plain, stage, "x", instance=OTHER, key=KEY).ids == sent.ids
    return sent


def past_good_until(stage: Stage) -> Sent:
    sent = submit(stage.plain, stage, "x")
    stage.watcher.execute(PAST_GOOD_UNTIL)
    return sent


def past_retention(stage: Stage) -> Sent:
    sent = submit(stage.plain, stage, "x")
    stage.watcher.execute(MADE_LONG_AGO)
    stage.watcher.execute(PAST_RETENTION)
    return sent


# -- what must hold after an order ------------------------------------------------------------------------------------


def one_live_task_of_each(*works: str) -> Check:
    def check(ended: Ended) -> Iterator[str]:
        live = sorted(task.work for task in ended.found.live.values())
        if live != sorted(works):
            yield f"live are tasks of {live}, and asked for was {sorted(works)}"

    return check


def both_got_the_same(ended: Ended) -> Iterator[str]:
    a, b = ended.value("a"), ended.value("b")
    if a.ids != b.ids:
        yield f"a got {a.ids}, and b got {b.ids}"


def all_of(*checks: Check) -> Check:
    def check(ended: Ended) -> Iterator[str]:
        for each in checks:
            yield from each(ended)

    return check


def state_of(ended: Ended) -> TaskState:
    return ended.found.tasks[ended.given.ids[0]].state


def either_cancelled_or(state: TaskState) -> Check:
    """Whoever came first has won, and both know it; running code is told to stop only where it was cancelled."""

    def check(ended: Ended) -> Iterator[str]:
        (task_id,) = ended.given.ids
        outcome, found = ended.value("a")[task_id], state_of(ended)
        right = {(CancelOutcome.CANCELLED, TaskState.CANCELLED), (CancelOutcome.ALREADY_FINISHED, state)}
        if ended.order.was_cut:
            right.add((CancelOutcome.ALREADY_CANCELLED, TaskState.CANCELLED))
        if (outcome, found) not in right:
            yield f"cancelling said {outcome}, and the task is {found}"
        applied = ended.value("b") == "APPLIED"
        if applied == (found is TaskState.CANCELLED):
            yield f"the worker was told {ended.value('b')}, and the task is {found}"
        signalled = (task_id, "CANCEL") in ended.found.signals
        if signalled != (found is TaskState.CANCELLED):
            yield f"the task is {found}, and its code was {'' if signalled else 'not '}told to stop"

    return check


def is_cancelled(ended: Ended) -> Iterator[str]:
    if state_of(ended) is not TaskState.CANCELLED:
        yield f"the task is {state_of(ended)} though somebody wished it cancelled"


def reattached_or_next_round(ended: Ended) -> Iterator[str]:
    """What ended badly after the retry has looked is the retry's to see; before that, it sends the next round."""
    (result,), (first,) = ended.value("a").results, ended.given.ids
    if result.task_id == first:
        if result.outcome is not SubmitOutcome.REATTACHED:
            yield f"the retry {result.outcome} the first task"
        if ended.found.live.keys() - {first}:
            yield "the retry reattached, and another task is live"
    elif result.task_id not in ended.found.live or first in ended.found.live:
        yield "the retry sent the next round, and not that one alone is live"


def never_sent_again(ended: Ended) -> Iterator[str]:
    (result,), (first,) = ended.value("a").results, ended.given.ids
    if result.task_id != first or len(ended.found.tasks) != 1:
        yield f"what completed was sent again: {result.outcome}"


def new_life_is_live(ended: Ended) -> Iterator[str]:
    (result,), (first,) = ended.value("a").results, ended.given.ids
    meets_itself = ended.order.was_cut and result.outcome is SubmitOutcome.REATTACHED
    if result.task_id == first or not (result.outcome is SubmitOutcome.SENT or meets_itself):
        yield f"after the clear, {result.outcome} {result.task_id}"
    if set(ended.found.live) != {result.task_id}:
        yield f"live are {sorted(ended.found.live)}, and the cleared task instance was told {result.task_id}"


def sharer_is_served(ended: Ended) -> Iterator[str]:
    """Who shares a task by its key keeps it, or has one of its own."""
    (result,) = ended.value("a").results
    if result.task_id not in ended.found.live:
        state = ended.found.tasks[result.task_id].state
        yield f"the other task instance was told of {result.task_id}, which is {state}"


def edited_work_is_live(ended: Ended) -> Iterator[str]:
    (result,) = ended.value("a").results
    if result.outcome is not SubmitOutcome.SENT or set(ended.found.live) != {result.task_id}:
        yield f"after the edit, {result.outcome} {result.task_id}, and live are {sorted(ended.found.live)}"


def given_ids(ended: Ended) -> set[str]:
    return set(ended.given.ids)


def everything_sent(ended: Ended) -> set[str]:
    return set(ended.found.tasks)


def of_first_life(ended: Ended) -> set[str]:
    return {row["horsies_task_id"] for row in ended.found.submissions if row["clear_number"] == 0}


def of_work(work: str) -> Callable[[Ended], set[str]]:
    return lambda ended: {task_id for task_id, task in ended.found.tasks.items() if task.work == work}


def newest_life_is_live(ended: Ended) -> Iterator[str]:
    clears = {row["horsies_task_id"]: row["clear_number"] for row in ended.found.submissions}
    live = sorted(clears[task_id] for task_id in ended.found.live if task_id in clears)
    if live != [1]:
        yield f"after one clear, tasks sent after {live} clears are live"


def one_task_for_both(ended: Ended) -> Iterator[str]:
    if len(ended.found.tasks) != 1:
        yield f"{len(ended.found.tasks)} tasks were sent under one key or id"


def ledger_is_whole(ended: Ended) -> Iterator[str]:
    if ended.found.versions != tuple(range(1, latest_version() + 1)):
        yield f"the ledger has the migrations {ended.found.versions}"


def moved_as_a_whole(ended: Ended) -> Iterator[str]:
    """No task instance is left with submissions at both addresses."""
    addresses = {row["base_url"] for row in ended.found.submissions}
    if len(addresses) != 1 and ended.error("b") is None:
        yield f"the submissions are at {sorted(addresses)}"


PAIRS = (
    Pair(
        name="submit and submit",
        in_both=True,
        a=submitting("x"),
        b=submitting("x"),
        check=all_of(one_live_task_of_each("x"), both_got_the_same),
        cuts={"a": 1},
    ),
    Pair(
        name="submit and submit of the next round",
        given=pending("x"),
        a=submitting("x", try_number=2),
        b=submitting("x", try_number=3),
        check=one_live_task_of_each("x"),
        may_raise={"a": (StaleSubmission,)},
    ),
    Pair(
        name="submit and time-out of the try before",
        given=pending("x"),
        a=submitting("x", try_number=2),
        b=timing_out,
        check=one_live_task_of_each("x"),
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="submit and cancel",
        joined=VERSION_READ,
        in_both=True,
        given=pending("x"),
        a=submitting("x", try_number=2),
        b=cancelling,
        check=all_of(reattached_or_next_round, is_cancelled),
        may_cancel=given_ids,
    ),
    Pair(
        name="cancel and complete",
        joined=VERSION_READ,
        in_both=True,
        given=running("x"),
        a=cancelling,
        b=completing,
        check=either_cancelled_or(TaskState.COMPLETED),
        may_cancel=given_ids,
        cuts={"a": 1},
    ),
    Pair(
        name="release and complete",
        in_both=True,
        given=running("x"),
        a=releasing,
        b=completing,
        check=either_cancelled_or(TaskState.COMPLETED),
        may_cancel=given_ids,
        joined=VERSION_READ,
    ),
    Pair(
        name="release and retry",
        given=running("x"),
        a=submitting("x", try_number=2),
        b=releasing,
        is_long=True,
        check=all_of(reattached_or_next_round, is_cancelled),
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="cancel and fail",
        # A worker that records a failure locks the row first, and upstream's own functions lock the id first.
        deadlocks=True,
        joined=VERSION_READ,
        in_both=True,
        given=running("x"),
        a=cancelling,
        b=failing,
        check=either_cancelled_or(TaskState.FAILED),
        may_cancel=given_ids,
    ),
    Pair(
        name="cancel and retry of the worker",
        joined=VERSION_READ,
        given=running("x"),
        a=cancelling,
        b=retrying,
        check=is_cancelled,
        may_cancel=given_ids,
    ),
    Pair(
        name="cancel and claim",
        joined=VERSION_READ,
        given=pending("x", "y"),
        a=cancelling,
        b=claiming,
        check=is_cancelled,
        may_cancel=given_ids,
        # The worker claims the second one while the first is being cancelled.
        as_if_in_turn=False,
    ),
    Pair(
        name="cancel and cancel",
        joined=VERSION_READ,
        given=running("x", "y"),
        a=cancelling,
        b=cancelling_backwards,
        check=is_cancelled,
        may_cancel=given_ids,
    ),
    Pair(
        name="clear and complete",
        in_both=True,
        given=running("x"),
        a=submitting("x", clears=1),
        b=completing,
        check=new_life_is_live,
        may_cancel=given_ids,
    ),
    Pair(
        name="clear and fail",
        # A worker that records a failure locks the row first, and upstream's own functions lock the id first.
        deadlocks=True,
        is_long=True,
        given=running("x"),
        a=submitting("x", clears=1),
        b=failing,
        check=new_life_is_live,
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="clear and cancel",
        is_long=True,
        given=running("x"),
        a=submitting("x", clears=1),
        b=cancelling,
        check=new_life_is_live,
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="retry and complete",
        given=running("x"),
        a=submitting("x", try_number=2),
        b=completing,
        check=never_sent_again,
    ),
    Pair(
        name="retry and fail",
        given=running("x"),
        a=submitting("x", try_number=2),
        b=failing,
        check=reattached_or_next_round,
    ),
    Pair(
        name="retry and expire",
        in_both=True,
        given=past_good_until,
        a=submitting("x", try_number=2),
        b=expiring,
        check=reattached_or_next_round,
    ),
    Pair(
        name="retry and claim",
        given=pending("x"),
        a=submitting("x", try_number=2),
        b=claiming,
        check=never_sent_again,
    ),
    Pair(
        name="batch and shrunken batch",
        a=submitting("x", "y", "z"),
        b=submitting("x", "y", try_number=2),
        may_cancel=of_work("z"),
        cuts={"a": 1},
        may_raise={"a": (StaleSubmission,)},
    ),
    Pair(
        name="shrunken batch and retry of the whole one",
        given=pending("x", "y"),
        a=submitting("x", try_number=2),
        b=submitting("y", "x", try_number=2),
        may_cancel=given_ids,
    ),
    Pair(
        name="batch and reordered batch",
        in_both=True,
        a=submitting("x", "y", "z"),
        b=submitting("z", "x", "y", try_number=2),
        check=one_live_task_of_each("x", "y", "z"),
        may_raise={"a": (StaleSubmission,)},
    ),
    Pair(
        name="edited retry and complete",
        in_both=True,
        given=running("x"),
        a=submitting("y", try_number=2),
        b=completing,
        check=edited_work_is_live,
        may_cancel=given_ids,
    ),
    Pair(
        name="batch and complete",
        given=running("x", "y"),
        a=submitting("x", "y", try_number=2),
        b=completing,
    ),
    Pair(
        name="prune and retry",
        is_long=True,
        joined=PRUNING_BEGUN | LOOKED_AGAIN,
        given=past_retention,
        a=pruning,
        b=submitting("x", try_number=2),
        may_raise={"b": (TaskNotFound,)},
        forgets=True,
    ),
    Pair(
        name="prune and clear",
        joined=PRUNING_BEGUN,
        is_long=True,
        given=past_retention,
        a=pruning,
        b=submitting("x", clears=1),
        check=one_live_task_of_each("x"),
        forgets=True,
    ),
    Pair(
        name="prune and submit",
        joined=PRUNING_BEGUN,
        a=pruning,
        b=submitting("x"),
        check=one_live_task_of_each("x"),
    ),
    Pair(
        name="shared key and cancel",
        releases=(MOVED,),
        given=running("x", key=KEY),
        a=submitting("x", instance=OTHER, key=KEY),
        b=cancelling,
        check=is_cancelled,
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="shared key and release",
        # The key is claimed before its task, and so the lock to take, is known.
        deadlocks=True,
        is_long=True,
        releases=(MOVED,),
        given=running("x", key=KEY),
        a=submitting("x", instance=OTHER, key=KEY),
        b=releasing,
        check=sharer_is_served,
        may_cancel=given_ids,
        joined=SHARED_READS,
    ),
    Pair(
        name="shared key: release and release",
        releases=(MOVED,),
        given=shared,
        a=releasing,
        b=releasing_by_other,
        check=is_cancelled,
        may_cancel=given_ids,
        joined=OWN_READS,
    ),
    Pair(
        name="shared key and complete",
        releases=(MOVED,),
        given=running("x", key=KEY),
        a=submitting("x", instance=OTHER, key=KEY),
        b=completing,
        check=one_task_for_both,
        joined=OWN_READS,
    ),
    Pair(
        name="shared key and clear",
        # The key is claimed before its task, and so the lock to take, is known.
        deadlocks=True,
        is_long=True,
        releases=(MOVED,),
        given=running("x", key=KEY),
        a=submitting("x", instance=OTHER, key=KEY),
        b=submitting("x", clears=1, key=KEY),
        check=sharer_is_served,
        may_cancel=given_ids,
        joined=SHARED_READS,
    ),
    Pair(
        name="shared key: submit and submit",
        releases=(MOVED,),
        a=submitting("x", key=KEY),
        b=submitting("x", instance=OTHER, key=KEY),
        check=all_of(one_live_task_of_each("x"), both_got_the_same, one_task_for_both),
        joined=OWN_READS,
    ),
    Pair(
        name="migrate and migrate",
        # Our own tables know nothing of generations.
        releases=(MOVED,),
        is_long=True,
        from_ledger=0,
        joined=VERSION_READ,
        knows_ledger=False,
        a=migrating,
        b=migrating,
        check=ledger_is_whole,
    ),
    Pair(
        name="migrate and submit",
        releases=(MOVED,),
        is_long=True,
        joined=OWN_READS | {"record_migration"},
        from_ledger=latest_version() - 1,
        knows_ledger=False,
        a=migrating,
        b=submitting("x"),
        check=all_of(ledger_is_whole, one_live_task_of_each("x")),
    ),
    Pair(
        name="newer life and older life",
        in_both=True,
        a=submitting("x", clears=1),
        b=submitting("x"),
        check=newest_life_is_live,
        may_raise={"b": (StaleSubmission,)},
        may_cancel=of_first_life,
        cuts={"b": 1},
    ),
    Pair(
        name="remade run and old run",
        given=running("x", run=OLD_RUN),
        a=submitting("x", run=NEW_RUN),
        b=submitting("x", run=OLD_RUN, try_number=2),
        check=one_live_task_of_each("x"),
        may_raise={"b": (StaleSubmission,)},
        may_cancel=everything_sent,
    ),
    Pair(
        name="change-base-url and submit from the new address",
        given=pending("x"),
        a=moving,
        b=submitting_from(NEW_ADDRESS, "x", try_number=2),
        check=all_of(moved_as_a_whole, one_live_task_of_each("x")),
        may_raise={"b": (NamespaceTaken,)},
    ),
    Pair(
        name="change-base-url and submit from the old address",
        given=pending("x"),
        a=moving,
        b=submitting("x", try_number=2),
        check=all_of(moved_as_a_whole, one_live_task_of_each("x")),
        may_raise={"b": (NamespaceTaken,)},
    ),
    Pair(
        name="enqueue and enqueue of the same id",
        a=enqueueing(task_id=GIVEN_ID),
        b=enqueueing(task_id=GIVEN_ID),
        check=one_task_for_both,
        loose=True,
        cuts={"a": 1},
    ),
    Pair(
        name="enqueue and enqueue of the same key",
        releases=(MOVED,),
        a=enqueueing(idempotency_key=KEY),
        b=enqueueing(idempotency_key=KEY),
        check=one_task_for_both,
        loose=True,
        # Ids are minted, each time others.
        as_if_in_turn=False,
        cuts={"a": 1},
    ),
)
