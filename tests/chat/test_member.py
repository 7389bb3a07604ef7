"""Members of the chat, on a real broker, in every dialect."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import wirelake
from wirelake.chat.member import SPREAD_SEEN, Member, client_of
from wirelake.chat.room import Entry, Kind, Room, Tick
from wirelake.chat.session import LossHandler, Session
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError, WirelakeError
from wirelake.testing import Broker, Proxy

HEARTBEAT = 0.5
NO_ACK = "boson-text"


class Watcher:
    """Looks at all rooms, or at one; remembers that something happened."""

    def __init__(self) -> None:
        self.front: str | None = None
        self.error: WirelakeError | None = None
        self._news = asyncio.Event()

    def is_watching(self, room: Room) -> bool:
        """Is it shown?"""
        return self.front in (None, room.name)

    def added(self, room: Room, entry: Entry) -> None:
        """News."""
        self._news.set()

    def ticked(self, room: Room, entry: Entry) -> None:
        """News."""
        self._news.set()

    def stirred(self) -> None:
        """News."""
        self._news.set()

    def ended(self, error: WirelakeError) -> None:
        """Bad news."""
        self.error = error
        self._news.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(60):
            while not is_so():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def somebody(url: str, name: str, *rooms: str) -> AsyncIterator[tuple[Member, Watcher]]:
    """A member in some rooms."""
    watcher = Watcher()
    async with (
        client_of(url, name, "") as client,
        Member(client, name, watcher, HEARTBEAT) as member,
    ):
        for room in rooms or ("lobby",):
            await member.enter(room)
        yield member, watcher


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker on a free port."""
    async with Broker() as broker:
        yield broker


def talk(room: Room) -> list[tuple[str, str]]:
    """Who said what."""
    return [(entry.name, entry.text) for entry in room.entries if entry.kind]


def notices(room: Room) -> list[str]:
    """What the chat itself told."""
    return [entry.text for entry in room.entries if entry.kind is None]


def last(room: Room) -> Entry:
    """The last thing that was said."""
    return next(entry for entry in reversed(room.entries) if entry.kind)


async def test_members_of_all_dialects_meet_in_one_room(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        names = {dialect.replace(".", "-"): dialect for dialect in DIALECTS}
        members = await asyncio.gather(
            *(
                stack.enter_async_context(somebody(broker.url(dialect), name))
                for name, dialect in names.items()
            )
        )
        said = sorted((name, f"greetings from {name}") for name in names)

        async def greet(member: Member, watcher: Watcher) -> None:
            room = member.rooms["lobby"]
            await watcher.until(lambda: len(room.members) == len(names) - 1)
            await member.say(room, f"greetings from {member.name}")
            await watcher.until(lambda: len(talk(room)) >= len(names))
            assert sorted(talk(room)) == said
            own = room.find(f"{member.id}.1")
            await watcher.until(lambda: own and own.tick is Tick.SEEN)

        await asyncio.gather(*(greet(*one) for one in members))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_alone_the_tick_says_what_is_known(broker: Broker, dialect: str) -> None:
    async with somebody(broker.url(dialect), "alice") as (member, watcher):
        room = member.rooms["lobby"]
        await member.say(room, "is there anybody?")
        known = Tick.BACK if dialect == NO_ACK else Tick.TAKEN
        await watcher.until(lambda: last(room).tick is known)


@pytest.mark.parametrize("dialect", ["mfp-1", "kobold-1"])
async def test_rooms_are_kept_apart(broker: Broker, dialect: str) -> None:
    async with (
        somebody(broker.url(dialect), "alice", "lobby", "team/ops") as (alice, eyes),
        somebody(broker.url(dialect), "robert", "team/ops", "lobby") as (bob, _),
    ):
        eyes.front = "lobby"
        await bob.say(bob.rooms["team/ops"], "alice: the lamp is out")
        await bob.say(bob.rooms["lobby"], "good morning")
        lobby, ops = alice.rooms["lobby"], alice.rooms["team/ops"]
        await eyes.until(lambda: talk(lobby) and talk(ops))
        assert talk(lobby) == [("robert", "good morning")]
        assert talk(ops) == [("robert", "alice: the lamp is out")]
        assert (lobby.unread, ops.unread, ops.is_mentioned) == (0, 1, True)


async def test_what_is_not_looked_at_has_no_third_tick_until_it_is(broker: Broker) -> None:
    async with (
        somebody(broker.url("kobold-3"), "alice", "lobby", "other") as (alice, eyes),
        somebody(broker.url("tmq-1.01"), "robert") as (bob, watcher),
    ):
        eyes.front = "other"
        room = bob.rooms["lobby"]
        await bob.say(room, "look here")
        await watcher.until(lambda: last(room).tick is Tick.TAKEN)
        lobby = alice.rooms["lobby"]
        await eyes.until(lambda: lobby.unread == 1)
        eyes.front = "lobby"
        alice.look_at(lobby)
        assert lobby.unread == 0
        await watcher.until(lambda: last(room).tick is Tick.SEEN)


async def test_that_something_was_shown_is_said_once_for_all(broker: Broker) -> None:
    async with (
        AsyncExitStack() as stack,
        wirelake.connect(broker.url("kobold-2")) as plain,
        plain.subscribe("lobby/$chat") as aside,
    ):
        names = [f"member{number}" for number in range(8)]
        (first, watcher), *_ = await asyncio.gather(
            *(stack.enter_async_context(somebody(broker.url("kobold-3"), name)) for name in names)
        )
        room = first.rooms["lobby"]
        await first.say(room, "hello")
        await watcher.until(lambda: last(room).tick is Tick.SEEN)
        await asyncio.sleep(SPREAD_SEEN)  # by then everybody would have said it
    seen = [message for message in await aside.take() if b" seen " in message.payload]
    assert 1 <= len(seen) < len(names) - 1


@pytest.mark.parametrize("dialect", ["mfp-1", "kobold-3", NO_ACK])
async def test_a_plain_client_is_an_unknown_sender(broker: Broker, dialect: str) -> None:
    async with (
        somebody(broker.url(dialect), "alice") as (alice, watcher),
        wirelake.connect(broker.url("kobold-2")) as plain,
    ):
        room = alice.rooms["lobby"]
        bodies = [b"21.5", b"\xff\x1b[2J", b"", b"chat/1 say elsewhere eve a1.1 boo", b"x" * 9000]
        for body in bodies[:-1] if dialect == "mfp-1" else bodies:
            await plain.publish("lobby", body, ack=True)
        await plain.publish("lobby", b"the end", ack=True)
        await watcher.until(lambda: talk(room) and last(room).text == "the end")
        said = talk(room)
        assert said[:2] == [("", "21.5"), ("", "\ufffd [2J")]
        assert {name for name, _ in said} == {""}
        assert all(len(text) < 2100 for _, text in said)


async def test_a_plain_subscriber_hears_only_talk(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("boson-text")) as plain,
        plain.subscribe("lobby") as heard,
        somebody(broker.url("mfp-1"), "alice") as (alice, _),
    ):
        await alice.say(alice.rooms["lobby"], "hello")
        message = await heard.receive(60)
        assert message.payload == f"chat/1 say lobby alice {alice.id}.1 hello".encode()


async def test_a_long_message_goes_out_in_pieces_and_a_very_long_one_not(broker: Broker) -> None:
    async with (
        somebody(broker.url("kobold-3"), "alice") as (alice, _),
        somebody(broker.url("mfp-1"), "robert") as (bob, watcher),
    ):
        text = "wörter " * 250
        await alice.say(alice.rooms["lobby"], text)
        room = bob.rooms["lobby"]
        await watcher.until(lambda: len("".join(text for _, text in talk(room))) > 1700)
        assert " ".join(text for _, text in talk(room)).split() == text.split()
        with pytest.raises(RefusedError, match="at most"):
            await alice.say(alice.rooms["lobby"], "x" * 10_000)


async def test_a_name_that_is_taken_is_refused(broker: Broker) -> None:
    async with somebody(broker.url(NO_ACK), "alice") as (alice, watcher):
        for dialect in (NO_ACK, "kobold-3"):
            with pytest.raises(RefusedError, match="somebody called Alice"):
                async with somebody(broker.url(dialect), "Alice"):
                    pass
        assert alice.rooms["lobby"].names() == []
        async with somebody(broker.url(NO_ACK), "robert") as (bob, _):
            await watcher.until(lambda: alice.rooms["lobby"].names() == ["robert"])
            with pytest.raises(RefusedError, match="called robert"):
                await alice.rename("robert")
            await bob.rename("bob")
            await watcher.until(lambda: alice.rooms["lobby"].names() == ["bob"])
        await watcher.until(lambda: alice.rooms["lobby"].names() == [])


def test_a_name_that_mfp_cannot_say_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match=r"name: .*4 to 32"):
        client_of("mfp://localhost", "bob", "")
    client_of("kobold-3://localhost", "bob", "")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_lost_connection_shows_and_what_was_said_meanwhile_arrives(
    broker: Broker, dialect: str
) -> None:
    async with (
        Proxy(broker.url(dialect)) as proxy,
        somebody(broker.url("kobold-3"), "robert") as (bob, witness),
        somebody(proxy.url, "alice") as (alice, watcher),
    ):
        room, theirs = alice.rooms["lobby"], bob.rooms["lobby"]
        await witness.until(lambda: theirs.names() == ["alice"])
        log, handler = logging.getLogger("wirelake.client"), LossHandler(alice)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            proxy.refuse()
            proxy.cut()
            await watcher.until(lambda: "trying again" in alice.trouble)
            await alice.say(room, "can you hear me?")
            assert last(room).tick is Tick.WAITING
            proxy.accept()
            await watcher.until(lambda: not alice.trouble)
        finally:
            log.removeHandler(handler)
            log.setLevel(logging.NOTSET)
        await witness.until(lambda: talk(theirs))
        assert talk(theirs) == [("alice", "can you hear me?")]
        await watcher.until(lambda: last(room).tick is Tick.SEEN)
        await watcher.until(lambda: room.names() == ["robert"])


async def test_a_broker_that_falls_silent_is_noticed_without_the_log(broker: Broker) -> None:
    async with (
        Proxy(broker.url("mfp-1")) as proxy,
        somebody(proxy.url, "alice") as (alice, watcher),
    ):
        proxy.stall()
        await watcher.until(lambda: alice.trouble == "the broker is silent")
        proxy.resume()
        await watcher.until(lambda: not alice.trouble)


async def test_who_stops_without_a_word_is_missed(broker: Broker) -> None:
    async with (
        Proxy(broker.url("kobold-1")) as proxy,
        somebody(broker.url("tmq-1.00"), "alice") as (alice, watcher),
        somebody(proxy.url, "robert"),
    ):
        room = alice.rooms["lobby"]
        await watcher.until(lambda: room.names() == ["robert"])
        proxy.stall()
        await watcher.until(lambda: room.names() == [])
        assert notices(room)[-1] == "robert has gone without a word"
        proxy.resume()
        await watcher.until(lambda: room.names() == ["robert"])
        assert notices(room)[-1] == "robert is back"


async def test_commands_do_what_they_say(broker: Broker) -> None:
    async with (
        somebody(broker.url("mfp-1"), "alice") as (alice, watcher),
        somebody(broker.url("kobold-3"), "robert") as (bob, witness),
    ):
        session = Session(alice, alice.rooms["lobby"])
        lobby = session.room
        await watcher.until(lambda: lobby.names() == ["robert"])
        for line, told in [
            ("/who", "2 here: alice (you), robert"),
            ("/dance", "there is no /dance: /help lists what there is"),
            ("/leave", "this is your only room: /join another one first, or /quit"),
            ("/leave elsewhere", "you are not in #elsewhere"),
            ("/join a b", "room: has no spaces and no |"),
            ("/nick robert", "exists: somebody is called robert already"),
            ("/nick ada", "you are now ada"),
            ("/rooms", "rooms: #lobby (0 unread)"),
        ]:
            await session.type(line)
            assert notices(lobby)[-1] == told
        await session.type("/me waves")
        await session.type("//this is no command")
        await session.type("   ")
        theirs = bob.rooms["lobby"]
        await witness.until(lambda: len(talk(theirs)) == 2)
        assert talk(theirs) == [("ada", "waves"), ("ada", "/this is no command")]
        assert theirs.entries[-2].kind is Kind.ME
        await session.type("/join #team")
        assert (session.room.name, list(alice.rooms)) == ("team", ["lobby", "team"])
        session.turn(1)
        assert session.room is lobby
        await session.type("/leave")
        assert (session.room.name, list(alice.rooms)) == ("team", ["team"])
        await witness.until(lambda: theirs.names() == [])
        await session.type("/help")
        assert any(re.match("/join ROOM +go into", text) for text in notices(session.room))
        await session.type("/quit")
        assert session.over.is_set()
