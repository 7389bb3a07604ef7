"""Rows of frame tables to batches of the log, without a Python object per message.

`Rows` takes what comes in and sorts it by partition: every partition has a batch under
construction, columns that grow. A column is *sparse*: a row without a value does not touch it, so
what no row has costs nothing, neither time here nor memory.

A batch is stored in the log's schema, with the columns that repeat as dictionaries of the batch's
own: address, op, dialect and source. An address is looked up once, in one table for all partitions,
which knows its partition and its index in the batch that is being built.

What comes out is written by `arrow_stream`, from the columns as they are.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import cython
import pyarrow as pa

from wirelake.journal.arrow_stream import BATCH_ROWS, DICTIONARIES, Compression
from wirelake.wire import parameters
from wirelake.wire.arrow import LABEL_AT, LABEL_LEN, LABELS
from wirelake.wire.names import longer

if cython.compiled:
    from cython.cimports.wirelake.journal.arrow_stream import StreamWriter
    from cython.cimports.wirelake.wire.names import Names
    from cython.cimports.wirelake.wire.octets import Octets, equal, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.journal.arrow_stream import StreamWriter
    from wirelake.wire.names import Names
    from wirelake.wire.octets import Octets, equal, same, uint32
    from wirelake.wire.table import FrameTable

#: A batch ends with the row that reaches this, or has `BATCH_ROWS`, so that readers can skip what
#: they need not.
BATCH_BYTES = 4 << 20

#: So many addresses are remembered, with so many bytes; then all are forgotten.
KNOWN_ADDRESSES = 1 << 18
KNOWN_BYTES = 16 << 20

MAX_PARTITIONS = 1 << 15

#: What the address of a queue's dead letters ends with.
DEAD = b"/$dead"

#: A batch names its addresses if they are so few, so that readers can skip it.
MAX_NAMES = 64
MAX_NAMES_BYTES = 4096

_MAX_BYTES = cython.declare(cython.Py_ssize_t, BATCH_BYTES)
_MAX_ROWS = cython.declare(cython.Py_ssize_t, BATCH_ROWS)
#: What a row takes beside its text: numbers, indices and where its text begins.
_ROW_BYTES = cython.declare(cython.Py_ssize_t, 65)

_TOKEN = parameters.TOKEN

_NO_ROWS = array("i")
_NO_TIMES = array("q")


class Batch(NamedTuple):
    """Rows [base, base + count) of a partition; `pieces` together are its bytes in the journal."""

    partition: int
    base: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    first_time: int
    last_time: int
    pieces: list[bytes | memoryview]
    names: bytes  # its addresses, each behind a byte with its length; none where they are many

    @property
    def ipc(self) -> bytes:
        """The batch in one piece."""
        return b"".join(self.pieces)


class Taken:
    """What was taken from `Rows`, in order within each partition."""

    def __init__(self, columns: list[Any], size: int) -> None:
        self._columns = columns
        self.size = size

    def batches(self, compression: Compression = "none") -> list[Batch]:
        """The rows as batches to be stored; they share their memory with this."""
        codec = None if compression == "none" else pa.Codec(compression)
        return [columns.finish(codec) for columns in self._columns]


@cython.final
@cython.cclass
class Rows:
    """Rows of the log that came in and were not taken yet, by partition.

    `append` and `take` may be called from different threads.
    """

    #: The bytes that were ever appended.
    appended = cython.declare(cython.longlong, visibility="readonly")
    _taken: cython.longlong
    _partitions: cython.Py_ssize_t
    _next: list[int]
    _open: list[Any]
    _full: list[Any]
    _lock: Any
    _calls: cython.longlong
    _serial: cython.longlong
    _addresses: Names
    _partition_of: cython.int[::1]
    _serial_of: cython.longlong[::1]
    _index_of: cython.int[::1]

    def __init__(
        self, partitions: int, offsets: Sequence[int] | None = None, *, seed: int = 0
    ) -> None:
        """`offsets`: the next one of each partition; `seed` makes hashes hard to foresee."""
        if not 0 < partitions <= MAX_PARTITIONS:
            raise ValueError(f"a log has 1 to {MAX_PARTITIONS} partitions")
        self.appended = 0
        self._taken = 0
        self._partitions = partitions
        self._next = list(offsets or [0] * partitions)
        self._open = [None] * partitions
        self._full = []
        self._lock = threading.Lock()
        self._calls = 0
        self._serial = 0
        self._addresses = Names(seed)
        self._partition_of = array("i")
        self._serial_of = array("q")
        self._index_of = array("i")

    @property
    def size(self) -> int:
        """The bytes that are here."""
        return int(self.appended - self._taken)

    def append(
        self,
        table: FrameTable,
        rows: Sequence[int] | None,
        timestamp: int | array[int],
        source: bytes,
    ) -> None:
        """Copy rows of a table (all, or these), received at `timestamp` (µs) from `source`.

        A row's own source counts where `source` is empty. Rows may have a timestamp each.
        """
        times: cython.const[cython.longlong][::1] = _NO_TIMES
        time: cython.longlong = 0
        chosen: cython.const[cython.int][::1] = _NO_ROWS
        n: cython.Py_ssize_t = table.count
        if rows is not None:
            chosen = table.chosen(rows)
            n = len(chosen)
        if isinstance(timestamp, int):
            time = timestamp
        else:
            times = timestamp
            if len(times) != n:
                raise ValueError(f"{len(times)} timestamps for {n} rows")
        table.read_headers()
        with self._lock:
            self._append(table, rows is None, chosen, n, time, times, source)

    @cython.cfunc
    def _append(
        self,
        table: FrameTable,
        every: cython.bint,
        chosen: cython.const[cython.int][::1],
        n: cython.Py_ssize_t,
        time: cython.longlong,
        times: cython.const[cython.longlong][::1],
        source: bytes,
    ) -> cython.int:
        each: cython.bint = len(times) > 0
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        last_at: cython.Py_ssize_t = 0
        last_size: cython.Py_ssize_t = -1
        index: cython.Py_ssize_t = -1
        known: cython.Py_ssize_t = 0
        p: cython.p_const_uchar
        q: cython.p_const_uchar = table.side.data
        columns: _Columns
        dialect = table.dialect.encode()
        self._calls += 1
        for k in range(n):
            row = k if every else chosen[k]
            at = table.address_at[row]
            size = table.address_len[row]
            p = table.address_p
            if at < 0:
                p = table.side.data
                at = -1 - at
            if size != last_size or not equal(p, at, q, last_at, size):
                q, last_at, last_size = p, at, size
                known = self._know(p, at, size)
                columns = self._columns(self._partition_of[known])
                index = -1
            if columns.weight >= _MAX_BYTES or columns.rows >= _MAX_ROWS:
                self._close(columns)
                columns = self._columns(self._partition_of[known])
                index = -1
            if index < 0:
                if columns.call != self._calls:
                    columns.call = self._calls
                    columns.begin(dialect, source)
                if self._serial_of[known] != columns.serial:
                    self._serial_of[known] = columns.serial
                    self._index_of[known] = columns.addresses.places.rows
                    columns.addresses.put(columns.addresses.places.rows, p, at, size)
                index = self._index_of[known]
            self.appended += columns.put(table, row, index, times[k] if each else time)
        return 0

    def places(self, table: FrameTable, rows: Sequence[int]) -> list[tuple[int, int]]:
        """The partition and offset that each of these rows gets if they are appended next."""
        found: list[tuple[int, int]] = []
        ends: dict[int, int] = {}
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        p: cython.p_const_uchar
        columns: _Columns
        with self._lock:
            for row in rows:
                if not 0 <= row < table.count:
                    raise IndexError(f"row {row} of {table.count}")
                at = table.address_at[row]
                p = table.address_p
                if at < 0:
                    p = table.side.data
                    at = -1 - at
                partition = self._partition_of[self._know(p, at, table.address_len[row])]
                if partition not in ends:
                    ends[partition] = self._next[partition]
                    if self._open[partition] is not None:
                        columns = self._open[partition]
                        ends[partition] = columns.base + columns.rows
                found.append((partition, ends[partition]))
                ends[partition] += 1
        return found

    @cython.cfunc
    def _know(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """The number of an address; what is to be known of a new one is worked out."""
        names: Names = self._addresses
        before: cython.Py_ssize_t = names.count
        if before >= KNOWN_ADDRESSES or names.text.size >= KNOWN_BYTES:
            # An address may stand only once in the dictionary of a batch.
            for columns in self._open:
                if columns is not None:
                    self._close(columns)
            names.clear()
            before = 0
        known: cython.Py_ssize_t = names.add(p, at, n)
        if known == before:
            if known >= len(self._partition_of):
                self._partition_of = longer(self._partition_of, "i", max(256, 2 * known))
                self._serial_of = longer(self._serial_of, "q", max(256, 2 * known))
                self._index_of = longer(self._index_of, "i", max(256, 2 * known))
            self._partition_of[known] = home(bytes(p[at : at + n]), self._partitions)
            self._serial_of[known] = 0
        return known

    @cython.cfunc
    def _columns(self, partition: cython.Py_ssize_t) -> _Columns:
        """The batch of a partition that is being built."""
        columns = self._open[partition]
        if columns is None:
            self._serial += 1
            columns = _Columns(partition, self._next[partition], self._serial)
            self._open[partition] = columns
        return columns  # type: ignore[no-any-return]  # the list is one of C objects

    @cython.cfunc
    def _close(self, columns: _Columns) -> cython.int:
        self._full.append(columns)
        self._next[columns.partition] = columns.base + columns.rows
        self._open[columns.partition] = None
        return 0

    def following(self, partition: int) -> int:
        """Return the place that the next row of a partition will have."""
        columns = self._open[partition]
        return int(self._next[partition] if columns is None else columns.base + columns.rows)

    def restart(self, partition: int, place: int) -> int:
        """Throw away the rows of a partition, and give its next row this place.

        Returns how many rows were thrown away.
        """
        columns: _Columns
        thrown: int = 0
        if not 0 <= partition < self._partitions:
            raise IndexError(f"partition {partition} of {self._partitions}")
        with self._lock:
            columns = self._open[partition]
            if columns is not None:
                self._close(columns)
            for columns in self._full:
                if columns.partition == partition:
                    thrown += columns.rows
            # Their bytes stay counted until the next `take`.
            self._full = [one for one in self._full if one.partition != partition]
            self._next[partition] = place
        return thrown

    def take(self) -> Taken:
        """All that is here, handed over; what comes next begins new batches."""
        with self._lock:
            for columns in self._open:
                if columns is not None:
                    self._close(columns)
            taken = Taken(self._full, int(self.appended - self._taken))
            self._full = []
            self._taken = self.appended
            return taken


@cython.final
@cython.cclass
class _Columns:
    """A batch of one partition under construction."""

    partition = cython.declare(cython.int, visibility="readonly")
    base = cython.declare(cython.longlong, visibility="readonly")
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    serial: cython.longlong
    call: cython.longlong
    weight: cython.Py_ssize_t
    first_time: cython.longlong
    last_time: cython.longlong
    addresses: _Text
    ops: Names
    dialects: Names
    sources: Names
    last_op: cython.int
    op_index: cython.int
    dialect_index: cython.int
    source_index: cython.int
    address: _Numbers
    op: _Numbers
    dialect: _Numbers
    source: _Numbers
    content_type: _Numbers
    priority: _Numbers
    ttl: _Numbers
    time_owner: Any
    times: cython.longlong[::1]
    id: _Text
    correlation: _Text
    target: _Text
    payload: _Text
    headers: _Places
    keys: _Text
    values: _Text

    def __init__(self, partition: int, base: int, serial: int) -> None:
        self.partition = partition
        self.base = base
        self.serial = serial
        self.rows = self.weight = 0
        self.call = 0
        self.addresses = _Text()
        self.ops, self.dialects, self.sources = Names(0), Names(0), Names(serial)
        self.last_op = -1
        self.address, self.op, self.dialect = _Numbers(), _Numbers(), _Numbers()
        self.source, self.content_type = _Numbers(), _Numbers()
        self.priority, self.ttl = _Numbers(), _Numbers()
        self.time_owner = bytearray(8 * 16)
        self.times = memoryview(self.time_owner).cast("q")
        self.id, self.correlation, self.target = _Text(), _Text(), _Text()
        self.payload, self.headers = _Text(), _Places()
        self.keys, self.values = _Text(), _Text()

    @cython.cfunc
    def begin(self, dialect: bytes, source: bytes) -> cython.int:
        """Rows of a call of `append` follow; a source that is empty is that of the row."""
        self.dialect_index = self.dialects.add(dialect, 0, len(dialect))
        self.source_index = -1
        if source:
            self.source_index = self.sources.add(source, 0, len(source))
        return 0

    @cython.cfunc
    def put(
        self,
        table: FrameTable,
        row: cython.Py_ssize_t,
        address: cython.int,
        timestamp: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Add a row of a table; return the bytes that it takes."""
        k: cython.Py_ssize_t = self.rows
        size: cython.Py_ssize_t = _ROW_BYTES + table.payload_len[row]
        source: cython.int = self.source_index
        label_at: cython.int[::1]
        label_len: cython.int[::1]
        labels: bytes
        self.address.put(k, address)
        if table.op[row] != self.last_op:
            self.last_op = table.op[row]
            labels, label_at, label_len = LABELS, LABEL_AT, LABEL_LEN
            self.op_index = self.ops.add(labels, label_at[self.last_op], label_len[self.last_op])
        self.op.put(k, self.op_index)
        self.dialect.put(k, self.dialect_index)
        if source < 0:
            source = self._own_source(table, row)
        self.source.put(k, source)
        self.content_type.put(k, table.content_type[row])
        self.priority.put(k, table.priority[row])
        self.ttl.put(k, table.ttl[row])
        if table.id_len[row]:
            table.put_id(self.id.data, row)
            size += self.id.end(k)
        if table.correlation_len[row]:
            table.put(
                self.correlation.data,
                table.correlation_p,
                table.correlation_at[row],
                table.correlation_len[row],
            )
            size += self.correlation.end(k)
        if table.target_len[row]:
            table.put(self.target.data, table.target_p, table.target_at[row], table.target_len[row])
            size += self.target.end(k)
        if table.payload_len[row]:
            table.put(
                self.payload.data, table.payload_p, table.payload_at[row], table.payload_len[row]
            )
            self.payload.end(k)
        if table.headers_len[row]:
            size += self._put_headers(table, row)
        if k == len(self.times):
            self.time_owner = _larger(self.time_owner, 16 * k)
            self.times = memoryview(self.time_owner).cast("q")
        self.times[k] = timestamp
        if k == 0:
            self.first_time = self.last_time = timestamp
        elif timestamp < self.first_time:
            self.first_time = timestamp
        elif timestamp > self.last_time:
            self.last_time = timestamp
        self.rows = k + 1
        self.weight += size
        return size

    @cython.cfunc
    def _own_source(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if table.source_at[row] < 0:
            return self.sources.add(
                table.side.data, -1 - table.source_at[row], table.source_len[row]
            )
        return self.sources.add(table.source_p, table.source_at[row], table.source_len[row])

    @cython.cfunc
    def _put_headers(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Add a row's headers; a token never goes into the log (decision 4)."""
        side: Octets = table.side
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        token: bytes = _TOKEN
        entries: cython.Py_ssize_t = self.keys.places.rows
        while at < end:
            key = uint32(side.data, at)
            value = uint32(side.data, at + 4)
            at += 8
            if key != 6 or not same(side.data, at, token, 6):
                self.keys.put(entries, side.data, at, key)
                self.values.put(entries, side.data, at + key, value)
                entries += 1
            at += key + value
        self.headers.mark(self.rows, entries)
        return table.headers_len[row]

    def finish(self, codec: Any) -> Batch:
        """The batch in Arrow's stream format, compressed by `codec`, if any."""
        rows: cython.Py_ssize_t = self.rows
        entries: cython.Py_ssize_t = self.keys.places.rows
        stream = StreamWriter(codec)
        stream.add(None, 0)
        self.addresses.finish(stream, self.addresses.places.rows)
        stream.end(0, self.addresses.places.rows, 0)
        _finish_names(self.ops, stream, 1)
        _finish_names(self.dialects, stream, 2)
        _finish_names(self.sources, stream, 3)
        stream.add(None, 0)
        stream.add(self._partitions(), 4 * rows)
        stream.add(None, 0)
        stream.add(self._offsets(), 8 * rows)
        stream.add(None, 0)
        stream.add(self.time_owner, 8 * rows)
        self.address.finish(stream, rows)
        self.op.finish(stream, rows)
        self.dialect.finish(stream, rows)
        stream.add(None, 0)
        self.id.finish(stream, rows)
        stream.add(None, 0)
        self.correlation.finish(stream, rows)
        self.source.finish(stream, rows)
        stream.add(None, 0)
        self.target.finish(stream, rows)
        self.content_type.finish(stream, rows)
        self.priority.narrow(stream, rows)
        self.ttl.finish(stream, rows)
        stream.add(None, 0)
        self.headers.finish(stream, rows)
        stream.add(None, 0)
        stream.add(None, 0)
        self.keys.finish(stream, entries)
        stream.add(None, 0)
        self.values.finish(stream, entries)
        stream.add(None, 0)
        self.payload.finish(stream, rows)
        stream.end(len(DICTIONARIES), rows, entries)
        return Batch(
            int(self.partition),
            int(self.base),
            int(rows),
            int(self.first_time),
            int(self.last_time),
            stream.finish(),
            self._names(),
        )

    @cython.cfunc
    def _partitions(self) -> Any:
        k: cython.Py_ssize_t
        if self.partition == 0:
            return None
        owner = bytearray(4 * self.rows)
        cells: cython.int[::1] = memoryview(owner).cast("i")
        for k in range(self.rows):
            cells[k] = self.partition
        return owner

    @cython.cfunc
    def _offsets(self) -> Any:
        k: cython.Py_ssize_t
        owner = bytearray(8 * self.rows)
        cells: cython.longlong[::1] = memoryview(owner).cast("q")
        for k in range(self.rows):
            cells[k] = self.base + k
        return owner

    @cython.cfunc
    def _names(self) -> bytes:
        """The addresses for a reader that skips batches."""
        places: _Places = self.addresses.places
        names: Octets
        k: cython.Py_ssize_t
        size: cython.Py_ssize_t
        if places.rows > MAX_NAMES or places.last + places.rows > MAX_NAMES_BYTES:
            return b""
        names = Octets(places.last + places.rows)
        for k in range(places.rows):
            size = places.begin(k + 1) - places.begin(k)
            if size > 255:
                return b""
            names.put_uint8(size)
            names.put(self.addresses.data.data, places.begin(k), size)
        return bytes(names)


@cython.cclass
class _Cells:
    """Integers that grow at the end: 0 where nothing was put."""

    owner: Any
    cells: cython.int[::1]
    room: cython.Py_ssize_t

    def __init__(self) -> None:
        self.owner = None
        self.room = 0

    @cython.cfunc
    @cython.final
    def grow(self, rows: cython.Py_ssize_t) -> cython.int:
        """Make room for this many rows, and for as many again."""
        self.room = max(16, 2 * rows)
        self.owner = _larger(self.owner, 4 * self.room)
        self.cells = memoryview(self.owner).cast("i")
        return 0


@cython.final
@cython.cclass
class _Numbers(_Cells):
    """A sparse column of integers: 0 where nothing was put."""

    @cython.cfunc
    @cython.inline
    def put(self, row: cython.Py_ssize_t, value: cython.int) -> cython.int:
        if value != 0:
            if row >= self.room:
                self.grow(row + 1)
            self.cells[row] = value
        return 0

    @cython.cfunc
    def finish(self, stream: StreamWriter, rows: cython.Py_ssize_t) -> cython.int:
        """Write the column."""
        if self.owner is not None and rows > self.room:
            self.grow(rows)
        stream.add(None, 0)
        return stream.add(self.owner, 4 * rows)

    @cython.cfunc
    def narrow(self, stream: StreamWriter, rows: cython.Py_ssize_t) -> cython.int:
        """Write the column with one byte a row."""
        k: cython.Py_ssize_t
        owner: Any = None
        cells: cython.schar[::1]
        if self.owner is not None:
            owner = bytearray(rows)
            cells = memoryview(owner).cast("b")
            for k in range(min(rows, self.room)):
                cells[k] = self.cells[k]
        stream.add(None, 0)
        return stream.add(owner, rows)


@cython.final
@cython.cclass
class _Places(_Cells):
    """Where the values of a sparse column end: where the one before does, if nothing was put."""

    rows: cython.Py_ssize_t
    last: cython.int

    def __init__(self) -> None:
        _Cells.__init__(self)
        self.rows = 0
        self.last = 0

    @cython.cfunc
    @cython.inline
    def mark(self, row: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """The value of row `row`, the next one or a later one, ends here."""
        if row + 2 > self.room:
            self.grow(row + 2)
        while self.rows < row:
            self.rows += 1
            self.cells[self.rows] = self.last
        self.rows = row + 1
        self.last = end
        self.cells[self.rows] = end
        return 0

    @cython.cfunc
    @cython.inline
    def begin(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the value of a row begins, or that of the last one ends."""
        return self.cells[row] if self.last != 0 else 0

    @cython.cfunc
    def finish(self, stream: StreamWriter, rows: cython.Py_ssize_t) -> cython.int:
        """Write the start of each of these rows, and the end of the last one."""
        if self.last == 0:
            return stream.add(None, 4 * (rows + 1))
        if self.rows < rows:
            self.mark(rows - 1, self.last)
        return stream.add(self.owner, 4 * (rows + 1))


@cython.final
@cython.cclass
class _Text:
    """A sparse column of text or bytes: empty where nothing was put."""

    places: _Places
    data: Octets

    def __init__(self) -> None:
        self.places = _Places()
        self.data = Octets(0)

    @cython.cfunc
    def put(
        self,
        row: cython.Py_ssize_t,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
    ) -> cython.int:
        self.data.put(p, at, n)
        return self.places.mark(row, self.data.size)

    @cython.cfunc
    @cython.inline
    def end(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """End the value of this row, which was put into `data`; return its size."""
        size: cython.Py_ssize_t = self.data.size - self.places.last
        self.places.mark(row, self.data.size)
        return size

    @cython.cfunc
    def finish(self, stream: StreamWriter, rows: cython.Py_ssize_t) -> cython.int:
        """Write the column's places, then its data."""
        self.places.finish(stream, rows)
        return stream.add(self.data.owner, self.data.size)


@cython.cfunc
def _finish_names(names: Names, stream: StreamWriter, number: cython.Py_ssize_t) -> cython.int:
    """Write a dictionary."""
    stream.add(None, 0)
    stream.add(names.owner, 4 * (names.count + 1))
    stream.add(names.text.owner, names.text.size)
    return stream.end(number, names.count, 0)


@cython.cfunc
def _larger(owner: Any, size: cython.Py_ssize_t) -> Any:
    """Zeros, so many bytes, but for what is there."""
    larger = bytearray(size)
    if owner is not None:
        larger[: len(owner)] = owner
    return larger


def home(name: bytes, partitions: int) -> int:
    """Return the partition of an address, a queue or a key; dead letters are with their queue."""
    return zlib.crc32(name.removesuffix(DEAD)) % partitions


def pack_names(addresses: list[bytes]) -> bytes:
    """Addresses as `Batch.names` has them."""
    if len(addresses) > MAX_NAMES or any(len(address) > 255 for address in addresses):
        return b""
    names = b"".join(bytes([len(address)]) + address for address in addresses)
    return names if len(names) <= MAX_NAMES_BYTES else b""
