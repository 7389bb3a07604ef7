"""Members of the chat, on a real broker, in every dialect."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import wirelake
from wirelake.chat.member import SPREAD_SEEN, Member, client_id_for, client_of
from wirelake.chat.past import Past
from wirelake.chat.room import BREAK, Entry, Kind, Room, Tick
from wirelake.chat.session import LossHandler, Session
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError, WirelakeError
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


@pytest.mark.parametrize("name", ["bo", "robert", "r" * 33, "ü" * 60, "😀" * 40])
@pytest.mark.parametrize("token", ["", "t" * 20])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_name_has_any_length_and_the_client_id_what_the_dialect_allows(
    dialect: str, token: str, name: str
) -> None:
    url = f"{dialect}://localhost"
    made = client_id_for(url, name, token)
    assert made == client_id_for(url, name, token)  # so nobody is there twice
    if "client id" not in DIALECTS[dialect].abilities:
        assert made == ""
    elif not DIALECTS[dialect].identity:
        assert made == name
    else:
        assert made == name or made.startswith(name[:1])
    client_of(url, name, token)


def test_different_names_that_are_cut_have_different_ids() -> None:
    ids = {client_id_for("mfp://localhost", "r" * 40 + end, "") for end in ("a", "b", "c")}
    assert len(ids) == 3


async def test_members_tell_each_other_their_dialects(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        people = [
            await stack.enter_async_context(somebody(broker.url(dialect), f"on-{dialect}"))
            for dialect in DIALECTS
        ]
        for member, watcher in people:
            room = member.rooms["lobby"]
            others = {f"on-{one}": one for one in DIALECTS if one != member.dialect}
            await watcher.until(
                lambda room=room, others=others: (
                    {  # type: ignore[misc]  # a lambda has no types
                        one.name: one.dialect for one in room.members.values()
                    }
                    == others
                )
            )


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_message_to_one_member_reaches_that_one_alone(broker: Broker, dialect: str) -> None:
    # decision 76
    async with (
        somebody(broker.url("kobold-3"), "robert") as (bob, witness),
        somebody(broker.url("mfp-1"), "carol") as (carol, bystander),
        somebody(broker.url(dialect), "alice") as (alice, watcher),
    ):
        room = alice.rooms["lobby"]
        await watcher.until(lambda: room.names() == ["carol", "robert"])
        await alice.whisper(room, "ROBERT", "psst " * 300)
        await alice.say(room, "aloud")
        theirs = bob.rooms["lobby"]
        await witness.until(lambda: any(one.text == "aloud" for one in theirs.entries))
        got = [one for one in theirs.entries if one.kind is Kind.MSG]
        assert [(one.name, one.to) for one in got] == [("alice", "robert")] * len(got)
        assert " ".join(one.text for one in got).split() == ["psst"] * 300
        await watcher.until(lambda: next(e for e in room.entries if e.to).tick is Tick.SEEN)
        others = carol.rooms["lobby"]
        await bystander.until(lambda: any(one.text == "aloud" for one in others.entries))
        assert not [one for one in others.entries if one.kind is Kind.MSG]
        with pytest.raises(RefusedError, match="nobody here is called dave"):
            await alice.whisper(room, "dave", "hello?")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_topic_is_told_to_those_who_are_there_and_who_come(
    broker: Broker, dialect: str
) -> None:
    async with somebody(broker.url(dialect), "alice") as (alice, _):
        async with somebody(broker.url("mfp-1"), "robert") as (bob, witness):
            await alice.set_topic(alice.rooms["lobby"], "release day")
            await witness.until(lambda: bob.rooms["lobby"].topic == "release day")
        async with somebody(broker.url("tmq-1.00"), "carol") as (carol, watcher):
            await watcher.until(lambda: carol.rooms["lobby"].topic == "release day")
            assert carol.rooms["lobby"].topic_by == "alice"
        with pytest.raises(RefusedError, match="too_large"):
            await alice.set_topic(alice.rooms["lobby"], "x" * 2000)


async def test_history_topic_and_search_come_from_the_log() -> None:
    async with Broker(http=True) as broker:
        url = broker.url("mfp-1")
        async with somebody(url, "alice") as (alice, watcher):
            room = alice.rooms["lobby"]
            await alice.set_topic(room, "release day")
            for text in ("the Gateway is down", "line one\nline two", "never mind"):
                await alice.say(room, text)
            await alice.finish()
            await watcher.until(lambda: all(e.tick is None or e.tick >= 2 for e in room.entries))
        with wirelake.connect_sync(broker.url("boson-text")) as plain:
            plain.publish("lobby", b"from a plain client")
            plain.ping()
        past = await asyncio.to_thread(Past.find, broker.url("kobold-3"))
        assert past is not None
        client = client_of(broker.url("tmq-1.01"), "robert", "")
        async with client, Member(client, "robert", Watcher(), HEARTBEAT, past) as bob:
            room = await bob.enter("lobby")
            said = [(one.name, one.text) for one in room.entries if one.kind]
            assert said == [
                ("alice", "the Gateway is down"),
                ("alice", f"line one{BREAK}line two"),
                ("alice", "never mind"),
                ("", "from a plain client"),
            ]
            assert (room.topic, room.topic_by) == ("release day", "alice")
            session = Session(bob, room)
            await session.type("/search gateway")
            await session.type("/rooms")
            told = [one.text for one in room.entries if one.kind is None]
            assert "1 found in the log: gateway" in told
            assert any(one.endswith("alice: the Gateway is down") for one in told)
            async with somebody(broker.url("kobold-3"), "carol", "team/ops"):
                assert await session.other_rooms() == ["lobby", "team/ops"]


async def test_without_http_there_is_no_past_and_the_chat_works(broker: Broker) -> None:
    for dialect in ("kobold-3", "boson-text"):
        assert await asyncio.to_thread(Past.find, broker.url(dialect)) is None
    async with somebody(broker.url("kobold-3"), "alice") as (alice, _):
        session = Session(alice, alice.rooms["lobby"])
        await session.type("something to find")
        await session.type("/search TO FIND")
        told = [one.text for one in session.room.entries if one.kind is None]
        assert "1 found in what is on the screen: TO FIND" in told


async def test_what_came_while_nobody_looked_begins_with_a_mark(broker: Broker) -> None:
    async with (
        somebody(broker.url("kobold-3"), "alice", "lobby", "ops") as (alice, watcher),
        somebody(broker.url("kobold-3"), "robert") as (bob, _),
    ):
        session = Session(alice, alice.rooms["ops"])
        watcher.front = "ops"
        room = alice.rooms["lobby"]
        for text in ("one", "two"):
            await bob.say(bob.rooms["lobby"], text)
        await watcher.until(lambda: room.unread == 2)
        assert room.new is not None
        assert room.new.text == "one"
        session.turn_to(room)
        assert (room.unread, room.new.text) == (0, "one")
        session.turn_to(alice.rooms["ops"])
        assert room.new is None


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
            ("/who", "2 here: alice (you, mfp-1), robert (kobold-3)"),
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
