from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("horsies")
pytest.importorskip("pyspark")

import numpy as np
import pandas as pd
from horsies import TaskError
from pydantic import BaseModel
from pyspark.sql import Row

from airflow_horsies.models import ResultReference
from airflow_horsies.worker.errors import TaskFault
from airflow_horsies.worker.results import to_json

MAX_BYTES = 1_000


def convert(value: Any, *, max_rows: int | None = None, max_bytes: int = MAX_BYTES) -> Any:
    return to_json(value, max_rows=max_rows, max_bytes=max_bytes)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Leg:
    origin: str
    day: date


@dataclass
class Trip:
    legs: list[Leg]
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


class Price(BaseModel):
    amount: Decimal
    at: datetime


class Reading(BaseModel):
    value: float


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "converted"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (2**70, 2**70),
        (1.5, 1.5),
        ("naïve 🐎", "naïve 🐎"),
        ({}, {}),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ((1, (2, 3)), [1, [2, 3]]),
        ({7}, [7]),
        (date(2026, 3, 1), "2026-03-01"),
        (NOON, "2026-03-01T12:00:00Z"),
        (datetime(2026, 3, 1, 12), "2026-03-01T12:00:00"),
        (time(12, 30), "12:30:00"),
        (timedelta(days=1), "P1D"),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("/data/x"), "/data/x"),
        (Colour.RED, "red"),
        (b"bytes", "bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_become_json(value: Any, converted: Any) -> None:
    assert convert(value) == converted
    assert convert({"x": [value]}) == {"x": [converted]}


@pytest.mark.parametrize(
    ("value", "converted"),
    [
        (np.int64(3), 3),
        (np.float64(1.5), 1.5),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([]), []),
        (np.datetime64("2026-03-01"), "2026-03-01"),
        (np.datetime64("2026-03-01T12:00:00", "ns"), "2026-03-01T12:00:00.000000000"),
        (pd.Timestamp("2026-03-01 12:00"), "2026-03-01T12:00:00"),
        (pd.Timestamp("2026-03-01 12:00", tz="UTC"), "2026-03-01T12:00:00Z"),
        (pd.Series([1, 2]), [1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_numpy_and_pandas_become_json_of_pythons_own_types(value: Any, converted: Any) -> None:
    found = convert({"x": [value]})["x"][0]
    assert found == converted
    assert type(found) is type(converted)


def test_dataclasses_become_objects_also_within_others() -> None:
    trip = Trip([Leg("JFK", date(2026, 3, 1))], ("a",), {"n": np.int64(1)})
    converted = {"legs": [{"origin": "JFK", "day": "2026-03-01"}], "tags": ["a"], "extra": {"n": 1}}
    assert convert(trip) == converted
    assert convert([{"trip": trip}]) == [{"trip": converted}]


def test_models_become_objects_also_within_others() -> None:
    price = Price(amount=Decimal("9.90"), at=NOON)
    assert convert(price) == {"amount": "9.90", "at": "2026-03-01T12:00:00Z"}
    assert convert({"all": (price,)}) == {"all": [{"amount": "9.90", "at": "2026-03-01T12:00:00Z"}]}


def test_rows_become_objects_by_their_columns() -> None:
    row = Row(origin="JFK", day=date(2026, 3, 1), inner=Row(n=1), many=[Row(n=2)])
    converted = {"origin": "JFK", "day": "2026-03-01", "inner": {"n": 1}, "many": [{"n": 2}]}
    assert convert(row) == converted
    assert convert([row, row]) == [converted, converted]


def test_a_row_without_names_becomes_a_list() -> None:
    assert convert([Row(1, date(2026, 3, 1))]) == [[1, "2026-03-01"]]


def test_a_reference_to_a_result_is_what_the_operator_hands_on() -> None:
    reference = ResultReference(uri="s3a://lake/x", format="parquet", rows=3, columns=("a", "b"))
    converted = convert(reference)
    assert converted == {"uri": "s3a://lake/x", "format": "parquet", "rows": 3, "columns": ["a", "b"]}
    assert ResultReference(**{**converted, "columns": tuple(converted["columns"])}) == reference


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "result is nan"),
        ([1.0, float("inf")], "result[1] is inf"),
        ({"a": {"b": [float("-inf")]}}, "result['a']['b'][0] is -inf"),
        (np.float64("nan"), "result is nan"),
        (np.float32("inf"), "result is inf"),
        ({"x": np.array([[1.0, float("nan")]])}, "result['x'][0][1] is nan"),
        ([Reading(value=float("nan"))], "result[0]['value'] is nan"),
        (Row(x=float("nan")), "result['x'] is nan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_json_lacks_are_told_with_their_place(value: Any, place: str) -> None:
    with pytest.raises(TaskFault) as caught:
        convert(value)
    assert caught.value.code == "RESULT_NOT_JSON"
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, int, Leg, pd.NaT, pd.NA, pd.DataFrame({"a": [1]}), b"\xff", ValueError("x")]
)
def test_what_json_cannot_hold_is_told(value: Any) -> None:
    with pytest.raises(TaskFault, match=r"(?i)result") as caught:
        convert({"x": [value]})
    assert caught.value.code == "RESULT_NOT_JSON"
    assert caught.value.__cause__ is None


def test_the_type_that_json_does_not_know_is_named() -> None:
    with pytest.raises(TaskFault, match=r"pandas\S*DataFrame"):
        convert(pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize("key", [(1, 2), frozenset(), b"x"])
def test_keys_that_are_no_text_are_told_with_their_place(key: Any) -> None:
    with pytest.raises(TaskFault) as caught:
        convert({"a": [{key: 1}]})
    assert caught.value.code == "RESULT_NOT_JSON"
    assert f"A key in result['a'][0] is not a string: {key!r}" in str(caught.value)


def test_keys_that_are_numbers_become_text() -> None:
    assert convert({1: "a", 2.5: "b", "c": "c"}) == {"1": "a", "2.5": "b", "c": "c"}
    assert convert({np.int64(1): "a", np.float64(2.5): "b"}) == {"1": "a", "2.5": "b"}


def test_keys_that_would_become_the_same_are_told_with_their_place() -> None:
    with pytest.raises(TaskFault, match=r"Two keys in result\['a'\] have the same JSON form: '1'") as caught:
        convert({"a": {1: "a", "1": "b"}})
    assert caught.value.code == "RESULT_NOT_JSON"


def list_in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def dict_in_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize("make", [list_in_itself, dict_in_itself])
def test_a_result_that_contains_itself_is_told(make: Callable[[], Any]) -> None:
    with pytest.raises(TaskFault, match="The result contains itself") as caught:
        convert(make())
    assert caught.value.code == "RESULT_NOT_JSON"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["a", {"text": "b\0c"}], r"result\[1\]\['text'\] contains a NUL character"),
        ({"b\0c": 1}, "a key of result contains a NUL character"),
        ({"__classname__": "x"}, "The key '__classname__' in result is reserved by Airflow"),
        (10**5000, "cannot be converted to JSON"),
    ],
    ids=["NUL", "NUL in a key", "reserved key", "huge number"],
)
def test_what_airflow_cannot_keep_is_no_result(value: Any, problem: str) -> None:
    with pytest.raises(TaskFault, match=problem) as caught:
        convert(value)
    assert caught.value.code == "RESULT_NOT_JSON"


def test_an_error_that_is_returned_instead_of_raised_is_no_result() -> None:
    with pytest.raises(TaskFault, match="Raise an exception to fail") as caught:
        convert(TaskError(error_code="X", message="m"))
    assert caught.value.code == "RESULT_NOT_JSON"


def test_a_result_may_be_as_large_as_allowed_and_no_larger() -> None:
    assert convert("x" * (MAX_BYTES - 2)) == "x" * (MAX_BYTES - 2)
    with pytest.raises(TaskFault, match=r"1,001 bytes of JSON, and the limit is 1,000\. .*save_result") as caught:
        convert("x" * (MAX_BYTES - 1))
    assert caught.value.code == "RESULT_TOO_LARGE"


def test_the_size_of_a_result_is_that_of_its_bytes() -> None:
    assert convert("é" * 499)
    with pytest.raises(TaskFault, match="bytes of JSON"):
        convert("é" * 500)


class FakeDataFrame:
    """The part of a DataFrame that is asked for rows."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.columns = list(rows[0].__fields__) if rows else []

    def limit(self, count: int) -> FakeDataFrame:
        return type(self)(self.rows[:count])

    def collect(self) -> list[Any]:
        return self.rows


DataFrame = type("DataFrame", (FakeDataFrame,), {"__module__": "pyspark.sql.classic.dataframe"})


def test_a_dataframe_is_returned_by_rows_where_the_task_allows_it() -> None:
    frame = DataFrame([Row(n=1, inner=Row(day=date(2026, 3, 1))), Row(n=2, inner=None)])
    rows = [{"n": 1, "inner": {"day": "2026-03-01"}}, {"n": 2, "inner": None}]
    assert convert(frame, max_rows=2) == rows
    assert convert({"frame": frame}, max_rows=2) == {"frame": rows}


def test_a_dataframe_of_too_many_rows_is_told() -> None:
    with pytest.raises(TaskFault, match=r"more than 2 rows, .*max_rows.*save_result") as caught:
        convert(DataFrame([Row(n=n) for n in range(3)]), max_rows=2)
    assert caught.value.code == "RESULT_TOO_LARGE"


def test_a_dataframe_is_not_returned_unless_the_task_allows_it() -> None:
    with pytest.raises(TaskFault, match=r"Set max_rows .*save_result") as caught:
        convert(DataFrame([]))
    assert caught.value.code == "RESULT_NOT_JSON"


class FakePandasOnSpark:
    """The part of a DataFrame of pandas-on-Spark that is asked for the one of Spark."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def to_spark(self) -> Any:
        return DataFrame(self.rows)


PandasOnSpark = type("DataFrame", (FakePandasOnSpark,), {"__module__": "pyspark.pandas.frame"})


def test_a_dataframe_of_pandas_on_spark_is_one_of_spark() -> None:
    frame = PandasOnSpark([Row(n=1), Row(n=2)])
    assert convert({"frame": frame}, max_rows=2) == {"frame": [{"n": 1}, {"n": 2}]}
    with pytest.raises(TaskFault, match="more than 1 rows"):
        convert(frame, max_rows=1)
    with pytest.raises(TaskFault, match=r"Set max_rows .*save_result"):
        convert(frame)
