"""horsies' tasks, attempts, workflows, submissions and workers as Spark DataFrames."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_horsies.source.data_source import HorsiesDataSource

__all__ = ["HorsiesDataSource"]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that the snapshot keeper starts quickly, without pyspark.
    if name == "HorsiesDataSource":
        from airflow_horsies.source.data_source import HorsiesDataSource

        return HorsiesDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
