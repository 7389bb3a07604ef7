"""Clocks that jump, and processes that stand still."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import struct
from pathlib import Path

import pytest

import wirelake
from tests.broker.desk import Desk
from tests.durability.conftest import Preload
from tests.durability.served import Served
from wirelake.client import Client
from wirelake.errors import RefusedError
from wirelake.message import Message, Op

DAY = 86_400
QUEUE = "jobs"

#: Long enough that no test gets there (ms).
LATER = 600_000


class Clock:
    """The clock on a broker's wall."""

    def __init__(self, file: Path, preload: Preload) -> None:
        self._file = file
        self.jump(0)
        self.environment = {"LD_PRELOAD": preload("durability/clock.c"), "CLOCK": str(file)}

    def jump(self, seconds: int) -> None:
        """Let it be so much ahead of ours."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))


@pytest.fixture
def clock(tmp_path: Path, preload: Preload) -> Clock:
    return Clock(tmp_path / "clock", preload)


async def let_timers_run(client: Client) -> None:
    """Wait until the broker has looked at its timers, and a short one has gone off."""
    async with client.store.watch("blink") as changes:
        await client.store.put("blink", b"", ttl=100)
        async for change in changes:
            if change.value is None:
                return


async def test_no_timer_goes_off_early_when_the_clock_jumps(tmp_path: Path, clock: Clock) -> None:
    async with Served(tmp_path / "data", environment=clock.environment) as broker:
        await broker.start()
        async with wirelake.connect(broker.url("kobold-3")) as client:
            queue = client.queue(QUEUE)
            await queue.put(b"held")
            (held,) = await queue.get()
            await queue.put(b"mortal", ttl=LATER)
            await queue.put(b"delayed", delay=LATER)
            await client.store.put("key", b"mortal", ttl=LATER)
            for jump in (DAY, -DAY, 0):
                clock.jump(jump)
                await let_timers_run(client)
                (state,) = await client.queues()
                assert (state["held"], state["ready"], state["delayed"]) == (1, 1, 1)
                (mortal,) = await queue.get(2)
                assert mortal.message.payload == b"mortal"
                await mortal.nack()
                assert (await client.store.read("key")).value == b"mortal"
            await held.ack()


async def test_times_never_go_back(tmp_path: Path, clock: Clock) -> None:
    async with Served(tmp_path / "data", environment=clock.environment) as broker:
        for restart in range(2):
            await broker.start()
            async with wirelake.connect(broker.url("kobold-3")) as client:
                for number, jump in enumerate((0, DAY, -DAY, 0)):
                    clock.jump(jump)
                    await let_timers_run(client)
                    await client.publish("topic", b"%d %d" % (restart, number), ack=True)
            times = [
                row["timestamp"]
                for table in await broker.log()
                for row in table.to_pylist()
                if row["address"] == "topic"
            ]
            assert len(times) == 4 * (restart + 1)
            assert times == sorted(times)
            assert (times[1] - times[0]).days == 1  # or the clock did not jump at all
            await broker.kill()


TIMEOUT = 0.5
SETTINGS = f'[[queues]]\nname = "{QUEUE}"\nack_timeout = {TIMEOUT}\nmax_deliveries = 100\n'


@pytest.mark.slow
async def test_a_broker_that_stands_still_for_long_loses_nothing(tmp_path: Path) -> None:
    async with Served(tmp_path / "data", SETTINGS) as broker, contextlib.AsyncExitStack() as stack:
        await broker.start()
        client, other = [
            await stack.enter_async_context(wirelake.connect(broker.url(dialect, dialect)))
            for dialect in ("kobold-3", "boson-binary")
        ]
        jobs = {b"%d" % number for number in range(50)}
        for job in jobs:
            await client.queue(QUEUE).put(job)
        taken = await client.queue(QUEUE).get(50)
        broker.signal(signal.SIGSTOP)
        acking = [asyncio.create_task(one.ack()) for one in taken[:25]]
        publishing = asyncio.create_task(other.publish("topic", b"meanwhile", ack=True))
        await asyncio.sleep(3 * TIMEOUT)  # this is what happens to it
        assert not publishing.done()
        broker.signal(signal.SIGCONT)
        await publishing
        # What was acknowledged meanwhile was so in time, as far as the consumer could tell.
        await asyncio.gather(*acking)
        rest = {one.message.payload for one in taken[25:]}
        async with other.queue(QUEUE).consume() as again:
            while rest:
                delivery = await anext(again)
                assert delivery.attempt > 1
                await delivery.ack()
                rest.remove(delivery.message.payload)
        assert [state["name"] for state in await client.queues()] == [QUEUE]  # no dead letters
        assert broker.complaints == []


def test_an_ack_that_was_sent_while_the_broker_stood_still_is_in_time() -> None:
    # decision 54
    desk = Desk()
    desk.pass_time(1)
    client = desk.client("kobold-3")
    client.send(Message(op=Op.ENQUEUE, address=QUEUE, payload=b"job"))
    client.send(Message(op=Op.SUBSCRIBE, address=QUEUE))
    (delivery,) = client.take()
    desk.now += 3600  # its timers are run before anything is read
    desk.node.tick(desk.now)
    assert client.take() == []
    client.send(Message(op=Op.ACK, address=QUEUE, id=delivery.id))
    assert len(desk.node.queues.get(QUEUE)) == 0
    client.send(Message(op=Op.ENQUEUE, address=QUEUE, payload=b"another job"))
    client.take()
    desk.pass_time(31)
    (again,) = client.take()
    assert again.parameters.attempt == 2


@pytest.mark.slow
async def test_a_consumer_that_stands_still_for_long_has_its_messages_taken_away(
    tmp_path: Path,
) -> None:
    async with Served(tmp_path / "data", SETTINGS) as broker:
        await broker.start()
        async with (
            wirelake.connect(broker.url("kobold-3")) as sleeper,
            wirelake.connect(broker.url("tmq-1.01", "other")) as other,
        ):
            await sleeper.queue(QUEUE).put(b"job")
            (held,) = await sleeper.queue(QUEUE).get()
            async with other.queue(QUEUE).consume() as deliveries:
                delivery = await anext(deliveries)
                assert delivery.message.payload == b"job"
                await delivery.ack()
            with pytest.raises(RefusedError) as refused:
                await held.ack()
            assert refused.value.code == "not_found"
            (state,) = await sleeper.queues()
            assert state["messages"] == 0
