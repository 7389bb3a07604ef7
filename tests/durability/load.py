"""Mixed load in all dialects, which comes back whenever the broker does.

Producers publish to topics, one at a time and in batches, and wait until they are answered. Others
put messages into queues, from which clients of other dialects take them, to acknowledge them, to
give them back, to reject them or to sit on them. Clients of the data store create, update and
delete keys of their own, and compete for some that they share. Subscribers listen to the topics.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import wirelake
from tests.dialects.described import METER
from tests.dialects.described import dialect as described
from tests.durability.ledger import Ledger, Said
from tests.durability.served import Served
from wirelake.client import Client
from wirelake.client.inbox import Arrivals, Messages
from wirelake.client.queue import Delivery
from wirelake.client.speech import can
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError

TOPICS = ("topic/a", "topic/b/1", "topic/b/2")
QUEUES = ("jobs/a", "jobs/b")
SHARED = ("shared/1", "shared/2")

#: The settings that the load needs: mfp and MQTT cannot make a queue; a dialect that is described.
SETTINGS = "".join(f'[[queues]]\nname = "{name}"\n' for name in QUEUES)
SETTINGS += '[[dialects]]\nfile = "meter.toml"\n'

PUBLISHERS = (
    "mfp-1", "tmq-1.00", "tmq-1.01", "kobold-1", "kobold-2", "kobold-3", "boson-binary",
    "mqtt-3.1.1", "mqtt-5", "meter-1",
)  # fmt: skip
PUTTERS = ("mfp-1", "tmq-1.01", "kobold-3", "boson-binary", "mqtt-5", "meter-1")
CONSUMERS = {"jobs/a": ("kobold-2", "tmq-1.00"), "jobs/b": ("kobold-1", "boson-binary")}
STORES = ("kobold-1", "kobold-2", "kobold-3", "boson-binary")
SUBSCRIBERS = ("boson-text", "mfp-1", "tmq-1.01", "kobold-2", "mqtt-3.1.1", "mqtt-5", "meter-1")

#: What a client may be told while the broker is away.
AWAY = ("closed", "timeout")


def served(data: Path, environment: Mapping[str, str] | None = None) -> Served:
    """A broker with the settings that the load needs."""
    data.with_name("meter.toml").write_text(METER, encoding="utf-8")
    return Served(data, SETTINGS, environment)


class Load:
    """Clients of a broker, and the ledger of what they were told."""

    def __init__(self, broker: Served, ledger: Ledger, seed: int) -> None:
        self._broker = broker
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._tasks: asyncio.TaskGroup
        self._settling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The load, until the end of the block; a client that fails is an error here."""
        async with AsyncExitStack() as stack:
            stack.enter_context(DIALECTS.also(described(METER)))

            async def client(dialect: str, name: str) -> Client:
                url = self._broker.url(dialect, name if can(dialect, "client id") else "")
                options = {"min_delay": 0.02, "max_delay": 0.2}
                return await stack.enter_async_context(wirelake.connect(url, **options))  # type: ignore[arg-type]  # a TypedDict by its names

            work: list[Coroutine[Any, Any, None]] = []
            for dialect in PUBLISHERS:
                work.append(self._publish(await client(dialect, f"p-{dialect}"), f"p-{dialect}"))
            work.append(self._publish_unasked(await client("boson-text", ""), "p-boson-text"))
            for name, dialect in itertools.product("xyz", PUTTERS):
                name = f"q-{name}-{dialect}"
                work.append(self._put(await client(dialect, name), name))
            for queue, dialects in CONSUMERS.items():
                for dialect in dialects:
                    consumer = (await client(dialect, f"c-{dialect}")).queue(queue).consume()
                    work.append(self._consume(await stack.enter_async_context(consumer), dialect))
            for dialect in STORES:
                work.append(self._change(await client(dialect, f"s-{dialect}"), f"s-{dialect}"))
            for dialect in SUBSCRIBERS:
                messages = (await client(dialect, f"l-{dialect}")).subscribe("topic/#")
                listening = await stack.enter_async_context(messages)
                work.append(self._listen(listening, f"l-{dialect}"))
            async with asyncio.TaskGroup() as self._tasks:
                tasks = [self._tasks.create_task(each) for each in work]
                yield
                for task in (*tasks, *self._settling):
                    task.cancel()

    # Topics

    async def _publish(self, client: Client, producer: str) -> None:
        """Say numbers, each until it is answered."""
        serial = number = 0
        unanswered: list[tuple[str, int]] = []
        while True:
            if not unanswered:
                count = self._chance.choice((1, 1, 5, 40))
                unanswered = [(self._chance.choice(TOPICS), number + k + 1) for k in range(count)]
                number += count
            said = [Said(producer, to, serial + k + 1, n) for k, (to, n) in enumerate(unanswered)]
            serial += len(said)
            self._ledger.sends(said)
            try:
                if len(said) == 1:
                    await client.publish(said[0].address, self._payload(said[0]), ack=True)
                else:
                    batch = [(one.address, self._payload(one)) for one in said]
                    await client.publish_many(batch, ack=True)
            except RefusedError as error:
                _check_away(error)
            else:
                self._ledger.published(said)
                unanswered = []

    async def _publish_unasked(self, client: Client, producer: str) -> None:
        """Publish where nobody says whether it arrived."""
        serial = 0
        while True:
            serial += 1
            said = Said(producer, self._chance.choice(TOPICS), serial, serial)
            self._ledger.sends([said])
            try:
                await client.publish(said.address, self._payload(said))
            except RefusedError as error:
                _check_away(error)
            await asyncio.sleep(0.002)  # a pace: nothing else holds it back

    async def _listen(self, messages: Messages, name: str) -> None:
        async for message in messages:
            self._ledger.hears(name, message.payload)

    def _payload(self, said: Said) -> bytes:
        return said.payload(self._chance.choice((0, 10, 100, 400)))

    # Queues

    async def _put(self, client: Client, producer: str) -> None:
        """Put numbers, each again under its id until it is answered.

        Only where the broker can know it again: mfp and MQTT have no ids of messages, and a
        described dialect has none of clients. These put the next number.
        """
        serial = number = 0
        has_ids = can(client.dialect, "message id") and can(client.dialect, "client id")
        answered = True
        while True:
            if answered or not has_ids:
                number += 1
                queue = self._chance.choice(QUEUES)
            serial += 1
            said = Said(producer, queue, serial, number)
            self._ledger.puts(said)
            identity = {"id": f"{producer}-{number}"} if has_ids else {}
            try:
                await client.queue(queue).put(self._payload(said), ack=True, **identity)  # type: ignore[arg-type]  # only an id
            except RefusedError as error:
                _check_away(error)
                answered = False
            else:
                self._ledger.kept(said)
                answered = True

    async def _consume(self, deliveries: Arrivals[Delivery], dialect: str) -> None:
        """Take messages, and settle several at a time."""
        async for delivery in deliveries:
            task = self._tasks.create_task(self._settle(dialect, delivery))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _settle(self, dialect: str, delivery: Delivery) -> None:
        name = self._ledger.delivered(delivery.message.payload, delivery.attempt)
        fate = self._chance.random()
        told = not dialect.startswith("tmq")  # TMQ says nothing when an ack is done
        try:
            if fate < 0.8:
                self._ledger.acks(name)
                await delivery.ack()
                if told:
                    self._ledger.acked(name, delivery.attempt)
            elif fate < 0.9:
                await delivery.nack()
            elif fate < 0.95 and told:
                self._ledger.rejects(name)
                await delivery.nack(requeue=False)
                self._ledger.rejected(name)
            # else it is held until the broker dies
        except RefusedError as error:
            _check_away(error)

    # The data store

    async def _change(self, client: Client, name: str) -> None:
        """Change keys of one's own and shared ones, always from the revision that was seen."""
        serial = 0
        keys = [*(f"{name}/{k}" for k in range(5)), *SHARED]
        seen: dict[str, int] = {}  # revisions of keys that are there
        while True:
            serial += 1
            key = self._chance.choice(keys)
            value: bytes | None = f"{name} {serial}".encode()
            try:
                if key not in seen:
                    self._ledger.changes(key, value)
                    assert value is not None
                    seen[key] = await client.store.create(key, value)
                elif self._chance.random() < 0.1:
                    value = None
                    self._ledger.changes(key, value)
                    revision = await client.store.delete(key, revision=seen.pop(key))
                else:
                    self._ledger.changes(key, value)
                    assert value is not None
                    seen[key] = await client.store.update(key, value, revision=seen.pop(key))
            except RefusedError as error:
                await self._look(client, key, seen, error)
            else:
                self._ledger.changed(key, value, seen.get(key) or revision)

    async def _look(
        self, client: Client, key: str, seen: dict[str, int], error: RefusedError
    ) -> None:
        """See what a key has come to, after a change that did not come about, or may not have."""
        if error.code not in ("conflict", "exists", "not_found"):
            _check_away(error)
        seen.pop(key, None)
        try:
            seen[key] = (await client.store.read(key)).revision
        except RefusedError as again:
            if again.code != "not_found":
                _check_away(again)


def _check_away(error: RefusedError) -> None:
    if error.code not in AWAY:
        raise error


async def check(broker: Served, ledger: Ledger, *, torn: bool = False) -> None:
    """Read everything back, with clients that took no part in the load."""
    ledger.check_log(await broker.log(), torn=torn)
    async with wirelake.connect(broker.url("kobold-3", "checker")) as client:
        keys = await _drain_store(client, ledger.keys)
        waiting: Counter[str] = Counter()
        dead: Counter[str] = Counter()
        for queue in QUEUES:
            waiting += await _drain(client, queue)
            dead += await _drain(client, f"{queue}/$dead")
    ledger.check_keys(keys)
    ledger.check_queues(waiting, dead)


async def _drain(client: Client, queue: str) -> Counter[str]:
    """Everything in a queue, by name."""
    found: Counter[str] = Counter()
    while taken := await client.queue(queue).get(500):
        for delivery in taken:
            found[Said.parse(delivery.message.payload).name] += 1
        await asyncio.gather(*(delivery.ack() for delivery in taken))
    return found


async def _drain_store(client: Client, keys: set[str]) -> dict[str, tuple[int, bytes | None]]:
    """The revision and value of every key; one that is gone tells its revision by the next one."""
    there = {entry.key: entry for entry in await client.store.keys("#")}
    found: dict[str, tuple[int, bytes | None]] = {}
    for key in keys:
        if key in there:
            found[key] = (there[key].revision, there[key].value)
        else:
            found[key] = (await client.store.create(key, b"checked") - 1, None)
    return found


Progress = Callable[[int, Ledger], None]


async def besiege(
    broker: Served,
    ledger: Ledger,
    kills: int,
    seed: int,
    progress: Progress = lambda kill, ledger: None,
) -> list[float]:
    """Kill the broker again and again under load; how long it took to be back each time."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    starts: list[float] = []
    await broker.start()
    async with Load(broker, ledger, seed).running():
        for kill in range(kills):
            await ledger.more_answers(chance.choice((1, 100, 1000, 4000)))
            await broker.kill()
            if chance.random() < 0.2:  # again, while it recovers
                await broker.spawn()
                await asyncio.sleep(chance.random())
                await broker.kill()
            began = loop.time()
            await broker.start()
            starts.append(loop.time() - began)
            progress(kill + 1, ledger)
        await ledger.more_answers(200)
    return starts
