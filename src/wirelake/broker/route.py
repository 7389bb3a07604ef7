"""The hot half of routing: rows of a frame table to audiences, without an object per message.

An *audience* is a set of subscribers, numbered by the broker: all addresses that go to the same
subscribers share one. `Routes` is a hash table from an address's bytes to its audience; a row whose
address it has not seen is given back to the broker, which works the audience out once. `groups`
lists the rows of each audience, and `gather` copies the frames that one subscriber gets out of the
scanned buffer.

A subscription with a wildcard may change the audience of any address. `Changed` has the filters
that were subscribed to or given up lately. A route remembers when it was last known to be right,
and is compared with the filters that have changed since when it is next used: a change costs
nothing for the routes that it does not match, and nothing at all until they are used.
"""

from __future__ import annotations

from array import array

import cython

from wirelake.message import Flag, Op
from wirelake.wire.names import longer
from wirelake.wire.table import SECRET

if cython.compiled:
    from cython.cimports.wirelake.wire.names import Names
    from cython.cimports.wirelake.wire.octets import Octets, equal, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.names import Names
    from wirelake.wire.octets import Octets, equal, same, uint32
    from wirelake.wire.table import FrameTable

_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
#: What makes a publish more than a message for whoever listens.
_SPECIAL = cython.declare(cython.int, Flag.RESPONSE | Flag.OVERSIZE | SECRET)
_ACK = cython.declare(cython.int, Flag.ACK)
_DOLLAR = cython.declare(cython.int, ord("$"))
_DELAY = b"delay"

#: How many filters `Changed` keeps, and the bytes that one may have.
CHANGES = cython.declare(cython.int, 256)
SLOT = cython.declare(cython.int, 256)

#: What `Routes.sole` returns if the rows have more than one audience.
MIXED = -1


def plain_run(table: FrameTable, start: cython.Py_ssize_t, sender: bytes) -> int:
    """Return where the run of plain publishes that begins at row `start` ends.

    A publish that names another source than its sender is not plain: it must not be forwarded or
    stored as it came.
    """
    row: cython.Py_ssize_t = start
    while (
        row < table.count
        and table.op[row] == _PUBLISH
        and not table.flags[row] & _SPECIAL
        and table.target_len[row] == 0
        and (table.source_len[row] == 0 or _is_source(table, row, sender, len(sender)))
    ):
        row += 1
    return int(row)


def like_run(table: FrameTable, start: cython.Py_ssize_t) -> int:
    """Return where the run of rows ends that begins at row `start` and can be done together.

    They have the same op and address, no receiver, and no headers but plain ones.
    """
    row: cython.Py_ssize_t = start
    op: cython.int = table.op[start]
    table.read_headers()
    while (
        row < table.count
        and table.op[row] == op
        and not table.flags[row] & _SPECIAL
        and table.target_len[row] == 0
        and _has_address(table, row, start)
        and plain_headers(table, row)
    ):
        row += 1
    return int(row)


@cython.cfunc
@cython.exceptval(check=False)
def _has_address(
    table: FrameTable, row: cython.Py_ssize_t, other: cython.Py_ssize_t
) -> cython.bint:
    """Have two rows the same address?"""
    p: cython.p_const_uchar = table.address_p
    q: cython.p_const_uchar = table.address_p
    at: cython.Py_ssize_t = table.address_at[row]
    begin: cython.Py_ssize_t = table.address_at[other]
    if table.address_len[row] != table.address_len[other]:
        return False
    if at < 0:
        p, at = table.side.data, -1 - at
    if begin < 0:
        q, begin = table.side.data, -1 - begin
    return equal(p, at, q, begin, table.address_len[row])


def plain_headers(table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
    """Has a row no headers that mean something to the broker: parameters, a delay?

    They are in the one form.
    """
    at: cython.Py_ssize_t = -1 - table.headers_at[row]
    end: cython.Py_ssize_t = at + table.headers_len[row]
    size: cython.Py_ssize_t
    delay: bytes = _DELAY
    if table.headers_len[row] == 0:
        return True
    while at < end:
        size = uint32(table.side.data, at)
        if size and table.side.data[at + 8] == _DOLLAR:
            return False
        if size == 5 and same(table.side.data, at + 8, delay, 5):
            return False
        at += 8 + size + uint32(table.side.data, at + 4)
    return True


def plain_messages(
    table: FrameTable, rows: cython.const[cython.int][::1], hops: cython.bint
) -> cython.bint:
    """Have all these rows no priority, no ttl in milliseconds, and only plain headers?"""
    k: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for k in range(len(rows)):
        row = rows[k]
        if not 0 <= row < table.count:
            raise IndexError(f"row {row} of {table.count}")
        if table.priority[row] or (table.ttl[row] and not hops) or not plain_headers(table, row):
            return False
    return True


def message_sizes(
    table: FrameTable,
    rows: cython.const[cython.int][::1],
    overhead: cython.longlong,
    per_header: cython.longlong,
    number: cython.longlong,
) -> array[int]:
    """Return what each row takes: an overhead, one for each header, and its fields.

    A row without an id gets `q` and a number, counted from `number`. Headers are in the one form.
    """
    k: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    size: cython.longlong
    digits: cython.longlong
    made = array("q", bytes(8 * len(rows)))
    sizes: cython.longlong[::1] = made
    for k in range(len(rows)):
        row = rows[k]
        if not 0 <= row < table.count:
            raise IndexError(f"row {row} of {table.count}")
        size = overhead + table.payload_len[row] + table.id_len[row]
        size += table.correlation_len[row] + table.target_len[row]
        if table.id_len[row] == 0:
            size += 2
            digits = number + k
            while digits >= 10:
                digits //= 10
                size += 1
        if table.headers_len[row]:
            size += table.headers_len[row]
            at = -1 - table.headers_at[row]
            end = at + table.headers_len[row]
            while at < end:
                size += per_header
                at += 8 + uint32(table.side.data, at) + uint32(table.side.data, at + 4)
        sizes[k] = size
    return made


@cython.cfunc
@cython.exceptval(check=False)
def _is_source(
    table: FrameTable,
    row: cython.Py_ssize_t,
    sender: cython.p_const_uchar,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Does a row name this sender as its source?"""
    if table.source_len[row] != size:
        return False
    if table.source_at[row] < 0:
        return equal(table.side.data, -1 - table.source_at[row], sender, 0, size)
    return equal(table.source_p, table.source_at[row], sender, 0, size)


def clear_flag(
    table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t, flag: cython.int
) -> None:
    """Take a flag from rows."""
    row: cython.Py_ssize_t
    for row in range(start, end):
        table.flags[row] &= ~flag


def wants_ack(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bool:
    """Has any row in [start, end) a sender that wants to be told?"""
    row: cython.Py_ssize_t
    flags: cython.int = 0
    for row in range(start, end):
        flags |= table.flags[row]
    return bool(flags & _ACK)


def end_of_likes(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
    """Return where the rows from `start` on end that want to be told, or do not, as it does."""
    row: cython.Py_ssize_t = start + 1
    while row < end and (table.flags[row] & _ACK) == (table.flags[start] & _ACK):
        row += 1
    return int(row)


def wanting_ack(table: FrameTable, rows: range | array[int]) -> array[int]:
    """Those of the rows whose senders want to be told."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    row: cython.int
    chosen: cython.int[::1]
    found: array[int] = array("i", bytes(4 * len(rows)))
    cells: cython.int[::1] = found
    if isinstance(rows, range):
        for row in range(rows.start, rows.stop):
            if table.flags[row] & _ACK:
                cells[n] = row
                n += 1
    else:
        chosen = rows
        for k in range(len(chosen)):
            if table.flags[chosen[k]] & _ACK:
                cells[n] = chosen[k]
                n += 1
    return found if n == len(found) else found[:n]


@cython.final
@cython.cclass
class Changed:
    """The filters with wildcards whose subscribers changed last, each with the time of its change.

    Times count changes. Only the latest change of a filter is kept, and the latest CHANGES filters;
    a route that was last right before a change that is not kept any more counts as changed.
    """

    now = cython.declare(cython.longlong, visibility="readonly")
    known_since: cython.longlong  # changes after this time are kept
    filters: Octets  # CHANGES slots of SLOT bytes
    sizes: cython.int[::1]
    times: cython.longlong[::1]
    used: cython.Py_ssize_t
    slots: dict[bytes, int]
    in_slot: list[bytes]

    def __init__(self) -> None:
        self.now = 1
        self.known_since = 0
        self.filters = Octets(CHANGES * SLOT)
        self.filters.put_bytes(bytes(CHANGES * SLOT))
        self.sizes = array("i", [0]) * CHANGES
        self.times = array("q", [0]) * CHANGES
        self.used = 0
        self.slots = {}
        self.in_slot = []

    def note(self, filter: bytes) -> None:
        """The subscribers of a filter have changed."""
        k: cython.Py_ssize_t
        oldest: cython.Py_ssize_t = 0
        self.now += 1
        if filter in self.slots:
            oldest = self.slots[filter]
            self.times[oldest] = self.now
            return
        if len(filter) > SLOT:
            self.known_since = self.now
            return
        if self.used < CHANGES:
            oldest = self.used
            self.used += 1
            self.in_slot.append(filter)
        else:
            for k in range(1, CHANGES):
                if self.times[k] < self.times[oldest]:
                    oldest = k
            self.known_since = self.times[oldest]
            del self.slots[self.in_slot[oldest]]
            self.in_slot[oldest] = filter
        self.slots[filter] = oldest
        self.times[oldest] = self.now
        self.sizes[oldest] = len(filter)
        for k in range(len(filter)):
            self.filters.data[oldest * SLOT + k] = filter[k]

    @cython.cfunc
    @cython.exceptval(check=False)
    def concerns(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
        since: cython.longlong,
    ) -> cython.bint:
        """May the audience of the address p[at:at+n] have changed after a time?"""
        k: cython.Py_ssize_t
        if since < self.known_since:
            return True
        for k in range(self.used):
            if self.times[k] > since and may_match(
                self.filters.data, k * SLOT, self.sizes[k], p, at, n
            ):
                return True
        return False


@cython.cfunc
@cython.exceptval(check=False)
def may_match(
    f: cython.p_const_uchar,
    i: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    j: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Does a valid filter f[i:i+size] match the address p[j:j+n]? True for reserved ones."""
    f_end: cython.Py_ssize_t = i + size
    p_end: cython.Py_ssize_t = j + n
    if n > 0 and p[j] == 0x24:  # `$`: wildcards have rules of their own there
        return True
    while True:
        if i < f_end and f[i] == 0x23:  # `#`
            return True
        if i < f_end and f[i] == 0x2B:  # `+`
            i += 1
            while j < p_end and p[j] != 0x2F:
                j += 1
        else:
            while i < f_end and j < p_end and f[i] != 0x2F and f[i] == p[j]:
                i += 1
                j += 1
        if j == p_end:
            if i == f_end:
                return True
            # `a/#` matches `a`, too.
            return i + 2 == f_end and f[i] == 0x2F and f[i + 1] == 0x23
        if i == f_end or f[i] != 0x2F or p[j] != 0x2F:
            return False
        i += 1
        j += 1


@cython.final
@cython.cclass
class Routes:
    """Audiences by address."""

    names: Names
    audience: cython.int[::1]  # by the number of the address, -1 where it is not known any more
    right_at: cython.longlong[::1]  # when each was last known to be right, as Changed counts
    assigned = cython.declare(cython.int[::1], visibility="public")

    def __init__(self, seed: int = 0) -> None:
        """`seed` keeps others from choosing addresses that share a slot."""
        self.names = Names(seed, 256)
        self.assigned = array("i", bytes(4 * 4096))
        self.clear()

    def __len__(self) -> int:
        return self.names.count

    def clear(self) -> None:
        """Forget every route."""
        self.names.clear()
        self.audience = array("i", bytes(4 * 256))
        self.right_at = array("q", bytes(8 * 256))

    def forget(self, address: bytes) -> None:
        """Do not know an address's audience any more."""
        k: cython.Py_ssize_t = self.names.find_bytes(address)
        if k >= 0:
            self.audience[k] = -1

    def keep_used(self, changed: Changed, used: bytearray) -> None:
        """Forget the routes that were not used since the last change.

        Sets used[audience] to 1 for the audiences of those that are left.
        """
        k: cython.Py_ssize_t
        marks: cython.uchar[::1] = used
        for k in range(self.names.count):
            if self.audience[k] >= 0:
                if self.right_at[k] == changed.now:
                    marks[self.audience[k]] = 1
                else:
                    self.audience[k] = -1

    def add(self, address: bytes, audience: int, changed: Changed) -> None:
        """Remember an address's audience, which was worked out just now."""
        k: cython.Py_ssize_t = self.names.add_bytes(address)
        if k == len(self.audience):
            self.audience = longer(self.audience, "i", 2 * k)
            self.right_at = longer(self.right_at, "q", 2 * k)
        self.audience[k] = audience
        self.right_at[k] = changed.now

    def assign(
        self,
        table: FrameTable,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        changed: Changed,
    ) -> int:
        """Fill `assigned` for the rows in [start, end); stop at the first unknown address.

        An address whose audience may have changed since it was worked out is unknown, too.

        Returns the row it stopped at, `end` when all are assigned.
        """
        row: cython.Py_ssize_t
        k: cython.Py_ssize_t
        known: cython.int = -1
        at: cython.int
        n: cython.int
        last_at: cython.int = 0
        last_n: cython.int = -1
        p: cython.p_const_uchar
        q: cython.p_const_uchar = table.side.data
        if len(self.assigned) < table.capacity:
            self.assigned = array("i", bytes(4 * table.capacity))
        for row in range(start, end):
            at = table.address_at[row]
            n = table.address_len[row]
            p = table.address_p
            if at < 0:
                p = table.side.data
                at = -1 - at
            if n != last_n or not equal(p, at, q, last_at, n):
                k = self.names.find(p, at, n)
                if k < 0:
                    return int(row)
                if self.right_at[k] != changed.now:
                    if changed.concerns(p, at, n, self.right_at[k]):
                        self.audience[k] = -1
                    else:
                        self.right_at[k] = changed.now
                known = self.audience[k]
                if known < 0:
                    return int(row)
                q, last_at, last_n = p, at, n
            self.assigned[row] = known
        return int(end)

    def sole(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
        """The audience that all rows in [start, end) have, or MIXED."""
        row: cython.Py_ssize_t
        for row in range(start + 1, end):
            if self.assigned[row] != self.assigned[start]:
                return MIXED
        return int(self.assigned[start])

    def groups(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> dict[int, array[int]]:
        """The rows in [start, end) by audience, each in the order of arrival."""
        row: cython.Py_ssize_t
        group: cython.Py_ssize_t
        last: cython.int = -1
        at: cython.Py_ssize_t = 0
        found: dict[int, int] = {}  # the audiences' groups
        of_row: cython.int[::1] = array("i", bytes(4 * (end - start)))
        for row in range(start, end):
            if self.assigned[row] != last:
                last = self.assigned[row]
                at = found.setdefault(last, len(found))
            of_row[row - start] = at
        next_at: cython.int[::1] = array("i", bytes(4 * (len(found) + 1)))
        for row in range(end - start):
            next_at[of_row[row] + 1] += 1
        for group in range(len(found)):
            next_at[group + 1] += next_at[group]
        begins = list(next_at)
        rows: array[int] = array("i", bytes(4 * (end - start)))
        cells: cython.int[::1] = rows
        for row in range(end - start):
            group = of_row[row]
            cells[next_at[group]] = start + row
            next_at[group] += 1
        return {
            audience: rows[begins[number] : begins[number + 1]]
            for audience, number in found.items()
        }


def gather(table: FrameTable, rows: cython.const[cython.int][::1]) -> memoryview:
    """The frames of these rows, byte for byte, as one buffer."""
    data: cython.const[cython.uchar][::1] = table.buffer
    out = Octets(1024)
    k: cython.Py_ssize_t = 0
    n: cython.Py_ssize_t = len(rows)
    begin: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    p: cython.p_const_uchar
    if cython.compiled:
        p = cython.address(data[0])
    else:
        p = data
    while k < n:
        begin = table.frame_at[rows[k]]
        stop = begin + table.frame_len[rows[k]]
        k += 1
        # Frames that touch go in one copy.
        while k < n and table.frame_at[rows[k]] == stop:
            stop += table.frame_len[rows[k]]
            k += 1
        out.put(p, begin, stop - begin)
    return out.take()


def adjacent(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    """Return the frames of rows [start, end), or b"" where they do not follow each other."""
    data: cython.const[cython.uchar][::1] = table.buffer
    row: cython.Py_ssize_t
    begin: cython.Py_ssize_t = table.frame_at[start]
    stop: cython.Py_ssize_t = begin
    for row in range(start, end):
        if table.frame_at[row] != stop:
            return b""
        stop += table.frame_len[row]
    if cython.compiled:
        p: cython.p_const_uchar = cython.address(data[0])
        return p[begin:stop]
    return bytes(data[begin:stop])
