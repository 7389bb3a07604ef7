"""The data store: keys with a value and a revision, and those who watch them.

A revision counts a key's changes from 1 and is never used twice, not even after a delete, so a
deleted key keeps its last one (spec: data store). A change is answered, and told to watchers, when
it is durable.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from wirelake.address import check_address, check_filter
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
        self._watchers: FilterIndex[Session] = FilterIndex()
        self._watched: dict[Session, list[str]] = {}
        self._deadlines = [(e.expires, e.key) for e in self._entries.values() if e.expires]
        heapq.heapify(self._deadlines)

    def create(self, session: Session, message: Message, now: float) -> Entry:
        """A new key; refused if it is there."""
        old = self._entry(session, message.address)
        if old is not None and old.value is not None:
            raise RefusedError("exists", f"{message.address} is there, revision {old.revision}")
        return self._change(message.address, old, message.payload, message.ttl, now)

    def read(self, session: Session, message: Message) -> Entry:
        """A key's latest state; refused if it is not there."""
        return self._present(session, message.address)

    def update(self, session: Session, message: Message, now: float) -> Entry:
        """A new value for a key that is there, and has the revision that is expected, if any."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(message.address, old, message.payload, message.ttl, now)

    def delete(self, session: Session, message: Message, now: float) -> Entry:
        """Remove a key that is there, and has the revision that is expected, if any."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(message.address, old, None, 0, now)

    def watch(self, session: Session, filter: str) -> None:
        """Tell a session every change of the keys that a filter matches, from now on."""
        check_filter(filter)
        if not session.rights.allows("store", filter):
            raise RefusedError("unauthorized", f"no right to watch {filter}")
        if self._watchers.add(filter, session):
            self._watched.setdefault(session, []).append(filter)

    def left(self, session: Session) -> None:
        """A session has ended: it watches no more."""
        for filter in self._watched.pop(session, []):
            self._watchers.remove(filter, session)

    def tick(self, now: float) -> None:
        """Delete the keys whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now:
            expires, key = heapq.heappop(self._deadlines)
            entry = self._entries[key]
            if entry.value is not None and entry.expires == expires:
                self._change(key, entry, None, 0, now)

    def _entry(self, session: Session, key: str) -> Entry | None:
        check_address(key)
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
        self, key: str, old: Entry | None, value: bytes | None, ttl: int, now: float
    ) -> Entry:
        expires = now + ttl / 1000 if ttl else 0.0
        entry = Entry(key, old.revision + 1 if old else 1, value, expires)
        self._entries[key] = entry
        if expires:
            heapq.heappush(self._deadlines, (expires, key))
        self._node.engine.write_entry(entry)
        self._node.engine.after(lambda: self._tell(entry))
        return entry

    def _tell(self, entry: Entry) -> None:
        change = Message(
            op="del" if entry.value is None else "set",
            address=entry.key,
            payload=entry.value or b"",
            headers={"$rev": str(entry.revision)},
        )
        for session in self._watchers.match(entry.key):
            session.send(change)
