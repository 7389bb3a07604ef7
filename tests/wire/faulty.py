"""A scanner with the faults that `Scanner.scan` must survive; a test compiles it like a kernel.

A frame is one byte. `r` is a row. `!` counts a row, puts bytes into the side buffer, and then
raises. `?` counts a row and says that it is not complete.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Scanner
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Scanner
    from wirelake.wire.table import FrameTable


@cython.final
@cython.cclass
class FaultyScanner(Scanner):
    """Counts how often it was called, so that a test need not wait to see that it hangs."""

    calls = cython.declare(cython.int, visibility="readonly")

    def __init__(self) -> None:
        Scanner.__init__(self, "mfp-1")
        self.calls = 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Read one byte."""
        row: cython.Py_ssize_t = table.count
        self.calls += 1
        if self.calls > 1000:
            raise RuntimeError("the caller goes on for ever")
        table.blank(row)
        table.frame_at[row] = at
        table.frame_len[row] = 1
        table.op[row] = 0
        table.count = row + 1
        if p[at] == 33:
            table.side.put_bytes(b"left over")
            raise self.error(at, "a fault behind the row")
        return 0 if p[at] == 63 else 1
