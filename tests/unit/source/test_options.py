"""Valid options, and the errors of invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")
from airflow_horsies.exceptions import SourceError
from airflow_horsies.source.options import Options, StreamOptions
from airflow_horsies.spark import HorsiesDataSource


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "Option table is missing"),
        ({"table": "'; DROP TABLE horsies_tasks; --"}, "Unknown table"),
        ({"table": "tasks", "where": "x"}, "Unknown option 'where'"),
        ({"table": "tasks", "password": "x"}, "is not supported"),
        ({"table": "tasks", "URL": "x"}, "is not supported"),
        ({"table": "tasks", "columns": "task_id, nothing"}, "no column 'nothing'"),
        ({"table": "tasks", "columns": "task_id,task_id"}, "named twice"),
        ({"table": "tasks", "since": "yesterday"}, "since must be a time .*not 'yesterday'"),
        ({"table": "tasks", "until": "2026-13-01"}, "until must be a time .*not '2026-13-01'"),
        ({"table": "tasks", "since": "2026-02-01", "until": "2026-01-01"}, "must not be after until"),
        ({"table": "tasks", "partitions": "0"}, "partitions must be an integer .*not '0'"),
        ({"table": "tasks", "partitions": "many"}, "partitions must be an integer .*not 'many'"),
        ({"table": "tasks", "partitions": "99999"}, "from 1 to 1000"),
        ({"table": "tasks", "snapshotSeconds": "-1"}, "snapshotSeconds must be an integer .*not '-1'"),
        ({"table": "tasks", "pushFilters": "yes"}, "must be true or false"),
        ({"table": "tasks", "startingOffsets": "latest"}, "Unknown option 'startingoffsets'"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        Options.parse(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "tasks"}, "Use the table attempts"),
        ({"table": "attempts", "startingOffsets": "then"}, "startingOffsets must be earliest or latest, not 'then'"),
        ({"table": "attempts", "maxRowsPerBatch": "0"}, "maxRowsPerBatch must be an integer .*not '0'"),
        ({"table": "attempts", "since": "2026-01-01"}, "Unknown option 'since'"),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        StreamOptions.parse(options)


def test_a_time_without_an_offset_is_utc() -> None:
    options = Options.parse({"table": "tasks", "since": "2026-01-01", "until": "2026-01-01T12:00:00+02:00"})
    assert options.since == datetime(2026, 1, 1, tzinfo=UTC)
    assert options.until == datetime(2026, 1, 1, 10, tzinfo=UTC)


def test_the_schema_has_the_columns_that_were_named_in_their_order() -> None:
    source = HorsiesDataSource({"table": "attempts", "columns": "outcome, task_id"})
    assert source.schema().simpleString() == "struct<outcome:string,task_id:string>"
