from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies.client import reporting
from airflow_horsies.db.statement import Rows, Script
from airflow_horsies.exceptions import DatabaseUnreachable
from airflow_horsies.ledger import schema as ledger_schema
from airflow_horsies.ledger.cancelling import carry_out_requests
from airflow_horsies.ledger.pruning import SINCE, PruneRule
from airflow_horsies.wire.schema import detect_schema
from airflow_horsies.worker.housekeeping import Housekeeper
from airflow_horsies.worker.reporter import database_of
from tests.unit.driving import MOVED, drive

IDS = sorted(str(uuid.uuid4()) for _ in range(5))


class House:
    """A ledger with some ids, of which each page has one."""

    def __init__(self) -> None:
        self.version = SINCE
        self.locked = True
        self.down: Exception | None = None
        self.seen: list[str] = []
        self.closed = 0
        self.carried_out = 0

    def run(self, make_script: Callable[[], Script[Any]], *, pipelined: bool) -> Any:
        if self.down is not None:
            raise self.down
        if make_script is ledger_schema.read_version:
            return self.version
        if make_script is detect_schema:
            return MOVED
        if isinstance(make_script, partial) and make_script.func is carry_out_requests:
            self.carried_out += 1
            return {}
        answers: dict[str, Any] = {
            "find_migrations_table": [{"found": False}],
            "lock_pruning": lambda params: [{"locked": self.locked}],
            "read_prunable": self._read_page,
            "moved/read_states": [],
            "prune_lines": [{"pruned": 0}],
            "prune_items": [{"pruned": 0}],
            "prune_tasks": self._prune,
        }
        return drive(make_script(), answers).outcome

    def close(self) -> None:
        self.closed += 1

    def _read_page(self, params: Any) -> Rows:
        after = params["after"] or ""
        return [{"horsies_task_id": found, "is_old": True} for found in IDS if found > after][:1]

    def _prune(self, params: Any) -> Rows:
        self.seen += params["ids"]
        return [{"pruned": len(params["ids"])}]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    house = House()
    monkeypatch.setattr(reporting, "Session", lambda database, limits: house)
    return house


@pytest.fixture
def housekeeper() -> Housekeeper:
    return Housekeeper(database_of("postgresql://db/x"), PruneRule(), 60.0, sleep=lambda seconds: None)


def test_everything_is_gone_through_once_wherever_it_began(house: House, housekeeper: Housekeeper) -> None:
    for _ in range(20):
        house.seen.clear()
        housekeeper.prune_tables()
        assert sorted(set(house.seen)) == IDS
        assert len(house.seen) <= len(IDS) + 1
    assert house.closed == 20


def test_a_house_that_somebody_else_keeps_is_left_to_them(house: House, housekeeper: Housekeeper) -> None:
    house.locked = False
    housekeeper.prune_tables()
    assert house.seen == []


def test_tables_that_are_not_there_yet_are_not_looked_at(house: House, housekeeper: Housekeeper) -> None:
    house.version = 0
    housekeeper.prune_tables()
    assert house.seen == []


def test_trouble_is_told_once_and_the_next_time_all_is_well(
    house: House, housekeeper: Housekeeper, caplog: pytest.LogCaptureFixture
) -> None:
    house.down = DatabaseUnreachable("database x cannot be reached")
    for _ in range(3):
        housekeeper.prune_tables()
    house.down = None
    housekeeper.prune_tables()
    assert [record.message for record in caplog.records] == [
        "Pruning the airflow_horsies tables failed and is tried again later: database x cannot be reached"
    ]
    assert house.seen


@pytest.mark.usefixtures("house")
def test_the_more_workers_there_are_the_less_often_each_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    class Enough(BaseException):
        pass

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) > 40:
            raise Enough

    keeper = Housekeeper(database_of("postgresql://db/x"), PruneRule(), 60.0, sleep=nap)
    monkeypatch.setattr(keeper, "prune_tables", lambda: setattr(keeper, "_workers", 4))
    with pytest.raises(Enough):
        keeper._serve()
    first, *later = naps
    assert first <= 60
    assert all(0.5 * 240 <= seconds <= 1.5 * 240 for seconds in later)
    assert len(set(later)) > 30, "they do not come at the same moments"
