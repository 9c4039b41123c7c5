"""The page about the architecture: its tree is the tree of the package, and its walk is one that the code takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import architecture
from tests.docs.architecture import PAGE, Hop, hops, source_of

MOST_HOPS = 20
WALK = hops(PAGE.read_text())


def test_tree_on_the_page_is_the_tree() -> None:
    assert PAGE.read_text() == architecture.with_tree(PAGE.read_text()), "the package has changed: run 'make docs'"


def test_tree_has_every_module() -> None:
    named = re.findall(r"^ +(\w+\.py)\b", architecture.tree(), re.MULTILINE)
    modules = [path.name for path in architecture.PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(modules)


def test_walk_is_short_and_numbered() -> None:
    assert [hop.number for hop in WALK] == list(range(1, len(WALK) + 1))
    assert 10 < len(WALK) <= MOST_HOPS


@pytest.mark.parametrize("hop", WALK, ids=lambda hop: f"{hop.number}-{hop.function or hop.file}")
def test_hop_exists_and_is_called_by_one_before_it(hop: Hop) -> None:
    assert source_of(hop)
    first = hop.number in _first_of_tables()
    name = hop.function.rpartition(".")[2] or Path(hop.file).stem
    before = [each for each in WALK if each.number < hop.number]
    assert first or any(name in source_of(each) for each in before), f"nothing before it mentions {name}"


def _first_of_tables() -> set[int]:
    """Where the walk goes on in another process."""
    return {int(number) for number in re.findall(r"\|---\|\n\| (\d+) ", PAGE.read_text())}


def test_one_state_diagram() -> None:
    text = PAGE.read_text()
    drawn = [block for block in re.findall(r"```text picture\n(.*?)```", text, re.DOTALL) if "PENDING" in block]
    assert len(drawn) == 1
    for state in ("PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "EXPIRED", "CANCELLED"):
        assert state in drawn[0]
