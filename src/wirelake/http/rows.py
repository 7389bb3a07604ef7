"""Rows to publish, from an Arrow stream that a stranger sent.

The kernels that read Arrow columns check no bounds, and a few bytes of Arrow can stand for
gigabytes: compressed buffers, dictionaries, views. So a body is not compressed, is validated in
full, and what it stands for is added up before anything is written out.

Columns: `address` and `payload`, and where they are there `id`, `correlation_id`, `content_type`,
`priority`, `ttl` and `headers`, in any type that can be cast to the log's. Others are ignored, so
that rows of the log can be sent as they are. Headers whose names begin with `$` are left out
(decision 20).
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import check_topic
from wirelake.errors import RefusedError
from wirelake.message import LARGEST, MAX_ID, Limits
from wirelake.wire.arrow import SCHEMA

#: Rows that are published in one turn of the broker's event loop.
CHUNK = 2048

_REQUIRED = ("address", "payload")
_TEXTS = ("address", "payload", "id", "correlation_id")
_COLUMNS = (*_TEXTS, *LARGEST, "headers")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that can be published: in the log's own types, and counted by address."""

    batches: list[pa.RecordBatch]
    counts: dict[str, int]
    sizes: dict[str, int]

    def __len__(self) -> int:
        return sum(self.counts.values())

    def without(self, counts: dict[str, int]) -> Rows:
        """Return the rows without the first few of each address; slow, for rare cases."""
        passed: Counter[str] = Counter()
        kept = []
        for batch in self.batches:
            wanted = []
            for address in batch.column("address").to_pylist():
                passed[address] += 1
                wanted.append(passed[address] > counts.get(address, 0))
            kept.append(batch.filter(pa.array(wanted, pa.bool_())))
        return _rows(kept)


def read_rows(body: bytes, limits: Limits) -> Rows:
    """The rows of a body, or RefusedError; for any thread."""
    try:
        _refuse_compressed(body)
        with pa.ipc.open_stream(body) as stream:
            names = stream.schema.names
            for name in _REQUIRED:
                if names.count(name) != 1:
                    raise RefusedError("bad_request", f"there must be one column {name}")
            batches = []
            size = 0
            for batch in stream:
                batch.validate(full=True)
                if batch.num_rows == 0:
                    continue
                size += _size(batch)
                if size > limits.sequence:
                    text = f"the rows of a request have at most {limits.sequence} bytes"
                    raise RefusedError("too_large", text)
                batches.append(_checked(batch, limits))
    except (pa.ArrowException, ValueError, OSError, MemoryError, IndexError, struct.error) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else "unreadable"
        raise RefusedError("bad_request", f"not an Arrow stream of rows: {reason}") from None
    return _rows(batches)


def _rows(batches: list[pa.RecordBatch]) -> Rows:
    """Batches in pieces of one turn each, with the sums per address."""
    if not sum(batch.num_rows for batch in batches):
        return Rows([], {}, {})
    table = pa.Table.from_batches(batches)
    sizes = table.select(["address"]).append_column("size", pc.binary_length(table["payload"]))
    sums = sizes.group_by("address").aggregate([("size", "sum"), ("size", "count")])
    addresses = sums["address"].to_pylist()
    for address in addresses:
        check_topic(address)
    chunks = [batch.slice(at, CHUNK) for batch in batches for at in range(0, batch.num_rows, CHUNK)]
    return Rows(
        chunks,
        dict(zip(addresses, sums["size_count"].to_pylist(), strict=True)),
        dict(zip(addresses, sums["size_sum"].to_pylist(), strict=True)),
    )


def _size(batch: pa.RecordBatch) -> int:
    """The bytes that a batch stands for, once dictionaries and views are written out."""
    total = 64 * batch.num_rows
    for name in _TEXTS:
        if (at := batch.schema.get_field_index(name)) >= 0:
            column = batch.column(at)
            if isinstance(column, pa.DictionaryArray):
                lengths = _lengths(column.dictionary, name).take(column.indices)
            else:
                lengths = _lengths(column, name)
            total += pc.sum(lengths).as_py() or 0
    return int(total)


def _lengths(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        raise RefusedError("bad_request", f"the column {name} has views, which are not taken")
    if not any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    ):
        raise RefusedError("bad_request", f"the column {name} is {kind}, not text or bytes")
    return pc.binary_length(column).cast(pa.int64())


def _checked(batch: pa.RecordBatch, limits: Limits) -> pa.RecordBatch:
    """The columns that count, in the log's types, without nulls, and within bounds."""
    columns: dict[str, pa.Array] = {}
    for name in _COLUMNS:
        if (at := batch.schema.get_field_index(name)) >= 0:
            columns[name] = _column(batch.column(at), name, limits)
    for name in ("id", "correlation_id"):
        if name in columns and (pc.max(pc.binary_length(columns[name])).as_py() or 0) > MAX_ID:
            raise RefusedError("bad_request", f"the column {name} has more than {MAX_ID} bytes")
    for name, most in LARGEST.items():
        if name in columns:
            bounds = pc.min_max(columns[name]).as_py()
            if bounds["min"] < 0 or bounds["max"] > most:
                raise RefusedError("bad_request", f"the column {name} goes from 0 to {most}")
    # A stranger's buffers may begin and end anywhere; those of a copy are as Arrow makes them.
    every_row = pc.indices_nonzero(pa.repeat(True, batch.num_rows))
    return pa.RecordBatch.from_pydict(columns).take(every_row)


def _column(column: pa.Array, name: str, limits: Limits) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name == "headers":
        return _headers(column, limits)
    if name == "address" and column.null_count:
        raise RefusedError("bad_request", "an address is null")
    column = column.cast(kind)
    if column.null_count:
        empty: Any = b"" if name == "payload" else "" if name in _TEXTS else 0
        column = column.fill_null(empty)
    return column


def _headers(column: pa.Array, limits: Limits) -> pa.Array:
    """Headers without those whose names begin with `$`."""
    column = column.cast(SCHEMA.field("headers").type)
    starts = column.offsets
    if column.null_count:
        raise RefusedError("bad_request", "headers are null; where there are none, they are empty")
    begin, end = starts[0].as_py(), starts[-1].as_py()
    keys = column.keys.slice(begin, end - begin)
    items = column.items.slice(begin, end - begin).fill_null("")
    starts = pc.subtract(starts, begin)
    kept = pc.invert(pc.starts_with(keys, "$"))
    if not pc.all(kept).as_py():
        keys, items = keys.filter(kept), items.filter(kept)
        starts = _sums(kept.cast(pa.int32()), pa.int32()).take(starts)
    lengths = pc.add(pc.binary_length(keys), pc.binary_length(items)).cast(pa.int64())
    sums = _sums(lengths, pa.int64()).take(starts)
    most = pc.max(pc.subtract(sums.slice(1), sums.slice(0, len(sums) - 1))).as_py() or 0
    if most > limits.headers:
        raise RefusedError("too_large", f"headers have at most {limits.headers} bytes")
    return pa.MapArray.from_arrays(starts, keys, items)


def _sums(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The sums of the first 0, 1, 2, … values."""
    return pa.concat_arrays([pa.array([0], kind), pc.cumulative_sum(values)])


# Arrow's metadata is a flatbuffer: a table has in front of it, by a signed distance, a list of
# where its fields are. Only what tells whether a buffer is compressed is read here.
_HEADER_TYPE, _HEADER = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_COMPRESSION = 3
_DATA = 1


def _refuse_compressed(body: bytes) -> None:
    """Refuse a stream in which any buffer is compressed."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        data = bytes(message.metadata)
        table = struct.unpack_from("<I", data, 0)[0]
        kind_at, header_at = _field(data, table, _HEADER_TYPE), _field(data, table, _HEADER)
        if not kind_at or not header_at:
            continue
        kind, batch = data[kind_at], _follow(data, header_at)
        if kind == _DICTIONARY_BATCH and (inner := _field(data, batch, _DATA)):
            kind, batch = _RECORD_BATCH, _follow(data, inner)
        if kind == _RECORD_BATCH and _field(data, batch, _COMPRESSION):
            raise RefusedError("bad_request", "the stream is compressed; send it as it is")


def _follow(data: bytes, at: int) -> int:
    return int(at + struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a table's field is, 0 where it is absent."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    if fields < 0:
        raise ValueError("bad metadata")
    size = struct.unpack_from("<H", data, fields)[0]
    place = 4 + 2 * number
    if place + 2 > size:
        return 0
    offset = struct.unpack_from("<H", data, fields + place)[0]
    return int(table + offset) if offset else 0
