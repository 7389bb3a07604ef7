"""The frame table: what a buffer of frames holds, as columns of integers.

One row a message. A field of a row is a place and a length: `address_at`, `address_len`. A place
that is not negative lies in the buffer that was scanned (or, for a table made from an Arrow
batch, in that column's own data); a negative place `at` is byte `-1 - at` of the *side* buffer,
where everything stands that is not in the frames as such: joined parts, decoded escapes, numbers
as text, an address set by an earlier frame.

Headers are read twice at most. A scanner checks them and notes where they are (the flag UNREAD);
`read_headers` then writes them into the side buffer in one form for all dialects: key length and
value length (four bytes each, big-endian), key, value. A table that is only forwarded never pays
for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cython

from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters
from wirelake.wire.parameters import HEADERS

if cython.compiled:
    from cython.cimports.libc.string import memset
    from cython.cimports.wirelake.wire import parameters
    from cython.cimports.wirelake.wire.octets import Octets, uint32
else:
    from wirelake.wire import parameters
    from wirelake.wire.octets import Octets, uint32

#: Row flag, of the wire's own: the headers are still in their dialect's form.
UNREAD = 1 << 12

#: Row flag, of the wire's own: the frame carries a token, so it is not for others to see.
SECRET = 1 << 13

#: The first of the row flags that each dialect has for itself; no other dialect looks at them.
OWN = 1 << 14

_ACK = cython.declare(cython.int, Op.ACK)
_DOLLAR = cython.declare(cython.int, ord("$"))
#: The payload of a single message is copied only if it has fewer bytes.
_LARGE = cython.declare(cython.Py_ssize_t, 64 << 10)
_UNREAD = cython.declare(cython.int, UNREAD)
#: Every combination of them, since making one takes longer than reading the rest of a message.
_FLAGS = [Flag(bits) for bits in range(sum(Flag) + 1)]
_PUBLIC_FLAGS = sum(Flag)

#: The columns that `FrameTable.__init__` names, each of 32-bit integers.
_COLUMNS = 22
_OPS = list(Op)


@cython.final
@cython.cclass
class FrameTable:
    """Up to `capacity` messages as columns; filled by a scanner, an Arrow batch or messages."""

    def __init__(self, capacity: int = 4096) -> None:
        if not 0 < capacity <= 1 << 20:
            raise ValueError("a frame table has room for 1 to 1048576 rows")
        self.capacity = capacity
        self.count = 0
        self.dialect = ""
        self.raw_ids = False
        self.mixed = False  # rows have columns that the dialect has not
        self.side = Octets(1024)
        self.reader: Any = None
        self.owners: Any = None
        # Columns that are a power of two apart would share the same few lines of the cache.
        stride = capacity + 16 if capacity > 64 else capacity
        cells = memoryview(array("i", [0]) * (stride * _COLUMNS))
        self.cells = cells
        columns = [cells[k * stride : k * stride + capacity] for k in range(_COLUMNS)]
        (
            self.frame_at, self.frame_len, self.op, self.flags,
            self.address_at, self.address_len, self.payload_at, self.payload_len,
            self.id_at, self.id_len, self.correlation_at, self.correlation_len,
            self.source_at, self.source_len, self.target_at, self.target_len,
            self.headers_at, self.headers_len, self.content_type, self.priority, self.ttl,
            self.ticket,
        ) = columns  # fmt: skip
        self.sent = array("q", [0]) * capacity
        self.begin(None, "", b"")

    def __len__(self) -> int:
        return self.count

    def begin(
        self, reader: object, dialect: str, data: cython.const[cython.uchar][::1]
    ) -> cython.int:
        """Empty the table, for rows whose fields lie in `data`."""
        p: cython.p_const_uchar
        if reader is None:
            self.mixed = self.mixed or dialect != self.dialect
        elif self.mixed or dialect != self.dialect:
            # A scanner writes only the columns that its dialect has.
            self.mixed = False
            self._clear()
        self.count = 0
        self.side.clear()
        self.dialect = dialect
        self.reader = reader
        self.raw_ids = False
        self.buffer = data
        self.owners = None
        if cython.compiled:
            p = cython.address(data[0])
        else:
            p = data
        self.address_p = p
        self.payload_p = p
        self.id_p = p
        self.correlation_p = p
        self.source_p = p
        self.target_p = p
        return 0

    def _clear(self) -> cython.int:
        """Make every cell 0."""
        if cython.compiled:
            memset(cython.address(self.cells[0]), 0, 4 * len(self.cells))
            memset(cython.address(self.sent[0]), 0, 8 * len(self.sent))
        else:
            self.cells.cast("B")[:] = bytes(4 * len(self.cells))
            memoryview(self.sent).cast("B")[:] = bytes(8 * len(self.sent))
        return 0

    def release(self) -> None:
        """Release the buffer, so that its owner may resize it; the rows are gone."""
        self.begin(None, self.dialect, b"")

    def point(self, field: str, data: cython.const[cython.uchar][::1]) -> cython.int:
        """Let one field's places lie in a buffer of its own."""
        p: cython.p_const_uchar
        if cython.compiled:
            p = cython.address(data[0])
        else:
            p = data
        self.owners = (data, self.owners)
        if field == "address":
            self.address_p = p
        elif field == "payload":
            self.payload_p = p
        elif field == "id":
            self.id_p = p
        elif field == "correlation_id":
            self.correlation_p = p
        elif field == "source":
            self.source_p = p
        else:
            self.target_p = p
        return 0

    def blank(self, row: cython.Py_ssize_t) -> cython.int:
        """Make every optional field of a row absent."""
        self.flags[row] = 0
        self.address_len[row] = 0
        self.payload_len[row] = 0
        self.id_len[row] = 0
        self.correlation_len[row] = 0
        self.source_len[row] = 0
        self.target_len[row] = 0
        self.headers_len[row] = 0
        self.content_type[row] = 0
        self.priority[row] = 0
        self.ttl[row] = 0
        self.ticket[row] = 0
        return 0

    def side_at(self) -> cython.int:
        """The place of the next byte that will be put into the side buffer."""
        if self.side.size > 0x7FFF0000:
            raise ValueError("a frame table holds at most 2 GiB beside its buffer")
        return -1 - cython.cast(cython.int, self.side.size)

    def read_headers(self) -> None:
        """Bring the headers of all rows into the one form."""
        if self.reader is not None:
            self.reader.read_headers(self)

    def put(
        self, out: Octets, p: cython.p_const_uchar, at: cython.int, n: cython.int
    ) -> cython.int:
        """Append one field's bytes to `out`; `p` is where its places lie."""
        if at >= 0:
            out.put(p, at, n)
        else:
            out.put(self.side.data, -1 - at, n)
        return 0

    def put_id(self, out: Octets, row: cython.Py_ssize_t) -> cython.int:
        """Append a row's id as text; an mfp uid is 32 hexadecimal digits."""
        if self.raw_ids and self.id_len[row]:
            out.put_hex(self.id_p, self.id_at[row], 16)
        else:
            self.put(out, self.id_p, self.id_at[row], self.id_len[row])
        return 0

    # From here on: one object a message, for people's code.

    def _bytes(self, p: cython.p_const_uchar, at: cython.int, n: cython.int) -> bytes:
        if n == 0:
            return b""
        if at < 0:
            return bytes(self.side.data[-1 - at : n - 1 - at])
        return bytes(p[at : at + n])

    def frame(self, row: cython.Py_ssize_t) -> memoryview:
        """The bytes of a row's frame (of its whole sequence part, in boson-text)."""
        at = self.frame_at[self._row(row)]
        return memoryview(self.buffer)[at : at + self.frame_len[row]]

    def address(self, row: cython.Py_ssize_t) -> bytes:
        """A row's address."""
        self._row(row)
        return self._bytes(self.address_p, self.address_at[row], self.address_len[row])

    def payload(self, row: cython.Py_ssize_t) -> bytes:
        """A row's payload."""
        self._row(row)
        return self._bytes(self.payload_p, self.payload_at[row], self.payload_len[row])

    def headers(self, row: cython.Py_ssize_t) -> dict[str, str]:
        """A row's headers in the wire's form: the user's, then the parameters of its op."""
        headers: dict[str, str] = {}
        said = self._apart(self._row(row), headers)
        if said is not NO_PARAMETERS:
            for header, text in parameters.written(said):
                headers[header.decode()] = text.decode()
        return headers

    def parameters(self, row: cython.Py_ssize_t) -> Parameters:
        """The parameters of a row's op."""
        return self._apart(self._row(row), None)

    def _apart(self, row: cython.Py_ssize_t, headers: Any) -> Parameters:
        """Put a row's headers into a dictionary, if there is one; return its parameters."""
        if self.flags[row] & _UNREAD:
            self.read_headers()
        values: Any = None
        known: cython.int = 0
        at: cython.Py_ssize_t = -1 - self.headers_at[row]
        end: cython.Py_ssize_t = at + self.headers_len[row]
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        while at < end:
            key = uint32(self.side.data, at)
            value = uint32(self.side.data, at + 4)
            at += 8
            if key and self.side.data[at] == _DOLLAR:
                if values is None:
                    values = parameters.begin()
                name = bytes(self.side.data[at : at + key])
                text = bytes(self.side.data[at + key : at + key + value]).decode()
                if parameters.take(values, name, text):
                    known += 1
                elif headers is not None:
                    headers[name.decode()] = text
            elif headers is not None:
                name = bytes(self.side.data[at : at + key])
                headers[name.decode()] = bytes(self.side.data[at + key : at + key + value]).decode()
            at += key + value
        return parameters.finish(values, _OPS[self.op[row]]) if known else NO_PARAMETERS

    def message(self, row: cython.Py_ssize_t, timestamp: int = 0) -> Message:
        """A row as a message of its own, independent of the buffer."""
        self._row(row)
        identity = self._bytes(self.id_p, self.id_at[row], self.id_len[row])
        headers: dict[str, str] = {}
        said = self._apart(row, headers)
        return Message(
            address=self.address(row).decode(),
            payload=self.payload(row),
            id=identity.hex() if self.raw_ids else identity.decode(),
            correlation_id=self._bytes(
                self.correlation_p, self.correlation_at[row], self.correlation_len[row]
            ).decode(),
            source=self._bytes(self.source_p, self.source_at[row], self.source_len[row]).decode(),
            target=self._bytes(self.target_p, self.target_at[row], self.target_len[row]).decode(),
            content_type=self.content_type[row],
            priority=self.priority[row],
            ttl=self.ttl[row],
            ticket=self.ticket[row],
            headers=headers,
            flags=_FLAGS[self.flags[row] & _PUBLIC_FLAGS],
            timestamp=timestamp,
            dialect=self.dialect,
            op=_OPS[self.op[row]],
            parameters=said,
        )

    def chosen(self, rows: Sequence[int]) -> Any:
        """Return these rows as integers of C; raises IndexError where one is not there."""
        cells: cython.const[cython.int][::1]
        k: cython.Py_ssize_t
        made = rows if isinstance(rows, (array, memoryview)) else array("i", rows)
        cells = made
        for k in range(len(cells)):
            if not 0 <= cells[k] < self.count:
                raise IndexError(f"row {cells[k]} of {self.count}")
        return made

    def messages(self, timestamp: int = 0) -> Iterator[Message]:
        """All rows as messages."""
        return iter([self.message(row, timestamp) for row in range(self.count)])

    def fill(self, messages: Iterable[Message], dialect: str = "") -> None:
        """Replace all rows by these messages; `dialect` is the one they were read from."""
        batch = list(messages)
        if len(batch) > self.capacity:
            raise ValueError(f"{len(batch)} messages in a table of {self.capacity} rows")
        self.begin(None, dialect, b"")
        self.mixed = True
        row: cython.Py_ssize_t
        for row, message in enumerate(batch):
            self.blank(row)
            self.frame_at[row] = self.frame_len[row] = 0
            self.sent[row] = 0
            self.op[row] = message.op
            self.flags[row] = message.flags
            self.content_type[row] = message.content_type
            self.priority[row] = message.priority
            self.ttl[row] = message.ttl
            self.ticket[row] = message.ticket
            self.address_at[row], self.address_len[row] = self._keep(message.address)
            if len(batch) == 1 and len(message.payload) > _LARGE:  # which need not be copied
                self.point("payload", message.payload)
                self.payload_at[row], self.payload_len[row] = 0, len(message.payload)
            else:
                self.payload_at[row], self.payload_len[row] = self._keep(message.payload)
            self.id_at[row], self.id_len[row] = self._keep(message.id)
            self.correlation_at[row], self.correlation_len[row] = self._keep(message.correlation_id)
            self.source_at[row], self.source_len[row] = self._keep(message.source)
            self.target_at[row], self.target_len[row] = self._keep(message.target)
            start = self.side_at()
            for name, value in message.headers.items():
                if name not in HEADERS:  # the `$` is not a user's (decision 20)
                    self.put_header(name.encode(), value.encode())
            if message.parameters is not NO_PARAMETERS:
                parameters.put(message.parameters, self.side)
            self.headers_at[row] = start
            self.headers_len[row] = start - self.side_at()
        self.count = len(batch)

    def answer(
        self, asked: FrameTable, rows: cython.const[cython.int][::1], op: cython.int
    ) -> None:
        """Replace all rows by answers to rows of another table: their ids, tickets, and this op.

        An acknowledgement also repeats the address and the content type (spec: tmq 7).
        """
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        if len(rows) > self.capacity:
            raise ValueError(f"{len(rows)} answers in a table of {self.capacity} rows")
        self.begin(None, "", b"")
        self.mixed = True
        for k in range(len(rows)):
            row = rows[k]
            self.blank(k)
            self.frame_at[k] = self.frame_len[k] = 0
            self.sent[k] = 0
            self.op[k] = op
            self.ticket[k] = asked.ticket[row]
            self.id_at[k] = self.side_at()
            asked.put_id(self.side, row)
            self.id_len[k] = self.id_at[k] - self.side_at()
            self.correlation_at[k] = self.side_at()
            self.correlation_len[k] = asked.correlation_len[row]
            asked.put(
                self.side, asked.correlation_p, asked.correlation_at[row], self.correlation_len[k]
            )
            if op == _ACK:
                self.content_type[k] = asked.content_type[row]
                self.address_at[k] = self.side_at()
                self.address_len[k] = asked.address_len[row]
                asked.put(self.side, asked.address_p, asked.address_at[row], self.address_len[k])
        self.count = len(rows)

    def derive(
        self,
        source: FrameTable,
        rows: cython.const[cython.int][::1],
        op: cython.int,
        *,
        address: bytes,
        dialect: str,
        sender: Any = None,
        target: bytes = b"",
        kept_flags: cython.int = 0,
        flags: cython.int = 0,
        first_id: cython.longlong = -1,
        headers: bytes = b"",
        whole: cython.bint = True,
    ) -> None:
        """Replace all rows by copies of rows of another table, which need it no more afterwards.

        They have another op, one address, and one sender, where that is not None. A row without an
        id gets `q` and a number, counted from `first_id`, where that is not negative. `headers`
        follow the row's own, in the one form. Where the copy is not `whole`, it has only who sent
        what to whom: address, id, sender, target and these headers.
        """
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        begin: cython.int
        said: cython.int
        to: cython.int
        of: cython.int = 0
        size: cython.int
        own: cython.bint = sender is None
        text: bytes
        if len(rows) > self.capacity:
            raise ValueError(f"{len(rows)} rows in a table of {self.capacity}")
        if whole:
            source.read_headers()
        self.begin(None, dialect, b"")
        self.mixed = True
        begin = self.side_at()
        self.side.put_bytes(address)
        to = self.side_at()
        self.side.put_bytes(target)
        if not own:
            of = self.side_at()
            self.side.put_bytes(sender)
        said = self.side_at()
        self.side.put_bytes(headers)
        for k in range(len(rows)):
            row = rows[k]
            if not 0 <= row < source.count:
                raise IndexError(f"row {row} of {source.count}")
            self.blank(k)
            self.frame_at[k] = self.frame_len[k] = 0
            self.sent[k] = 0
            self.op[k] = op
            self.flags[k] = (source.flags[row] & kept_flags) | flags
            self.address_at[k] = begin
            self.address_len[k] = len(address)
            self.target_at[k] = to
            self.target_len[k] = len(target)
            if own:
                self.source_at[k] = self.side_at()
                self.source_len[k] = source.source_len[row]
                source.put(
                    self.side, source.source_p, source.source_at[row], source.source_len[row]
                )
            else:
                self.source_at[k] = of
                self.source_len[k] = len(sender)
            self.id_at[k] = self.side_at()
            if source.id_len[row]:
                source.put_id(self.side, row)
            elif first_id >= 0:
                text = b"q%d" % (first_id + k)
                self.side.put_bytes(text)
            self.id_len[k] = self.id_at[k] - self.side_at()
            self.headers_at[k] = said
            self.headers_len[k] = len(headers)
            if not whole:
                continue
            self.content_type[k] = source.content_type[row]
            self.priority[k] = source.priority[row]
            self.ttl[k] = source.ttl[row]
            self.correlation_at[k] = self.side_at()
            self.correlation_len[k] = source.correlation_len[row]
            source.put(
                self.side,
                source.correlation_p,
                source.correlation_at[row],
                source.correlation_len[row],
            )
            self.payload_at[k] = self.side_at()
            self.payload_len[k] = source.payload_len[row]
            source.put(self.side, source.payload_p, source.payload_at[row], source.payload_len[row])
            if source.headers_len[row]:
                size = source.headers_len[row]
                self.headers_at[k] = self.side_at()
                self.side.put(source.side.data, -1 - source.headers_at[row], size)
                self.side.put_bytes(headers)
                self.headers_len[k] = size + len(headers)
        self.count = len(rows)

    def ids(self, rows: cython.const[cython.int][::1]) -> list[str]:
        """The ids of rows, as text."""
        k: cython.Py_ssize_t
        row: cython.Py_ssize_t
        found: list[str] = []
        for k in range(len(rows)):
            row = self._row(rows[k])
            identity = self._bytes(self.id_p, self.id_at[row], self.id_len[row])
            found.append(identity.hex() if self.raw_ids else identity.decode())
        return found

    def put_header(self, name: bytes, value: bytes) -> None:
        """Append one header, in the one form, to the side buffer."""
        self.side.put_uint32(len(name))
        self.side.put_uint32(len(value))
        self.side.put_bytes(name)
        self.side.put_bytes(value)

    def _keep(self, value: Any) -> tuple[int, int]:
        data = value.encode() if isinstance(value, str) else bytes(value)
        at = self.side_at()
        self.side.put_bytes(data)
        return at, len(data)

    def _row(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        return row
