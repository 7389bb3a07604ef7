"""Rows of the log as JSON, found by time, address, op, dialect, header or text; and how many when.

A search goes from the newest rows to older ones, in windows of offsets. Of several partitions the
one that has been read least far back is read next, so that rows come in the order of their times
whatever partition they are in. It ends when there are enough rows, after some seconds
(`web.search_time`), or when the rows that it holds have too many bytes (`web.search_bytes`): then
the answer says from where to go on. Everything here runs on a thread of HTTP.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wirelake.errors import EngineError
from wirelake.http.log import PART, Selection, between, find_time, matching
from wirelake.http.payloads import shown
from wirelake.journal.arrow_stream import decode
from wirelake.journal.contract import Position
from wirelake.journal.engine import Engine

#: Offsets that are read at once, at first and then at most.
FIRST_WINDOW = 256
WINDOW = 8_192
#: How long a search takes unless told otherwise (seconds).
BUDGET = 2.0
#: Rows of an answer, unless it is an export.
MOST_ROWS = 1_000
#: Bytes of payloads in an answer; a payload beyond `LONGEST` is cut where many rows are asked for.
LONGEST = 4_096
#: Bytes that a row takes in memory beside its payload and headers, roughly.
ROW = 1_024
MOST_BUCKETS = 240
#: Behind every partition and offset.
LAST = 1 << 62

COLUMNS = (
    "partition", "offset", "time", "address", "op", "dialect", "id", "correlation_id", "source",
    "target", "content_type", "priority", "ttl", "headers", "payload",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are looked for, beside what a selection by rights and addresses leaves."""

    ops: tuple[str, ...] = ()
    dialects: tuple[str, ...] = ()
    text: str = ""
    id: str = ""
    header: tuple[str, str] = ("", "")

    @property
    def has_every_row(self) -> bool:
        """Whether nothing is left out."""
        return not (self.ops or self.dialects or self.text or self.id or self.header[0])

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are wanted."""
        for name, values in (("op", self.ops), ("dialect", self.dialects)):
            if values and batch.num_rows:
                found = pc.is_in(batch.column(name).cast(pa.string()), pa.array(values))
                batch = batch.filter(found)
        if self.id and batch.num_rows:
            hits = pc.equal(batch.column("id").cast(pa.string()), self.id)
            other = pc.equal(batch.column("correlation_id").cast(pa.string()), self.id)
            batch = batch.filter(pc.or_(hits, other))
        if self.text and batch.num_rows:
            batch = batch.filter(self._has_text(batch))
        if self.header[0] and batch.num_rows:
            batch = batch.filter(pa.array(self._has_header(batch), pa.bool_()))
        return batch

    def _has_text(self, batch: pa.RecordBatch) -> pa.Array:
        hits = pc.match_substring(batch.column("payload"), self.text)
        for name in ("address", "id", "correlation_id", "source", "target"):
            column = batch.column(name).cast(pa.string())
            hits = pc.or_(hits, pc.match_substring(column, self.text))
        return hits

    def _has_header(self, batch: pa.RecordBatch) -> list[bool]:
        name, value = self.header
        return [
            any(key == name and (not value or found == value) for key, found in pairs)
            for pairs in batch.column("headers").to_pylist()
        ]


@dataclass(eq=False, slots=True)
class _Part:
    """One partition: what of it has been read."""

    partition: int
    first: int
    low: int  # rows from here on have been read
    low_time: int
    window: int = FIRST_WINDOW
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: The newest of its rows that had no room, see `_order`: older ones are not looked for.
    dropped: tuple[int, int, int] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all that is wanted is in `rows`."""
        return self.low <= self.first and self.dropped is None

    @property
    def horizon(self) -> tuple[int, int, int] | None:
        """Rows that are not behind this time, partition and offset may be missing."""
        if self.is_done or self.dropped is not None:
            return self.dropped
        return self.low_time, LAST, LAST


class _Haul:
    """The rows that a search holds: the newest ones, as far as there is room for them."""

    def __init__(self, parts: list[_Part], room: int, longest: int) -> None:
        self.parts = parts
        self._room = room
        self._longest = longest  # bytes of a payload; 0: all
        self._size = 0

    def add(self, part: _Part, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch."""
        rows = as_rows(batch, self._longest)
        part.rows += rows
        self._size += sum(map(_size, rows))
        if self._size > self._room + self._room // 4:  # not at every row: it sorts all of them
            self.shrink()

    def shrink(self) -> None:
        """Drop the oldest rows that have no room; the newest one of all stays."""
        if self._size <= self._room:
            return
        rows = sorted((row for part in self.parts for row in part.rows), key=_order, reverse=True)
        self._size = 0
        kept: set[tuple[int, int, int]] = set()
        for row in rows:
            if kept and self._size + _size(row) > self._room:
                break
            self._size += _size(row)
            kept.add(_order(row))
        for part in self.parts:
            gone = [_order(row) for row in part.rows if _order(row) not in kept]
            if gone:
                part.rows = [row for row in part.rows if _order(row) in kept]
                part.dropped = max(gone if part.dropped is None else [*gone, part.dropped])

    def forget_below(self, part: _Part) -> None:
        """Forget the rows of a window that could not be read to its end."""
        part.rows = [row for row in part.rows if row["offset"] >= part.low]
        if part.dropped is not None and part.dropped[2] < part.low:
            part.dropped = None
        self._size = sum(_size(row) for one in self.parts for row in one.rows)


def _size(row: dict[str, Any]) -> int:
    """The bytes that a row takes in memory, roughly."""
    headers = row.get("headers", {})
    return ROW + len(row["payload_bytes"]) + sum(len(k) + len(headers[k]) + 128 for k in headers)


class Found(msgspec.Struct):
    """What a search has found in one partition; it travels between nodes."""

    partition: int
    first: int
    low: int  # rows from here on have been read, and those that are wanted are in `rows`
    rows: list[dict[str, Any]]
    #: Older rows may be missing: those that are not behind this time, partition and offset.
    horizon: tuple[int, int, int] | None
    #: There was no room for some of them (`web.search_bytes`).
    is_full: bool = False


def look(
    engine: Engine,
    selection: Selection,
    wanted: Wanted,
    *,
    start: int = 0,
    stop: int = 0,
    before: dict[int, int] | None = None,
    limit: int = 100,
    only: int | None = None,
    budget: float = BUDGET,
    longest: int = 0,
    room: int = LAST,
) -> list[Found]:
    """The newest rows of the partitions that are here, at most `limit` of them in all.

    They were received in [start, stop) µs, 0 for open ends, or are before these offsets. With
    `only`, those of one partition. Payloads are cut to `longest` bytes, 0: not at all; rows of more
    than `room` bytes are not held. `put_together` makes an answer of what one or more nodes found.
    """
    deadline = float("inf")
    parts = [
        _part(engine, one, start, stop, before or {})
        for one in engine.positions()
        if only in (None, one.partition) and engine.answers_for(one.partition)
    ]
    haul = _Haul(parts, room, longest)
    while True:
        horizon = max((part.horizon for part in parts if part.horizon), default=(-1, 0, 0))
        certain = sum(_order(row) > horizon for part in parts for row in part.rows)
        left = [part for part in parts if not part.is_done and part.dropped is None]
        if not left or certain >= limit or time.monotonic() > deadline:
            break
        part = max(left, key=lambda part: part.low_time)
        if not _read_window(engine, part, selection, wanted, partial(haul.add, part)):
            haul.forget_below(part)
        if deadline == float("inf"):  # the first window makes pyarrow load what it needs
            deadline = time.monotonic() + budget
    haul.shrink()
    return newest(parts, limit)


def newest(parts: list[_Part], limit: int) -> list[Found]:
    """What of the rows that were read is told: the newest ones."""
    rows = sorted((row for part in parts for row in part.rows), key=_order, reverse=True)
    kept = {_order(row) for row in rows[:limit]}
    return [_found(part, kept) for part in parts]


def _order(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["time"], row["partition"], row["offset"]


def _found(part: _Part, kept: set[tuple[int, int, int]]) -> Found:
    """What of a partition is told, if these rows are."""
    left = [row for row in part.rows if _order(row) not in kept]
    rows = [row for row in part.rows if _order(row) in kept]
    is_full = part.dropped is not None
    if left:
        low = max(row["offset"] for row in left) + 1
        return Found(part.partition, part.first, low, rows, max(map(_order, left)), is_full)
    low = part.low if part.dropped is None else part.dropped[2] + 1
    return Found(part.partition, part.first, low, rows, part.horizon, is_full)


def put_together(parts: list[Found], limit: int) -> dict[str, Any]:
    """The newest rows of partitions that were searched apart, and from where to go on."""
    horizon = max((part.horizon for part in parts if part.horizon is not None), default=(-1, 0, 0))
    certain = [row for part in parts for row in part.rows if _order(row) > horizon]
    certain.sort(key=_order, reverse=True)
    rows = certain[:limit]
    told = {(row["partition"], row["offset"]) for row in rows}
    cursor = {}
    for part in parts:
        rest = [row["offset"] for row in part.rows if (part.partition, row["offset"]) not in told]
        cursor[part.partition] = max(rest) + 1 if rest else part.low
    more = any(cursor[part.partition] > part.first for part in parts)
    return {"rows": rows, "more": more, "before": cursor if more else {}}


def _part(
    engine: Engine, position: Position, start: int, stop: int, before: dict[int, int]
) -> _Part:
    first = find_time(engine, position, start) if start else position.first
    end = position.next
    if position.partition in before:
        end = min(end, max(first, before[position.partition]))
    elif stop:
        end = find_time(engine, position, stop)
    return _Part(position.partition, first, max(end, first), position.last_time)


def _read_window(
    engine: Engine,
    part: _Part,
    selection: Selection,
    wanted: Wanted,
    take: Callable[[pa.RecordBatch], object],
) -> bool:
    """Take the wanted rows of one window further back, batch by batch.

    Returns False where retention deleted some of the window meanwhile: then none of it counts.
    """
    start = max(part.first, part.low - min(part.window, WINDOW))
    part.window *= 4  # what is looked for may be seldom
    earliest = part.low_time
    try:
        for stored in engine.read(part.partition, start, part.low):
            earliest = min(earliest, stored.first_time)
            batch = between(decode(stored.ipc), start, part.low)
            take(wanted.keep(matching(batch, selection)))
    except EngineError:  # retention deleted what was left of it
        part.first = part.low
        return False
    part.low = start
    # Rows before this window are not newer than the first of it.
    part.low_time = earliest
    return True


def as_rows(batch: pa.RecordBatch, longest: int = 0) -> list[dict[str, Any]]:
    """Rows as JSON has them; what is absent is left out, and payloads are cut to `longest`."""
    if not batch.num_rows:
        return []
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    names = [name for name in batch.schema.names if name != "timestamp"]
    columns = {name: batch.column(name).to_pylist() for name in names}
    return [
        _row({name: columns[name][at] for name in names}, times[at], longest)
        for at in range(batch.num_rows)
    ]


def _row(values: dict[str, Any], moment: int, longest: int) -> dict[str, Any]:
    payload = values.pop("payload")
    headers = dict(values.pop("headers"))
    row = {name: values.pop(name) for name in ("partition", "offset", "address", "op", "dialect")}
    row["time"] = moment
    row |= {name: value for name, value in values.items() if value}
    if headers:
        row["headers"] = headers
    row["payload_bytes"] = payload[:longest] if longest else payload
    row["size"] = len(payload)
    return row


def as_told(row: dict[str, Any], longest: int = LONGEST) -> dict[str, Any]:
    """A row with its payload as text, CBOR or base64, cut where it is long."""
    told = {name: value for name, value in row.items() if name != "payload_bytes"}
    payload: bytes = row["payload_bytes"]
    told |= shown(payload[:longest])
    if len(payload) > longest:
        told["cut"] = True
    return told


def exported(rows: list[dict[str, Any]], form: str) -> Generator[list[bytes | memoryview]]:
    """Rows as `jsonl` or `csv`, in pieces of about `PART` bytes; for any thread."""
    lines: list[bytes | memoryview] = [_csv(COLUMNS)] if form == "csv" else []
    size = 0
    for row in rows:
        lines.append(_as_line(row) if form == "jsonl" else _as_cells(row))
        size += len(lines[-1])
        if size >= PART:
            yield [b"".join(lines)]
            lines, size = [], 0
    yield [b"".join(lines)]


def _as_line(row: dict[str, Any]) -> bytes:
    """A row as a line of JSON."""
    return f"{json.dumps(as_told(row, 1 << 30), ensure_ascii=False)}\n".encode()


def _as_cells(row: dict[str, Any]) -> bytes:
    """A row as a line of CSV; headers as JSON, a payload that is no text as base64."""
    told = as_told(row, 1 << 30)
    told["headers"] = json.dumps(told.get("headers", {}), ensure_ascii=False)
    told["payload"] = told.get("payload", told.get("base64", ""))
    return _csv([_cell(told.get(name, "")) for name in COLUMNS])


def _csv(cells: Sequence[object]) -> bytes:
    """A line of CSV."""
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


def _cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def histogram(
    engine: Engine,
    selection: Selection,
    wanted: Wanted,
    start: int,
    stop: int,
    buckets: int,
    budget: float = BUDGET,
) -> dict[str, Any]:
    """Count the wanted rows that were received in each of the equal parts of [start, stop) µs.

    Offsets count rows, so where all rows are wanted only the ends of each part are looked up. Else
    rows are read from the newest on, for `budget` seconds: `since` says from when on all were.
    """
    positions = [
        one
        for one in engine.positions()
        if one.next > one.first and engine.answers_for(one.partition)
    ]
    start = start or min((one.first_time for one in positions), default=0)
    stop = stop or max((one.last_time for one in positions), default=0) + 1
    width = max(1, -(-(stop - start) // buckets))
    counts = [0] * buckets
    since = start
    if selection.has_every_row and wanted.has_every_row:
        for position in positions:
            at = find_time(engine, position, start)
            for bucket in range(buckets):
                end = find_time(engine, position, min(stop, start + width * (bucket + 1)))
                counts[bucket] += end - at
                at = end
    else:
        since = _count(engine, selection, wanted, (start, stop, width), counts, budget)
    return {"start": start, "stop": stop, "width": width, "counts": counts, "since": since}


def _count(
    engine: Engine,
    selection: Selection,
    wanted: Wanted,
    scale: tuple[int, int, int],
    counts: list[int],
    budget: float,
) -> int:
    """Count wanted rows in parts of the time; return the time from which on all were counted."""
    start, stop, width = scale

    def count(batch: pa.RecordBatch) -> None:
        times = batch.column("timestamp").cast(pa.int64())
        for place in pc.value_counts(pc.divide(pc.subtract(times, start), width)):
            if 0 <= (bucket := place["values"].as_py()) < len(counts):
                counts[bucket] += place["counts"].as_py()

    deadline = float("inf")
    parts = [
        _part(engine, one, start, stop, {})
        for one in engine.positions()
        if engine.answers_for(one.partition)
    ]
    while left := [part for part in parts if not part.is_done]:
        if time.monotonic() > deadline:
            return max(start, *(part.low_time for part in left))
        part = max(left, key=lambda part: part.low_time)
        before = counts.copy()
        if not _read_window(engine, part, selection, wanted, count):
            counts[:] = before
        if deadline == float("inf"):
            deadline = time.monotonic() + budget
    return start
