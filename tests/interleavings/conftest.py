"""A database of each release for the orders, and their figures at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from airflow_horsies.embedded.postgres import EmbeddedPostgres
from tests.interleavings.stage import Stage, staged
from tests.interleavings.trials import Tried, describe

TRIED: list[Tried] = []


@pytest.fixture(scope="session")
def stage_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stage]]:
    with ExitStack() as opened:
        postgres = opened.enter_context(EmbeddedPostgres(tmp_path_factory.mktemp("orders"), durable=False))
        yield cache(lambda release: opened.enter_context(staged(postgres, release, tmp_path_factory.mktemp("worker"))))


@pytest.fixture
def tell() -> Callable[[Tried], None]:
    """Have the figures of a pair among those that are printed at the end."""
    return TRIED.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TRIED:
        terminalreporter.section("interleavings")
        terminalreporter.write_line(describe(TRIED))
