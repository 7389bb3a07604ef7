"""The traffic of `wirelake demo`: what each client of the town does, in all dialects and patterns.

Sensors measure, people chat, a shop takes orders that workers fill, services are asked, settings
change and are watched, cameras send pictures, a dispatcher talks to drivers. Each is a client of
its own; most leave after a while and come back. Some things go wrong on purpose: workers return an
order or die with it, orders cannot be filled, services are too slow or missing.

Messages are counted by dialect and pattern, errors by kind.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from wirelake.chat.bots import Bot, Crowd
from wirelake.client import Client, connect
from wirelake.client.speech import can
from wirelake.demo.town import Town
from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message

#: Mean seconds that a client stays, and that it is away.
STAY, AWAY = 20.0, 1.0
#: Seconds in which pending messages may still arrive at the end.
LAST_WORDS = 2.0

ORDERS, RECEIPTS = "shop/orders", "shop/receipts"
ARCHIVE, DISPATCHER = "archive", "dispatcher"
#: Bytes of a picture; milliseconds that a cart is kept; prefetch of a slow worker.
PICTURE, CART, FEW = 192 << 10, 5000, 5

_ROOMS = {"kitchen": 21.0, "hall": 18.5, "cellar": 12.0, "roof": 7.5}
_MACHINES = ("press-1", "press-2", "saw", "paint")
_GOODS = ("bolts", "hinges", "lamps", "paint", "rope", "wire")
_PEOPLE = ["Amelie", "Bogdan", "Carmen", "Dorian", "Emilia"]
_STREETS = ("Mill Lane", "Harbour Road", "High Street", "Station Square")

Life = Callable[[Client], Coroutine[Any, Any, None]]


async def live(town: Town, duration: float) -> None:
    """Run all clients for this many seconds, and let them finish what they have begun.

    Raises RefusedError: `closed` if there is no broker, `conflict` if another demo runs there.
    """
    async with _founded(town):
        await _live(town, duration)


@asynccontextmanager
async def _founded(town: Town) -> AsyncIterator[None]:
    """Make the queues before anybody uses them as topics; there is one demo on a broker."""
    dialect = next((one for one in town.urls if can(one, "pull")), next(iter(town.urls)))
    name = "demo" if can(dialect, "client id") else ""
    try:
        client = await connect(town.urls[dialect], client_id=name, token=town.token)
    except RefusedError as error:
        if error.code == "closed":
            text = f"{error.text}; is there a broker? `wirelake up` starts one"
            raise RefusedError("closed", text) from None
        if error.code not in ("conflict", "exists"):
            raise
        raise RefusedError("conflict", "another demo is running on this broker") from None
    try:
        for queue in (ORDERS, RECEIPTS) if can(dialect, "pull") else ():
            async with client.queue(queue).consume():
                pass
        yield
    finally:
        await client.close()


async def _live(town: Town, duration: float) -> None:
    crowd = _crowd(town)
    tasks = [asyncio.create_task(one) for one in _clients(town)]
    tasks += [asyncio.create_task(Bot(name, crowd).live()) for name in crowd.names]
    try:
        ended, _ = await asyncio.wait(tasks, timeout=duration, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            await task
        town.over.set()
        await asyncio.wait(tasks, timeout=LAST_WORDS)
    finally:
        town.over.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        town.sent["mfp-1", "chat"] += crowd.did["said"]
        town.heard["mfp-1", "chat"] += crowd.did["heard"]


def _crowd(town: Town) -> Crowd:
    """The bots that talk in the lobby."""
    url = town.urls.get("mfp-1", "")
    talking = min(60.0, 12 * town.pace)
    crowd = Crowd(url, ["lobby"], town.token, 5.0, talking, lambda _: None, stay=STAY, away=AWAY)
    crowd.names = _PEOPLE if url else []
    return crowd


def _clients(town: Town) -> list[Coroutine[Any, Any, None]]:
    """All clients whose dialect can be reached."""
    sensing = max(1.0, town.rate - 9 * town.pace) / 6
    everybody: list[tuple[str, str, Life]] = [
        ("boson-text", "", _house_sensor(town, sensing, "house/{room}/temperature")),
        ("boson-text", "", _house_sensor(town, sensing, "house/{room}/humidity")),
        ("boson-binary", "plant-sensors", _plant_sensor(town, sensing)),
        ("boson-binary", "plant-counters", _plant_sensor(town, sensing)),
        ("kobold-1", "weather-station", _house_sensor(town, sensing, "weather/{room}")),
        ("mqtt-3.1.1", "greenhouse", _house_sensor(town, sensing, "garden/{room}")),
        ("tmq-1.00", "plant-alarms", partial(_alarm, town)),
        ("kobold-3", "heating", _listener(town, "house/#")),
        ("mqtt-5", "sprinklers", _listener(town, "garden/#")),
        ("tmq-1.01", "maintenance", _listener(town, "plant/+/alarm")),
        ("boson-binary", "logbook", _listener(town, "weather/#")),
        ("boson-text", "", _listener(town, "plant/+/alarm")),
        ("kobold-2", "statistics", _listener(town, "plant/#")),
        ("tmq-1.01", "shop-web", partial(_shop, town)),
        ("tmq-1.00", "shop-till", partial(_shop, town)),
        ("boson-text", "", partial(_old_till, town)),
        ("tmq-1.01", "worker-1", _worker(town, fails=0.02)),
        ("tmq-1.00", "worker-2", _worker(town, fails=0.15)),
        ("kobold-2", "worker-3", _worker(town, fails=0.02, is_slow=True)),
        ("boson-binary", "worker-4", _worker(town, fails=0.05)),
        ("mfp-1", "printer", partial(_receipts, town)),
        ("kobold-1", "price-desk", _service(town, "service/price")),
        ("kobold-3", "stock-desk-1", _service(town, "service/stock")),
        ("boson-binary", "stock-desk-2", _service(town, "service/stock")),
        ("boson-text", "", _service(town, "service/post")),
        ("kobold-2", "shop-app", partial(_asker, town)),
        ("tmq-1.01", "shop-phone", partial(_asker, town)),
        ("boson-text", "", partial(_asker, town)),
        ("boson-binary", "shop-kiosk", partial(_asker, town)),
        ("mqtt-5", "shop-watch", partial(_asker, town)),
        ("kobold-3", "control-room", partial(_settings, town)),
        ("boson-binary", "night-shift", partial(_settings, town)),
        ("kobold-2", "thermostats", _watcher(town, "settings/#")),
        ("kobold-1", "carts", partial(_carts, town)),
        ("kobold-3", ARCHIVE, partial(_archive, town)),
        ("kobold-1", "camera-1", partial(_camera, town)),
        ("boson-binary", "camera-2", partial(_camera, town)),
        ("tmq-1.01", DISPATCHER, partial(_dispatcher, town)),
        ("kobold-3", "driver-1", partial(_driver, town)),
        ("boson-binary", "driver-2", partial(_driver, town)),
        ("tmq-1.00", "driver-3", partial(_driver, town)),
    ]
    return [
        _client(town, dialect, name, life)
        for dialect, name, life in everybody
        if dialect in town.urls
    ]


async def _client(town: Town, dialect: str, name: str, life: Life) -> None:
    """Connect, live for a while, disconnect and come back, until the demo is over."""
    while not town.over.is_set():
        # Other clients rely on these two.
        stay = None if name in (ARCHIVE, DISPATCHER) else random.expovariate(1 / STAY)
        try:
            async with town.connected(dialect, name) as client:
                await _for_a_while(life(client), stay)
        except WirelakeError as error:
            town.went_wrong(error)
        if await town.pause(AWAY):
            town.happened["reconnects"] += 1


async def _for_a_while(life: Coroutine[Any, Any, None], seconds: float | None) -> None:
    """Run until the time is over, or until it ends by itself."""
    living = asyncio.create_task(life)
    try:
        await asyncio.wait([living], timeout=seconds)
        if living.done():
            await living
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


# Publish and subscribe


def _house_sensor(town: Town, rate: float, address: str) -> Life:
    async def live(client: Client) -> None:
        async for due in town.due(rate):
            readings = []
            for _ in range(due):
                room, usual = random.choice(list(_ROOMS.items()))
                value = usual + 2 * math.sin(time.time() / 60) + random.gauss(0, 0.2)
                readings.append((address.format(room=room), f"{value:.2f}".encode()))
            await client.publish_many(readings)
            town.count_sent(client, "publish", due)

    return live


def _plant_sensor(town: Town, rate: float) -> Life:
    async def live(client: Client) -> None:
        async for due in town.due(rate):
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
            town.count_sent(client, "publish", due)

    return live


async def _alarm(town: Town, client: Client) -> None:
    async for _ in town.turns(4 / town.pace):
        text = random.choice((b"pressure high", b"door open", b"oil low", b"all clear"))
        await client.publish(f"plant/{random.choice(_MACHINES)}/alarm", text, ack=True)
        town.count_sent(client, "publish")


def _listener(town: Town, filter: str) -> Life:
    async def live(client: Client) -> None:
        async with client.subscribe(filter) as messages:
            while taken := await messages.take():
                town.count_heard(client, "publish", len(taken))

    return live


# Queues


async def _shop(town: Town, client: Client) -> None:
    orders = client.queue(ORDERS)
    async for _ in town.turns(2 / town.pace):
        urgent = int(random.random() < 0.1)
        await orders.put(_order(town), id=f"order-{town.number()}", priority=urgent)
        town.count_sent(client, "queue")


async def _old_till(town: Town, client: Client) -> None:
    """It knows nothing of queues: what it publishes there is an order all the same."""
    async for _ in town.turns(4 / town.pace):
        await client.publish(ORDERS, _order(town))
        town.count_sent(client, "queue")


def _order(town: Town) -> bytes:
    goods = "a unicorn" if random.random() < 0.02 else random.choice(_GOODS)
    order = {"order": town.number(), "goods": goods, "pieces": random.randrange(1, 20)}
    return json.dumps(order).encode()


def _worker(town: Town, *, fails: float, is_slow: bool = False) -> Life:
    async def live(client: Client) -> None:
        receipts = client.queue(RECEIPTS)
        orders = client.queue(ORDERS)
        async with orders.consume(prefetch=FEW) if is_slow else orders.consume() as deliveries:
            async for delivery in deliveries:
                town.count_heard(client, "queue")
                order = delivery.message.payload
                if is_slow:
                    await asyncio.sleep(random.expovariate(1 / 0.3))
                if b"unicorn" in order or random.random() < fails:
                    await delivery.nack()  # the fifth time it is a dead letter
                    town.happened["orders given back"] += 1
                    continue
                if random.random() < 0.005:
                    town.happened["workers that died with an order"] += 1
                    return
                await delivery.ack()
                if random.random() < 0.3:
                    await receipts.put(b"receipt for " + order)
                    town.count_sent(client, "queue")

    return live


async def _receipts(town: Town, client: Client) -> None:
    async with client.subscribe(RECEIPTS) as receipts:
        async for _ in receipts:
            town.count_heard(client, "queue")


# Requests


def _service(town: Town, address: str) -> Life:
    async def answer(request: Message) -> bytes:
        if random.random() < 0.02:
            await asyncio.sleep(2.0)  # nobody waits for that long
        return json.dumps({"asked": request.payload.decode(), "answer": town.number()}).encode()

    async def live(client: Client) -> None:
        async def counted(request: Message) -> bytes:
            town.count_heard(client, "request")
            reply = await answer(request)
            town.count_sent(client, "request")
            return reply

        async with client.serve(address, counted) as service:
            await service.finished()

    return live


async def _asker(town: Town, client: Client) -> None:
    services = ("service/price", "service/stock", "service/post")
    async for _ in town.turns(2 / town.pace):
        nobody = random.random() < 0.01
        address = "service/fortune" if nobody else random.choice(services)
        try:
            town.count_sent(client, "request")
            await client.request(address, random.choice(_GOODS).encode(), timeout=1.0)
            town.count_heard(client, "request")
        except RefusedError as error:
            town.went_wrong(error)


# The data store


async def _settings(town: Town, client: Client) -> None:
    """Two of them change the same keys: each only what it has seen."""
    store = client.store
    async for _ in town.turns(2 / town.pace):
        key = f"settings/{random.choice(list(_ROOMS))}/target"
        value = f"{random.uniform(16, 24):.1f}".encode()
        try:
            entry = await store.read(key)
            await store.update(key, value, revision=entry.revision)
            town.count_sent(client, "store", 2)
        except RefusedError as error:
            if error.code != "not_found":
                town.went_wrong(error)
                continue
            await store.put(key, value)
            town.count_sent(client, "store")


def _watcher(town: Town, filter: str) -> Life:
    async def live(client: Client) -> None:
        async with client.store.watch(filter, revision=1) as changes:
            async for _ in changes:
                town.count_heard(client, "store")

    return live


async def _carts(town: Town, client: Client) -> None:
    """What a customer puts into a cart is forgotten after a while."""
    async for _ in town.turns(4 / town.pace):
        key = f"carts/{town.number()}"
        await client.store.create(key, random.choice(_GOODS).encode(), ttl=CART)
        town.count_sent(client, "store")
        if random.random() < 0.5:
            await client.store.delete(key)
            town.count_sent(client, "store")


# Byte streams


async def _archive(town: Town, client: Client) -> None:
    async with client.streams() as streams:
        async for stream in streams:
            async with stream:
                try:
                    async for _ in stream:
                        pass
                    town.count_heard(client, "stream")
                except RefusedError as error:
                    town.went_wrong(error)


async def _camera(town: Town, client: Client) -> None:
    async for _ in town.turns(2.0):
        picture = random.randbytes(PICTURE)
        info = f"{client.client_id}-{town.number()}.jpg".encode()
        async with await client.stream_to(ARCHIVE, info=info) as stream:
            await stream.write(picture)
        town.count_sent(client, "stream")


# Direct messages


async def _dispatcher(town: Town, client: Client) -> None:
    async def listen() -> None:
        async with client.direct() as answers:
            async for _ in answers:
                town.count_heard(client, "direct")

    listening = asyncio.create_task(listen())
    try:
        async for _ in town.turns(2 / town.pace):
            street = f"{random.choice(_STREETS)} {random.randrange(1, 99)}".encode()
            await client.send_to(f"driver-{random.randrange(1, 4)}", b"go to " + street)
            town.count_sent(client, "direct")
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _driver(town: Town, client: Client) -> None:
    async with client.direct() as jobs:
        async for job in jobs:
            town.count_heard(client, "direct")
            await client.send_to(DISPATCHER, b"on my way: " + job.payload)
            town.count_sent(client, "direct")
