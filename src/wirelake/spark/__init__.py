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

from wirelake.spark.offsets import behind_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["behind_latest", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `wirelake` with a session, if Spark does not find it by itself."""
    # Not imported above: planning offsets needs no Spark.
    from wirelake.spark.source import register

    register(spark)
