from __future__ import annotations

import socket

import pytest

pytest.importorskip("horsies")

from airflow_horsies import __version__
from airflow_horsies.exceptions import DatabaseUnreachable
from airflow_horsies.worker.announcing import Announcer
from airflow_horsies.worker.reporter import database_of
from tests.unit.worker.tables import Tables

DATABASE = database_of("postgresql+psycopg://worker:s3cret-word@db/horsies")


def test_a_worker_is_recorded_with_its_features(tables: Tables) -> None:
    assert Announcer(DATABASE, 77).announce()
    recorded = tables.workers[socket.gethostname(), 77]
    assert (recorded["release"], recorded["features"]) == (__version__, ["chunks"])


def test_tables_of_an_older_version_and_a_database_that_is_away_are_no_failure(tables: Tables) -> None:
    tables.version = 4
    assert not Announcer(DATABASE, 77).announce()
    tables.version = 5
    tables.down = DatabaseUnreachable("gone")
    assert not Announcer(DATABASE, 77).announce()
    assert tables.workers == {}


def test_it_tries_again_sooner_as_long_as_it_is_not_recorded(tables: Tables) -> None:
    pauses: list[float] = []

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        tables.version = 5
        if len(pauses) == 2:
            raise Enough

    tables.version = 4
    with pytest.raises(Enough):
        Announcer(DATABASE, 77, sleep=sleep)._serve()
    assert pauses[0] < 10 < pauses[1]
