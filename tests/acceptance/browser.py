"""A real Chromium or Chrome, and pages of Airflow in it as a person sees them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, FrameLocator, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The sandbox needs a user other than root; the rest keeps the browser from calling home.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENSHOTS = os.environ.get("SCREENSHOTS")
PATIENCE_SECONDS = 60
# Airflow's own pages have these, and they break nothing of ours.
KNOWN_COMPLAINTS = re.compile(r"iframe which has both allow-scripts|Failed to load resource.*favicon", re.DOTALL)


def find_browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A browser window on an Airflow; what goes wrong in it is remembered."""

    def __init__(
        self, browser: Browser, base_url: str, *, theme: str = "light", zone: str = "UTC", width: int = 1280
    ) -> None:
        self.base_url = base_url
        # A picture shows more of a page than a window does.
        height = 1200 if SCREENSHOTS else 900
        self._context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        self._context.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.page: Page = self._context.new_page()
        settings = {"theme": theme, "timezone": json.dumps(zone)}
        self.page.add_init_script(
            f"for (const [key, value] of Object.entries({json.dumps(settings)})) localStorage.setItem(key, value)"
        )
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _hear(self, message: Any) -> None:
        if message.type == "error" and not KNOWN_COMPLAINTS.search(message.text):
            self.complaints.append(message.text)

    def open(self, path: str) -> FrameLocator:
        """A page of Airflow's that has one of ours in it."""
        self.page.goto(f"{self.base_url}{path}")
        return self.frame

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("iframe[title=Horsies]")

    def open_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> FrameLocator:
        mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
        path = f"/dags/{dag_id}/runs/{quote(run_id, safe='')}/tasks/{quote(task_id, safe='')}{mapped}"
        return self.open(f"{path}/plugin/horsies-task")

    def shoot(self, name: str) -> None:
        """A picture, where pictures are asked for."""
        if SCREENSHOTS:
            # Bars and numbers that move come to rest.
            self.page.wait_for_timeout(700)
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")

    def close(self) -> None:
        self._context.close()
