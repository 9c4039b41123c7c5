"""How the items of a batch are sent that must be sent: each as a task of its own, or several in a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from airflow_horsies.db.statement import Script
from airflow_horsies.exceptions import TaskIdTaken
from airflow_horsies.ledger.catalog import Gate
from airflow_horsies.ledger.chunks import Outcomes, read_outcomes, require_chunk_workers
from airflow_horsies.ledger.identity import NO_LONGER_REQUESTED, Item, Submitter, number_works
from airflow_horsies.ledger.rounds import (
    ChunkRound,
    Round,
    digest_chunk,
    find_recorded,
    find_unrecorded,
    needs_next_round,
)
from airflow_horsies.wire.chunking import EncodedItems, works_of_chunk
from airflow_horsies.wire.encoding import EncodedTask
from airflow_horsies.wire.reading import FoundCommand, find_commands, is_same_command, read_tasks
from airflow_horsies.wire.sending import insert_new_tasks
from airflow_horsies.wire.statements import Wire


class Pending(NamedTuple):
    """An item that must be sent.

    :param position: of the task that it follows; None takes the next free one.
    """

    place: int
    item: Item
    round: int
    position: int | None = None


class Sender(Protocol):
    """The items of a batch, and how they are sent.

    :param tasks: those of the items, if each is a task of its own.
    :param keeps_positions: whether an item that is sent again stays at its position.
    :param gate: refuses what no worker would accept.
    """

    gate: Gate | None
    items: list[Item]
    tasks: Sequence[EncodedTask]
    keeps_positions: bool

    @property
    def requested(self) -> set[tuple[str, str]]:
        """The queues and names of the tasks that may be sent."""
        ...

    def first_ids(self, submitter: Submitter) -> list[str]:
        """The ids of the tasks of a first submission."""
        ...

    def send(
        self,
        wire: Wire,
        submitter: Submitter,
        pending: Sequence[Pending],
        existing: dict[str, FoundCommand],
        asked: set[str],
        free: int,
    ) -> Script[Sequence[Round | ChunkRound]]:
        """Send the items; returns what is to be recorded.

        :param existing: the commands of tasks that exist, as far as they were asked for.
        :param asked: the ids that were asked for.
        :param free: the first free position.
        """
        ...


class TaskSender:
    """Each item is a task of its own."""

    keeps_positions = True
    gate: Gate | None = None

    def __init__(self, tasks: Sequence[EncodedTask]) -> None:
        self.tasks = tasks
        self.items = list(number_works(task.work for task in tasks))

    @property
    def requested(self) -> set[tuple[str, str]]:
        return {(task.queue_name, task.task_name) for task in self.tasks}

    def first_ids(self, submitter: Submitter) -> list[str]:
        return [submitter.derive_task_id(item, 1) for item in self.items]

    def send(
        self,
        wire: Wire,
        submitter: Submitter,
        pending: Sequence[Pending],
        existing: dict[str, FoundCommand],
        asked: set[str],
        free: int,
    ) -> Script[Sequence[Round | ChunkRound]]:
        rounds = []
        for place, item, number, position in pending:
            rounds.append(
                Round(submitter, item, free if position is None else position, place, number, self.tasks[place])
            )
            free += position is None
        known = yield from find_unrecorded(wire, rounds, existing, asked)
        new = [round_.task for round_ in rounds if isinstance(round_.task, EncodedTask)]
        new = [task for task in new if task.id not in known]
        if self.gate is not None:
            self.gate.require(new)
        yield from insert_new_tasks(wire, new)
        for round_ in rounds:
            round_.horsies_task_id = round_.task.id
            round_.state = known.get(round_.task.id)
        return rounds


class ChunkSender:
    """Several items share a chunk."""

    keeps_positions = False
    gate: Gate | None = None
    tasks: Sequence[EncodedTask] = ()

    def __init__(self, encoded: EncodedItems) -> None:
        self.encoded = encoded
        self.items = list(number_works(encoded.works))
        self._first: tuple[Submitter, list[ChunkRound]] | None = None

    @property
    def requested(self) -> set[tuple[str, str]]:
        return {(self.encoded.task.queue, self.encoded.task.task_name)}

    def first_ids(self, submitter: Submitter) -> list[str]:
        return [chunk.task.id for chunk in self.plan_first(submitter)]

    def plan_first(self, submitter: Submitter) -> list[ChunkRound]:
        """The chunks of a first submission, encoded once."""
        if self._first is None or self._first[0].tried.life_key != submitter.tried.life_key:
            everything = [Pending(place, item, 1) for place, item in enumerate(self.items)]
            self._first = submitter, self._plan(submitter, everything, 0)
        return self._first[1]

    def send(
        self,
        wire: Wire,
        submitter: Submitter,
        pending: Sequence[Pending],
        existing: dict[str, FoundCommand],
        asked: set[str],
        free: int,
    ) -> Script[Sequence[Round | ChunkRound]]:
        if pending:
            yield from require_chunk_workers(wire, self.encoded.task.queue)
        recorded: list[ChunkRound] = []
        new: list[ChunkRound] = []
        while pending:
            chunks = self._plan_again(submitter, pending, free)
            free += len(chunks)
            unasked = [chunk.task.id for chunk in chunks if chunk.task.id not in asked]
            existing |= yield from find_commands(wire, unasked)
            asked.update(unasked)
            found = [chunk for chunk in chunks if chunk.task.id in existing]
            new += [chunk for chunk in chunks if chunk.task.id not in existing]
            pending = yield from self._use_existing(wire, found, existing, recorded)
        if self.gate is not None:
            self.gate.require(chunk.task for chunk in new)
        yield from insert_new_tasks(wire, [chunk.task for chunk in new])
        return sorted([*recorded, *new], key=lambda chunk: chunk.position)

    def _use_existing(
        self,
        wire: Wire,
        chunks: Sequence[ChunkRound],
        existing: dict[str, FoundCommand],
        recorded: list[ChunkRound],
    ) -> Script[list[Pending]]:
        """Chunks with our derived ids that the ledger lost are recorded again. Returns the items that need the next
        round."""
        if not chunks:
            return []
        ids = [chunk.task.id for chunk in chunks]
        in_use = yield from find_recorded(ids)
        outcomes = yield from read_outcomes([task_id for task_id in ids if task_id not in in_use])
        pending: list[Pending] = []
        for chunk in chunks:
            if chunk.task.id in in_use:
                pending += _next_round(chunk, range(len(chunk.items)))
                continue
            command = existing[chunk.task.id]
            yield from self._require_same_items(wire, chunk, command)
            ended = outcomes.get(chunk.task.id, Outcomes())
            states = {number: ended.state_of(number, command.state) for number in range(len(chunk.items))}
            again = [number for number, state in states.items() if needs_next_round(chunk.task.id, state)]
            pending += _next_round(chunk, again)
            places = [NO_LONGER_REQUESTED if number in again else place for number, place in enumerate(chunk.places)]
            found = {number: state for number, state in states.items() if state is not None}
            recorded.append(replace(chunk, places=places, states=found))
        return sorted(pending)

    def _require_same_items(self, wire: Wire, chunk: ChunkRound, command: FoundCommand) -> Script[None]:
        """The id is derived from the items; queue, priority and deadlines may differ."""
        if is_same_command(chunk.task, command):
            return
        task = (yield from read_tasks(wire, [chunk.task.id], whole=True)).get(chunk.task.id)
        if task is None or task.kwargs is None:
            return
        if works_of_chunk(chunk.task_name, task.kwargs) != [item.work for item in chunk.items]:
            raise TaskIdTaken(
                f"A task with the id {chunk.task.id} already exists, with other arguments. Clear the task instance to "
                "send it under another id.",
                task_id=chunk.task.id,
                queue=chunk.task.queue_name,
            )

    def _plan_again(self, submitter: Submitter, pending: Sequence[Pending], free: int) -> list[ChunkRound]:
        """The first plan, if all items are sent for the first time."""
        if len(pending) == len(self.items) and free == 0 and all(item.round == 1 for item in pending):
            return self.plan_first(submitter)
        return self._plan(submitter, pending, free)

    def _plan(self, submitter: Submitter, pending: Sequence[Pending], free: int) -> list[ChunkRound]:
        by_place = {item.place: item for item in pending}
        task_name = self.encoded.task.task_name
        chunks: list[ChunkRound] = []
        for places in self.encoded.split([item.place for item in pending]):
            items = [self.items[place] for place in places]
            rounds = [by_place[place].round for place in places]
            digest = digest_chunk(task_name, items, rounds)
            task = self.encoded.encode_chunk(places, task_id=submitter.derive_chunk_id(digest))
            chunks.append(ChunkRound(task_name, items, rounds, list(places), free + len(chunks), digest, task))
        return chunks


def _next_round(chunk: ChunkRound, numbers: Sequence[int]) -> list[Pending]:
    return [Pending(chunk.places[number], chunk.items[number], chunk.rounds[number] + 1) for number in numbers]
