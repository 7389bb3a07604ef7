"""Bytes to frame tables and back, for all eight dialects. No sockets, no clock, no asyncio.

    table = FrameTable()
    used = scanner("kobold-3").scan(data, table)   # a row for every complete message in data
    frames = encoder("tmq-1.01").encode(table)     # the same messages in another dialect

`wirelake.wire.arrow`, which needs pyarrow, turns tables into Arrow batches and back.
"""

from wirelake.wire import octets
from wirelake.wire.codec import Encoder, Scanner
from wirelake.wire.detect import detect
from wirelake.wire.dialects import DIALECTS, Dialect, encoder, scanner
from wirelake.wire.feed import Feed
from wirelake.wire.table import FrameTable

__all__ = [
    "COMPILED",
    "DIALECTS",
    "Dialect",
    "Encoder",
    "Feed",
    "FrameTable",
    "Scanner",
    "detect",
    "encoder",
    "scanner",
]

#: Whether the kernels were compiled, or run as plain Python.
COMPILED = not octets.__file__.endswith(".py")
