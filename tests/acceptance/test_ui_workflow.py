"""The graph of a workflow on the tab of its task instance, in a real browser on the real stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, expect

from airflow_horsies.hook import HorsiesHook
from airflow_horsies.models import TaskInstanceKey, WorkflowState
from tests.acceptance.browser import PATIENCE_SECONDS, Window, find_browser
from tests.acceptance.conftest import AirflowApi
from tests.acceptance.test_ui import OpenWindow, browser, open_window

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_browser() is None, reason="NO BROWSER: neither Chromium nor Chrome is installed"),
]
# A graph takes many steps, of Airflow and of the worker.
LONG = 4 * PATIENCE_SECONDS * 1000

__all__ = ["browser", "open_window"]

DAG_ID = "workflow_page"


@pytest.fixture
def window(open_window: OpenWindow) -> Window:
    return open_window()


def graph_node(frame: FrameLocator, name: str) -> Locator:
    """Of the drawing, by what a screen reader says of it."""
    return frame.locator(f'.graph .node:is([aria-label^="Task {name},"], [aria-label^="Workflow {name},"])')


def expect_state(frame: FrameLocator, name: str, state: str) -> None:
    expect(graph_node(frame, name)).to_have_class(f"node task {state}", timeout=LONG)


def start(api: AirflowApi, hook: HorsiesHook, window: Window, folder: Path) -> tuple[str, FrameLocator]:
    run_id = api.trigger(DAG_ID, folder=str(folder))
    instance = TaskInstanceKey(dag_id=DAG_ID, run_id=run_id, task_id="graph")
    api.until(lambda: bool(hook.read_submissions(instance)), LONG / 1000, "the start of the workflow")
    frame = window.open_instance(DAG_ID, run_id, "graph")
    expect_state(frame, "fetch", "running")
    return run_id, frame


def confirm(frame: FrameLocator, opener: str, button: str, outcome: str) -> None:
    frame.locator(f"#workflow-{opener}").click()
    frame.get_by_role("button", name=button).click()
    expect(frame.get_by_role("dialog")).to_contain_text(outcome)
    frame.get_by_role("button", name="Close").last.click()
    expect(frame.get_by_role("dialog")).to_have_count(0)


def outcome_of(hook: HorsiesHook, run_id: str) -> Any:
    (sent,) = hook.read_submissions(TaskInstanceKey(dag_id=DAG_ID, run_id=run_id, task_id="graph"))
    return hook.read_workflow_outcome(sent.horsies_task_id)


def actions_of(frame: FrameLocator) -> list[str]:
    ids = [each.get_attribute("id") or "" for each in frame.locator(".actions button[id^=workflow-]").all()]
    return [each.removeprefix("workflow-") for each in ids]


def test_the_graph_moves_and_a_failed_node_and_a_signal_are_seen_to(
    api: AirflowApi, hook: HorsiesHook, window: Window, tmp_path: Path
) -> None:
    run_id, frame = start(api, hook, window, tmp_path)
    for name in ("check", "approval", "publish"):
        expect_state(frame, name, "pending")
    assert actions_of(frame) == ["pause", "signal", "cancel"]
    # Nothing is reloaded from here on.
    window.page.evaluate("document.querySelector('iframe').contentWindow.untouched = true")
    (tmp_path / "fetched").touch()
    expect_state(frame, "fetch", "completed")
    expect_state(frame, "check", "failed")
    expect(frame.locator("#workflow-state")).to_have_text("paused", timeout=LONG)
    expect(frame.locator("#workflow-retry")).to_be_visible()
    assert actions_of(frame) == ["resume", "retry", "signal", "cancel"]
    # From the failure to its node, its attempts and what they say.
    frame.locator("#error button").click()
    expect(frame.locator("#node-name")).to_have_text("check")
    expect(frame.locator("#node-error")).to_contain_text("NO_FILE")
    expect(frame.locator("#attempts tbody tr")).to_have_count(1)
    window.shoot("workflow-paused")
    (tmp_path / "needed").touch()
    confirm(frame, "retry", "Retry them", "Again: check.")
    expect_state(frame, "check", "completed")
    # The workflow inside is folded, and opens by key.
    expect(graph_node(frame, "pair")).to_have_class("node workflow completed", timeout=LONG)
    graph_node(frame, "pair").focus()
    window.page.keyboard.press("Enter")
    expect(graph_node(frame, "first")).to_be_visible()
    window.page.keyboard.press("ArrowRight")
    graph_node(frame, "first").click()
    expect(frame.locator("#node-name")).to_have_text("pair / first")
    expect(frame.locator("#log li")).to_contain_text(["I say the pair, first"])
    frame.locator("#nodes").get_by_role("button", name="pair / second").click()
    expect(frame.locator("#log li")).to_contain_text(["I say the pair, second"])
    with window.page.expect_download() as downloaded:
        frame.locator("#download").click()
    assert "I say the pair, second" in Path(downloaded.value.path()).read_text()
    # It waits, and holds no worker, until somebody approves.
    expect_state(frame, "approval", "parked")
    frame.locator("#workflow-signal").click()
    expect(frame.locator("#signal-name")).to_have_value("approved")
    frame.locator("#signal-payload").fill('{"by": ')
    frame.get_by_role("button", name="Send it").click()
    expect(frame.get_by_role("dialog")).to_contain_text("The payload is not JSON")
    frame.locator("#signal-payload").fill('{"by": "me"}')
    frame.get_by_role("button", name="Send it").click()
    expect(frame.get_by_role("dialog")).to_contain_text("1 waiting task goes on.")
    frame.get_by_role("button", name="Close").last.click()
    expect(frame.locator("#workflow-state")).to_have_text("completed", timeout=LONG)
    expect_state(frame, "publish", "completed")
    expect(frame.locator(".actions button[id^=workflow-]")).to_have_count(0)
    window.shoot("workflow")
    assert window.page.evaluate("document.querySelector('iframe').contentWindow.untouched")
    assert outcome_of(hook, run_id).output == "published"
    assert api.wait(DAG_ID, run_id) == "success"
    assert events(api, run_id) == ["horsies_retry_workflow", "horsies_signal"]


def test_a_workflow_is_paused_resumed_and_cancelled_from_the_page(
    api: AirflowApi, hook: HorsiesHook, window: Window, tmp_path: Path
) -> None:
    run_id, frame = start(api, hook, window, tmp_path)
    confirm(frame, "pause", "Pause it", "Paused.")
    expect(frame.locator("#workflow-state")).to_have_text("paused", timeout=LONG)
    expect(frame.locator("#workflow-pause")).to_have_count(0)
    (tmp_path / "needed").touch()
    (tmp_path / "fetched").touch()
    # What runs ends, and nothing else begins.
    expect_state(frame, "fetch", "completed")
    for name in ("check", "approval", "publish"):
        assert "pending" in (graph_node(frame, name).get_attribute("class") or "")
    confirm(frame, "resume", "Resume it", "A worker was asked to resume it.")
    expect_state(frame, "check", "completed")
    expect_state(frame, "approval", "parked")
    confirm(frame, "cancel", "Cancel it", "1 cancelled.")
    expect(frame.locator("#workflow-state")).to_have_text("cancelled")
    expect(graph_node(frame, "publish")).to_have_class("node task skipped")
    expect(frame.locator(".actions button[id^=workflow-]")).to_have_count(0)
    assert outcome_of(hook, run_id).state is WorkflowState.CANCELLED
    assert api.wait(DAG_ID, run_id) == "failed"
    verbs = ("pause", "resume", "cancel")
    assert events(api, run_id) == [f"horsies_{verb}_workflow" for verb in verbs]


def test_what_somebody_else_did_meanwhile_is_not_done_twice(
    api: AirflowApi, hook: HorsiesHook, window: Window, tmp_path: Path
) -> None:
    """The dialog was opened for a running workflow, and it has been paused since."""
    run_id, frame = start(api, hook, window, tmp_path)
    frame.locator("#workflow-cancel").click()
    hook.pause_workflow(outcome_of(hook, run_id).id)
    frame.get_by_role("button", name="Cancel it").click()
    expect(frame.get_by_role("dialog")).to_contain_text("The workflow is paused by now")
    assert outcome_of(hook, run_id).state is WorkflowState.PAUSED
    frame.get_by_role("button", name="Close").last.click()
    expect(frame.locator("#workflow-state")).to_have_text("paused", timeout=LONG)
    confirm(frame, "cancel", "Cancel it", "1 cancelled.")
    (tmp_path / "fetched").touch()
    assert api.wait(DAG_ID, run_id) == "failed"
    # The browser reports the refusal.
    refused = [complaint for complaint in window.complaints if "409" in complaint]
    window.complaints = [complaint for complaint in window.complaints if complaint not in refused]
    assert len(refused) == 1


def events(api: AirflowApi, run_id: str) -> list[str]:
    found = api.call("GET", f"/eventLogs?dag_id={DAG_ID}&order_by=id&limit=100")["event_logs"]
    return [each["event"] for each in found if each["run_id"] == run_id and each["event"].startswith("horsies_")]
