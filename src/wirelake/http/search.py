"""Rows of the log as JSON, found by time, address, op, dialect, header or text; and how many when.

A search goes from the newest rows to older ones, in windows of offsets. Of several partitions the
one that has been read least far back is read next, so that rows come in the order of their times
whatever partition they are in. It ends when there are enough rows, or after `BUDGET` seconds: then
the answer says from where to go on. Everything here runs on a thread of HTTP.
"""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wirelake.errors import EngineError
from wirelake.http.log import Selection, between, find_time, matching
from wirelake.http.payloads import shown
from wirelake.journal.arrow_stream import decode
from wirelake.journal.contract import Position
from wirelake.journal.engine import Engine

#: Offsets that are read at once, at first and then at most, and how long a search takes (seconds).
FIRST_WINDOW = 256
WINDOW = 8_192
BUDGET = 2.0
#: Rows of an answer, and of an export; an export may take longer.
MOST_ROWS = 1_000
MOST_EXPORTED = 100_000
EXPORT_BUDGET = 20.0
#: Bytes of payloads in an answer; a payload beyond `LONGEST` is cut where many rows are asked for.
LONGEST = 4_096
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

    @property
    def is_done(self) -> bool:
        return self.low <= self.first


class Found(msgspec.Struct):
    """What a search has found in one partition; it travels between nodes."""

    partition: int
    first: int
    low: int  # rows from here on have been read, and those that are wanted are in `rows`
    rows: list[dict[str, Any]]
    #: Older rows may be missing: those that are not behind this time, partition and offset.
    horizon: tuple[int, int, int] | None


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
) -> list[Found]:
    """The newest rows of the partitions that are here, at most `limit` of them in all.

    They were received in [start, stop) µs, 0 for open ends, or are before these offsets. With
    `only`, those of one partition. `put_together` makes an answer of what one or more nodes found.
    """
    deadline = float("inf")
    parts = [
        _part(engine, one, start, stop, before or {})
        for one in engine.positions()
        if only in (None, one.partition) and engine.answers_for(one.partition)
    ]
    while True:
        left = [part for part in parts if not part.is_done]
        horizon = max((part.low_time for part in left), default=0)
        certain = [row for part in parts for row in part.rows if row["time"] > horizon]
        if not left or len(certain) >= limit or time.monotonic() > deadline:
            break
        _read_window(engine, max(left, key=lambda part: part.low_time), selection, wanted)
        if deadline == float("inf"):  # the first window makes pyarrow load what it needs
            deadline = time.monotonic() + budget
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
    if left:
        low = max(row["offset"] for row in left) + 1
        return Found(part.partition, part.first, low, rows, max(map(_order, left)))
    horizon = None if part.is_done else (part.low_time, LAST, LAST)
    return Found(part.partition, part.first, part.low, rows, horizon)


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


def _read_window(engine: Engine, part: _Part, selection: Selection, wanted: Wanted) -> None:
    """Read one window further back."""
    for batch in _window(engine, part, selection, wanted):
        part.rows += as_rows(batch)


def _window(
    engine: Engine, part: _Part, selection: Selection, wanted: Wanted
) -> list[pa.RecordBatch]:
    """The wanted rows of one window further back."""
    start = max(part.first, part.low - min(part.window, WINDOW))
    part.window *= 4  # what is looked for may be seldom
    found: list[pa.RecordBatch] = []
    earliest = part.low_time
    try:
        for stored in engine.read(part.partition, start, part.low):
            earliest = min(earliest, stored.first_time)
            batch = between(decode(stored.ipc), start, part.low)
            found.append(wanted.keep(matching(batch, selection)))
    except EngineError:  # retention deleted what was left of it
        part.first = part.low
        return []
    part.low = start
    # Rows before this window are not newer than the first of it.
    part.low_time = earliest
    return found


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as JSON has them; what is absent is left out."""
    if not batch.num_rows:
        return []
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    names = [name for name in batch.schema.names if name != "timestamp"]
    columns = {name: batch.column(name).to_pylist() for name in names}
    return [
        _row({name: columns[name][at] for name in names}, times[at]) for at in range(batch.num_rows)
    ]


def _row(values: dict[str, Any], moment: int) -> dict[str, Any]:
    payload = values.pop("payload")
    headers = dict(values.pop("headers"))
    row = {name: values.pop(name) for name in ("partition", "offset", "address", "op", "dialect")}
    row["time"] = moment
    row |= {name: value for name, value in values.items() if value}
    if headers:
        row["headers"] = headers
    row["payload_bytes"] = payload
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


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    """Rows as JSON lines."""
    lines = (json.dumps(as_told(row, 1 << 30), ensure_ascii=False) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    """Rows as CSV with a head; headers as JSON, a payload that is no text as base64."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in rows:
        told = as_told(row, 1 << 30)
        told["headers"] = json.dumps(told.get("headers", {}), ensure_ascii=False)
        told["payload"] = told.get("payload", told.get("base64", ""))
        writer.writerow([_cell(told.get(name, "")) for name in COLUMNS])
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
        for batch in _window(engine, part, selection, wanted):
            times = batch.column("timestamp").cast(pa.int64())
            for place in pc.value_counts(pc.divide(pc.subtract(times, start), width)):
                if 0 <= (bucket := place["values"].as_py()) < len(counts):
                    counts[bucket] += place["counts"].as_py()
        if deadline == float("inf"):
            deadline = time.monotonic() + budget
    return start
