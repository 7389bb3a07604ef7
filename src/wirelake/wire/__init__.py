"""What dialects share: the frame table, scanners and encoders, CBOR, Arrow.

No sockets, no clock, no asyncio. `wirelake.wire.arrow`, which needs pyarrow, turns tables into
Arrow batches and back. `wirelake.dialects` has the dialects themselves.
"""

from wirelake.wire import octets
from wirelake.wire.codec import Encoder, Scanner
from wirelake.wire.table import FrameTable

__all__ = ["COMPILED", "Encoder", "FrameTable", "Scanner"]

#: Whether the kernels were compiled, or run as plain Python.
COMPILED = not octets.__file__.endswith(".py")
