"""Detects the horsies schema of a database. The term "generation" is used only below this package.

In place: releases up to 0.4.7 keep a finished task in ``horsies_tasks``.
Moved: releases since 0.5.0 move it to ``horsies_task_history``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_horsies.db.statement import Script, Statement, sql_text
from airflow_horsies.exceptions import CutoverPending, SchemaMissing, SchemaUnsupported

NEWEST_TESTED_VERSION = 51
TESTED_RELEASES = "0.1.7 to 0.4.7 and 0.5.0 to 0.5.4"
# Release 0.1.6 added the last of these; alphas and betas lack the first.
REQUIRED_COLUMNS = frozenset({"enqueue_sha", "is_workflow_task", "finalizing_at"})
CUTOVER_PENDING = (
    "A horsies 0.5 worker was started on a database of horsies 0.4, and the cutover is pending: finished tasks are "
    "still in horsies_tasks. Nothing is sent or cancelled until the cutover is complete. Complete the offline cutover "
    "as the horsies documentation describes it, then try again."
)


class Generation(StrEnum):
    """The folder of the statements."""

    IN_PLACE = "in_place"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The detected schema of a database."""

    generation: Generation
    version: int | None
    has_cancel_function: bool
    worker_has_started: bool
    # The schema is read as before, and not written. A missing task may be moving to the history.
    cutover_is_pending: bool = False

    @property
    def is_newer_than_tested(self) -> bool:
        return self.version is not None and self.version > NEWEST_TESTED_VERSION

    def describe(self) -> str:
        releases = "up to 0.4" if self.generation is Generation.IN_PLACE else "0.5 or newer"
        number = "without a version number" if self.version is None else f"version {self.version}"
        return f"horsies {releases} (schema {number}, finished tasks {self.generation.replace('_', ' ')})"

    def require_writable(self) -> None:
        """Refuse to write a schema that is newer than any tested one, or that is about to change."""
        if self.cutover_is_pending:
            raise CutoverPending(CUTOVER_PENDING)
        if self.is_newer_than_tested:
            raise SchemaUnsupported(
                f"The horsies schema is at version {self.version}, newer than {NEWEST_TESTED_VERSION}, the newest that "
                "this release is tested with. It is read but not written. Upgrade airflow-horsies."
            )


def detect_schema() -> Script[Schema]:
    """The schema of this database; SchemaMissing or SchemaUnsupported if there is none that we support."""
    (found,) = yield Statement(sql_text("airflow_horsies.wire", "probe_schema"))
    if not found["has_tasks"]:
        raise SchemaMissing(
            "The database has no table horsies_tasks on its search_path. Start a horsies worker on it once "
            "('horsies worker your_module:app' creates the tables), or correct the database of the connection."
        )
    missing = REQUIRED_COLUMNS - set(found["columns"])
    if missing:
        raise SchemaUnsupported(
            f"The table horsies_tasks has no column {', '.join(sorted(missing))}: it belongs to a horsies release "
            f"older than 0.1.6. Upgrade horsies. Supported releases: {TESTED_RELEASES}."
        )
    is_uuid = found["id_type"] == "uuid"
    if is_uuid and found["holds_live_only"]:
        generation = Generation.MOVED
    elif is_uuid:
        raise CutoverPending(CUTOVER_PENDING)
    else:
        generation = Generation.IN_PLACE

    version: int | None = None
    if found["has_version"]:
        (row,) = yield Statement(sql_text("airflow_horsies.wire", "read_schema_version"))
        version = row["version"]
    return Schema(
        generation=generation,
        version=version,
        has_cancel_function=found["has_cancel_function"],
        worker_has_started=generation is Generation.IN_PLACE or found["has_archive_lookup"],
        cutover_is_pending=generation is Generation.IN_PLACE and found["has_history"],
    )
