"""The table as Spark reads it, and its side table.

A Delta table is read through its list of files: Delta's own Spark package is not needed, and what
is committed, compacted or vacuumed later does not disturb a query that has begun. A folder of plain
Parquet files is read as it is listed.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from wirelake.address import filter_expression
from wirelake.errors import ConfigError, EngineError
from wirelake.spark.files import Written, folders
from wirelake.spark.rows import ERRORS, ROWS
from wirelake.spark.session import spark_errors
from wirelake.spark.storage import Storage
from wirelake.wire.arrow import SCHEMA

#: The schemas of the log, the table and the side table, as Spark has them.
LOG_SCHEMA = from_arrow_schema(SCHEMA)
TABLE_SCHEMA = from_arrow_schema(ROWS)
ERRORS_SCHEMA = from_arrow_schema(ERRORS)


def side_table(table: str) -> str:
    """Where the side table of a table is, unless another place is given."""
    return table.rstrip("/") + "_errors"


def read(
    spark: SparkSession,
    place: str | Storage,
    *,
    version: int | None = None,
    as_of: datetime | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    filter: str = "",
) -> DataFrame:
    """Rows of a table, from `since` on, before `until`, whose address matches a filter.

    Of a Delta table as it is now, at a version, or at a time. Its files are found by its log, so
    what is committed or compacted meanwhile changes nothing.
    """
    storage = place if isinstance(place, Storage) else Storage.of(place)
    rows = _load(spark, storage, version, as_of)
    if missing := set(TABLE_SCHEMA.names).difference(rows.columns):
        raise ConfigError("--table", f"{storage.uri} has no column {', '.join(sorted(missing))}")
    if since is not None:
        rows = rows.where((F.col("date") >= since.date()) & (F.col("timestamp") >= since))
    if until is not None:
        rows = rows.where((F.col("date") <= until.date()) & (F.col("timestamp") < until))
    if filter:
        rows = rows.where(F.col("address").rlike(pattern(filter)))
    return rows


def read_errors(spark: SparkSession, place: str | Storage) -> DataFrame:
    """The rows of a side table; none where there is no such table."""
    storage = place if isinstance(place, Storage) else Storage.of(place)
    from wirelake.spark import commits  # the source needs the schemas above, but no delta-rs

    if not commits.exists(storage) and not storage.files():
        return spark.createDataFrame([], ERRORS_SCHEMA)
    return _load(spark, storage, None, None, ERRORS)


def _load(
    spark: SparkSession,
    storage: Storage,
    version: int | None,
    as_of: datetime | None,
    schema: pa.Schema = ROWS,
) -> DataFrame:
    from wirelake.spark import commits, store_reader

    if commits.exists(storage):
        table = commits.Table(storage, version=version, as_of=as_of)
        arrow = table.schema
        files = table.files()
    else:
        if version is not None or as_of is not None:
            option = "--as-of" if version is None else "--version"
            raise ConfigError(option, f"{storage.uri} is no Delta table, so it has no versions")
        arrow = schema
        files = [Written(name, 0, 0, folders(name)) for name in storage.files()]
        if not files:
            raise EngineError(f"{storage.uri}: there is no table")
    kinds = from_arrow_schema(arrow)
    with spark_errors():
        if not files:
            return spark.createDataFrame([], kinds)
        if not storage.is_local:
            return store_reader.load(spark, storage, files, arrow)
        paths = [f"{storage.uri}/{file.path}" for file in files]
        return spark.read.schema(kinds).option("basePath", storage.uri).parquet(*paths)


def pattern(filter: str) -> str:
    """A filter of addresses (`+`, and `#` at the end) as a regular expression of Java's."""
    return f"^(?s:{filter_expression(filter)})\\z"
