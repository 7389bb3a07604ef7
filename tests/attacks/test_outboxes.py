"""Clients that make the broker write and do not read: what waits for them is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.attacks.broker import MIB, Broker, Client, eventually, frames
from tests.attacks.test_web import frame, websocket
from wirelake.message import Flag, Message, Op, Parameters

OUTBOX = 8 * MIB
TOTAL = 256 * MIB
#: What memory may grow by beside what waits: buffers of the system's, of Python's, of the log.
SLACK = 64 * MIB
#: What may wait for the disk (`capture.backlog`), where an attack writes as much.
BACKLOG = 64 * MIB
TEN = 10

Attack = Callable[[Broker, ExitStack, int], None]


def fill(broker: Broker, attack: Attack) -> None:
    """Put in place what an attack asks for: a key of 20 MiB, 60 of 1 MiB, queues."""
    with Client(broker) as client:
        if attack is read_a_large_key:
            client.ask(Message(op=Op.CREATE, address="large", payload=b"x" * (20 * MIB)))
        if attack is list_many_keys:
            for key in range(60):
                client.ask(Message(op=Op.CREATE, address=f"keys/{key}", payload=b"x" * MIB))
        if attack is ask_for_what_is_retained:
            keep_messages(broker)
        if attack is pull_from_a_queue:
            for n in range(30 * TEN):
                name = f"q/{n % TEN}"
                client.ask(Message(op=Op.ENQUEUE, address=name, id=f"{n}", payload=b"x" * MIB))
    time.sleep(1)


def keep_messages(broker: Broker) -> None:
    """Have 60 retained messages of 1 MB."""
    with Client(broker, "mqtt-5") as device:
        headers = {"mqtt.clean": "1", "mqtt.keepalive": "0"}
        device.send(Message(op=Op.HANDSHAKE, source="keeper", headers=headers))
        device.receive()
        for k in range(60):
            kept = {"mqtt.qos": "1", "mqtt.retain": "1"}
            device.send(
                Message(
                    address=f"r/{k}",
                    payload=b"x" * 1_000_000,
                    flags=Flag.ACK,
                    ticket=1,
                    headers=kept,
                )
            )
            device.receive()


def deaf(broker: Broker, stack: ExitStack) -> Client:
    """A client whose system takes next to nothing for it, as it never reads."""
    return stack.enter_context(Client(broker, receive_buffer=4096))


def publish_to_oneself(broker: Broker, stack: ExitStack, number: int) -> None:
    """600 MB to an address that the publisher subscribes to itself."""
    client = deaf(broker, stack)
    client.send(Message(op=Op.SUBSCRIBE, address=f"a/{number}"))
    client.flood(frames("kobold-3", Message(address=f"a/{number}", payload=b"x" * 1_000_000)), 600)


def read_a_large_key(broker: Broker, stack: ExitStack, number: int) -> None:
    """50 reads of a key of 20 MiB, in one packet."""
    client = deaf(broker, stack)
    client.send(*[Message(op=Op.READ, address="large", correlation_id="r")] * 50)
    time.sleep(1)


def list_many_keys(broker: Broker, stack: ExitStack, number: int) -> None:
    """20 lists of 60 keys of 1 MiB, and a watch that begins with all of them."""
    client = deaf(broker, stack)
    client.send(*[Message(op=Op.READ, address="keys/#", correlation_id="r")] * 20)
    watcher = deaf(broker, stack)
    watcher.send(Message(op=Op.WATCH, address="keys/#", parameters=Parameters(rev=0)))
    time.sleep(1)


def ask_for_information(broker: Broker, stack: ExitStack, number: int) -> None:
    """Half a million questions, each with an answer of a kilobyte."""
    client = deaf(broker, stack)
    question = Message(op=Op.INFO, address="$node", correlation_id="x" * 200)
    client.flood(frames("kobold-3", *[question] * 500), 1000)


def send_direct_messages(broker: Broker, stack: ExitStack, number: int) -> None:
    """200 MB to a client that does not read."""
    victim = deaf(broker, stack)
    victim.send(Message(op=Op.PING, parameters=Parameters(client=f"victim-{number}")))
    eventually(lambda: is_there(broker, f"victim-{number}"))
    message = Message(target=f"victim-{number}", payload=b"x" * 1_000_000)
    for _ in range(2):  # whoever sends may be let go on when the victim has been disconnected
        stack.enter_context(Client(broker)).flood(frames("kobold-3", message), 100)


def request_of_a_service(broker: Broker, stack: ExitStack, number: int) -> None:
    """300 MB of requests to a service that does not read."""
    service = deaf(broker, stack)
    service.send(
        Message(op=Op.SERVE, address=f"s/{number}", parameters=Parameters(client=f"s-{number}"))
    )
    eventually(lambda: is_there(broker, f"s-{number}"))
    request = Message(op=Op.REQUEST, address=f"s/{number}", payload=b"x" * 1_000_000)
    client = deaf(broker, stack)
    client.flood(frames("kobold-3", *[_numbered(request, n) for n in range(10)]), 30)


def watch_a_key(broker: Broker, stack: ExitStack, number: int) -> None:
    """Changes of a key of 150 kB, by clients that hang up after each, and a deaf watcher."""
    watcher = deaf(broker, stack)
    watcher.send(Message(op=Op.WATCH, address=f"w/{number}"))
    with Client(broker) as client:
        client.ask(Message(op=Op.CREATE, address=f"w/{number}", payload=b"x"))
    for _ in range(100):
        with Client(broker) as client:
            client.ask(Message(op=Op.UPDATE, address=f"w/{number}", payload=b"x" * 150_000))


def pull_from_a_queue(broker: Broker, stack: ExitStack, number: int) -> None:
    """Pulls of 30 messages of 1 MiB at once, and the same queue consumed by somebody deaf."""
    puller = deaf(broker, stack)
    puller.send(Message(op=Op.DEQUEUE, address=f"q/{number}", parameters=Parameters(count=20)))
    puller.send(
        *[Message(op=Op.DEQUEUE, address=f"q/{number}", parameters=Parameters(count=9))] * 10
    )
    consumer = deaf(broker, stack)
    consumer.send(
        Message(op=Op.SUBSCRIBE, address=f"q/{number}", parameters=Parameters(count=1000))
    )
    time.sleep(1)


def listen_by_http(broker: Broker, stack: ExitStack, number: int) -> None:
    """An event stream of 200 MB that nobody reads."""
    stream = stack.enter_context(broker.http_socket())
    stream.sendall(f"GET /v1/events?filter=h/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert stream.recv(12) == b"HTTP/1.1 200"
    message = Message(address=f"h/{number}", payload=b"x" * 1_000_000)
    stack.enter_context(Client(broker)).flood(frames("kobold-3", message), 200)


def publish_to_a_device(broker: Broker, stack: ExitStack, number: int) -> None:
    """300 MB with QoS 1 to a device that takes one message at a time, and acknowledges none."""
    device = stack.enter_context(Client(broker, "mqtt-5", receive_buffer=4096))
    said = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.receive_maximum": "1"}
    device.send(Message(op=Op.HANDSHAKE, source=f"device-{number}", headers=said))
    device.send(
        Message(op=Op.SUBSCRIBE, address=f"d/{number}", ticket=1, headers={"mqtt.options": "1"})
    )
    eventually(lambda: is_there(broker, f"device-{number}"))
    message = Message(address=f"d/{number}", payload=b"x" * 1_000_000, flags=Flag.ACK, id="1")
    stack.enter_context(Client(broker)).flood(frames("kobold-3", message), 300)


def take_up_a_session(broker: Broker, stack: ExitStack, number: int) -> None:
    """A session for which 60 MB wait, taken up again and again by a device that reads nothing."""
    said = {"mqtt.keepalive": "0", "mqtt.session_expiry": "1000"}
    opening = Message(op=Op.HANDSHAKE, source=f"away-{number}", headers=said)
    with Client(broker, "mqtt-5") as device:
        device.send(opening)
        device.receive()
        device.send(
            Message(op=Op.SUBSCRIBE, address=f"s/{number}", ticket=1, headers={"mqtt.options": "1"})
        )
        device.receive()
    with Client(broker) as sender:
        for n in range(60):
            message = Message(address=f"s/{number}", payload=b"x" * 1_000_000, flags=Flag.ACK)
            assert sender.ask(replace(message, id=f"{n}")).op == Op.OK
    broker.forget_peak()
    for _ in range(3):
        stack.enter_context(Client(broker, "mqtt-5", receive_buffer=4096)).send(opening)
        time.sleep(1)


def ask_for_what_is_retained(broker: Broker, stack: ExitStack, number: int) -> None:
    """Thirty subscriptions to 60 MB of retained messages, with each quality of service."""
    said = {"mqtt.clean": "1", "mqtt.keepalive": "0"}
    for qos in range(3):
        device = stack.enter_context(Client(broker, "mqtt-5", receive_buffer=4096))
        device.send(Message(op=Op.HANDSHAKE, source=f"deaf-{number}-{qos}", headers=said))
        options = {"mqtt.options": str(qos)} if qos else {}
        device.send(
            *(
                Message(op=Op.SUBSCRIBE, address=filter, ticket=k + 1, headers=options)
                for k, filter in enumerate(["r/#", "r/+", "#", "+/+"] * 3)
            )
        )
    time.sleep(1)


def publish_to_itself_as_a_device(broker: Broker, stack: ExitStack, number: int) -> None:
    """300 MB of QoS 1 to itself, of which nothing is acknowledged."""
    device = stack.enter_context(Client(broker, "mqtt-5", receive_buffer=4096))
    said = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.receive_maximum": "1"}
    device.send(Message(op=Op.HANDSHAKE, source=f"self-{number}", headers=said))
    options = {"mqtt.options": "1"}
    device.send(Message(op=Op.SUBSCRIBE, address=f"i/{number}", ticket=1, headers=options))
    message = Message(
        address=f"i/{number}",
        payload=b"x" * 1_000_000,
        flags=Flag.ACK,
        ticket=5,
        headers={"mqtt.qos": "1"},
    )
    device.flood(frames("mqtt-5", message), 300)


def listen_by_websocket(broker: Broker, stack: ExitStack, number: int) -> None:
    """200 MB to a subscriber behind a WebSocket that reads nothing."""
    sock = stack.enter_context(websocket(broker, receive_buffer=4096))
    wanted = Message(
        op=Op.SUBSCRIBE, address=f"w/{number}", parameters=Parameters(client=f"web-{number}")
    )
    sock.sendall(frame(frames("kobold-3", wanted)))
    eventually(lambda: is_there(broker, f"web-{number}"))
    message = Message(address=f"w/{number}", payload=b"x" * 1_000_000)
    stack.enter_context(Client(broker)).flood(frames("kobold-3", message), 200)


def _numbered(message: Message, number: int) -> Message:
    return Message(
        op=message.op,
        address=message.address,
        payload=message.payload,
        correlation_id=str(number),
        id=str(number),
    )


def is_there(broker: Broker, name: str) -> bool:
    """Has a client with this id connected?"""
    found = broker.json("/v1/connections")["connections"]
    return any(one["id"] == name for one in found)


ATTACKS: list[Attack] = [
    publish_to_oneself,
    read_a_large_key,
    list_many_keys,
    ask_for_information,
    send_direct_messages,
    request_of_a_service,
    watch_a_key,
    pull_from_a_queue,
    listen_by_http,
    publish_to_a_device,
    publish_to_itself_as_a_device,
    take_up_a_session,
    ask_for_what_is_retained,
    listen_by_websocket,
]
#: These fill the log as well, which has a budget of its own (`capture.backlog`).
WRITING = (
    watch_a_key,
    listen_by_http,
    publish_to_a_device,
    publish_to_itself_as_a_device,
    take_up_a_session,
    listen_by_websocket,
)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_memory_is_bounded_by_one_outbox(tmp_path: Path, attack: Attack) -> None:
    with Broker(tmp_path) as broker, ExitStack() as stack:
        fill(broker, attack)
        before = broker.forget_peak()
        attack(broker, stack, 0)
        time.sleep(1)
        grown = broker.peak() - before
        print(f"{attack.__name__}: {grown / MIB:.0f} MiB")
        assert grown < 2 * OUTBOX + SLACK + (BACKLOG if attack in WRITING else 0)
        with Client(broker) as client:
            assert client.ask(Message(op=Op.PING)).op == Op.PONG


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_ten_at_once_stay_within_the_budget(tmp_path: Path, attack: Attack) -> None:
    with Broker(tmp_path) as broker, ExitStack() as stack, ThreadPoolExecutor(TEN) as pool:
        fill(broker, attack)
        before = broker.forget_peak()
        list(pool.map(lambda number: attack(broker, stack, number), range(TEN)))
        time.sleep(1)
        grown = broker.peak() - before
        print(f"ten times {attack.__name__}: {grown / MIB:.0f} MiB")
        assert grown < TOTAL + SLACK + (BACKLOG if attack in WRITING else 0)


@pytest.mark.slow
def test_readers_of_the_log_that_do_not_read_stay_within_the_budget(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, ExitStack() as stack:
        with Client(broker) as client:
            for _ in range(400):
                client.send(Message(address="a", payload=b"x" * 1_000_000))
            client.ask(Message(op=Op.PING))
        eventually(lambda: max(one["next"] for one in log(broker)) == 400)
        partition = max(log(broker), key=lambda one: one["next"])["partition"]
        before = broker.forget_peak()
        for _ in range(60):
            reader = stack.enter_context(broker.http_socket())
            reader.sendall(f"GET /v1/log/{partition} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert reader.recv(12) == b"HTTP/1.1 200"
        time.sleep(2)
        assert broker.peak() - before < TOTAL + SLACK


def log(broker: Broker) -> list[dict[str, int]]:
    """The partitions of the broker's log."""
    partitions: list[dict[str, int]] = broker.json("/v1/log")["partitions"]
    return partitions
