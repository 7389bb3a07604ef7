"""What durability costs, beside JetStream, Redis and RabbitMQ: `python -m bench.durable`.

All servers keep their files on the same disk and are driven by the same generator, in turns, with
payloads of 128 bytes; the medians of the rounds count. Whoever is answered waits for the answer
before it sends the next; 64 clients are 64 connections.

- acked: publishes that are answered, from 1 and from 64 clients;
- queue: put, get and ack, each answered, from 1 and from 64 clients, a queue each. AMQP has no
  answer to an ack: `bench.rabbitmq` says what stands for it;
- store: updates of a key each, answered, from 1 and from 64 clients; RabbitMQ has none;
- captured: one publisher that waits for nothing, until all it sent is kept.

An answer of Wirelake, of Redis with `appendfsync always`, of JetStream with `sync_interval: always`
and of RabbitMQ with durable queues and persistent messages comes after an fsync: these are of equal
durability. JetStream as it is answers before.

Beside them, with one publisher and one subscriber:

- published and heard, beside one that waits: one publisher and one subscriber at full speed, with a
  log, beside a client that publishes 100 times a second and waits for each answer;
- captured bytes: what the log's files grew by while it captured, beside plain sequential writes;
- published and heard: at full speed, with a log and without (`--no-capture`);
- paced: at half of the rate at which the broker has just captured, with and without a log: the
  share of its pace that the publisher reached, and the broker's CPU time until all was kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.keepers import (
    MANY,
    PAYLOAD,
    JetStream,
    JetStreamSynced,
    Keeper,
    RedisStreams,
    Say,
    Uncaptured,
    Wirelake,
)
from bench.log import disk
from bench.peers import Nats, Redis
from bench.rabbitmq import RabbitMq
from bench.results import Outcome, Result, Tell, write_json
from wirelake.measure.broker import Wirelake as Driver
from wirelake.measure.load import SILENCE, Load, beside, end_by_signals, publish_rate, receive, told
from wirelake.measure.machine import describe, fsync_rate

#: What clients do again and again, and how many of them.
CASES: dict[str, tuple[Callable[[Keeper], Callable[[int], list[Say]]], int]] = {
    "acked publishes, 1 client": (lambda one: one.publish, 1),
    f"acked publishes, {MANY} clients": (lambda one: one.publish, MANY),
    "queue put-get-ack, 1 client": (lambda one: one.queue, 1),
    f"queue put-get-ack, {MANY} clients": (lambda one: one.queue, MANY),
    "store updates, 1 client": (lambda one: one.update, 1),
    f"store updates, {MANY} clients": (lambda one: one.update, MANY),
}
CAPTURED, CAPTURED_BYTES = "captured publishes", "captured bytes"
PACED, PACED_CPU = "paced publisher, share of its pace", "paced publisher, the broker's CPU"
LOADS = {"one topic": Load(1, len(PAYLOAD)), "1000 topics": Load(1000, len(PAYLOAD))}
BESIDE, WITHOUT_IT = "published and heard, beside one that waits", "without it"
FSYNCS = "fsyncs"
#: The unit of a case, where it is not turns a second.
UNITS = {CAPTURED_BYTES: "bytes/s", PACED: "share", PACED_CPU: "s a million"}
#: A paced publisher runs for so many measurements' time, or processor time would be too coarse.
PACED_TIMES = 4
#: A client that waits for each of its publishes sends about so many of them a second.
WAITING_PACE = 100.0

Figures = dict[str, dict[str, list[float]]]


def present(tell: Tell) -> list[type[Keeper]]:
    """The servers that are installed; the others are told."""
    kinds: list[type[Keeper]] = [Wirelake]
    for kind, peer in (
        (JetStream, Nats),
        (JetStreamSynced, Nats),
        (RedisStreams, Redis),
        (RabbitMq, RabbitMq),
    ):
        if peer.binary():
            kinds.append(kind)
        else:
            tell(f"{kind.name} is not installed, and left out ({peer.hint})")
    return kinds


def measure(
    folder: Path, seconds: float, rounds: int, tell: Tell, note: Tell | None = None
) -> dict[str, Any]:
    """Everything, in turns."""
    figures: Figures = {}
    paces: list[float] = []
    sequential: list[float] = []
    with ExitStack() as stack:
        keepers = [kind(folder / kind.__name__) for kind in present(note or tell)]
        ours, plain = keepers[0], Uncaptured(folder / "uncaptured")
        assert isinstance(ours, Wirelake)
        for keeper in (*keepers, plain):
            tell(f"starting {keeper.name}")
            stack.enter_context(keeper.running())
        for number in range(rounds):
            turn = number % len(keepers)
            order = keepers[turn:] + keepers[:turn]
            sequential.append(disk(folder, min(seconds, 1.0)))
            for case, (steps, clients) in CASES.items():
                tell(f"round {number + 1} of {rounds}: {case}")
                _add(figures, case, FSYNCS, fsync_rate(folder))
                for keeper in order:
                    if steps(keeper)(0):
                        rate = keeper.rate(steps(keeper), clients, seconds)
                        _add(figures, case, keeper.name, rate)
            tell(f"round {number + 1} of {rounds}: {CAPTURED}")
            for keeper in order:
                before = ours.log_bytes()
                sent, taken = keeper.captured(seconds)
                _add(figures, CAPTURED, keeper.name, sent / taken)
                if keeper is ours:
                    _add(figures, CAPTURED_BYTES, ours.name, (ours.log_bytes() - before) / taken)
                    _add(figures, CAPTURED_BYTES, "the disk", sequential[-1])
            tell(f"round {number + 1} of {rounds}: with a subscriber")
            pair = (ours, plain) if number % 2 else (plain, ours)
            for shape, load in LOADS.items():
                for one in pair:
                    rate = publish_rate(one.driver, one.driver, load, 1, seconds)
                    _add(figures, f"published and heard, {shape}", one.name, rate)
            for waits in (True, False) if number % 2 else (False, True):
                rate = rate_beside(ours, PACED_TIMES * seconds, waits=waits)
                _add(figures, BESIDE, ours.name if waits else WITHOUT_IT, rate)
            sent, taken = ours.captured(seconds)
            paces.append(sent / taken / 2)
            for one in pair:
                share, used = paced(one, paces[-1], PACED_TIMES * seconds)
                _add(figures, PACED, one.name, share)
                _add(figures, PACED_CPU, one.name, used)
    return {
        "machine": describe(folder),
        "load_average": os.getloadavg(),
        "payload": len(PAYLOAD),
        "disk_bytes_a_second": statistics.median(sequential),
        "paces": paces,
        "figures": {
            case: {name: statistics.median(each) for name, each in found.items()}
            for case, found in figures.items()
        },
        "rounds": figures,
    }


def _add(figures: Figures, case: str, name: str, figure: float) -> None:
    figures.setdefault(case, {}).setdefault(name, []).append(figure)


def rate_beside(one: Wirelake, seconds: float, *, waits: bool) -> float:
    """Messages a second that are captured and heard, beside a client that waits for the disk.

    That client is slow enough to take no processor time worth counting: what it costs the others is
    that the broker commits for it.
    """
    with ExitStack() as stack:
        if waits:
            told(stack.enter_context(beside(_wait_for_each, one)))
        return publish_rate(one.driver, one.driver, LOADS["one topic"], 1, seconds)


def _wait_for_each(pipe: Connection, one: Wirelake) -> None:
    """A client that publishes at a slow pace, each time when the one before is durable."""
    (publish,) = one.publish(MANY)
    with closing(one.connect(MANY)) as connection:
        connection.settimeout(SILENCE)
        one.ask(connection, publish(0, b""))
        pipe.send(0.0)
        number = 0
        while True:
            number += 1
            one.ask(connection, publish(number, b""))
            time.sleep(1 / WAITING_PACE)


def paced(one: Wirelake, pace: float, seconds: float) -> tuple[float, float]:
    """The share of its pace that a publisher reaches, until one subscriber has heard all of it.

    And the CPU time that the broker took for a million messages, until they were kept.
    """
    load = LOADS["one topic"]
    with ExitStack() as stack:
        publisher, block = one.driver.publisher(load)
        stack.enter_context(closing(publisher))
        publisher.settimeout(SILENCE)
        count = len(load.addresses())
        blocks = max(1, round(seconds * pace / count))
        # A frame goes to its own dialect byte for byte, so as many bytes come out as went in.
        size = blocks * len(block)
        pipe = stack.enter_context(beside(_hear, one.driver, load.filter, size))
        told(pipe)
        before, begun = one.cpu_seconds(), time.monotonic()
        for number in range(blocks):
            ahead = begun + number * count / pace - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            publisher.sendall(block)
        heard = told(pipe) - begun
        one.wait_until_kept(publisher, 0)
        used = one.cpu_seconds() - before
    due = blocks * count / pace
    return due / max(due, heard), used / (blocks * count) * 1e6


def _hear(pipe: Connection, driver: Driver, filter: str, size: int) -> None:
    """A subscriber: tells when it has so many bytes."""
    with closing(driver.subscriber(filter)) as connection:
        connection.settimeout(SILENCE)
        pipe.send(0.0)
        receive(connection, size)
        pipe.send(time.monotonic())


def results(found: dict[str, Any]) -> list[Result]:
    """The figures for the one table."""
    made = []
    for case, rounds in found["rounds"].items():
        unit = UNITS.get(case, "turns/s" if "queue" in case else "a second")
        contenders = {name: each for name, each in rounds.items() if name != FSYNCS}
        less = case == PACED_CPU
        made.append(Result.of_rounds(case, unit, contenders, less_is_better=less))
    return made


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    outcome = Outcome()
    seconds, rounds = (0.05, 1) if quick else (0.5, 7)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), seconds, rounds, tell, outcome.notes.append)
    outcome.results = results(found)
    outcome.details = found
    return outcome


def show(people: Console, found: dict[str, Any]) -> None:
    """One table; a line about the machine."""
    names = list(dict.fromkeys(name for each in found["figures"].values() for name in each))
    table = Table("a second", *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for case, each in found["figures"].items():
        digits = 2 if case in (PACED, PACED_CPU) else 0
        label = f"{case} ({UNITS[case]})" if case in UNITS else case
        cells = (f"{each[name]:,.{digits}f}" if name in each else "" for name in names)
        table.add_row(label, *cells)
    people.print(table)
    machine = found["machine"]
    people.print(
        f"{machine['cpu']}, {machine['cores']} cores; {machine['fsyncs_a_second']:.0f} fsyncs and"
        f" {found['disk_bytes_a_second'] / 1e6:.0f} MB a second; payloads of"
        f" {found['payload']} bytes; load average {found['load_average'][0]:.1f}"
    )


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement (0.5)")
    parser.add_argument("--rounds", type=int, default=7, help="of which the medians count (7)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    people = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.seconds, options.rounds, people.print)
    show(people, found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
