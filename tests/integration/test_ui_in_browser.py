"""The pages of Airflow's real api-server in a real browser: the reference, and signals on the timeline."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from airflow_horsies.client.ledger import migrate_ledger
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.ledger.catalog import CatalogEntry, record_catalog
from airflow_horsies.models import KnownKind
from tests.acceptance.browser import find_browser, open_browser
from tests.integration.chunk_rig import sql
from tests.integration.releases import MOVED
from tests.integration.test_ui_moments import consume, open_callback, park
from tests.integration.ui_site import INSTANCE, PAGES, Site, api_path, submit

pytestmark = [
    pytest.mark.parametrize("release", [MOVED], indirect=True),
    pytest.mark.usefixtures("of_site"),
    pytest.mark.skipif(find_browser() is None, reason="There is no Chromium. Run 'make browser'."),
]

PICTURES = os.environ.get("UI_PICTURES")
SHARED_SECONDS = 2.5


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(params=["light", "dark"])
def tab(browser: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab of an administrator, in which nothing may go wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 1200}, color_scheme=request.param)
    name, _, token = site.cookie("admin")["Cookie"].partition("=")
    context.add_cookies([{"name": name, "value": token, "url": site.origin}])
    page = context.new_page()
    settings = {"theme": request.param, "timezone": json.dumps("UTC")}
    page.add_init_script(
        f"for (const [key, value] of Object.entries({json.dumps(settings)})) localStorage.setItem(key, value)"
    )
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    page.set_default_timeout(60_000)
    yield page
    if PICTURES:
        folder = Path(PICTURES)
        folder.mkdir(parents=True, exist_ok=True)
        name = request.node.originalname or request.node.name
        page.screenshot(path=folder / f"{name}-{request.param}.png")
    context.close()
    assert [text for text in complaints if "favicon" not in text] == []


def record(hook: HorsiesHook, count: int) -> None:
    migrate_ledger(hook.client)
    schema = {
        "properties": {
            "path": {"type": "string", "description": "Where the files are."},
            "days": {"type": "array", "items": {"type": "string", "format": "date"}},
            "rows": {"type": "integer", "default": 5},
        },
        "required": ["path", "days"],
        "additionalProperties": False,
    }
    entries = [
        CatalogEntry(
            kind=KnownKind.TASK,
            name="flights.<b>load",
            queue="spark",
            parameters=json.dumps(schema),
            doc="Loads the flights of some days.\nReturns the number of rows.",
        ),
        CatalogEntry(kind=KnownKind.WORKFLOW, name="flights.month", queue=None, parameters="{}", doc=None),
        *(
            CatalogEntry(
                kind=KnownKind.TASK, name=f"other.task_{n:03}", queue=None, parameters=json.dumps(schema), doc=None
            )
            for n in range(count)
        ),
    ]
    digest = hashlib.sha256(str(count).encode()).digest()
    place = {"hostname": "node-1", "pid": 7, "release": "1.0", "queues": ["default", "spark"]}
    hook.client.run(lambda: record_catalog(digest=digest, entries=entries, **place))  # type: ignore[arg-type]


def test_reference_is_searched_and_turned_with_the_keyboard(connected: Site, hook: HorsiesHook, tab: Page) -> None:
    record(hook, 60)
    time.sleep(SHARED_SECONDS)
    tab.goto(f"{connected.origin}{PAGES}/")
    tab.locator("#reference").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text("Tasks and workflows")
    expect(tab.locator("#count")).to_have_text("1 to 25 of 62 entries")
    # Everything can be reached without a mouse.
    search = tab.get_by_role("searchbox")
    search.focus()
    for name in ("All", "Tasks", "Workflows"):
        tab.keyboard.press("Tab")
        expect(tab.get_by_role("button", name=name, exact=True)).to_be_focused()
    tab.get_by_role("button", name="Next").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#count")).to_have_text("26 to 50 of 62 entries")
    search.fill("load flights")
    expect(tab.locator("#count")).to_have_text("1 entry")
    expect(search).to_be_focused()
    card = tab.locator(".known")
    expect(card.locator("h2")).to_have_text("flights.<b>load")
    expect(card.locator("tbody tr")).to_have_count(3)
    expect(card.locator("tbody tr").nth(1)).to_contain_text("array of date")
    expect(card.locator("tbody tr").nth(2)).to_contain_text("5")
    expect(card).to_contain_text("Returns the number of rows.")
    expect(card).to_contain_text("Known by 1 worker of 2 queues default, spark on node-1")
    tab.get_by_role("button", name="Workflows").click()
    expect(tab.get_by_role("status").filter(has_text="Nothing found")).to_be_visible()
    tab.get_by_role("button", name="Show all").click()
    expect(tab.locator("#count")).to_have_text("1 to 25 of 62 entries")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_empty_reference_says_what_to_do(connected: Site, hook: HorsiesHook, tab: Page) -> None:
    migrate_ledger(hook.client)
    time.sleep(SHARED_SECONDS)
    tab.goto(f"{connected.origin}{PAGES}/tasks")
    expect(tab.get_by_role("status").filter(has_text="No tasks yet")).to_contain_text(
        "python -m airflow_horsies.worker my_tasks:app"
    )


def test_signals_waits_and_callbacks_are_on_the_timeline(connected: Site, hook: HorsiesHook, tab: Page) -> None:
    (task_id,) = submit(hook)
    sql(
        hook,
        "UPDATE airflow_horsies.submissions SET submitted_at = now() - interval '60 s' WHERE horsies_task_id = %s",
        task_id,
    )
    hook.signal(task_id, "approved", {"by": "anna"})
    hook.signal(task_id, "later")
    park(hook, task_id, "approved", due="1 hour")
    consume(hook, task_id, "approved")
    park(hook, task_id, "@timer", due="1 hour")
    sql(hook, "UPDATE airflow_horsies.messages SET sent_at = now() - interval '40 s' WHERE name = 'approved'")
    sql(hook, "UPDATE airflow_horsies.messages SET sent_at = now() - interval '5 s' WHERE name = 'later'")
    beat = {"heartbeats": 3}
    open_callback(hook, 1, task_id, **beat)
    sql(
        hook,
        "UPDATE airflow_horsies.callbacks SET created_at = now() - interval '50 s',"
        " heartbeat_at = now() - interval '20 s'",
    )
    tab.goto(f"{connected.origin}{api_path().replace('/horsies/api/', '/horsies/')}")
    rows = tab.locator(".timeline .row")
    expect(rows.filter(has_text="signals").locator(".bar")).to_have_count(2)
    approved = rows.filter(has_text="signals").locator(".bar").first
    approved.focus()
    expect(approved.locator(".tip")).to_contain_text("signal approved")
    expect(approved.locator(".tip")).to_contain_text("received by attempt 2")
    expect(rows.filter(has_text="callback").locator(".bar")).to_have_count(2)
    told = tab.locator("#moments tbody tr")
    expect(told.filter(has_text="Signal approved sent")).to_contain_text("anna")
    expect(told.filter(has_text="Signal later sent, not received yet")).to_have_count(1)
    expect(told.filter(has_text="Parked: waits for a time")).to_contain_text("waits now")
    expect(told.filter(has_text="Callback: last of 3 heartbeats")).to_have_count(1)
    assert INSTANCE.task_id in tab.title()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
