"""What a cluster costs, and how long it is silent: `python -m bench.cluster`.

Three nodes on three NATS servers that sync every write, all on this machine. Payloads of 128 bytes,
the generator of the other sections.

- Pub/sub, nothing kept: both clients at the node that owns the address, beside a broker without a
  cluster; the publisher there and the subscriber at another node, and both at nodes that do not own
  it, beside two servers of the same NATS cluster.
- Acked publishes and put, get and ack of queues, of 64 clients at all nodes, beside JetStream with
  three replicas on the same servers, driven in bytes as in `bench.durable`.
- Silence: the longest time for which a client that puts into a queue was not answered, over queues
  of all partitions, while a node is killed, a NATS server is killed, and a node is drained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

import wirelake
from bench.goals import ALONE
from bench.keepers import MANY, JetStreamSynced, Keeper, Say, Wirelake
from bench.peers import Nats, connected
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.client.http import HttpClient
from wirelake.client.url import Place
from wirelake.errors import EngineError, WirelakeError
from wirelake.journal.batch import home
from wirelake.live.nats import SERVERS, NatsServers, is_healthy
from wirelake.measure.broker import HOST, free_port, own_broker, server
from wirelake.measure.broker import Wirelake as Driver
from wirelake.measure.load import PREFIX, Load, end_by_signals, publish_rate

DIALECT = "kobold-3"
NODES = 3
LOAD = Load(1, 128)
ADDRESS = f"{PREFIX}/0000"
#: Queues that silence is measured with: enough for every partition.
QUEUES = 24
#: Seconds that something may take to start, and that silence is listened for.
PATIENCE, LISTENING = 60.0, 20.0


def distinct_ports(count: int) -> list[int]:
    """Ports that are free now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


class Cluster:
    """NATS servers and nodes, until the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers = NatsServers(folder / "nats", distinct_ports(3 * SERVERS))
        self.nats: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the NATS servers."""
        with ExitStack() as stack:
            for k in range(SERVERS):
                command = [self.servers.program, *self.servers.arguments(k)]
                self.nats.append(stack.enter_context(server(command)))
            ends = time.monotonic() + PATIENCE
            while not all(map(is_healthy, self.servers.monitors)):
                if time.monotonic() > ends:
                    raise EngineError("the NATS servers do not find each other")
                time.sleep(0.1)
            yield

    @property
    def ports(self) -> list[int]:
        """Where the NATS servers listen."""
        return [int(url.rpartition(":")[2]) for url in self.servers.urls]

    @contextmanager
    def nodes(self, prefix: str, *, capture: bool) -> Iterator[Nodes]:
        """Run nodes under a prefix of their own, until they serve all partitions."""
        with ExitStack() as stack:
            made = Nodes(self._folder / prefix, self.servers, prefix, capture=capture)
            for name in made.names:
                made.processes[name] = stack.enter_context(server(made.command(name)))
            made.wait()
            yield made


class Nodes:
    """Nodes of one cluster."""

    def __init__(self, folder: Path, servers: NatsServers, prefix: str, *, capture: bool) -> None:
        self.names = [f"n{k + 1}" for k in range(NODES)]
        ports = distinct_ports(2 * NODES)
        self.ports = dict(zip(self.names, ports[:NODES], strict=True))
        self._https = dict(zip(self.names, ports[NODES:], strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder, self._capture = folder, capture
        folder.mkdir(parents=True)
        self._config = folder / "node.toml"
        self._config.write_text(
            f"[cluster]\nservers = {json.dumps(servers.urls)}\n"
            f'monitors = {json.dumps(servers.monitors)}\nprefix = "{prefix}"\n'
        )

    def command(self, name: str) -> list[str]:
        """How to start a node."""
        return [
            *(sys.executable, "-m", "wirelake", "serve", "--config", str(self._config)),
            *("--node", name, "--data", str(self._folder / name), "--log-level", "error"),
            *("--listen", f"auto://{HOST}:{self.ports[name]}"),
            *("--http", f"{HOST}:{self._https[name]}"),
            *(() if self._capture else ("--no-capture",)),
        ]

    def http(self, name: str) -> HttpClient:
        """How to ask a node."""
        return HttpClient(f"http://{HOST}:{self._https[name]}", timeout=10.0)

    def state(self, name: str) -> dict[str, Any]:
        """What a node says of the cluster."""
        found: dict[str, Any] = self.http(name).get("/v1/cluster")
        return found

    def wait(self) -> None:
        """Wait until the nodes that are alive serve all partitions, and have all their links."""
        ends = time.monotonic() + PATIENCE
        alive = [name for name in self.names if self.processes[name].poll() is None]
        while True:
            try:
                told = [self.state(name) for name in alive]
            except (WirelakeError, TimeoutError):
                told = []
            if told and all(self._is_whole(one, len(alive)) for one in told):
                return
            if time.monotonic() > ends:
                raise EngineError("the nodes do not serve all partitions")
            time.sleep(0.2)

    def _is_whole(self, told: dict[str, Any], count: int) -> bool:
        links = [link["open"] for one in told["nodes"] for link in one["links"]]
        served = [one["served"] for one in told["partitions"]]
        fine = len(told["nodes"]) == count and len(links) == 2 * count * (count - 1)
        return fine and bool(served) and all(served) and all(links)

    def owner(self, address: str) -> str:
        """The node that owns an address."""
        partitions = self.state(self.names[0])["partitions"]
        found: str = partitions[home(address.encode(), len(partitions))]["owner"]
        return found

    def driver(self, name: str) -> Driver:
        """How to talk to a node."""
        return Driver(Place(DIALECT, HOST, self.ports[name]))


class Replicated(JetStreamSynced):
    """JetStream with three replicas, on servers that run already; clients are at all of them."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        super().__init__(folder)
        self._ports = ports

    def connect(self, number: int) -> socket.socket:
        """A connection with an inbox."""
        self.port = self._ports[number % len(self._ports)]
        return super().connect(number)

    def _create(self, connection: socket.socket, what: str, wanted: dict[str, object]) -> None:
        if what.startswith("STREAM."):
            wanted["num_replicas"] = SERVERS
        super()._create(connection, what, wanted)


class Clustered(Wirelake):
    """The nodes of a cluster that runs already; clients are at all of them."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        super().__init__(folder)
        self._all = list(nodes.ports.values())

    def connect(self, number: int) -> socket.socket:
        """A connection of a client with a name."""
        self.port = self._all[number % len(self._all)]
        return super().connect(number)


class NatsAt(Nats):
    """One server of a NATS cluster that runs already."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        connected(port).close()


def pubsub(cluster: Cluster, seconds: float, rounds: int, tell: Tell) -> Iterator[Result]:
    """Messages a second, nothing kept."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(case: str, contender: str, rate: float) -> None:
        found.setdefault(case, {}).setdefault(contender, []).append(rate)

    near, far = NatsAt(cluster.ports[0]), NatsAt(cluster.ports[1])
    with cluster.nodes("BENCHP", capture=False) as nodes, own_broker("--no-capture") as (port, _):
        alone = Driver(Place(DIALECT, HOST, port))
        for number in range(rounds):
            tell(f"pub/sub, round {number + 1} of {rounds}")
            name = nodes.owner(ADDRESS)
            owner = nodes.driver(name)
            one, two = (nodes.driver(other) for other in nodes.names if other != name)
            # The same places, in turns.
            rate = publish_rate(alone, alone, LOAD, 1, seconds)
            add("pub/sub at the owner", ALONE, rate)
            add("pub/sub at the owner", OURS, publish_rate(owner, owner, LOAD, 1, seconds))
            between = publish_rate(near, far, LOAD, 1, seconds)
            for case, source, target in (
                ("pub/sub from the owner to another node", owner, one),
                ("pub/sub between two nodes that do not own it", one, two),
            ):
                add(case, "nats-server", between)
                add(case, OURS, publish_rate(source, target, LOAD, 1, seconds))
    for case, contenders in found.items():
        yield Result.of_rounds(case, "messages/s", contenders)


def durable(
    cluster: Cluster, nodes: Nodes, folder: Path, seconds: float, rounds: int, tell: Tell
) -> Iterator[Result]:
    """Answered publishes and turns of queues a second, of many clients."""
    ours, theirs = Clustered(folder / "ours", nodes), Replicated(folder / "theirs", cluster.ports)
    theirs.prepare()
    cases: dict[str, tuple[str, Callable[[Keeper], Callable[[int], list[Say]]]]] = {
        f"acked publishes, {MANY} clients": ("a second", lambda one: one.publish),
        f"queue put-get-ack, {MANY} clients": ("turns/s", lambda one: one.queue),
    }
    for case, (unit, steps) in cases.items():
        found: dict[str, list[float]] = {}
        for number in range(rounds):
            tell(f"{case}, round {number + 1} of {rounds}")
            both: list[Keeper] = [ours, theirs] if number % 2 else [theirs, ours]
            for one in both:
                found.setdefault(one.name, []).append(one.rate(steps(one), MANY, seconds))
        yield Result.of_rounds(case, unit, found)


async def longest_silence(nodes: Nodes, names: list[str], happens: Callable[[], None]) -> float:
    """The longest time (seconds) without an answer, of clients at these nodes, while it happens."""
    ends = asyncio.Event()
    silences: list[float] = []

    async def put(number: int) -> None:
        name = names[number % len(names)]
        url = f"{DIALECT}://{HOST}:{nodes.ports[name]}"
        last = longest = 0.0
        async with wirelake.connect(url, min_delay=0.02, max_delay=0.1, timeout=60.0) as client:
            queue, count = client.queue(f"silent/{number}"), 0
            while not ends.is_set():
                try:
                    await queue.put(b"x", id=f"{number} {count}")
                except WirelakeError:
                    await asyncio.sleep(0.01)
                    continue
                now = time.monotonic()
                longest = max(longest, now - last) if last else 0.0
                last, count = now, count + 1
                await asyncio.sleep(0.02)
        silences.append(longest)

    async with asyncio.TaskGroup() as group:
        for number in range(QUEUES):
            group.create_task(put(number))
        await asyncio.sleep(3.0)
        await asyncio.to_thread(happens)
        await asyncio.sleep(LISTENING)
        ends.set()
    return max(silences)


def silence(cluster: Cluster, nodes: Nodes, tell: Tell) -> Iterator[Result]:
    """How long clients of other nodes are not answered."""
    drained, killed, last = nodes.names

    def drain() -> None:
        nodes.http(drained).ask("PUT", f"/v1/cluster/nodes/{drained}/drain")

    def undrain() -> None:
        nodes.http(drained).ask("DELETE", f"/v1/cluster/nodes/{drained}/drain")

    def kill_node() -> None:
        nodes.processes[killed].send_signal(signal.SIGKILL)
        nodes.processes[killed].wait()

    def kill_server() -> None:
        cluster.nats[0].send_signal(signal.SIGKILL)
        cluster.nats[0].wait()

    tell("silence while a node is drained")
    found = asyncio.run(longest_silence(nodes, [killed, last], drain))
    yield Result("silence, drain", "s", {OURS: found}, less_is_better=True)
    undrain()
    nodes.wait()
    tell("silence after the kill of a node")
    found = asyncio.run(longest_silence(nodes, [drained, last], kill_node))
    yield Result("silence, node killed", "s", {OURS: found}, less_is_better=True)
    nodes.wait()
    tell("silence after the kill of a NATS server")
    found = asyncio.run(longest_silence(nodes, [drained, last], kill_server))
    yield Result("silence, NATS server killed", "s", {OURS: found}, less_is_better=True)


def measure(folder: Path, seconds: float, rounds: int, tell: Tell) -> list[Result]:
    """Everything; raises EngineError where nats-server is not installed."""
    cluster = Cluster(folder)
    results: list[Result] = []
    with cluster.running():
        results += pubsub(cluster, seconds, rounds, tell)
        with cluster.nodes("BENCH", capture=True) as nodes:
            results += durable(cluster, nodes, folder, seconds, rounds, tell)
            results += silence(cluster, nodes, tell)
    return results


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    if Nats.binary() is None:
        return Outcome(notes=[f"left out: nats-server is not installed ({Nats.hint})"])
    outcome = Outcome()
    seconds, rounds = (1.0, 1) if quick else (1.0, 3)
    with tempfile.TemporaryDirectory() as folder:
        outcome.results = measure(Path(folder), seconds, rounds, tell)
    outcome.details = {one.name: dict(one.rounds or one.figures) for one in outcome.results}
    return outcome


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement (1)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count (3)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    people = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.seconds, options.rounds, people.print)
    for one in found:
        figures = {name: round(figure, 2) for name, figure in one.figures.items()}
        people.print(f"{one.name} ({one.unit}): {figures}")
    write_json(options.json, {one.name: dict(one.figures) for one in found})


if __name__ == "__main__":
    main()
