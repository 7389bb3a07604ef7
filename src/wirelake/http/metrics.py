"""The broker's figures for Prometheus, taken on the broker's thread, written on another.

Names and labels are few and stay: `wirelake_…_total` only ever counts up, the rest is as of now.
What is labelled by names that others choose (queues, queries) is bounded by how many there may be.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from wirelake.broker.node import Figure, Histogram, Node
from wirelake.http.ledger import Ledger
from wirelake.journal.contract import Position
from wirelake.journal.engine import BOUNDS

#: Queues whose figures are given one by one, those with the most messages.
MOST_QUEUES = 1000

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "received": "Messages that clients published.",
    "delivered": "Messages that were handed to subscribers and consumers, each counted.",
    "bytes_in": "Bytes that came in on the wire.",
    "bytes_out": "Bytes that were written to clients on the wire.",
    "redelivered": "Queue messages that were not acknowledged in time.",
    "connections": "Connections that were ever made, HTTP requests that publish among them.",
    "disconnects": "Connections that have ended.",
    "protocol_errors": "Connections that broke the grammar of their dialect.",
    "dialect_failures": "Connections that ended because the code of a plug-in failed.",
    "torn_frames": "Connections that ended inside a frame.",
    "slow_consumers": "Clients that were disconnected because they did not read.",
    "disk_waits": "Times that publishers had to wait for the disk.",
    "refused_connections": "Connections that were refused, as there were too many.",
    "unfinished_closed": "Connections that were closed, as unfinished frames took too much.",
    "gave_way": "Times that a client with many requests was made to wait for others.",
    "routes_worked_out": "Times that the subscribers of an address were looked up.",
}
_REASONS = {
    "refused": "What was refused, by the code of the answer.",
    "dropped": "Messages that were not delivered to somebody, by reason.",
    "timeouts": "Connections that were closed because nothing came, by what was awaited.",
    "events": "What operators were told, by kind.",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of one moment."""

    counters: Counter[str]
    sessions: Counter[str]
    waiting: int
    paused: int
    queues: list[dict[str, Any]]
    backlog: int
    trouble: bool
    positions: list[Position]
    lags: dict[str, dict[int, int]]
    commits: dict[str, Any]
    latencies: dict[str, dict[str, Any]]
    others: list[Figure | Histogram]


def snapshot(node: Node, ledger: Ledger) -> Snapshot:
    """Take the figures; on the broker's thread."""
    now = time.monotonic()
    queues = sorted(node.queues.all(), key=len, reverse=True)[:MOST_QUEUES]
    done = node.engine.statistics
    commits = {
        "classes": list(done.classes),
        "seconds": done.seconds,
        "bytes": done.bytes,
        "records": done.records,
        "in_place": done.in_place,
        "failures": node.engine.journal.failures,
    }
    return Snapshot(
        counters=Counter(node.vitals.counters),
        sessions=Counter(session.dialect for session in node.sessions),
        waiting=sum(session.link.buffered for session in node.sessions),
        paused=sum(1 for session in node.sessions if session.waits_for),
        queues=[queue.state(now) for queue in queues],
        backlog=node.engine.backlog,
        trouble=bool(node.engine.trouble),
        positions=node.engine.positions(),
        lags=ledger.lags(),
        commits=commits,
        latencies={
            "delivery": node.traffic.deliveries.state(),
            "request": node.traffic.requests.state(),
        },
        others=list(node.figures()),
    )


def as_text(taken: Snapshot) -> bytes:
    """The figures as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Figures(taken))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken

    def collect(self) -> Iterator[Metric]:
        """Every figure."""
        yield from self._counters()
        yield from self._now()
        yield from self._queues()
        yield from self._log()
        yield from self._commits()
        yield from self._latencies()
        yield from self._others()

    def _counters(self) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"wirelake_{name}", text, value=self._taken.counters[name])
        for name, text in _REASONS.items():
            family = CounterMetricFamily(f"wirelake_{name}", text, labels=["reason"])
            for key, value in sorted(self._taken.counters.items()):
                if key.startswith(f"{name}."):
                    family.add_metric([key.removeprefix(f"{name}.")], value)
            yield family

    def _now(self) -> Iterator[Metric]:
        taken = self._taken
        sessions = GaugeMetricFamily("wirelake_clients", "Clients by dialect.", labels=["dialect"])
        for dialect, count in sorted(taken.sessions.items()):
            sessions.add_metric([dialect], count)
        yield sessions
        yield _gauge("outbox_bytes", "Bytes written to clients and not sent yet.", taken.waiting)
        yield _gauge("paused_clients", "Clients that wait for a subscriber or disk.", taken.paused)
        yield _gauge("backlog_bytes", "Bytes of the log that are not durable yet.", taken.backlog)
        yield _gauge("trouble", "1 while nothing can be written.", taken.trouble)

    def _queues(self) -> Iterator[Metric]:
        texts = {
            "messages": "Messages in a queue.",
            "ready": "Messages in a queue that wait for a consumer.",
            "held": "Messages that consumers have and have not acknowledged.",
            "delayed": "Messages that are not due yet.",
            "bytes": "Bytes of messages in a queue, headers and overhead included.",
            "consumers": "Consumers of a queue.",
            "age": "Seconds that the next message has waited.",
        }
        for name, text in texts.items():
            unit = "age_seconds" if name == "age" else name
            family = GaugeMetricFamily(f"wirelake_queue_{unit}", text, labels=["queue"])
            for state in self._taken.queues:
                family.add_metric([str(state["name"])], float(state[name]))
            yield family

    def _log(self) -> Iterator[Metric]:
        texts = {
            "first": "The first offset that is kept.",
            "next": "The offset that the next row will have.",
            "bytes": "Bytes of a partition on disk.",
        }
        for name, text in texts.items():
            family = GaugeMetricFamily(f"wirelake_log_{name}", text, labels=["partition"])
            for position in self._taken.positions:
                family.add_metric([str(position.partition)], getattr(position, name))
            yield family
        lags = GaugeMetricFamily(
            "wirelake_query_lag", "Rows a query has not read.", labels=["query", "partition"]
        )
        for query, partitions in sorted(self._taken.lags.items()):
            for partition, lag in partitions.items():
                lags.add_metric([query, str(partition)], lag)
        yield lags

    def _commits(self) -> Iterator[Metric]:
        commits = self._taken.commits
        yield _histogram(
            "commit_seconds",
            "How long commits took.",
            BOUNDS,
            commits["classes"],
            commits["seconds"],
        )
        for name, text in {
            "bytes": "Bytes that were committed.",
            "records": "Records that were committed: batches of rows, changes of queues and keys.",
            "in_place": "Commits that were made on the event loop's thread.",
            "failures": "Commits that failed and were tried again.",
        }.items():
            yield CounterMetricFamily(f"wirelake_commit_{name}", text, value=commits[name])

    def _latencies(self) -> Iterator[Metric]:
        for name, text in {
            "delivery": "From reading a message from a socket to writing it to subscribers.",
            "request": "From a request to its reply.",
        }.items():
            state = self._taken.latencies[name]
            bounds, classes = state["bounds"], state["classes"]
            yield _histogram(f"{name}_seconds", text, bounds, classes, state["seconds"])

    def _others(self) -> Iterator[Metric]:
        families: dict[str, Any] = {}
        for one in self._taken.others:
            if isinstance(one, Histogram):
                yield _histogram(one.name, one.text, one.bounds, one.classes, one.seconds)
                continue
            if one.name not in families:
                kind = CounterMetricFamily if one.total else GaugeMetricFamily
                name = f"wirelake_{one.name}"
                families[one.name] = kind(name, one.text, labels=list(one.labels))
            families[one.name].add_metric(list(one.labels.values()), one.value)
        yield from families.values()


def _histogram(
    name: str, text: str, bounds: Sequence[float], classes: Sequence[int], seconds: float
) -> Metric:
    """How often something took how long; `classes` has one more for what is above all bounds."""
    sums = accumulate(classes)
    buckets = list(zip([*map(str, bounds), "+Inf"], sums, strict=True))
    return HistogramMetricFamily(f"wirelake_{name}", text, buckets=buckets, sum_value=seconds)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"wirelake_{name}", text, value=value)
