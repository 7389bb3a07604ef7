"""Runs members and ownership of one node over NATS: heartbeats, the table, take-overs, hand-overs.

`Partitions` is what it needs of the journal and the broker. Decisions are made in one task;
take-overs of several partitions run beside each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from wirelake.cluster.bus import Bus
from wirelake.cluster.members import MAX_MEMBERS, Event, Heartbeat, Members, Timing
from wirelake.cluster.ownership import (
    Action,
    Drop,
    LetGo,
    Ownership,
    Read,
    Serve,
    TakeUp,
    Write,
    decode_table,
    encode_table,
)
from wirelake.errors import EngineError, RefusedError, WirelakeError

log = logging.getLogger("wirelake.cluster")

#: A planned stop waits this long for others to take over (seconds).
GRACE = 5.0


class Partitions(Protocol):
    """What a node does with partitions: the journal and the broker, as ownership needs them."""

    async def take_up(self, partition: int) -> tuple[int, float]:
        """Fence everybody else and replay; return the epoch, and when its record was sent.

        The time is that of `time.monotonic`. Raises EngineError where it cannot be done now.
        """

    def serve(self, partition: int) -> None:
        """Accept requests for a partition from now on."""

    async def let_go(self, partition: int) -> None:
        """Accept nothing more, wait until all that was appended is durable, forget the state."""

    def drop(self, partition: int) -> None:
        """Forget the state of a partition that somebody else has."""


class Command(msgspec.Struct, frozen=True):
    """What an operator asks of a node."""

    drain: bool | None = None
    move: tuple[int, str] | None = None


class Coordinator:
    """One node's part in the cluster."""

    def __init__(
        self,
        bus: Bus,
        me: Heartbeat,
        partitions: int,
        work: Partitions,
        timing: Timing = Timing(),  # noqa: B008 - immutable
        most: int = MAX_MEMBERS,
    ) -> None:
        self.bus = bus
        self.timing = timing
        self.members = Members(me, time.monotonic(), timing, most=most)
        self.ownership = Ownership(self.members, partitions)
        #: Called with each event.
        self.on_event: Callable[[Event], object] = lambda event: log.info("%s", event)
        #: Called after every change of members, owners, or what this node serves.
        self.on_change: Callable[[], object] = lambda: None
        #: Bytes by which this node's copies of others' partitions are behind.
        self.lag: Callable[[], dict[int, int]] = dict
        self._partitions = partitions
        self._work = work
        self._loop_task: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        #: Set when this node has left the cluster because an older one has its name.
        self.has_ended = asyncio.Event()
        self._born = self.members.started
        self._beats_at = 0.0
        self._is_draining = False
        self._names: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Join the cluster; raises EngineError where NATS cannot be reached."""
        await self.bus.subscribe("beat", self._hear)
        await self.bus.answer(f"node.{self.members.me.node}", self._command)
        self._loop_task = asyncio.create_task(self._run())

    def _hear(self, _: str, data: bytes) -> None:
        before = len(self.members.alive()), self.members.newest_revision()
        self.members.hear(data, time.monotonic())
        if (len(self.members.alive()), self.members.newest_revision()) != before:
            self._wake.set()

    async def _command(self, data: bytes) -> bytes:
        """Do what an operator asks for; the answer is empty, or says why not."""
        try:
            command = msgspec.json.decode(data, type=Command)
            if command.move is not None:
                self.ownership.move(*command.move)
            if command.drain is not None:
                self._is_draining = command.drain
                self._beats_at = 0.0
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return f"bad_request: {error}".encode()
        except RefusedError as error:
            return str(error).encode()
        self._wake.set()
        return b""

    async def _run(self) -> None:
        while not self.members.is_second:
            now = time.monotonic()
            try:
                if now >= self._beats_at:
                    self._beats_at = now + self.timing.beat
                    await self._beat(now)
                self.members.step(now)
                self._act(self.ownership.step(now))
                self._tell()
                if (names := frozenset(self.members.alive())) != self._names:
                    self._names = names
                    self.on_change()
            except Exception:
                log.exception("the cluster missed a step")  # and must not stop for that
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self.timing.beat / 10)
        for partition in self.ownership.owned():
            self._work.drop(partition)
        log.critical("another node is called %s: this one has left", self.members.me.node)
        self.has_ended.set()

    async def _beat(self, now: float) -> None:
        data = self.members.beat(
            age=now - self._born,
            owned=self.ownership.owned(),
            revision=self.ownership.revision,
            draining=self._is_draining or self.ownership.is_leaving,
            deaf=self.members.is_deaf(now),
            lag=self.lag(),
        )
        await self.bus.publish("beat", data)

    def _tell(self) -> None:
        while self.members.events:
            self.on_event(self.members.events.popleft())

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Serve(partition):
                    self._work.serve(partition)
                    self._beats_at = 0.0
                    self.on_change()
                case Drop(partition):
                    self._work.drop(partition)
                    self._beats_at = 0.0
                    self.on_change()
                case _:
                    if isinstance(action, LetGo):
                        self.on_change()  # nothing more comes before the last append
                    job = asyncio.create_task(self._do(action))
                    self._jobs.add(job)
                    job.add_done_callback(self._jobs.discard)

    async def _do(self, action: Action) -> None:
        """Do what takes time, and tell the decisions how it ended."""
        try:
            match action:
                case Read():
                    await self._read()
                case Write(table, revision):
                    await self._write(encode_table(table), revision)
                case TakeUp(partition):
                    await self._take_up(partition)
                case LetGo(partition):
                    await self._work.let_go(partition)
                    self.ownership.let_go(partition)
        except Exception:
            log.exception("%s failed", action)
            if isinstance(action, Read | Write):
                self.ownership.read_failed()
        self._wake.set()

    async def _read(self) -> None:
        try:
            data, revision = await self.bus.read_table()
            table = None if data is None else decode_table(data, self._partitions)
        except EngineError as error:
            log.warning("%s", error)
            await asyncio.sleep(self.timing.beat)
            self.ownership.read_failed()
            return
        self.ownership.read(table, revision)
        self.on_change()

    async def _write(self, data: bytes, revision: int) -> None:
        try:
            written = await self.bus.write_table(data, revision)
        except EngineError as error:
            log.warning("%s", error)
            written = 0
        if written:
            self.ownership.wrote(written)
            self._beats_at = 0.0  # so that the others read it at once
            self.on_change()
        else:
            self.ownership.write_failed()

    async def _take_up(self, partition: int) -> None:
        try:
            epoch, sent = await self._work.take_up(partition)
        except WirelakeError as error:
            log.warning("partition %d cannot be taken up: %s", partition, error)
            self.ownership.not_taken_up(partition, time.monotonic())
            return
        except Exception:
            self.ownership.not_taken_up(partition, time.monotonic())
            raise
        self._act(self.ownership.taken_up(partition, epoch, sent, time.monotonic()))

    def proved(self, partitions: Iterable[int], sent: float) -> None:
        """Appends that were sent at `sent` became durable."""
        for partition in partitions:
            self.ownership.proved(partition, sent)

    def may_read(self, partition: int) -> bool:
        """Whether this node may answer reads of a partition from memory, without an append."""
        return self.ownership.may_read(partition, time.monotonic())

    def lost(self, partition: int) -> None:
        """An append was fenced."""
        self._act(self.ownership.lost(partition, time.monotonic()))
        self._wake.set()

    async def stop(self, grace: float = GRACE) -> None:
        """Hand all partitions over, say goodbye, and leave the cluster."""
        self.ownership.is_leaving = True
        await self._beat(time.monotonic())  # so that nobody hands anything to this node
        self._wake.set()
        deadline = time.monotonic() + grace
        while not self.ownership.has_let_go and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        await self.bus.publish("beat", self.members.leave())
        await self.bus.flush()
        await self.abort()

    async def abort(self) -> None:
        """Stop at once and hand nothing over."""
        await end_tasks(one for one in (self._loop_task, *self._jobs) if one is not None)


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks until all have ended: up to Python 3.11 `wait_for` may swallow a cancellation.

    It does where what it waits for comes in the same turn; a task that loops would never end.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)


async def ask(bus: Bus, node: str, command: Command) -> None:
    """Let a node do what an operator asks for; raises RefusedError or EngineError."""
    answer = await bus.request(f"node.{node}", msgspec.json.encode(command))
    if answer:
        code, _, text = answer.decode(errors="replace").partition(": ")
        raise RefusedError(code, text)
