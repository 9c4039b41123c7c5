from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_horsies.exceptions import CutoverPending, HorsiesError, SchemaMissing, SchemaUnsupported
from airflow_horsies.wire.schema import NEWEST_TESTED_VERSION, REQUIRED_COLUMNS, Generation, Schema, detect_schema
from tests.unit.driving import MOVED, Driven, drive


def detect(*, version: int | None = None, **found: Any) -> Driven[Schema]:
    probe = {
        "has_tasks": True,
        "id_type": "character varying",
        "holds_live_only": False,
        "has_history": False,
        "has_version": version is not None,
        "columns": ["id", *REQUIRED_COLUMNS],
        "has_cancel_function": True,
        "has_archive_lookup": False,
        **found,
    }
    return drive(detect_schema(), {"probe_schema": [probe], "read_schema_version": [{"version": version}]})


IS_MOVED = {"id_type": "uuid", "holds_live_only": True, "has_history": True, "has_archive_lookup": True}


@pytest.mark.parametrize(
    ("found", "schema"),
    [
        ({}, (Generation.IN_PLACE, None, True, True)),
        ({"version": 26}, (Generation.IN_PLACE, 26, True, True)),
        ({"version": 17, "has_cancel_function": False}, (Generation.IN_PLACE, 17, False, True)),
        ({**IS_MOVED, "version": 51}, (Generation.MOVED, 51, True, True)),
        ({**IS_MOVED, "version": 34, "has_archive_lookup": False}, (Generation.MOVED, 34, True, False)),
    ],
    ids=["in place, unnumbered", "in place", "in place before 0.4.6", "moved", "moved, no worker yet"],
)
def test_schema_is_told_by_its_shape(found: dict[str, Any], schema: tuple[Generation, int | None, bool, bool]) -> None:
    outcome = detect(**found).outcome
    assert (
        outcome.generation,
        outcome.version,
        outcome.has_cancel_function,
        outcome.worker_has_started,
    ) == schema


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        ({"has_tasks": False, "columns": [], "id_type": None}, SchemaMissing, "horsies worker your_module:app"),
        ({"columns": ["id", "is_workflow_task", "finalizing_at"]}, SchemaUnsupported, "no column enqueue_sha"),
        ({"columns": ["id", "enqueue_sha"]}, SchemaUnsupported, "no column finalizing_at, is_workflow_task"),
        ({**IS_MOVED, "holds_live_only": False}, CutoverPending, "cutover is pending"),
    ],
    ids=["missing", "alpha", "before 0.1.6", "uuid ids with finished tasks"],
)
def test_schema_we_do_not_speak_is_an_error_that_says_what_to_do(
    found: dict[str, Any], error: type[HorsiesError], says: str
) -> None:
    with pytest.raises(error, match=says):
        detect(**found)


def test_schema_newer_than_tested_is_recognised_and_never_written() -> None:
    newest = detect(**IS_MOVED, version=NEWEST_TESTED_VERSION).outcome
    newest.require_writable()
    newer = detect(**IS_MOVED, version=NEWEST_TESTED_VERSION + 1).outcome
    with pytest.raises(SchemaUnsupported, match=r"newer than 51.*Upgrade airflow-horsies"):
        newer.require_writable()


def test_schema_whose_cutover_is_pending_is_read_and_not_written() -> None:
    pending = detect(has_history=True, version=34).outcome
    assert (pending.generation, pending.cutover_is_pending) == (Generation.IN_PLACE, True)
    with pytest.raises(CutoverPending, match=r"cutover is pending.*Complete the offline cutover"):
        pending.require_writable()


def test_version_table_is_read_only_where_it_exists() -> None:
    assert detect().names == ["probe_schema"]
    assert detect(version=26).names == ["probe_schema", "read_schema_version"]


def test_schema_describes_itself() -> None:
    assert MOVED.describe() == "horsies 0.5 or newer (schema version 51, finished tasks moved)"
    unnumbered = replace(MOVED, generation=Generation.IN_PLACE, version=None)
    assert unnumbered.describe() == "horsies up to 0.4 (schema without a version number, finished tasks in place)"
