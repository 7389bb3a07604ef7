"""Files of packets, written by hand: TCP over IPv4 or IPv6, in pcap or pcapng."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass

SYN, ACK = 0x02, 0x10
ETHERNET = 1
START = 1_700_000_000_000_000  # µs; every packet comes a millisecond later


@dataclass(frozen=True)
class Side:
    """One end of a connection."""

    address: str
    port: int


class Wire:
    """Two ends; packets are made in any order and written in the order of the list."""

    def __init__(
        self,
        server: int,
        *,
        client: str = "10.0.0.1",
        host: str = "10.0.0.2",
        port: int = 40000,
        start: int = 1000,
    ) -> None:
        self.ends = (Side(client, port), Side(host, server))
        self.next = [start, 9000]

    def open(self) -> list[bytes]:
        """The three packets that open a connection."""
        packets = [
            self.packet(0, b"", flags=SYN),
            self.packet(1, b"", flags=SYN | ACK),
        ]
        self.next = [(at + 1) & 0xFFFFFFFF for at in self.next]
        return [*packets, self.packet(0, b"")]

    def send(self, side: int, data: bytes) -> bytes:
        """The next segment of one side."""
        packet = self.packet(side, data)
        self.next[side] = (self.next[side] + len(data)) & 0xFFFFFFFF
        return packet

    def packet(self, side: int, data: bytes, *, at: int | None = None, flags: int = ACK) -> bytes:
        """A segment at any place, as an IP packet."""
        sequence = self.next[side] if at is None else at
        one, other = self.ends[side], self.ends[1 - side]
        segment = struct.pack(">HHIIBBHHH", one.port, other.port, sequence, 0, 0x50, flags, 0, 0, 0)
        segment += data
        source, target = ipaddress.ip_address(one.address), ipaddress.ip_address(other.address)
        if source.version == 6:
            # A header of options first, as there may be.
            options = struct.pack(">BB6x", 6, 0)
            head = struct.pack(">IHBB", 0x60000000, len(segment) + 8, 0, 64)
            return head + source.packed + target.packed + options + segment
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, 6, 0)
        return head + source.packed + target.packed + segment


def framed(packet: bytes, link: int) -> bytes:
    """An IP packet as a link of this type carries it."""
    kind = 0x86DD if packet[0] >> 4 == 6 else 0x0800
    if link == 1:
        return bytes(12) + struct.pack(">HHH", 0x8100, 7, kind) + packet + bytes(6)  # padded
    heads = {
        0: struct.pack("<I", 2),
        101: b"",
        108: struct.pack(">I", 2),
        113: bytes(14) + struct.pack(">H", kind),
        276: struct.pack(">H", kind) + bytes(18),
    }
    return heads[link] + packet


def pcap(
    packets: Iterable[bytes], *, link: int = ETHERNET, order: str = "<", nano: bool = False
) -> bytes:
    """A pcap file."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = bytearray(struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link))
    for number, packet in enumerate(packets):
        seconds, fraction = divmod(START + 1000 * number, 1_000_000)
        data = framed(packet, link)
        fraction = fraction * 1000 if nano else fraction
        out += struct.pack(order + "IIII", seconds, fraction, len(data), len(data)) + data
    return bytes(out)


def pcapng(packets: Iterable[bytes], *, link: int = ETHERNET, order: str = "<") -> bytes:
    """A pcapng file, with times in nanoseconds."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + size + body + size

    out = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    resolution = struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0)
    out += block(1, struct.pack(order + "HHI", link, 0, 65535) + resolution)
    out += block(4, b"names, which nobody reads")
    for number, packet in enumerate(packets):
        time = (START + 1000 * number) * 1000
        data = framed(packet, link)
        out += block(
            6,
            struct.pack(order + "5I", 0, time >> 32, time & 0xFFFFFFFF, len(data), len(data))
            + data,
        )
    return out
