"""The figures that the console's pages show, made from the broker and its log.

What comes from the broker is asked for on its thread, once a second for all pages together. Rates
of addresses come from the log: the rows of the last second are counted by address, dialect and
source on a thread of HTTP. So an address costs the broker nothing, and one that is not captured has
no rate. Where more than `MOST_ROWS` rows came, the latest of them stand for all.
"""

from __future__ import annotations

import asyncio
import heapq
import shutil
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.broker import inventory
from wirelake.broker.rights import Rights
from wirelake.broker.traffic import FIGURES, figures
from wirelake.errors import EngineError, RefusedError
from wirelake.http.cluster import cluster_of
from wirelake.http.exchange import require_admin
from wirelake.http.gate import Gate
from wirelake.http.ledger import Ledger
from wirelake.http.log import find_time
from wirelake.journal.arrow_stream import decode
from wirelake.journal.engine import BOUNDS

T = TypeVar("T")

#: Rows of the log counted per second; addresses, and pairs of sender and address, shown.
MOST_ROWS = 100_000
MOST_ADDRESSES = 10_000
MOST_EDGES = 300
#: Connections shown, those with the most traffic; and top talkers.
MOST_CONNECTIONS = 1_000
TALKERS = 8
#: The number of queues shown, the longest first.
MOST_QUEUES = 500
#: How long figures are good for (seconds): pages ask once a second.
FRESH = 0.8
#: The window over which rates are averaged (seconds).
WINDOW = 5


class Shared:
    """A value that several pages ask for at the same time, and that is made once."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """The value of this name, made anew where it is older than FRESH."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        known = self._made.get(name)
        if known is None or now - known[0] > FRESH:
            known = (now, asyncio.ensure_future(make()))
            self._made[name] = known
        value: T = await asyncio.shield(known[1])
        return value


class Figures:
    """Makes what pages show."""

    def __init__(self, gate: Gate, ledger: Ledger, executor: Executor) -> None:
        self._gate = gate
        self._node = gate.node
        self._ledger = ledger
        self._executor = executor
        self._shared = Shared()
        self._recent = Recent()
        # Of connections, on the broker's thread: what they had counted when, and their rates.
        self._counted: dict[int, tuple[float, tuple[int, ...]]] = {}
        self._rated: tuple[float, list[dict[str, Any]]] = (0.0, [])

    def parts(self) -> dict[str, Callable[[Rights], Awaitable[Any]]]:
        """Every part that a page can ask for."""
        return {
            "overview": self.overview,
            "connections": self.connections,
            "queues": self.queues,
            "addresses": self.addresses,
            "trouble": self.trouble,
            "flow": self.flow,
            "queries": self.queries,
            "cluster": self.cluster,
        }

    # Overview

    async def overview(self, rights: Rights) -> dict[str, Any]:
        """Health, rates, what is wrong; for those without admin health alone."""
        if not rights.admin:
            return await self._shared.get("health", lambda: self._gate.ask(self._health))
        return await self._shared.get("overview", self._whole)

    async def _whole(self) -> dict[str, Any]:
        told = await self._gate.ask(self._overview)
        if (folder := self._node.engine.folder) is not None:
            # On a thread of HTTP: a disk may take long to say.
            loop = asyncio.get_running_loop()
            with suppress(OSError):
                usage = await loop.run_in_executor(self._executor, shutil.disk_usage, folder)
                told |= {"free": usage.free, "disk_size": usage.total}
        return told

    def _health(self) -> dict[str, Any]:
        engine = self._node.engine
        state = "ok"
        if engine.trouble:
            state = "trouble"
        elif engine.backlog > self._node.capture.backlog:
            state = "behind"
        return {"state": state, "time": time.time(), "backlog": engine.backlog}

    def _overview(self) -> dict[str, Any]:
        node, now = self._node, time.monotonic()
        sessions: dict[str, int] = {}
        for session in node.sessions:
            sessions[session.dialect] = sessions.get(session.dialect, 0) + 1
        queues = heapq.nlargest(8, node.queues.all(), key=len)
        positions = node.engine.positions()
        traffic = node.traffic
        return {
            **self._health(),
            "trouble": node.engine.trouble,
            "second": traffic.second,
            "rates": {
                dialect: dict(zip(FIGURES, values, strict=True))
                for dialect, values in traffic.current.items()
            },
            "sessions": sessions,
            "subscriptions": node.state()["subscriptions"],
            "outbox": sum(session.link.buffered for session in node.sessions),
            "outbox_most": node.flow.budget.most,
            "waiting": sum(1 for session in node.sessions if session.waits_for),
            "queues": [inventory.queue(queue, now) for queue in queues],
            "queue_count": len(node.queues),
            "queued": sum(len(queue) for queue in node.queues.all()),
            "disk": sum(one.bytes for one in positions),
            "rows": sum(one.next - one.first for one in positions),
            "first_time": min((one.first_time for one in positions if one.first_time), default=0),
            "queries": {name: sum(lag.values()) for name, lag in self._ledger.lags().items()},
            "talkers": self._talkers(now),
            "counters": {
                name: node.vitals.counters[name]
                for name in ("received", "delivered", "slow_consumers", "protocol_errors")
            },
            "events": list(node.vitals.events)[-5:],
        }

    def _talkers(self, now: float) -> list[dict[str, Any]]:
        """The connections with the most messages in and out, since the last time."""
        shown = self._with_rates(now)
        return heapq.nlargest(TALKERS, shown, key=lambda one: one["rate_in"] + one["rate_out"])

    def _with_rates(self, now: float) -> list[dict[str, Any]]:
        """Every connection with its rates since the last time; good for a second."""
        taken, shown = self._rated
        if now - taken < FRESH:
            return shown
        before, self._counted = self._counted, {}
        shown = []
        for session in self._node.sessions:
            one = inventory.connection(session, now)
            counted = figures(session)
            since, old = before.get(session.number, (session.since, (0, 0, 0, 0)))
            passed = max(now - since, 0.1)
            names = ("rate_in", "rate_out", "bytes_rate_in", "bytes_rate_out")
            for name, new, was in zip(names, counted, old, strict=True):
                one[name] = round((new - was) / passed, 1)
            self._counted[session.number] = (now, counted)
            shown.append(one)
        self._rated = (now, shown)
        return shown

    async def rates(self, seconds: int) -> dict[str, Any]:
        """Rates by dialect of the latest seconds."""
        traffic = self._node.traffic
        return await self._gate.ask(
            lambda: {"second": traffic.second, "dialects": traffic.rates(seconds)}
        )

    # Lists

    async def connections(self, rights: Rights) -> dict[str, Any]:
        """Who is connected, with rates."""
        require_admin(rights)

        def ask() -> dict[str, Any]:
            shown = self._with_rates(time.monotonic())
            most = heapq.nlargest(
                MOST_CONNECTIONS, shown, key=lambda one: one["rate_in"] + one["rate_out"]
            )
            return {"connections": most, "count": len(shown)}

        return await self._shared.get("connections", lambda: self._gate.ask(ask))

    async def queues(self, rights: Rights) -> dict[str, Any]:
        """The queues that these rights may consume."""

        def ask() -> dict[str, Any]:
            now = time.monotonic()
            seen = [
                queue
                for queue in self._node.queues.all()
                if rights.allows("subscribe", queue.settings.name)
            ]
            most = heapq.nlargest(MOST_QUEUES, seen, key=len)
            return {"queues": [inventory.queue(one, now) for one in most], "count": len(seen)}

        return await self._shared.get(f"queues {rights.name}", lambda: self._gate.ask(ask))

    async def queries(self, rights: Rights) -> dict[str, Any]:
        """How far every query has read, and the ends of the log."""
        if not (rights.admin or rights.subscribe):
            raise RefusedError("unauthorized", "this is for those who may read the log")

        def ask() -> dict[str, Any]:
            lags = self._ledger.lags()
            return {
                "queries": [
                    {"query": name, "time": known.time, "lags": lags[name], "owner": known.owner}
                    for name, known in sorted(self._ledger.queries.items())
                ],
                "ends": {one.partition: one.next for one in self._node.engine.positions()},
            }

        return await self._shared.get("queries", lambda: self._gate.ask(ask))

    # The cluster

    async def cluster(self, rights: Rights) -> dict[str, Any]:
        """The nodes and partitions of the cluster, for every token; not found where there is none.

        It is as `wirelake cluster status --json` tells it, as this node sees it.
        """
        cluster = cluster_of(self._node)
        return await self._shared.get("cluster", lambda: self._gate.run(cluster.status()))

    # Addresses

    async def addresses(self, rights: Rights) -> dict[str, Any]:
        """What is subscribed to, queued, served, and what was sent to lately, with rates."""
        there = await self._shared.get(
            f"addresses {rights.name}",
            lambda: self._gate.ask(lambda: inventory.addresses(self._node, rights)),
        )
        recent = await self._count_recent()
        rates = {
            address: rate
            for address, rate in recent["addresses"].items()
            if rights.allows("subscribe", address)
        }
        return {**there, "rates": rates, "sampled": recent["sampled"]}

    async def _count_recent(self) -> dict[str, Any]:
        async def count() -> dict[str, Any]:
            loop = asyncio.get_running_loop()
            engine = self._node.engine
            return await loop.run_in_executor(self._executor, self._recent.count, engine)

        return await self._shared.get("recent", count)

    async def flow(self, rights: Rights) -> dict[str, Any]:
        """Who sends to which addresses, and who gets that; edges with messages a second."""
        require_admin(rights)
        recent = await self._count_recent()
        addresses = sorted({address for _, _, address, _ in recent["edges"]})

        def ask() -> list[dict[str, Any]]:
            found = []
            for address in addresses:
                for session in self._node.topics.subscribers(address):
                    found.append(_receiver(session, address))
            for session in self._node.sessions:
                for name in session.consumes:
                    if name in addresses:
                        found.append(_receiver(session, name))
            return found[: 4 * MOST_EDGES]

        consumers = await self._shared.get("flow", lambda: self._gate.ask(ask))
        edges = [
            {"dialect": dialect, "source": source, "address": address, "rate": rate}
            for dialect, source, address, rate in recent["edges"]
        ]
        return {"producers": edges, "consumers": consumers, "sampled": recent["sampled"]}

    # Trouble

    async def trouble(self, rights: Rights) -> dict[str, Any]:
        """Events, refusals by reason, latencies."""
        require_admin(rights)

        def ask() -> dict[str, Any]:
            node = self._node
            done = node.engine.statistics
            commits = {"bounds": BOUNDS, "classes": list(done.classes), "seconds": done.seconds}
            return {
                "events": list(node.vitals.events),
                "errors": list(node.traffic.faults),
                "counters": dict(node.vitals.counters),
                "latencies": {
                    "delivery": node.traffic.deliveries.state(),
                    "request": node.traffic.requests.state(),
                    "commit": commits,
                },
            }

        return await self._shared.get("trouble", lambda: self._gate.ask(ask))


def _receiver(session: Any, address: str) -> dict[str, Any]:
    return {
        "address": address,
        "dialect": session.dialect,
        "id": session.client_id,
        "peer": session.link.peer,
        "number": session.number,
    }


class Recent:
    """Counts the rows that came to the log since the last time, by address, dialect and source."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._last = -1e9
        self._seen: dict[tuple[str, str, str], float] = {}  # messages a second

    def count(self, engine: Any) -> dict[str, Any]:
        """In any thread: rates of addresses, and of who sends to them."""
        now = time.monotonic()
        passed = now - self._last
        positions = engine.positions()
        if passed > 2 * WINDOW:  # nobody has looked for a while: the last seconds are a beginning
            self._seen, passed = {}, float(WINDOW)
            moment = int((time.time() - WINDOW) * 1e6)
            self._next = {one.partition: find_time(engine, one, moment) for one in positions}
        new: dict[tuple[str, str, str], float] = {}
        sampled = False
        for position in positions:
            start = max(self._next.get(position.partition, position.next), position.first)
            first = max(start, position.next - MOST_ROWS)
            sampled = sampled or first > start
            scale = (position.next - start) / max(1, position.next - first)
            for key, count in _counted(engine, position.partition, first, position.next):
                new[key] = new.get(key, 0.0) + count * scale
        self._next = {one.partition: one.next for one in positions}
        self._last = now
        # A moving average, so that an address with a message now and then does not flicker.
        share = min(1.0, passed / WINDOW)
        for key in {*self._seen, *new}:
            rate = new.get(key, 0.0) / max(passed, 0.001)
            value = self._seen.get(key, 0.0) * (1 - share) + rate * share
            if value > 0.005:
                self._seen[key] = value
            else:
                self._seen.pop(key, None)
        if len(self._seen) > 2 * MOST_ADDRESSES:
            kept = heapq.nlargest(MOST_ADDRESSES, self._seen.items(), key=lambda one: one[1])
            self._seen = dict(kept)
        addresses: dict[str, float] = {}
        for (_, _, address), rate in self._seen.items():
            addresses[address] = addresses.get(address, 0.0) + rate
        most = heapq.nlargest(MOST_EDGES, self._seen.items(), key=lambda one: one[1])
        return {
            "addresses": {address: round(rate, 2) for address, rate in addresses.items()},
            "edges": [(*key, round(rate, 2)) for key, rate in most],
            "sampled": sampled,
        }


def _counted(
    engine: Any, partition: int, start: int, stop: int
) -> list[tuple[tuple[str, str, str], int]]:
    """How many rows [start, stop) have each dialect, source and address; changes of keys too."""
    if start >= stop:
        return []
    tables = []
    try:
        for stored in engine.read(partition, start, stop):
            batch = decode(stored.ipc)
            rows = pa.table(
                {
                    name: batch.column(name).cast(pa.string())
                    for name in ("dialect", "source", "address")
                }
            )
            offsets = batch.column("offset")
            inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop))
            ops = batch.column("op").cast(pa.string())
            sent = pc.is_in(ops, pa.array(["publish", "enqueue", "request", "set", "direct"]))
            tables.append(rows.filter(pc.and_(inside, sent)))
    except EngineError:
        return []  # they were deleted meanwhile
    if not tables:
        return []
    grouped = (
        pa.concat_tables(tables)
        .group_by(["dialect", "source", "address"])
        .aggregate([([], "count_all")])
    )
    return [
        ((row["dialect"], row["source"], row["address"]), row["count_all"])
        for row in grouped.to_pylist()
    ]
