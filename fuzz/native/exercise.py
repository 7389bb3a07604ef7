"""What the native fuzzer does with an input: everything that compiled code does, and checks that
cost little beside it.

The promises are those of `fuzz/invariant.py`, which runs in full on one small input in 64. It takes
an object per message, so on all the others only what can be told from whole tables is checked: rows
and errors do not depend on how the bytes are cut, and what was encoded can be read. The sanitizers
do the rest. What is done to an input is chosen by its checksum, so an input repeats exactly.
"""

from __future__ import annotations

import importlib
import random
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz.builds import Build
from fuzz.invariant import LIMITS, LONGEST, Broken, check, check_detection
from fuzz.native.framed import Framed

#: Runs one input; returns how many of its bytes were read without a fault.
Exercise = Callable[[memoryview], int]

_SMALL = 2048  # bytes of an input that is also looked at message by message
_PIECES = 8


def exact(data: bytes | bytearray | memoryview) -> memoryview:
    """A copy in memory of exactly its size, so that a byte read beyond its end is reported."""
    if not len(data):
        return memoryview(b"")
    cells = array("B", b"\0") * len(data)
    memoryview(cells)[:] = data
    return memoryview(cells)


class NativeBuild(Build):
    """Compiled kernels whose inputs are exact copies."""

    def strict(self, data: bytes) -> Any:
        """The same bytes, in memory of exactly their size."""
        return exact(data)


@dataclass
class _Reading:
    """A stream on its way through a scanner."""

    rows: int = 0
    used: int = 0
    fault: tuple[int, str] | None = None
    context: bytes = b""  # what frames have set for later ones


@dataclass
class _Written:
    """What an encoder has made of a stream so far."""

    name: str  # of the encoder, as Build has it
    encoder: Any
    frames: bytearray = field(default_factory=bytearray)


class Kernels:
    """The kernels of one build, and tables that are used again."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.codec = build.codec
        self.wire = build.wire
        self.default = build.message.Limits()
        self.small = build.message.Limits(**LIMITS)
        self.encoders = build.encoder_names()
        self._tables: dict[tuple[str, int], Any] = {}

    def written(self, name: str) -> _Written:
        """A new encoder, by one of the names in `encoders`."""
        return _Written(name, self.build.encoder(name))

    def table(self, use: str, rows: int = 1024) -> Any:
        """A table for one use: one that changes its dialect is cleared, which takes long."""
        if (use, rows) not in self._tables:
            self._tables[use, rows] = self.wire.FrameTable(rows)
        return self._tables[use, rows]

    def table_for(self, dialect: str, size: int, chance: random.Random) -> Any:
        """A table for an input of this size; a short one is read a few rows at a time."""
        if size <= 512:
            return self.table(dialect, chance.choice((1, 7, 64)))
        return self.table(dialect, 64 if size <= 8192 else 1024)

    def scan(
        self,
        dialect: str,
        limits: Any,
        table: Any,
        buffers: Callable[[_Reading, Any], Iterator[Any]],
    ) -> tuple[_Reading, Iterator[Any]]:
        """Read a stream; the second value gives each table that was filled."""
        return self.read(self.codec.scanner(dialect, limits), table, buffers)

    def read(
        self, scanner: Any, table: Any, buffers: Callable[[_Reading, Any], Iterator[Any]]
    ) -> tuple[_Reading, Iterator[Any]]:
        """Read a stream with a scanner; the second value gives each table that was filled."""
        reading = _Reading()
        return reading, self._read(scanner, table, reading, buffers)

    def _read(self, scanner: Any, table: Any, reading: _Reading, buffers: Any) -> Iterator[Any]:
        try:
            for scan, data in buffers(reading, scanner):
                before = reading.used
                while True:
                    at = reading.used - before
                    used = scan(data[at:], table)
                    reading.rows += table.count
                    if table.count:
                        context = scanner.context_before(table, table.count, reading.context)
                        reading.context = context
                        yield table
                    reading.used += used
                    if not scanner.again:
                        break
                    if not used:
                        raise Broken(f"byte {reading.used}: again, but nothing came")
                if scanner.offset != reading.used:
                    raise Broken(f"byte {reading.used}: the scanner is at {scanner.offset}")
        except self.build.errors.ProtocolError as error:
            reading.fault = (error.offset, error.reason)
        finally:
            table.release()


def _whole(data: memoryview) -> Callable[[_Reading, Any], Iterator[Any]]:
    """All bytes at once."""

    def buffers(reading: _Reading, scanner: Any) -> Iterator[Any]:
        yield scanner.scan, data
        yield scanner.finish, data[reading.used :]

    return buffers


def _cut(data: memoryview, chance: random.Random) -> Callable[[_Reading, Any], Iterator[Any]]:
    """A few bytes more each time, in memory that ends where they end."""
    most = max(1, 2 * len(data) // _PIECES)

    def buffers(reading: _Reading, scanner: Any) -> Iterator[Any]:
        stop = 0
        while stop < len(data):
            stop = min(len(data), stop + chance.randint(1, most))
            if stop - reading.used >= scanner.need:
                yield scanner.scan, exact(data[reading.used : stop])
        yield scanner.finish, exact(data[reading.used :])

    return buffers


class Stream:
    """An input is a stream of one dialect, as it stands on the wire."""

    def __init__(self, kernels: Kernels, dialect: str, *, whole: bool = True) -> None:
        self.kernels = kernels
        self.dialect = dialect
        self.whole = whole  # the promises of `fuzz/invariant.py` are for this dialect, too

    def __call__(self, data: memoryview) -> int:
        """Read it, write it in other dialects, to Arrow and back, and read it cut in pieces."""
        kernels, chance = self.kernels, random.Random(zlib.crc32(data))
        small = len(data) <= _SMALL  # of a large one less is done, so that more of them are read
        limits = kernels.small if chance.random() < (0.5 if small else 0.1) else kernels.default
        table = kernels.table_for(self.dialect, len(data), chance)
        writing = [kernels.written(name) for name in chance.sample(kernels.encoders, 1 + small)]
        arrow = chance.random() < (0.5 if small else 0.1)
        objects = small and chance.random() < 0.1
        reading, filled = kernels.scan(self.dialect, limits, table, _whole(data))
        for rows in filled:
            if max(memoryview(rows.address_len)[: rows.count]) <= LONGEST:
                for written in writing:
                    written.frames += written.encoder.encode(rows)
            if arrow:
                self._through_arrow(rows, chance)
            if objects:
                for row, message in enumerate(rows.messages()):
                    if len(message.payload) != rows.payload_len[row]:
                        raise Broken(f"a payload of {len(message.payload)} bytes in row {row}")
        for written in writing:
            self._read_back(written)
        if chance.random() < (0.5 if small else 0.2):
            self._in_pieces(data, chance, limits, table, reading)
        if self.whole and small and chance.random() < 1 / 64:
            check(kernels.build, self.dialect, bytes(data))
        return reading.used

    def write_again(self, data: memoryview, chance: random.Random) -> None:
        """Write a stream in its own dialect, and read that."""
        kernels = self.kernels
        table = kernels.table_for(self.dialect, len(data), chance)
        written = _Written(self.dialect, kernels.codec.encoder(self.dialect))
        _, filled = kernels.scan(self.dialect, kernels.default, table, _whole(data))
        for rows in filled:
            written.frames += written.encoder.encode(rows)
        self._read_back(written)

    def _through_arrow(self, table: Any, chance: random.Random) -> None:
        kernels = self.kernels
        arrow, back = kernels.build.arrow, kernels.table("Arrow")
        some = None
        if chance.random() < 0.3:
            some = array("i", sorted(chance.choices(range(table.count), k=min(9, table.count))))
        batch = arrow.to_arrow(table, timestamp=1, offset=2, rows=some)
        batch.validate()
        skip = chance.randrange(batch.num_rows) if chance.random() < 0.3 else 0
        arrow.from_arrow(batch, back, skip)
        if back.count != batch.num_rows - skip:
            raise Broken(f"{back.count} rows of {batch.num_rows - skip} came back from Arrow")
        kernels.written(chance.choice(kernels.encoders)).encoder.encode(back)
        back.release()

    def _read_back(self, written: _Written) -> None:
        frames = exact(written.frames)
        table = self.kernels.table(f"{written.name} again")
        scanner = self.kernels.build.scanner(written.name)
        reading, filled = self.kernels.read(scanner, table, _whole(frames))
        for _ in filled:
            pass
        if reading.fault or reading.used != len(frames):
            raise Broken(f"{written.name} writes {bytes(frames)!r}, and reads {reading}")

    def _in_pieces(
        self, data: memoryview, chance: random.Random, limits: Any, table: Any, whole: _Reading
    ) -> None:
        reading, filled = self.kernels.scan(self.dialect, limits, table, _cut(data, chance))
        for _ in filled:
            pass
        if (reading.rows, reading.fault) != (whole.rows, whole.fault):
            raise Broken(f"in pieces: {reading}\n  whole: {whole}")


class Tables:
    """An input is a byte that chooses a dialect, and a stream; what comes of its tables is used."""

    def __init__(self, kernels: Kernels, use: Callable[[Any, random.Random], None]) -> None:
        self.kernels = kernels
        self.use = use

    def __call__(self, data: memoryview) -> int:
        """Read the stream, and use each table."""
        if not data:
            return 0
        chance = random.Random(zlib.crc32(data))
        dialects = list(self.kernels.codec.DIALECTS)
        dialect = dialects[data[0] % len(dialects)]
        table = self.kernels.table_for(dialect, len(data), chance)
        reading, filled = self.kernels.scan(dialect, self.kernels.default, table, _whole(data[1:]))
        for rows in filled:
            self.use(rows, chance)
        return 1 + reading.used


class Routing:
    """Rows to audiences, as the broker's node does it."""

    def __init__(self) -> None:
        self.route = importlib.import_module("wirelake.broker.route")

    def __call__(self, table: Any, chance: random.Random) -> None:
        """Route every run of plain publishes of a table."""
        routes = self.route.Routes(chance.randrange(1 << 31))
        changed = self.route.Changed()
        sender = chance.choice((b"", b"client-1"))
        start = 0
        while start < table.count:
            end = self.route.plain_run(table, start, sender)
            if end > start:
                self._run(routes, changed, table, start, end)
                if chance.random() < 0.1:
                    routes.forget(table.address(chance.randrange(start, end)))
                if chance.random() < 0.1:
                    levels = table.address(chance.randrange(start, end)).split(b"/")
                    changed.note(b"/".join([*levels[: chance.randrange(len(levels) + 1)], b"#"]))
            start = max(end, start + 1)
        self._sizes(table, chance)

    def _sizes(self, table: Any, chance: random.Random) -> None:
        """What rows take as messages of a queue."""
        route = self.route
        table.read_headers()
        rows = array("i", chance.choices(range(table.count), k=7))
        for row, size in zip(rows, route.message_sizes(table, rows, 1, 1, 8), strict=True):
            least = 1 + table.payload_len[row] + (table.id_len[row] or 2) + table.headers_len[row]
            if size < least:
                raise Broken(f"row {row} takes {size} bytes, of which {least} are known")
        plain = all(route.plain_headers(table, row) and not table.priority[row] for row in rows)
        if route.plain_messages(table, rows, True) != plain:
            raise Broken(f"rows {rows} are plain, or not: {plain}")

    def _run(self, routes: Any, changed: Any, table: Any, start: int, end: int) -> None:
        route, at = self.route, start
        while (at := routes.assign(table, at, end, changed)) < end:
            address = table.address(at)
            routes.add(address, zlib.crc32(address) % 5, changed)
        for row in range(start, min(end, start + 32)):
            if routes.assigned[row] != zlib.crc32(table.address(row)) % 5:
                raise Broken(f"row {row} has audience {routes.assigned[row]}")
        groups = routes.groups(start, end)
        if sorted(row for rows in groups.values() for row in rows) != list(range(start, end)):
            raise Broken(f"rows {start} to {end} are grouped as {groups}")
        sole = routes.sole(start, end)
        if sole != (next(iter(groups)) if len(groups) == 1 else route.MIXED):
            raise Broken(f"the audience of all rows is {sole}, of each {groups}")
        for rows in groups.values():
            frames = b"".join(table.frame(row) for row in rows)
            if route.gather(table, rows) != frames:
                raise Broken(f"other frames were gathered than those of {rows}")
        asking = route.wanting_ack(table, range(start, end))
        if bool(len(asking)) != route.wants_ack(table, start, end):
            raise Broken(f"{asking} want an answer, or none does")
        frames = b"".join(table.frame(row) for row in range(start, end))
        if route.adjacent(table, start, end) not in (frames, b""):
            raise Broken(f"rows {start} to {end} have other frames than each of them")


class Storing:
    """Rows to batches of the log, in Arrow's stream format, and read by pyarrow."""

    def __init__(self) -> None:
        self.batch = importlib.import_module("wirelake.journal.batch")
        self.stream = importlib.import_module("wirelake.journal.arrow_stream")

    def __call__(self, table: Any, chance: random.Random) -> None:
        """Store a table twice: as it is, and some of its rows with a time each."""
        rows = self.batch.Rows(chance.choice((1, 3, 40)), seed=chance.randrange(1 << 31))
        rows.append(table, None, 5, chance.choice((b"", b"client-1")))
        some = array("i", chance.choices(range(table.count), k=min(50, table.count)))
        times = array("q", [chance.randrange(1 << 50) for _ in some])
        rows.append(table, some, times, b"")
        payload = sum(table.payload_len[: table.count]) + sum(table.payload_len[k] for k in some)
        count = stored = 0
        compression = chance.choice(("none", "none", "lz4", "zstd"))
        for made in rows.take().batches(compression):
            batch = self.stream.decode(made.ipc)
            batch.validate(full=True)
            count += batch.num_rows
            stored += sum(map(len, batch.column("payload").to_pylist()))
        if (count, stored) != (table.count + len(some), payload):
            raise Broken(f"{count} rows, {stored} bytes, of {table.count + len(some)}, {payload}")


class Stamping:
    """Rows to frames for several receivers, with each receiver's own bits or numbers in them."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.codec = importlib.import_module("wirelake.wire.codec")

    def __call__(self, table: Any, chance: random.Random) -> None:
        """Encode a run of rows once, and stamp it as a copy and in place."""
        start = chance.randrange(table.count)
        rows = range(start, chance.randint(start, table.count))
        encoder = self.kernels.build.codec.encoder(
            chance.choice(list(self.kernels.codec.DIALECTS)), client=False
        )
        encoder.origin = chance.choice((b"", b"client-1"))
        frames = encoder.encode(table, rows)
        places = array("I", encoder.marks())
        places.byteswap()
        if len(places) > len(rows) or any(place >= len(frames) for place in places):
            raise Broken(f"{len(frames)} bytes of {len(rows)} rows are marked at {places}")
        self._stamp(frames, list(places), chance)
        # Marks that no encoder makes: outside of the frames, twice the same, on the last byte.
        wild = [chance.choice((0, chance.randrange(1 << 32))) for _ in range(4)]
        wild += [chance.randrange(len(frames) + 2) for _ in range(4)]
        self._stamp(frames, chance.sample(wild, chance.randrange(len(wild))), chance)

    def _stamp(self, frames: memoryview, places: list[int], chance: random.Random) -> None:
        marks = exact(b"".join(place.to_bytes(4, "big") for place in places))
        numbers = [chance.randrange(1 << 16) for _ in places]
        bits = 1 << chance.randrange(8)
        by_bits, by_numbers = bytearray(frames), bytearray(frames)
        for place, number in zip(places, numbers, strict=True):
            if place < len(frames):
                by_bits[place] |= bits
            if place + 1 < len(frames):
                by_numbers[place : place + 2] = number.to_bytes(2, "big")
        for stamp, given, expected, reach in (
            (self.codec.stamp_bits, bits, by_bits, 0),
            (self.codec.stamp_numbers, numbers, by_numbers, 1),
        ):
            outside = any(place + reach >= len(frames) for place in places)
            for shared in (True, False):
                mine = exact(frames) if frames else memoryview(bytearray())
                try:
                    stamped = stamp(mine, marks, given, shared=shared)
                except IndexError:
                    if not outside:
                        raise
                    continue
                if outside or stamped != expected:
                    raise Broken(f"{places} in {len(frames)} bytes: {stamp.__name__}, {shared=}")
                if shared and mine != frames:
                    raise Broken(f"{stamp.__name__} changed frames that are shared")


class Naming:
    """An input is strings, each behind a byte with its length; a set numbers them."""

    def __init__(self, kernels: Kernels) -> None:
        self.names = importlib.import_module("wirelake.wire.names")

    def __call__(self, data: memoryview) -> int:
        """Add every string, then look for each and for its beginning; clear, and do it again."""
        chance = random.Random(zlib.crc32(data))
        names = self.names.Names(chance.randrange(1 << 32), chance.choice((1, 8, 64)))
        strings = []
        at = 0
        while at < len(data):
            # Few lengths and few letters, so that many are equal, or share a slot.
            size = data[at] % 6
            strings.append(bytes(byte & 3 for byte in data[at + 1 : at + 1 + size]))
            at += 1 + size
        for _ in range(2):
            model: dict[bytes, int] = {}
            for string in strings:
                if names.add_bytes(string) != model.setdefault(string, len(model)):
                    raise Broken(f"{string!r} is not number {model[string]}")
            for string in strings:
                for one in (string, string[:-1], string + b"x"):
                    if names.find_bytes(one) != model.get(one, -1):
                        raise Broken(f"{one!r} is not found as {model.get(one)}")
            if len(names) != len(model):
                raise Broken(f"{len(names)} strings, not {len(model)}")
            names.clear()
        return len(data)


class Arrow:
    """An input is an Arrow stream that somebody posts."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.rows = importlib.import_module("wirelake.http.rows")
        self.table = kernels.wire.FrameTable(self.rows.CHUNK)
        self.storing = Storing()

    def __call__(self, data: memoryview) -> int:
        """Publish its rows, if they are accepted."""
        chance = random.Random(zlib.crc32(data))
        try:
            rows = self.rows.read_rows(bytes(data), self.kernels.default)
        except self.kernels.build.errors.RefusedError:
            return 0
        for batch in rows.batches:
            self.kernels.build.arrow.from_arrow(batch, self.table)
            name = chance.choice(self.kernels.encoders)
            self.kernels.written(name).encoder.encode(self.table)
            self.storing(self.table, chance)
            self.table.release()
        return len(data)


class Cbor:
    """An input is CBOR, as Kobold's protocols 2 and 3 carry it."""

    def __init__(self, kernels: Kernels) -> None:
        self.streams = {name: Stream(kernels, name) for name in ("kobold-2", "kobold-3")}

    def __call__(self, data: memoryview) -> int:
        """Read it as a whole frame, and as the metadata of one."""
        third = b"PUB a\r\n%b\r\nx\r\n" % bytes(data)
        frames = (("kobold-2", bytes(data)), ("kobold-3", third))
        read = [
            self.streams[name](exact(len(body).to_bytes(4, "big") + body)) for name, body in frames
        ]
        return len(data) if any(read) else 0


class Documents:
    """An input is a payload, a JSON object or a CBOR map; its two halves are two more."""

    def __init__(self, kernels: Kernels) -> None:
        self.columns = importlib.import_module("wirelake.wire.document_columns")

    def __call__(self, data: memoryview) -> int:
        """Read all of it into columns."""
        names = ("whole", "float", "yes", "text", "bytes")
        fields = [
            (name.encode(), kind, -(2**31), 2**31 - 1, name == "yes" and len(data) % 2 == 0)
            for kind, name in enumerate(names)
        ]
        half, size = len(data) // 2, len(data)
        body = exact(bytes(data) + bytes(data))
        offsets = memoryview(array("i", [0, half, size, 2 * size]))
        plain = 0
        for kernel in (self.columns.CborColumns, self.columns.JsonColumns):
            columns = kernel(fields)
            odd = columns.read(body, offsets, 0, 3)
            if odd != sum(columns.odd):
                raise Broken(f"{odd} payloads are odd, and {sum(columns.odd)} are marked")
            for number in range(len(fields)):
                for row in range(3):
                    if columns.odd[row] and columns.marks[3 * number + row]:
                        raise Broken(f"row {row} is odd, and has a value")
            plain += 3 - odd
        return size if plain else 0


class Detection:
    """An input is how a stream begins."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def __call__(self, data: memoryview) -> int:
        """Tell the dialect from every prefix."""
        check_detection(self.kernels.build, bytes(data[:_SMALL]))
        return min(len(data), _SMALL)


#: The targets that are no dialect.
OTHERS: dict[str, Callable[[Kernels], Exercise]] = {
    "cbor": Cbor,
    "documents": Documents,
    "detect": Detection,
    "route": lambda kernels: Tables(kernels, Routing()),
    "batch": lambda kernels: Tables(kernels, Storing()),
    "stamp": lambda kernels: Tables(kernels, Stamping(kernels)),
    "names": Naming,
    "arrow": Arrow,
    "framed": lambda kernels: Framed(kernels, Stream),
}
#: Those of them whose inputs are a byte that chooses a dialect, and a stream of it.
OF_TABLES = ("route", "batch", "stamp")


def exercise(kernels: Kernels, target: str) -> Exercise:
    """What to do with the inputs of a target: a dialect, or one of `OTHERS`."""
    if target in OTHERS:
        return OTHERS[target](kernels)
    if target in kernels.codec.DIALECTS:
        return Stream(kernels, target)
    raise ValueError(f"no target {target}; there are {', '.join(targets(kernels.codec))}")


def targets(codec: Any) -> list[str]:
    """The names of all targets: every dialect there is, and the others."""
    return [*codec.DIALECTS, *OTHERS]
