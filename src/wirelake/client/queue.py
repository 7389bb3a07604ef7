"""Queues, as a client sees them: messages that are kept until a consumer has acknowledged them.

A delivery belongs to the connection that brought it. When that is lost, or its consumer leaves, the
broker delivers the message again, and a late acknowledgement is refused. So a consumer must
acknowledge its messages before it leaves.

The names of ops and parameters are those of the specification (queues; kobold; tmq 4 to 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import check_topic
from wirelake.client.connection import Line
from wirelake.client.inbox import Arrivals
from wirelake.client.outgoing import message_for
from wirelake.client.speech import can, require, settlement
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message

if TYPE_CHECKING:
    from wirelake.client.lines import Lines

#: What a consumer may have unacknowledged, where it does not say (spec: one model).
PREFETCH = 100
#: The longest delay, in milliseconds, and the most messages that one `get` asks for.
MAX_DELAY = 0x7FFFFFFF
MAX_COUNT = 999_999_999
MODES = ("round-robin", "push", "pull", "broadcast")


class Delivery:
    """A message of a queue, to be settled by `ack` or `nack`."""

    __slots__ = ("_epoch", "_line", "attempt", "message")

    def __init__(self, message: Message, attempt: int = 0, line: Line | None = None) -> None:
        self.message = message
        self.attempt = attempt  # from 1; 0 where the dialect does not tell
        self._line = line  # none where handing it over has settled it
        self._epoch = line.epoch if line else 0

    def __repr__(self) -> str:
        return f"<delivery {self.attempt} of {self.message.id} from {self.message.address}>"

    @classmethod
    def heard(cls, message: Message, line: Line) -> Delivery:
        """A queue message that came by a connection and wants to be settled."""
        said = message.parameters
        attempt = int(bool(message.flags & Flag.FIRST)) if said.attempt is None else said.attempt
        return cls(replace(message, parameters=said.but(attempt=None)), attempt, line)

    async def ack(self, *, timeout: float | None = None) -> None:
        """Acknowledge it; return when the broker has confirmed it (in TMQ: has read it)."""
        if self._line is not None:
            await self._line.ask(
                lambda speech: speech.settle(self.message, done=True), timeout, epoch=self._epoch
            )

    async def nack(self, requeue: bool = True, *, timeout: float | None = None) -> None:
        """Refuse it: it returns to the queue, or without `requeue` becomes a dead letter."""
        require(self.message.dialect, "nack")
        if not requeue:
            require(self.message.dialect, "nack without requeue")
        if self._line is None:
            raise RefusedError("bad_request", f"{self.message.address} is a topic, not a queue")
        await self._line.ask(
            lambda speech: speech.settle(self.message, done=False, requeue=requeue),
            timeout,
            epoch=self._epoch,
        )

    def taken(self) -> Message:
        """The message, acknowledged by its being taken; for those who asked for messages."""
        if self._line is not None:
            self._line.mention(settlement(self.message, done=True), self._epoch)
        return self.message

    def give_back(self) -> None:
        """Return it to the queue, as nothing here consumes it."""
        if self._line is not None:
            said = self._line.speech.settle(self.message, done=False)
            self._line.mention(said.message, self._epoch)


class Pull:
    """A request for a number of messages, and those that have come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken: list[Delivery] = []

    @property
    def wants_more(self) -> bool:
        """Are there fewer than it asked for?"""
        return len(self.taken) < self._count


class Queue:
    """A queue by its name; made by `Client.queue`."""

    def __init__(self, lines: Lines, name: str) -> None:
        self.name = check_topic(name)
        self._lines = lines

    def __repr__(self) -> str:
        return f"<queue {self.name} of {self._lines.place}>"

    async def put(
        self,
        payload: bytes,
        *,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl: int = 0,
        delay: int = 0,
        ack: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Put a message into the queue; with `ack`, return when it is durable.

        By default `ack` is true if the dialect supports it. `delay` and `ttl` are in milliseconds
        (a ttl of TMQ is a number of hops). Creates the queue if it does not exist; boson-text and
        mfp cannot.
        """
        if delay:
            require(self._lines.dialect, "delay")
            if not 0 <= delay <= MAX_DELAY:
                raise RefusedError("bad_request", f"a delay is 0 to {MAX_DELAY} ms")
            headers = {**(headers or {}), "delay": str(delay)}
        message = message_for(self._lines.dialect, self.name, payload, id, headers, priority, ttl)
        if ack is None:
            ack = can(self._lines.dialect, "acknowledgement of a publish")
        elif ack:
            require(self._lines.dialect, "acknowledgement of a publish")
        line = self._lines.line()
        await self._declare_once(line)
        if ack:
            await line.ask(lambda speech: speech.put(message, ack=True), timeout)
        else:
            await line.send(lambda speech: [speech.put(message, ack=False).message], timeout)

    def consume(self, *, prefetch: int = PREFETCH) -> Arrivals[Delivery]:
        """Consume the queue; use `async for`, or `async with` and then `async for`.

        At most `prefetch` messages are unacknowledged at a time. When the loop is left,
        unacknowledged messages return to the queue.
        """
        if not 1 <= prefetch <= MAX_COUNT:
            raise RefusedError("bad_request", f"a prefetch is 1 to {MAX_COUNT}")
        if prefetch != PREFETCH:
            require(self._lines.dialect, "prefetch")
        inbox = self._lines.inbox()
        return Arrivals(
            inbox,
            lambda: self._lines.join(self.name, inbox, prefetch),
            lambda: self._lines.leave(self.name, inbox),
            lambda item: item if isinstance(item, Delivery) else Delivery(item),
            (Delivery, Message),
        )

    async def get(self, count: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Take up to `count` messages, waiting up to `wait` seconds for that many."""
        require(self._lines.dialect, "pull")
        if wait:
            require(self._lines.dialect, "pull that waits")
        if not 1 <= count <= MAX_COUNT or not 0 <= wait * 1000 <= MAX_COUNT:
            raise RefusedError("bad_request", "a count is 1 or more, a wait 0 s or more")
        line = self._lines.line()
        pull = Pull(count)
        pulls = self._lines.subscriptions.pulls.setdefault(self.name, [])
        pulls.append(pull)
        try:
            await line.ask(
                lambda speech: speech.dequeue(self.name, count, wait), line.settings.timeout + wait
            )
        except BaseException:
            for delivery in pull.taken:
                delivery.give_back()
            raise
        finally:
            pulls.remove(pull)
            if not pulls:
                self._lines.subscriptions.pulls.pop(self.name, None)
        return pull.taken

    async def declare(
        self, *, mode: str = "round-robin", ack_timeout: float = 30.0, max_deliveries: int = 5
    ) -> None:
        """Create the queue; RefusedError (`exists`) if there is one. TMQ only."""
        require(self._lines.dialect, "declaration of queues")
        if mode not in MODES:
            raise RefusedError("bad_request", f"{mode} is no mode; there are {', '.join(MODES)}")
        line = self._lines.line()
        await line.ask(lambda s: s.declare(self.name, mode, ack_timeout, max_deliveries))
        self._lines.declared[self.name] = line.epoch

    async def remove(self) -> None:
        """Remove the queue with its messages. TMQ only."""
        require(self._lines.dialect, "declaration of queues")
        self._lines.declared.pop(self.name, None)
        await self._lines.line().ask(lambda speech: speech.remove(self.name))

    async def _declare_once(self, line: Line) -> None:
        """Make the queue where the dialect's word for putting would not, once a connection."""
        declared = self._lines.declared
        if not can(self._lines.dialect, "declaration of queues"):
            return
        if declared.get(self.name) != line.epoch:
            try:
                await line.ask(lambda speech: speech.make_queue(self.name))
            except RefusedError as error:
                if error.code != "exists":
                    raise
            declared[self.name] = line.epoch
