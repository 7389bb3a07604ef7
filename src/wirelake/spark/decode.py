"""`wirelake lake decode`: captures into the table.

1. *Index*, a task a file, or several for a large dump: what kind of file it is, which messages are
   in it, where it can be split, and every fault. Afterwards it is known how many messages there are
   and what number each has.
2. *Decode*, a task for every 64 MiB or so: the compiled scanners make Arrow batches of the spans,
   and the task writes them to Parquet files itself. One commit adds all files to the table.

Faults stop nothing. A raw dump is read up to its fault, as `wirelake inspect` does; a capture of
packets may have one for every connection. They go to the side table.

A message's `partition` is the number of its file among those that are decoded together, its
`offset` the number of the message in that file.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice

import pyarrow as pa
from pyspark.sql import SparkSession

from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import detect
from wirelake.errors import ConfigError, ProtocolError
from wirelake.spark import direct, table
from wirelake.spark.append_only import AppendOnly
from wirelake.spark.commits import Table
from wirelake.spark.files import TableWriter, Target, Written
from wirelake.spark.flows import Fault, Found, Ports, find_in_packets
from wirelake.spark.pcap import is_pcap
from wirelake.spark.rows import ERRORS, FOLDERS, errors, sift, with_folders
from wirelake.spark.session import progress
from wirelake.spark.spans import (
    Index,
    Span,
    State,
    batches,
    index,
    index_stretch,
    joined,
    whole,
)
from wirelake.spark.storage import Storage
from wirelake.spark.typed import NEEDS_DELTA, Columns, Typed, table_schema

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
    """The plan for one file."""

    parts: list[Part]
    faults: list[tuple[str, int, str, str, bytes]]  # file, place, reason, dialect, bytes
    messages: int


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    messages: int
    errors: int


@dataclass(frozen=True)
class Place:
    """Where the messages go, and how a new table is laid out."""

    table: str
    format: str = "delta"
    errors: str = ""  # the side table; "": beside the table
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict)
    schemas: tuple[Typed, ...] = ()  # of payloads, by filter

    def __post_init__(self) -> None:
        if self.schemas and self.format != "delta":
            raise ConfigError("--schema", NEEDS_DELTA)
        if self.format not in ("delta", "parquet"):
            raise ConfigError("--format", f"{self.format!r} is neither delta nor parquet")
        for name in self.partition_by:
            if name not in FOLDERS:
                raise ConfigError("--partition-by", f"{name} is neither of {', '.join(FOLDERS)}")

    @property
    def side(self) -> str:
        """Where the side table is."""
        return self.errors or table.side_table(self.table)


def decode(
    spark: SparkSession,
    files: Sequence[str],
    place: Place,
    options: Options = Options(),  # noqa: B008 - immutable
    *,
    overwrite: bool = False,
) -> Result:
    """Add the messages of captures to a table, and what cannot be read to its side table.

    Both are committed once everything is written, the side table first; so a run that dies before
    leaves the table as it was.
    """
    schema = table_schema(place.schemas)
    rows = _sink(place, Storage.of(place.table, place.storage), schema, place.partition_by)
    plans = find(spark, files, options)
    parts = [part for each in plans for part in each.parts]
    side = Target(Storage.of(place.side, place.storage), ERRORS)
    try:
        with progress(spark, "decode"):
            works = [
                DecodePart(part, rows.target, side, rows.name(k), place.schemas)
                for k, part in enumerate(parts)
            ]
            done = direct.run(spark, works)
    except BaseException:
        rows.give_up()
        raise
    writer = TableWriter(side, f"decode-{uuid.uuid4().hex}")
    writer.write(errors(fault for each in plans for fault in each.faults))
    written = [file for _, bad in done for file in bad] + writer.close()
    if written or (overwrite and _is_there(side.storage)):
        _sink(place, side.storage, ERRORS).commit(written, overwrite=overwrite)
    rows.commit([file for good, _ in done for file in good], overwrite=overwrite)
    bad = sum(file.rows for file in written)
    return Result(sum(each.messages for each in plans), bad)


def _is_there(storage: Storage) -> bool:
    return bool(storage.files())


@dataclass(frozen=True)
class DecodePart:
    """What one task does: a part of a capture into files."""

    part: Part
    target: Target
    side: Target
    name: str
    schemas: tuple[Typed, ...] = ()

    def run(self) -> tuple[list[Written], list[Written]]:
        """Write the files of the table and of the side table."""
        writer = TableWriter(self.target, self.name)
        side = TableWriter(self.side, f"{self.name}-bad" if self.name else "")
        columns = Columns(self.schemas)
        for place, batch in decoded(self.part):
            good, bad = sift(pa.Table.from_batches([batch]))
            good, misfits = columns.add(good)
            for each in (bad, misfits):
                if each is not None:
                    side.write(self._placed(each, place))
            writer.write(with_folders(good))
        return writer.close(), side.close()

    def _placed(self, bad: pa.Table, place: int) -> pa.Table:
        """Bad messages as the side table has them: the file, and where their stretch begins."""
        reasons = [
            f"message {number}: {why}"
            for number, why in zip(
                bad.column("offset").to_pylist(), bad.column("reason").to_pylist(), strict=True
            )
        ]
        values = {
            "file": pa.array([self.part.capture.path] * bad.num_rows),
            "offset": pa.array([place] * bad.num_rows, pa.int64()),
            "reason": pa.array(reasons),
        }
        columns = [values.get(name, bad.column(name)) for name in ERRORS.names]
        return pa.Table.from_arrays(columns, schema=ERRORS)


class _DeltaSink:
    """A Delta table that gets all files of a run in one commit."""

    def __init__(self, storage: Storage, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
        self._table = Table.ensure(storage, schema, partition_by, among_files=schema is ERRORS)
        self.target = Target(storage, schema, self._table.partition_by)

    def name(self, number: int) -> str:
        return ""

    def commit(self, files: list[Written], *, overwrite: bool) -> None:
        if not overwrite:
            self._table.append(files)
            return
        self._table.refresh()
        while not self._table.replace(self._table.files(), files, change=True):
            self._table.refresh()

    def give_up(self) -> None:
        """Nobody sees the files; vacuum removes them."""


class _ParquetSink:
    """A folder of Parquet files; those of a run that fails are removed."""

    def __init__(self, storage: Storage, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
        AppendOnly(storage, "decode")  # it is no Delta table
        self._storage = storage
        self._run = f"decode-{uuid.uuid4().hex}"
        self._before = storage.files()
        self.target = Target(storage, schema, partition_by)

    def name(self, number: int) -> str:
        return f"{self._run}-{number}"

    def commit(self, files: list[Written], *, overwrite: bool) -> None:
        for name in self._before if overwrite else ():
            self._storage.delete(name)

    def give_up(self) -> None:
        for name in self._storage.files():
            if name.rpartition("/")[2].startswith(self._run):
                self._storage.delete(name)


def _sink(
    place: Place, storage: Storage, schema: pa.Schema, partition_by: tuple[str, ...] = ()
) -> _DeltaSink | _ParquetSink:
    kind = _DeltaSink if place.format == "delta" else _ParquetSink
    return kind(storage, schema, partition_by)


def find(spark: SparkSession, files: Sequence[str], options: Options) -> list[Plan]:
    """The index pass."""
    captures = [Capture(os.path.abspath(path), k) for k, path in enumerate(files)]  # noqa: PTH100
    cores = direct.parallelism(spark)
    size = sum(_size(capture.path) for capture in captures)
    options = replace(options, step=even_step(size, options.step, cores))
    stretched = [(one, max(1, min(_size(one.path) // options.step, cores))) for one in captures]
    stretches = [(capture, k, count) for capture, count in stretched for k in range(count)]
    with progress(spark, "index"):
        groups = [stretches[k::MOST_TASKS] for k in range(min(len(stretches), MOST_TASKS))]
        found = direct.run(spark, [LookAt(group, options) for group in groups])
        looks = (found[k % MOST_TASKS][k // MOST_TASKS] for k in range(len(stretches)))
        plans = {
            capture: _put_together(capture, list(islice(looks, count)), options)
            for capture, count in stretched
        }
        # What cannot be put together is looked at once more, as a whole.
        again = [capture for capture, made in plans.items() if made is None]
        whole_files = direct.run(spark, [LookAt([(one, 0, 1)], options) for one in again])
        for one, (made,) in zip(again, whole_files, strict=True):
            assert isinstance(made, Plan)  # as it was looked at as a whole
            plans[one] = made
    return [made for made in plans.values() if made is not None]


@dataclass(frozen=True)
class LookAt:
    """What one task of the index pass does: look at stretches of captures."""

    stretches: list[tuple[Capture, int, int]]
    options: Options

    def run(self) -> list[Plan | Index | None]:
        """What is in each of them."""
        return [look(*stretch, self.options) for stretch in self.stretches]


def _size(path: str) -> int:
    with suppress(OSError):  # the task that looks at it says so
        return os.stat(path).st_size  # noqa: PTH116 - a plain path
    return 0


def even_step(size: int, step: int, cores: int) -> int:
    """Return the maximum size of a span, so that all cores finish at about the same time."""
    count = -(-size // step)
    if count <= cores:
        return step
    return -(-size // (count + -count % cores))


def decoded(part: Part) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of a part, and where in the file the stretch begins that each is of."""
    data = contents(part.capture.path)
    for offset, span in part.spans:
        for batch in batches(span, data, part.capture.number, offset):
            yield span.cells[0], batch


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
    """Index a raw dump of one direction."""
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
    """Index the k-th part of a file; if the file cannot be split, the first part has all."""
    if count > 1:
        with suppress(OSError, ProtocolError):  # `plan` says what is wrong
            data = contents(capture.path)
            dialect = None if is_pcap(data) else options.dialect or detect(data)
            if dialect is not None and not DIALECTS[dialect].has_topic_frames:
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
