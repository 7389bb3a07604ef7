"""Which connections of a capture are ours, what they speak, and where their messages are.

A connection's dialect is told from what its client sends first; the other direction speaks the
same. A direction that was captured from its first byte is read from there. Where that is not so (it
was joined midway, or bytes are missing from the capture), the scanner is tried at the beginning of
every segment: where two frames follow each other, or one ends with a segment, reading goes on. What
was set before, mfp's topic say, is taken to hold still. Every such place is reported, with what was
lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wirelake.dialects import AUTO, DIALECTS, default_ports, families
from wirelake.dialects.codec import detect
from wirelake.errors import ConfigError, ProtocolError
from wirelake.message import Op
from wirelake.spark.pcap import Connection, Direction, Section, traffic
from wirelake.spark.spans import Index, Pieces, State, index
from wirelake.wire import FrameTable

#: Where reading could go on is looked for in so many segments, in so many bytes of each.
_TRIES = 1000
_LOOK = 64 << 10
_ENOUGH = 64  # frames


def known_ports() -> dict[int, str | None]:
    """Return the family of each default port; None: the dialect is told from the first bytes."""
    return {port: None if name == AUTO else name for name, port in default_ports().items()}


@dataclass(frozen=True)
class Ports:
    """Which servers' ports are read, and the family that each of them speaks."""

    families: dict[int, str | None] = field(default_factory=known_ports)
    all: bool = False

    @staticmethod
    def parse(text: str) -> Ports:
        """Read `known`, `all`, or a list such as `7702,9000=kobold`."""
        if text in ("known", "all"):
            return Ports(all=text == "all")
        ports: dict[int, str | None] = {}
        for item in text.split(","):
            number, _, family = item.strip().partition("=")
            if not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
                raise ConfigError(
                    "--ports", f"{item!r} is no port; known, all, or 7702,9000=kobold"
                )
            if family and family not in families():
                raise ConfigError("--ports", f"no family {family!r}; {', '.join(families())}")
            ports[int(number)] = family or known_ports().get(int(number))
        return Ports(ports)

    def server(self, connection: Connection) -> int | None:
        """Which end of a connection is the server, if the connection is to be read."""
        client = connection.client
        for side in (0, 1) if client is None else (1 - client,):
            if connection.ends[side][1] in self.families:
                return side
        if not self.all:
            return None
        if client is not None:
            return 1 - client
        ports = [port for _, port in connection.ends]
        return ports.index(min(ports))


@dataclass(frozen=True)
class Fault:
    """Something that could not be read: where in the file, why, in which dialect."""

    place: int
    reason: str
    dialect: str = ""


@dataclass
class Found:
    """What is in a file: streams with their messages, and faults."""

    streams: list[Index] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def find_in_packets(data: memoryview, ports: Ports, dialect: str, step: int) -> Found:
    """Index a pcap or pcapng file."""
    found = Found()
    seen = traffic(data)
    for reason, (place, count) in seen.left_out.items():
        found.faults.append(Fault(place, f"{reason} ({count})" if count > 1 else reason))
    for connection in seen.connections:
        server = ports.server(connection)
        if server is not None:
            family = ports.families.get(connection.ends[server][1])
            _Conversation(data, connection, found, step).read(server, family, dialect)
    return found


class _Conversation:
    """One connection, while it is read."""

    def __init__(self, data: memoryview, connection: Connection, found: Found, step: int) -> None:
        self._data = data
        self._connection = connection
        self._found = found
        self._step = step

    def read(self, server: int, family: str | None, dialect: str) -> None:
        """Find the messages of both directions, the client's first."""
        sides = (1 - server, server)
        sections = {side: self._connection.directions[side].sections() for side in sides}
        if not any(sections.values()):
            return
        possible = [one.name for one in DIALECTS.of_family(family or AUTO)]
        client = self._connection.directions[sides[0]]
        if dialect:
            possible = [dialect]
        elif _is_from_its_beginning(client, sections[sides[0]]):
            try:
                told = detect(Pieces(self._data, sections[sides[0]][0].cells).window(0, 23), family)
                if told is None:
                    raise ProtocolError(family or "auto", 0, "too short to tell the dialect")
            except ProtocolError as error:
                self._report(sides[0], sections[sides[0]][0].cells[0], error.reason, error.dialect)
                return
            possible = [told]
        variant: str | None = None
        for side in sides:
            state = self._read_direction(side, sections[side], possible, variant)
            if state is not None:
                possible = [state.dialect]
                if DIALECTS[state.dialect].shares_variant:
                    variant = state.variant

    def _read_direction(
        self, side: int, sections: list[Section], possible: list[str], variant: str | None
    ) -> State | None:
        """Find the messages of one direction; return the state at its end, if it is known then.

        `variant` is the dialect's that the other direction has told, if it has.
        """
        whole = _is_from_its_beginning(self._connection.directions[side], sections)
        state = State(possible[0], variant=variant) if whole and len(possible) == 1 else None
        lost = 0
        for number, section in enumerate(sections):
            pieces = Pieces(self._data, section.cells)
            if number or state is None:
                why = "joined midway"
                if whole and not number:
                    why = "what its client sent first is not here"
                elif section.missing:
                    why = f"{section.missing} bytes are missing"
                if lost:
                    why += f", and with them the end of a frame of which {lost} are here"
                states = [State(name, begun=True, variant=variant) for name in possible]
                if state is not None:
                    states = [state]
                hit = _resume(pieces, states)
                if hit is None:
                    why += f"; no frame begins in the {pieces.size} bytes that follow"
                    self._report(side, section.cells[0], why, state.dialect if state else "")
                    lost = 0
                    continue
                start, state = hit
                skipped = f"; {start} bytes are skipped" if start else ""
                self._report(side, section.cells[0], why + skipped, state.dialect)
                pieces = Pieces(self._data, pieces.cut(start, pieces.size))
            assert state is not None
            torn = number < len(sections) - 1
            stream = index(pieces, state, self._step, torn=torn)
            self._found.streams.append(stream)
            state = stream.state
            if stream.fault is not None:
                left = (
                    pieces.size
                    - stream.end
                    + sum(sum(later.cells[1::3]) for later in sections[number + 1 :])
                )
                reason = f"{stream.fault.reason}; nothing is read of the last {left} bytes"
                self._report(side, pieces.place(stream.fault.offset), reason, state.dialect)
                break
            lost = pieces.size - stream.end if torn else 0
        return state

    def _report(self, side: int, place: int, reason: str, dialect: str) -> None:
        self._found.faults.append(Fault(place, f"{self._connection.way(side)}: {reason}", dialect))


def _is_from_its_beginning(direction: Direction, sections: list[Section]) -> bool:
    """Was a direction captured from its first byte on?"""
    return direction.begin is not None and bool(sections) and sections[0].missing == 0


def _resume(pieces: Pieces, states: list[State]) -> tuple[int, State] | None:
    """Where frames can be read again, and in which of these states: that with the most frames."""
    boundaries = set(pieces.starts)
    for start in pieces.starts[:-1][:_TRIES]:
        data = pieces.window(start, _LOOK)
        most, chosen = (0, 0), None
        for state in states:
            frames, used, payload = _frames(data, state)
            # Of two readings with as many frames, the one that explains more bytes: MQTT 5 with
            # empty properties reads as 3.1.1, too, with payloads that are a byte longer.
            if (frames, -payload) > most and (frames > 1 or start + used in boundaries):
                most, chosen = (frames, -payload), state
        if chosen is not None:
            return start, replace(chosen, begun=True)
    return None


def _frames(data: memoryview, state: State) -> tuple[int, int, int]:
    """Count the frames, at most a few, that data begins with, their bytes, and those of payloads.

    All are 0 where a fault follows.

    TMQ and mfp would take almost anything for a frame of some unknown kind.
    """
    table = FrameTable(_ENOUGH)
    reader = replace(state, begun=True).scanner()
    try:
        used = reader.scan(data, table)
        if reader.again and table.count < _ENOUGH:
            return 0, 0, 0
    except ProtocolError:
        return 0, 0, 0
    known = all(op != Op.UNKNOWN for op in memoryview(table.op)[: table.count])
    if not known:
        return 0, 0, 0
    return table.count, used, sum(memoryview(table.payload_len)[: table.count])
