"""How the broker holds up: `python -m bench.pressure [stream] [slow] [idle] [--json FILE]`.

- `stream`: a byte stream of 2 GiB through a reader that pauses every 32 MiB. The broker's resident
  memory must not move by more than 64 MiB, and the reader gets every byte.
- `slow`: one publisher, two subscribers that keep up, one that stopped reading and one that reads
  at 1 %. The two must keep 90 % of the rate that they have without the slow ones, once with a
  publisher at full speed, and once with one that has a pace and makes up for waiting.
- `idle`: 10 000 connections that say nothing. At most 20 KiB resident each, and the rate of an
  active pair is what it was without them.

The broker is a process of its own, and so is everybody else, as far as the cores go.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.results import OURS, Outcome, Tell, write_json
from bench.results import Result as Row
from wirelake.client.speech import speech
from wirelake.client.url import Place
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed
from wirelake.errors import RefusedError
from wirelake.measure.broker import HOST, Wirelake, encode, own_broker
from wirelake.measure.load import Load, beside, end_by_signals, publish_rate, told
from wirelake.measure.machine import describe
from wirelake.message import Message, Op, Parameters

MEBIBYTE = 1 << 20
STREAM_DIALECT = "kobold-2"
CHUNK = 64 << 10
READER = "reader"
#: The reader of a stream rests so long after every so many bytes; once, in the middle, for longer.
REST_AFTER, REST, LONG_REST = 32 * MEBIBYTE, 0.1, 5.0
LOAD = Load(topics=1, size=128)
#: A subscriber that gets nothing for so long, in seconds, is stalled.
STALL = 0.1
ROUNDS = 7

Result = dict[str, Any]
console = Console()


def driver(port: int, dialect: str) -> Wirelake:
    """How to talk to the broker in a dialect."""
    return Wirelake(Place(dialect, HOST, port))


def resident(pid: int) -> int:
    """The memory of a process, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


# A byte stream through a slow reader


def stream(size: int) -> Result:
    """`size` bytes from one client to another, and the broker's memory meanwhile."""
    with own_broker() as (port, pid), ExitStack() as stack:
        reader = stack.enter_context(beside(_read_stream, port, size))
        told(reader)
        _stream_once(stack, port, MEBIBYTE)  # so that what is made once is there
        told(reader)
        before = resident(pid)
        samples = [before]
        start = time.monotonic()
        writer = _stream_once(stack, port, size)
        while not reader.poll(0.05):
            samples.append(resident(pid))
        told(writer)
        got = int(told(reader))
        took = time.monotonic() - start
    return {
        "bytes": size,
        "received": got,
        "seconds": took,
        "megabytes_a_second": size / took / 1e6,
        "resident_before_kib": before,
        "resident_most_kib": max(samples),
        "moved_mib": (max(samples) - before) / 1024,
        "as_wanted": got == size and max(samples) - before <= 64 * 1024,
    }


def _stream_once(stack: ExitStack, port: int, size: int) -> Connection:
    return stack.enter_context(beside(_write_stream, port, size))


def _write_stream(pipe: Connection, port: int, size: int) -> None:
    """Open a stream, write all of it, close it."""
    talk = speech(STREAM_DIALECT)
    opening = talk.control(Message(op=Op.OPEN, address=READER))
    number = opening.message.correlation_id
    encoder = talk.encoder()
    with closing(driver(port, STREAM_DIALECT).connect("pub", lambda _: opening)) as connection:
        connection.settimeout(None)
        chunk = Message(op=Op.DATA, correlation_id=number, payload=bytes(CHUNK))
        frame = encode(encoder, STREAM_DIALECT, [chunk])
        for _ in range(size // CHUNK):
            connection.sendall(frame)
        end = Message(op=Op.CLOSE, correlation_id=number, parameters=Parameters(count=size))
        connection.sendall(encode(encoder, STREAM_DIALECT, [end]))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    pipe.send(0.0)


def _read_stream(pipe: Connection, port: int, size: int) -> None:
    """Read streams with pauses; tell how many bytes came of each, as CLOSE says, too."""
    with closing(driver(port, STREAM_DIALECT).connect("sub", client_id=READER)) as connection:
        connection.settimeout(None)
        pipe.send(0.0)
        feed = Feed(STREAM_DIALECT)
        buffer = bytearray(CHUNK * 4)
        got, rest_at, rested = 0, REST_AFTER, False
        while count := connection.recv_into(buffer):
            for table in feed.receive(memoryview(buffer)[:count]):
                for message in table.messages():
                    if message.op == Op.DATA:
                        got += len(message.payload)
                    elif message.op == Op.CLOSE:
                        if message.parameters.code or message.parameters.count != got:
                            raise RefusedError("closed", f"{got} bytes, {message.parameters}")
                        pipe.send(float(got))
                        got, rest_at = 0, REST_AFTER
            if got >= rest_at:
                long = not rested and got > size // 2
                rested = rested or long
                time.sleep(LONG_REST if long else REST)
                rest_at += REST_AFTER


# Slow consumers


def slow(seconds: float) -> Result:
    """The share of their rate that subscribers keep beside slow ones."""
    results: Result = {"seconds": seconds}
    full, _ = _receive_rate("boson-text", seconds, pace=0, slow_ones=False)
    for name, pace in (("full_speed", 0.0), ("paced", full / 3)):
        alone = full
        if pace:
            alone, _ = _receive_rate("boson-text", seconds, pace=pace, slow_ones=False)
        beside_slow, stalled = _receive_rate("boson-text", seconds, pace=pace, slow_ones=True)
        # Rates differ from run to run on a busy machine; how long nothing came does not.
        moving = max(0.0, 1 - stalled / seconds)
        share = beside_slow / alone
        results[name] = {
            "alone_megabytes_a_second": alone / 1e6,
            "beside_slow_megabytes_a_second": beside_slow / 1e6,
            "share": share,
            "stalled_seconds": stalled,
            "share_of_time_moving": moving,
            "as_wanted": (share if pace else min(share, moving)) >= 0.9,
        }
    return results


def _receive_rate(
    dialect: str, seconds: float, *, pace: float, slow_ones: bool
) -> tuple[float, float]:
    """Bytes a second that each of two subscribers gets, on average, and seconds without any."""
    with own_broker() as (port, _), ExitStack() as stack:
        one = driver(port, dialect)
        good = [stack.enter_context(beside(_count_for, one, seconds)) for _ in range(2)]
        for pipe in good:
            told(pipe)
        if slow_ones:
            # 1 % of what the good ones may get; of a pace that is not set, of 400 MB a second.
            for rate in (0.0, (pace or 400e6) / 100):
                told(stack.enter_context(beside(_read_slowly, one, rate)))
        connection, block = one.publisher(LOAD)
        with closing(connection):
            connection.settimeout(None)
            for pipe in good:
                pipe.send(0.0)
            start, sent = time.monotonic(), 0
            while (now := time.monotonic()) < start + seconds:
                connection.sendall(block)
                sent += len(block)
                if pace and (ahead := start + sent / pace - now) > 0:
                    time.sleep(ahead)
            got = statistics.mean(told(pipe) for pipe in good)
            return got / seconds, statistics.mean(told(pipe) for pipe in good)


def _count_for(pipe: Connection, one: Wirelake, seconds: float) -> None:
    """A subscriber that keeps up: the bytes that it got while time was, and how long none came."""
    with closing(one.subscriber(LOAD.filter)) as connection:
        pipe.send(0.0)
        pipe.recv()
        end = time.monotonic() + seconds
        connection.settimeout(STALL)
        buffer = bytearray(MEBIBYTE)
        got, stalled = 0, 0.0
        while time.monotonic() < end:
            try:
                got += connection.recv_into(buffer)
            except TimeoutError:
                stalled += STALL
        pipe.send(float(got))
        pipe.send(stalled)
        connection.settimeout(None)
        while connection.recv_into(buffer):  # or the broker would see a slow one here, too
            pass


def _read_slowly(pipe: Connection, one: Wirelake, rate: float) -> None:
    """A subscriber that reads so many bytes a second, or none, until it is disconnected."""
    with closing(one.subscriber(LOAD.filter)) as connection:
        pipe.send(0.0)
        while True:
            time.sleep(0.05)
            if rate and not connection.recv(int(rate * 0.05)):
                return


# Idle connections


def idle(count: int, seconds: float) -> Result:
    """What connections cost that say nothing, and what they cost others.

    Two brokers take turns, one with the crowd and one without: the machine is never quiet.
    """
    with own_broker() as (quiet, _), own_broker() as (crowded, pid), ExitStack() as crowd:

        def rate(port: int) -> float:
            one = driver(port, "kobold-3")
            return publish_rate(one, one, LOAD, 1, seconds)

        rate(crowded)  # so that what is made once is there
        before = resident(pid)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = min(count, most // 2)
        pipes = []
        for begin in range(0, count, share):
            some = range(begin, min(begin + share, count))
            pipes.append(crowd.enter_context(beside(sit_idle, crowded, some, DIALECTS)))
        for pipe in pipes:
            while not pipe.poll(1):
                pass
            told(pipe)
        after = resident(pid)
        rates: dict[int, list[float]] = {quiet: [], crowded: []}
        for _ in range(ROUNDS):
            for port, found in rates.items():
                found.append(rate(port))
        alone, beside_idle = (statistics.median(found) for found in rates.values())
    return {
        "connections": count,
        "resident_before_kib": before,
        "resident_after_kib": after,
        "kib_each": (after - before) / count,
        "alone_messages_a_second": alone,
        "beside_idle_messages_a_second": beside_idle,
        "share": beside_idle / alone,
        "as_wanted": after - before <= 20 * count,
    }


def sit_idle(pipe: Connection, port: int, numbers: range, dialects: Collection[str]) -> None:
    """Connections of these dialects, each with a subscription of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    drivers = [driver(port, dialect) for dialect in dialects]
    held = [drivers[k % len(drivers)].subscriber(f"idle/{k}") for k in numbers]
    pipe.send(float(len(held)))
    pipe.recv()


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    size, seconds, connections = (8 << 20, 0.3, 40) if quick else (2 << 30, 30.0, 10_000)
    tell("stream")
    found: Result = {"stream": stream(size)}
    tell("slow consumers")
    found["slow"] = slow(seconds)
    tell("idle connections")
    found["idle"] = idle(connections, min(seconds, 2.0))
    outcome = Outcome(list(results(found)), details=found)
    streamed = found["stream"]
    if streamed["received"] != streamed["bytes"]:
        outcome.failures.append(f"stream: {streamed['received']} of {streamed['bytes']} bytes came")
    return outcome


def results(found: Result) -> Iterator[Row]:
    """The figures for the one table."""
    streamed, idling = found["stream"], found["idle"]
    yield Row("stream, memory moved", "MiB", {OURS: streamed["moved_mib"]}, less_is_better=True)
    for name, label in (("full_speed", "full speed"), ("paced", "paced")):
        each = found["slow"][name]
        rates = {
            OURS: each["beside_slow_megabytes_a_second"] * 1e6,
            "without them": each["alone_megabytes_a_second"] * 1e6,
        }
        yield Row(f"slow ones beside, {label}, rate kept", "bytes/s", rates)
        if name == "full_speed":  # a pace has pauses of its own
            moving = {OURS: each["share_of_time_moving"]}
            yield Row(f"slow ones beside, {label}, time moving", "share", moving)
    kept = {OURS: idling["kib_each"]}
    yield Row("idle connections, memory", "KiB each", kept, less_is_better=True)
    rates = {
        OURS: idling["beside_idle_messages_a_second"],
        "without them": idling["alone_messages_a_second"],
    }
    yield Row("idle connections, rate of others", "messages/s", rates)


def main() -> None:
    """Measure what is asked for, or all; show it, and write JSON if that is wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help="stream, slow, idle; all without it")
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the stream")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run of `slow`")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measurements: dict[str, Callable[[], Result]] = {
        "stream": lambda: stream(options.size // CHUNK * CHUNK),
        "slow": lambda: slow(options.seconds),
        "idle": lambda: idle(options.connections, min(options.seconds, 2.0)),
    }
    if unknown := set(options.what) - measurements.keys():
        parser.error(f"{unknown.pop()} is none of {', '.join(measurements)}")
    end_by_signals()
    results: Result = {"machine": describe(Path())}
    for name in options.what or measurements:
        console.print(f"{name} …")
        results[name] = measurements[name]()
        console.print(results[name])
    write_json(options.json, results)


if __name__ == "__main__":
    main()
