"""``spark.read.format("horsies")``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from airflow_horsies.spark.options import Options
from airflow_horsies.spark.reader import BatchReader
from airflow_horsies.spark.tables import spark_schema


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
        return spark_schema(Options.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(Options.parse(self.options), schema)
