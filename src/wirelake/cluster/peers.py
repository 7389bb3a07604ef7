"""Links between nodes: parcels of bytes in order, with credit, over messages that may be lost.

Core NATS delivers the messages of one sender in order, or not at all. It drops messages for a
reader that is too slow, and loses what was under way when a server dies. A `Channel` is one end of
the conversation of two nodes:

1. Each end has an id, chosen anew whenever the channel breaks. Every packet carries the ids of both
   ends. A packet for another id than the current one is answered by a greeting, and not used.
2. Data packets are numbered. A number that is not the next one breaks the channel: the parcels that
   are under way in either direction are lost, both ends know it, and it opens again by itself.
3. A *pulse* is sent now and then. It carries the number of the next data packet, so that the loss
   of the last ones is noticed too.
4. **Credit.** A sender begins no packet while `window` bytes are under way that the receiver has
   not used. Pulses carry the sum of the bytes used so far, so that a lost one does no harm.

A parcel is whatever one `send` was given; it may be larger than a packet, and comes out whole.

`Peers` runs two channels to every other member over NATS: one in which this node is the edge and
the other one the owner, and one the other way round. `PeerLink` is one as the broker sees it. There
are two, so that no node ever waits for another that waits for it: an owner may stop taking what
edges publish until they have taken what it delivers, and taking that depends on clients alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections import deque
from collections.abc import Callable, Collection
from enum import Enum, IntEnum
from typing import Protocol

from wirelake.cluster.bus import Bus
from wirelake.errors import RefusedError

log = logging.getLogger("wirelake.cluster")

#: Bytes under way between two nodes, in each direction.
WINDOW = 8 << 20
#: Bytes of data in a packet.
PACKET = 128 << 10
#: A parcel has at most this many bytes.
MAX_PARCEL = 128 << 20
#: Packets that are sent at once, before others have their turn.
BURST = 16

VERSION = 1

# version, kind, is it open / are there more parts, ids of sender and receiver, number, bytes used
_HEADER = struct.Struct("!BBBxQQQQ")


class Role(Enum):
    """What this node is in a conversation; the value is the last part of its subject."""

    EDGE = "up"
    OWNER = "down"

    @property
    def other(self) -> Role:
        """What the other end is."""
        return Role.OWNER if self is Role.EDGE else Role.EDGE


class _Kind(IntEnum):
    GREETING = 1
    DATA = 2
    PULSE = 3


class Channel:
    """One end of the conversation of two nodes. Packets go in and come out; it does no I/O."""

    def __init__(
        self,
        new_id: Callable[[], int],
        *,
        window: int = WINDOW,
        packet: int = PACKET,
        max_parcel: int = MAX_PARCEL,
    ) -> None:
        """`new_id` returns numbers of 64 bits that nobody has used before, and never 0."""
        self._new_id = new_id
        self._window = window
        self._packet = packet
        self._max_parcel = max_parcel
        #: How often it broke, and why it did the last time.
        self.breaks = 0
        self.reason = ""
        #: Bytes of parcels that went out since the beginning.
        self.moved = 0
        self._reset()

    def _reset(self) -> None:
        self.is_open = False
        self._id = self._new_id()
        self._peer = 0
        self._greets = True
        # Out: parcels that wait, and how much of the first has gone.
        self._waiting: deque[bytes | memoryview] = deque()
        self._gone = 0
        self.buffered = 0
        self._number = 0
        self._sent = 0
        self._used_there = 0
        # In: the next number, parts of a parcel that is not whole.
        self._expected = 0
        self._parts: list[bytes | memoryview] = []
        self._collected = 0
        self._came = 0
        self._ahead = 0  # bytes of it that counted as used already
        self._used = 0
        self._prepaid = 0  # bytes of parcels that counted as used before they came out
        self._told = 0
        self._pulses = False

    def _break(self, reason: str) -> None:
        if self.is_open:
            self.breaks += 1
            self.reason = reason
        self._reset()

    def cut(self, reason: str) -> None:
        """Break the channel; both ends lose what is under way, and it opens again."""
        self._break(reason)

    @property
    def credit(self) -> int:
        """The bytes that may still be sent before the other end has used some."""
        return self._window - (self._sent - self._used_there)

    def send(self, parcel: bytes | memoryview) -> None:
        """Send a parcel after all that was sent before; it is dropped while the channel is closed.

        Raises RefusedError where it is too large.
        """
        if len(parcel) > self._max_parcel:
            text = f"{len(parcel)} bytes, more than the {self._max_parcel} of a parcel"
            raise RefusedError("too_large", text)
        if self.is_open and len(parcel):
            self._waiting.append(parcel)
            self.buffered += len(parcel)

    def used(self, size: int) -> None:
        """This many bytes of the parcels that came out are used: the sender may send more."""
        prepaid = min(size, self._prepaid)
        self._prepaid -= prepaid
        self._count_used(size - prepaid)

    def _count_used(self, size: int) -> None:
        self._used += size
        if self._used - self._told >= self._window // 8:
            self._pulses = True

    def pulse(self) -> None:
        """Time has passed: greet, or tell the other end how far this one is."""
        if self.is_open:
            self._pulses = True
        else:
            self._greets = True

    def packets(self) -> list[bytes]:
        """Return the packets that are to go out now; call it again until there are none."""
        found = []
        if self._greets:
            self._greets = False
            found.append(self._pack(_Kind.GREETING, self.is_open))
        while self.is_open and self._waiting and self.credit > 0 and len(found) < BURST:
            parcel = self._waiting[0]
            size = min(self._packet, len(parcel) - self._gone)
            piece = parcel[self._gone : self._gone + size]
            self._gone += size
            is_whole = self._gone == len(parcel)
            found.append(self._pack(_Kind.DATA, not is_whole, piece))
            self._number += 1
            self._sent += size
            self.buffered -= size
            self.moved += size
            if is_whole:
                self._waiting.popleft()
                self._gone = 0
        if self._pulses:
            self._pulses = False
            found.append(self._pack(_Kind.PULSE, False))
        return found

    def _pack(self, kind: _Kind, flag: bool, data: bytes | memoryview = b"") -> bytes:
        self._told = self._used
        head = _HEADER.pack(VERSION, kind, flag, self._id, self._peer, self._number, self._used)
        return head + data if isinstance(data, bytes) else b"".join((head, data))

    def receive(self, packet: bytes) -> list[bytes | memoryview]:
        """Take a packet in; return the parcels that it completes. Call `packets` afterwards.

        A packet that makes no sense is ignored.
        """
        if len(packet) < _HEADER.size or packet[0] != VERSION:
            return []
        _, kind, flag, sender, receiver, number, used = _HEADER.unpack_from(packet)
        if kind == _Kind.GREETING:
            self._greeted(sender, receiver, is_open=bool(flag))
            return []
        if receiver != self._id or sender != self._peer:
            self._greets = True  # the other end speaks to somebody who is gone
            return []
        self.is_open = True
        if number != self._expected:
            self._break(f"packet {self._expected} is missing, {number} came")
            return []
        if not self._used_there <= used <= self._sent:
            self._break(f"{used} bytes used of {self._sent} that were sent")
            return []
        self._used_there = used
        if kind != _Kind.DATA:
            return []
        self._expected += 1
        self._came += len(packet) - _HEADER.size
        # A sender keeps to the window of its own node, which may be of another version.
        if len(packet) == _HEADER.size or self._came - self._used > 2 * self._window:
            self._break("a packet without data, or beyond the credit")
            return []
        return self._collect(memoryview(packet)[_HEADER.size :], has_more=bool(flag))

    def _greeted(self, sender: int, receiver: int, *, is_open: bool) -> None:
        if sender != self._peer:
            if self.is_open:
                self._break("the other end began anew")
            self._peer = sender
            self._greets = True
        if receiver == self._id:
            self.is_open = True
        if not is_open or receiver != self._id:
            self._greets = True

    def _collect(self, data: memoryview, *, has_more: bool) -> list[bytes | memoryview]:
        if not has_more and not self._parts:
            return [data]
        self._collected += len(data)
        if self._collected > self._max_parcel:
            self._break(f"a parcel of more than {self._max_parcel} bytes")
            return []
        # What is beyond half a window counts as used, else a larger parcel would never end.
        beyond = min(len(data), max(0, self._collected - self._window // 2))
        self._ahead += beyond
        self._count_used(beyond)
        self._parts.append(data)
        if has_more:
            return []
        whole = b"".join(self._parts)
        self._prepaid += self._ahead
        self._parts, self._collected, self._ahead = [], 0, 0
        return [whole]


class Listener(Protocol):
    """What is told of links to other nodes."""

    def opened(self, link: PeerLink) -> None:
        """A link to a node can be used from now on."""

    def received(self, link: PeerLink, parcel: bytes | memoryview) -> None:
        """A parcel has come."""

    def drained(self, link: PeerLink) -> None:
        """What was written has gone out, or at least some of it."""

    def lost(self, link: PeerLink, reason: str) -> None:
        """The link has broken: what was under way is lost. A new one will open by itself."""


class PeerLink:
    """A link to another node, as the broker sees it: a `Link` whose every write is a parcel."""

    def __init__(self, peer: _Peer) -> None:
        self.peer = peer.name
        self.role = peer.role
        self.is_open = True
        self._peer = peer
        self._channel = peer.channel
        self._inbox: deque[bytes | memoryview] = deque()
        self._is_paused = self._is_giving = False

    def write(self, data: bytes | memoryview) -> None:
        """Send a parcel after all that was written before."""
        if self.is_open:
            self._channel.send(data)
            self._peer.wake.set()

    def close(self) -> None:
        """Break the link; a new one will open."""
        self.abort()

    def abort(self) -> None:
        """Break the link now: what has not gone out is lost. A new one will open."""
        if self.is_open:
            self._peer.cut("cut off by this node")

    def pause(self) -> None:
        """Give out nothing more until `resume`; the other node sends until its credit is used."""
        self._is_paused = True

    def resume(self) -> None:
        """Soon give out what came meanwhile."""
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().call_soon(self._give)

    def receive_again(self) -> None:
        """Nothing is ever left over of a parcel."""

    def authenticated(self) -> None:
        """A node is no stranger."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""
        return self._channel.buffered if self.is_open else 0

    @property
    def moved(self) -> int:
        """The bytes that have gone out since the beginning."""
        return self._channel.moved

    def take(self, parcels: list[bytes | memoryview]) -> None:
        """Give parcels to the listener, in order, unless it has paused the link."""
        self._inbox.extend(parcels)
        self._give()

    def _give(self) -> None:
        if self._is_giving:
            return
        self._is_giving = True
        try:
            while self._inbox and not self._is_paused and self.is_open:
                parcel = self._inbox.popleft()
                try:
                    self._peer.listener.received(self, parcel)
                except Exception:  # or the link would stay open with a parcel missing
                    log.exception("a parcel from %s failed", self.peer)
                    self.abort()
                if self.is_open:
                    self._channel.used(len(parcel))
                    self._peer.wake.set()
        finally:
            self._is_giving = False


class _Peer:
    """Another node: the channel to it, and the task that sends."""

    def __init__(self, name: str, role: Role, channel: Channel, listener: Listener) -> None:
        self.name = name
        self.role = role
        self.channel = channel
        self.listener = listener
        self.wake = asyncio.Event()
        self.link: PeerLink | None = None
        self.task: asyncio.Task[None] | None = None
        self._breaks = 0

    def receive(self, packet: bytes) -> None:
        """Take a packet in, and tell of what it changes."""
        parcels = self.channel.receive(packet)
        self.look()
        if parcels and self.link is not None:
            self.link.take(parcels)
        self.wake.set()

    def cut(self, reason: str) -> None:
        """Break the channel."""
        self.channel.cut(reason)
        self.look()
        self.wake.set()

    def look(self) -> None:
        """Tell of a channel that has broken or opened."""
        if self.channel.breaks != self._breaks:
            self._breaks = self.channel.breaks
            self._drop_link(self.channel.reason)
        if self.channel.is_open and self.link is None:
            self.link = PeerLink(self)
            self.listener.opened(self.link)

    def _drop_link(self, reason: str) -> None:
        if self.link is not None:
            link, self.link = self.link, None
            link.is_open = False
            self.listener.lost(link, reason)

    async def run(self, bus: Bus, subject: str) -> None:
        """Send packets as they come up."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            while packets := self.channel.packets():
                for packet in packets:
                    await bus.publish(subject, packet)
                if self.link is not None:
                    self.listener.drained(self.link)
                await asyncio.sleep(0)

    def end(self, reason: str) -> None:
        """Forget the node."""
        if self.task is not None:
            self.task.cancel()
        self._drop_link(reason)


class Peers:
    """The links of this node to all others."""

    def __init__(
        self, bus: Bus, me: str, listener: Listener, *, window: int = WINDOW, packet: int = PACKET
    ) -> None:
        self._bus = bus
        self._me = me
        self._listener = listener
        self._window = window
        self._packet = packet
        self._peers: dict[tuple[str, Role], _Peer] = {}
        self._pulses: asyncio.Task[None] | None = None

    async def start(self, beat: float) -> None:
        """Receive what others send, and send a pulse every `beat` seconds; raises EngineError."""
        self._packet = min(self._packet, self._bus.max_payload - 1024)
        await self._bus.subscribe(f"peer.{self._me}.*.*", self._receive, room=1 << 30)
        self._pulses = asyncio.create_task(self._pulse(beat))

    def _receive(self, where: str, packet: bytes) -> None:
        _, name, lane = where.split(".")
        for role in Role:
            peer = self._peers.get((name, role))
            if peer is not None and role.other.value == lane:  # else it is no member yet
                peer.receive(packet)

    async def _pulse(self, beat: float) -> None:
        while True:
            await asyncio.sleep(beat)
            for peer in self._peers.values():
                peer.channel.pulse()
                peer.wake.set()

    def link(self, name: str, role: Role) -> PeerLink | None:
        """Return the link to a node in which this one has a role, None while there is none."""
        peer = self._peers.get((name, role))
        return peer.link if peer is not None else None

    def state(self) -> list[dict[str, object]]:
        """Return what is to be known of each link."""
        return [
            {
                "node": name,
                "role": role.name.lower(),
                "open": peer.channel.is_open,
                "buffered": peer.channel.buffered,
                "credit": peer.channel.credit,
                "moved": peer.channel.moved,
                "breaks": peer.channel.breaks,
                "reason": peer.channel.reason,
            }
            for (name, role), peer in self._peers.items()
        ]

    def meet(self, names: Collection[str]) -> None:
        """Have links to these nodes, and to no others."""
        for key in [key for key in self._peers if key[0] not in names]:
            self._peers.pop(key).end("it has left the cluster")
        for name in names:
            for role in Role:
                if name != self._me and (name, role) not in self._peers:
                    channel = Channel(_new_id, window=self._window, packet=self._packet)
                    peer = self._peers[name, role] = _Peer(name, role, channel, self._listener)
                    subject = f"peer.{name}.{self._me}.{role.value}"
                    peer.task = asyncio.create_task(peer.run(self._bus, subject))
                    peer.wake.set()

    async def stop(self) -> None:
        """End all links."""
        if self._pulses is not None:
            self._pulses.cancel()
            await asyncio.gather(self._pulses, return_exceptions=True)
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        self.meet(())
        await asyncio.gather(*tasks, return_exceptions=True)


def _new_id() -> int:
    return secrets.randbits(64) | 1
