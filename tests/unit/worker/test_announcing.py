from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("horsies")

from airflow_horsies import __version__
from airflow_horsies.client import batches
from airflow_horsies.exceptions import AccessDenied, DatabaseUnreachable
from airflow_horsies.ledger import chunks
from airflow_horsies.worker import announcing
from airflow_horsies.worker.announcing import Announcer
from airflow_horsies.worker.reporter import database_of
from tests.unit.worker.tables import Tables

DATABASE = database_of("postgresql+psycopg://worker:s3cret-word@db/horsies")


def test_a_worker_is_recorded_with_its_features(tables: Tables) -> None:
    assert Announcer(DATABASE, 77).announce()
    recorded = tables.workers[socket.gethostname(), 77]
    assert (recorded["release"], recorded["features"]) == (__version__, ["callbacks", "chunks"])


def test_tables_of_an_older_version_and_a_database_that_is_away_are_no_failure(tables: Tables) -> None:
    tables.version = 4
    assert not Announcer(DATABASE, 77).announce()
    tables.version = 5
    tables.down = DatabaseUnreachable("gone")
    assert not Announcer(DATABASE, 77).announce()
    assert tables.workers == {}


class Enough(Exception):
    pass


def pauses_of(tables: Tables, count: int, *, after: Callable[[int], None]) -> list[float]:
    """The first pauses of the thread. After each, ``after`` is called with their number."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        after(len(pauses))
        if len(pauses) == count:
            raise Enough

    with pytest.raises(Enough):
        Announcer(DATABASE, 77, sleep=sleep)._serve()
    return pauses


def test_it_tries_again_sooner_as_long_as_it_is_not_recorded(tables: Tables) -> None:
    def migrate(number: int) -> None:
        tables.version = 5

    tables.version = 4
    first, second = pauses_of(tables, 2, after=migrate)
    assert first < 10 < second


def test_pauses_grow_while_the_tables_are_too_old_and_begin_anew_once_it_is_recorded(
    tables: Tables,
) -> None:
    def change(number: int) -> None:
        tables.version = 5 if number == 9 else 4

    tables.version = 4
    pauses = pauses_of(tables, 11, after=change)
    longest = [3, 6, 12, 15, 15, 15, 15, 15, 15, 75, 3]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True)), pauses


def test_a_submission_waits_longer_for_the_record_than_a_worker_pauses() -> None:
    assert announcing.MAX_RETRY_SECONDS < batches.STARTING_SECONDS < chunks.RECENT.total_seconds()


def test_what_prevents_the_record_is_logged_once(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(DATABASE, 77)

    def lines_of_three_tries() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, announcing.__name__):
            for _ in range(3):
                announcer.announce()
        return [record.getMessage() for record in caplog.records]

    tables.version = 4
    assert lines_of_three_tries() == [announcing.TOO_OLD]
    tables.down = DatabaseUnreachable("gone")
    failed = "Recording the features of this worker failed and is tried again:"
    assert lines_of_three_tries() == [f"{failed} gone"]
    tables.down = ValueError("odd")
    assert lines_of_three_tries() == [f"{failed} ValueError('odd')"]
    tables.version, tables.down = 5, None
    assert lines_of_three_tries() == []
    tables.version = 4
    assert lines_of_three_tries() == [announcing.TOO_OLD]


def known(tables: Tables, monkeypatch: pytest.MonkeyPatch, answers: list[object]) -> list[int]:
    """Announces as often as there are answers; the numbers of entries of each record."""
    sent: list[int] = []

    def record(client: object, *, entries: tuple[object, ...], **_: object) -> object:
        sent.append(len(entries))
        answer = answers[len(sent) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(announcing.WorkerClient, "record_catalog", record)
    catalog: Any = SimpleNamespace(digest=b"d", queues=("default",), entries=("a", "b"))
    announcer = Announcer(DATABASE, 77, make_catalog=lambda: catalog)
    while len(sent) < len(answers):
        assert announcer.announce()
    return sent


def test_the_entries_are_recorded_once_and_again_if_they_are_gone(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known(tables, monkeypatch, [False, True, False, True, True]) == [2, 0, 0, 2, 0]


def test_tables_without_a_catalog_are_tried_again(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known(tables, monkeypatch, [None, None, False, True]) == [2, 2, 2, 0]


def test_a_worker_without_the_privilege_goes_on(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, announcing.__name__):
        assert known(tables, monkeypatch, [AccessDenied("no"), AccessDenied("no")]) == [2, 2]
    assert [record.getMessage() for record in caplog.records] == ["This worker cannot record which tasks it knows: no"]
