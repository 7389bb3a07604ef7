"""A caller of the wire library: it keeps what was not consumed, and asks again while there is more.

Every rule that a caller may rely on is asserted here, so each test that reads bytes tests them too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wirelake.dialects.codec import encoder, scanner
from wirelake.errors import ProtocolError
from wirelake.message import Limits, Message
from wirelake.wire import Encoder, FrameTable, Scanner


@dataclass
class Reading:
    """What came of a stream: its messages, how it broke, and the same messages encoded again."""

    scanner: Scanner
    messages: list[Message] = field(default_factory=list)
    fault: tuple[int, str, bytes] | None = None
    encoded: bytes = b""

    @property
    def outcome(self) -> tuple[list[Message], tuple[int, str, bytes] | None]:
        """What must not depend on how the bytes came."""
        return self.messages, self.fault


def read(
    dialect: str,
    pieces: Iterable[bytes],
    *,
    capacity: int = 64,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    encode: Encoder | None = None,
    patient: bool = False,
    finish: bool = True,
) -> Reading:
    """Scan a stream that comes in these pieces; if `patient`, not before `need` bytes are there."""
    scan = scanner(dialect, limits)
    reading = Reading(scan)
    table = FrameTable(capacity)
    rest = b""
    consumed = 0

    def take(step: Callable[[bytes, FrameTable], int], waiting: int) -> None:
        nonlocal rest, consumed
        while True:
            used = step(rest, table)
            assert used == 0 or len(rest) >= waiting, "a scanner did more with less than it needs"
            assert table.count <= capacity
            reading.messages += table.messages()
            if encode is not None:
                reading.encoded += bytes(encode.encode(table))
            rest = rest[used:]
            consumed += used
            assert scan.offset == consumed
            if not scan.again:
                return
            waiting = 0

    try:
        for piece in pieces:
            waiting = scan.need
            rest += piece
            enough = len(rest) >= waiting
            if enough or not patient:
                try:
                    take(scan.scan, waiting)
                except ProtocolError:
                    assert enough, "a fault in less than the scanner needs"
                    raise
            assert scan.need == 0 or scan.need > len(rest)
        if finish:
            take(scan.finish, 0)
            assert rest == b"", "finished, but not all was consumed"
    except ProtocolError as error:
        reading.fault = (error.offset, error.reason, error.answer)
        faulty = error.dialect
    else:
        return reading
    assert faulty == dialect
    assert reading.fault[0] >= 0
    assert reading.fault[1]
    return reading


def write(
    messages: Sequence[Message],
    dialect: str,
    *,
    source: str = "",
    client: bool = True,
    little: bool = False,
) -> bytes:
    """Messages as frames; `source` is the dialect that they were read from."""
    table = FrameTable(max(1, len(messages)))
    table.fill(messages, source)
    writer = encoder(dialect, client=client)
    writer.set_variant("little" if little else "")
    return bytes(writer.encode(table))


def single_bytes(data: bytes) -> Iterator[bytes]:
    """One byte at a time."""
    return (data[at : at + 1] for at in range(len(data)))


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    """So many bytes at a time."""
    return (data[at : at + size] for at in range(0, len(data), size))


def cut(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """The data, cut at these places."""
    start = 0
    for place in sorted({min(place, len(data)) for place in places}):
        yield data[start:place]
        start = place
    yield data[start:]
