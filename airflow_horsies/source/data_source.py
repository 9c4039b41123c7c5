"""``spark.read.format("horsies")`` and ``spark.readStream.format("horsies")``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from airflow_horsies.source.options import Options, StreamOptions
from airflow_horsies.source.reader import BatchReader, FilteringReader
from airflow_horsies.source.stream import StreamReader
from airflow_horsies.source.tables import spark_schema


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
        # Spark, up to 4.3 at least, keeps what was pushed for one query for all queries that come of one load(): they
        # would miss rows. So it is for those who filter a DataFrame in one way.
        return FilteringReader(options, schema) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(StreamOptions.parse(self.options), schema)
