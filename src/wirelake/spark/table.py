"""The table: the log's schema in Parquet (or any other Spark format), and what could not be read.

Rows are those of the log (`wirelake.wire.arrow.SCHEMA`) and two columns that name folders: `date`,
the day of the timestamp (UTC), and `level`, the first level of the address. Folders have safe
names: a level that is empty is `_empty`, one that is long or has odd characters keeps what can be
kept of it and gets a checksum; `address` has it as it is. The schema is given when the table is
read, never guessed, so it is the same whatever files there are.

What could not be read stands in a side table next to it, `<table>_errors`, with the reason.
"""

from __future__ import annotations

import re
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from wirelake.errors import ConfigError
from wirelake.spark.session import spark_errors
from wirelake.wire.arrow import SCHEMA

#: The log's schema, as Spark has it.
LOG_SCHEMA = from_arrow_schema(SCHEMA)

#: The columns that name folders.
FOLDERS = ("date", "level")

TABLE_SCHEMA = StructType(
    [*LOG_SCHEMA.fields, StructField("date", DateType()), StructField("level", StringType())]
)

#: The side table: where something could not be read, and why.
ERRORS_SCHEMA = StructType(
    [
        StructField("file", StringType(), False),
        StructField("offset", LongType(), False),  # in the file, in bytes
        StructField("reason", StringType(), False),
        StructField("dialect", StringType(), False),
        StructField("excerpt", BinaryType(), False),  # the bytes there
        StructField("time", TimestampType(), False),  # when it was found
    ]
)

_SAFE_LEVEL = r"^[A-Za-z0-9.-][A-Za-z0-9._-]{0,63}\z"
_ODD = "[^A-Za-z0-9._-]"


def level(address: Column) -> Column:
    """The first level of an address, as the name of a folder."""
    first = F.substring_index(address, "/", 1)
    kept = F.substring(F.regexp_replace(first, _ODD, "_"), 1, 48)
    marked = F.concat(F.lit("_"), kept, F.lit("-"), F.lower(F.hex(F.crc32(first))))
    return F.when(first == "", "_empty").when(first.rlike(_SAFE_LEVEL), first).otherwise(marked)


def with_folders(rows: DataFrame) -> DataFrame:
    """Rows of the log with the columns that name their folders."""
    return rows.withColumns({"date": F.to_date("timestamp"), "level": level(F.col("address"))})


def write(rows: DataFrame, table: str, *, format: str = "parquet", overwrite: bool = False) -> None:
    """Add rows of the log to a table, or let them be all of it."""
    with spark_errors():
        writer = (
            with_folders(rows).write.format(format).mode("overwrite" if overwrite else "append")
        )
        writer.partitionBy(*FOLDERS).save(table)


def write_errors(
    spark: SparkSession,
    errors: list[tuple[str, int, str, str, bytes, datetime]],
    side: str,
    *,
    format: str = "parquet",
    overwrite: bool = False,
) -> None:
    """Add rows to a side table, or let them be all of it."""
    if not errors and not overwrite:
        return
    with spark_errors():
        rows = spark.createDataFrame(errors, ERRORS_SCHEMA).coalesce(1)
        rows.write.format(format).mode("overwrite" if overwrite else "append").save(side)


def side_table(table: str) -> str:
    """Where the side table of a table is, unless it is said."""
    return table.rstrip("/") + "_errors"


def read(
    spark: SparkSession,
    table: str,
    *,
    format: str = "parquet",
    since: datetime | None = None,
    until: datetime | None = None,
    filter: str = "",
) -> DataFrame:
    """Rows of a table, from `since` on, before `until`, whose address matches a filter."""
    reader = spark.read.format(format)
    if format == "parquet":
        reader = reader.schema(TABLE_SCHEMA)
    with spark_errors():
        rows = reader.load(table)
        missing = set(TABLE_SCHEMA.names).difference(rows.columns)
    if missing:
        raise ConfigError("--table", f"{table} has no column {', '.join(sorted(missing))}")
    if since is not None:
        rows = rows.where((F.col("date") >= since.date()) & (F.col("timestamp") >= since))
    if until is not None:
        rows = rows.where((F.col("date") <= until.date()) & (F.col("timestamp") < until))
    if filter:
        rows = rows.where(F.col("address").rlike(pattern(filter)))
    return rows


def pattern(filter: str) -> str:
    """A filter of addresses (`+`, and `#` at the end) as a regular expression of Java's."""
    levels = filter.split("/")
    if "+" not in levels and "#" not in levels:
        return f"^{_quoted(filter)}\\z"
    parts = ["[^/]*" if level == "+" else _quoted(level) for level in levels if level != "#"]
    text = "/".join(parts)
    if levels[-1] == "#":
        text = f"{text}(/.*)?" if parts else ".*"
    return f"^(?!\\$)(?s:{text})\\z"


def _quoted(text: str) -> str:
    return re.sub(r"([!-.:-@\[-`{-~])", r"\\\1", text)
