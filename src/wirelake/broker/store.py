"""The data store: keys with a value and a revision, and those who watch them.

A revision counts a key's changes and is never used twice, not even after a delete (spec: data
store). So a deleted key leaves its last revision behind. Only the latest `quotas.deleted_keys` of
these are kept; of those that were dropped the store knows the highest revision, the *floor*, and a
key that is new, or that it does not know any more, begins above it (decision 70).

A change is answered, and told to watchers, when it is durable.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace

from wirelake.address import check_filter, check_topic, has_wildcard, matches
from wirelake.broker.capture import Capture
from wirelake.broker.deadlines import Deadlines
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.names import SortedNames
from wirelake.broker.quotas import Quotas
from wirelake.broker.subscriptions import FilterIndex
from wirelake.broker.vitals import Vitals
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine, Entry
from wirelake.message import Message, Op, Parameters

#: Each partition keeps its floor as the revision of this key, which nobody else can have.
FLOOR = "$floor"

#: Keys that one page of a list looks at, that it has, and the bytes of their values.
LOOKED_AT = 1_000
FOUND = 100
FOUND_BYTES = 256 << 10

#: Keys that are deleted by one tick of the clock, since their time is up.
EXPIRED_AT_ONCE = 500


class _Listing:
    """A list of keys that is being sent to a watcher, and the keys that changed since it began.

    Watchers are told every change once it is durable: what changed is not listed as well.
    """

    def __init__(
        self, session: Endpoint, listings: dict[_Listing, None], changed: set[str]
    ) -> None:
        self.session = session
        self.changed = changed
        self._listings = listings
        listings[self] = None

    def end(self) -> None:
        """The list was sent, or the watcher is gone."""
        self._listings.pop(self, None)


class Store:
    """Every key's latest state, and who watches which keys."""

    def __init__(
        self, engine: Engine, vitals: Vitals, quotas: Quotas, capture: Capture, flow: Flow
    ) -> None:
        self._engine = engine
        self._vitals = vitals
        self._quotas = quotas
        self._capture = capture
        self._flow = flow
        self._entries: dict[str, Entry] = {}
        self._floors: Counter[int] = Counter()  # by partition
        self._deleted: OrderedDict[str, None] = OrderedDict()  # the oldest first
        self._bytes = 0  # of the keys that are there, and their values
        self._changing: Counter[str] = Counter()  # changes that are not durable yet
        self._watchers: FilterIndex[Endpoint] = FilterIndex()
        #: Keys of other nodes that belong to the list that a session asks for next.
        self.elsewhere: dict[Endpoint, list[Entry]] = {}
        self._listings: dict[_Listing, None] = {}
        self._watched: dict[Endpoint, dict[str, None]] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._names = SortedNames(self._load())

    def __len__(self) -> int:
        """The number of keys, without deleted ones."""
        return len(self._entries) - len(self._deleted)

    def create(self, session: Endpoint, message: Message, now: float) -> Entry:
        """Create a key; raises RefusedError (`exists`) where there is one."""
        old = self._entry(session, message.address)
        if old is not None and old.value is not None:
            text = f"{message.address} is there, revision {old.revision}"
            raise self._refusal("exists", message.address, text)
        self._quotas.check_levels(message.address)
        self._quotas.check_all("keys", len(self))
        return self._change(session, message.address, old, message.payload, message.ttl, now)

    def read(self, session: Endpoint, message: Message) -> Entry:
        """Return a key's latest state; raises RefusedError (`not_found`) where there is none.

        What it returns holds once everything that was written is durable. A node whose lease of the
        partition has run out writes a record for that: another node may own it by now.
        """
        entry = self._present(session, message.address)
        self._engine.prove(self._engine.home(message.address))
        return entry

    def update(self, session: Endpoint, message: Message, now: float) -> Entry:
        """Change a key; raises RefusedError: `not_found`, or `conflict` at another revision."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(session, message.address, old, message.payload, message.ttl, now)

    def delete(self, session: Endpoint, message: Message, now: float) -> Entry:
        """Delete a key; raises RefusedError: `not_found`, or `conflict` at another revision."""
        old = self._present(session, message.address)
        self._expect(old, message)
        return self._change(session, message.address, old, None, 0, now)

    def page(self, session: Endpoint, filter: str, after: str = "") -> tuple[list[Entry], str]:
        """Return the next keys that a filter matches, in order, with deleted ones.

        Looks at no more than a thousand keys, so that others need not wait. Returns what it found,
        and what to give as `after` to go on: empty where there is no more.
        """
        self._check_filter(session, filter)
        self._expire(self._vitals.now)
        self._vitals.work += LOOKED_AT // 10
        found: list[Entry] = []
        literal = _literal_beginning(filter)
        # `a/#` matches `a` itself, which other keys may separate from those that begin with `a/`.
        alone = literal.removesuffix("/") if filter.endswith("#") else filter
        if after < alone and alone in self._entries and matches(filter, alone):
            found.append(self._entries[alone])
        if not has_wildcard(filter):
            return found, ""
        size = 0
        goes_on = after >= literal and bool(after)
        names = self._names.since(after if goes_on else literal, but_for=goes_on)
        for looked_at, name in enumerate(names, 1):
            if not name.startswith(literal):
                return found, ""
            if matches(filter, name):
                entry = self._entries[name]
                found.append(entry)
                size += len(entry.value or b"")
            if looked_at == LOOKED_AT or len(found) >= FOUND or size > FOUND_BYTES:
                return found, name
        return found, ""

    def matching(self, session: Endpoint, filter: str) -> Iterator[Entry | None]:
        """Iterate over the keys that a filter matches, with deleted ones; None after each page.

        They are looked up page by page as the iterator goes on; what changes meanwhile may or may
        not be among them. Raises RefusedError at once where the session has no right to them.
        """
        self._check_filter(session, filter)
        return chain(self._pages(session, filter), self.elsewhere.pop(session, ()))

    def _pages(self, session: Endpoint, filter: str) -> Iterator[Entry | None]:
        after = ""
        while True:
            found, after = self.page(session, filter, after)
            yield from found
            if not after:
                return
            yield None

    def _check_filter(self, session: Endpoint, filter: str) -> None:
        check_filter(filter)
        if not session.rights.allows("store", filter):
            raise RefusedError("unauthorized", f"no right to the keys {filter}")

    def watch(self, session: Endpoint, filter: str, since: int | None) -> None:
        """Send a session every change of the keys that a filter matches, from now on.

        With `since`, first the latest change of every key that has come to that revision
        (decision 40). All of it is told when it is durable, and so in order.
        """
        known = self.matching(session, filter)
        mine = self._watched.setdefault(session, {})
        if filter not in mine:
            self._quotas.check_levels(filter)
            self._quotas.check("watches", len(mine), len(self._watchers))
            self._watchers.add(filter, session)
            mine[filter] = None
        if since is not None:
            listing = _Listing(session, self._listings, set(self._changing))
            self._engine.after(lambda: session.send_all(self._since(known, since, listing)))

    def _since(
        self, known: Iterator[Entry | None], since: int, listing: _Listing
    ) -> Iterator[Message | None]:
        """Yield the changes that made these entries, without keys that have changed since."""
        try:
            for entry in known:
                if entry is None:
                    yield None
                elif entry.revision >= since and entry.key not in listing.changed:
                    yield change(entry)
        finally:
            listing.end()

    def left(self, session: Endpoint) -> None:
        """Remove the watches of a session that has ended."""
        for filter in self._watched.pop(session, {}):
            self._watchers.remove(filter, session)
        for listing in [one for one in self._listings if one.session is session]:
            listing.end()

    def tick(self, now: float) -> None:
        """Delete expired keys."""
        self._expire(now)

    def _expire(self, now: float) -> None:
        if not self._engine.stalled:  # a delete must be kept, too
            for key in self._deadlines.due(now, EXPIRED_AT_ONCE):
                self._change(None, key, self._entries[key], None, 0, now)

    def _entry(self, session: Endpoint, key: str) -> Entry | None:
        check_topic(key)
        if not session.rights.allows("store", key):
            raise RefusedError("unauthorized", f"no right to the key {key}")
        self._capture.check_here(key)
        self._expire(self._vitals.now)
        return self._entries.get(key)

    def _present(self, session: Endpoint, key: str) -> Entry:
        entry = self._entry(session, key)
        if entry is None or entry.value is None:
            raise self._refusal("not_found", key, f"no key {key}")
        return entry

    def _expect(self, entry: Entry, message: Message) -> None:
        expected = message.parameters.rev
        if expected is not None and expected != entry.revision:
            text = f"{entry.key} has revision {entry.revision}, not {expected}"
            raise self._refusal("conflict", entry.key, text)

    def _refusal(self, code: str, key: str, text: str) -> RefusedError:
        """Return a refusal that tells what a key is like: it is proved as a read is."""
        self._engine.prove(self._engine.home(key))
        return RefusedError(code, text, waits=self._engine.is_shared)

    def _change(
        self,
        session: Endpoint | None,
        key: str,
        old: Entry | None,
        value: bytes | None,
        ttl: int,
        now: float,
    ) -> Entry:
        self._capture.check_disk(key)
        size = _size(key, value) - (_size(key, old.value) if old else 0)
        if size > 0:
            self._quotas.check_room("key_bytes", self._bytes, size)
        ends = now + ttl / 1000 if ttl else 0.0
        revision = (old.revision if old else self._floors[self._engine.home(key)]) + 1
        entry = Entry(key, revision, value, ends + self._vitals.epoch if ends else 0.0)
        if key not in self._entries:
            self._names.add(key)
        self._entries[key] = entry
        self._bytes += size
        self._deleted.pop(key, None)
        self._deadlines.discard(key)
        if ends:
            self._deadlines.set(key, ends)
        told = change(entry)
        source, dialect = (session.client_id, session.dialect) if session else ("", "")
        self._capture.change(entry, replace(told, source=source, dialect=dialect), now)
        for listing in self._listings:
            listing.changed.add(key)
        if value is None:
            self._deleted[key] = None
            self._drop_deleted()
        self._changing[key] += 1
        self._engine.after(
            lambda: self._tell(told, session),
            failed=lambda: self._changed(key),
            partition=self._engine.home(key),
        )
        return entry

    def _drop_deleted(self) -> None:
        """Forget the oldest deleted keys where there are too many, a tenth of them at once."""
        most = self._quotas.deleted_keys
        if len(self._deleted) <= most:
            return
        for _ in range(len(self._deleted) - most * 9 // 10):
            key, _ = self._deleted.popitem(last=False)
            home = self._engine.home(key)
            self._floors[home] = max(self._floors[home], self._entries.pop(key).revision)
            self._names.remove(key)
            self._engine.drop_entry(key)
        for partition, floor in self._floors.items():
            self._engine.write_entry(Entry(FLOOR, floor, None), partition=partition)

    def adopt(self, partition: int) -> None:
        """Take up the keys of a partition that is here now."""
        for key in self._load(partition):
            self._names.add(key)

    def lose(self, partition: int) -> None:
        """Let go of the keys of a partition that is not here any more."""
        for key in [key for key in self._entries if self._engine.home(key) == partition]:
            self._bytes -= _size(key, self._entries.pop(key).value)
            self._names.remove(key)
            self._deleted.pop(key, None)
            self._deadlines.discard(key)
        self._floors.pop(partition, None)

    def _load(self, partition: int | None = None) -> Iterator[str]:
        """Yield the keys of a partition, or of all, and know what is to be known of them."""
        for where, entry in self._engine.entries(partition):
            if entry.key == FLOOR:
                self._floors[where] = entry.revision
            if entry.key.startswith("$"):  # others keep theirs there
                continue
            self._entries[entry.key] = entry
            if entry.value is None:
                self._deleted[entry.key] = None
            else:
                self._bytes += len(entry.key) + len(entry.value)
                if entry.expires:
                    self._deadlines.set(entry.key, entry.expires - self._vitals.epoch)
            yield entry.key

    def is_changing(self, key: str) -> bool:
        """Return whether a key has changes that are not durable yet."""
        return key in self._changing

    def _changed(self, key: str) -> None:
        self._changing[key] -= 1
        if not self._changing[key]:
            del self._changing[key]

    def _tell(self, told: Message, cause: Endpoint | None) -> None:
        self._changed(told.address)
        for session in self._watchers.match(told.address):
            self._flow.push(session, told, cause, self._vitals.now)


def _size(key: str, value: bytes | None) -> int:
    """Return the bytes that a key counts for; a deleted one counts for none."""
    return 0 if value is None else len(key) + len(value)


def _literal_beginning(filter: str) -> str:
    """Return the prefix of all keys that a filter matches, but for the `a` of `a/#`."""
    return filter.split("+", 1)[0].split("#", 1)[0] if has_wildcard(filter) else filter


def change(entry: Entry) -> Message:
    """Return the message that tells a watcher a key's latest state."""
    return Message(
        op=Op.DEL if entry.value is None else Op.SET,
        address=entry.key,
        payload=entry.value or b"",
        parameters=Parameters(rev=entry.revision),
    )
