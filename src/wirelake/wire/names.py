"""A set of byte strings that numbers them: addresses, sources and the like, found by their bytes.

Open addressing with linear probing; at most half of the slots are taken. The strings stand one
behind the other in one buffer, so a set can be written as a column of Arrow as it is.
"""

from __future__ import annotations

from array import array
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets, equal, hash_of
else:
    from wirelake.wire.octets import Octets, equal, hash_of

_EMPTY = array("q")


def longer(cells: Any, code: str, length: int) -> Any:
    """Return an array of this length that begins with these cells; the others are 0."""
    made = array(code, memoryview(cells).tobytes())
    made.frombytes(bytes(made.itemsize * (length - len(made))))
    return made


@cython.final
@cython.cclass
class Names:
    """Different byte strings, numbered from 0 in the order in which they came."""

    def __init__(self, seed: int = 0, room: int = 8) -> None:
        """`seed` keeps others from choosing strings that share a slot; `room` is a power of two."""
        self.seed = seed & 0xFFFFFFFF
        self.least = room
        self.text = Octets(0)
        self.hashes: Any = _EMPTY
        self.clear()

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Forget all of them."""
        self.text.clear()
        self.count = 0
        self.owner: Any = bytearray(4)
        self._make_room(self.least)

    def find(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return the number of the n bytes at p[at], -1 where they are not known."""
        return self.slots[self._slot(hash_of(self.seed, p, at, n), p, at, n)]

    def add(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return the number of the n bytes at p[at]: the next one, `count`, if they are new."""
        code: cython.longlong = hash_of(self.seed, p, at, n)
        slot: cython.Py_ssize_t = self._slot(code, p, at, n)
        k: cython.Py_ssize_t = self.slots[slot]
        if k >= 0:
            return k
        k = self.count
        if k == len(self.hashes):
            self._make_room(2 * k)
            slot = self._slot(code, p, at, n)
        self.text.put(p, at, n)
        self.slots[slot] = k
        self.hashes[k] = code
        self.ends[k + 1] = self.text.size
        self.count = k + 1
        return k

    def find_bytes(self, name: bytes) -> int:
        """Return the number of a string, -1 where it is not known."""
        return int(self.find(name, 0, len(name)))

    def add_bytes(self, name: bytes) -> int:
        """Return the number of a string: the next one, `count`, if it is new."""
        return int(self.add(name, 0, len(name)))

    def _slot(
        self,
        code: cython.longlong,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Return the slot of a string, or the free one where it would stand."""
        slot: cython.Py_ssize_t = code & self.mask
        k: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        while True:
            k = self.slots[slot]
            if k < 0:
                return slot
            if self.hashes[k] == code:
                begin = self.ends[k]
                if self.ends[k + 1] - begin == n and equal(p, at, self.text.data, begin, n):
                    return slot
            slot = (slot + 1) & self.mask

    def _make_room(self, room: cython.Py_ssize_t) -> cython.int:
        """Make room for this many strings, in twice as many slots."""
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        self.hashes = longer(self.hashes[: self.count], "q", room)
        owner = bytearray(4 * (room + 1))
        owner[: 4 * (self.count + 1)] = memoryview(self.owner)[: 4 * (self.count + 1)]
        self.owner = owner
        self.ends = memoryview(owner).cast("i")
        self.mask = 2 * room - 1
        self.slots = array("i", [-1]) * (2 * room)
        for k in range(self.count):
            slot = self.hashes[k] & self.mask
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
            self.slots[slot] = k
        return 0
