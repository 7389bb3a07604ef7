"""A table in an object store, read by Spark without Hadoop's packages.

Spark reads a table that is a folder of this machine by itself. For a store it would need a package
of Java's, so there a Python data source reads the files with pyarrow, a task for each, and hands
them to Spark as Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from wirelake.spark.files import Written, complete
from wirelake.spark.storage import Storage

FORMAT = "wirelake-table"


def load(
    spark: SparkSession, storage: Storage, files: Sequence[Written], schema: pa.Schema
) -> DataFrame:
    """The rows of these files."""
    spark.dataSource.register(_source(storage, list(files), from_arrow_schema(schema)))
    return spark.read.format(FORMAT).load()


def _source(storage: Storage, files: list[Written], columns: StructType) -> type[DataSource]:
    class Files(DataSource):
        """The files of one table; pickled with their list when it is registered."""

        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Reader(storage, files, schema)

    return Files


class _Reader(DataSourceReader):
    def __init__(self, storage: Storage, files: list[Written], columns: StructType) -> None:
        self._storage = storage
        self._files = files
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """A task for each file."""
        files, self._files = self._files, []
        return [InputPartition(file) for file in files]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a file."""
        file = partition.value
        if not isinstance(file, Written):  # Spark makes one up where there is no file
            return
        schema = to_arrow_schema(self._columns, timezone="UTC")
        system, root = self._storage.open()
        with system.open_input_file(f"{root}/{file.path}") as source:
            parquet = pq.ParquetFile(source)
            for batch in parquet.iter_batches():
                rows = complete(pa.Table.from_batches([batch]), schema, file)
                yield from rows.cast(schema).to_batches()
