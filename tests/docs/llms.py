"""``llms.txt``: the pages of the site in one list, each with its first sentence; from the navigation of the site."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from tests.docs.blocks import CHECKOUT, DOCS

NAME = "llms.txt"
SITE = CHECKOUT / "zensical.toml"


def text() -> str:
    project = tomllib.loads(SITE.read_text())["project"]
    return "".join(
        [
            f"# {project['site_name']}\n\n> {project['site_description']}\n",
            *(line for section in project["nav"] for line in _lines(section)),
        ]
    )


def nav_pages(nav: list[Any] | None = None) -> list[str]:
    """The paths of the pages in the navigation."""
    if nav is None:
        nav = tomllib.loads(SITE.read_text())["project"]["nav"]
    return [path for entry in nav for path, _ in _entries(entry)]


def _entries(entry: Any, title: str = "") -> Iterator[tuple[str, str]]:
    """Path and title of each page; an entry is a path, or a title with a path or with further entries."""
    match entry:
        case str():
            yield entry, title
        case dict():
            for name, held in entry.items():
                yield from _entries(held, name)
        case list():
            for held in entry:
                yield from _entries(held)


def _lines(section: dict[str, Any]) -> Iterator[str]:
    for title, held in section.items():
        yield f"\n## {title}\n\n"
        for path, name in _entries(held, title):
            yield f"- [{name}]({path.removesuffix('.md')}.html): {_first_sentence(path)}\n"


def _first_sentence(path: str) -> str:
    """That of the first paragraph, as plain text."""
    paragraphs = re.split(r"\n\s*\n", (DOCS / path).read_text())
    found = next(text for text in paragraphs if not text.startswith(("#", "|", "!", "<", "```")))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(found.split()))
    return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":.") + "."
