"""Pulse frames to rows of a frame table, and rows to frames, without an object a message.

The base classes have the loops, the limits and the errors: a dialect adds `frame`, which reads or
writes one.
"""

from wirelake.wire.codec cimport Encoder, Scanner
from wirelake.wire.octets cimport Octets, decimal, uint32
from wirelake.wire.table cimport FrameTable

cdef int PUBLISH = 1
cdef int DELIVER = 10
#: Why `PulseEncoder.frame` leaves a row out; see `wirelake.wire.codec.SKIP_REASONS`.
cdef int SKIP_OP = 1
cdef int SKIP_ADDRESS = 2
cdef int SKIP_PAYLOAD = 3
cdef Py_ssize_t SIZE = 8
cdef bytes PREFIX = b"pulse/"


cdef class PulseScanner(Scanner):
    """Frames to rows: the address is `pulse/` and the number, the payload the value as text."""

    cdef Py_ssize_t frame(
        self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end, FrameTable table
    ) except -1:
        cdef Py_ssize_t row = table.count
        cdef Octets side = table.side
        if p[at] != 80 or (end - at > 1 and p[at + 1] != 49):
            raise self.error(at, "a frame begins with P1")
        if end - at < SIZE:
            self.need = SIZE
            return 0
        table.blank(row)
        table.frame_at[row] = at
        table.frame_len[row] = SIZE
        table.op[row] = PUBLISH
        table.address_at[row] = table.side_at()
        side.put_bytes(PREFIX)
        side.put_decimal((p[at + 2] << 8) | p[at + 3])
        table.address_len[row] = table.address_at[row] - table.side_at()
        table.payload_at[row] = table.side_at()
        side.put_decimal(uint32(p, at + 4))
        table.payload_len[row] = table.payload_at[row] - table.side_at()
        table.count = row + 1
        return SIZE


cdef class PulseEncoder(Encoder):
    """Rows to frames: what is no number at a counter's address is left out."""

    cdef int frame(self, FrameTable table, Py_ssize_t row) except -1:
        cdef Octets text = Octets(64)
        cdef long long unit, value
        if table.op[row] != PUBLISH and table.op[row] != DELIVER:
            return SKIP_OP
        table.put(text, table.address_p, table.address_at[row], table.address_len[row])
        if text.size < 7 or bytes(text)[:6] != PREFIX:
            return SKIP_ADDRESS
        unit = decimal(text.data, 6, text.size - 6)
        if unit < 0 or unit > 0xFFFF:
            return SKIP_ADDRESS
        text.size = 0
        table.put(text, table.payload_p, table.payload_at[row], table.payload_len[row])
        value = decimal(text.data, 0, text.size)
        if value < 0 or value > 0xFFFFFFFF:
            return SKIP_PAYLOAD
        self.out.put_bytes(b"P1")
        self.out.put_uint16(unit)
        self.out.put_uint32(value)
        return 0
