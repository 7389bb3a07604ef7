"""What clients were told, and whether a broker has kept its word.

The load writes down what it begins and what is answered. Payloads carry their own name, so that
whatever is read back can be found in the ledger:

- a *published* message is `producer address serial number`. The serial counts what a producer
  sends, the number what it wants to say: one that had no answer is said again under the next
  serial. So per producer and address serials only go up, whatever was sent twice.
- a *queued* message is `producer address serial number` as well; a name `producer/number` is put
  again, under the same id, until the put is answered.
- a *value* of the data store is `client serial`.

What was answered must be there. What was not answered may be there. Nothing else may.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True)
class Said:
    """A payload, taken apart."""

    producer: str
    address: str
    serial: int
    number: int

    @classmethod
    def parse(cls, payload: bytes) -> Said:
        """What a payload says."""
        producer, address, serial, number, *_ = payload.decode().split(" ")
        return cls(producer, address, int(serial), int(number))

    @property
    def name(self) -> str:
        """What a queue message is called, however often it is put."""
        return f"{self.producer}/{self.number}"

    def payload(self, filling: int) -> bytes:
        """The bytes to send."""
        words = f"{self.producer} {self.address} {self.serial} {self.number} "
        return words.encode() + b"." * filling


@dataclass
class Verdict:
    """What was found."""

    answered: Counter[str] = field(default_factory=Counter)  # by what was asked for
    unanswered: int = 0
    recovered: int = 0  # of what was answered
    lost: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)  # by the broker
    said_twice: int = 0  # by producers that had no answer
    redelivered: int = 0  # queue messages that were not acknowledged
    delivered_after_ack: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)  # what nobody has said
    holes: list[str] = field(default_factory=list)  # in the offsets of the log
    heard: int = 0  # by subscribers of topics

    @property
    def faults(self) -> dict[str, list[str]]:
        """Everything that is not as it has to be."""
        found = {
            "lost": self.lost,
            "reordered": self.reordered,
            "repeated": self.repeated,
            "delivered after its ack": self.delivered_after_ack,
            "invented": self.invented,
            "holes": self.holes,
        }
        return {name: what[:10] for name, what in found.items() if what}


class Ledger:
    """What was begun and what was answered."""

    def __init__(self) -> None:
        self.verdict = Verdict()
        self._count = 0
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        # Topics and queues: all that was sent, and what of it was answered.
        self._sent: set[Said] = set()
        self._answered: set[Said] = set()
        self._heard: dict[tuple[str, str, str], int] = {}  # the last serial a subscriber heard
        # Queue messages, by name.
        self._put: set[str] = set()
        self._kept: set[str] = set()
        self._deliveries: Counter[str] = Counter()
        self._acking: set[str] = set()
        self._acked: dict[str, int] = {}  # in which attempt
        self._rejecting: set[str] = set()
        self._rejected: set[str] = set()
        # The data store: values by key and revision, those of no certain revision by key.
        self._values: dict[tuple[str, int], bytes | None] = {}
        self._begun: dict[str, set[bytes | None]] = defaultdict(set)

    # What the load writes down

    def answers(self, kind: str, count: int = 1) -> None:
        """So many answers have come."""
        self.verdict.answered[kind] += count
        self._count += count
        for target, future in self._awaited:
            if self._count >= target and not future.done():
                future.set_result(None)

    async def more_answers(self, count: int) -> None:
        """Wait for so many answers more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._count + count, future)
        self._awaited.append(entry)
        try:
            await future
        finally:
            self._awaited.remove(entry)

    def sends(self, messages: Iterable[Said]) -> None:
        """These go out now."""
        self._sent.update(messages)

    def published(self, messages: Iterable[Said]) -> None:
        """These were acknowledged."""
        fresh = set(messages)
        self._answered |= fresh
        self.answers("publish", len(fresh))

    def hears(self, subscriber: str, payload: bytes) -> None:
        """A subscriber of a topic got this."""
        said = Said.parse(payload)
        key = (subscriber, said.producer, said.address)
        if said not in self._sent:
            self.verdict.invented.append(f"{subscriber} heard {said}")
        if said.serial <= self._heard.get(key, 0):
            self.verdict.reordered.append(f"{subscriber} heard {said} after {self._heard[key]}")
        self._heard[key] = said.serial
        self.verdict.heard += 1

    def puts(self, message: Said) -> None:
        """This goes to a queue now, perhaps not for the first time."""
        self._sent.add(message)
        self._put.add(message.name)

    def kept(self, message: Said) -> None:
        """The put was acknowledged."""
        self._kept.add(message.name)
        self._answered.add(message)
        self.answers("put")

    def delivered(self, payload: bytes, attempt: int) -> str:
        """A consumer got this; its name. `attempt` is 0 where a dialect does not tell."""
        said = Said.parse(payload)
        name = said.name
        if name not in self._put:
            self.verdict.invented.append(f"{said} was delivered")
        self._deliveries[name] += 1
        self.verdict.redelivered += self._deliveries[name] > 1
        # An older delivery may have waited in a client while another consumer was quicker.
        if attempt > self._acked.get(name, attempt):
            self.verdict.delivered_after_ack.append(f"{name}, attempt {attempt}")
        return name

    def acks(self, name: str) -> None:
        """A consumer acknowledges this now."""
        self._acking.add(name)

    def acked(self, name: str, attempt: int) -> None:
        """The broker has said that the acknowledgement is done."""
        if name in self._acked:
            self.verdict.delivered_after_ack.append(f"{name} was acknowledged twice")
        self._acked[name] = attempt
        self.answers("ack")

    def rejects(self, name: str) -> None:
        """A consumer sends this to the dead letters now."""
        self._rejecting.add(name)

    def rejected(self, name: str) -> None:
        """The broker has said that it is a dead letter."""
        self._rejected.add(name)
        self.answers("nack")

    def changes(self, key: str, value: bytes | None) -> None:
        """A key is to have this value now, or none."""
        self._begun[key].add(value)

    def changed(self, key: str, value: bytes | None, revision: int) -> None:
        """The change was acknowledged, as this revision."""
        if (key, revision) in self._values:
            self.verdict.repeated.append(f"{key} had the revision {revision} twice")
        self._values[key, revision] = value
        self.answers("change")

    # What is read back

    def check_log(self, partitions: list[pa.Table], *, torn: bool = False) -> None:
        """Compare the log. `torn`: what was not synced may have left holes in it."""
        found: set[Said] = set()
        last: dict[tuple[str, str], int] = {}
        values: set[tuple[str, bytes]] = set()
        revisions: dict[str, int] = {}
        names: dict[tuple[str, str], str] = {}  # of queue messages, by queue and id
        open_deliveries: set[tuple[str, str]] = set()
        times_said: Counter[tuple[str, str, int]] = Counter()
        for table in partitions:
            offsets = table["offset"].to_pylist()
            if offsets != sorted(set(offsets)) or (
                not torn and offsets != list(range(len(offsets)))
            ):
                self.verdict.holes.append(f"{len(offsets)} rows up to {offsets[-1:]}")
            for row in table.select(["address", "op", "id", "headers", "payload"]).to_pylist():
                address, op, key = row["address"], row["op"], (row["address"], row["id"])
                if address.endswith("/$dead"):
                    continue  # said once already, where it was alive
                if op in ("publish", "enqueue"):
                    said = Said.parse(row["payload"])
                    before = last.get((said.producer, address), 0)
                    if said not in self._sent:
                        self.verdict.invented.append(f"the log has {said}")
                    if said in found:
                        self.verdict.repeated.append(f"the log has {said} twice")
                    if said.serial <= before:
                        self.verdict.reordered.append(f"{said} after {before}")
                    found.add(said)
                    last[said.producer, address] = said.serial
                    times_said[said.producer, address, said.number] += 1
                    if op == "enqueue":
                        names[key] = said.name
                elif op == "deliver":
                    open_deliveries.add(key)
                elif op == "ack":
                    open_deliveries.discard(key)
                elif op in ("set", "del"):
                    revision = int(dict(row["headers"])["$rev"])
                    if revision < revisions.get(address, 0):
                        self.verdict.reordered.append(f"{address} from {revisions[address]}")
                    revisions[address] = revision
                    values.add((address, row["payload"]))
        self.verdict.delivered_after_ack += [
            f"the log has {names[key]}" for key in open_deliveries if names.get(key) in self._acked
        ]
        self.verdict.said_twice = sum(times > 1 for times in times_said.values())
        # A put that was said again may be known by its id, and be in the log for the first time.
        self._miss(
            f"{said} is not in the log"
            for said in self._answered - found
            if said.name not in self._put or said.serial == min(self._serials(said))
        )
        self._miss(
            f"{key}, revision {revision}, is not in the log"
            for (key, revision), value in self._values.items()
            if value is not None and (key, value) not in values
        )
        self.verdict.recovered += len(self._answered & found)

    def _serials(self, message: Said) -> list[int]:
        same = (one for one in self._sent if one.name == message.name)
        return [one.serial for one in same if one.address == message.address]

    def check_queues(self, waiting: Counter[str], dead: Counter[str]) -> None:
        """Compare what is in the queues at the end, by name, and what is in the dead letters."""
        for name, times in (waiting + dead).items():
            if name not in self._put:
                self.verdict.invented.append(f"{name} is in a queue")
            if times > 1:
                self.verdict.repeated.append(f"{name} is in the queues {times} times")
            if name in self._acked:
                self.verdict.delivered_after_ack.append(f"{name} is still there")
        self._miss(
            f"{name} is in no queue"
            for name in self._kept - waiting.keys() - dead.keys() - self._acking
        )
        self._miss(f"{name} is no dead letter" for name in self._rejected - dead.keys())
        self.verdict.recovered += len(self._kept & (waiting + dead).keys())

    def check_keys(self, found: dict[str, tuple[int, bytes | None]]) -> None:
        """Compare the data store: for every key its revision and value, none where deleted."""
        latest: dict[str, int] = {}
        for key, revision in self._values:
            latest[key] = max(latest.get(key, 0), revision)
        for key in self.keys:
            revision, value = found[key]
            if revision < latest.get(key, 0):
                self._miss([f"{key} has revision {revision}, not {latest[key]}"])
            elif revision == latest.get(key, 0):
                if revision and value != self._values[key, revision]:
                    self._miss([f"{key} has {value!r}, not {self._values[key, revision]!r}"])
            elif value not in self._begun[key]:
                self.verdict.invented.append(f"{key} has {value!r}")
        self.verdict.recovered += len(latest)

    @property
    def keys(self) -> set[str]:
        """Every key that somebody has tried to change."""
        return set(self._begun)

    @property
    def names(self) -> set[str]:
        """The queue messages that have to be somewhere, if nobody has consumed them."""
        return self._kept - self._acking

    def close(self) -> Verdict:
        """The verdict, when all is checked."""
        self.verdict.unanswered = len(self._sent - self._answered)
        return self.verdict

    def _miss(self, what: Iterable[str]) -> None:
        self.verdict.lost += what
