"""`wirelake lake decode`: captures into the table.

1. *Index*, a task a file, or several for a large dump: what kind of file it is, which messages are
   in it, where it can be split, and every fault. Afterwards it is known how many messages there are
   and what number each has.
2. *Decode*, a task for every 64 MiB or so: the compiled scanners make Arrow batches of the spans,
   which Spark writes to the table as they are.

Faults stop nothing. A raw dump is read up to its fault, as `wirelake inspect` does; a capture of
packets may have one for every connection. They go to the side table.

A message's `partition` is the number of its file among those that are decoded together, its
`offset` the number of the message in that file.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udtf

from wirelake.errors import ProtocolError
from wirelake.spark import table
from wirelake.spark.flows import Fault, Found, Ports, find_in_packets
from wirelake.spark.pcap import is_pcap
from wirelake.spark.session import progress, spare_garbage_collector, spark_errors
from wirelake.spark.spans import (
    WITH_TOPIC,
    Index,
    Span,
    State,
    batches,
    index,
    index_stretch,
    joined,
    whole,
)
from wirelake.wire import detect

#: Bytes that one task decodes, about.
STEP = 64 << 20
#: Tasks of the index pass, at most.
MOST_TASKS = 1000
#: Bytes of a faulty place that the side table has.
EXCERPT = 64


@dataclass(frozen=True)
class Options:
    """How captures are read."""

    dialect: str = ""  # "": told from the first bytes
    ports: Ports = field(default_factory=Ports)
    time: int = 0  # µs, of the messages in raw dumps, which have none of their own
    step: int = STEP


@dataclass(frozen=True)
class Capture:
    """A file, and its number among those that are decoded together."""

    path: str
    number: int


@dataclass
class Part:
    """What one task decodes: spans of one file, and the number that each one's stream begins at."""

    capture: Capture
    spans: list[tuple[int, Span]]


@dataclass(frozen=True)
class Plan:
    """What is in one file."""

    parts: list[Part]
    faults: list[tuple[str, int, str, str, bytes]]  # file, place, reason, dialect, bytes
    messages: int


@dataclass(frozen=True)
class Result:
    """What a run has done."""

    messages: int
    errors: int


def decode(
    spark: SparkSession,
    files: Sequence[str],
    target: str,
    options: Options = Options(),  # noqa: B008 - immutable
    *,
    format: str = "parquet",
    errors: str = "",
    overwrite: bool = False,
) -> Result:
    """Add the messages of captures to a table, and what cannot be read to its side table."""
    plans = find(spark, files, options)
    rows = messages(spark, [part for each in plans for part in each.parts])
    with progress(spark, "decode"):
        table.write(rows, target, format=format, overwrite=overwrite)
    now = datetime.now(UTC)
    faults = [(*fault, now) for each in plans for fault in each.faults]
    side = errors or table.side_table(target)
    table.write_errors(spark, faults, side, format=format, overwrite=overwrite)
    return Result(sum(each.messages for each in plans), len(faults))


def find(spark: SparkSession, files: Sequence[str], options: Options) -> list[Plan]:
    """The index pass."""
    captures = [Capture(os.path.abspath(path), k) for k, path in enumerate(files)]  # noqa: PTH100
    context = spark.sparkContext
    cores = context.defaultParallelism
    size = sum(_size(capture.path) for capture in captures)
    options = replace(options, step=even_step(size, options.step, cores))
    stretched = [(one, max(1, min(_size(one.path) // options.step, cores))) for one in captures]
    stretches = [(capture, k, count) for capture, count in stretched for k in range(count)]
    with spark_errors(), progress(spark, "index"):
        tasks = context.parallelize(stretches, min(len(stretches), MOST_TASKS))
        looks = iter(tasks.map(lambda stretch: look(*stretch, options)).collect())
        plans = {
            capture: _put_together(capture, list(islice(looks, count)), options)
            for capture, count in stretched
        }
        # What cannot be put together is looked at once more, as a whole.
        again = [capture for capture, made in plans.items() if made is None]
        if again:
            left = context.parallelize(again, min(len(again), MOST_TASKS))
            plans |= zip(again, left.map(lambda one: plan(one, options)).collect(), strict=True)
    return [made for made in plans.values() if made is not None]


def _size(path: str) -> int:
    with suppress(OSError):  # the task that looks at it says so
        return os.stat(path).st_size  # noqa: PTH116 - a plain path
    return 0


def even_step(size: int, step: int, cores: int) -> int:
    """At most so many bytes, so that no core is idle while others decode what is left over."""
    count = -(-size // step)
    if count <= cores:
        return step
    return -(-size // (count + -count % cores))


def messages(spark: SparkSession, parts: list[Part]) -> DataFrame:
    """The messages of these parts, a task each, in the schema of the log."""
    if not parts:
        return spark.createDataFrame([], table.LOG_SCHEMA)
    packed = [pickle.dumps(part) for part in parts]  # a task unpacks its own alone

    class Decode:
        """A table function and not a data source, whose rows Spark copies once more."""

        def eval(self, numbers: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            for number in numbers.column(0).to_pylist():
                yield from decoded(pickle.loads(packed[number]))

    with spark_errors():
        function: Any = arrow_udtf(Decode, returnType=table.LOG_SCHEMA)
        rows: DataFrame = function(spark.range(0, len(parts), 1, len(parts)).asTable())
        return rows


def decoded(part: Part) -> Iterator[pa.RecordBatch]:
    """The batches of a part."""
    spare_garbage_collector()
    data = contents(part.capture.path)
    for offset, span in part.spans:
        yield from batches(span, data, part.capture.number, offset)


def contents(path: str) -> memoryview:
    """A file's bytes; they are read when they are looked at."""
    with open(path, "rb") as file:  # noqa: PTH123 - a plain path
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def plan(capture: Capture, options: Options = Options()) -> Plan:  # noqa: B008 - immutable
    """The index pass over one file; never fails."""
    try:
        data = contents(capture.path)
    except OSError as error:
        return Plan([], [(capture.path, 0, f"cannot be read: {error.strerror}", "", b"")], 0)
    if is_pcap(data):
        found = find_in_packets(data, options.ports, options.dialect, options.step)
    else:
        found = find_in_dump(data, options)
    return _planned(capture, data, found, options)


def _planned(capture: Capture, data: memoryview, found: Found, options: Options) -> Plan:
    firsts = list(accumulate((stream.messages for stream in found.streams), initial=0))
    spans = [
        (first, span)
        for first, stream in zip(firsts, found.streams, strict=False)
        for span in stream.spans
    ]
    faults = [
        (capture.path, one.place, one.reason, one.dialect, bytes(data[one.place :][:EXCERPT]))
        for one in found.faults
    ]
    return Plan(list(_packed(capture, spans, options.step)), faults, firsts[-1])


def find_in_dump(data: memoryview, options: Options) -> Found:
    """What is in a raw dump of one direction."""
    if not data:
        return Found()
    try:
        dialect = options.dialect or detect(data)
        if dialect is None:
            raise ProtocolError("auto", 0, "too short to tell the dialect")
    except ProtocolError as error:
        return Found(faults=[Fault(error.offset, error.reason, error.dialect)])
    return _in_dump(data, index(whole(data, options.time), State(dialect), options.step))


def _in_dump(data: memoryview, stream: Index) -> Found:
    found = Found([stream])
    if stream.fault is not None:
        left = len(data) - stream.end
        reason = f"{stream.fault.reason}; nothing is read of the last {left} bytes"
        found.faults.append(Fault(stream.fault.offset, reason, stream.state.dialect))
    return found


def look(capture: Capture, k: int, count: int, options: Options) -> Plan | Index | None:
    """What is in the k-th of so many parts of a file; where that is no use, the first has all."""
    if count > 1:
        with suppress(OSError, ProtocolError):  # `plan` says what is wrong
            data = contents(capture.path)
            dialect = None if is_pcap(data) else options.dialect or detect(data)
            if dialect is not None and dialect not in WITH_TOPIC:
                dump = whole(data, options.time)
                return index_stretch(dump, State(dialect), options.step, k, count)
    return plan(capture, options) if k == 0 else None


def _put_together(
    capture: Capture, looks: list[Plan | Index | None], options: Options
) -> Plan | None:
    """The plan of a file; None where its parts do not fit."""
    if isinstance(looks[0], Plan):
        return looks[0]
    stream = joined([one for one in looks if not isinstance(one, Plan)])
    with suppress(OSError):  # what a task can read and the driver cannot
        if stream is not None:
            data = contents(capture.path)
            return _planned(capture, data, _in_dump(data, stream), options)
    return None


def _packed(capture: Capture, spans: list[tuple[int, Span]], step: int) -> Iterator[Part]:
    """Spans in parts of about `step` bytes: a capture may have many short connections."""
    part = Part(capture, [])
    size = 0
    for first, span in spans:
        if part.spans and size + span.size > step + step // 2:
            yield part
            part, size = Part(capture, []), 0
        part.spans.append((first, span))
        size += span.size
    if part.spans:
        yield part
