"""A process that writes to an engine until it is killed, and what must be found afterwards.

    python -m tests.journal.engine_crash FOLDER ROUND [retention]

It says on standard output what it begins to write (`?`) and what the engine has said is durable
(`!`), a line each. `Expectation` reads these lines, and compares with what an engine finds.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from wirelake.journal.arrow_stream import END, PREAMBLE
from wirelake.journal.contract import Harm
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.journal.retention import Rule
from wirelake.message import Message, Op
from wirelake.wire import FrameTable

#: Queues, and where their messages move to: within a partition, so all at once.
QUEUES = ("one", "two", "three")
DEAD = "/$dead"
ALL = [*QUEUES, *(queue + DEAD for queue in QUEUES)]
KEYS = [f"key/{number}" for number in range(5)]


class Expectation:
    """What has to be there, given what was said before the end."""

    def __init__(self) -> None:
        self.put: dict[tuple[str, int], str] = {}  # payloads
        self.sure: set[tuple[str, int]] = set()
        self.dropping: set[tuple[str, int]] = set()
        self.dropped: set[tuple[str, int]] = set()
        self.moving: dict[tuple[str, int], tuple[str, int]] = {}
        self.last: dict[str, int] = defaultdict(int)  # sequences
        self.keys: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # sure, begun
        self.logged: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def hear(self, lines: Iterable[str]) -> int:
        """Take in what was said; how much of it was said to be durable."""
        durable = 0
        for line in lines:
            mark, what, *words = line.split()
            durable += mark == "!"
            match what:
                case "put":
                    one = (words[0], int(words[1]))
                    self.put[one] = words[2]
                    self.last[words[0]] = max(self.last[words[0]], one[1])
                    if mark == "!":
                        self.sure.add(one)
                case "drop":
                    one = (words[0], int(words[1]))
                    (self.dropped if mark == "!" else self.dropping).add(one)
                case "move":
                    one, other = (words[0], int(words[1])), (words[2], int(words[3]))
                    self.moving[one] = other
                    self.put[other] = self.put[one]
                    self.last[words[2]] = max(self.last[words[2]], other[1])
                    if mark == "!":
                        self.dropped.add(one)
                        self.sure.add(other)
                case "set" | "log":
                    kept = self.keys if what == "set" else self.logged
                    sure, begun = kept[words[0]]
                    number = int(words[1])
                    kept[words[0]] = (number if mark == "!" else sure, max(begun, number))
        return durable

    def check(self, folder: Path, *, holes: bool = False) -> list[str]:
        """What is not as it has to be; what was not sure is, from now on, as it was found.

        Of the last write some sectors may be missing, which is told as torn. `holes`: retention
        took rows out of the log.
        """
        wrong: list[str] = []
        engine = opened(folder)
        try:
            wrong += self._check_queues(engine)
            wrong += self._check_keys(engine)
            wrong += self._check_log(engine, holes)
            torn = {str(loss) for loss in engine.journal.losses if loss.harm is Harm.TORN}
            wrong += [f"damage: {text}" for text in engine.damage if text not in torn]
        finally:
            engine.close()
        return wrong

    def _check_queues(self, engine: Engine) -> Iterable[str]:
        found = {
            (queue, stored.sequence): stored.message.payload.decode()
            for queue in (one.name for one in engine.queues())
            for stored in engine.stored(queue)
        }
        for one, payload in found.items():
            if self.put.get(one) != payload:
                yield f"{one} is {payload}, not {self.put.get(one)}"
        for one in self.sure - found.keys() - self.dropping - self.dropped:
            if one not in self.moving or self.moving[one] not in found:
                yield f"{one} is lost"
        for one in self.dropped & found.keys():
            yield f"{one} has come back"
        for one, other in self.moving.items():
            if one in found and other in found:
                yield f"{one} is there, and in the queue it was moved to"
        for queue, sequence in self.last.items():
            if engine.next_sequence(queue) <= sequence:
                yield f"{queue} would give out {engine.next_sequence(queue)} again"
        self.sure = set(found)
        self.dropped |= self.put.keys() - found.keys()
        self.dropping.clear()
        self.moving.clear()

    def _check_keys(self, engine: Engine) -> Iterable[str]:
        found = {entry.key: entry for _, entry in engine.entries()}
        for key, (sure, begun) in self.keys.items():
            revision = found[key].revision if key in found else 0
            if not sure <= revision <= begun:
                yield f"{key} has revision {revision}, not {sure} to {begun}"
            elif revision and found[key].value != b"%d" % revision:
                yield f"{key} has the value {found[key].value!r} in revision {revision}"
            self.keys[key] = (revision, revision)

    def _check_log(self, engine: Engine, holes: bool) -> Iterable[str]:
        found: dict[str, list[int]] = defaultdict(list)
        for position in engine.positions():
            batches = engine.read(position.partition, position.first, position.next)
            stream = PREAMBLE + b"".join(bytes(batch.ipc) for batch in batches) + END
            rows = pa.ipc.open_stream(stream).read_all()
            offsets = rows["offset"].to_pylist()
            if offsets != sorted(set(offsets)) or (
                not holes and offsets != list(range(position.first, position.next))
            ):
                yield f"partition {position.partition} has holes"
            for address, payload in zip(
                rows["address"].to_pylist(), rows["payload"].to_pylist(), strict=True
            ):
                if address.startswith("log/"):
                    found[address].append(int(payload))
        for address, (sure, begun) in self.logged.items():
            numbers = found[address]
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"{address} is not in order: {numbers[:20]}"
            elif not sure <= len(numbers) <= begun:
                yield f"{address} has {len(numbers)} rows, not {sure} to {begun}"
            self.logged[address] = (len(numbers), len(numbers))


def opened(folder: Path, *rules: Rule, loop: asyncio.AbstractEventLoop | None = None) -> Engine:
    """An engine that writes a checkpoint, begins a segment and tidies up very often."""
    journal = FilesJournal(folder, segment_bytes=300_000, rules=rules, tidy_every=0.05)
    return Engine(journal, loop=loop, aside=folder, checkpoint_bytes=30_000)


class Writer:
    """The process that is killed."""

    def __init__(self, folder: Path, number: int, rules: Sequence[Rule]) -> None:
        self.engine = opened(folder, *rules, loop=asyncio.get_running_loop())
        self.number = number
        self.chance = random.Random(number)
        self.revisions = {entry.key: entry.revision for _, entry in self.engine.entries()}
        for queue in ALL:
            self.engine.declare(QueueSettings(queue))

    def say(self, mark: str, *words: object) -> None:
        os.write(1, f"{mark} {' '.join(map(str, words))}\n".encode())

    async def durable(self, *words: object) -> None:
        done = asyncio.get_running_loop().create_future()
        self.engine.after(lambda: done.set_result(None))
        await done
        self.say("!", *words)

    def add(self, queue: str, payload: str) -> int:
        sequence = self.engine.next_sequence(queue)
        source = "w" * self.chance.randrange(300)
        message = Message(queue, payload.encode(), source=source, timestamp=1)
        captured = self.chance.random() < 0.5
        self.engine.put(Stored(queue, sequence, message), captured=captured)
        return sequence

    async def messages(self, worker: int) -> None:
        """Put, and then acknowledge, move or leave."""
        count = 0
        while True:
            count += 1
            queue = self.chance.choice(QUEUES)
            payload = f"{self.number}.{worker}.{count}"
            sequence = self.engine.next_sequence(queue)
            self.say("?", "put", queue, sequence, payload)
            self.add(queue, payload)
            if self.chance.random() < 0.7:
                await self.durable("put", queue, sequence, payload)
            fate = self.chance.random()
            if fate < 0.6:
                self.say("?", "drop", queue, sequence)
                self.engine.drop(queue, sequence)
                await self.durable("drop", queue, sequence)
            elif fate < 0.9:
                target = queue + DEAD
                dead = self.engine.next_sequence(target)
                self.say("?", "move", queue, sequence, target, dead)
                self.engine.drop(queue, sequence)
                self.add(target, payload)
                await self.durable("move", queue, sequence, target, dead)
            await asyncio.sleep(0)

    async def keys(self) -> None:
        """Change keys, one after the other."""
        while True:
            key = self.chance.choice(KEYS)
            revision = self.revisions[key] = self.revisions.get(key, 0) + 1
            self.say("?", "set", key, revision)
            entry = Entry(key, revision, b"%d" % revision)
            if self.chance.random() < 0.5:
                told = Message(key, b"%d" % revision, op=Op.UPDATE)
                self.engine.write_entry(entry, told=told, timestamp=1)
            else:
                self.engine.write_entry(entry)
            await self.durable("set", key, revision)

    async def log(self, worker: int) -> None:
        """Append to the log, in runs."""
        address, count = f"log/{self.number}/{worker}", 0
        while True:
            run = self.chance.randrange(1, 30)
            table = FrameTable(run)
            rows = [Message(address, b"%d" % (count + k + 1)) for k in range(run)]
            table.fill(rows, "kobold-3")
            count += run
            self.say("?", "log", address, count)
            self.engine.append(table, None, time.time_ns() // 1000, b"")
            if self.chance.random() < 0.5:
                await self.durable("log", address, count)
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Write until the end."""
        workers = [self.messages(worker) for worker in range(12)]
        await asyncio.gather(*workers, self.keys(), self.keys(), self.log(0), self.log(1))


async def main(folder: Path, number: int, rules: Sequence[Rule]) -> None:
    """Write until somebody ends it."""
    await Writer(folder, number, rules).run()


#: Everything goes but what the other process says that it has logged.
RETENTION = (Rule("log/#"), Rule("#", max_age=0.1))

if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), RETENTION if sys.argv[3:] else ()))
