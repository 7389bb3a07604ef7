"""Publishing by HTTP, and hearing what is published.

A publish is answered when it is durable, like one on the wire that asks for an acknowledgement. An
Arrow body is published all or not at all, as far as can be told before: rights, addresses and room
in queues are looked at first. It goes to the broker in small turns, so that nobody on the wire
waits for it, and waits itself where a subscriber or the disk is slow.

With a producer and a sequence a batch that is sent again is not published again. Where the broker
died in the middle of one, the log says which rows of topics were kept, and the ids of messages say
the same for queues.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wirelake.broker.local import DIALECT, LocalLink, LocalSession
from wirelake.broker.node import Node
from wirelake.broker.queue import DELAY, MESSAGE_OVERHEAD
from wirelake.broker.rights import Rights
from wirelake.dialects.codec import Feed
from wirelake.errors import RefusedError
from wirelake.http.exchange import CutOffError, as_json, require
from wirelake.http.gate import Gate
from wirelake.http.ledger import PRODUCER, Ledger, Producer
from wirelake.http.relay import Relay
from wirelake.http.rows import CHUNK, Rows
from wirelake.journal.arrow_stream import decode
from wirelake.message import Message
from wirelake.wire import FrameTable
from wirelake.wire.arrow import from_arrow

if TYPE_CHECKING:
    from wirelake.broker.endpoint import Endpoint, Policy

#: How often a comment is sent on a silent event stream, so that either end sees the other live.
KEEP_ALIVE = 15.0
#: Events that are written at once.
EVENTS_AT_ONCE = 256

_encode = msgspec.json.Encoder().encode


class Publisher:
    """Publishes what comes by HTTP."""

    def __init__(self, gate: Gate, ledger: Ledger, executor: Executor, relay: Relay) -> None:
        self._relay = relay
        relay.answers["kept"] = self._tell_kept
        self._gate = gate
        self._node: Node = gate.node
        self._ledger = ledger
        self._executor = executor
        self._table = FrameTable(CHUNK)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}  # and how many want it

    async def publish(self, rights: Rights, message: Message, peer: str) -> None:
        """Publish one message; done when it is durable."""

        async def work() -> None:
            failures = self._node.engine.failures
            if message.source:
                self._node.clients.check_request(rights, message.source, time.monotonic())
            with _Sender(self._node, rights, peer, message.source) as sender:
                self._node.topics.check_publish(sender.session, message.address)
                if not self._node.topics.is_elsewhere(message.address):
                    self._node.capture.check_disk(message.address)
                self._node.router.publish_message(sender.session, message, time.monotonic())
                await sender.wait()
                await sender.finish()
                await self._gate.durable(failures)

        await self._gate.run(work())

    async def publish_rows(self, rights: Rights, rows: Rows, peer: str) -> None:
        """Publish rows; done when they are durable."""
        await self._gate.run(self._publish(rights, rows, peer, ""))

    async def publish_once(
        self, rights: Rights, rows: Rows, peer: str, producer: str, sequence: str
    ) -> bool:
        """Publish a producer's batch, unless it was published before: then return False.

        Producers belong to a token: nobody can say of another's batch that it is done.
        """
        name = producer_name(rights, producer)
        turn, users = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = (turn, users + 1)
        try:
            async with turn:
                return await self._publish_once(rights, rows, peer, name, sequence)
        finally:
            turn, users = self._turns.pop(name)
            if users > 1:
                self._turns[name] = (turn, users - 1)

    async def _publish_once(
        self, rights: Rights, rows: Rows, peer: str, producer: str, sequence: str
    ) -> bool:
        known = await self._gate.ask(lambda: self._ledger.producer(producer))
        if sequence in known.done:
            return False
        if known.begun == sequence:
            loop = asyncio.get_running_loop()
            kept = await self._kept(PRODUCER + producer, known)
            rows = await loop.run_in_executor(self._executor, rows.without, kept)
        else:
            await self._gate.change(lambda: self._check(rights, rows, peer))
            ends = [one.next for one in (await self._relay.extents()).values()]
            await self._gate.change(lambda: self._ledger.begin(producer, sequence, ends))
        source = PRODUCER + producer
        await self._gate.run(self._publish(rights, rows, peer, source, f"{sequence}-"))
        # Not before the rows are durable: rather twice than never.
        await self._gate.change(lambda: self._ledger.end(producer, sequence))
        return True

    def _check(self, rights: Rights, rows: Rows, peer: str) -> None:
        with _Sender(self._node, rights, peer, "") as sender:
            sender.check_all(rows)

    async def _publish(
        self, rights: Rights, rows: Rows, peer: str, source: str, ids: str = ""
    ) -> None:
        """On the broker's loop: publish rows in turns."""
        failures = self._node.engine.failures
        with _Sender(self._node, rights, peer, source) as sender:
            sender.check_all(rows)
            done = 0
            for batch in rows.batches:
                if sender.session.is_revoked:
                    break
                if ids and self._node.engine.is_shared:
                    await self._check_home(source, failures)
                sender.publish(_with_ids(batch, ids, done) if ids else batch, self._table)
                done += batch.num_rows
                await asyncio.sleep(0)
                await sender.wait()
                if ids:  # so that what is kept of an address is always its first rows
                    await sender.finish()
            await sender.finish()
            await self._gate.durable(failures)

    async def _check_home(self, producer: str, failures: int) -> None:
        """On the broker's loop: raise unless this node certainly keeps a producer's progress now.

        One that was stopped for a while may have been replaced, and its batch be published by
        another node.
        """
        home = self._node.engine.home(producer)
        if not self._node.engine.may_read(home):
            self._node.engine.prove(home)
            await self._gate.durable(failures)

    async def _kept(self, source: str, known: Producer) -> dict[str, int]:
        """How many rows of each topic the log has of the batch that a producer had begun."""
        asked = {"source": source, "ends": known.ends}
        told = [await self._tell_kept(asked)]
        if self._relay.is_shared:
            told += await self._relay.question("kept", asked)
        looked_at = [partition for one in told for partition in one["partitions"]]
        if sorted(looked_at) != list(range(self._node.engine.partitions)):
            raise RefusedError("busy", "partitions are changing their owners")
        kept: Counter[str] = Counter()
        for one in told:
            kept.update(one["kept"])
        return dict(kept)

    async def _tell_kept(self, asked: dict[str, Any]) -> dict[str, Any]:
        """How many rows of each topic a source has in the partitions that are here."""
        loop = asyncio.get_running_loop()
        await self._gate.change(bool)  # what was published must be in the log by now
        source, ends = asked["source"], asked["ends"]
        return await loop.run_in_executor(self._executor, self._kept_here, source, ends)

    def _kept_here(self, source: str, ends: list[int]) -> dict[str, Any]:
        kept: Counter[str] = Counter()
        engine = self._node.engine
        here = [one for one in engine.positions() if engine.is_here(one.partition)]
        for position in here:
            begin = ends[position.partition] if position.partition < len(ends) else position.next
            start = max(begin, position.first)
            if start >= position.next:
                continue
            for stored in self._node.engine.read(position.partition, start, position.next):
                batch = decode(stored.ipc)
                mine = pc.and_(
                    pc.equal(batch.column("source").cast(pa.string()), source),
                    pc.and_(
                        pc.equal(batch.column("op").cast(pa.string()), "publish"),
                        pc.greater_equal(batch.column("offset"), start),
                    ),
                )
                for value in pc.value_counts(batch.column("address").filter(mine)):
                    kept[value["values"].as_py()] += value["counts"].as_py()
        return {"kept": dict(kept), "partitions": [one.partition for one in here]}


def producer_name(rights: Rights, producer: str) -> str:
    """The name of a producer among those of all tokens."""
    return f"{quote(rights.name, safe='')}/{producer}"


class _Sender:
    """A session for as long as a request publishes."""

    def __init__(self, node: Node, rights: Rights, peer: str, source: str) -> None:
        self._node = node
        self._changed = asyncio.Event()
        self._link = LocalLink(peer, self._changed.set)
        self.session = LocalSession(node, self._link, rights, time.monotonic(), source)

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.lost("done")

    def check_all(self, rows: Rows) -> None:
        """Refuse rows of which some cannot be published, before any of them is."""
        self._node.capture.check_disk()
        delayed = False
        for address, count in rows.counts.items():
            self._node.topics.check_publish(self.session, address)
            if address in self._node.queues:
                _check_room(self._node, address, count, rows.sizes[address])
                delayed = True
        if delayed:
            _check_delays(rows)

    def publish(self, batch: pa.RecordBatch, table: FrameTable) -> None:
        """Publish rows, in one turn."""
        from_arrow(batch, table)
        table.dialect = DIALECT
        self._node.router.publish(self.session, table, 0, table.count, time.monotonic())
        table.release()
        self._node.capture.hold_back(self.session)

    async def wait(self) -> None:
        """Wait as long as a subscriber or the disk is behind."""
        while self._link.is_paused and not self.session.closed:
            self._changed.clear()
            await self._changed.wait()

    async def finish(self) -> None:
        """Wait until other nodes have done what they own of it; raises what was refused."""
        while self.session.unanswered and not self.session.closed:
            self._changed.clear()
            await self._changed.wait()
        self.check()

    def check(self) -> None:
        """Raise what was refused after all."""
        if self.session.refusal is not None:
            raise self.session.refusal


def _check_room(node: Node, address: str, count: int, size: int) -> None:
    queue = node.queues.open(address)
    most, bytes_ = queue.settings.max_messages, queue.settings.max_bytes
    size += count * MESSAGE_OVERHEAD  # headers are counted when they are put
    if (most and len(queue) + count > most) or (bytes_ and queue.bytes + size > bytes_):
        raise RefusedError("busy", f"the queue {address} has no room for {count} messages")


def _check_delays(rows: Rows) -> None:
    """A queue takes no message whose delay is no number; better to know before."""
    for batch in rows.batches:
        if batch.schema.get_field_index("headers") >= 0:
            headers = batch.column("headers")
            delays = headers.items.filter(pc.equal(headers.keys, DELAY))
            if pc.all(pc.match_substring_regex(delays, "^[0-9]{0,12}$")).as_py() is False:
                raise RefusedError("bad_request", "a delay is in milliseconds")


def _with_ids(batch: pa.RecordBatch, prefix: str, first: int) -> pa.RecordBatch:
    """Rows of which each has an id: queues know by it what they have taken."""
    numbers = pa.array(range(first, first + batch.num_rows)).cast(pa.string())
    made = pc.binary_join_element_wise(prefix, numbers, "")
    at = batch.schema.get_field_index("id")
    if at < 0:
        return batch.append_column("id", made)
    ids = batch.column(at)
    return batch.set_column(at, "id", pc.if_else(pc.equal(ids, ""), made, ids))


@dataclass(frozen=True, slots=True)
class Note:
    """Sender, time and offsets of messages that were written together."""

    time: int
    dialect: str
    source: str
    peer: str
    places: list[tuple[int, int] | None]

    def of(self, row: int) -> dict[str, object]:
        """What is known of one message, beside what its frame says."""
        told: dict[str, object] = {"time": self.time}
        if self.dialect:
            told["dialect"] = self.dialect
        if self.source:
            told["source"] = self.source
        if row < len(self.places) and (place := self.places[row]) is not None:
            told["partition"], told["offset"] = place
        return told


class Onlooker(LocalSession):
    """A subscriber without a client: it gets each message with its sender and its offset."""

    observes = True
    _places: list[tuple[int, int] | None] = []  # noqa: RUF012 - of what is written next

    def observe(self, places: list[tuple[int, int] | None]) -> None:
        """Learn the partition and offset of each message that is written next."""
        self._places = places

    def note(self, sender: Endpoint | None) -> Note:
        """What is known of what is being written."""
        places, self._places = self._places, []
        moment = self.node.vitals.timestamp(self.node.vitals.now)
        if sender is None:
            return Note(moment, "", "", "", places)
        return Note(moment, sender.dialect, sender.client_id, sender.link.peer, places)


class _Subscriber(Onlooker):
    """A session that notes, for all that is written at once, who published it when."""

    def __init__(self, node: Node, link: LocalLink, rights: Rights, now: float) -> None:
        super().__init__(node, link, rights, now)
        self._notes: deque[Note] = deque()

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send frames."""
        if self.link.is_open:  # type: ignore[attr-defined]  # it is a LocalLink
            self._notes.append(self.note(sender))
        super().write(data, policy, sender)

    def next_note(self) -> Note:
        """From another thread: what is known of what is taken next from the link."""
        return self._notes.popleft()


S = TypeVar("S", bound=Onlooker)


class Observation(Generic[S]):
    """A stream to a client of HTTP of what is published to some filters.

    The broker sees a subscriber, which `make` makes on the broker's thread. `instead` says how the
    messages of a queue can be seen: it is none of a stream's.
    """

    def __init__(
        self,
        gate: Gate,
        rights: Rights,
        filters: list[str],
        peer: str,
        make: Callable[[Node, LocalLink, Rights, float], S],
        instead: str,
    ) -> None:
        self._gate = gate
        self._node = gate.node
        self._rights = rights
        self._filters = filters
        self._make = make
        self._instead = instead
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._link = LocalLink(peer, self._wake)
        self._session: S | None = None

    async def open(self) -> None:
        """Subscribe, or be refused."""
        await self._gate.ask(self._open)

    def _open(self) -> None:
        now = time.monotonic()
        self._session = self._make(self._node, self._link, self._rights, now)
        try:
            self._subscribe(self._session, now)
        except RefusedError:
            self._session.lost("refused")
            raise

    def _subscribe(self, session: S, now: float) -> None:
        for filter in self._filters:
            require(session.rights, "subscribe", filter)  # before what it may conflict with
            if filter in self._node.queues:
                raise RefusedError("conflict", f"{filter} is a queue: {self._instead}")
            self._node.topics.subscribe(session, filter, now)

    def _wake(self) -> None:
        """From the broker's thread: there is something to do, or the session has ended."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            return  # HTTP has stopped

    def end(self) -> None:
        """End the stream."""
        self._link.is_open = False
        self._changed.set()

    def close(self) -> None:
        """The client is gone: let the broker know."""
        if (session := self._session) is not None:
            self._gate.tell(lambda: session.lost("closed by the client"))


class Events(Observation[_Subscriber]):
    """What is published to some filters, as server-sent events."""

    def __init__(self, gate: Gate, rights: Rights, filters: list[str], peer: str) -> None:
        instead = "it is consumed on the wire, or peeked at here"
        super().__init__(gate, rights, filters, peer, _Subscriber, instead)

    async def stream(self) -> AsyncGenerator[bytes]:
        """The events, until either side ends it."""
        feed = Feed("boson-binary", limits=self._node.limits)
        assert self._session is not None
        yield b": events of " + " ".join(self._filters).encode() + b"\n\n"
        while True:
            self._changed.clear()
            while (frames := self._link.take()) is not None:
                for events in _events(feed, frames, self._session.next_note()):
                    yield events
                self._link.sent()
            if not self._link.is_open:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), KEEP_ALIVE)
            except TimeoutError:
                yield b": nothing new\n\n"
        yield b"event: end\ndata: {}\n\n"


class Reader:
    """A session for as long as a request reads the log, so that it ends with its rights."""

    def __init__(self, node: Node, rights: Rights, peer: str) -> None:
        """On the broker's thread: begin, unless the rights changed since the request came."""
        if node.clients.current_rights(rights) is not rights:
            raise RefusedError("unauthorized", "the rights of this token have changed")
        self._session = LocalSession(node, LocalLink(peer, bool), rights, time.monotonic())

    @property
    def is_revoked(self) -> bool:
        """Are the rights gone with which the request began?"""
        return self._session.is_revoked

    def close(self) -> None:
        """On the broker's thread: the request is done."""
        self._session.lost("done")

    async def checked(
        self, content: AsyncGenerator[bytes | memoryview]
    ) -> AsyncGenerator[bytes | memoryview]:
        """The content, cut off where the rights to it are lost."""
        async with aclosing(content):
            async for piece in content:
                if self._session.is_revoked:
                    raise CutOffError
                yield piece


def _events(feed: Feed, frames: bytes | memoryview, note: Note) -> Iterator[bytes]:
    """Frames as server-sent events with who published them when, not too many at once."""
    rows = (message for table in feed.receive(frames) for message in table.messages())
    numbered = enumerate(rows)
    while some := list(islice(numbered, EVENTS_AT_ONCE)):
        told = (as_json(message, **note.of(row)) for row, message in some)
        yield b"".join(b"data: " + _encode(one) + b"\n\n" for one in told)
