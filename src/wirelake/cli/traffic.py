"""The traffic of `wirelake demo`: a small town of clients, in every dialect and every pattern.

Sensors measure, people chat, a shop takes orders that workers fill, services are asked, settings
change and are watched, a camera sends pictures, a dispatcher talks to drivers. Each is a client of
its own, written as a coroutine that lives on one connection. Most leave after a while and come
back. Some of it goes wrong, as it does: workers that give an order back or die with it in their
hands, orders that nobody can fill, services that are too slow or not there.

What each of them sends and gets is counted by dialect and pattern; so is what went wrong.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import wirelake
from wirelake.chat.bots import Bot, Crowd
from wirelake.client import Client
from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message

PATTERNS = ("publish", "chat", "request", "queue", "store", "stream", "direct")

#: Of all messages, how many are no measurements; and how many a second there are of them at most.
SHARE, MOST = 0.04, 40.0
#: Sensors send what they have measured so many times a second.
BEAT = 10.0
#: Seconds, on the average: that a client stays, that it is away, and before its first turn.
STAY, AWAY, SOON = 20.0, 1.0, 0.5
#: Seconds in which what was sent may still arrive, once the demo is over.
LAST_WORDS = 2.0

ORDERS, RECEIPTS = "shop/orders", "shop/receipts"
ARCHIVE, DISPATCHER = "archive", "dispatcher"
#: Bytes of a picture; milliseconds that a cart is kept; orders that a slow worker takes at once.
PICTURE, CART, FEW = 192 << 10, 5000, 5

_WITH_QUEUES = ("kobold-3", "kobold-2", "kobold-1", "tmq-1.01", "tmq-1.00", "boson-binary")
_ROOMS = {"kitchen": 21.0, "hall": 18.5, "cellar": 12.0, "roof": 7.5}
_MACHINES = ("press-1", "press-2", "saw", "paint")
_GOODS = ("bolts", "hinges", "lamps", "paint", "rope", "wire")
_PEOPLE = ["Amelie", "Bogdan", "Carmen", "Dorian", "Emilia"]
_STREETS = ("Mill Lane", "Harbour Road", "High Street", "Station Square")


Life = Callable[[Client], Coroutine[Any, Any, None]]


@dataclass
class Town:
    """Where everybody lives, what they are to do, and what they did."""

    urls: dict[str, str]  # by dialect: those that can be reached
    token: str
    rate: float  # messages a second that are sent, about
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    heard: Counter[tuple[str, str]] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: count(int(time.time() * 1000)))

    @property
    def messages(self) -> int:
        """How many were sent."""
        return self.sent.total()

    @property
    def pace(self) -> float:
        """Times a second that each of the few things happens which are no measurements."""
        return min(MOST, max(0.5, self.rate * SHARE))

    def number(self) -> int:
        """One that nobody else has."""
        return next(self._numbers)

    async def live(self, duration: float) -> None:
        """Let everybody live for so many seconds, and then finish what they have begun."""
        async with self._founded():
            await self._live(duration)

    @asynccontextmanager
    async def _founded(self) -> AsyncIterator[None]:
        """Queues are made before anybody takes them for topics; there is one town on a broker."""
        dialect = next((one for one in _WITH_QUEUES if one in self.urls), next(iter(self.urls)))
        name = "" if dialect == "boson-text" else "demo"
        try:
            client = await wirelake.connect(self.urls[dialect], client_id=name, token=self.token)
        except RefusedError as error:
            if error.code == "closed":
                text = f"{error.text}; is there a broker? `wirelake up` starts one"
                raise RefusedError("closed", text) from None
            if error.code not in ("conflict", "exists"):
                raise
            raise RefusedError("conflict", "another demo is running on this broker") from None
        try:
            for queue in (ORDERS, RECEIPTS) if dialect in _WITH_QUEUES else ():
                async with client.queue(queue).consume():
                    pass
            yield
        finally:
            await client.close()

    async def _live(self, duration: float) -> None:
        crowd = self._crowd()
        tasks = [asyncio.create_task(one) for one in self._inhabitants()]
        tasks += [asyncio.create_task(Bot(name, crowd).live()) for name in crowd.names]
        try:
            ended, _ = await asyncio.wait(
                tasks, timeout=duration, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in ended:
                await task
            self.over.set()
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        finally:
            self.over.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.sent["mfp-1", "chat"] += crowd.did["said"]
            self.heard["mfp-1", "chat"] += crowd.did["heard"]

    def _crowd(self) -> Crowd:
        """Those who talk in the lobby; they come and go by themselves."""
        url = self.urls.get("mfp-1", "")
        talking = min(60.0, 12 * self.pace)
        crowd = Crowd(
            url, ["lobby"], self.token, 5.0, talking, lambda text: None, stay=STAY, away=AWAY
        )
        crowd.names = _PEOPLE if url else []
        return crowd

    def _inhabitants(self) -> list[Coroutine[Any, Any, None]]:
        """Everybody whose dialect can be reached."""
        sensing = max(1.0, self.rate - 9 * self.pace) / 5
        everybody: list[tuple[str, str, Life]] = [
            ("boson-text", "", self._house_sensor(sensing, "house/{room}/temperature")),
            ("boson-text", "", self._house_sensor(sensing, "house/{room}/humidity")),
            ("boson-binary", "plant-sensors", self._plant_sensor(sensing)),
            ("boson-binary", "plant-counters", self._plant_sensor(sensing)),
            ("kobold-1", "weather-station", self._house_sensor(sensing, "weather/{room}")),
            ("tmq-1.00", "plant-alarms", self._alarm),
            ("kobold-3", "heating", self._listener("house/#")),
            ("tmq-1.01", "maintenance", self._listener("plant/+/alarm")),
            ("boson-binary", "logbook", self._listener("weather/#")),
            ("boson-text", "", self._listener("plant/+/alarm")),
            ("kobold-2", "statistics", self._listener("plant/#")),
            ("tmq-1.01", "shop-web", self._shop),
            ("tmq-1.00", "shop-till", self._shop),
            ("boson-text", "", self._old_till),
            ("tmq-1.01", "worker-1", self._worker(fails=0.02)),
            ("tmq-1.00", "worker-2", self._worker(fails=0.15)),
            ("kobold-2", "worker-3", self._worker(fails=0.02, is_slow=True)),
            ("boson-binary", "worker-4", self._worker(fails=0.05)),
            ("mfp-1", "printer", self._receipts),
            ("kobold-1", "price-desk", self._service("service/price")),
            ("kobold-3", "stock-desk-1", self._service("service/stock")),
            ("boson-binary", "stock-desk-2", self._service("service/stock")),
            ("boson-text", "", self._service("service/post")),
            ("kobold-2", "shop-app", self._asker),
            ("tmq-1.01", "shop-phone", self._asker),
            ("boson-text", "", self._asker),
            ("boson-binary", "shop-kiosk", self._asker),
            ("kobold-3", "control-room", self._settings),
            ("boson-binary", "night-shift", self._settings),
            ("kobold-2", "thermostats", self._watcher("settings/#")),
            ("kobold-1", "carts", self._carts),
            ("kobold-3", ARCHIVE, self._archive),
            ("kobold-1", "camera-1", self._camera),
            ("boson-binary", "camera-2", self._camera),
            ("tmq-1.01", DISPATCHER, self._dispatcher),
            ("kobold-3", "driver-1", self._driver),
            ("boson-binary", "driver-2", self._driver),
            ("tmq-1.00", "driver-3", self._driver),
        ]
        return [
            self._inhabitant(dialect, name, life)
            for dialect, name, life in everybody
            if dialect in self.urls
        ]

    async def _inhabitant(self, dialect: str, name: str, life: Life) -> None:
        """Come, live, leave, come back, until the demo is over."""
        while not self.over.is_set():
            # The others count on some of them.
            stay = None if name in (ARCHIVE, DISPATCHER) else random.expovariate(1 / STAY)
            try:
                async with self._connected(dialect, name) as client:
                    await _for_a_while(life(client), stay)
            except WirelakeError as error:
                self._went_wrong(error)
            if await self._pause(AWAY):
                self.happened["reconnects"] += 1

    @asynccontextmanager
    async def _connected(self, dialect: str, name: str) -> AsyncIterator[Client]:
        url = self.urls[dialect]
        async with wirelake.connect(url, client_id=name, token=self.token, max_delay=2.0) as client:
            yield client

    def _went_wrong(self, error: WirelakeError) -> None:
        code = error.code if isinstance(error, RefusedError) else "other errors"
        self.happened[code.replace("_", " ")] += 1

    async def _pause(self, mean: float) -> bool:
        """Wait for a time that is random, as people's is; whether the demo goes on."""
        try:
            async with asyncio.timeout(random.expovariate(1 / mean)):
                await self.over.wait()
        except TimeoutError:
            return True
        return False

    async def _turns(self, mean: float) -> AsyncIterator[None]:
        """Times to do something, the first one soon, until the demo is over."""
        wait = min(mean, SOON)
        while await self._pause(wait):
            yield
            wait = mean

    def _sent(self, client: Client, pattern: str, number: int = 1) -> None:
        self.sent[client.dialect, pattern] += number

    def _heard(self, client: Client, pattern: str, number: int = 1) -> None:
        self.heard[client.dialect, pattern] += number

    # Publish and subscribe

    def _house_sensor(self, rate: float, address: str) -> Life:
        async def live(client: Client) -> None:
            async for due in self._due(rate):
                readings = []
                for _ in range(due):
                    room, usual = random.choice(list(_ROOMS.items()))
                    value = usual + 2 * math.sin(time.time() / 60) + random.gauss(0, 0.2)
                    readings.append((address.format(room=room), f"{value:.2f}".encode()))
                await client.publish_many(readings)
                self._sent(client, "publish", due)

        return live

    def _plant_sensor(self, rate: float) -> Life:
        async def live(client: Client) -> None:
            async for due in self._due(rate):
                readings = []
                for _ in range(due):
                    reading = {
                        "pressure": round(random.gauss(6.2, 0.4), 3),
                        "speed": random.randrange(800, 1200),
                        "at": int(time.time() * 1000),
                    }
                    address = f"plant/{random.choice(_MACHINES)}/state"
                    readings.append((address, json.dumps(reading).encode()))
                await client.publish_many(readings)
                self._sent(client, "publish", due)

        return live

    async def _due(self, rate: float) -> AsyncIterator[int]:
        """How many messages are due, several times a second, until the demo is over."""
        loop = asyncio.get_running_loop()
        last, owed = loop.time(), random.random()
        while not self.over.is_set():
            await asyncio.sleep(1 / BEAT)
            now = loop.time()
            owed += rate * min(now - last, 1.0)
            last = now
            if owed >= 1:
                yield int(owed)
                owed %= 1

    async def _alarm(self, client: Client) -> None:
        async for _ in self._turns(4 / self.pace):
            text = random.choice((b"pressure high", b"door open", b"oil low", b"all clear"))
            await client.publish(f"plant/{random.choice(_MACHINES)}/alarm", text, ack=True)
            self._sent(client, "publish")

    def _listener(self, filter: str) -> Life:
        async def live(client: Client) -> None:
            async with client.subscribe(filter) as messages:
                while taken := await messages.take():
                    self._heard(client, "publish", len(taken))

        return live

    # Queues

    async def _shop(self, client: Client) -> None:
        orders = client.queue(ORDERS)
        async for _ in self._turns(2 / self.pace):
            urgent = int(random.random() < 0.1)
            await orders.put(self._order(), id=f"order-{self.number()}", priority=urgent)
            self._sent(client, "queue")

    async def _old_till(self, client: Client) -> None:
        """It knows nothing of queues: what it publishes there is an order all the same."""
        async for _ in self._turns(4 / self.pace):
            await client.publish(ORDERS, self._order())
            self._sent(client, "queue")

    def _order(self) -> bytes:
        goods = "a unicorn" if random.random() < 0.02 else random.choice(_GOODS)
        order = {"order": self.number(), "goods": goods, "pieces": random.randrange(1, 20)}
        return json.dumps(order).encode()

    def _worker(self, *, fails: float, is_slow: bool = False) -> Life:
        async def live(client: Client) -> None:
            receipts = client.queue(RECEIPTS)
            orders = client.queue(ORDERS)
            async with orders.consume(prefetch=FEW) if is_slow else orders.consume() as deliveries:
                async for delivery in deliveries:
                    self._heard(client, "queue")
                    order = delivery.message.payload
                    if is_slow:
                        await asyncio.sleep(random.expovariate(1 / 0.3))
                    if b"unicorn" in order or random.random() < fails:
                        await delivery.nack()  # the fifth time it is a dead letter
                        self.happened["orders given back"] += 1
                        continue
                    if random.random() < 0.005:
                        self.happened["workers that died with an order"] += 1
                        return
                    await delivery.ack()
                    if random.random() < 0.3:
                        await receipts.put(b"receipt for " + order)
                        self._sent(client, "queue")

        return live

    async def _receipts(self, client: Client) -> None:
        async with client.subscribe(RECEIPTS) as receipts:
            async for _ in receipts:
                self._heard(client, "queue")

    # Requests

    def _service(self, address: str) -> Life:
        async def answer(request: Message) -> bytes:
            if random.random() < 0.02:
                await asyncio.sleep(2.0)  # nobody waits for that long
            return json.dumps({"asked": request.payload.decode(), "answer": self.number()}).encode()

        async def live(client: Client) -> None:
            async def counted(request: Message) -> bytes:
                self._heard(client, "request")
                reply = await answer(request)
                self._sent(client, "request")
                return reply

            async with client.serve(address, counted) as service:
                await service.finished()

        return live

    async def _asker(self, client: Client) -> None:
        services = ("service/price", "service/stock", "service/post")
        async for _ in self._turns(2 / self.pace):
            nobody = random.random() < 0.01
            address = "service/fortune" if nobody else random.choice(services)
            try:
                self._sent(client, "request")
                await client.request(address, random.choice(_GOODS).encode(), timeout=1.0)
                self._heard(client, "request")
            except RefusedError as error:
                self._went_wrong(error)

    # The data store

    async def _settings(self, client: Client) -> None:
        """Two of them change the same keys: each only what it has seen."""
        store = client.store
        async for _ in self._turns(2 / self.pace):
            key = f"settings/{random.choice(list(_ROOMS))}/target"
            value = f"{random.uniform(16, 24):.1f}".encode()
            try:
                entry = await store.read(key)
                await store.update(key, value, revision=entry.revision)
                self._sent(client, "store", 2)
            except RefusedError as error:
                if error.code != "not_found":
                    self._went_wrong(error)
                    continue
                await store.put(key, value)
                self._sent(client, "store")

    def _watcher(self, filter: str) -> Life:
        async def live(client: Client) -> None:
            async with client.store.watch(filter, revision=1) as changes:
                async for _ in changes:
                    self._heard(client, "store")

        return live

    async def _carts(self, client: Client) -> None:
        """What a customer puts into a cart is forgotten after a while."""
        async for _ in self._turns(4 / self.pace):
            key = f"carts/{self.number()}"
            await client.store.create(key, random.choice(_GOODS).encode(), ttl=CART)
            self._sent(client, "store")
            if random.random() < 0.5:
                await client.store.delete(key)
                self._sent(client, "store")

    # Byte streams

    async def _archive(self, client: Client) -> None:
        async with client.streams() as streams:
            async for stream in streams:
                async with stream:
                    try:
                        async for _ in stream:
                            pass
                        self._heard(client, "stream")
                    except RefusedError as error:
                        self._went_wrong(error)

    async def _camera(self, client: Client) -> None:
        async for _ in self._turns(2.0):
            picture = random.randbytes(PICTURE)
            info = f"{client.client_id}-{self.number()}.jpg".encode()
            async with await client.stream_to(ARCHIVE, info=info) as stream:
                await stream.write(picture)
            self._sent(client, "stream")

    # Direct messages

    async def _dispatcher(self, client: Client) -> None:
        async def listen() -> None:
            async with client.direct() as answers:
                async for _ in answers:
                    self._heard(client, "direct")

        listening = asyncio.create_task(listen())
        try:
            async for _ in self._turns(2 / self.pace):
                street = f"{random.choice(_STREETS)} {random.randrange(1, 99)}".encode()
                await client.send_to(f"driver-{random.randrange(1, 4)}", b"go to " + street)
                self._sent(client, "direct")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _driver(self, client: Client) -> None:
        async with client.direct() as jobs:
            async for job in jobs:
                self._heard(client, "direct")
                await client.send_to(DISPATCHER, b"on my way: " + job.payload)
                self._sent(client, "direct")


async def _for_a_while(life: Coroutine[Any, Any, None], seconds: float | None) -> None:
    """Live until it is time to leave, or life ends by itself."""
    living = asyncio.create_task(life)
    try:
        await asyncio.wait([living], timeout=seconds)
        if living.done():
            await living
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
