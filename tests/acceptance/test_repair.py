"""Repair on the real stack: only what did not complete runs again, counted by the marks that each run leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from airflow_horsies.embedded.stack import EmbeddedStack
from tests.acceptance.browser import PATIENCE_SECONDS, Window, find_browser, open_browser
from tests.acceptance.conftest import AirflowApi

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_browser() is None, reason="NO BROWSER: neither Chromium nor Chrome is installed"),
]
expect.set_options(timeout=PATIENCE_SECONDS * 1000)

# One is a horsies task for each item, the other has chunks.
SIZES = {"batch": (60, 7), "batch_in_chunks": (1_000, 37)}
RUN_SECONDS = 400.0


@pytest.fixture
def window(stack: EmbeddedStack) -> Iterator[Window]:
    with open_browser() as browser:
        window = Window(browser, stack.airflow.base_url)
        yield window
        window.close()
        assert window.complaints == []


def fail_some(api: AirflowApi, folder: Path, *, items: int, failures: int, dag_id: str = "batch") -> str:
    """A batch of which all items ran and some failed as planned; its run. The last item to run is one too many."""
    kwargs = [{"folder": str(folder), "number": n, "total": items, "failures": failures} for n in range(items)]
    run_id = api.trigger(dag_id, task_name="acceptance.count_run", items=kwargs, max_failures=failures - 1)
    assert api.wait(dag_id, run_id, RUN_SECONDS) == "failed"
    assert (count_runs(folder), len(failed_items(folder))) == ({1: items}, failures)
    (folder / "mended").touch()
    return run_id


def failed_items(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("failed-")) for path in folder.glob("failed-*"))


def count_runs(folder: Path) -> Counter[int]:
    """How many items ran how often."""
    return Counter(len(path.read_text().splitlines()) for path in folder.glob("run-*"))


@pytest.mark.parametrize("dag_id", SIZES)
def test_a_batch_is_repaired_from_its_page(api: AirflowApi, window: Window, tmp_path: Path, dag_id: str) -> None:
    items, failures = SIZES[dag_id]
    run_id = fail_some(api, tmp_path, items=items, failures=failures, dag_id=dag_id)
    frame = window.open_instance(dag_id, run_id, "batch")
    expect(frame.locator("#items tbody tr").first).to_be_visible()
    window.shoot(f"items-{dag_id}")
    frame.locator("#repair").click()
    expect(frame.get_by_role("dialog")).to_contain_text(f"{failures} items that did not complete are sent again")
    expect(frame.get_by_role("dialog")).to_contain_text(f"{items - failures} other items do not run again")
    window.shoot(f"repair-{dag_id}")
    frame.get_by_role("button", name="Clear and rerun").click()
    expect(frame.get_by_role("dialog")).to_contain_text("Cleared 1 task instance")
    frame.get_by_role("button", name="Close").click()
    assert api.wait(dag_id, run_id, RUN_SECONDS) == "success"
    assert count_runs(tmp_path) == {1: items - failures, 2: failures}
    assert api.xcom(dag_id, run_id, "batch") == list(range(items))
    expect(frame.locator("#repair")).to_have_count(0)
    events = api.call("GET", f"/eventLogs?dag_id={dag_id}&event=horsies_repair")["event_logs"]
    assert [event["task_id"] for event in events if event["run_id"] == run_id] == ["batch"]
    # A plain clear still runs everything.
    api.clear(dag_id, run_id, "batch")
    api.until(lambda: count_runs(tmp_path) == {2: items - failures, 3: failures}, RUN_SECONDS, "a run of all items")
    assert api.wait(dag_id, run_id, RUN_SECONDS) == "success"


def test_one_item_is_repaired_from_its_page(api: AirflowApi, window: Window, tmp_path: Path) -> None:
    """The others stay failed."""
    run_id = fail_some(api, tmp_path, items=6, failures=3)
    frame = window.open_instance("batch", run_id, "batch")
    chosen, *others = failed_items(tmp_path)
    frame.locator(f"[data-focus=item-{chosen}]").click()
    frame.locator("#repair-item").click()
    expect(frame.get_by_role("dialog")).to_contain_text("Only this item is sent again")
    expect(frame.get_by_role("dialog")).to_contain_text("unless its max_failures allows 2")
    window.shoot("repair-item")
    frame.get_by_role("button", name="Clear and rerun").click()
    expect(frame.get_by_role("dialog")).to_contain_text("Cleared 1 task instance")
    # Two failures are allowed here.
    api.until(lambda: count_runs(tmp_path) == {1: 5, 2: 1}, RUN_SECONDS, "a run of the item")
    assert api.wait("batch", run_id, RUN_SECONDS) == "success"
    assert api.xcom("batch", run_id, "batch") == [None if n in others else n for n in range(6)]


def test_a_batch_is_repaired_from_the_dead_letters(api: AirflowApi, window: Window, tmp_path: Path) -> None:
    run_id = fail_some(api, tmp_path, items=10, failures=2)
    frame = window.open("/plugin/horsies")
    row = frame.locator("#dead-letters tbody tr").filter(has_text=run_id)
    row.get_by_role("checkbox").check()
    frame.locator("#rerun-chosen").click()
    frame.locator("#keep-completed").check()
    window.shoot("repair-dead-letters")
    frame.get_by_role("button", name="Clear and rerun").click()
    expect(frame.get_by_role("dialog")).to_contain_text("1 task instance cleared")
    api.until(lambda: count_runs(tmp_path) == {1: 8, 2: 2}, RUN_SECONDS, "a run of the failed items")
    assert api.wait("batch", run_id, RUN_SECONDS) == "success"
    assert count_runs(tmp_path) == {1: 8, 2: 2}


def test_a_batch_is_repaired_from_the_command_line(api: AirflowApi, stack: EmbeddedStack, tmp_path: Path) -> None:
    run_id = fail_some(api, tmp_path, items=10, failures=2)
    airflow = Path(sys.executable).with_name("airflow")
    done = subprocess.run(
        [airflow, "horsies", "rerun", "batch", run_id, "batch", "--failed"],
        capture_output=True,
        text=True,
        env=os.environ | stack.airflow.environ(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "Cleared 1 task instance. Of the batch, only items that did not complete run again.\n",
    ), done.stderr
    assert api.wait("batch", run_id, RUN_SECONDS) == "success"
    assert count_runs(tmp_path) == {1: 8, 2: 2}
    events = api.call("GET", "/eventLogs?event=cli_horsies_rerun&limit=1000")["event_logs"]
    assert run_id in "".join(str(event["extra"]) for event in events)
