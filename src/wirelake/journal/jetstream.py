"""The journal as NATS JetStream streams, which many nodes share: one stream a partition.

**The stream is the truth.** A commit is durable when the stream's leader says so, which it does
when most replicas have it. Each node that owns or follows a partition has a copy of it in files
(`local_copy.py`); rows are read there, and a partition is taken up from there.

**One append in flight.** While a message is on its way, the commits that come are grouped into the
next one. Each message expects the last sequence, so who did not see the latest is refused. A second
message in flight would expect one sequence more, and could be accepted behind a new owner's first.

**Lost answers.** A message has an id, which the server checks before the sequence. So what had no
answer is sent again as it is, until it has one or the journal gives up.

**Taking up.** The copy is brought up to the stream's end, then a record with a new epoch is
appended there, which fences the owner before. Whoever was faster wins, and the other starts again.

**Holes.** A damaged replica that leads hides messages: some in the middle, which the chain of
records shows, or all from the damage on, which the copies of other nodes show. What is missing is
asked of every server, then of the copies. If none has it, the partition is refused.

**Threads.** The connection runs on an event loop of its own, on a thread of its own, since
`recover` has to wait for the network on whichever thread calls it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import nats.errors
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from wirelake.errors import ConfigError, EngineError
from wirelake.journal.arrow_stream import Compression
from wirelake.journal.contract import (
    MAX_PARTITIONS,
    Batch,
    Done,
    Harm,
    Journal,
    Loss,
    Needed,
    Outcome,
    Position,
    Recovered,
    Space,
    check_partition,
)
from wirelake.journal.files import FilesJournal
from wirelake.journal.local_copy import LocalCopy
from wirelake.journal.record import End, Header, Piece, Record, Type, encode_commit
from wirelake.journal.recovery import report
from wirelake.journal.retention import Rule
from wirelake.journal.segment import Identity
from wirelake.journal.streams import (
    ANSWER,
    PAUSE,
    Access,
    Assembly,
    Durations,
    Envelope,
    Published,
    State,
    Stored,
    Stream,
    fetch,
    lazily_synced,
    parse_records,
    room_of,
    split,
)

log = logging.getLogger("wirelake.journal")

_T = TypeVar("_T")
#: What a prefix of streams and subjects may be.
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,32}")

#: Partitions of a new cluster.
PARTITIONS = 16
#: A partition is taken up again, where somebody else was faster, at most this often.
_TRIES = 8
#: How often a replica that has nothing for us is asked before others are.
_PATIENCE = 10
#: How often each server is asked for a message that is missing.
_ASKED = 3
#: A follower looks for messages this often (seconds), even if it hears of none.
_LOOK = 1.0
#: Events that wait to be taken.
MAX_TOLD = 100
#: How long nodes have to tell how far their copies are (seconds).
_ROLL_CALL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a cluster keeps its partitions in JetStream."""

    #: Begins the names of streams and subjects, so that one NATS serves several clusters.
    prefix: str = "WL"
    #: Of a cluster that is new; None for as many as it has, or the default.
    partitions: int | None = None
    replicas: int = 3
    #: Appends that had no answer for so long (seconds) are told as *unavailable*.
    give_up: float = 30.0
    #: Monitoring pages of the servers (http://host:8222), to see whether they sync every write.
    monitors: tuple[str, ...] = ()
    #: How often copies are tidied and streams purged (seconds); 0: never.
    tidy_every: float = 60.0


class Lag(NamedTuple):
    """How far a copy is behind its stream: messages, and seconds since it was last level."""

    messages: int
    seconds: float


class _Append(NamedTuple):
    """A commit that waits for its outcome."""

    headers: list[Header]
    pieces: list[Piece]
    size: int
    done: Done


class _HoleError(Exception):
    """Messages that were durable are nowhere to be found."""


class _Partition:
    """What this node knows of one partition; all but `end` and `queue` belong to the loop."""

    def __init__(self, number: int, stream: Stream, copy: LocalCopy) -> None:
        self.number = number
        self.stream = stream
        self.copy = copy
        self.lock = asyncio.Lock()  # held by who reads the stream into the copy
        self.end = End()  # with all that was appended
        self.queue: deque[_Append] = deque()
        self.owned = False
        self.gone: Outcome | None = None
        self.writer: asyncio.Task[None] | None = None
        self.follower: asyncio.Task[None] | None = None
        self.heard = asyncio.Event()
        self.is_placed = False  # is `sequence` known?
        self.sequence = 0  # of the last message that is in the copy
        self.last = 0  # of the last message that is known to be stored
        self.level = time.monotonic()  # when the copy was last level with the stream
        self.assembly = Assembly()
        self.served = False  # are others told what is in the copy?


class JetStreamJournal(Journal):
    """One node's way to the streams of a cluster.

    Raises EngineError (retriable) where NATS does not answer; ConfigError where streams cannot be
    made or have settings that would lose data.
    """

    def __init__(
        self,
        data: Path,
        access: Access,
        settings: StreamSettings = StreamSettings(),  # noqa: B008 - immutable
        *,
        node: str = "",
        rules: Sequence[Rule] = (),
        compression: Compression = "none",
    ) -> None:
        self.losses: list[Loss] = []
        #: What is weak about the streams, in one line; empty if nothing is.
        self.weak = ""
        #: Appends that were tried again, appends that were fenced, messages found elsewhere.
        self.retries = self.fenced = self.repairs = 0
        #: Messages that were read from streams into copies.
        self.copied = 0
        #: How long appends took, from the first time that they were sent to the answer.
        self.appends = Durations()
        #: Fenced appends, holes and repairs: a kind and a text each, the oldest go first. Whoever
        #: takes them tells operators; any thread may.
        self.told: deque[tuple[str, str]] = deque(maxlen=MAX_TOLD)
        self._data = data
        self._access = access
        self._settings = settings
        self._node = node
        self._rules = rules
        self._compression: Compression = compression
        self._session = secrets.token_hex(6)
        self._ordering = threading.Lock()  # held for moments, by who numbers records
        self._backlog = 0
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()  # that other threads wait for
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wirelake-jetstream", daemon=True)
        self._thread.start()
        try:
            self._wait(self._open())
        except BaseException:
            self._stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the loop, and wait for it; raises EngineError if it is closed."""
        with self._ordering:
            if self._closed:
                work.close()
                raise EngineError("the journal is closed")
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except concurrent.futures.CancelledError:
            raise EngineError("the journal is closed") from None
        finally:
            with self._ordering:
                self._calls.discard(call)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # Opening

    async def _open(self) -> None:
        self._client = await self._access.connect(f"wirelake {self._node}")
        try:
            await self._set_up()
        except BaseException:
            await self._client.close()
            raise
        if self._settings.tidy_every:
            self._start(self._keep_house(self._settings.tidy_every))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _set_up(self) -> None:
        """Make the streams that are missing, and check the others."""
        wanted = self._settings.partitions
        if not _PREFIX.fullmatch(self._settings.prefix):
            raise ConfigError("prefix", "it has 1 to 32 letters, digits, - and _")
        if wanted is not None and not 0 < wanted <= MAX_PARTITIONS:
            raise ConfigError("partitions", f"a journal has 1 to {MAX_PARTITIONS}")
        weak: dict[str, int] = {}
        # Whoever makes the first stream says for all what they have in common.
        made = {
            "wirelake-mark": secrets.token_hex(8),
            "wirelake-partitions": str(wanted or PARTITIONS),
        }
        count, partition = 1, 0
        self._all: list[_Partition] = []
        while partition < count:
            stream = Stream(self._client, self._settings.prefix, partition)
            config = await stream.config()
            if config is None:
                config = await stream.make(self._settings.replicas, made)
            for text in stream.check(config, self._settings.replicas):
                weak[text] = weak.get(text, 0) + 1
            found = config.get("metadata") or {}
            found = {name: found.get(name) for name in made}
            if partition == 0:
                made = found
                try:
                    count = int(made["wirelake-partitions"])
                    self._identity = Identity(count, bytes.fromhex(made["wirelake-mark"]))
                except (TypeError, ValueError):
                    text = f"the stream {stream.name} was not made by Wirelake"
                    raise ConfigError("nats", text) from None
                if wanted not in (None, count):
                    text = f"the cluster was made with {count} partitions"
                    raise ConfigError("partitions", text)
            elif found != made:
                raise ConfigError("nats", f"{stream.name} belongs to another cluster")
            self._all.append(_Partition(partition, stream, self._copy(partition)))
            partition += 1
        self.partitions = count
        self.id = self._identity.public
        await self._tell_weak(weak)

    def _copy(self, partition: int) -> LocalCopy:
        folder = self._data / "copies" / f"{partition:04}"
        rules, compression = self._rules, self._compression
        return LocalCopy(
            folder, self._identity, partition, self.losses, rules=rules, compression=compression
        )

    async def _tell_weak(self, weak: Mapping[str, int]) -> None:
        texts = [f"{count} streams have {text}" for text, count in weak.items()]
        if self._settings.monitors:
            loop = asyncio.get_running_loop()
            lazy = await loop.run_in_executor(None, lazily_synced, self._settings.monitors)
            texts += [lazy] if lazy else []
        else:
            texts.append("no monitor tells whether servers sync every write")
        self.weak = "; ".join(texts)
        if self.weak:
            log.warning("the streams of %s are weak: %s", self._settings.prefix, self.weak)

    # Taking up

    def recover(self, partition: int) -> Recovered:
        """Fence everybody else by an epoch record, then give what the copy holds."""
        check_partition(partition, self.partitions)
        self._check_open()
        return self._wait(self._take_up(self._all[partition]))

    async def _take_up(self, one: _Partition) -> Recovered:
        self._check_idle(one)
        await self._end_follower(one)
        async with one.lock:
            with self._ordering:
                one.owned = False
            for _ in range(_TRIES):
                with self._told_holes(one):
                    await self._catch_up(one)
                    await self._compare_with_copies(one)
                if await self._append_epoch(one):
                    break
            else:
                text = f"others took partition {one.number} up again and again"
                raise EngineError(text, retriable=True)
            files = await self._files(one)
            self._tell(one, "")
            with self._ordering:
                one.end, one.owned, one.gone = one.copy.end, True, None
        end = one.end
        records, losses = files.replay(one.number)
        return Recovered(one.number, end.epoch, end.offset, end.slot, records, losses)

    def _check_idle(self, one: _Partition) -> None:
        if one.queue or (one.writer is not None and not one.writer.done()):
            raise EngineError(f"partition {one.number} has appends under way", retriable=True)

    async def _append_epoch(self, one: _Partition) -> bool:
        """Say in the stream that the partition is ours now; False where somebody was faster."""
        before = one.copy.end
        owner = Record(Type.EPOCH, [self._node.encode()])
        mine = before._replace(epoch=before.epoch + 1)
        _, headers, pieces = encode_commit([owner], self._identity.mark, one.number, mine)
        outcome = await self._publish(one, headers, pieces)
        if outcome is Outcome.UNAVAILABLE:
            text = f"partition {one.number} cannot be taken up: {self.troubles.get(one.number)}"
            raise EngineError(text, retriable=True)
        if outcome is Outcome.DURABLE:
            await self._keep_copy(one, headers, pieces)
        return outcome is Outcome.DURABLE

    async def _files(self, one: _Partition) -> FilesJournal:
        if one.copy.files is None:
            raise EngineError(f"partition {one.number} has no copy here", retriable=True)
        await self._serve(one)
        return one.copy.files

    # Appending

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Add a commit to each of these partitions; `done` is called on the journal's thread."""
        made: dict[int, tuple[End, _Append]] = {}
        with self._ordering:
            self._check_open()
            for partition, records in commits.items():
                check_partition(partition, self.partitions)
                one = self._all[partition]
                if not one.owned:
                    raise EngineError(f"partition {partition} was not taken up")
                if not records:
                    raise EngineError(f"the commit of partition {partition} is empty")
                end, headers, pieces = encode_commit(
                    records, self._identity.mark, partition, one.end
                )
                size = sum(map(len, pieces))
                made[partition] = end, _Append(headers, pieces, size, done)
            for partition, (end, commit) in made.items():
                self._all[partition].end = end
                self._all[partition].queue.append(commit)
                self._backlog += commit.size
            self._loop.call_soon_threadsafe(self._wake, list(made))

    def _wake(self, partitions: list[int]) -> None:
        for partition in partitions:
            one = self._all[partition]
            if one.writer is None or one.writer.done():
                one.writer = self._start(self._write(one))

    async def _write(self, one: _Partition) -> None:
        """Publish what waits, one message at a time."""
        while one.queue:
            some = self._group(one)
            outcome = one.gone
            if outcome is None:
                headers = [header for commit in some for header in commit.headers]
                pieces = [piece for commit in some for piece in commit.pieces]
                try:
                    outcome = await self._publish(one, headers, pieces)
                    if outcome is Outcome.DURABLE:
                        await self._keep_copy(one, headers, pieces)
                except Exception:  # those who wait must hear something
                    log.exception("partition %d cannot be written", one.number)
                    outcome, one.is_placed = Outcome.UNAVAILABLE, False
                if outcome is not Outcome.DURABLE:
                    one.gone = outcome
            self._settle(one, some, outcome)

    def _group(self, one: _Partition) -> list[_Append]:
        """The commits that go into the next message: as many as fit, or one."""
        room = room_of(self._client.max_payload)
        some: list[_Append] = []
        size = 0
        for commit in one.queue:
            size += commit.size
            if some and size > room:
                break
            some.append(commit)
            if len(some) == len(one.queue):  # others may append meanwhile
                break
        return some

    def _settle(self, one: _Partition, some: list[_Append], outcome: Outcome) -> None:
        """Take commits off the queue, and tell what became of them."""
        with self._ordering:
            for commit in some:
                one.queue.popleft()
                self._backlog -= commit.size
        for commit in some:
            try:
                commit.done({one.number: outcome})
            except Exception:  # the others must not suffer
                log.exception("an answer to a commit failed")

    async def _publish(
        self, one: _Partition, headers: list[Header], pieces: list[Piece]
    ) -> Outcome:
        """Add records to the stream, and wait for what becomes of them."""
        before = one.copy.end
        name = f"{self._session}-{headers[0].epoch}-{headers[0].number}"
        sequence = one.sequence
        for envelope, data in split(pieces, self._identity.mark, before, self._client.max_payload):
            outcome, sequence = await self._send(one, data, f"{name}-{envelope.part}", sequence)
            if outcome is not Outcome.DURABLE:
                one.is_placed = False
                return outcome
        one.sequence = one.last = sequence
        return Outcome.DURABLE

    async def _send(
        self, one: _Partition, data: bytes, id: str, expected: int
    ) -> tuple[Outcome, int]:
        """Send one message until it has an answer, or for too long."""
        sent = time.monotonic()
        ends = sent + self._settings.give_up
        while True:
            found, sequence, why = await one.stream.publish(data, id, expected)
            if found is Published.STORED:
                self.appends.count(time.monotonic() - sent)
                self._tell(one, "")
                return Outcome.DURABLE, sequence
            if found is Published.FENCED:
                self.fenced += 1
                self.told.append(("fenced", f"partition {one.number}: another node owns it"))
                return Outcome.LOST, 0
            self.retries += 1
            self.failures += 1
            self._tell(one, why)
            if time.monotonic() >= ends:
                return Outcome.UNAVAILABLE, 0
            await asyncio.sleep(PAUSE)

    async def _keep_copy(self, one: _Partition, headers: list[Header], pieces: list[Piece]) -> None:
        """Add records that are in the stream to the copy, however long that takes."""
        while one.copy.files is not None:
            try:
                one.copy.files.extend(headers, pieces)
            except EngineError as error:
                if not error.retriable:
                    raise
                self._tell(one, error.reason)
                await asyncio.sleep(PAUSE * 5)
            else:
                one.level = time.monotonic()
                self._tell(one, "")
                return

    def _tell(self, one: _Partition, trouble: str) -> None:
        """Say that nothing can be made durable in a partition, or that it can be again."""
        before = self.troubles.get(one.number, "")
        if trouble == before:
            return
        troubles = {**self.troubles, one.number: trouble}
        if not trouble:
            del troubles[one.number]
            log.warning("partition %d can be written again", one.number)
        elif not before:
            log.error("partition %d cannot be written: %s", one.number, trouble)
        self.troubles = troubles

    # Reading the stream into the copy

    async def _catch_up(self, one: _Partition) -> None:
        """Bring the copy up to the end that the stream has now. Raises EngineError, _HoleError."""
        state = await one.stream.state()
        one.last = max(one.last, state.last)
        one.copy.open()
        if not one.is_placed or one.copy.files is None:
            await self._place(one, state)
        idle = 0
        while one.sequence < state.last:
            following = one.sequence + 1
            for message in await one.stream.fetch(following):
                if message.sequence != one.sequence + 1 or not self._apply(one, message):
                    break
            if one.sequence >= following:
                idle = 0
                continue
            idle += 1
            if idle < _PATIENCE:  # a replica may lag behind
                await asyncio.sleep(PAUSE)
            else:
                await self._repair(one)
        one.level = time.monotonic()

    def _apply(self, one: _Partition, message: Stored) -> bool:
        """Take a message that follows into the copy; False where it is damaged, or does not."""
        envelope = Envelope.parse(message.data)
        if envelope is None or envelope.mark != self._identity.mark or one.copy.files is None:
            return False
        if envelope.before.number > one.copy.end.number:
            return False
        try:
            data = one.assembly.add(envelope, message.data)
        except ValueError:
            return False
        if data is not None:
            found = parse_records(data, one.copy.end)
            if found is None:
                return False
            headers, records = found
            if headers:
                one.copy.files.extend(headers, [records])
        self.copied += 1
        one.sequence = message.sequence
        return True

    async def _place(self, one: _Partition, state: State) -> None:
        """Find the message that the copy goes on with, or begin another copy."""
        one.assembly = Assembly()
        end = one.copy.end
        if state.last < state.first or not state.last:
            if end.number:
                raise _HoleError(f"the stream is empty, and the copy here ends with {end.number}")
            if one.copy.files is None:
                one.copy.begin(End())
            one.sequence = state.last
        else:
            first, envelope = await self._envelope(one, state.first, state.last)
            while envelope.part and first < state.last:  # the rest of a commit that was purged
                first, envelope = await self._envelope(one, first + 1, state.last)
            if one.copy.files is None or end.number < envelope.before.number:
                one.copy.begin(envelope.before)
                one.sequence = first - 1
            else:
                await self._place_within(one, State(first, state.last))
        one.is_placed = True

    async def _place_within(self, one: _Partition, state: State) -> None:
        """Go on with the message that holds the last record of the copy, or with the first."""
        end = one.copy.end
        following = await self._bisect(one, state, lambda before: before.number >= end.number)
        start = max(state.first, following - 1)
        while start > state.first and (await self._envelope(one, start, state.last))[1].part:
            start -= 1
        one.sequence = start - 1
        await self._compare(one, State(start, state.last))

    async def _compare(self, one: _Partition, state: State) -> None:
        """Restore what the copy has and the stream has lost at its end; see whether they differ.

        `state` begins with the message that the copy goes on with.
        """
        end = one.copy.end
        assembly = Assembly()
        found = End()
        for sequence in range(state.first, state.last + 1):
            message = next(iter(await one.stream.fetch(sequence, 1)), None)
            envelope = Envelope.parse(message.data) if message is not None else None
            if message is None or envelope is None or message.sequence != sequence:
                return  # a hole, which is found again when the message is applied
            try:
                data = assembly.add(envelope, message.data)
            except ValueError:
                return
            if data is None:
                continue
            parsed = parse_records(data, envelope.before)
            if parsed is None:
                return
            found = envelope.before
            for header in parsed[0]:
                found = found.behind(header)
                if header.number == end.number and header.checksum != end.checksum:
                    text = f"record {end.number} of the stream is another one than here"
                    self._set_aside(one, text)
                    await self._place(one, await one.stream.state())
                    return
            if found.number >= end.number:
                return
        if 0 < found.number < end.number:
            await self._restore(one, found, state.last)

    async def _restore(self, one: _Partition, found: End, last: int) -> None:
        """Append again what the stream has lost at its end, from the copy."""
        text = f"the stream has lost records {found.number + 1} to {one.copy.end.number}"
        files = one.copy.files
        records = list(files.raw(one.number, found.number + 1)) if files else []
        if not records or records[-1][0].number != one.copy.end.number:
            self._set_aside(one, text)
            await self._place(one, await one.stream.state())
            return
        name = f"{self._session}-restored-{found.number + 1}-{last}"
        pieces: list[Piece] = [data for _, data in records]
        parts = split(pieces, self._identity.mark, found, self._client.max_payload)
        for envelope, data in parts:
            outcome, last = await self._send(one, data, f"{name}-{envelope.part}", last)
            if outcome is not Outcome.DURABLE:
                raise EngineError(f"partition {one.number}: {text}", retriable=True)
        self._repaired(f"partition {one.number}: {text}; they were restored from a copy")
        one.sequence = one.last = last

    def _repaired(self, text: str) -> None:
        self.repairs += 1
        self.told.append(("repaired", text))
        log.warning("%s", text)

    def _broken(self, loss: Loss) -> None:
        """Report a hole, or damage, in the chain of records."""
        report(loss, self.losses)
        self.told.append(("chain_break", str(loss)))

    def _set_aside(self, one: _Partition, text: str) -> None:
        """Report that the stream has lost what this copy has, and keep the copy for people."""
        kept = one.copy.set_aside()
        self._broken(Loss(Harm.MISSING, one.stream.name, text, kept))

    async def _bisect(self, one: _Partition, state: State, is_behind: Callable[[End], bool]) -> int:
        """The first sequence before which the chain stood where `is_behind`; else last + 1."""
        low, high = state.first, state.last + 1
        while low < high:
            middle = (low + high) // 2
            found, envelope = await self._envelope(one, middle, state.last)
            if is_behind(envelope.before):
                high = middle
            else:
                low = found + 1
        return low

    async def _envelope(self, one: _Partition, sequence: int, last: int) -> tuple[int, Envelope]:
        """The envelope of a message, or of the next one that can be read."""
        for at in range(sequence, last + 1):
            for message in await one.stream.fetch(at, 1):
                envelope = Envelope.parse(message.data)
                if envelope is not None and envelope.mark == self._identity.mark:
                    return message.sequence, envelope
            message_of_leader = await one.stream.leaders(at)
            if message_of_leader is not None:
                envelope = Envelope.parse(message_of_leader.data)
                if envelope is not None and envelope.mark == self._identity.mark:
                    return at, envelope
        raise _HoleError(f"messages {sequence} to {last} cannot be read")

    # Holes

    async def _repair(self, one: _Partition) -> None:
        """Get the next message from any server, or its records from another node's copy."""
        sequence = one.sequence + 1
        silent = []
        async for where, message in self._everywhere(one, sequence):
            if where:
                silent.append(where)
            elif message is None or message.sequence != sequence:
                continue
            elif self._apply(one, message):
                text = "was hidden by a replica, and found at another"
                self._repaired(f"message {sequence} of {one.stream.name} {text}")
                return
        if await self._repair_from_copies(one):
            text = "is nowhere, and was found in another node's copy"
            self._repaired(f"message {sequence} of {one.stream.name} {text}")
            one.assembly = Assembly()
            one.sequence = sequence
            return
        text = f"message {sequence}, with records from {one.copy.end.number + 1} on, is missing"
        if silent:
            raise EngineError(
                f"{one.stream.name}: {text}; no answer: {', '.join(silent)}", retriable=True
            )
        raise _HoleError(text)

    async def _compare_with_copies(self, one: _Partition) -> None:
        """Restore the end of a stream, which a damaged server can lose without a trace.

        Raises _HoleError where another node has more than the stream, and does not give it.
        """
        told = [int(told["number"]) for told in await self._roll_call(one)]
        most = max(told, default=0)
        if most <= one.copy.end.number:
            return
        await self._catch_up(one)  # its owner may have appended meanwhile
        last = one.copy.end.number
        while one.copy.end.number < most and await self._repair_from_copies(one):
            pass
        if one.copy.end.number < most:
            text = f"the stream ends with record {last}, a copy of it with {most}"
            raise _HoleError(text)
        if last < most:
            await self._place(one, await one.stream.state())
            await self._catch_up(one)

    async def _everywhere(
        self, one: _Partition, sequence: int
    ) -> AsyncIterator[tuple[str, Stored | None]]:
        """A message as each server has it, or the server that gave no answer."""
        try:
            yield "", await one.stream.leaders(sequence)
        except EngineError:
            yield "the leader", None
        servers = {one.netloc: one.geturl() for one in self._client.servers}
        servers |= {one.netloc: one.geturl() for one in self._client.discovered_servers}
        for place, url in servers.items():
            try:
                async with self._connection(url) as client:
                    for _ in range(_ASKED):  # the answer may come from another one's replica
                        found = await fetch(client, one.stream.name, sequence, 1)
                        yield "", found[0] if found else None
            except EngineError:
                yield place, None

    @asynccontextmanager
    async def _connection(self, url: str) -> AsyncIterator[Client]:
        """A connection to one server."""
        client = await self._access.connect(
            f"wirelake {self._node} repair", [url], allow_reconnect=False
        )
        try:
            yield client
        finally:
            await client.close()

    @contextlib.contextmanager
    def _told_holes(self, one: _Partition) -> Iterator[None]:
        """Refuse a partition with a hole that nobody can fill, loudly."""
        try:
            yield
        except _HoleError as hole:
            loss = Loss(Harm.MISSING, one.stream.name, str(hole))
            if loss not in self.losses:
                self._broken(loss)
            if one.follower is None:
                self._tell(one, f"{loss}; the partition is refused")
            raise EngineError(f"partition {one.number} is refused: {loss}") from hole

    # What nodes ask of each other's copies

    async def _serve(self, one: _Partition) -> None:
        """Answer other nodes that ask for records of a partition."""
        if one.served:
            return
        one.served = True

        async def answer(message: Msg) -> None:
            await self._answer(one, message)

        subject = f"{self._settings.prefix}.copies.{one.number}"
        await self._client.subscribe(subject, cb=answer)
        await self._client.subscribe(f"{subject}.{self._session}", cb=answer)

    async def _answer(self, one: _Partition, message: Msg) -> None:
        """Tell where the copy ends, or send the records of whole commits from a number on."""
        files = one.copy.files
        with contextlib.suppress(ValueError, nats.errors.Error):
            asked = json.loads(message.data) if message.data else {}
            if files is None:
                return
            if "from" not in asked:
                end = one.copy.end
                told = {"node": self._session, "number": end.number, "sequence": one.sequence}
                await message.respond(json.dumps(told).encode())
                return
            room = room_of(self._client.max_payload)
            commit: list[bytes] = []
            sent = 0
            for header, data in files.raw(one.number, int(asked["from"])):
                commit.append(data)
                if not header.is_last:
                    continue
                whole = b"".join(commit)
                for k in range(0, len(whole), room):
                    await message.respond(whole[k : k + room])
                commit, sent = [], sent + len(whole)
                if sent >= room:
                    break
            await message.respond(b"")

    async def _roll_call(self, one: _Partition) -> list[dict[str, Any]]:
        """How far the copies of other nodes are."""
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        found = []
        try:
            subject = f"{self._settings.prefix}.copies.{one.number}"
            await self._client.publish(subject, b"", reply=inbox)
            ends = time.monotonic() + _ROLL_CALL
            while (left := ends - time.monotonic()) > 0:
                message = await subscription.next_msg(timeout=left)
                told = json.loads(message.data) if message.data else {}
                if told and told["node"] != self._session:
                    found.append(told)
        except (nats.errors.Error, TimeoutError, ValueError):
            pass
        finally:
            await subscription.unsubscribe()
        return found

    async def _repair_from_copies(self, one: _Partition) -> bool:
        """Take the next records from another node's copy, if one has them."""
        for told in await self._roll_call(one):
            if told["number"] <= one.copy.end.number or one.copy.files is None:
                continue
            inbox = self._client.new_inbox()
            subscription = await self._client.subscribe(inbox)
            pieces = []
            try:
                subject = f"{self._settings.prefix}.copies.{one.number}.{told['node']}"
                asked = {"from": one.copy.end.number + 1}
                await self._client.publish(subject, json.dumps(asked).encode(), reply=inbox)
                while piece := (await subscription.next_msg(timeout=ANSWER)).data:
                    pieces.append(piece)
            except (nats.errors.Error, TimeoutError):
                continue
            finally:
                await subscription.unsubscribe()
            found = parse_records(b"".join(pieces), one.copy.end)
            if found is not None and found[0]:
                one.copy.files.extend(found[0], [found[1]])
                return True
        return False

    # Following

    def follow(self, partition: int) -> None:
        """Copy a partition that another node owns, from now on; returns at once.

        Raises EngineError (retriable) while appends to it have no outcome.
        """
        check_partition(partition, self.partitions)
        self._check_open()
        one = self._all[partition]

        async def begin() -> None:
            if one.follower is None or one.follower.done():
                self._check_idle(one)
                with self._ordering:
                    one.owned = False
                one.follower = self._start(self._follow(one))

        self._wait(begin())

    def unfollow(self, partition: int, *, forget: bool = False) -> None:
        """Stop copying a partition; `forget` removes the copy, and lets go of it as its owner.

        Raises EngineError (retriable) while appends to it have no outcome.
        """
        check_partition(partition, self.partitions)
        one = self._all[partition]

        async def end() -> None:
            self._check_idle(one)
            await self._end_follower(one)
            if forget:
                async with one.lock:
                    with self._ordering:
                        one.owned = False
                    one.is_placed = False
                    one.copy.remove()

        self._wait(end())

    def lag(self, partition: int) -> Lag:
        """How far the copy of a partition is behind its stream."""
        check_partition(partition, self.partitions)
        one = self._all[partition]
        behind = max(0, one.last - one.sequence)
        return Lag(behind, time.monotonic() - one.level if behind else 0.0)

    async def _end_follower(self, one: _Partition) -> None:
        follower, one.follower = one.follower, None
        if follower is not None:
            await _cancel([follower])

    async def _follow(self, one: _Partition) -> None:
        """Copy what is in the stream, and what comes."""

        async def hear(message: Msg) -> None:
            with contextlib.suppress(ValueError):
                one.last = max(one.last, int((message.headers or {}).get("Nats-Sequence", 0)))
            one.heard.set()

        subscription = await self._client.subscribe(one.stream.told, cb=hear)
        told = ""
        try:
            while True:
                one.heard.clear()
                try:
                    async with one.lock:
                        with self._told_holes(one):
                            await self._catch_up(one)
                    await self._files(one)
                    told = ""
                except EngineError as error:
                    if error.reason != told:
                        told = error.reason
                        log.warning("partition %d is not copied: %s", one.number, told)
                    await asyncio.sleep(_LOOK)
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(one.heard.wait(), _LOOK)
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    # Reading

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The batches that hold places [start, stop) of a space, in order, from the copy.

        Raises EngineError (retriable) for a partition that this node neither owns nor follows.
        """
        check_partition(partition, self.partitions)
        files = self._all[partition].copy.files
        if files is None:
            text = f"partition {partition} is neither owned nor followed here"
            raise EngineError(text, retriable=True)
        return files.read(partition, start, stop, space=space, may_match=may_match)

    def can_fetch_again(self, partition: int) -> bool:
        """Whether the copy was found damaged: to take the partition up begins it anew."""
        files = self._all[partition].copy.files
        return files is not None and files.is_damaged

    def positions(self) -> list[Position]:
        """Where each partition begins and ends; those without a copy here are told as empty."""
        return [self._position(one) for one in self._all]

    def _position(self, one: _Partition) -> Position:
        files = one.copy.files
        if files is None:
            return Position(one.number)
        found = files.position(one.number)
        with self._ordering:
            if not one.owned:
                return found
            return replace(found, number=one.end.number + 1, slot=one.end.slot)

    @property
    def backlog(self) -> int:
        """The bytes that were appended and have no outcome."""
        return self._backlog

    # Housekeeping

    def keep(self, partition: int, needed: Needed) -> None:
        """Say what the partition's state refers to, with all that was appended before this call."""
        check_partition(partition, self.partitions)
        one = self._all[partition]
        files = one.copy.files
        if files is not None:
            with self._ordering:
                number = one.end.number
            files.keep(partition, needed, number=number)

    def retain(self, rules: Sequence[Rule]) -> None:
        """Keep rows of the log as long as these rules say, from now on."""
        self._rules = rules

    async def _keep_house(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            for one in self._all:
                try:
                    await self._tidy(one, time.time())
                except EngineError as error:
                    log.warning("partition %d was not tidied: %s", one.number, error)
                except Exception:  # what is kept matters more than what is tidy
                    log.exception("partition %d was not tidied", one.number)

    def tidy(self, now: float) -> None:
        """Apply retention to all copies here, and purge the streams of partitions that we own.

        Raises EngineError (retriable).
        """

        async def tidy() -> None:
            for one in self._all:
                await self._tidy(one, now)

        self._wait(tidy())

    async def _tidy(self, one: _Partition, now: float) -> None:
        files = one.copy.files
        if files is None:
            return
        files.rules = self._rules
        await asyncio.get_running_loop().run_in_executor(None, files.tidy, now)
        if not one.owned or one.gone is not None:
            return
        oldest = files.oldest(one.number)
        state = await one.stream.state()
        if not oldest.number or state.last <= state.first:
            return

        def is_behind(before: End) -> bool:
            return (
                before.number >= oldest.number
                or before.offset > oldest.offset
                or before.slot > oldest.slot
            )

        # The message before the first that is behind holds something that is needed.
        sequence = await self._bisect(one, state, is_behind) - 1
        standbys = [int(told["sequence"]) + 1 for told in await self._roll_call(one)]
        sequence = min([sequence, state.last, *standbys])
        while sequence > state.first:  # a commit in parts goes as a whole
            _, envelope = await self._envelope(one, sequence, state.last)
            if not envelope.part:
                break
            sequence -= 1
        if sequence > state.first:
            await one.stream.purge(sequence)

    # The end

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the journal is closed")

    def close(self) -> None:
        """Try once more to make everything durable, and let go."""
        with self._ordering:
            if self._closed:
                return
            self._closed = True
            calls = list(self._calls)
        for call in calls:  # or their threads would wait for a loop that has stopped, for ever
            call.cancel()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._stop()

    async def _close(self) -> None:
        writers = [one.writer for one in self._all if one.writer is not None]
        if writers:
            await asyncio.wait(writers, timeout=ANSWER if self.troubles else self._settings.give_up)
        await _cancel(list(self._tasks))
        for one in self._all:
            self._settle(one, list(one.queue), one.gone or Outcome.UNAVAILABLE)
            one.copy.close()
        # The client cancels tasks of its own, and may let that through where a server stands still.
        # It writes what still waits, even to a transport that is closed: a RuntimeError.
        ended = (nats.errors.Error, OSError, TimeoutError, RuntimeError, asyncio.CancelledError)
        with contextlib.suppress(*ended):
            await asyncio.wait_for(self._client.close(), ANSWER)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End tasks, again and again: up to Python 3.11 `wait_for` may swallow a cancellation."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=PAUSE)
