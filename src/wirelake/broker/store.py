"""The data store: keys with a value and a revision, and those who watch them.

A revision counts a key's changes from 1 and is never used twice, not even after a delete, so a
deleted key keeps its last one (spec: data store). A change is answered, and told to watchers, when
it is durable.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import check_filter, check_topic, matches
from wirelake.broker.subscriptions import FilterIndex
from wirelake.engine.base import Entry
from wirelake.errors import RefusedError
from wirelake.message import Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session


class Store:
    """Every key's latest state, and who watches which keys."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._entries: dict[str, Entry] = {entry.key: entry for entry in node.engine.entries()}
        self._changing: Counter[str] = Counter()  # changes that are not durable yet
        self._watchers: FilterIndex[Session] = FilterIndex()
        self._watched: dict[Session, list[str]] = {}
        self._deadlines = [
            (entry.expires - node.epoch, entry.key)
            for entry in self._entries.values()
            if entry.expires
        ]
        heapq.heapify(self._deadlines)
        self._ends = {key: ends for ends, key in self._deadlines}

    def create(self, session: Session, message: Message, now: float) -> Entry:
        """A new key; refused if it is there."""
        old = self._entry(session, message.address)
        if old is not None and old.value is not None:
            raise RefusedError("exists", f"{message.address} is there, revision {old.revision}")
        return self._change(session, message.address, old, message.payload, message.ttl, now)

    def read(self, session: Session, message: Message) -> Entry:
        """A key's latest state; refused if it is not there."""
        return self._present(session, message.address)

    def update(self, session: Session, message: Message, now: float) -> Entry:
        """A new value for a key that is there, and has the revision that is expected, if any."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(session, message.address, old, message.payload, message.ttl, now)

    def delete(self, session: Session, message: Message, now: float) -> Entry:
        """Remove a key that is there, and has the revision that is expected, if any."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(session, message.address, old, None, 0, now)

    def matching(self, session: Session, filter: str) -> list[Entry]:
        """The keys that a filter matches, those deleted too, in order."""
        check_filter(filter)
        if not session.rights.allows("store", filter):
            raise RefusedError("unauthorized", f"no right to the keys {filter}")
        return [self._entries[key] for key in sorted(self._entries) if matches(filter, key)]

    def watch(self, session: Session, filter: str, since: int | None) -> None:
        """Tell a session every change of the keys that a filter matches, from now on.

        With `since`, first the latest change of every key that has come to that revision
        (decision 40). All of it is told when it is durable, and so in order.
        """
        known = self.matching(session, filter)
        if self._watchers.add(filter, session):
            self._watched.setdefault(session, []).append(filter)
        if since is not None:
            latest = [entry for entry in known if entry.revision >= since]
            self._node.after(lambda: session.send_all(self._unchanged(latest)))

    def _unchanged(self, entries: list[Entry]) -> Iterator[Message]:
        """The changes that made these entries, but of keys that have changed again since."""
        return (change(entry) for entry in entries if self._entries.get(entry.key) is entry)

    def left(self, session: Session) -> None:
        """A session has ended: it watches no more."""
        for filter in self._watched.pop(session, []):
            self._watchers.remove(filter, session)

    def tick(self, now: float) -> None:
        """Delete the keys whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now:
            expires, key = heapq.heappop(self._deadlines)
            entry = self._entries[key]
            if entry.value is not None and self._ends.get(key) == expires:
                self._change(None, key, entry, None, 0, now)

    def _entry(self, session: Session, key: str) -> Entry | None:
        check_topic(key)
        if not session.rights.allows("store", key):
            raise RefusedError("unauthorized", f"no right to the key {key}")
        return self._entries.get(key)

    def _present(self, session: Session, key: str) -> Entry:
        entry = self._entry(session, key)
        if entry is None or entry.value is None:
            raise RefusedError("not_found", f"no key {key}")
        return entry

    def _expect(self, entry: Entry, message: Message) -> None:
        expected = message.headers.get("$rev", "")
        if expected and not expected.isdecimal():
            raise RefusedError("bad_request", f"a revision is a number, not {expected}")
        if expected and int(expected) != entry.revision:
            raise RefusedError(
                "conflict", f"{entry.key} has revision {entry.revision}, not {expected}"
            )

    def _change(
        self,
        session: Session | None,
        key: str,
        old: Entry | None,
        value: bytes | None,
        ttl: int,
        now: float,
    ) -> Entry:
        self._node.capture.check_disk()
        ends = now + ttl / 1000 if ttl else 0.0
        entry = Entry(
            key, old.revision + 1 if old else 1, value, ends + self._node.epoch if ends else 0.0
        )
        self._entries[key] = entry
        self._ends.pop(key, None)
        if ends:
            self._ends[key] = ends
            heapq.heappush(self._deadlines, (ends, key))
        self._node.engine.write_entry(entry)
        self._changing[key] += 1
        told = change(entry)
        source, dialect = (session.client_id, session.dialect) if session else ("", "")
        self._node.capture.add(replace(told, source=source, dialect=dialect), now)
        self._node.after(lambda: self._tell(told, session))
        return entry

    def is_changing(self, key: str) -> bool:
        """Has a key changed in a way that is not durable yet?"""
        return key in self._changing

    def _tell(self, told: Message, cause: Session | None) -> None:
        self._changing[told.address] -= 1
        if not self._changing[told.address]:
            del self._changing[told.address]
        for session in self._watchers.match(told.address):
            self._node.flow.push(session, told, cause, self._node.now)


def change(entry: Entry) -> Message:
    """What a watcher is told of a key's latest state."""
    return Message(
        op="del" if entry.value is None else "set",
        address=entry.key,
        payload=entry.value or b"",
        headers={"$rev": str(entry.revision)},
    )
