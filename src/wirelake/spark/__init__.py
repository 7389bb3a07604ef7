"""The data pipeline, on Spark: captures and the log of a broker as tables, and what they say.

    captures ─ decode ─┐
    broker ─ source ─ land ─▶ table ─▶ report, sql, replay ─▶ broker
                       └─▶ your own queries ─ sink ─▶ broker

`session` says how Spark is started; `source` and `sink` are the format `wirelake` for everybody's
queries. `rows` says what a table has, `files` writes it, `commits` adds files to it, `lakes` makes
that exactly once, `table` reads it. Every other module is one job, and parts of it that need no
Spark. All heavy work is done by Spark's tasks, in Arrow batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let a session know the format `wirelake`, to read and to write."""
    # Not imported above: planning offsets needs no Spark.
    from wirelake.spark.source import register

    register(spark)
