"""Submits the items of a batch, each as a task of its own or as a part of a chunk.

The rules are those of ``submitting``, item by item: an item is identified by its work, not by its place and not by the
task that runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_horsies.core.batch import NO_NUMBER, SubmittedBatch
from airflow_horsies.core.submission import AirflowTry, OnClear, SubmitOutcome
from airflow_horsies.core.task import TaskState
from airflow_horsies.db.statement import Row, Rows, Script, Statement, sql_text
from airflow_horsies.ledger.cancelling import lock_task_instance
from airflow_horsies.ledger.chunks import Outcomes, read_outcomes, split_works
from airflow_horsies.ledger.identity import (
    NO_LONGER_REQUESTED,
    Item,
    Submitter,
    continues_life,
    have_succeeded,
    is_later_trace,
    is_of_same_try,
    last_try,
)
from airflow_horsies.ledger.matching import match_unknown
from airflow_horsies.ledger.repairing import Repair, find_repair, find_repair_of_life, void_repair
from airflow_horsies.ledger.rounds import ChunkRound, Round, needs_next_round
from airflow_horsies.ledger.schema import PACKAGE
from airflow_horsies.ledger.senders import Pending, Sender
from airflow_horsies.ledger.submitting import life_columns, outcome_of, record_rounds, record_try, release_unwanted
from airflow_horsies.ledger.workflows import read_round_states
from airflow_horsies.wire.encoding import COMPACT
from airflow_horsies.wire.reading import find_commands
from airflow_horsies.wire.statements import Wire

NO_OUTCOMES = Outcomes()


@dataclass(slots=True)
class Held:
    """Where an item was sent last: its submission, its number if that is a chunk, and its round."""

    row: Row
    number: int
    round: int


@dataclass(slots=True)
class Known:
    """What the tables say of the tasks of a life.

    :param repair: what of an earlier life runs again; of the same life, the repair of single items that began it.
    :param continued_by: if it is the same life, the try that submits.
    """

    states: Mapping[str, TaskState]
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)
    repair: Repair | None = None
    continued_by: AirflowTry | None = None
    _dropped: dict[str, frozenset[int]] = field(default_factory=dict)

    def find_state(self, item: Item, held: Held) -> TaskState | None:
        """The state of an item that is used; None if it is sent again."""
        state = self._state_of(held.row, held.number)
        if self.is_of_same_try(held):
            return state
        if self.continued_by is None and held.row["horsies_task_id"] not in self.states:
            # Its value is past its retention.
            return None
        if state is TaskState.COMPLETED or (state is not None and self.is_left_alone(item, held)):
            return state
        return None if self._is_given_up(held) or self._is_sent_again(item, held, state) else state

    def is_left_alone(self, item: Item, held: Held) -> bool:
        """Whether a repair of single items, this one or the one that began the life, is of other items."""
        if self.repair is None or self.repair.items is None or item in self.repair.items:
            return False
        return self.continued_by is None or bool(held.row["taken_up"])

    def is_of_same_try(self, held: Held) -> bool:
        """Whether this try has sent the item before, still requests it, and horsies knows it."""
        row, tried = held.row, self.continued_by
        if tried is None or row["horsies_task_id"] not in self.states or not is_of_same_try(tried, row):
            return False
        return held.number == NO_NUMBER or row["places"][held.number] != NO_LONGER_REQUESTED

    def follows_success(self, newest: Rows, max_failures: int) -> bool:
        """Whether no more than these have not completed of what was requested, and the try is not a retry."""
        if self.continued_by is None or not is_later_trace(self.continued_by, newest):
            return False
        states = [state for row in newest if row["place"] != NO_LONGER_REQUESTED for state in self._states_in(row)]
        return have_succeeded(states, max_failures)

    def _states_in(self, row: Row) -> list[TaskState | None]:
        """The states of the requested items of a task."""
        if row["places"] is None:
            return [self._state_of(row, NO_NUMBER)]
        places = enumerate(row["places"])
        return [self._state_of(row, number) for number, place in places if place != NO_LONGER_REQUESTED]

    def _state_of(self, row: Row, number: int) -> TaskState | None:
        task_id = row["horsies_task_id"]
        state = self.states.get(task_id)
        return state if number == NO_NUMBER else self.outcomes.get(task_id, NO_OUTCOMES).state_of(number, state)

    def _is_given_up(self, held: Held) -> bool:
        """Whether the item will not run, or its result is of no use."""
        row, number = held.row, held.number
        if self.outcomes.get(row["horsies_task_id"], NO_OUTCOMES).has(number):
            return False
        return bool(row["is_to_be_cancelled"]) or (number != NO_NUMBER and self._is_dropped(row, number))

    def _is_dropped(self, row: Row, number: int) -> bool:
        # A chunk may have very many items.
        task_id = row["horsies_task_id"]
        if task_id not in self._dropped:
            self._dropped[task_id] = frozenset(row["dropped"])
        return number in self._dropped[task_id]

    def _is_sent_again(self, item: Item, held: Held, state: TaskState | None) -> bool:
        if self.repair is None or self.continued_by is not None:
            return needs_next_round(held.row["horsies_task_id"], state)
        return self.repair.reruns(item, state)

    def is_live(self, row: Row) -> bool:
        state = self.states.get(row["horsies_task_id"])
        return state is not None and not state.is_terminal

    def is_open(self, row: Row, number: int) -> bool:
        """Whether an item of a chunk may still run."""
        outcomes = self.outcomes.get(row["horsies_task_id"], NO_OUTCOMES)
        return self.is_live(row) and not outcomes.has(number) and not self._is_dropped(row, number)


@dataclass(slots=True)
class Placing:
    """What becomes of the recorded tasks of a life: the places of their items, by position."""

    kept: dict[int, dict[int, int]] = field(default_factory=dict)

    def keep(self, held: Held, place: int) -> None:
        self.kept.setdefault(held.row["position"], {})[held.number] = place

    def places_of(self, row: Row) -> dict[int, int]:
        return self.kept.get(row["position"], {})


def submit_batch(
    wire: Wire,
    submitter: Submitter,
    sender: Sender,
    *,
    can_cancel: bool = True,
    on_clear: OnClear = OnClear.ALL,
    max_failures: int = 0,
) -> Script[SubmittedBatch]:
    """Send, reattach to or adopt each item, and drop or cancel items that are no longer requested.

    :param can_cancel: False if horsies cannot record a cancelled task now; the cancels are then carried out later.
    :param on_clear: what a clear sends; a user may have asked for a repair as well.
    :param max_failures: how many items may fail in a try that succeeds.
    """
    yield from lock_task_instance(submitter.namespace, submitter.task_instance)
    newest = yield Statement(sql_text(PACKAGE, "read_newest_life"), submitter.key)
    if sender.gate is not None:
        yield from sender.gate.look(sender.requested)
    # Read in the same round trip, because a first submission needs it.
    first_ids = sender.first_ids(submitter)
    existing = yield from find_commands(wire, first_ids)
    continues = continues_life(submitter, newest)
    life = max((row["life"] for row in newest), default=0) + (0 if continues else 1)
    if continues:
        repair = yield from find_repair_of_life(submitter, newest)
        if is_later_trace(submitter.tried, newest):
            yield from void_repair(submitter, newest)
    else:
        repair = yield from find_repair(submitter, newest, life=life, on_clear=on_clear)
    uses_earlier = continues or repair is not None
    held = (yield from find_held(wire, newest, sender)) if uses_earlier else {}
    known = yield from _read_known(wire, newest, repair, reads_outcomes=uses_earlier)
    known.continued_by = submitter.tried if continues else None
    submission = _Submission(sender, life, keeps_positions=continues and sender.keeps_positions)
    earlier = _rounds_by_place(newest) if continues else {}
    sends_all = known.follows_success(newest, max_failures)
    placing = submission.sort_items(held, known, earlier, sends_all=sends_all)
    unwanted = [row for row in newest if not placing.places_of(row) and row["place"] != NO_LONGER_REQUESTED]
    releases_now = can_cancel and wire.schema.worker_has_started
    yield from release_unwanted(wire, submitter, unwanted, known.states, can_cancel=releases_now)

    kept = [] if continues else _keep(newest, placing)
    free = max((row["position"] for row in newest), default=-1) + 1 if continues else len(kept)
    rounds = yield from sender.send(wire, submitter, submission.pending, existing, set(first_ids), free)
    submission.add_rounds(rounds)
    yield from _record(submitter, life, rounds)
    if kept:
        params = {**life_columns(submitter, life), "last_life": newest[0]["life"], "kept": COMPACT.encode(kept)}
        yield Statement(sql_text(PACKAGE, "keep_submissions"), params)
    if not rounds and continues and submitter.tried.try_number > last_try(newest):
        yield record_try(submitter, newest[0])
    if continues or not sender.items:
        yield from _move(submitter, newest, placing)
    if uses_earlier or not sender.items:
        yield from _change_chunks(newest, placing, known, only_kept=not continues and bool(sender.items))
    return submission.result()


class _Submission:
    """The items of a submission: those that are used and those that are sent."""

    def __init__(self, sender: Sender, life: int, *, keeps_positions: bool) -> None:
        self.life = life
        self.pending: list[Pending] = []
        self._items = sender.items
        self._keeps_positions = keeps_positions
        self._tasks: list[str] = [""] * len(sender.items)
        self._outcomes: Counter[SubmitOutcome] = Counter()
        self._is_chunked = False

    def sort_items(
        self, held: Mapping[Item, Held], known: Known, rounds: Mapping[int, int], *, sends_all: bool
    ) -> Placing:
        """:param rounds: the number of rounds by place: an item that replaces another is a new round.
        :param sends_all: send even what has completed.
        """
        placing = Placing()
        for place, item in enumerate(self._items):
            found = held.get(item)
            state = None if found is None or sends_all else known.find_state(item, found)
            if found is None:
                self.pending.append(Pending(place, item, rounds.get(place, 0) + 1, None))
            elif state is None:
                position = found.row["position"] if self._keeps_positions and found.number == NO_NUMBER else None
                self.pending.append(Pending(place, item, found.round + 1, position))
                if position is not None:
                    # All rounds of a task are shown at its current place.
                    placing.keep(found, place)
            else:
                placing.keep(found, place)
                task_id, in_chunk = found.row["horsies_task_id"], found.number != NO_NUMBER
                self._use(place, task_id, state, in_chunk=in_chunk, is_kept=known.is_left_alone(item, found))
        return placing

    def add_rounds(self, rounds: Sequence[Round | ChunkRound]) -> None:
        for round_ in rounds:
            if isinstance(round_, Round):
                self._use(round_.place, round_.horsies_task_id, round_.state, in_chunk=False)
                continue
            for number, place in enumerate(round_.places):
                if place >= 0:
                    self._use(place, round_.horsies_task_id, round_.states.get(number), in_chunk=True)

    def _use(self, place: int, task_id: str, state: TaskState | None, *, in_chunk: bool, is_kept: bool = False) -> None:
        self._tasks[place] = task_id
        self._outcomes[outcome_of(state, is_kept=is_kept)] += 1
        self._is_chunked |= in_chunk

    def result(self) -> SubmittedBatch:
        return SubmittedBatch(
            life=self.life if self._tasks else 0,
            size=len(self._tasks),
            task_ids=tuple(dict.fromkeys(self._tasks)),
            outcomes=dict(self._outcomes),
            is_chunked=self._is_chunked,
        )


# -- what was recorded -----------------------------------------------------------------------------------------------


def find_held(wire: Wire, newest: Rows, sender: Sender) -> Script[dict[Item, Held]]:
    """Where each item was sent last, in a chunk or alone."""
    held: dict[Item, Held] = {}
    for row in newest:
        if row["works"] is not None:
            for number, (item, round_) in enumerate(_items_of_chunk(row)):
                _hold(held, item, Held(row, number, round_))
        elif row["work"] is not None:
            _hold(held, Item(bytes(row["work"]), row["occurrence"]), Held(row, NO_NUMBER, row["round"]))
    unknown = [row for row in newest if row["work"] is None]
    if unknown:
        for item, row in (yield from match_unknown(wire, unknown, set(held), sender.tasks)).items():
            held[item] = Held(row, NO_NUMBER, row["round"])
    return held


def _items_of_chunk(row: Row) -> list[tuple[Item, int]]:
    works = split_works(bytes(row["works"]))
    occurrences = row["occurrences"] or [0] * len(works)
    rounds = row["rounds"] or [1] * len(works)
    return [(Item(work, n), round_) for work, n, round_ in zip(works, occurrences, rounds, strict=True)]


def _hold(held: dict[Item, Held], item: Item, found: Held) -> None:
    """The latest round counts; of two, the one that was recorded later."""
    if item not in held or found.round >= held[item].round:
        held[item] = found


def _read_known(wire: Wire, newest: Rows, repair: Repair | None, *, reads_outcomes: bool) -> Script[Known]:
    states = yield from read_round_states(wire, newest)
    if not reads_outcomes:
        return Known(states)
    # All items of a completed chunk have completed.
    unsettled = [
        row["horsies_task_id"]
        for row in newest
        if row["works"] is not None and states.get(row["horsies_task_id"]) is not TaskState.COMPLETED
    ]
    return Known(states, (yield from read_outcomes(unsettled)), repair)


def _rounds_by_place(newest: Rows) -> dict[int, int]:
    rounds: dict[int, int] = {}
    for row in newest:
        if row["works"] is None:
            place = row["position"] if row["place"] in (None, NO_LONGER_REQUESTED) else row["place"]
            rounds[place] = max(rounds.get(place, 0), row["round"])
            continue
        of_items = row["rounds"] or [1] * len(row["places"])
        for place, round_ in zip(row["places"], of_items, strict=True):
            rounds[place] = max(rounds.get(place, 0), round_)
    return rounds


# -- what is recorded ------------------------------------------------------------------------------------------------


def _record(submitter: Submitter, life: int, rounds: Sequence[Round | ChunkRound]) -> Script[None]:
    if not rounds:
        return
    yield record_rounds(submitter, life, rounds)
    chunks = [round_.chunk_columns for round_ in rounds if isinstance(round_, ChunkRound)]
    if chunks:
        yield Statement(sql_text(PACKAGE, "record_chunks"), {"chunks": COMPACT.encode(chunks)})


def _keep(newest: Rows, placing: Placing) -> list[dict[str, int]]:
    """The tasks of an earlier life that the new life keeps, in the order of their first items."""
    first = {row["position"]: min(places.values()) for row in newest if (places := placing.places_of(row))}
    rows = sorted((row for row in newest if row["position"] in first), key=lambda row: first[row["position"]])
    return [
        {"position": row["position"], "round": row["round"], "new_position": number, "place": first[row["position"]]}
        for number, row in enumerate(rows)
    ]


def _move(submitter: Submitter, newest: Rows, placing: Placing) -> Script[None]:
    """Record the places of tasks that have moved or are no longer requested."""
    moved = []
    for row in newest:
        place = min(placing.places_of(row).values(), default=NO_LONGER_REQUESTED)
        current = row["position"] if row["place"] is None else row["place"]
        if place != current or (place >= 0 and row["released_at"] is not None):
            moved.append({"position": row["position"], "place": place})
    if moved:
        params = {**submitter.key, "life": newest[0]["life"], "items": COMPACT.encode(moved)}
        yield Statement(sql_text(PACKAGE, "move_items"), params)


def _change_chunks(newest: Rows, placing: Placing, known: Known, *, only_kept: bool) -> Script[None]:
    """Record the places of items of chunks that have moved, were replaced, or are no longer requested.

    :param only_kept: leave chunks of which nothing is requested to their earlier life.
    """
    changed = []
    for row in newest:
        kept = placing.places_of(row)
        if row["works"] is not None and (kept or not only_kept):
            changed.extend(_changes_of_chunk(row, kept, known))
    if changed:
        yield Statement(sql_text(PACKAGE, "change_chunks"), {"chunks": COMPACT.encode(changed)})


def _changes_of_chunk(row: Row, kept: Mapping[int, int], known: Known) -> list[dict[str, object]]:
    places = [kept.get(number, NO_LONGER_REQUESTED) for number in range(len(row["places"]))]
    # A chunk of which nothing is requested is cancelled.
    dropped = [
        number
        for number, place in enumerate(places)
        if kept and place == NO_LONGER_REQUESTED and known.is_open(row, number)
    ]
    if places == row["places"] and not dropped:
        return []
    return [{"horsies_task_id": row["horsies_task_id"], "places": places, "dropped": dropped}]
