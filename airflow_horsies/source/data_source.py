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
    The tables of horsies as a DataFrame.

    Set ``HORSIES_DATABASE_URL`` in the environment of the driver and the executors.

    .. code-block:: python

        spark.dataSource.register(HorsiesDataSource)
        attempts = spark.read.format("horsies").option("table", "attempts").load()
        attempts.groupBy("queue", "outcome").count().show()
    """

    @classmethod
    def name(cls) -> str:
        return "horsies"

    def schema(self) -> StructType:
        # Spark asks for the schema before it chooses between batch and stream.
        return spark_schema(Options.parse(self.options, also=StreamOptions.NAMES).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        # Spark, at least up to 4.3, applies the filters of one query to all queries of the same load(), so that they
        # would miss rows. Hence the option: it is safe if a DataFrame is filtered in only one way.
        return FilteringReader(options, schema) if options.push_filters else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(StreamOptions.parse(self.options), schema)
