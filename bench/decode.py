"""Rows a second of `wirelake lake decode`: `python -m bench.decode`.

A raw dump of TMQ 1.01, 128-byte payloads, is read in turns, on `local[2]`, all columns:
- decode: as a user runs it, index pass and commit included, into a Delta table;
- writer: Spark's own Parquet writer, fed with the same rows as ready Arrow batches;
- UDF: a plain-Python UDF that reads spans of 1 MiB frame by frame, for a part of the rows, into a
  sink that keeps nothing;
- twice: decode of twice the rows;
- typed JSON and CBOR: decode with a schema of four fields into a table; and a UDF (`json.loads`,
  `cbor2.loads`) on the same rows as ready Arrow batches, into Spark's own writer;
- functions: `from_payload` on ready Arrow batches into a sink that keeps nothing, beside the same
  UDF.

The UDF is measured twice: with `useArrow=True`, which is Spark's default where pandas is installed,
and what the goals are about; and with `useArrow=False`.

The machine is never quiet. So all is measured in one run, in turns, and the best turn counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bench.goals import ARROW_UDF, HALF, UDF, WRITER, goal
from bench.results import OURS, Outcome, Result, Tell, write_json
from bench.wire import machine
from wirelake.dialects.codec import encoder
from wirelake.message import Message
from wirelake.spark import session, table
from wirelake.spark.decode import Capture, Options, Part, Place, decode, decoded, plan
from wirelake.spark.functions import from_payload
from wirelake.spark.typed import Typed
from wirelake.wire import FrameTable

PAYLOAD = (b'{"temperature": 21.5, "humidity": 40.25, "unit": "celsius"} ' * 3)[:128]
DIALECT = "tmq-1.01"
BLOCK = 10_000
OPTIONS = Options(dialect=DIALECT)


def write_dump(
    path: Path, rows: int, payload: Callable[[int], bytes] = lambda number: PAYLOAD
) -> None:
    """A dump of so many messages."""
    frames = FrameTable(BLOCK)
    encode = encoder(DIALECT).encode
    with path.open("wb") as file:
        for start in range(0, rows, BLOCK):
            some = range(start, min(rows, start + BLOCK))
            frames.fill(
                [Message(f"sensors/{k % 90 + 10}", payload(k), id=f"{k:08}") for k in some],
                DIALECT,
            )
            file.write(encode(frames))


def plain_frames(data: bytes, partition: int, offset: int) -> Iterator[tuple[Any, ...]]:
    """What anybody would write: one frame after the other, a tuple for each."""
    at = 0
    while at < len(data):
        kind, flags, id_size, source_size, target_size, content_type, size = struct.unpack_from(
            ">BBBBBHB", data, at
        )
        at += 8
        if size == 253:
            (size,) = struct.unpack_from(">H", data, at)
            at += 2
        elif size == 254:
            (size,) = struct.unpack_from(">I", data, at)
            at += 4
        fields = []
        for length in (id_size, source_size, target_size):
            fields.append(data[at : at + length].decode())
            at += length
        payload = data[at : at + size]
        at += size
        identity, source, address = fields
        op = "publish" if kind & 63 == 0x11 else "other"
        yield (
            partition, offset, 0, address, op, DIALECT, identity, "", source, "", content_type,
            kind >> 6 & 1, flags & 63, {}, payload,
        )  # fmt: skip
        offset += 1


def plain_udf(spark: SparkSession, parts: list[Part]) -> DataFrame:
    """The rows of these parts, by a plain-Python UDF."""
    schema = table.LOG_SCHEMA.simpleString().replace("timestamp:timestamp", "timestamp:bigint")

    @F.udf(returnType=f"array<{schema}>", useArrow=False)
    def read(path: str, place: int, size: int, offset: int) -> list[tuple[Any, ...]]:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain path
            file.seek(place)
            return list(plain_frames(file.read(size), 0, offset))

    spans = [
        (part.capture.path, span.cells[0], span.cells[1], first + span.first)
        for part in parts
        for first, span in part.spans
    ]
    names = "path string, place long, size long, offset long"
    rows = spark.createDataFrame(spans, names).repartition(8)
    return rows.select(F.inline(read("path", "place", "size", "offset")))


def ready_source(batch: pa.RecordBatch, format: str = "decoded") -> type[DataSource]:
    """A source that has one decoded batch already, and yields it until there are rows enough."""
    schema = to_arrow_schema(table.LOG_SCHEMA, timezone="UTC")
    plain = pa.Table.from_batches([batch]).cast(schema).to_batches()[0]

    class Ready(DataSource):
        """As a class of a function it is sent to Spark with its batch."""

        @classmethod
        def name(cls) -> str:
            return f"{format}-bench"

        def schema(self) -> StructType:
            return table.LOG_SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return ReadyReader(plain, int(self.options["rows"]))

    return Ready


class ReadyReader(DataSourceReader):
    """Four tasks of the same size."""

    def __init__(self, batch: pa.RecordBatch, rows: int) -> None:
        self._batch = batch
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [InputPartition(self._rows * (k + 1) // 4 - self._rows * k // 4) for k in range(4)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The batches."""
        left = partition.value
        while left > 0:
            yield self._batch.slice(0, left)
            left -= self._batch.num_rows


TYPED = "temperature double, humidity double, celsius boolean, number int"
FORMATS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "cbor": cbor2.dumps,
}


def typed_payload(format: str, number: int) -> bytes:
    """A payload that fits the schema."""
    value = {"temperature": 21.5 + number % 7, "humidity": 0.25, "celsius": True}
    return FORMATS[format](value | {"number": number % 1000})


def typed_by_udf(rows: DataFrame, format: str, *, is_arrow: bool = False) -> DataFrame:
    """Rows with the columns of their payloads, by a UDF."""
    loads: Callable[[bytes], Any] = json.loads if format == "json" else cbor2.loads

    @F.udf(returnType=TYPED, useArrow=is_arrow)
    def read(payload: bytes) -> tuple[Any, ...]:
        value = loads(payload)
        names = ("temperature", "humidity", "celsius", "number")
        return tuple(value.get(name) for name in names)

    return rows.withColumn("read", read("payload")).select(*rows.columns, "read.*")


def typed_by_function(rows: DataFrame, format: str) -> DataFrame:
    """The same by our function."""
    read = from_payload("payload", f"{format}: {TYPED}")
    return rows.withColumn("read", read).select(*rows.columns, "read.*")


def seconds(work: Callable[[], DataFrame]) -> float:
    """How long it takes to make these rows and throw them away."""
    start = time.perf_counter()
    work().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def measure(rows: int, turns: int, share: int, folder: Path, tell: Tell) -> dict[str, Any]:
    """Rows a second of each."""
    dump, target = folder / "dump", str(folder / "table")
    tell(f"writing {rows:,} rows")
    write_dump(dump, rows)
    spark = session.start("bench", "local[2]", **{"spark.driver.memory": "2g"})
    try:
        counts = {str(dump): rows}
        some_rows = max(1, rows // share)
        once = [str(dump)]
        twice = 2 * once

        def into_table(files: list[str], schemas: tuple[Typed, ...] = ()) -> float:
            shutil.rmtree(target, ignore_errors=True)
            start = time.perf_counter()
            found = decode(spark, files, Place(target, schemas=schemas), OPTIONS)
            taken = time.perf_counter() - start
            assert (found.messages, found.errors) == (counts[files[0]] * len(files), 0)
            return taken

        def by_spark(
            way: Callable[[DataFrame], DataFrame] = lambda ready: ready,
            source: str = "decoded",
            count: int = rows,
        ) -> float:
            start = time.perf_counter()
            ready = spark.read.format(f"{source}-bench").option("rows", count).load()
            way(ready).write.mode("overwrite").parquet(str(folder / "spark"))
            return time.perf_counter() - start

        def thrown_away(way: Callable[[DataFrame], DataFrame], source: str) -> float:
            ready = spark.read.format(f"{source}-bench").option("rows", some_rows).load()
            return seconds(lambda: way(ready))

        parts = plan(Capture(once[0], 0), replace(OPTIONS, step=1 << 20)).parts
        (_, sample), *_ = decoded(parts[0])
        spark.dataSource.register(ready_source(sample))
        some = parts[: max(1, len(parts) // share)]
        in_some = sum(span.messages for part in some for _, span in part.spans)
        works: dict[str, tuple[int, Callable[[], float]]] = {
            "decode": (rows, lambda: into_table(once)),
            "writer": (rows, by_spark),
            "twice": (2 * rows, lambda: into_table(twice)),
            "UDF": (in_some, lambda: seconds(lambda: plain_udf(spark, some))),
        }
        for format in FORMATS:
            file = folder / format
            write_dump(file, some_rows, partial(typed_payload, format))
            counts[str(file)] = some_rows
            schemas = (Typed.parse(f"#={format}: {TYPED}"),)
            (_, sample), *_ = decoded(plan(Capture(str(file), 0), OPTIONS).parts[0])
            spark.dataSource.register(ready_source(sample, format))
            udf = partial(typed_by_udf, format=format)
            works[f"typed {format}"] = (some_rows, partial(into_table, [str(file)], schemas))
            for kind, one in ((UDF, udf), (ARROW_UDF, partial(udf, is_arrow=True))):
                write = partial(by_spark, one, format, some_rows)
                works[f"typed {format}, {kind}"] = (some_rows, write)
            ways = {
                f"function {format}": partial(typed_by_function, format=format),
                f"function {format}, {UDF}": udf,
                f"function {format}, {ARROW_UDF}": partial(udf, is_arrow=True),
            }
            for name, way in ways.items():
                works[name] = (some_rows, partial(thrown_away, way, format))
        rates = dict.fromkeys(works, 0.0)
        for _ in range(turns):
            for name, (count, work) in works.items():
                tell(name)
                rates[name] = max(rates[name], count / work())
    finally:
        spark.stop()
    return {"rows": rows, "machine": machine(), "rows_a_second": rates}


def results(found: dict[str, Any]) -> list[Result]:
    """The figures for the one table."""
    rates, rows = found["rows_a_second"], found["rows"]
    ours = rates["decode"]
    taken = {OURS: 2 * rows / rates["twice"], HALF: rows / ours}
    return [
        Result("decode, beside a UDF", "rows/s", {OURS: ours, UDF: rates["UDF"]}),
        Result("decode", "rows/s", {OURS: ours, WRITER: rates["writer"]}),
        Result("decode, twice the rows", "s", taken, less_is_better=True),
        *(
            Result(
                f"{what} {format.upper()}",
                "rows/s",
                {OURS: rates[f"{what} {format}"]}
                | {udf: rates[f"{what} {format}, {udf}"] for udf in (UDF, ARROW_UDF)},
            )
            for what in ("typed", "function")
            for format in FORMATS
        ),
    ]


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    rows, turns = (100_000, 1) if quick else (4_000_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(rows, turns, 8, Path(folder), tell)
    return Outcome(results(found), details=found)


def main() -> None:
    """Measure, and say what was wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--share", type=int, default=8, help="the UDF reads one part in so many")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.rows, arguments.turns, arguments.share, Path(folder), print)
    print(f"{found['rows']:,} rows of {len(PAYLOAD)} bytes; {found['machine']}")
    for name, rate in found["rows_a_second"].items():
        print(f"{name:18} {rate / 1e6:8.3f} M rows/s")
    for result in results(found):
        if wanted := goal("decode", result.name):
            mark = "✓" if wanted.is_met(result) else "✗"
            print(f"{result.name:24} {result.ratio(wanted.against):8.2f}    {mark} {wanted}")
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
