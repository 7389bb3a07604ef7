"""What one client can do to others: `python -m bench.attacks [NAME …] [--json FILE]`.

An uninvolved client sends a PING every few milliseconds and waits for its PONG, while another does
its worst: thousands of waiting pulls, filters as deep as they may be, services, queues, lists of
keys. The 99th percentile of the round trips is what counts, beside that of a broker which nobody
attacks. And a publisher sends blocks of messages to 100 000 addresses, among 10 000 filters: how
much longer does a block take when somebody has just subscribed with a wildcard?

The broker keeps nothing on disk here. It is a process of its own, and so are the attackers.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.client.speech import speech
from wirelake.measure.broker import HOST, encode, own_broker
from wirelake.measure.load import beside, end_by_signals, told
from wirelake.measure.machine import describe
from wirelake.message import Message, Op, Parameters

DIALECT = "kobold-3"
BATCH = 500
#: Seconds between two pings.
PAUSE = 0.003
#: Where nothing is attacked: the reference.
QUIET = "no attack"
#: A filter, and an address that it matches, as deep as they may be.
LEVELS = 32

Attack = Callable[[Connection, int, int], None]


class Attacker:
    """A connection that sends whatever it is told, and reads and forgets what comes."""

    def __init__(self, port: int) -> None:
        self._encoder = speech(DIALECT).encoder()
        self._socket = socket.create_connection((HOST, port))
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        tail = b""
        try:
            while data := self._socket.recv(1 << 20):
                tail += data
                for _ in range(tail.count(b"THE-END")):
                    self._answered.release()
                tail = tail[-6:]
        except OSError:
            pass

    def send(self, messages: list[Message]) -> None:
        """Send messages, as fast as the broker takes them."""
        for begin in range(0, len(messages), BATCH):
            self._socket.sendall(encode(self._encoder, DIALECT, messages[begin : begin + BATCH]))

    def settle(self) -> None:
        """Wait until the broker has done all that was sent."""
        self.send([Message(op=Op.PING, correlation_id="THE-END")])
        if not self._answered.acquire(timeout=120):
            raise TimeoutError("the broker does not answer")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _begin(pipe: Connection) -> None:
    """Say that all is prepared, and wait for the start."""
    pipe.send(0.0)
    pipe.recv()


def quiet(pipe: Connection, port: int, size: int) -> None:
    """Nobody attacks."""
    _begin(pipe)
    time.sleep(size / 20_000)
    pipe.send(0.0)


def pulls(pipe: Connection, port: int, size: int) -> None:
    """Pulls that wait for ever: the most allowed, and as many more that are refused."""
    one = Attacker(port)
    _begin(pipe)
    wait = Parameters(wait=999_999.999)
    one.send([Message(op=Op.DEQUEUE, address="q", correlation_id="1", parameters=wait)] * size)
    one.settle()
    for _ in range(5):  # messages, for the pulls to end
        one.send([Message(op=Op.ENQUEUE, address="q", payload=b"x")] * (size // 100))
        one.settle()
    pipe.send(0.0)


def _deep_filters(count: int) -> list[str]:
    chance = random.Random(1)
    return list({"/".join(chance.choice("+a") for _ in range(LEVELS)) for _ in range(count)})


def filters(pipe: Connection, port: int, size: int) -> None:
    """Deep filters that all match, a wildcard that comes and goes, and ever new addresses."""
    one = Attacker(port)
    one.send([Message(op=Op.SUBSCRIBE, address=each) for each in _deep_filters(size // 3)])
    one.settle()
    _begin(pipe)
    for k in range(max(3, size // 100)):
        address = "/".join(["a"] * (LEVELS - 1) + [f"a{k}"])
        one.send(
            [
                Message(op=Op.SUBSCRIBE, address="zz/+"),
                Message(op=Op.UNSUBSCRIBE, address="zz/+"),
                Message(address="/".join("a" * LEVELS), payload=b"x"),
                Message(address=address, payload=b"x"),
            ]
        )
    one.settle()
    pipe.send(0.0)


def leaving(pipe: Connection, port: int, size: int) -> None:
    """Connections with thousands of filters each, which hang up."""
    several = [Attacker(port) for _ in range(4)]
    wanted = [Message(op=Op.SUBSCRIBE, address=f"leaving/{k}") for k in range(size // 3)]
    for one in several:
        one.send(wanted)
        one.settle()
    _begin(pipe)
    for one in several:
        one.close()
        time.sleep(0.2)
    pipe.send(0.0)


def services(pipe: Connection, port: int, size: int) -> None:
    """Far too many services, while others come and go."""
    one = Attacker(port)
    _begin(pipe)
    one.send([Message(op=Op.SERVE, address=f"s/{k}") for k in range(size)])
    one.settle()
    for _ in range(max(3, size // 300)):
        other = Attacker(port)
        other.settle()
        other.close()
    pipe.send(0.0)


def queues(pipe: Connection, port: int, size: int) -> None:
    """Thousands of queues, each with a consumer, and then lists of them."""
    several = [Attacker(port) for _ in range(3)]
    _begin(pipe)
    for number, one in enumerate(several):
        names = range(number * size // 3, (number + 1) * size // 3)
        one.send([Message(op=Op.DEQUEUE, address=f"q/{k}", correlation_id="1") for k in names])
        one.settle()
    several[0].send([Message(op=Op.INFO, address="$queues", correlation_id="1")] * 20)
    several[0].settle()
    pipe.send(0.0)


def keys(pipe: Connection, port: int, size: int) -> None:
    """Thousands of keys, then lists that match none of them, one after the other."""
    one = Attacker(port)
    made = [Message(op=Op.CREATE, address=f"k/{k}", correlation_id="1") for k in range(size)]
    one.send(made)
    one.settle()
    _begin(pipe)
    one.send([Message(op=Op.READ, address="+/x/y", correlation_id="1")] * 50)
    one.settle()
    one.send([Message(op=Op.READ, address="k/+", correlation_id="1")] * 2)
    one.settle()
    pipe.send(0.0)


def updates(pipe: Connection, port: int, size: int) -> None:
    """One key that is updated without end, with a time to live."""
    one = Attacker(port)
    one.send([Message(op=Op.CREATE, address="k", correlation_id="1")])
    one.settle()
    _begin(pipe)
    one.send([Message(op=Op.UPDATE, address="k", ttl=2_000_000_000, correlation_id="1")] * size)
    one.settle()
    pipe.send(0.0)


def addresses(pipe: Connection, port: int, size: int) -> None:
    """Every message to another address, which nobody has used before."""
    one = Attacker(port)
    one.send([Message(op=Op.SUBSCRIBE, address="other/+")])
    one.settle()
    _begin(pipe)
    one.send([Message(address=f"new/{k}", payload=b"x") for k in range(2 * size)])
    one.settle()
    pipe.send(0.0)


ATTACKS: dict[str, Attack] = {
    QUIET: quiet,
    "waiting pulls": pulls,
    "deep filters": filters,
    "filters of those who leave": leaving,
    "services": services,
    "queues": queues,
    "lists of keys": keys,
    "updates with a ttl": updates,
    "new addresses": addresses,
}


def ping_times(attack: Attack, size: int) -> list[float]:
    """Round trips (ms) of an uninvolved client's pings while an attack lasts, and a bit longer."""
    ping = encode(speech(DIALECT).encoder(), DIALECT, [Message(op=Op.PING, correlation_id="1")])
    times: list[float] = []
    with own_broker() as (port, _), beside(attack, port, size) as attacker:
        told(attacker)
        with closing(socket.create_connection((HOST, port))) as connection:
            connection.settimeout(120)
            end = 0.0
            attacker.send(0.0)
            while not end or time.monotonic() < end:
                begun = time.monotonic()
                connection.sendall(ping)
                connection.recv(4096)
                times.append((time.monotonic() - begun) * 1000)
                if not end and attacker.poll():
                    told(attacker)
                    end = time.monotonic() + 0.5
                time.sleep(PAUSE)
    return times


def percentile(times: list[float], share: float) -> float:
    """The time that this share of them do not exceed."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


# A wildcard among many routes


def wildcard(routes: int, count: int, rounds: int) -> dict[str, Any]:
    """How long blocks of publishes take (ms): as usual, and after a wildcard subscription."""
    found: dict[str, list[float]] = {"as usual": [], "after a subscription": []}
    with own_broker() as (port, _), ExitStack() as stack:
        several = [stack.enter_context(closing(Attacker(port))) for _ in range(10)]
        for number, one in enumerate(several):
            mine = range(number, count, len(several))
            one.send([Message(op=Op.SUBSCRIBE, address=f"filter/{k}/+/x") for k in mine])
            one.settle()
        publisher = several[0]
        subscriber = stack.enter_context(closing(Attacker(port)))
        names = [f"route/{k % 100}/{k}" for k in range(routes)]
        publisher.send([Message(address=name, payload=b"x") for name in names])
        publisher.settle()
        chance = random.Random(1)
        for number in range(2 * rounds):
            block = [Message(address=each) for each in chance.sample(names, min(2000, routes))]
            kind = "as usual"
            if number % 2:
                kind = "after a subscription"
                subscriber.send([Message(op=Op.SUBSCRIBE, address=f"other/{number}/+")])
                subscriber.settle()
            begun = time.monotonic()
            publisher.send(block)
            publisher.settle()
            found[kind].append((time.monotonic() - begun) * 1000)
    usual, after = (statistics.median(each) for each in found.values())
    return {"usual_ms": usual, "after_ms": after, "delay_ms": after - usual, "rounds": found}


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    size, routes, count, rounds = (600, 2_000, 200, 2) if quick else (30_000, 100_000, 10_000, 25)
    tell("a wildcard among many routes")
    found: dict[str, Any] = {"wildcard": wildcard(routes, count, rounds), "pings": {}}
    for name, attack in ATTACKS.items():
        tell(name)
        times = ping_times(attack, size)
        found["pings"][name] = {
            "count": len(times),
            "p50": percentile(times, 0.5),
            "p99": percentile(times, 0.99),
            "worst": max(times),
        }
    return Outcome(list(results(found)), details=found)


def results(found: dict[str, Any]) -> Iterator[Result]:
    """The figures for the one table."""
    if "wildcard" in found:
        delay = {OURS: max(0.0, found["wildcard"]["delay_ms"])}
        yield Result("wildcard subscription, delay of others", "ms", delay, less_is_better=True)
    pings = found["pings"]
    for name, figures in pings.items():
        if name != QUIET:
            times = {OURS: figures["p99"]}
            if QUIET in pings:
                times[QUIET] = pings[QUIET]["p99"]
            yield Result(f"ping p99, {name}", "ms", times, less_is_better=True)


def main() -> None:
    """Measure what is asked for, or all; show it, and write JSON if that is wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help=f"wildcard, {', '.join(ATTACKS)}; all without it")
    parser.add_argument("--size", type=int, default=30_000, help="how large an attack is")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if unknown := set(options.what) - ATTACKS.keys() - {"wildcard"}:
        parser.error(f"{unknown.pop()} is none of wildcard, {', '.join(ATTACKS)}")
    end_by_signals()
    console = Console()
    found: dict[str, Any] = {"machine": describe(Path()), "pings": {}}
    wanted = options.what or ["wildcard", *ATTACKS]
    if "wildcard" in wanted:
        found["wildcard"] = wildcard(100_000, 10_000, 25)
        del found["wildcard"]["rounds"]
        console.print("wildcard", found["wildcard"])
    for name, attack in ATTACKS.items():
        if name in wanted:
            times = ping_times(attack, options.size)
            figures = {share: percentile(times, share) for share in (0.5, 0.9, 0.99)}
            found["pings"][name] = {"count": len(times), "p99": figures[0.99], "worst": max(times)}
            console.print(name, len(times), figures, "worst", max(times))
    write_json(options.json, found)


if __name__ == "__main__":
    main()
