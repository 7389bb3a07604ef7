"""Retained messages: the last one of each topic that a client marked, for those who come later.

A retained message is a key of the journal, `$mqtt/retained/` and its topic, whose value is the
message as a packet of MQTT 5. So it survives the broker, and every client gets it in its own form.
The key is in the partition of the topic. In a cluster the owner of that partition has the message,
and a client that subscribes is sent what all owners have that its filter matches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from wirelake.broker.node import Node
from wirelake.journal.engine import Entry

PREFIX = "$mqtt/retained/"


@dataclass(slots=True)
class _Level:
    """One level of topics: what is retained here, and what follows."""

    topic: str = ""  # empty: nothing is retained here
    below: dict[str, _Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retained:
    """A retained message: its packet, when it came, and when it expires (seconds since 1970)."""

    packet: bytes
    since: float
    expires: float = 0.0  # 0: never


class RetainedMessages:
    """All retained messages, by topic."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._messages: dict[str, Retained] = {}
        self._revisions: dict[str, int] = {}
        self._root = _Level()
        self._bytes = 0

    def load(self, entries: Iterable[Entry]) -> None:
        """Take up what was kept, of all entries of some partitions."""
        now = self._node.vitals.now + self._node.vitals.epoch
        for entry in entries:
            if entry.key.startswith(PREFIX) and entry.value is not None:
                topic = entry.key.removeprefix(PREFIX)
                self._revisions[topic] = entry.revision
                since = int.from_bytes(entry.value[:8], "big") / 1e6
                self._remember(topic, Retained(entry.value[8:], since or now, entry.expires))

    def lose(self, partition: int) -> None:
        """Let go of what belongs to a partition that is not here any more."""
        home = self._node.engine.home
        for topic in [one for one in self._messages if home(one) == partition]:
            self._drop(topic)

    def __len__(self) -> int:
        return len(self._messages)

    def check(self, topic: str, size: int) -> None:
        """Raise RefusedError where there is no room for one more retained message."""
        quotas, known = self._node.quotas, self._messages.get(topic)
        if known is None:
            quotas.check_all("retained", len(self._messages))
        used = self._bytes - (len(known.packet) if known else 0)
        quotas.check_room("retained_bytes", used, size, "retained messages have")
        if self._node.engine.trouble:
            raise self._node.capture.refusal()

    def keep(self, topic: str, packet: bytes, lives: float) -> None:
        """Retain a message for `lives` seconds, for ever where that is 0."""
        vitals = self._node.vitals
        now = vitals.now + vitals.epoch
        expires = now + lives if lives else 0.0
        self._remember(topic, Retained(packet, now, expires))
        revision = self._revisions[topic] = self._revisions.get(topic, 0) + 1
        value = round(now * 1e6).to_bytes(8, "big") + packet
        self._node.engine.write_entry(Entry(PREFIX + topic, revision, value, expires))

    def forget(self, topic: str) -> None:
        """Retain nothing any more for a topic."""
        if topic in self._messages:
            self._drop(topic)
            self._node.engine.drop_entry(PREFIX + topic)

    def _drop(self, topic: str) -> None:
        self._bytes -= len(self._messages.pop(topic).packet)
        self._revisions.pop(topic, None)
        path = [self._root]
        levels = topic.split("/")
        for level in levels:
            path.append(path[-1].below[level])
        path[-1].topic = ""
        for level, above, node in zip(reversed(levels), path[-2::-1], path[:0:-1], strict=True):
            if node.topic or node.below:
                break
            del above.below[level]

    def matching(self, filter: str) -> Iterator[Retained]:
        """Yield what is retained for the topics that a filter matches."""
        for topic in list(self._topics(self._root, filter.split("/"), 0)):
            now = self._node.vitals.now + self._node.vitals.epoch
            found = self._messages.get(topic)
            if found is None:  # forgotten while the client read those before it
                continue
            if found.expires and found.expires <= now:
                self.forget(topic)
            else:
                yield found

    def page(
        self, filter: str, partitions: Collection[int], after: str, most: int
    ) -> tuple[list[Retained], str]:
        """Return what is retained in some partitions for the topics that a filter matches.

        About `most` bytes at once, of the topics that come after this one in their order. Also
        returns the topic to go on after, empty where that was all.
        """
        home, now = self._node.engine.home, self._node.vitals.now + self._node.vitals.epoch
        topics = self._topics(self._root, filter.split("/"), 0)
        found: list[Retained] = []
        size = 0
        for topic in sorted(one for one in topics if one > after and home(one) in partitions):
            if size > most:
                return found, after
            after, one = topic, self._messages[topic]
            if not one.expires or one.expires > now:
                found.append(one)
                size += len(one.packet)
        return found, ""

    def _topics(self, node: _Level, filter: list[str], at: int) -> Iterator[str]:
        if at == len(filter):
            if node.topic:
                yield node.topic
            return
        level = filter[at]
        if level == "#":
            yield from self._all(node)
        elif level == "+":
            for below in node.below.values():
                yield from self._topics(below, filter, at + 1)
        elif level in node.below:
            yield from self._topics(node.below[level], filter, at + 1)

    def _all(self, node: _Level) -> Iterator[str]:
        if node.topic:
            yield node.topic
        for below in node.below.values():
            yield from self._all(below)

    def _remember(self, topic: str, message: Retained) -> None:
        known = self._messages.get(topic)
        self._bytes += len(message.packet) - (len(known.packet) if known else 0)
        self._messages[topic] = message
        node = self._root
        for level in topic.split("/"):
            if level not in node.below:
                node.below[level] = _Level()
            node = node.below[level]
        node.topic = topic
