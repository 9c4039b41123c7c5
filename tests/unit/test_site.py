"""The documentation site, built: it loads nothing from elsewhere, and its search knows every error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import CHECKOUT, DOCS, name_of, pages
from tests.docs.llms import NAME, SITE

pytest.importorskip("zensical")

# Where a browser loads something by itself; a link is none.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)"|url\(([^)]+)\)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as by 'make docs', with every warning an error, from another folder: the real one is left alone."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    (folder / "tests").symlink_to(CHECKOUT / "tests")
    (folder / SITE.name).write_text(SITE.read_text().replace("build/site", "site"))
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    built = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    assert built == {name_of(path) for path in pages()} | {"404.md"}


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        for found in LOADED.findall(path.read_text()):
            (address,) = [each.strip("\"'") for each in found if each]
            assert not re.match(r"(?:https?:)?//", address), f"{path.relative_to(site)} loads {address}"


def test_no_page_needs_a_script_that_is_fetched(site: Path) -> None:
    """The theme fetches a library for such a block when it meets one."""
    for path in site.rglob("*.html"):
        assert not re.search(r'class="[^"]*\b(?:mermaid|glightbox|pyodide)\b', path.read_text()), path.name


def test_search_finds_every_error(site: Path) -> None:
    index = json.loads((site / "search.json").read_text())
    anchors = {item["location"] for item in index["items"]}
    titles = re.findall(r"^### (\w+)$", (DOCS / "reference" / "errors.md").read_text(), re.MULTILINE)
    assert len(titles) > 50
    assert {f"reference/errors.html#{title.lower()}" for title in titles} <= anchors
    # A page that was opened as a file cannot fetch: it loads the same index as a script.
    assert (site / "search.js").read_text() == f"var __index = {(site / 'search.json').read_text()};"


def test_blocks_are_highlighted_by_language_and_without_their_kind(site: Path) -> None:
    text = (site / "tutorial.html").read_text()
    assert '<span class="kn">import</span>' in text
    assert "python dag" not in text


def test_list_for_programs_is_at_the_root_and_its_links_lead_somewhere(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / NAME).read_text())
    assert links and all((site / link).exists() for link in links)
