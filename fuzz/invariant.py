"""What must hold for every input: messages or a ProtocolError, in bounded time and memory.

`check` runs one stream of bytes through one build of the library and returns all that came out,
so that the outcomes of two builds can be compared. It raises `Broken` where
- the bytes give other messages, or another error, in pieces than they give whole;
- a row points outside its buffers, or a call uses more memory than its input can account for;
- a message, its Arrow row and the message read back from that row are not the same;
- what was encoded cannot be scanned again, or is another message than it was.
Any exception but ProtocolError breaks it as well, by itself.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz.builds import Build

#: Small enough that an input of two kilobytes meets every one of them.
LIMITS = {"message": 600, "address": 120, "headers": 300, "sequence": 1000}
ROWS = 7
#: The longest address that all dialects can say.
LONGEST = 255

# The most that may wait for its end: a frame at its limits, a sequence; mfp's limit is its own.
_MOST_WAITING = {"boson-text": 1000 + 400, "mfp-1": 21 + (64 << 10)}
_MOST_WAITING_ELSEWHERE = 600 + 800

_PLACES = ("address", "payload", "id", "correlation", "source", "target", "headers")
_FIELDS = (
    "address", "payload", "id", "correlation_id", "source", "target", "content_type",
    "priority", "ttl", "headers", "flags", "dialect", "op",
)  # fmt: skip
_IN_ARROW = tuple(name for name in _FIELDS if name != "flags")

# Ops that a dialect without a word of its own for them may write as each other. A request in TMQ
# is a channel message with RS: what it is depends on who listens.
_PUBLISHED = {"publish", "enqueue", "deliver", "direct"}
_REQUESTED = {"request", "publish"}

Row = dict[str, Any]


class Broken(AssertionError):  # noqa: N818 - it is not an error of the input
    """The library did not keep its promise."""


@dataclass
class Outcome:
    """All that came of one stream; two builds have to agree on it."""

    rows: list[Row] = field(default_factory=list)
    error: tuple[str, int, str, bytes] | None = None
    encoded: dict[str, bytes] = field(default_factory=dict)
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)


def check(build: Build, dialect: str, data: bytes) -> Outcome:
    """Run one stream of bytes through everything; return what came of it."""
    encoders = build.encoders()
    outcome = Outcome(encoded=dict.fromkeys(encoders, b""))
    logged = {name: build.codec.encoder(name) for name in build.codec.DIALECTS}
    outcome.encoded |= {f"{name} from Arrow": b"" for name in logged}
    singles = _Singles(build, dialect) if build.compiled else None
    scanned = _Scanned(build, outcome)
    for table, base in scanned.whole(dialect, data):
        _check_places(table)
        rows = _rows(table, base)
        if any(len(row["address"].encode()) > LONGEST for row in rows):
            # A filter of MQTT: its scanner leaves room for a group before it, and others do not.
            _check_arrow(build, table, rows)
            outcome.rows += rows
            continue
        for name, encoder in encoders.items():
            outcome.encoded[name] += bytes(encoder.encode(table))
        _check_places(table)
        back = _check_arrow(build, table, rows)
        for name, encoder in logged.items():
            outcome.encoded[f"{name} from Arrow"] += bytes(encoder.encode(back))
        if singles:
            singles.check(table, rows)
        outcome.rows += rows
    outcome.skipped = {name: dict(encoder.skipped) for name, encoder in encoders.items()}
    if singles:
        singles.finish(outcome)
    _check_pieces(build, dialect, data, outcome)
    return outcome


def compare(plain: Outcome, compiled: Outcome) -> None:
    """The two builds saw and wrote the same."""
    _same("the error", plain.error, compiled.error)
    _same("the messages", plain.rows, compiled.rows)
    _same("what was left out", plain.skipped, compiled.skipped)
    for name, encoded in plain.encoded.items():
        _same(f"frames of {name}", encoded, compiled.encoded[name])


def check_detection(build: Build, data: bytes) -> None:
    """Every prefix tells the same dialect, or that there is none, or waits for more bytes."""
    for family in (None, "boson", "kobold", "mfp", "tmq", "mqtt"):
        settled: str | None = None
        for size in range(min(len(data), 40) + 1):
            told = _detected(build, data[:size], family)
            if settled is not None:
                _same(f"the dialect told from {size} bytes within {family}", told, settled)
            if told is None and size >= 23:
                raise Broken(f"{size} bytes do not tell the dialect within {family}")
            settled = told
        if settled is not None and settled in build.codec.DIALECTS:
            for _ in _Scanned(build, Outcome()).whole(settled, data):
                pass


def _detected(build: Build, data: bytes, family: str | None) -> str | None:
    try:
        dialect: str | None = build.codec.detect(data, family)
    except build.errors.ProtocolError as error:
        return f"{error.offset} {error.reason}"
    if dialect is not None and not dialect.startswith(family or ""):
        raise Broken(f"{dialect} was told within {family}")
    return dialect


@dataclass
class _Scanned:
    """The loop of whoever has all the bytes at once."""

    build: Build
    outcome: Outcome

    def whole(self, dialect: str, data: bytes) -> Iterator[tuple[Any, int]]:
        """Each filled table, with the place of its buffer in the stream; errors are noted."""
        scanner = self.build.codec.scanner(dialect, self.build.message.Limits(**LIMITS))
        table = self.build.wire.FrameTable(ROWS)
        most_waiting = _MOST_WAITING.get(dialect, _MOST_WAITING_ELSEWHERE)
        at = 0
        try:
            for scan in (scanner.scan, scanner.finish):
                while True:
                    used = scan(self.build.strict(data[at:]), table)
                    if scanner.again and not used and not len(table):
                        raise Broken(f"byte {at}: again, but nothing came")
                    if not 0 <= used <= len(data) - at:
                        raise Broken(f"byte {at}: {used} bytes used of {len(data) - at}")
                    if len(table):
                        yield table, at
                    at += used
                    if scanner.offset != at:
                        raise Broken(f"byte {at}: the scanner is at {scanner.offset}")
                    if not scanner.again:
                        break
                if len(data) - at > most_waiting:
                    raise Broken(f"{len(data) - at} bytes wait, at most {most_waiting} may")
                if 0 < scanner.need <= len(data) - at:
                    raise Broken(f"{scanner.need} bytes are needed, and there")
        except self.build.errors.ProtocolError as error:
            self.outcome.error = _facts(error, dialect, data)


def _check_pieces(build: Build, dialect: str, data: bytes, whole: Outcome) -> None:
    """Bytes that come a few at a time give what they gave whole."""
    rows: list[Row] = []
    failure = None
    feed = build.codec.Feed(dialect, limits=build.message.Limits(**LIMITS), capacity=ROWS)
    try:
        for piece in _pieces(data):
            for table in feed.receive(piece):
                rows += _rows(table, feed.base)
        for table in feed.finish():
            rows += _rows(table, feed.base)
    except build.errors.ProtocolError as error:
        failure = _facts(error, dialect, data)
    _same("the error, in pieces", failure, whole.error)
    _same("the messages, in pieces", rows, whole.rows)


def _pieces(data: bytes) -> Iterator[bytes]:
    """The data cut where it says itself: by chance, but always the same."""
    chance = random.Random(zlib.crc32(data))
    most = chance.choice((1, 3, 40, 1000))
    at = 0
    while at < len(data):
        size = chance.randint(1, most)
        yield data[at : at + size]
        at += size


def _facts(error: Any, dialect: str, data: bytes) -> tuple[str, int, str, bytes]:
    if error.dialect != dialect or not 0 <= error.offset <= len(data) or not error.reason:
        raise Broken(f"an error of {dialect} in {len(data)} bytes says: {error}")
    return error.dialect, error.offset, error.reason, error.answer


def _rows(table: Any, base: int) -> list[Row]:
    """The messages of a table, and where in the stream their frames begin."""
    return [
        {name: getattr(message, name) for name in _FIELDS}
        | {"headers": table.headers(row), "op": message.op.label}
        | {"offset": base + table.frame_at[row]}
        for row, message in enumerate(table.messages())
    ]


def _check_places(table: Any) -> None:
    """No row points outside the buffers, and the side buffer is no larger than can be explained."""
    size, side = len(table.buffer), len(table.side)
    if side > 16 * size + 1024:
        raise Broken(f"{side} bytes beside a buffer of {size}")
    for row in range(len(table)):
        for name in _PLACES:
            at, n = getattr(table, f"{name}_at")[row], getattr(table, f"{name}_len")[row]
            end = at + n if at >= 0 else n - 1 - at
            if n and not (n > 0 and end <= (size if at >= 0 else side)):
                raise Broken(f"{name} of row {row}: {n} bytes at {at} of {size} and {side}")
        at, n = table.frame_at[row], table.frame_len[row]
        if not (0 <= at < at + n <= size):
            raise Broken(f"frame of row {row}: {n} bytes at {at} of {size}")


def _check_arrow(build: Build, table: Any, rows: list[Row]) -> Any:
    """A valid batch says what the messages say, and so does a table read from it; return that."""
    batch = build.arrow.to_arrow(table, timestamp=1, partition=2, offset=3)
    batch.validate(full=True)
    told = [_logged(row) for row in rows]
    columns = {name: batch.column(name).to_pylist() for name in _IN_ARROW}
    columns["headers"] = [dict(entries) for entries in columns["headers"]]
    for k, row in enumerate(told):
        _same("the Arrow row", {name: columns[name][k] for name in _IN_ARROW}, row)
    back = build.wire.FrameTable(ROWS)
    build.arrow.from_arrow(batch, back)
    hops = build.codec.DIALECTS[
        table.dialect
    ].ttl_in_hops  # no time, so they do not come back (decision 10)
    expected = [row | {"dialect": "", "ttl": 0 if hops else row["ttl"]} for row in told]
    returned = [{name: row[name] for name in _IN_ARROW} for row in _rows(back, 0)]
    _same("the message from Arrow", returned, expected)
    return back


def _logged(row: Row) -> Row:
    """What the log keeps of a message: neither its flags nor a token."""
    kept = {name: row[name] for name in _IN_ARROW}
    return kept | {"headers": {k: v for k, v in row["headers"].items() if k != "$token"}}


class _Singles:
    """Rows encoded one by one in every dialect, so that it is plain what became of each."""

    def __init__(self, build: Build, dialect: str) -> None:
        self.build = build
        self.dialect = dialect
        self.encoders = {name: build.codec.encoder(name) for name in build.codec.DIALECTS}
        self.scanners = {name: build.scanner(name) for name in build.codec.DIALECTS}
        self.encoded = dict.fromkeys(build.codec.DIALECTS, b"")
        self.again = build.codec.encoder(dialect)
        self.table = build.wire.FrameTable(16)

    def check(self, table: Any, rows: list[Row]) -> None:
        """Encode each row alone, and read it back."""
        for name, encoder in self.encoders.items():
            for k, row in enumerate(rows):
                frames = bytes(encoder.encode(table, [k]))
                self.encoded[name] += frames
                if frames:
                    self._read_back(name, frames, row)

    def finish(self, outcome: Outcome) -> None:
        """Row by row gave what all rows at once gave; and a broker's frames can be read too."""
        for name, frames in self.encoded.items():
            _same(f"frames of {name}, row by row", frames, outcome.encoded[name])
        answer = outcome.error[3] if outcome.error else b""
        # The answers of TMQ and MQTT say another version than their own.
        if answer and not self.dialect.startswith(("tmq", "mqtt")):
            self.build.codec.scanner(self.dialect).scan(answer, self.table)
            _same("the answer's ops", [row["op"] for row in _rows(self.table, 0)], ["error"])
        for name in outcome.encoded.keys() - self.encoded.keys():
            scanner = self.build.scanner(name)
            rest = outcome.encoded[name]
            while rest:
                used = scanner.scan(rest, self.table)
                if not used:
                    raise Broken(f"{name} writes {rest!r}, and does not read it")
                rest = rest[used:]

    def _read_back(self, name: str, frames: bytes, row: Row) -> None:
        used = self.scanners[name].scan(frames, self.table)
        _same(f"the bytes of {frames!r} that {name} reads", used, len(frames))
        found = _rows(self.table, 0)
        if name.startswith("mqtt") and row["op"] in ("subscribe", "unsubscribe"):
            found = found[:1]  # the other filters of its packet are written with the first one
        if name == self.dialect:
            _same(f"{name}, read back", [self._kept(copy) for copy in found], [self._kept(row)])
            _same(f"{name}, written again", bytes(self.again.encode(self.table)), frames)
            return
        if name == "mfp-1" and len(found) == 2 and found[0]["op"] == "topic":
            found = found[1:]  # set for this message
        if len(found) != 1:
            raise Broken(f"one message of {self.dialect} is {len(found)} of {name}: {frames!r}")
        (copy,) = found
        ops = {row["op"], copy["op"]}
        if len(ops) > 1 and not ops <= _PUBLISHED and not ops <= _REQUESTED:
            raise Broken(f"{row['op']} becomes {copy['op']} in {name}: {frames!r}")
        if ops & _PUBLISHED:
            _same(f"the payload in {name}", copy["payload"], row["payload"])
            if row["op"] != "direct":  # it has a target, and an address only where one is implied
                _same(f"the address in {name}", copy["address"], row["address"])

    def _kept(self, row: Row) -> Row:
        """What writing a row again must keep; parts of a boson-text sequence become whole."""
        more = self.build.message.Flag.MORE
        return {name: row[name] for name in _FIELDS} | {"flags": row["flags"] & ~more}


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        raise Broken(f"{what}:\n  {one!r}\n  is not\n  {other!r}")
