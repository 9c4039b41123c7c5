"""The pages in Airflow's UI, in a real browser on the real stack."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, Locator, expect

from airflow_horsies.embedded.stack import EmbeddedStack
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger import attempts
from airflow_horsies.models import AirflowTry, LogChunk, TaskInstanceKey, TaskSpec, TaskState
from tests.acceptance.browser import PATIENCE_SECONDS, Window, find_browser, open_browser
from tests.acceptance.conftest import AirflowApi

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_browser() is None, reason="NO BROWSER: neither Chromium nor Chrome is installed"),
]
expect.set_options(timeout=PATIENCE_SECONDS * 1000)

# The page must have opened before the first retry.
RETRY_SOON = {"intervals": [15, 4], "auto_retry_for": ["TRY_AGAIN"], "jitter": False}
HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\u202eright to left\x1b[31m\x07"

# What Airflow paints its pages with, and what ours is painted with.
BACKGROUNDS = """() => {
    const probe = document.body.appendChild(document.createElement("div"));
    probe.style.background = "var(--chakra-colors-bg)";
    const ours = document.querySelector("iframe").contentDocument.body;
    return [probe, ours].map((element) => getComputedStyle(element).backgroundColor);
}"""

OpenWindow = Callable[..., Window]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def open_window(browser: Browser, stack: EmbeddedStack) -> Iterator[OpenWindow]:
    """Windows that are closed at the end; none of them may have complained."""
    windows: list[Window] = []

    def open_one(**looks: object) -> Window:
        windows.append(Window(browser, stack.airflow.base_url, **looks))  # type: ignore[arg-type]
        return windows[-1]

    yield open_one
    complaints = [complaint for window in windows for complaint in window.complaints]
    for window in windows:
        window.close()
    assert complaints == []


@pytest.fixture
def window(open_window: OpenWindow) -> Window:
    return open_window()


def state_of(frame: FrameLocator) -> Locator:
    return frame.locator("#state")


def done_steps(frame: FrameLocator) -> int:
    match = re.search(r"\((\d+) of", frame.locator("#progress").inner_text())
    return int(match[1]) if match else 0


def test_progress_and_log_of_a_running_spark_task_move_by_themselves(api: AirflowApi, window: Window) -> None:
    run_id = api.trigger("one_deferred", task_name="acceptance.slow_count", kwargs={"steps": 20})
    window.page.goto(f"{window.base_url}/dags/one_deferred/runs/{run_id}/tasks/one")
    window.page.get_by_role("tab", name="Horsies").or_(
        window.page.get_by_role("link", name="Horsies", exact=True)
    ).click()
    frame = window.frame
    expect(frame.locator("#progress")).to_be_visible()
    expect(state_of(frame)).to_have_text("running")
    first, lines = done_steps(frame), frame.locator("#log li").count()
    window.page.wait_for_function(
        "([frame, first]) => document.querySelector(frame).contentDocument.querySelector('#progress')"
        ".innerText.match(/\\((\\d+) of/)?.[1] > first + 3",
        arg=["iframe[title=Horsies]", first],
    )
    expect(frame.locator("#log li")).not_to_have_count(lines)
    window.shoot("running")
    expect(state_of(frame)).to_have_text("completed")
    expect(frame.locator("#log li")).to_have_count(20)
    expect(frame.locator("#log li").last).to_contain_text("step 19 begins")
    expect(frame.locator("#result")).to_have_text("20")
    expect(frame.locator("#input")).to_contain_text('"steps": 20')
    expect(frame.locator("#attempts .metrics")).to_contain_text("jobs")
    frame.locator("#filter").fill("step 7")
    expect(frame.locator("#log li:visible")).to_have_count(1)
    frame.locator("#filter").fill("")
    with window.page.expect_download() as downloaded:
        frame.locator("#download").click()
    text = Path(downloaded.value.path()).read_text()
    assert [f"step {step} begins" in text for step in range(20)] == [True] * 20
    assert api.wait("one_deferred", run_id) == "success"


def test_a_failure_a_retry_and_a_success_are_seen_one_after_the_other(api: AirflowApi, window: Window) -> None:
    kwargs = {"key": f"seen-{time.time()}"}
    run_id = api.trigger("one_inline", task_name="sample.fail_once", kwargs=kwargs, retry_policy=RETRY_SOON)
    frame = window.open_instance("one_inline", run_id, "one")
    expect(frame.locator("#attempts tbody tr").first).to_contain_text("TRY_AGAIN")
    expect(frame.locator("#attempts")).to_contain_text("retried")
    expect(state_of(frame)).to_have_text("pending")
    expect(frame.locator(".facts")).to_contain_text("1 of 3, 2 retries left")
    expect(state_of(frame)).to_have_text("completed")
    expect(frame.locator("#attempts .badge")).to_have_text(["failed", "completed"])
    expect(frame.locator(".timeline .bar.backing-off")).to_have_count(1)
    expect(frame.locator(".timeline .bar.failed, .timeline .bar.completed")).to_have_count(2)
    window.shoot("retried")
    assert api.wait("one_inline", run_id) == "success"


def test_a_running_task_is_cancelled_from_the_page(api: AirflowApi, hook: HorsiesHook, window: Window) -> None:
    run_id = api.trigger("one_deferred", task_name="acceptance.slow_count", kwargs={"steps": 120})
    frame = window.open_instance("one_deferred", run_id, "one")
    expect(state_of(frame)).to_have_text("running")
    frame.locator("#cancel").click()
    expect(frame.get_by_role("dialog")).to_contain_text("on_cancelled")
    frame.get_by_role("button", name="Cancel it").click()
    expect(frame.get_by_role("dialog")).to_contain_text("1 cancelled.")
    frame.get_by_role("button", name="Close").click()
    expect(state_of(frame)).to_have_text("cancelled")
    expect(frame.locator("#cancel")).to_have_count(0)
    expect(frame.locator("#attempts .badge")).to_have_text(["cancelled"])
    (submission,) = hook.read_submissions(TaskInstanceKey(dag_id="one_deferred", run_id=run_id, task_id="one"))
    assert hook.read_task(submission.horsies_task_id).state is TaskState.CANCELLED
    assert api.wait("one_deferred", run_id) == "failed"
    events = api.call("GET", "/eventLogs?dag_id=one_deferred&event=horsies_cancel")["event_logs"]
    assert [event["task_id"] for event in events if event["run_id"] == run_id] == ["one"]


def test_a_dead_letter_is_rerun_and_its_dag_run_goes_green(api: AirflowApi, window: Window, tmp_path: Path) -> None:
    kwargs = {"path": str(tmp_path / "needed")}
    run_id, state = api.run("one_inline", task_name="acceptance.need_file", kwargs=kwargs)
    assert state == "failed"
    frame = window.open("/plugin/horsies")
    row = frame.locator("#dead-letters tbody tr").filter(has_text=run_id)
    expect(row).to_contain_text("NO_FILE")
    window.shoot("overview")
    Path(kwargs["path"]).touch()
    frame.locator("[data-focus=code-NO_FILE]").click()
    row.get_by_role("checkbox").check()
    frame.locator("#rerun-chosen").click()
    frame.get_by_role("button", name="Clear and rerun").click()
    expect(frame.get_by_role("dialog")).to_contain_text("1 task instance cleared")
    frame.get_by_role("button", name="Close").click()
    assert api.wait("one_inline", run_id) == "success"
    expect(row).to_have_count(0)
    page = window.open_instance("one_inline", run_id, "one")
    expect(page.locator("#submission option")).to_have_count(2)
    expect(page.locator("#submission")).to_contain_text("life 2, round 1")


def test_a_task_instance_is_rerun_from_its_page(api: AirflowApi, window: Window, tmp_path: Path) -> None:
    kwargs = {"path": str(tmp_path / "needed")}
    run_id, _ = api.run("one_inline", task_name="acceptance.need_file", kwargs=kwargs)
    frame = window.open_instance("one_inline", run_id, "one")
    expect(frame.locator("#error")).to_contain_text("NO_FILE")
    window.shoot("failed")
    Path(kwargs["path"]).touch()
    # By keyboard alone: opened, left with Escape, opened again.
    frame.locator("#rerun").focus()
    window.page.keyboard.press("Enter")
    expect(frame.get_by_role("dialog")).to_contain_text("clears 2 task instances")
    window.page.keyboard.press("Escape")
    expect(frame.get_by_role("dialog")).to_have_count(0)
    expect(frame.locator("#rerun")).to_be_focused()
    window.page.keyboard.press("Enter")
    expect(frame.get_by_role("dialog")).to_contain_text("clears 2 task instances")
    frame.get_by_role("button", name="Clear and rerun").click()
    expect(frame.get_by_role("dialog")).to_contain_text("Cleared 2 task instances")
    frame.get_by_role("button", name="Close").click()
    expect(state_of(frame)).to_have_text("completed")
    assert api.wait("one_inline", run_id) == "success"


def test_a_mapped_task_instance_has_a_page_of_its_own(api: AirflowApi, window: Window) -> None:
    run_id, _ = api.run("horsies_mapped")
    frame = window.open_instance("horsies_mapped", run_id, "add_one", 1)
    expect(state_of(frame)).to_have_text("completed")
    expect(frame.locator("#attempts tbody tr")).not_to_have_count(0)
    run_page = window.open(f"/dags/horsies_mapped/runs/{run_id}/plugin/horsies-run")
    expect(run_page.locator("#gantt .row a")).to_have_count(3)
    window.shoot("run")
    # A link in the frame moves the Airflow around it.
    run_page.get_by_role("link", name="add_one [1]").click()
    expect(window.page).to_have_url(re.compile(r"/tasks/add_one/mapped/1/plugin/horsies-task$"))
    expect(state_of(window.frame)).to_have_text("completed")


@pytest.mark.slow
def test_a_batch_of_a_thousand_is_a_table_that_can_be_sorted(api: AirflowApi, window: Window) -> None:
    items = [{"a": number, "b": 1} for number in range(999)] + [{"a": "wrong", "b": 1}]
    run_id = api.trigger("batch", task_name="sample.add", items=items, max_failures=5)
    frame = window.open_instance("batch", run_id, "batch")
    expect(frame.locator("header")).to_contain_text("1,000 items")
    expect(frame.locator("#items tbody tr")).to_have_count(50)
    assert api.wait("batch", run_id, seconds=300) == "success"
    expect(frame.locator(".counts")).to_contain_text("999")
    frame.locator("[data-focus=sort-error_code]").click()
    expect(frame.locator("#items tbody tr").first).to_contain_text("BAD_INPUT")
    frame.locator("[data-focus=sort-position]").click()
    frame.locator("[data-focus=sort-position]").click()
    expect(frame.locator("#items tbody tr button").first).to_have_text("999")
    window.shoot("batch")
    frame.locator("[data-focus=next]").click()
    expect(frame.locator(".pager")).to_contain_text("51 to 100 of 1,000")
    frame.locator("#item-state").select_option("FAILED")
    expect(frame.locator("#items tbody tr")).to_have_count(1)
    frame.locator("#items tbody button").click()
    expect(frame.locator("#error")).to_contain_text("BAD_INPUT")
    # Airflow keeps the beginning of so many items only, so nobody can tell whether this text is a secret.
    expect(frame.locator("#input")).to_contain_text('"a": "(hidden)"')
    frame.get_by_role("button", name="All items").click()
    expect(frame.locator("#error")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_look_like_the_airflow_around_them(open_window: OpenWindow, theme: str) -> None:
    window = open_window(theme=theme, zone="Asia/Tokyo")
    frame = window.open("/plugin/horsies")
    expect(frame.locator("#workers tbody tr")).not_to_have_count(0)
    around, ours = window.page.evaluate(BACKGROUNDS)
    assert ours == around
    sent = frame.locator("#activity time").first
    expect(sent).to_be_visible()
    shown, instant = sent.inner_text(), sent.get_attribute("datetime")
    assert instant is not None
    expected = datetime.fromisoformat(instant).timestamp() + 9 * 3600
    assert shown == datetime.fromtimestamp(expected, UTC).strftime("%H:%M:%S")
    window.shoot(f"overview-{theme}")


@pytest.mark.parametrize("width", [640, 1280])
def test_nothing_sticks_out_of_the_window(
    api: AirflowApi, hook: HorsiesHook, open_window: OpenWindow, width: int
) -> None:
    """On a page of its own, as the operator's link opens it."""
    run_id, _ = api.run("one_inline", task_name="sample.add", kwargs={"a": 1, "b": 1})
    window = open_window(width=width)
    for path in ("/horsies/", f"/horsies/dags/one_inline/runs/{run_id}/tasks/one/-1"):
        window.page.goto(f"{window.base_url}{path}")
        expect(window.page.locator("main .card").first).to_be_visible()
        assert window.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    expect(window.page.get_by_role("link", name="Open in Airflow")).to_be_visible()


def test_hostile_words_are_shown_as_words(
    api: AirflowApi, hook: HorsiesHook, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What another deployment submits is not shown.
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", window.base_url)
    run_id, _ = api.run("one_inline", task_name="acceptance.fail", kwargs={"code": "BAD", "message": HOSTILE})
    for _ in range(2):
        frame = window.open_instance("one_inline", run_id, "one")
        expect(frame.locator("#error")).to_contain_text("<script>window.pwned = 1</script><img src=x")
        expect(frame.locator("#input")).to_contain_text("<script>")
    key = TaskInstanceKey(dag_id="one_inline", run_id=run_id, task_id="<b>never")
    sent = hook.submit_task(TaskSpec(task_name=HOSTILE, queue="nobody"), key, AirflowTry(try_number=1))
    try:
        lines = [HOSTILE, *(f"{number} {'x' * 420}" for number in range(12_000))]
        for start in range(0, len(lines), 4_000):
            chunk = LogChunk(start + 1, datetime.now(UTC), "ERROR", lines[start : start + 4_000])
            hook.client.run(lambda chunk=chunk: attempts.append_lines(sent.task_id, 1, [chunk]))  # type: ignore[misc]
        window.page.goto(f"{window.base_url}/horsies/dags/one_inline/runs/{run_id}/tasks/%3Cb%3Enever/-1")
        expect(window.page.get_by_role("heading", level=1)).to_contain_text("<script>window.pwned = 1</script>")
        expect(window.page.locator("#log li").last).to_contain_text("11999 xxx")
        assert window.page.locator("#log li").count() <= 5_000
        expect(window.page.locator(".log")).to_contain_text("are not shown. The download contains all lines.")
        window.open("/plugin/horsies")
        expect(window.frame.locator("#activity")).to_contain_text("<b>never")
    finally:
        hook.cancel_task(sent.task_id)
    assert window.page.evaluate("window.pwned === undefined")
    assert window.page.evaluate("document.querySelector('iframe').contentWindow.pwned === undefined")


def test_upstreams_own_monitoring_opens_from_the_page(window: Window) -> None:
    frame = window.open("/plugin/horsies")
    frame.locator("#monitoring").click()
    inner = window.page.frame_locator("iframe")
    expect(inner.locator("#root")).to_contain_text(re.compile("tasks", re.IGNORECASE))
