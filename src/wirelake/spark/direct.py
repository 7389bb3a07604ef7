"""Work that Spark spreads over its executors, and whose rows never enter Java.

Spark plans, schedules and retries the tasks of a Python data source; a task does its work in the
Python of its executor, from the log or a capture to files, and yields one row: what came of it.
This works with a classic session and over Spark Connect alike.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from wirelake.errors import EngineError
from wirelake.spark.session import spare_garbage_collector, spark_errors

FORMAT = "wirelake-work"

_SCHEMA = "number int, result binary"
#: Names of formats that no run uses at the moment.
_free: list[str] = []
_numbers = count()
_naming = threading.Lock()

R_co = TypeVar("R_co", covariant=True)


class Work(Protocol[R_co]):
    """What one task does; it is pickled to get there, and so is its result on the way back."""

    def run(self) -> R_co:
        """Do it. It may be done more than once, and at the same time."""


def run(spark: SparkSession, works: Sequence[Work[R_co]], *, is_small: bool = False) -> list[R_co]:
    """Let Spark do all of it, a task each; the results in the order of the works.

    Work that is small is done here where Spark runs on this machine: to start a task and to plan it
    takes Spark some tenths of a second, in processes that are no other than this one.
    """
    if not works:
        return []
    if is_small and is_local(spark):
        try:
            return [work.run() for work in works]
        except (OSError, pa.ArrowException) as error:
            raise EngineError(str(error)) from error
    # A task gets its own work alone, as its partition.
    packed = [pickle.dumps(work) for work in works]
    with spark_errors(), _name() as name:
        spark.dataSource.register(_source(name, packed))
        rows = spark.read.format(name).load().collect()
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [found[number] for number in range(len(works))]


@contextmanager
def _name() -> Iterator[str]:
    """A name for a format that no other run has at the same time.

    A name is used again, as a session keeps all that is registered. Over Spark Connect a format is
    looked up when rows are collected, so two runs must not share one.
    """
    with _naming:
        name = _free.pop() if _free else f"{FORMAT}-{next(_numbers)}"
    try:
        yield name
    finally:
        with _naming:
            _free.append(name)


def is_local(spark: SparkSession) -> bool:
    """Does the session run its tasks on this machine?"""
    context: Any = getattr(spark, "_sc", None)  # over Connect there is none
    return context is not None and str(context.master).startswith("local")


def parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, as far as it tells."""
    context: Any = getattr(spark, "_sc", None)
    if context is not None:
        return int(context.defaultParallelism)
    return int(spark.conf.get("spark.default.parallelism", "8") or 8)  # over Connect


def _source(format: str, packed: list[bytes]) -> type[DataSource]:
    class Works(DataSource):
        """One run's works; pickled with them when it is registered."""

        @classmethod
        def name(cls) -> str:
            return format

        def schema(self) -> str:
            return _SCHEMA

        def reader(self, schema: Any) -> DataSourceReader:
            return _Reader(packed)

    return Works


class _Reader(DataSourceReader):
    def __init__(self, packed: list[bytes]) -> None:
        self._packed = packed

    def partitions(self) -> list[InputPartition]:
        """The tasks; afterwards the reader goes to each of them, without the works of all."""
        packed, self._packed = self._packed, []
        return [InputPartition((number, one)) for number, one in enumerate(packed)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Do the work of a task."""
        spare_garbage_collector()
        number, packed = partition.value
        result = pickle.dumps(pickle.loads(packed).run())
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int32()), pa.array([result], pa.binary())],
            names=["number", "result"],
        )
