"""Pub/sub and request/reply beside nats-server, in one run: `python -m bench.broker`.

Both servers are driven by the same generator: one publisher that writes prepared frames in blocks
of 256 KiB, and subscribers, each a process, that count bytes. Rates are of messages published; the
rounds alternate between the servers, since the machine is never quiet, and the medians count.
Requests go one at a time, from one connection to a service on another.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wirelake.message import Flag, Message
from wirelake.wire import DIALECTS, Feed, FrameTable, encoder

BLOCK = 256 << 10
PAYLOAD = (b'{"temperature": 21.5, "humidity": 40.25, "unit": "celsius"} ' * 3)[:128]
TOPIC = "sensors/12"
TOPICS = [f"sensors/{k:04}" for k in range(1000)]
NATS_HELLO = b'CONNECT {"verbose":false}\r\nPING\r\n'
SERVER = "from wirelake.cli import main; main()"
OTHER_SIDE = {"boson-text": "kobold-3", "kobold-3": "boson-text", "mfp-1": "tmq-1.01"}


@dataclass(frozen=True)
class Case:
    """What a publisher sends and a subscriber gets, on one server."""

    name: str
    port: int
    subscribe: Callable[[str], list[bytes]]  # what a subscriber of this name sends first
    hello: Callable[[str], list[bytes]]
    block: bytes
    messages: int  # in a block
    received: int  # bytes a subscriber gets for a block


def connect(port: int, opening: list[bytes]) -> socket.socket:
    """A connection that has gone through its opening."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for data in opening:
        connection.sendall(data)
        connection.recv(65536)
    return connection


def count_bytes(case: Case, blocks: int, ready: Queue[float], done: Queue[float]) -> None:
    """A subscriber, in a process of its own."""
    connection = connect(case.port, case.subscribe(f"subscriber-{os.getpid()}"))
    buffer = bytearray(1 << 20)
    left = case.received * blocks
    ready.put(0.0)
    while left > 0:
        got = connection.recv_into(buffer)
        if not got:
            raise ConnectionError(f"{case.name}: closed with {left} bytes to come")
        left -= got
    done.put(time.monotonic())


def publish_rate(case: Case, subscribers: int, seconds: float) -> float:
    """Messages published a second, until the last subscriber has all of them."""
    blocks = 64
    while True:
        ready: Queue[float] = multiprocessing.Queue()
        done: Queue[float] = multiprocessing.Queue()
        processes = [
            multiprocessing.Process(target=count_bytes, args=(case, blocks, ready, done))
            for _ in range(subscribers)
        ]
        for process in processes:
            process.start()
        for _ in processes:
            ready.get(timeout=30)
        publisher = connect(case.port, case.hello("publisher"))
        start = time.monotonic()
        for _ in range(blocks):
            publisher.sendall(case.block)
        took = max(done.get(timeout=60) for _ in processes) - start
        for process in processes:
            process.join()
        publisher.close()
        if took > seconds / 2:
            return case.messages * blocks / took
        blocks = int(blocks * max(2.0, seconds / took))


def wirelake_case(source: str, target: str, port: int, topics: list[str]) -> Case:
    """Publish in one dialect, subscribe in another."""

    def opening(dialect: str, role: str, name: str) -> list[bytes]:
        if dialect == "mfp-1":
            handshake = Message(op="handshake", source=name, headers={"$connection": role})
            return [frames(dialect, handshake)]
        if dialect.startswith("tmq"):
            return [b"TMQ/" + dialect[4:].encode(), frames(dialect, Message(op="hello"))]
        return []

    flags = Flag.RESPONSE if target.startswith("tmq") else Flag.ACK
    wish = Message(op="subscribe", address="sensors/#" if len(topics) > 1 else topics[0], id="s")
    subscribe = frames(target, wish, flags=flags)
    random.seed(7)
    sample = [random.choice(topics) for _ in range(BLOCK // (len(PAYLOAD) + 40))]
    block = frames(source, *[Message(address=topic, payload=PAYLOAD) for topic in sample])
    received = deliveries(source, target, block)
    count = len(sample)
    return Case(
        f"{source} → {target}" if source != target else source,
        port,
        lambda name: [*opening(target, "sub", name), subscribe],
        lambda name: opening(source, "pub", name),
        block,
        count,
        received,
    )


def deliveries(source: str, target: str, block: bytes) -> int:
    """How many bytes a subscriber gets for a block, as the broker writes them."""
    size = 0
    translate = encoder(target, client=False)
    translate.origin = b"client-1"
    for table in Feed(source).receive(block):
        rows = [row for row in range(table.count) if table.op[row] == 1]
        if source == target and not source.startswith("tmq"):
            size += sum(table.frame_len[row] for row in rows)
        else:
            size += len(translate.encode(table, rows))
    return size


def frames(dialect: str, *messages: Message, flags: Flag = Flag(0)) -> bytes:  # noqa: B008
    """Messages as a client sends them."""
    table = FrameTable(len(messages))
    table.fill(
        [
            Message(
                **{
                    name: getattr(message, name)
                    for name in ("op", "address", "payload", "id", "source", "headers")
                },
                flags=flags,
            )
            for message in messages
        ],
        dialect,
    )
    return bytes(encoder(dialect).encode(table))


def nats_case(port: int, topics: list[str]) -> Case:
    """The same on nats-server."""
    subject = "sensors.>" if len(topics) > 1 else topics[0].replace("/", ".")
    random.seed(7)
    sample = [random.choice(topics).replace("/", ".") for _ in range(BLOCK // (len(PAYLOAD) + 40))]
    block = b"".join(
        b"PUB %b %d\r\n%b\r\n" % (topic.encode(), len(PAYLOAD), PAYLOAD) for topic in sample
    )
    received = sum(
        len(b"MSG %b 1 %d\r\n%b\r\n" % (topic.encode(), len(PAYLOAD), PAYLOAD)) for topic in sample
    )
    # The server's INFO may come with the first answer or before it.
    return Case(
        "nats-server",
        port,
        lambda name: [NATS_HELLO, b"SUB %b 1\r\nPING\r\n" % subject.encode()],
        lambda name: [NATS_HELLO],
        block,
        len(sample),
        received,
    )


def latencies(ask: Callable[[], None], seconds: float) -> tuple[float, float]:
    """The median and the 99th percentile of a round trip, in microseconds."""
    for _ in range(200):
        ask()
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter_ns()
        ask()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def serve_requests(kind: str, port: int, ready: Queue[float]) -> None:
    """A service that answers every request, in a process of its own."""
    if kind == "nats":
        connection = connect(
            port, [b'CONNECT {"verbose":false}\r\nPING\r\n', b"SUB time 1\r\nPING\r\n"]
        )
        ready.put(0.0)
        while data := connection.recv(65536):
            reply = data.split(b" ")[3]
            connection.sendall(b"PUB %b %d\r\n%b\r\n" % (reply, len(PAYLOAD), PAYLOAD))
        return
    body = b"ADV time\r\n\xa1\x62tx\x611\r\n\r\n"
    connection = connect(port, [len(body).to_bytes(4, "big") + body])
    ready.put(0.0)
    feed = Feed("kobold-3")
    while data := connection.recv(65536):
        for table in feed.receive(data):
            for message in table.messages():
                tx = message.correlation_id.encode()
                answer = b"REP \r\n\xa1\x62tx%c%b\r\n%b\r\n" % (0x60 + len(tx), tx, PAYLOAD)
                connection.sendall(len(answer).to_bytes(4, "big") + answer)


def round_trips(kind: str, port: int, seconds: float) -> tuple[float, float]:
    """Request and reply, one at a time."""
    ready: Queue[float] = multiprocessing.Queue()
    service = multiprocessing.Process(target=serve_requests, args=(kind, port, ready))
    service.start()
    ready.get(timeout=30)
    if kind == "nats":
        connection = connect(port, [NATS_HELLO, b"SUB inbox 1\r\nPING\r\n"])
        request = b"PUB time inbox %d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
    else:
        connection = connect(port, [])
        body = b"REQ time\r\n\xa1\x62tx\x617\r\n%b\r\n" % PAYLOAD
        request = len(body).to_bytes(4, "big") + body
    size = len(PAYLOAD)

    def ask() -> None:
        connection.sendall(request)
        got = 0
        while got < size:
            got += len(connection.recv(65536))

    try:
        return latencies(ask, seconds)
    finally:
        connection.close()
        service.terminate()
        service.join()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def start(stack: ExitStack, command: list[str], port: int) -> None:
    """A server, until the benchmark ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"{command[0]} does not listen")


def main() -> None:
    """Measure, show, and write JSON if that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dialect", action="append", choices=DIALECTS, help="only these")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dialects = options.dialect or list(DIALECTS)
    console = Console()
    rates: dict[tuple[str, str], list[float]] = {}
    trips: dict[str, list[tuple[float, float]]] = {"nats": [], "wirelake": []}
    with ExitStack() as stack:
        nats, ours = free_port(), free_port()
        binary = Path(sys.executable).parent / "nats-server"
        start(stack, [str(binary), "-a", "127.0.0.1", "-p", str(nats)], nats)
        listen = f"auto://127.0.0.1:{ours}"
        start(stack, [sys.executable, "-c", SERVER, "serve", "--listen", listen], ours)
        shapes = {"1 → 1": (1, [TOPIC]), "1 → 4": (4, [TOPIC]), "1000 topics": (1, TOPICS)}
        with console.status("measuring") as status:
            for turn in range(options.rounds):
                for shape, (subscribers, topics) in shapes.items():
                    cases = [nats_case(nats, topics)]
                    cases += [
                        wirelake_case(dialect, dialect, ours, topics)
                        for dialect in dialects
                        if not (dialect == "mfp-1" and len(topics) > 1)
                    ]
                    if shape == "1 → 1":
                        cases += [
                            wirelake_case(source, target, ours, topics)
                            for source, target in OTHER_SIDE.items()
                        ]
                    for case in cases:
                        status.update(f"round {turn + 1}: {shape}, {case.name}")
                        rate = publish_rate(case, subscribers, options.seconds)
                        rates.setdefault((shape, case.name), []).append(rate)
                for kind, port in (("nats", nats), ("wirelake", ours)):
                    status.update(f"round {turn + 1}: request/reply, {kind}")
                    trips[kind].append(round_trips(kind, port, options.seconds))
    medians = {key: statistics.median(values) for key, values in rates.items()}
    table = Table("", "", "M msg/s", "of nats-server")
    for (shape, name), rate in medians.items():
        ratio = rate / medians[shape, "nats-server"]
        table.add_row(shape, name, f"{rate / 1e6:.2f}", f"{ratio:.2f}")
    console.print(table)
    latency = {
        kind: [statistics.median(each) for each in zip(*values, strict=True)]
        for kind, values in trips.items()
    }
    for kind, (middle, tail) in latency.items():
        console.print(f"request/reply, {kind}: p50 {middle:.0f} µs, p99 {tail:.0f} µs")
    if options.json:
        result = {f"{shape}, {name}": rate for (shape, name), rate in medians.items()}
        options.json.write_text(json.dumps({"messages_a_second": result, "latency_us": latency}))


if __name__ == "__main__":
    main()
