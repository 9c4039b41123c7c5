"""Matches the items of a submission with recorded submissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from airflow_horsies.db.statement import Row, Rows, Script
from airflow_horsies.ledger.identity import NO_LONGER_REQUESTED, Item
from airflow_horsies.wire.encoding import EncodedTask, as_sent, work_of
from airflow_horsies.wire.reading import FoundCommand, find_commands, is_same_command, read_tasks
from airflow_horsies.wire.statements import Wire


def match_items(
    wire: Wire, newest: Rows, items: Sequence[Item], tasks: Sequence[EncodedTask]
) -> Script[dict[int, Row]]:
    """The recorded rows of the items, by place in the list."""
    rows = {Item(bytes(row["work"]), row["occurrence"]): row for row in newest if row["work"] is not None}
    unknown = [row for row in newest if row["work"] is None]
    if unknown:
        rows |= yield from match_unknown(wire, unknown, set(rows), tasks)
    return {place: rows[item] for place, item in enumerate(items) if item in rows}


def match_unknown(
    wire: Wire, unknown: Sequence[Row], known: set[Item], tasks: Sequence[EncodedTask]
) -> Script[dict[Item, Row]]:
    """Match rows of a release that recorded no work: by the arguments, if horsies still keeps them, else by the
    fingerprint of the item at the same place.

    :param known: items that have a row already.
    """
    rows: dict[Item, Row] = {}
    ids = [row["horsies_task_id"] for row in unknown]
    found = yield from read_tasks(wire, ids, whole=True)
    commands = yield from find_commands(wire, ids)
    for row in unknown:
        task_id, position = row["horsies_task_id"], row["position"]
        task, command = found.get(task_id), commands.get(task_id)
        if task is not None and task.kwargs is not None:
            work = work_of(task.task_name, task.kwargs)
        elif position < len(tasks) and (command is None or _is_as_sent(tasks[position], row, command)):
            work = tasks[position].work
        else:
            continue
        item = next(item for n in count() if (item := Item(work, n)) not in rows and item not in known)
        rows[item] = row
    return rows


def _is_as_sent(task: EncodedTask, row: Row, command: FoundCommand) -> bool:
    """The deadline is often relative to the submission, so every try has another."""
    return is_same_command(as_sent(task, queue_name=row["queue_name"], good_until=row["good_until"]), command)


def find_unwanted(newest: Rows, recorded: Mapping[int, Row]) -> list[Row]:
    wanted = {row["position"] for row in recorded.values()}
    return [row for row in newest if row["position"] not in wanted and row["place"] != NO_LONGER_REQUESTED]


def rounds_by_place(newest: Rows) -> dict[int, int]:
    """The number of rounds by place: an item that replaces another is a new round."""
    rounds: dict[int, int] = {}
    for row in newest:
        place = row["position"] if row["place"] in (None, NO_LONGER_REQUESTED) else row["place"]
        rounds[place] = max(rounds.get(place, 0), row["round"])
    return rounds


def find_moved(newest: Rows, recorded: Mapping[int, Row]) -> list[dict[str, int]]:
    """Items that have moved, were released before, or are no longer requested."""
    places = {row["position"]: place for place, row in recorded.items()}
    moved = []
    for row in newest:
        current = row["position"] if row["place"] is None else row["place"]
        place = places.get(row["position"], NO_LONGER_REQUESTED)
        if place != current or (place >= 0 and row["released_at"] is not None):
            moved.append({"position": row["position"], "place": place})
    return moved
