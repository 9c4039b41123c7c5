"""All orders of each pair keep the rules, and broken rules are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_horsies import database
from airflow_horsies.ledger import schema, submissions
from airflow_horsies.wire.statement import sql_text
from tests.integration.releases import IN_PLACE, MOVED
from tests.interleavings.pairs import PAIRS, Pair
from tests.interleavings.stage import Stage
from tests.interleavings.trials import Tried, try_pair

StageOf = Callable[[str], Stage]


def _marks(pair: Pair, release: str) -> list[pytest.MarkDecorator]:
    marks = []
    if pair.is_long or (release == IN_PLACE and not pair.in_both):
        marks.append(pytest.mark.slow)
    if pair.name == "batch and reordered batch":
        marks.append(pytest.mark.xfail(strict=True, reason="items are matched by their position"))
    return marks


def _params() -> list[Any]:
    return [
        pytest.param(
            pair,
            release,
            id=f"{pair.name} on {release}",
            marks=_marks(pair, release),
        )
        for release in (IN_PLACE, MOVED)
        for pair in PAIRS
        if release in pair.releases
    ]


def _pair(name: str) -> Pair:
    (pair,) = [pair for pair in PAIRS if pair.name == name]
    return pair


@pytest.mark.parametrize(("pair", "release"), _params())
def test_every_order_keeps_the_rules(
    pair: Pair, release: str, stage_of: StageOf, tell: Callable[[Tried], None]
) -> None:
    tried = try_pair(stage_of(release), pair, with_cuts=False)
    tell(tried)
    assert not tried.violations, tried.describe()


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "release"), [param for param in _params() if param.values[0].cuts])
def test_every_order_keeps_the_rules_though_a_connection_breaks_at_any_step(
    pair: Pair, release: str, stage_of: StageOf, tell: Callable[[Tried], None]
) -> None:
    tried = try_pair(stage_of(release), pair, with_cuts=True)
    tell(tried)
    assert tried.cut
    assert not tried.violations, tried.describe()


def _without(lock: str) -> Callable[[str, str], str]:
    """The statements as they are, but one takes its lock no more."""

    def text(package: str, name: str) -> str:
        found = sql_text(package, name)
        if name != lock:
            return found
        assert "pg_advisory_xact_lock" in found
        return found.replace("pg_advisory_xact_lock", "concat")

    return text


def test_submitting_without_its_lock_is_noticed(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "sql_text", _without("lock_task_instance"))
    tried = try_pair(stage_of(MOVED), _pair("newer life and older life"), with_cuts=False)
    assert any("tasks of lives [1, 2] are live" in told for told in tried.violations), tried.describe()


def test_migrating_without_its_lock_is_noticed(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "sql_text", _without("lock_migrations"))
    tried = try_pair(stage_of(MOVED), _pair("migrate and migrate"), with_cuts=False)
    assert any("already exists" in told for told in tried.violations), tried.describe()


def test_giving_up_where_a_script_has_to_run_again_is_noticed(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RERUN_SQLSTATES", frozenset())
    tried = try_pair(stage_of(MOVED), _pair("cancel and fail"), with_cuts=False)
    assert any("deadlock detected" in told for told in tried.violations), tried.describe()
