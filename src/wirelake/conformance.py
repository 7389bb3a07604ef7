"""The conformance kit: what every dialect must hold, tried on one of your own.

    assert check_dialect(Rooms, [Message("house/temp", b"21")]) == []

A dialect that passes reads the same messages however its bytes arrive, raises nothing but
ProtocolError whatever they are, holds to the limits, reads back what it writes, and is told from
all other dialects. The same seed tries the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wirelake.dialects import DIALECTS, Dialect
from wirelake.dialects.codec import Feed, clashes, detect, encoder, scanner
from wirelake.errors import ProtocolError
from wirelake.message import Limits, Message, Op
from wirelake.wire import FrameTable

#: The size limit of streams that are split at every place (bytes).
EVERYWHERE = 2000
#: The limits that a dialect is held to.
SMALL = Limits(message=4096, address=100, headers=1024, sequence=4096)
#: A scanner that is called so often for a few bytes does not come to an end.
CALLS = 10_000


def check_dialect(
    dialect: Any,
    messages: Sequence[Message],
    *,
    capture: bytes = b"",
    tries: int = 300,
    seed: int = 0,
) -> list[str]:
    """Return what a dialect does wrong, a sentence each; empty where it conforms.

    `dialect` is a `Plugin`, a `Dialect`, the path of a description, or the name of a dialect that
    is installed. `messages` are some that its clients send; `capture` is what one sent, where it
    has frames that cannot be written here. `tries` is how many buffers of garbage are read.
    """
    with _registered(dialect) as name:
        kit = _Kit(name, messages, capture, random.Random(seed))
        found: list[str] = []
        parts = (kit.round_trip, kit.splits, kit.limits, kit.detection)
        for part in parts:
            found += _guarded(part.__name__.replace("_", " "), part)
        return found + _guarded("garbage", lambda: kit.garbage(tries))


def _guarded(what: str, part: Callable[[], Iterator[str]]) -> list[str]:
    """The findings of a part; an exception is one too."""
    found: list[str] = []
    try:
        for one in part():
            found.append(one)
    except Exception as error:  # noqa: BLE001 - a dialect's, whatever it is
        found.append(f"{what}: {type(error).__name__}: {error}")
    return found


class _registered:  # noqa: N801 - used as a function
    """A dialect in the registry for a while, by its name."""

    def __init__(self, dialect: Any) -> None:
        if isinstance(dialect, str):
            self._name, self._also = dialect, DIALECTS.also()
            return
        if isinstance(dialect, Path):
            self._also = DIALECTS.also()
            self._name, self._file = "", dialect
            return
        value = dialect if isinstance(dialect, Dialect) else dialect.as_dialect()
        value = replace(value, is_foreign=True)
        self._name, self._also = value.name, DIALECTS.also(value)

    def __enter__(self) -> str:
        self._also.__enter__()
        return self._name or DIALECTS.describe(self._file).name

    def __exit__(self, *error: Any) -> None:
        self._also.__exit__(*error)


class _Kit:
    """One dialect under test."""

    def __init__(
        self, name: str, messages: Sequence[Message], capture: bytes, chance: random.Random
    ) -> None:
        self.name = name
        self._sent = list(messages)
        self._chance = chance
        self._frames = self._encode(self._sent)[0]
        self._stream = self._frames + capture

    def _encode(self, messages: Sequence[Message]) -> tuple[bytes, dict[str, int]]:
        table = FrameTable(max(1, len(messages)))
        table.fill(messages, "")
        made = encoder(self.name)
        return bytes(made.encode(table)), dict(made.skipped)

    def _read(self, pieces: Sequence[bytes]) -> list[Message]:
        feed = Feed(self.name)
        found: list[Message] = []
        for piece in pieces:
            for table in feed.receive(piece):
                found += table.messages()
        for table in feed.finish():
            found += table.messages()
        return found

    def round_trip(self) -> Iterator[str]:
        """What is written reads back."""
        _, skipped = self._encode(self._sent)
        if skipped:
            yield f"round trip: {sum(skipped.values())} messages cannot be written: {skipped}"
        back = self._read([self._frames])
        if len(back) != len(self._sent) - sum(skipped.values()):
            yield f"round trip: {len(self._sent)} messages were written, {len(back)} read back"
            return
        has_addresses = DIALECTS[self.name].has_addresses
        for sent, got in zip(self._sent, back, strict=False):
            for field in ("op", "payload", *(["address"] if has_addresses else [])):
                if getattr(sent, field) != getattr(got, field):
                    values = f"{getattr(sent, field)!r} came back as {getattr(got, field)!r}"
                    yield f"round trip: the {field} {values}"

    def splits(self) -> Iterator[str]:
        """The messages do not depend on how the bytes arrive."""
        data = self._stream
        whole = self._read([data])
        if self._read([data[k : k + 1] for k in range(len(data))]) != whole:
            yield "splits: byte by byte, other messages are read than at once"
        places: Sequence[int] = range(1, len(data))
        if len(data) > EVERYWHERE:
            places = sorted(self._chance.sample(places, EVERYWHERE))
        for at in places:
            if self._read([data[:at], data[at:]]) != whole:
                yield f"splits: other messages are read where byte {at} begins a read"
                return

    def garbage(self, tries: int) -> Iterator[str]:
        """Any bytes are messages, a ProtocolError, or not complete."""
        data = self._stream
        for _ in range(tries):
            noise = bytearray(self._chance.randbytes(self._chance.randrange(1, 200)))
            if data and self._chance.random() < 0.7:  # most faults are near what is right
                noise = bytearray(data[: 2 * SMALL.message])
                for _ in range(self._chance.randrange(1, 5)):
                    noise[self._chance.randrange(len(noise))] = self._chance.randrange(256)
                noise = noise[: self._chance.randrange(1, len(noise) + 1)]
            if fault := self._scan(bytes(noise)):
                yield f"garbage: {bytes(noise[:64]).hex(' ')}: {fault}"
                return

    def _scan(self, data: bytes) -> str:
        """Scan bytes to their end; return what the scanner does wrong."""
        reader, table = scanner(self.name, SMALL), FrameTable(16)
        at = 0
        for _ in range(CALLS):
            try:
                used = reader.scan(memoryview(data)[at:], table)
            except ProtocolError as error:
                if not 0 <= error.offset <= len(data):
                    return f"a fault at byte {error.offset} of {len(data)}"
                return ""
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                return f"{type(error).__name__}: {error}"
            if not 0 <= used <= len(data) - at:
                return f"{used} bytes were used of {len(data) - at}"
            if table.count and not used:
                return "messages were read and no bytes used"
            at += used
            if not used or at == len(data):
                return ""
        return "the scanner does not come to an end"

    def limits(self) -> Iterator[str]:
        """What is longer than a limit is refused, and an unfinished frame does not grow for ever.

        Only what the dialect can say is tried.
        """
        first = next((one for one in self._sent if one.op == Op.PUBLISH), None)
        if first is None:
            return
        large = Message(first.address, b"x" * (4 * SMALL.message))
        long = Message("a" * (SMALL.address + 50), first.payload)
        tried = [("a payload", large)]
        if DIALECTS[self.name].has_addresses:
            tried.append(("an address", long))
        for what, message in tried:
            frames, skipped = self._encode([message])
            if not skipped and not self._is_refused(frames):
                yield f"limits: {what} above the limit is read"
        begun = self._encode([large])[0][:-1] or self._frames[:-1]
        endless = begun + b"x" * (4 * SMALL.message)
        if begun and len(begun) > SMALL.message and not self._is_refused(begun):
            yield "limits: an unfinished frame above the limit is waited for"
        elif begun and not self._is_refused(endless):
            yield "limits: a frame that does not end is waited for"

    def _is_refused(self, data: bytes) -> bool:
        reader, table = scanner(self.name, SMALL), FrameTable(16)
        at = 0
        try:
            while used := reader.scan(memoryview(data)[at:], table):
                at += used
                if at == len(data):
                    return False
        except ProtocolError:
            return True
        return len(data) - at <= SMALL.message

    def detection(self) -> Iterator[str]:
        """On `auto` a stream is taken for this dialect, and never for another meanwhile."""
        if DIALECTS[self.name].detect is None or not self._stream:
            return
        for other in clashes(self.name):
            yield f"detection: {other} begins alike; give it a listener of its own"
        for at in range(1, min(len(self._stream), 64) + 1):
            try:
                found = detect(self._stream[:at])
            except ProtocolError:
                yield f"detection: {at} bytes are taken for no dialect"
                return
            if found not in (None, self.name):
                yield f"detection: {at} bytes are taken for {found}"
                return
        if len(self._stream) >= 23 and found is None:
            yield "detection: 23 bytes do not tell the dialect"
