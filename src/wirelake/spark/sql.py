"""`wirelake lake sql`: one statement over the table (`lake`) and, live, over the log (`log`).

Both views have the columns of the log; `lake` has `date` and `level` beside them. A Delta table can
be asked as it was: at a version, or at a time. Of `log` the broker itself
leaves out what a query's address, time, offset or partition does.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from wirelake.errors import ConfigError
from wirelake.spark import table
from wirelake.spark.session import spark_errors
from wirelake.spark.source import register
from wirelake.spark.storage import Storage


def query(
    spark: SparkSession,
    statement: str,
    *,
    lake: str | Storage = "",
    version: int | None = None,
    as_of: datetime | None = None,
    url: str = "",
    token: str = "",
) -> DataFrame:
    """What a statement finds in a table, in a broker's log, or in both.

    The table is read as it is now, or as it was at a version or at a time.
    """
    if not (lake or url):
        raise ConfigError("--table", "say where the table is, or where the broker is with --url")
    with spark_errors():
        if lake:
            table.read(spark, lake, version=version, as_of=as_of).createOrReplaceTempView("lake")
        if url:
            register(spark)
            options = {"url": url, "includeHeaders": "true"} | ({"token": token} if token else {})
            log = spark.read.format("wirelake").options(**options).load()
            log.createOrReplaceTempView("log")
        return spark.sql(statement)


def for_people(value: Any) -> str:
    """A value in a table: bytes as text, whatever they are."""
    match value:
        case None:
            return ""
        case bytes() | bytearray():
            return bytes(value).decode(errors="backslashreplace")
        case datetime():
            return as_utc(value).replace("+00:00", "Z")
        case dict():
            return ", ".join(f"{name}={for_people(one)}" for name, one in value.items())
        case Row():
            return for_people(value.asDict())
        case list():
            return f"[{', '.join(map(for_people, value))}]"
    return str(value)


def for_programs(value: Any) -> Any:
    """A value in JSON: bytes in base64, times in ISO 8601."""
    match value:
        case bytes() | bytearray():
            return base64.b64encode(bytes(value)).decode()
        case datetime():
            return as_utc(value)
        case date():
            return value.isoformat()
        case dict():
            return {str(name): for_programs(one) for name, one in value.items()}
        case Row():
            return for_programs(value.asDict())
        case list() | tuple():
            return [for_programs(one) for one in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def as_utc(time: datetime) -> str:
    """A time that Spark has given, which is local to this machine and does not say so."""
    return time.astimezone(UTC).isoformat()
