"""pcap and pcapng files to TCP connections, put together as their receivers saw them.

Packets are walked once; nothing is copied. A direction of a connection is a list of segments: where
in the file its bytes are, at which place of the stream, when. At the end segments are put in order
of their place; bytes that came twice are taken from the segment that begins first; what nobody
captured is a gap, and a new *section* begins behind it. A byte's time is when it could be read:
that of the latest segment up to it.

Read are Ethernet (with VLAN tags), Linux cooked captures, loopback and raw IP; IPv4 and IPv6. What
cannot be put together (IP fragments, other link types) is counted and reported once for each kind.
"""

from __future__ import annotations

import ipaddress
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1000),
}  # the byte order, and by what a fraction is divided to be microseconds
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
_TIME_RESOLUTION, _TIME_OFFSET = 9, 14

_NULL, _ETHERNET, _LOOP, _COOKED, _COOKED_2 = 0, 1, 108, 113, 276
_RAW = (12, 14, 101, 228, 229)
_IPV4, _IPV6, _VLANS = 0x0800, 0x86DD, (0x8100, 0x88A8, 0x9100)
_TCP = 6
_OPTION_HEADERS = (0, 43, 60)  # of IPv6, with a length in units of eight bytes
_AUTHENTICATION, _FRAGMENT = 51, 44
_SYN, _ACK = 0x02, 0x10
_NEVER = 253_402_300_800_000_000  # the year 10000, µs: no such time is true


@dataclass(frozen=True)
class Packet:
    """Where a captured packet is, what it begins with, and when it came (µs)."""

    place: int
    end: int
    link: int
    time: int


@dataclass(frozen=True)
class Section:
    """A run of bytes: pieces of the file as (place, size, time), and the gap before it."""

    missing: int
    cells: array[int]


class Direction:
    """One direction of a connection: segments as they come, then sections."""

    def __init__(self) -> None:
        self.begin: int | None = None  # the place of the first byte, where a SYN told it
        self._segments = array("q")  # place in the stream, place in the file, size, time
        self._top: int | None = (
            None  # the place behind the last byte seen; places go beyond 32 bits
        )
        self._in_order = True

    def add(self, sequence: int, syn: bool, place: int, size: int, time: int) -> None:
        """A segment."""
        at = sequence
        if self._top is not None:
            ahead = (sequence - self._top) & 0xFFFFFFFF
            at = self._top + (ahead if ahead < 1 << 31 else ahead - (1 << 32))
        if syn:
            at += 1
            self.begin = at
        if size:
            self._segments.extend((at, place, size, time))
            self._in_order = self._in_order and (self._top is None or at >= self._top)
        self._top = at + size if self._top is None else max(self._top, at + size)

    def begins_anew(self, sequence: int) -> bool:
        """Does a SYN of this number belong to another connection than what came before?"""
        if self.begin is None:
            return self._top is not None
        return (self.begin - 1) & 0xFFFFFFFF != sequence

    def sections(self) -> list[Section]:
        """Its bytes, in order, each once."""
        cells = self._segments
        rows = zip(cells[0::4], cells[1::4], cells[2::4], cells[3::4], strict=True)
        if not self._in_order:
            rows = iter(sorted(rows, key=lambda row: row[0]))  # type: ignore[assignment]  # as good
        sections: list[Section] = []
        end, latest = self.begin, 0
        for at, place, size, time in rows:
            latest = max(latest, time)
            end = at if end is None else end
            known = max(0, end - at)
            if known >= size:
                continue
            if at > end or not sections:
                sections.append(Section(max(0, at - end), array("q")))
            sections[-1].cells.extend((place + known, size - known, latest))
            end = at + size
        return sections


@dataclass
class Connection:
    """Two directions; the client, where it is known, is the one that sent the first SYN."""

    ends: tuple[tuple[bytes, int], tuple[bytes, int]]
    place: int  # of its first packet
    client: int | None = None
    directions: tuple[Direction, Direction] = field(
        default_factory=lambda: (Direction(), Direction())
    )

    def way(self, side: int) -> str:
        """A direction, for people: from where to where."""
        return " to ".join(
            f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
            for ip, port in (
                (ipaddress.ip_address(self.ends[k][0]), self.ends[k][1]) for k in (side, 1 - side)
            )
        )


@dataclass
class Traffic:
    """The connections of a file, and what could not be read, by reason: where first, how many."""

    connections: list[Connection] = field(default_factory=list)
    left_out: dict[str, tuple[int, int]] = field(default_factory=dict)

    def leave_out(self, reason: str, place: int) -> None:
        """Count what is not read."""
        first, count = self.left_out.get(reason, (place, 0))
        self.left_out[reason] = first, count + 1


def is_pcap(data: memoryview) -> bool:
    """Is this a file of packets?"""
    magic = bytes(data[:4])
    return magic in _PCAP or magic == _PCAPNG


def traffic(data: memoryview) -> Traffic:
    """The TCP connections of a pcap or pcapng file, in the order of their first packets."""
    found = Traffic()
    live: dict[tuple[tuple[bytes, int], ...], Connection] = {}
    packets = _pcapng(data, found) if bytes(data[:4]) == _PCAPNG else _pcap(data, found)
    for packet in packets:
        try:
            segment = _tcp(data, packet, found)
        except struct.error:
            continue  # too short for its headers, so it has no bytes for us
        if segment is None:
            continue
        source, target, sequence, flags, place, size = segment
        time = packet.time if 0 <= packet.time < _NEVER else 0
        side = 0 if source <= target else 1
        ends = (source, target) if side == 0 else (target, source)
        connection = live.get(ends)
        opens = flags & (_SYN | _ACK) == _SYN
        if connection is None or (opens and connection.directions[side].begins_anew(sequence)):
            connection = live[ends] = Connection(ends, packet.place)
            found.connections.append(connection)
        if opens:
            connection.client = side
        connection.directions[side].add(sequence, bool(flags & _SYN), place, size, time)
    return found


def _pcap(data: memoryview, found: Traffic) -> Iterator[Packet]:
    order, divisor = _PCAP[bytes(data[:4])]
    if len(data) < 24:
        found.leave_out("the file ends inside its header", 0)
        return
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    record = struct.Struct(order + "IIII")
    at = 24
    while at < len(data):
        if len(data) - at < 16:
            found.leave_out("the file ends inside a packet", at)
            return
        seconds, fraction, size, _ = record.unpack_from(data, at)
        end = at + 16 + size
        if end > len(data):
            found.leave_out("the file ends inside a packet", at)
            return
        yield Packet(at + 16, end, link, seconds * 1_000_000 + fraction // divisor)
        at = end


def _pcapng(data: memoryview, found: Traffic) -> Iterator[Packet]:
    order = "<"
    interfaces: list[tuple[int, int, int]] = []  # link type, ticks a second, offset in seconds
    at = 0
    while at < len(data):
        if len(data) - at < 12:
            found.leave_out("the file ends inside a block", at)
            return
        if bytes(data[at : at + 4]) == _PCAPNG:
            if bytes(data[at + 8 : at + 12]) not in _BYTE_ORDERS:
                found.leave_out(
                    "a section of no known byte order; nothing is read from here on", at
                )
                return
            order = _BYTE_ORDERS[bytes(data[at + 8 : at + 12])]
            interfaces = []
        kind, size = struct.unpack_from(order + "II", data, at)
        if size < 12 or size % 4 or at + size > len(data):
            found.leave_out("the file ends inside a block, or the block's length is wrong", at)
            return
        body, stop = at + 8, at + size - 4
        if kind == _INTERFACE and stop - body >= 8:
            interfaces.append(_interface(data, order, body, stop))
        elif kind == _ENHANCED and stop - body >= 20:
            number, high, low, length, _ = struct.unpack_from(order + "5I", data, body)
            if number < len(interfaces) and body + 20 + length <= stop:
                link, ticks, offset = interfaces[number]
                time = offset * 1_000_000 + ((high << 32) | low) * 1_000_000 // ticks
                yield Packet(body + 20, body + 20 + length, link, time)
            else:
                found.leave_out("a packet of no interface, or longer than its block", at)
        elif kind == _SIMPLE and stop - body >= 4 and interfaces:
            (length,) = struct.unpack_from(order + "I", data, body)
            yield Packet(body + 4, min(stop, body + 4 + length), interfaces[0][0], 0)
        at += size


def _interface(data: memoryview, order: str, body: int, stop: int) -> tuple[int, int, int]:
    """An interface's link type, ticks a second, and what is added to its times, in seconds."""
    (link,) = struct.unpack_from(order + "H", data, body)
    ticks, offset = 1_000_000, 0
    at = body + 8
    while stop - at >= 4:
        code, size = struct.unpack_from(order + "HH", data, at)
        if code == 0 or at + 4 + size > stop:
            break
        if code == _TIME_RESOLUTION and size == 1:
            power = data[at + 4]
            ticks = 2 ** (power & 0x7F) if power & 0x80 else 10**power
        elif code == _TIME_OFFSET and size == 8:
            (offset,) = struct.unpack_from(order + "q", data, at + 4)
        at += 4 + (size + 3 & ~3)
    return link, ticks, offset


Segment = tuple[tuple[bytes, int], tuple[bytes, int], int, int, int, int]


def _tcp(data: memoryview, packet: Packet, found: Traffic) -> Segment | None:
    """Source, target, sequence number, flags, place and size of the bytes of a TCP segment."""
    at, end, link = packet.place, packet.end, packet.link
    if link == _ETHERNET:
        at += 12
        (kind,) = struct.unpack_from(">H", data, at)
        while kind in _VLANS:
            at += 4
            (kind,) = struct.unpack_from(">H", data, at)
        at += 2
        if kind not in (_IPV4, _IPV6):
            return None
    elif link in (_NULL, _LOOP):
        at += 4
    elif link == _COOKED:
        at += 16
    elif link == _COOKED_2:
        at += 20
    elif link not in _RAW:
        found.leave_out(f"packets of link type {link}, which is not known", packet.place)
        return None
    if at >= end:
        return None
    version = data[at] >> 4
    if version == 4:
        size, fragment, protocol = struct.unpack_from(">2xH2xHxB", data, at)
        addresses = bytes(data[at + 12 : at + 16]), bytes(data[at + 16 : at + 20])
        # Where the card cuts segments, the length is written later, and may be 0 here.
        stop = min(end, at + size) if size else end
        at += (data[at] & 15) * 4
        fragmented = fragment & 0x3FFF != 0
    elif version == 6:
        size, protocol = struct.unpack_from(">4xHB", data, at)
        addresses = bytes(data[at + 8 : at + 24]), bytes(data[at + 24 : at + 40])
        stop = min(end, at + 40 + size) if size else end
        at += 40
        fragmented = False
        while protocol in _OPTION_HEADERS or protocol in (_AUTHENTICATION, _FRAGMENT):
            following, length = struct.unpack_from(">BB", data, at)
            fragmented = fragmented or protocol == _FRAGMENT
            if protocol == _FRAGMENT:
                length = 0
            at += 4 * (length + 2) if protocol == _AUTHENTICATION else 8 * (length + 1)
            protocol = following
    else:
        return None
    if protocol != _TCP:
        return None
    if fragmented:
        found.leave_out("IP fragments of TCP, which are not put together", packet.place)
        return None
    if stop - at < 20:
        return None
    from_port, to_port, sequence, header, flags = struct.unpack_from(">HHI4xBB", data, at)
    at += (header >> 4) * 4
    source, target = (addresses[0], from_port), (addresses[1], to_port)
    return source, target, sequence, flags, at, max(0, stop - at)
