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
from wirelake.wire.table import SECRET

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets, equal, hash_of
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.octets import Octets, equal, hash_of
    from wirelake.wire.table import FrameTable

_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
#: What makes a publish more than a message for whoever listens.
_SPECIAL = cython.declare(cython.int, Flag.RESPONSE | Flag.OVERSIZE | SECRET)
_ACK = cython.declare(cython.int, Flag.ACK)

#: How many filters `Changed` keeps, and the bytes that one may have.
CHANGES = cython.declare(cython.int, 256)
SLOT = cython.declare(cython.int, 256)

#: Returned by `assign` when every row has one and the same audience is to be told from several.
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


def wanting_ack(table: FrameTable, rows: cython.const[cython.int][::1]) -> array[int]:
    """Those of the rows whose senders want to be told."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    found: array[int] = array("i", [0]) * len(rows)
    cells: cython.int[::1] = found
    for k in range(len(rows)):
        if table.flags[rows[k]] & _ACK:
            cells[n] = rows[k]
            n += 1
    return found[:n]


def span(start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> array[int]:
    """The rows [start, end), one by one."""
    row: cython.Py_ssize_t
    rows: array[int] = array("i", [0]) * (end - start)
    cells: cython.int[::1] = rows
    for row in range(start, end):
        cells[row - start] = row
    return rows


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
    """Audiences by address: open addressing, keys in one buffer."""

    slots: cython.int[::1]
    mask: cython.longlong
    count: cython.Py_ssize_t
    hashes: cython.longlong[::1]
    key_at: cython.int[::1]
    key_len: cython.int[::1]
    audience: cython.int[::1]
    right_at: cython.longlong[::1]  # when each was last known to be right, as Changed counts
    keys: Octets
    seed: cython.longlong
    assigned = cython.declare(cython.int[::1], visibility="public")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed  # so that nobody can choose addresses that fall into one slot
        self.keys = Octets(4096)
        self.assigned = array("i", [0]) * 4096
        self.clear()

    def __len__(self) -> int:
        return int(self.count)

    def clear(self) -> None:
        """Forget every route."""
        self.keys.size = 0
        self.count = 0
        self._size(256)

    @cython.cfunc
    def _size(self, entries: cython.Py_ssize_t) -> cython.int:
        """Make room for so many routes, in a table twice as large."""
        k: cython.Py_ssize_t
        hashes = array("q", [0]) * entries
        key_at = array("i", [0]) * entries
        key_len = array("i", [0]) * entries
        audience = array("i", [0]) * entries
        right_at = array("q", [0]) * entries
        slot: cython.longlong
        if self.count:
            hashes[: self.count] = array("q", self.hashes[: self.count])
            key_at[: self.count] = array("i", self.key_at[: self.count])
            key_len[: self.count] = array("i", self.key_len[: self.count])
            audience[: self.count] = array("i", self.audience[: self.count])
            right_at[: self.count] = array("q", self.right_at[: self.count])
        self.hashes = hashes
        self.key_at = key_at
        self.key_len = key_len
        self.audience = audience
        self.right_at = right_at
        self.slots = array("i", [-1]) * (2 * entries)
        self.mask = 2 * entries - 1
        for k in range(self.count):
            slot = self.hashes[k] & self.mask
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
            self.slots[slot] = k
        return 0

    def forget(self, address: bytes) -> None:
        """Do not know an address's audience any more."""
        k: cython.int = self._entry(address, 0, len(address))
        if k >= 0:
            self.audience[k] = -1

    def keep_used(self, changed: Changed, used: bytearray) -> None:
        """Forget the routes that were not used since the last change.

        Sets used[audience] to 1 for the audiences of those that are left.
        """
        k: cython.Py_ssize_t
        marks: cython.uchar[::1] = used
        for k in range(self.count):
            if self.audience[k] >= 0:
                if self.right_at[k] == changed.now:
                    marks[self.audience[k]] = 1
                else:
                    self.audience[k] = -1

    def add(self, address: bytes, audience: int, changed: Changed) -> None:
        """Remember an address's audience, which was worked out just now."""
        code: cython.longlong = hash_of(self.seed, address, 0, len(address))
        slot: cython.longlong
        k: cython.int = self._entry(address, 0, len(address))
        if k >= 0:
            self.audience[k] = audience
            self.right_at[k] = changed.now
            return
        if self.count == len(self.hashes):
            self._size(2 * self.count)
        slot = code & self.mask
        while self.slots[slot] >= 0:
            slot = (slot + 1) & self.mask
        self.slots[slot] = self.count
        self.hashes[self.count] = code
        self.key_at[self.count] = self.keys.size
        self.key_len[self.count] = len(address)
        self.audience[self.count] = audience
        self.right_at[self.count] = changed.now
        self.keys.put_bytes(address)
        self.count += 1

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
        k: cython.int
        known: cython.int = -1
        at: cython.int
        n: cython.int
        last_at: cython.int = 0
        last_n: cython.int = -1
        p: cython.p_const_uchar
        q: cython.p_const_uchar = table.side.data
        if len(self.assigned) < table.capacity:
            self.assigned = array("i", [0]) * table.capacity
        for row in range(start, end):
            at = table.address_at[row]
            n = table.address_len[row]
            p = table.address_p
            if at < 0:
                p = table.side.data
                at = -1 - at
            if n != last_n or not equal(p, at, q, last_at, n):
                k = self._entry(p, at, n)
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
        of_row: cython.int[::1] = array("i", [0]) * (end - start)
        for row in range(start, end):
            if self.assigned[row] != last:
                last = self.assigned[row]
                at = found.setdefault(last, len(found))
            of_row[row - start] = at
        next_at: cython.int[::1] = array("i", [0]) * (len(found) + 1)
        for row in range(end - start):
            next_at[of_row[row] + 1] += 1
        for group in range(len(found)):
            next_at[group + 1] += next_at[group]
        begins = list(next_at)
        rows: array[int] = array("i", [0]) * (end - start)
        cells: cython.int[::1] = rows
        for row in range(end - start):
            group = of_row[row]
            cells[next_at[group]] = start + row
            next_at[group] += 1
        return {
            audience: rows[begins[number] : begins[number + 1]]
            for audience, number in found.items()
        }

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _entry(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        """Where an address's route is kept, -1 where it is not."""
        code: cython.longlong = hash_of(self.seed, p, at, n)
        slot: cython.longlong = code & self.mask
        k: cython.int
        while True:
            k = self.slots[slot]
            if k < 0:
                return -1
            if (
                self.hashes[k] == code
                and self.key_len[k] == n
                and equal(p, at, self.keys.data, self.key_at[k], n)
            ):
                return k
            slot = (slot + 1) & self.mask


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


def is_contiguous(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bool:
    """Do the frames of rows [start, end) lie next to each other?"""
    row: cython.Py_ssize_t
    for row in range(start + 1, end):
        if table.frame_at[row] != table.frame_at[row - 1] + table.frame_len[row - 1]:
            return False
    return True
