"""The tables of the data source and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_horsies.exceptions import SourceError


class Kind(StrEnum):
    """The type of a column."""

    ID = "id"
    TEXT = "text"
    INTEGER = "integer"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIME = "time"
    TEXTS = "texts"


SPARK_TYPES: dict[Kind, DataType] = {
    Kind.ID: StringType(),
    Kind.TEXT: StringType(),
    Kind.INTEGER: IntegerType(),
    Kind.DOUBLE: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.TIME: TimestampType(),
    Kind.TEXTS: ArrayType(StringType()),
}
ARROW_TYPES: dict[Kind, pa.DataType] = {
    Kind.ID: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.TEXTS: pa.list_(pa.string()),
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Table:
    """A table that ``option("table", ...)`` selects."""

    name: str
    columns: tuple[Column, ...]
    # The column that since and until refer to.
    time: str
    relations: tuple[str, ...]

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise SourceError(f"Table {self.name} has no column {name!r}. Use one of {_listed(self.columns)}.")

    def select(self, names: Sequence[str]) -> tuple[Column, ...]:
        """The named columns in this order; all columns if none is named."""
        for name in names:
            if names.count(name) > 1:
                raise SourceError(f"Column {name!r} is named twice. Name each column once.")
        return tuple(self.column(name) for name in names) or self.columns


def spark_schema(columns: Sequence[Column]) -> StructType:
    return StructType([StructField(column.name, SPARK_TYPES[column.kind]) for column in columns])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in columns])


def _columns(kind: Kind, names: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name in names.split())


TASKS = Table(
    "tasks",
    (
        *_columns(Kind.ID, "task_id"),
        *_columns(Kind.TEXT, "task_name queue"),
        *_columns(Kind.INTEGER, "priority"),
        *_columns(Kind.TEXT, "state"),
        *_columns(Kind.TIME, "sent_at enqueued_at good_until claimed_at started_at finished_at next_retry_at"),
        *_columns(Kind.INTEGER, "retry_count max_retries"),
        *_columns(Kind.TEXT, "worker_id hostname"),
        *_columns(Kind.INTEGER, "pid"),
        *_columns(Kind.TEXT, "process_name error_code failed_reason"),
        *_columns(Kind.BOOLEAN, "is_workflow_task"),
        *_columns(Kind.TEXT, "args kwargs result"),
    ),
    time="enqueued_at",
    relations=("horsies_tasks", "horsies_task_history"),
)
ATTEMPTS = Table(
    "attempts",
    (
        *_columns(Kind.ID, "task_id"),
        *_columns(Kind.TEXT, "task_name queue"),
        *_columns(Kind.INTEGER, "attempt"),
        *_columns(Kind.TEXT, "outcome"),
        *_columns(Kind.BOOLEAN, "will_retry"),
        *_columns(Kind.TIME, "started_at finished_at"),
        *_columns(Kind.TEXT, "error_code error_message failed_reason worker_id hostname"),
        *_columns(Kind.INTEGER, "pid"),
        *_columns(Kind.TEXT, "process_name"),
    ),
    time="finished_at",
    relations=("horsies_task_attempts", "horsies_task_history"),
)
SUBMISSIONS = Table(
    "submissions",
    (
        *_columns(Kind.TEXT, "namespace dag_id run_id task_id"),
        *_columns(Kind.INTEGER, "map_index position life round try_number"),
        *_columns(Kind.TIME, "run_started_at"),
        *_columns(Kind.ID, "horsies_task_id"),
        *_columns(Kind.TEXT, "base_url task_name queue"),
        *_columns(Kind.TIME, "good_until submitted_at"),
    ),
    time="submitted_at",
    relations=("airflow_horsies.submissions",),
)
WORKFLOWS = Table(
    "workflows",
    (
        *_columns(Kind.ID, "workflow_id"),
        *_columns(Kind.TEXT, "name definition_key state on_error"),
        *_columns(Kind.INTEGER, "depth"),
        *_columns(Kind.ID, "root_workflow_id parent_workflow_id"),
        *_columns(Kind.INTEGER, "parent_node output_node"),
        *_columns(Kind.TIME, "created_at sent_at started_at finished_at updated_at"),
        *_columns(Kind.TEXT, "error_code error result"),
    ),
    time="created_at",
    relations=("horsies_workflows",),
)
NODES = Table(
    "nodes",
    (
        *_columns(Kind.ID, "workflow_id root_workflow_id"),
        *_columns(Kind.TEXT, "workflow_name"),
        *_columns(Kind.INTEGER, "node"),
        *_columns(Kind.TEXT, "node_name task_name queue"),
        *_columns(Kind.INTEGER, "priority"),
        *_columns(Kind.TEXT, "state"),
        *_columns(Kind.BOOLEAN, "is_workflow"),
        *_columns(Kind.TEXT, "definition_key"),
        *_columns(Kind.ID, "sub_workflow_id task_id"),
        *_columns(Kind.TEXTS, "after"),
        *_columns(Kind.TEXT, "join_type"),
        *_columns(Kind.INTEGER, "min_success"),
        *_columns(Kind.BOOLEAN, "allow_failed"),
        *_columns(Kind.TIME, "created_at started_at finished_at"),
        *_columns(Kind.TEXT, "error_code kwargs result"),
    ),
    time="created_at",
    relations=("horsies_workflow_tasks",),
)
WORKERS = Table(
    "workers",
    (
        *_columns(Kind.TEXT, "worker_id"),
        *_columns(Kind.TIME, "snapshot_at"),
        *_columns(Kind.TEXT, "hostname"),
        *_columns(Kind.INTEGER, "pid processes max_claim_batch max_claim_per_worker cluster_wide_cap"),
        *_columns(Kind.TEXTS, "queues"),
        *_columns(Kind.TEXT, "queue_priorities queue_max_concurrency recovery_config"),
        *_columns(Kind.INTEGER, "tasks_running tasks_claimed"),
        *_columns(Kind.DOUBLE, "memory_usage_mb memory_percent cpu_percent"),
        *_columns(Kind.TIME, "worker_started_at"),
    ),
    time="snapshot_at",
    relations=("horsies_worker_states",),
)
TABLES = {table.name: table for table in (TASKS, ATTEMPTS, SUBMISSIONS, WORKFLOWS, NODES, WORKERS)}


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise SourceError(f"Unknown table {name!r}. Set option('table', ...) to one of {', '.join(TABLES)}.")
    return TABLES[name]


def _listed(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)
