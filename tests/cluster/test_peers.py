"""Channels between nodes: in order, with credit, and every loss is noticed by both ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tests.cluster.servers import Servers
from tests.cluster.test_coordinator import until
from wirelake.cluster.bus import Bus
from wirelake.cluster.peers import Channel, PeerLink, Peers, Role
from wirelake.errors import RefusedError

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Pair:
    """Two ends, and what is under way between them."""

    def __init__(self, **options: int) -> None:
        ids = count(1)
        self.ends = [Channel(lambda: next(ids), **options) for _ in range(2)]
        self.got: list[list[bytes]] = [[], []]
        self.uses = True

    def run(self, lost: frozenset[int] = frozenset()) -> int:
        """Carry packets to and fro until there are none, without those; return how many."""
        carried = 0
        while True:
            under_way = [(1 - k, one) for k in range(2) for one in self.ends[k].packets()]
            if not under_way:
                return carried
            for to, packet in under_way:
                carried += 1
                if carried - 1 in lost:
                    continue
                for parcel in self.ends[to].receive(packet):
                    self.got[to].append(bytes(parcel))
                    if self.uses:
                        self.ends[to].used(len(parcel))

    def open(self) -> None:
        """Let both ends greet."""
        self.run()
        assert self.ends[0].is_open
        assert self.ends[1].is_open


def test_parcels_come_whole_and_in_order_in_both_directions() -> None:
    pair = Pair(packet=10, window=100)
    pair.open()
    parcels = [bytes([k]) * size for k, size in enumerate([1, 9, 10, 11, 250, 1])]
    for parcel in parcels:
        pair.ends[0].send(parcel)
        pair.ends[1].send(memoryview(parcel))
    pair.run()
    assert pair.got == [parcels, parcels]
    assert pair.ends[0].moved == sum(map(len, parcels))
    assert pair.ends[0].buffered == 0


def test_a_sender_waits_for_credit() -> None:
    pair = Pair(packet=10, window=100)
    pair.open()
    pair.uses = False
    for _ in range(30):
        pair.ends[0].send(b"0123456789")
    pair.run()
    assert len(pair.got[1]) == 10
    assert pair.ends[0].credit == 0
    assert pair.ends[0].buffered == 200
    pair.ends[1].used(50)
    pair.run()
    assert len(pair.got[1]) == 15


@pytest.mark.parametrize("size", [10, 15, 49, 51, 99, 101, 250])
def test_no_size_of_parcels_gets_round_the_credit(size: int) -> None:
    pair = Pair(packet=10, window=100)
    pair.open()
    pair.uses = False
    for _ in range(100):
        pair.ends[0].send(bytes(size))
    for _ in range(50):
        pair.run()
        for end in pair.ends:
            end.pulse()
    held = sum(map(len, pair.got[1]))
    assert held <= max(100, 2 * size) + 10
    while len(pair.got[1]) < 100:
        used, pair.got[1][:] = sum(map(len, pair.got[1])), []
        pair.ends[1].used(used)
        pair.run()
        if not pair.ends[0].buffered:
            break
    assert pair.ends[0].buffered == 0
    assert pair.ends[0].breaks == 0


def test_the_first_and_the_last_packet_are_missed_too() -> None:
    for number in range(3):
        pair = Pair(packet=10, window=1000)
        pair.open()
        pair.ends[0].send(b"x" * 30)
        pair.run(lost=frozenset({number}))
        pair.ends[0].pulse()
        pair.run()
        assert pair.got[1] == []
        assert [end.breaks for end in pair.ends] == [1, 1]
        assert "is missing" in pair.ends[1].reason
        assert all(end.is_open for end in pair.ends)
        pair.ends[0].send(b"again")
        pair.run()
        assert pair.got[1] == [b"again"]


def test_an_end_that_begins_anew_is_noticed() -> None:
    pair = Pair()
    pair.open()
    pair.ends[0].send(b"before")
    ids = count(1000)
    pair.ends[0] = Channel(lambda: next(ids))
    pair.ends[1].send(b"to somebody who is gone")
    pair.run()
    assert pair.got == [[], []]
    assert pair.ends[1].breaks == 1
    assert all(end.is_open for end in pair.ends)


def test_what_makes_no_sense_is_ignored() -> None:
    pair = Pair()
    pair.open()
    for packet in (b"", b"\1", b"\2" * 36, b"x" * 200):
        assert pair.ends[0].receive(packet) == []
    pair.ends[1].send(b"still there")
    pair.run()
    assert pair.got[0] == [b"still there"]


def test_a_parcel_that_is_too_large_is_refused_by_both_ends() -> None:
    pair = Pair(max_parcel=20)
    pair.open()
    with pytest.raises(RefusedError, match="21 bytes, more than the 20 of a parcel"):
        pair.ends[0].send(b"x" * 21)
    large = Pair(packet=10)
    large.ends[1] = Channel(lambda: 99, packet=10, max_parcel=20)
    large.open()
    large.ends[0].send(b"x" * 30)
    large.run()
    assert large.got[1] == []
    assert large.ends[1].breaks == 1


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_lost_nothing_is_out_of_order_or_missing_unnoticed(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(packet=16, window=64)
    sent: list[bytes] = []
    breaks = 0
    expected: list[bytes] = []
    for number in range(30):
        lost = frozenset(k for k in range(40) if chance.random() < 0.03)
        parcel = number.to_bytes(2) * chance.randrange(1, 40)
        was_open = pair.ends[0].is_open
        pair.ends[0].send(parcel)
        if was_open:
            sent.append(parcel)
        pair.run(lost)
        for end in pair.ends:
            end.pulse()
        pair.run()
        assert all(end.is_open for end in pair.ends)
        if pair.ends[0].breaks == breaks and was_open:
            expected.append(parcel)  # nothing broke, so it must be there
        breaks = pair.ends[0].breaks
    got = pair.got[1]
    assert [one for one in got if one in expected] == expected
    places = [sent.index(one) for one in got]
    assert places == sorted(set(places))


class Listener:
    """Notes what it is told, and fails where it is asked to."""

    def __init__(self) -> None:
        self.links: list[PeerLink] = []
        self.parcels: list[bytes] = []
        self.reasons: list[str] = []

    def opened(self, link: PeerLink) -> None:
        """Note it."""
        if link.role is Role.OWNER:
            self.links.append(link)

    def received(self, link: PeerLink, parcel: bytes | memoryview) -> None:
        """Note it, or fail."""
        if bytes(parcel) == b"fail":
            raise LookupError("on purpose")
        self.parcels.append(bytes(parcel))

    def drained(self, link: PeerLink) -> None:
        """Nothing to do."""

    def lost(self, link: PeerLink, reason: str) -> None:
        """Note it."""
        self.reasons.append(reason)


@asynccontextmanager
async def linked(servers: Servers, prefix: str) -> AsyncIterator[tuple[Listener, Listener, Peers]]:
    """Two nodes with links over NATS; the links of the second, as an owner, are noted."""
    made: list[tuple[Listener, Peers, Bus]] = []
    for name in ("edge", "owner"):
        bus = await Bus.connect(servers.urls, prefix, name)
        listener = Listener()
        peers = Peers(bus, name, listener, window=1 << 20)
        await peers.start(0.1)
        peers.meet(["edge", "owner"])
        made.append((listener, peers, bus))
    edge, owner = made
    try:
        await until(lambda: edge[1].link("owner", Role.EDGE) is not None and bool(owner[0].links))
        yield edge[0], owner[0], edge[1]
    finally:
        for _, peers, bus in made:
            await peers.stop()
            await bus.close()


async def test_a_paused_link_stops_the_sender_when_its_credit_is_used(
    nats: Servers, prefix: str
) -> None:
    async with linked(nats, prefix) as (_, owner, peers):
        link = peers.link("owner", Role.EDGE)
        assert link is not None
        owner.links[0].pause()
        for _ in range(100):
            link.write(bytes(50_000))
        await until(lambda: link.moved >= 1 << 20)
        await asyncio.sleep(0.3)
        assert link.moved == 1_050_000  # a packet that was begun is sent whole
        assert link.buffered == 5_000_000 - 1_050_000
        assert owner.parcels == []
        owner.links[0].resume()
        await until(lambda: len(owner.parcels) == 100)
        assert link.buffered == 0
        [state] = [one for one in peers.state() if one["role"] == "edge"]
        assert (state["open"], state["breaks"]) == (True, 0)


async def test_a_parcel_that_fails_breaks_the_link_and_a_new_one_opens(
    nats: Servers, prefix: str
) -> None:
    async with linked(nats, prefix) as (edge, owner, peers):
        link = peers.link("owner", Role.EDGE)
        assert link is not None
        link.write(b"fail")
        await until(lambda: peers.link("owner", Role.EDGE) not in (None, link))
        await until(lambda: len(owner.links) == 2)
        again = peers.link("owner", Role.EDGE)
        assert again is not None
        again.write(b"fine")
        await until(lambda: owner.parcels == [b"fine"])
        assert "the other end began anew" in edge.reasons
