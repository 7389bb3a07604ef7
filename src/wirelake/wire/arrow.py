"""Frame tables to Arrow record batches and back, without a Python object per message.

`SCHEMA` is the log's one definition: the engine stores it, HTTP sends it, Spark reads it. A string
column is built in two passes over the table: lengths to offsets, then bytes to data. What no row
has costs nothing: its column is a view on a shared buffer of zeros.

A batch keeps a message's fields, not its flags: a table read from a batch has no dialect of its
own, and encoders treat its rows as they treat those of a foreign dialect.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import cython
import pyarrow as pa

from wirelake.dialects import HOPS
from wirelake.message import OP_LABELS, Op
from wirelake.wire import parameters

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.wirelake.wire.octets import Octets, equal, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.octets import Octets, equal, same, uint32
    from wirelake.wire.table import FrameTable

__all__ = ["SCHEMA", "from_arrow", "to_arrow"]

#: The log's schema: a message, where it is in the log, and when it was received.
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("dialect", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("correlation_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("content_type", pa.int32(), nullable=False),
        pa.field("priority", pa.int8(), nullable=False),
        pa.field("ttl", pa.int32(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

_OP_CODES = {label.encode(): code for code, label in enumerate(OP_LABELS)}
#: The labels of all ops in one piece, and where each begins and how long it is, by its code.
LABELS = "".join(OP_LABELS).encode()
LABEL_LEN = array("i", [len(label) for label in OP_LABELS])
LABEL_AT = array("i", [sum(LABEL_LEN[:code]) for code in range(len(OP_LABELS))])
_TOKEN = parameters.TOKEN

_zeros = pa.py_buffer(bytes(1 << 16))


def to_arrow(
    table: FrameTable,
    *,
    timestamp: int = 0,
    partition: int = 0,
    offset: int = 0,
    rows: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """The rows of a table (all, or these) as a batch of the log, offsets counted from `offset`."""
    gather = _Gather(table, rows)
    n = gather.n
    table.read_headers()
    return pa.RecordBatch.from_arrays(
        [
            _constant(pa.int32(), "i", n, partition),
            gather.offsets(offset),
            _constant(pa.timestamp("us", tz="UTC"), "q", n, timestamp),
            gather.field("address"),
            gather.ops(),
            gather.dialect(),
            gather.field("id"),
            gather.field("correlation_id"),
            gather.field("source"),
            gather.field("target"),
            gather.numbers("content_type"),
            gather.numbers("priority"),
            gather.numbers("ttl"),
            gather.headers(),
            gather.field("payload"),
        ],
        schema=SCHEMA,
    )


def from_arrow(batch: pa.RecordBatch, table: FrameTable, start: int = 0) -> int:
    """Fill a table with the rows of a batch from `start` on; return how many there was room for.

    Columns that the batch does not have are absent; an op that is absent is `publish`.
    """
    batch = batch.slice(start, table.capacity)
    _Scatter(batch, table)
    return batch.num_rows  # type: ignore[no-any-return]  # pyarrow has no types


def _zero_buffer(size: int) -> pa.Buffer:
    """Return a view of this many zero bytes."""
    global _zeros
    if size > _zeros.size:
        _zeros = pa.py_buffer(bytes(2 * size))
    return _zeros.slice(0, size)


def _cells(buffer: pa.Buffer, code: Any) -> Any:
    """A buffer as items of one C type."""
    return memoryview(buffer).cast("B").cast(code)


def _constant(kind: pa.DataType, code: str, n: int, value: int) -> pa.Array:
    width = array(code).itemsize
    if value == 0:
        buffer = _zero_buffer(width * n)
    else:
        buffer = pa.py_buffer(array(code, [value]) * n)
    return pa.Array.from_buffers(kind, n, [None, buffer])


@cython.final
@cython.cclass
class _Gather:
    """Columns of a table, for the rows that were chosen, as Arrow arrays."""

    table: FrameTable
    n = cython.declare(cython.Py_ssize_t, visibility="readonly")
    chosen: cython.const[cython.int][::1]
    all: cython.bint

    def __init__(self, table: FrameTable, rows: Sequence[int] | None) -> None:
        self.table = table
        self.all = rows is None
        self.n = table.count
        self.chosen = array("i")
        if rows is not None:
            self.chosen = table.chosen(rows)
            self.n = len(self.chosen)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _row(self, k: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return k if self.all else self.chosen[k]

    def offsets(self, first: cython.longlong) -> pa.Array:
        """The rows' offsets in the log."""
        k: cython.Py_ssize_t
        buffer = pa.allocate_buffer(8 * self.n)
        cells: cython.longlong[::1] = _cells(buffer, "q")
        for k in range(self.n):
            cells[k] = first + k
        return pa.Array.from_buffers(pa.int64(), self.n, [None, buffer])

    def numbers(self, name: str) -> pa.Array:
        """A column of numbers."""
        table: FrameTable = self.table
        k: cython.Py_ssize_t
        seen: cython.int = 0
        column: cython.int[::1]
        narrow: cython.schar[::1]
        wide: cython.int[::1]
        small = name == "priority"
        if small:
            column = table.priority
        elif name == "ttl":
            column = table.ttl
        else:
            column = table.content_type
        for k in range(self.n):
            seen |= column[self._row(k)]
        kind = SCHEMA.field(name).type
        if seen == 0:
            buffer = _zero_buffer((1 if small else 4) * self.n)
        elif small:
            buffer = pa.allocate_buffer(self.n)
            narrow = _cells(buffer, "b")
            for k in range(self.n):
                narrow[k] = column[self._row(k)]
        else:
            buffer = pa.allocate_buffer(4 * self.n)
            wide = _cells(buffer, "i")
            for k in range(self.n):
                wide[k] = column[self._row(k)]
        return pa.Array.from_buffers(kind, self.n, [None, buffer])

    def field(self, name: str) -> pa.Array:
        """A column of text or bytes."""
        table: FrameTable = self.table
        kind = SCHEMA.field(name).type
        if name == "address":
            return self._strings(kind, table.address_p, table.address_at, table.address_len)
        if name == "payload":
            return self._strings(kind, table.payload_p, table.payload_at, table.payload_len)
        if name == "correlation_id":
            return self._strings(
                kind, table.correlation_p, table.correlation_at, table.correlation_len
            )
        if name == "source":
            return self._strings(kind, table.source_p, table.source_at, table.source_len)
        if name == "target":
            return self._strings(kind, table.target_p, table.target_at, table.target_len)
        if table.raw_ids:
            return self._uids()
        return self._strings(kind, table.id_p, table.id_at, table.id_len)

    @cython.cfunc
    def _strings(
        self,
        kind: object,
        p: cython.p_const_uchar,
        at: cython.int[::1],
        lengths: cython.int[::1],
    ) -> object:
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.n
        place: cython.int
        size: cython.int
        total: cython.longlong = 0
        starts: cython.int[::1]
        data: cython.uchar[::1]
        side: Octets = self.table.side
        for k in range(n):
            total += lengths[self._row(k)]
        if total == 0:
            zeros = _zero_buffer(4 * (n + 1))
            return pa.Array.from_buffers(kind, n, [None, zeros, zeros.slice(0, 0)])
        if total > 0x7FFFFFFF:
            raise ValueError("a column of a batch holds at most 2 GiB")
        offsets = pa.allocate_buffer(4 * (n + 1))
        values = pa.allocate_buffer(total)
        starts = _cells(offsets, "i")
        data = _cells(values, "B")
        total = 0
        for k in range(n):
            row = self._row(k)
            starts[k] = total
            place = at[row]
            size = lengths[row]
            if cython.compiled:
                if place >= 0:
                    memcpy(cython.address(data[0]) + total, p + place, size)
                else:
                    memcpy(cython.address(data[0]) + total, side.data + (-1 - place), size)
            elif size:
                source = p if place >= 0 else side.data
                place = place if place >= 0 else -1 - place
                data[total : total + size] = source[place : place + size]
            total += size
        starts[n] = total
        return pa.Array.from_buffers(kind, n, [None, offsets, values])

    @cython.cfunc
    def _uids(self) -> object:
        """mfp's raw ids, as hexadecimal digits."""
        out = Octets(32 * self.n + 1)
        k: cython.Py_ssize_t
        offsets = pa.allocate_buffer(4 * (self.n + 1))
        starts: cython.int[::1] = _cells(offsets, "i")
        starts[0] = 0
        for k in range(self.n):
            self.table.put_id(out, self._row(k))
            starts[k + 1] = out.size
        return pa.Array.from_buffers(pa.string(), self.n, [None, offsets, pa.py_buffer(out.take())])

    def ops(self) -> pa.Array:
        """The rows' ops, by name."""
        k: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.n
        op: cython.int
        label_at: cython.int[::1] = LABEL_AT
        label_len: cython.int[::1] = LABEL_LEN
        out = Octets(8 * n + 1)
        labels: bytes = LABELS
        offsets = pa.allocate_buffer(4 * (n + 1))
        starts: cython.int[::1] = _cells(offsets, "i")
        starts[0] = 0
        for k in range(n):
            op = self.table.op[self._row(k)]
            out.put(labels, label_at[op], label_len[op])
            starts[k + 1] = out.size
        return pa.Array.from_buffers(pa.string(), n, [None, offsets, pa.py_buffer(out.take())])

    def dialect(self) -> pa.Array:
        """The table's dialect, in every row."""
        k: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.n
        name = self.table.dialect.encode()
        size: cython.int = len(name)
        offsets = pa.allocate_buffer(4 * (n + 1))
        starts: cython.int[::1] = _cells(offsets, "i")
        for k in range(n + 1):
            starts[k] = k * size
        return pa.Array.from_buffers(pa.string(), n, [None, offsets, pa.py_buffer(name * self.n)])

    def headers(self) -> pa.Array:
        """The rows' headers; a token never goes into the log (decision 4)."""
        table: FrameTable = self.table
        side: Octets = table.side
        n: cython.Py_ssize_t = self.n
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        entries: cython.Py_ssize_t = 0
        token: bytes = _TOKEN
        # Every entry has eight bytes of lengths, so this bounds their number.
        for k in range(n):
            entries += table.headers_len[self._row(k)] // 8
        if entries == 0:
            starts_buffer = _zero_buffer(4 * (n + 1))
        else:
            starts_buffer = pa.allocate_buffer(4 * (n + 1))
        key_buffer = pa.allocate_buffer(4 * (entries + 1))
        value_buffer = pa.allocate_buffer(4 * (entries + 1))
        key_starts: cython.int[::1] = _cells(key_buffer, "i")
        value_starts: cython.int[::1] = _cells(value_buffer, "i")
        keys = Octets(16 * entries + 1)
        values = Octets(16 * entries + 1)
        starts: cython.int[::1]
        key_starts[0] = value_starts[0] = 0
        if entries:
            starts = _cells(starts_buffer, "i")
            entries = 0
            for k in range(n):
                row = self._row(k)
                starts[k] = entries
                at = -1 - table.headers_at[row]
                end = at + table.headers_len[row]
                while at < end:
                    key = uint32(side.data, at)
                    value = uint32(side.data, at + 4)
                    at += 8
                    if key != 6 or not same(side.data, at, token, 6):
                        keys.put(side.data, at, key)
                        values.put(side.data, at + key, value)
                        entries += 1
                        key_starts[entries] = keys.size
                        value_starts[entries] = values.size
                    at += key + value
            starts[n] = entries
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), n + 1, [None, starts_buffer]),
            pa.Array.from_buffers(
                pa.string(), entries, [None, key_buffer, pa.py_buffer(keys.take())]
            ),
            pa.Array.from_buffers(
                pa.string(), entries, [None, value_buffer, pa.py_buffer(values.take())]
            ),
        )


@cython.final
@cython.cclass
class _Scatter:
    """The columns of a batch, into a table."""

    table: FrameTable
    batch: Any
    n: cython.Py_ssize_t

    def __init__(self, batch: pa.RecordBatch, table: FrameTable) -> None:
        row: cython.Py_ssize_t
        self.batch = batch
        self.table = table
        self.n = batch.num_rows
        table.begin(None, "", b"")
        for row in range(self.n):
            table.blank(row)
            table.frame_at[row] = 0
            table.frame_len[row] = 0
            table.sent[row] = 0
        self._strings("address", table.address_at, table.address_len)
        self._strings("payload", table.payload_at, table.payload_len)
        self._strings("id", table.id_at, table.id_len)
        self._strings("correlation_id", table.correlation_at, table.correlation_len)
        self._strings("source", table.source_at, table.source_len)
        self._strings("target", table.target_at, table.target_len)
        self._numbers("content_type", table.content_type)
        self._numbers("priority", table.priority)
        self._numbers("ttl", table.ttl)
        self._ops()
        self._forget_hops()
        self._headers()
        table.count = self.n

    @cython.cfunc
    def _column(self, name: str) -> object:
        """A column in the log's own type and without nulls, or None."""
        if self.batch.schema.get_field_index(name) < 0:
            return None
        column = self.batch.column(name)
        kind = SCHEMA.field(name).type
        if column.type != kind:
            column = column.cast(kind)
        if column.null_count and not pa.types.is_map(kind):
            empty = b"" if pa.types.is_binary(kind) else "" if pa.types.is_string(kind) else 0
            column = column.fill_null(empty)
        return column

    @cython.cfunc
    def _strings(self, name: str, at: cython.int[::1], lengths: cython.int[::1]) -> cython.int:
        starts: cython.const[cython.int][::1]
        row: cython.Py_ssize_t
        column = self._column(name)
        if column is None or self.n == 0:
            return 0
        _, offsets, data = column.buffers()
        starts = _cells(offsets, "i")[column.offset : column.offset + self.n + 1]
        for row in range(self.n):
            at[row] = starts[row]
            lengths[row] = starts[row + 1] - starts[row]
        return self.table.point(name, b"" if data is None else _cells(data, "B"))

    @cython.cfunc
    def _numbers(self, name: str, cells: cython.int[::1]) -> cython.int:
        row: cython.Py_ssize_t
        narrow: cython.const[cython.schar][::1]
        wide: cython.const[cython.int][::1]
        column = self._column(name)
        if column is None or self.n == 0:
            return 0
        data = column.buffers()[1]
        if name == "priority":
            narrow = _cells(data, "b")[column.offset : column.offset + self.n]
            for row in range(self.n):
                cells[row] = narrow[row]
        else:
            wide = _cells(data, "i")[column.offset : column.offset + self.n]
            for row in range(self.n):
                cells[row] = wide[row]
        return 0

    @cython.cfunc
    def _ops(self) -> cython.int:
        """Codes for the names; a name is looked up only where it is not that of the row before."""
        table: FrameTable = self.table
        row: cython.Py_ssize_t
        code: cython.int = Op.PUBLISH
        begin: cython.Py_ssize_t
        size: cython.Py_ssize_t
        last: cython.Py_ssize_t = 0
        last_size: cython.Py_ssize_t = -1
        starts: cython.const[cython.int][::1]
        data: cython.const[cython.uchar][::1]
        p: cython.p_const_uchar
        column = self._column("op")
        if column is None or self.n == 0 or column.buffers()[2] is None:
            for row in range(self.n):
                table.op[row] = code
            return 0
        _, offsets, values = column.buffers()
        starts = _cells(offsets, "i")[column.offset : column.offset + self.n + 1]
        data = _cells(values, "B")
        if cython.compiled:
            p = cython.address(data[0])
        else:
            p = data
        for row in range(self.n):
            begin = starts[row]
            size = starts[row + 1] - begin
            if size != last_size or not equal(p, begin, p, last, size):
                label = bytes(p[begin : begin + size])
                code = _OP_CODES.get(label, 0) if label else Op.PUBLISH
                last, last_size = begin, size
            table.op[row] = code
        return 0

    @cython.cfunc
    def _forget_hops(self) -> cython.int:
        """Forget ttls that count hops: they are no time in another dialect (decision 10)."""
        row: cython.Py_ssize_t
        starts: cython.const[cython.int][::1]
        data: cython.const[cython.uchar][::1]
        p: cython.p_const_uchar
        column = self._column("dialect")
        if column is None or self.n == 0 or column.buffers()[2] is None:
            return 0
        _, offsets, values = column.buffers()
        starts = _cells(offsets, "i")[column.offset : column.offset + self.n + 1]
        data = _cells(values, "B")
        if cython.compiled:
            p = cython.address(data[0])
        else:
            p = data
        begin: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = -1
        hops: cython.bint = False
        for row in range(self.n):
            # Neighbours are mostly of one dialect: then its name was looked up already.
            if starts[row + 1] - starts[row] != size or not equal(p, begin, p, starts[row], size):
                begin, size = starts[row], starts[row + 1] - starts[row]
                hops = bytes(data[begin : begin + size]).decode() in HOPS
            if hops:
                self.table.ttl[row] = 0
        return 0

    @cython.cfunc
    def _headers(self) -> cython.int:
        table: FrameTable = self.table
        side: Octets = table.side
        row: cython.Py_ssize_t
        entry: cython.Py_ssize_t
        starts: cython.const[cython.int][::1]
        key_starts: cython.const[cython.int][::1]
        value_starts: cython.const[cython.int][::1]
        keys: cython.const[cython.uchar][::1]
        values: cython.const[cython.uchar][::1]
        key: cython.p_const_uchar
        value: cython.p_const_uchar
        start: cython.int
        column = self._column("headers")
        if column is None or self.n == 0 or len(column.keys) == 0:
            return 0
        if column.null_count or column.items.null_count:
            column = pa.array(
                [[(k, v or "") for k, v in entries or ()] for entries in column.to_pylist()],
                SCHEMA.field("headers").type,
            )
        starts = _cells(column.buffers()[1], "i")[column.offset : column.offset + self.n + 1]
        key_starts, keys = _text_buffers(column.keys)
        value_starts, values = _text_buffers(column.items)
        if cython.compiled:
            key = cython.address(keys[0])
            value = cython.address(values[0])
        else:
            key = keys
            value = values
        for row in range(self.n):
            start = table.side_at()
            for entry in range(starts[row], starts[row + 1]):
                side.put_uint32(key_starts[entry + 1] - key_starts[entry])
                side.put_uint32(value_starts[entry + 1] - value_starts[entry])
                side.put(key, key_starts[entry], key_starts[entry + 1] - key_starts[entry])
                side.put(value, value_starts[entry], value_starts[entry + 1] - value_starts[entry])
            table.headers_at[row] = start
            table.headers_len[row] = start - table.side_at()
        return 0


def _text_buffers(column: pa.Array) -> tuple[Any, Any]:
    """A string array's offsets and data."""
    _, offsets, data = column.buffers()
    starts = _cells(offsets, "i")[column.offset : column.offset + len(column) + 1]
    return starts, memoryview(b"") if data is None else _cells(data, "B")
