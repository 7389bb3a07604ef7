"""The broker's data store, as a client sees it: keys with a value and a revision.

A watch has its own connection, since no dialect can cancel a watch except by disconnecting. It
reconnects when it is lost. A watch from a revision then asks for the latest change of every key
again, and skips what it has already yielded, so it misses no key's latest state; a watch without a
revision misses what changed in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wirelake.address import check_filter, check_topic, has_wildcard
from wirelake.client.connection import Line
from wirelake.client.inbox import Arrivals, Inbox
from wirelake.client.speech import Ask, Sort, Speech
from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import LARGEST, NO_PARAMETERS, Message, Op, Parameters

if TYPE_CHECKING:
    from wirelake.client.lines import Lines

MAX_TTL = LARGEST["ttl"]

log = logging.getLogger("wirelake.client")


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value, and how often the key has changed."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a key; without a value, the key was deleted."""

    key: str
    value: bytes | None
    revision: int


class Store:
    """The data store; `Client.store`. Times to live are in milliseconds."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> int:
        """Create a key; return its revision. RefusedError (`exists`) if it exists."""
        return _revision(await self._ask(Op.CREATE, key, value, ttl=ttl))

    async def read(self, key: str) -> Entry:
        """Return a key with its value; RefusedError (`not_found`) if it does not exist."""
        answer = await self._ask(Op.READ, key)
        return Entry(key, answer.payload, _revision(answer))

    async def update(
        self, key: str, value: bytes, *, revision: int | None = None, ttl: int = 0
    ) -> int:
        """Change a key; return its new revision.

        RefusedError: `not_found`, or `conflict` if the key has another revision than `revision`.
        """
        return _revision(await self._ask(Op.UPDATE, key, value, revision, ttl))

    async def put(self, key: str, value: bytes, *, ttl: int = 0) -> int:
        """Create or update a key; return its revision."""
        while True:  # each time around, somebody else made or deleted it in between
            try:
                return await self.update(key, value, ttl=ttl)
            except RefusedError as error:
                if error.code != "not_found":
                    raise
            try:
                return await self.create(key, value, ttl=ttl)
            except RefusedError as error:
                if error.code != "exists":
                    raise

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Delete a key; return its last revision. RefusedError as for `update`."""
        return _revision(await self._ask(Op.DELETE, key, revision=revision))

    async def keys(self, filter: str = "#") -> list[Entry]:
        """Return the keys that match a filter, with their values, ordered by name."""
        check_filter(filter)
        if not has_wildcard(filter):
            try:
                return [await self.read(filter)]
            except RefusedError as error:
                if error.code != "not_found":
                    raise
                return []
        found: list[Message] = []
        await self._lines.line().ask(
            lambda speech: speech.control(Message(op=Op.READ, address=filter)), parts=found
        )
        entries = [Entry(one.address, one.payload, _revision(one)) for one in found]
        return sorted(entries, key=lambda entry: entry.key)

    def watch(self, filter: str, *, revision: int | None = None) -> Arrivals[Change]:
        """Watch the changes of all keys that match a filter, from now on.

        With a revision, first yields the latest change of every key whose revision is at least
        that: 1 yields all keys.
        """
        check_filter(filter)
        if revision is not None and revision < 1:
            raise RefusedError("bad_request", "revisions count from 1")
        inbox = self._lines.inbox()
        watch = _Watch(filter, revision, inbox)

        name = f"watch {id(watch)}"

        async def begin() -> None:
            line = await self._lines.open_line(name, watch)
            try:
                await line.insist(watch.ask)
            except BaseException:
                await end()
                raise

        async def end() -> None:
            await self._lines.close_line(name)

        return Arrivals(inbox, begin, end, lambda change: change, (Change,))

    async def _ask(
        self,
        op: Op,
        key: str,
        value: bytes = b"",
        revision: int | None = None,
        ttl: int = 0,
    ) -> Message:
        if not 0 <= ttl <= MAX_TTL:
            raise RefusedError("bad_request", f"a ttl is 0 to {MAX_TTL} ms")
        message = Message(check_topic(key), bytes(value), ttl=ttl, op=op, parameters=_rev(revision))
        return await self._lines.line().ask(lambda speech: speech.control(message))


class _Watch:
    """The owner of a connection that tells changes, and of nothing else."""

    def __init__(self, filter: str, revision: int | None, inbox: Inbox[Change]) -> None:
        self._filter = filter
        self._revision = revision
        self._inbox = inbox
        self._told: dict[str, int] = {}  # the revision of each key, to leave out what is repeated

    def ask(self, speech: Speech) -> Ask:
        """What is asked of a new connection."""
        said = _rev(self._revision)
        return speech.control(Message(op=Op.WATCH, address=self._filter, parameters=said))

    def take_in(self, line: Line, message: Message, sort: Sort) -> Iterable[Inbox[Any]]:
        """A change."""
        if sort is not Sort.CHANGE:
            return ()
        key, revision = message.address, _revision(message)
        if self._revision is not None:
            if self._told.get(key, 0) >= revision:
                return ()
            self._told[key] = revision
        value = message.payload if message.op == Op.SET else None
        self._inbox.put(Change(key, value, revision), len(message.payload))
        return (self._inbox,)

    def refused(self, line: Line, message: Message, refusal: RefusedError) -> None:
        """Nothing was said that could be."""

    async def restore(self, line: Line) -> None:
        """Watch again."""
        try:
            await line.ask_now(self.ask(line.speech))
        except RefusedError as error:
            if error.code == "closed":
                raise
            log.error("%s: watching %s is not possible any more: %s", line, self._filter, error)
            self._inbox.end(error)

    def went_down(self, line: Line) -> None:
        """What was told stays true."""

    def ended(self, line: Line, error: WirelakeError | None) -> None:
        """No more changes."""
        self._inbox.end(error)


def _revision(message: Message) -> int:
    return message.parameters.rev or 0


def _rev(revision: int | None) -> Parameters:
    return NO_PARAMETERS if revision is None else Parameters(rev=revision)
