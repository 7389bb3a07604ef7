"""Clients that use a cluster while something happens to it, and what the cluster holds at the end.

Every operation and its answer is recorded, so that `history.check` can say whether it all fits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import wirelake
from tests.cluster.history import Found, Operation, Row, Told
from tests.cluster.processes import Nodes
from wirelake.client import Client
from wirelake.errors import RefusedError, WirelakeError
from wirelake.journal.arrow_stream import decode
from wirelake.journal.batch import DEAD
from wirelake.journal.engine import Engine
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access

T = TypeVar("T")
#: Does an operation as a client with this name and number; returns whether it was answered.
Job = Callable[[Client, str, int], Awaitable[bool]]

#: Addresses, keys and queues of the load: enough for every partition.
NAMES = 12
#: Numbers count up by this much for each client, which has a seat of its own.
SEATS = 10
#: Seconds between two operations of a client, and for which one waits for an answer.
PAUSE, ANSWER = 0.02, 20.0
#: Codes that do not say whether something was done.
UNKNOWN = ("busy", "closed", "timeout")


class Load:
    """Publishers, users of keys, producers and consumers, at these nodes."""

    def __init__(self, nodes: Nodes, names: Iterable[str]) -> None:
        self.history: list[Operation] = []
        #: The longest time (seconds) that a client was not answered, by client.
        self.silences: dict[str, float] = {}
        self._nodes = nodes
        self._names = list(names)
        self._ends = asyncio.Event()

    async def run(self, fault: Awaitable[object], after: float = 4.0) -> None:
        """Work until the fault is over, and for this many seconds more."""
        jobs: dict[str, Job] = {
            "publisher": self._publish,
            "writer": self._write,
            "producer": self._put,
            "consumer": self._take,
        }
        async with asyncio.TaskGroup() as group:
            for k, name in enumerate(self._names):
                for kind, job in jobs.items():
                    group.create_task(self._work(job, f"{kind} {name}", name, k))
            await asyncio.sleep(1.0)
            await fault
            await asyncio.sleep(after)
            self._ends.set()

    async def _work(self, job: Job, who: str, name: str, seat: int) -> None:
        """Do one kind of operation again and again; the client may go on at another node."""
        others = [one for one in self._names if one != name]
        hosts = [self._nodes.all[one].url("").removeprefix("://") for one in (name, *others)]
        url = f"kobold-3://{','.join(hosts)}"
        number, last = 0, time.monotonic()
        async with wirelake.connect(
            url, client_id=who, min_delay=0.02, max_delay=0.5, timeout=ANSWER
        ) as client:
            while not self._ends.is_set():
                number += 1
                if await job(client, who, number * SEATS + seat):
                    self.silences[who] = max(self.silences.get(who, 0.0), time.monotonic() - last)
                    last = time.monotonic()
                await asyncio.sleep(PAUSE)

    async def _do(
        self, kind: str, who: str, name: str, value: Any, work: Awaitable[T]
    ) -> tuple[Operation, T | None]:
        """Wait for an operation, and record what became of it."""
        one = Operation(kind, who, name, value, begun=time.monotonic())
        self.history.append(one)
        found: T | None = None
        try:
            found = await work
            one.told = Told.DONE
        except RefusedError as error:
            if error.code not in UNKNOWN:
                one.told = Told.REFUSED
        except (WirelakeError, OSError, TimeoutError):
            pass
        one.ended = time.monotonic()
        return one, found

    async def _publish(self, client: Client, who: str, number: int) -> bool:
        address = f"log/{number // SEATS % NAMES}"
        payload = f"{who}:{number}".encode()
        work = client.publish(address, payload, ack=True)
        one, _ = await self._do("publish", who, address, number, work)
        return one.told is Told.DONE

    async def _write(self, client: Client, who: str, number: int) -> bool:
        key = f"keys/{number // SEATS % NAMES}"
        if number // SEATS % 5:
            one, _ = await self._do(
                "write",
                who,
                key,
                f"{who}:{number}",
                client.store.put(key, f"{who}:{number}".encode()),
            )
        else:
            one, found = await self._do("read", who, key, None, client.store.read(key))
            if found is not None:
                one.value = found.value.decode()
            elif one.told is Told.REFUSED:
                one.told = Told.DONE  # there is no such key
        await asyncio.sleep(10 * PAUSE)  # a history of many operations is long to check
        return one.told is Told.DONE

    async def _put(self, client: Client, who: str, number: int) -> bool:
        queue, value = f"work/{number // SEATS % NAMES}", f"{who}:{number}"
        one, _ = await self._do(
            "put", who, queue, value, client.queue(queue).put(value.encode(), id=value)
        )
        while one.told is Told.NOTHING and not self._ends.is_set():
            # Again with its id, until it is answered: it is put once.
            try:
                await client.queue(queue).put(value.encode(), id=value)
                one.told, one.ended = Told.DONE, time.monotonic()
            except (WirelakeError, OSError, TimeoutError):
                await asyncio.sleep(PAUSE)
        return one.told is Told.DONE

    async def _take(self, client: Client, who: str, number: int) -> bool:
        queue = f"work/{number // SEATS % (NAMES // 2)}"  # the other half is left for the end
        begun = time.monotonic()
        one, found = await self._do("take", who, queue, None, client.queue(queue).get(3))
        for delivery in found or []:
            value = delivery.message.payload.decode()
            self.history.append(
                Operation("take", who, queue, value, begun, time.monotonic(), Told.DONE)
            )
            if len(value) % 3:  # some are never acknowledged
                await self._do("ack", who, queue, value, delivery.ack())
        return one.told is Told.DONE


def find(folder: Path, urls: Iterable[str], prefix: str, replicas: int) -> Found:
    """What the streams hold, after all nodes have stopped: log and queues."""
    settings = StreamSettings(prefix=prefix, replicas=replicas)
    journal = JetStreamJournal(folder / "found", Access(servers=tuple(urls)), settings, node="end")
    engine = Engine(journal, adopted=range(journal.partitions))
    try:
        found = Found()
        for position in engine.positions():
            rows = found.log[position.partition] = []
            for stored in engine.read(position.partition, position.first, position.next):
                batch = decode(stored.ipc)
                columns = [
                    batch.column(k).to_pylist() for k in ("offset", "address", "op", "payload")
                ]
                for offset, address, op, payload in zip(*columns, strict=True):
                    if address.startswith("log/") and op == "publish":
                        producer, _, number = payload.decode().rpartition(":")
                        rows.append(Row(offset, address, producer, int(number)))
                    else:
                        rows.append(Row(offset, address, f"? {position.partition}", offset))
        for queue in engine.queues():
            if queue.name.startswith("work/"):
                stored_there = engine.stored(queue.name)
                values = [one.message.payload.decode() for one in stored_there]
                assert len(values) == len(set(values)), "an id was put twice"
                # A message that was delivered too often is a dead letter of its queue.
                found.queues.setdefault(queue.name.removesuffix(DEAD.decode()), []).extend(values)
        return found
    finally:
        engine.close()
