"""Arrow's stream format, in which the log is stored and sent: dictionaries, then the batch.

The metadata of such a message has a constant layout for the log's schema, so only its numbers are
written, and the columns follow as they are, in place: a batch of one message takes microseconds, a
large one is never copied.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, Literal

import cython
import pyarrow as pa

from wirelake.wire.arrow import SCHEMA

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets
else:
    from wirelake.wire.octets import Octets

Compression = Literal["none", "lz4", "zstd"]

#: No batch has more rows.
BATCH_ROWS = 1 << 16

#: The columns that repeat; each batch has dictionaries of its own for them, in this order.
DICTIONARIES = ("address", "op", "dialect", "source")

#: The log's schema as it is stored.
STORED = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string()))
        if field.name in DICTIONARIES
        else field
        for field in SCHEMA
    ]
)
#: The end of an Arrow stream.
END = b"\xff\xff\xff\xff\0\0\0\0"
#: The beginning of an Arrow stream of stored batches.
PREAMBLE: bytes = STORED.serialize().to_pybytes()

_ZEROS = memoryview(bytes(8 * (BATCH_ROWS + 1)))
#: Buffers of a batch below this size are put together; larger ones are not worth a copy.
_SMALL = cython.declare(cython.Py_ssize_t, 4096)
_SMALL_ZEROS = cython.declare(bytes, bytes(4096))

# A message is four bytes 0xFF, the size of its metadata, the metadata (a flatbuffer, version 5 of
# the format) and a body: the columns' buffers, each at a multiple of 8. In a flatbuffer a table
# begins with the distance back to the list of its fields' places.

_DICTIONARY, _RECORD_BATCH = 2, 3
_CODECS = {"lz4": 0, "zstd": 1}

#: Message: version, type, body length, header.
_MESSAGE = struct.Struct("<IiI6HihBxqI")
_BODY_AT = cython.declare(cython.Py_ssize_t, 32)
#: DictionaryBatch: data, number.
_NUMBER = struct.Struct("<4H4xiIq4x")
#: RecordBatch: nodes, rows, buffers, compression.
_TABLE = struct.Struct("<6HiIqII")
_ROWS_AT = cython.declare(cython.Py_ssize_t, -16)
#: BodyCompression: codec.
_COMPRESSION = struct.Struct("<4HiBxxx")

#: How many columns and buffers a dictionary has, and a batch: the map of headers has four columns.
_DICTIONARY_SHAPE = (1, 3)
_BATCH_SHAPE = (len(SCHEMA) + 3, 2 * (len(SCHEMA) + 3) + 5)
#: The columns of a batch that have a row for each header.
_FIRST_ENTRY = cython.declare(cython.Py_ssize_t, len(SCHEMA) - 1)
_LAST_ENTRY = cython.declare(cython.Py_ssize_t, len(SCHEMA) + 1)
_NO_SIZES = bytes(8 * _BATCH_SHAPE[1])


def _metadata(dictionary: int | None, codec: str | None) -> tuple[bytes, int, int, bytes]:
    """The metadata of a message up to its columns, their number, that of their buffers, its end.

    The size of the body and the number of rows are still to be filled in.
    """
    n, m = _BATCH_SHAPE if dictionary is None else _DICTIONARY_SHAPE
    kind, number = _RECORD_BATCH, b""
    if dictionary is not None:
        kind, number = _DICTIONARY, _NUMBER.pack(8, 16, 8, 4, 12, 28, dictionary)
    field, how, compression = 0, 0, b""
    if codec is not None:
        field, how = 20, 28 + 16 * (n + m)
        compression = _COMPRESSION.pack(8, 8, 4, 0, 8, _CODECS[codec])
    size = 88 + len(number) + 16 * (n + m) + len(compression)
    begin = (
        _MESSAGE.pack(0xFFFFFFFF, size, 16, 12, 20, 4, 6, 16, 8, 12, 4, kind, 0, 16),
        number,
        _TABLE.pack(12, 24, 8, 4, 16, field, 12, 24, 0, 20 + 16 * n, how),
    )
    return b"".join(begin), n, m, compression


_METADATA: dict[str | None, list[tuple[bytes, int, int, bytes]]] = {
    codec: [_metadata(number, codec) for number in (*range(len(DICTIONARIES)), None)]
    for codec in (None, *_CODECS)
}


@cython.final
@cython.cclass
class StreamWriter:
    """Messages of a stream; their large buffers are pieces of their own, and never copied."""

    def __init__(self, codec: Any) -> None:
        self.codec = codec
        self.metadata = _METADATA[None if codec is None else codec.name]
        self.pieces: list[Any] = []
        self.out = Octets(_SMALL)
        self.owners: list[Any] = []
        self.sizes = array("q", _NO_SIZES)
        self.count = 0

    def add(self, owner: Any, size: cython.Py_ssize_t) -> cython.int:
        """Add a buffer: `size` bytes of `owner`, or zeros if that is None."""
        if size and self.codec is not None:
            owner = _compressed(memoryview(_ZEROS if owner is None else owner)[:size], self.codec)
            size = len(owner)
        self.owners.append(owner)
        self.sizes[self.count] = size
        self.count += 1
        return 0

    def end(
        self, number: cython.Py_ssize_t, rows: cython.Py_ssize_t, entries: cython.Py_ssize_t
    ) -> cython.int:
        """The buffers that were added are a message: a dictionary, or behind these the batch."""
        out: Octets = self.out
        at: cython.Py_ssize_t = out.size
        end: cython.longlong = 0
        n: cython.Py_ssize_t
        m: cython.Py_ssize_t
        k: cython.Py_ssize_t
        begin: bytes
        compression: bytes
        begin, n, m, compression = self.metadata[number]
        assert m == self.count
        out.put_bytes(begin)
        _set_integer(out, out.size + _ROWS_AT, rows)
        _put_count(out, n)
        for k in range(n):
            _put_integer(out, entries if _FIRST_ENTRY <= k <= _LAST_ENTRY else rows)
            _put_integer(out, 0)  # no nulls
        _put_count(out, m)
        for k in range(m):
            _put_integer(out, end)
            _put_integer(out, self.sizes[k])
            end += (self.sizes[k] + 7) & -8
        out.put_bytes(compression)
        _set_integer(out, at + _BODY_AT, end)
        for k in range(m):
            self._put(self.owners[k], self.sizes[k])
        self.owners = []
        self.count = 0
        return 0

    def _put(self, owner: Any, size: cython.Py_ssize_t) -> cython.int:
        """Write a buffer, and zeros up to a multiple of 8."""
        out: Octets = self.out
        data: cython.p_const_uchar
        if size >= _SMALL:
            self.pieces.append(out.take())
            self.pieces.append(memoryview(_ZEROS if owner is None else owner)[:size])
        elif size:
            data = _SMALL_ZEROS if owner is None else owner
            out.put(data, 0, size)
        data = _SMALL_ZEROS
        out.put(data, 0, -size & 7)
        return 0

    def finish(self) -> Any:
        """The stream in pieces."""
        self.pieces.append(self.out.take())
        return self.pieces


@cython.cfunc
@cython.inline
def _set_integer(out: Octets, at: cython.Py_ssize_t, value: cython.longlong) -> cython.int:
    """Write eight bytes, little-endian, over bytes that are there."""
    k: cython.Py_ssize_t
    for k in range(8):
        out.data[at + k] = (value >> (8 * k)) & 255
    return 0


@cython.cfunc
@cython.inline
def _put_integer(out: Octets, value: cython.longlong) -> cython.int:
    """Append eight bytes, little-endian."""
    if out.size + 8 > out.room:
        out.grow(8)
    out.size += 8
    return _set_integer(out, out.size - 8, value)


@cython.cfunc
@cython.inline
def _put_count(out: Octets, count: cython.longlong) -> cython.int:
    """Append the length of a vector, behind four bytes that align its items."""
    return _put_integer(out, count << 32)


def _compressed(buffer: Any, codec: Any) -> bytes:
    """A buffer as it stands in a compressed body: as it is where that saves nothing."""
    smaller = codec.compress(buffer, asbytes=True)
    if len(smaller) < len(buffer):
        return struct.pack("<q", len(buffer)) + smaller  # type: ignore[no-any-return]  # no types
    return b"".join((b"\xff" * 8, buffer))


def ipc(batch: pa.RecordBatch, compression: Compression = "none") -> memoryview:
    """A batch of the schema `STORED`, as it is stored."""
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED, options=options) as stream:
        stream.write_batch(batch)
    stored = memoryview(sink.getvalue())
    return stored[len(PREAMBLE) : len(stored) - len(END)]


def decode(stored: bytes | memoryview) -> pa.RecordBatch:
    """The batch that `ipc` or `Batch.ipc` was made of."""
    with pa.ipc.open_stream(b"".join((PREAMBLE, stored))) as stream:
        return stream.read_next_batch()
