"""``spark.read.format("horsies")`` and ``spark.readStream.format("horsies")``."""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from airflow_horsies.spark.options import Options, StreamOptions
from airflow_horsies.spark.reader import BatchReader, FilteringReader
from airflow_horsies.spark.stream import StreamReader
from airflow_horsies.spark.tables import spark_schema

FILTERING_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"


class HorsiesDataSource(DataSource):
    """
    What horsies did, as a DataFrame.

    The database is that of ``HORSIES_DATABASE_URL`` in the environment of driver and executors.

    .. code-block:: python

        spark.dataSource.register(HorsiesDataSource)
        attempts = spark.read.format("horsies").option("table", "attempts").load()
        attempts.groupBy("queue", "outcome").count().show()
    """

    @classmethod
    def name(cls) -> str:
        return "horsies"

    def schema(self) -> StructType:
        # Spark asks before it is known what for.
        return spark_schema(Options.parse(self.options, also=StreamOptions.NAMES).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        return FilteringReader(options, schema) if _may_filter() else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(StreamOptions.parse(self.options), schema)


def _may_filter() -> bool:
    """Spark refuses a reader that could filter where it is set not to ask; it asks in a process of its own kind."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return FILTERING_PLANNER in sys.modules or (main is not None and main.name == FILTERING_PLANNER)
