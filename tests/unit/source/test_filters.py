"""Which filters Postgres is given, and how."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from airflow_horsies.core.paging import Slice
from airflow_horsies.source.filters import Conditions, narrowed
from airflow_horsies.source.tables import ATTEMPTS, WORKERS, Table

UUID = "0190c7a2-0000-7000-8000-000000000000"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def taken(given: Filter, table: Table = ATTEMPTS) -> tuple[str, dict[str, Any]] | None:
    conditions = Conditions(table.columns)
    if not conditions.add(given):
        return None
    return conditions.all.as_string(None).removeprefix("TRUE AND "), conditions.params


@pytest.mark.parametrize(
    ("given", "condition", "params"),
    [
        (EqualTo(("queue",), "a%b"), '"queue"::text COLLATE "C" = %(value_0)s::text', {"value_0": "a%b"}),
        (EqualTo(("task_id",), UUID), '"task_id" = %(value_0)s', {"value_0": UUID}),
        (EqualTo(("task_id",), "x"), '"task_id"::text COLLATE "C" = %(value_0)s::text', {"value_0": "x"}),
        (EqualNullSafe(("pid",), None), '"pid" IS NOT DISTINCT FROM %(value_0)s::bigint', {"value_0": None}),
        (Not(EqualTo(("will_retry",), True)), 'NOT ("will_retry" = %(value_0)s::boolean)', {"value_0": True}),
        (In(("pid",), (1, 2)), '"pid" IN (%(value_0)s::bigint, %(value_1)s::bigint)', {"value_0": 1, "value_1": 2}),
        (GreaterThan(("finished_at",), NOON), '"finished_at" > %(value_0)s::timestamptz', {"value_0": NOON}),
        (IsNull(("error_code",)), '"error_code" IS NULL', {}),
        (StringStartsWith(("queue",), "a"), 'starts_with("queue"::text, %(value_0)s::text)', {"value_0": "a"}),
        (StringContains(("queue",), "a"), 'strpos("queue"::text, %(value_0)s::text) > 0', {"value_0": "a"}),
    ],
)
def test_a_filter_becomes_a_condition_with_parameters(given: Filter, condition: str, params: dict[str, Any]) -> None:
    assert taken(given) == (condition, params)


@pytest.mark.parametrize(
    ("given", "table"),
    [
        (EqualTo(("nothing",), "x"), ATTEMPTS),
        (EqualTo(("queue", "part"), "x"), ATTEMPTS),
        (EqualTo(("queue",), "a\x00b"), ATTEMPTS),
        (EqualTo(("queue",), "\ud800"), ATTEMPTS),
        (EqualTo(("queue",), 5), ATTEMPTS),
        (EqualTo(("pid",), True), ATTEMPTS),
        (EqualTo(("pid",), 2**70), ATTEMPTS),
        (In(("pid",), ()), ATTEMPTS),
        (GreaterThan(("cpu_percent",), 1.0), WORKERS),
        (EqualTo(("queues",), ["a"]), WORKERS),
        (StringEndsWith(("pid",), "1"), ATTEMPTS),
    ],
)
def test_what_postgres_might_see_otherwise_stays_with_spark(given: Filter, table: Table) -> None:
    assert taken(given, table) is None


def test_filters_on_the_time_bound_what_is_looked_at() -> None:
    given = [GreaterThan(("finished_at",), NOON), LessThanOrEqual(("finished_at",), NOON + timedelta(hours=1))]
    part = narrowed(Slice(since=NOON - timedelta(days=1)), [*given, IsNull(("pid",))], ATTEMPTS)
    assert part.since == NOON
    assert part.until == NOON + timedelta(hours=1, microseconds=1)
