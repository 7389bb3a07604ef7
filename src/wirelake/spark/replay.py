"""`wirelake lake replay`: from the table back to a broker, in any dialect.

Spark finds the messages and sorts them, in parallel; one connection publishes them, so that their
order is the original one, within an address and across. Rows come to the driver as whole Arrow
batches and go to the client as such.

Only what was published is published again: requests and replies, keys, acknowledgements and the
like mean something to those who were there, not to others later. Ids are left out, as a queue would
take the second message of one id for the first one sent again; so are times to live in the unit of
another family of dialects. What the dialect has no form for is skipped, and counted.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf

from wirelake.client import Client, connect
from wirelake.client.speech import can
from wirelake.dialects import HOPS
from wirelake.errors import ConfigError, RefusedError
from wirelake.spark import table
from wirelake.spark.session import progress, spark_errors
from wirelake.spark.storage import Storage

#: What is published again.
OPS = ("publish", "enqueue")
#: Rows that are sent at once at most.
ROWS = 4096

_COLUMNS = ("address", "payload", "content_type", "priority", "ttl", "headers")


@dataclass(frozen=True)
class Options:
    """What to replay, where to, and how fast."""

    table: str | Storage
    to: str  # the broker, with its dialect
    filter: str = ""
    since: datetime | None = None
    until: datetime | None = None
    speed: float = 1.0  # times the original pace; 0: flat out
    token: str = ""

    def __post_init__(self) -> None:
        if self.speed < 0:
            raise ConfigError("--speed", "it is a number above 0, or max")


@dataclass(frozen=True)
class Step:
    """How far a replay is."""

    sent: int
    skipped: int  # what the dialect cannot say
    total: int
    time: int  # of the last message, µs since 1970


def replay(
    spark: SparkSession, options: Options, told: Callable[[Step], object] = lambda step: None
) -> Step:
    """Publish the messages of a table again; where that ended."""
    rows = messages(spark, options)
    with spark_errors():
        with progress(spark, "find"):
            total = rows.count()
        ordered = rows.orderBy("timestamp", "partition", "offset")
        # The other ways to get Arrow from Spark need pandas, or all rows at once. What it gives
        # depends on which rows come together, so Spark must not call it a second time.
        made: Any = arrow_udf(_pack, "binary")  # type: ignore[call-overload]  # hints are its types
        pack = made.asNondeterministic()
        packed = ordered.select(pack(F.struct("timestamp", *_COLUMNS)).alias("rows"))
        packed = packed.where("rows IS NOT NULL")
        batches = (_unpack(row[0]) for row in packed.toLocalIterator(prefetchPartitions=True))
        return asyncio.run(_publish(batches, options, total, told))


def messages(spark: SparkSession, options: Options) -> DataFrame:
    """Return the messages to publish again, unordered."""
    rows = table.read(
        spark,
        options.table,
        since=options.since,
        until=options.until,
        filter=options.filter,
    )
    has_hops = F.col("dialect").isin(list(HOPS))
    same_unit = has_hops if options.to in HOPS else ~has_hops
    return rows.where(F.col("op").isin(*OPS)).withColumns(
        {
            "ttl": F.when(same_unit, F.col("ttl")).otherwise(0),
            # Those are the broker's own (decision 20).
            "headers": F.map_filter("headers", lambda name, value: ~name.startswith("$")),
        }
    )


def _pack(rows: pa.Array) -> pa.Array:
    """A batch as one value, since Spark gives a driver rows, and none for its other rows."""
    batch = pa.RecordBatch.from_struct_array(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    nothing = pa.nulls(batch.num_rows - 1, pa.binary())
    return pa.concat_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary()), nothing])


def _unpack(packed: bytearray) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(packed)) as stream:
        return stream.read_next_batch()


async def _publish(
    batches: Iterator[pa.RecordBatch],
    options: Options,
    total: int,
    told: Callable[[Step], object],
) -> Step:
    sent = skipped = last = 0
    pace = _Pace(options.speed)
    try:
        # Once a connection is lost nobody knows what of it has arrived: that is for people to see.
        async with connect(options.to, token=options.token, reconnect=False) as client:
            # Spark is waited for in a thread: a connection that is not looked after is lost.
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                rows = batch.select(_COLUMNS)
                start = 0
                while start < len(times):
                    stop = min(await pace.until_due(times, start), start + ROWS)
                    left_out = await _send(client, rows.slice(start, stop - start))
                    sent, skipped = sent + stop - start - left_out, skipped + left_out
                    last, start = times[stop - 1], stop
                    told(Step(sent, skipped, total, last))
            if can(client.dialect, "ping"):
                await client.ping()  # answered when the broker has read all that was sent before
    except RefusedError as error:
        text = f"{error.text or error.code}; {sent} of {total} messages were sent"
        raise RefusedError(error.code, text) from error
    return Step(sent, skipped, total, last)


async def _send(client: Client, rows: pa.RecordBatch) -> int:
    """Publish rows but those that the dialect cannot say; how many those are (decision 26)."""
    try:
        await client.publish_many(rows)
    except RefusedError as error:
        if error.code not in ("bad_request", "too_large"):
            raise
        if rows.num_rows == 1:
            return 1
        half = rows.num_rows // 2
        first = await _send(client, rows.slice(0, half))
        return first + await _send(client, rows.slice(half))
    return 0


class _Pace:
    """When which message is due."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._first: int | None = None
        self._start = 0.0

    async def until_due(self, times: list[int], start: int) -> int:
        """Wait until the next message is due; the first one behind it that is not."""
        if not self._speed:
            return len(times)
        if self._first is None:
            self._first, self._start = times[start], time.monotonic()
        due = self._start + (times[start] - self._first) / 1e6 / self._speed
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        passed = (time.monotonic() - self._start) * self._speed * 1e6
        return max(start + 1, bisect_right(times, self._first + passed, start))
