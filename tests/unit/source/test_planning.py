"""How a table is divided, where credentials come from, and which process a keeper waits for."""

from __future__ import annotations

import os
import pickle
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

pytest.importorskip("pyspark")
from airflow_horsies.core.paging import Slice
from airflow_horsies.exceptions import SourceError
from airflow_horsies.source.connecting import find_database
from airflow_horsies.source.keeper import SharedSnapshot, find_driver
from airflow_horsies.source.planning import cut, quantiles, slices
from airflow_horsies.source.reader import Part
from airflow_horsies.source.tables import ATTEMPTS
from airflow_horsies.spark import HorsiesDataSource
from tests.unit.driving import drive

DAY = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = [(DAY + timedelta(minutes=minute), f"{minute:03}") for minute in range(100)]
SECRET = "a-secret-nobody-shall-see"


def test_one_part_asks_nothing() -> None:
    driven = drive(cut(ATTEMPTS, Slice(), 1))
    assert driven.outcome == [Slice()]
    assert driven.names == []


def test_parts_meet_without_gap_or_overlap() -> None:
    parts = slices(Slice(until=DAY), quantiles(PLACES, 4))
    assert len(parts) == 4
    assert parts[0].from_at is None
    assert parts[-1].to_at is None
    assert all(part.until == DAY for part in parts)
    for before, after in pairwise(parts):
        assert (before.to_at, before.to_key) == (after.from_at, after.from_key)


@pytest.mark.parametrize(
    ("places", "parts", "number"), [([], 4, 1), (PLACES[:1], 4, 1), (PLACES[:1] * 50, 4, 1), (PLACES[:3], 10, 3)]
)
def test_few_places_are_few_parts(places: list[tuple[datetime, str]], parts: int, number: int) -> None:
    assert len(slices(Slice(), quantiles(places, parts))) == number


def test_what_travels_to_executors_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", f"postgresql://me:{SECRET}@host/db")
    source = HorsiesDataSource({"table": "attempts"})
    reader = source.reader(source.schema())
    part = Part(0, Slice(), SharedSnapshot("00000003-1", 7))
    assert SECRET.encode() not in pickle.dumps((source, reader, part))
    assert SECRET not in repr(find_database(None))


@pytest.mark.parametrize(
    "url",
    [f"postgresql://me:{SECRET}@[::1/db", f"postgresql://me:{SECRET}%zz@host/db", f"mysql://me:{SECRET}@h/db", SECRET],
)
def test_a_url_that_is_none_is_not_repeated(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", url)
    with pytest.raises(SourceError, match="is not a Postgres URL") as caught:
        find_database(None)
    assert SECRET not in str(caught.value)


def test_without_a_database_it_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)
    with pytest.raises(SourceError, match="Set HORSIES_DATABASE_URL"):
        find_database(None)
    monkeypatch.setenv("PGSERVICE", "horsies")
    assert "service" not in find_database(None).connect_args
    assert find_database("mine").connect_args["service"] == "mine"


def test_without_a_jvm_above_the_parent_counts() -> None:
    assert find_driver(os.getpid()) == os.getppid()
