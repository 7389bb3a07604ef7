"""What is wanted of each measurement: the only place that says so.

A goal is for the results of a section whose names match its pattern; the first that matches counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from bench.results import PEERS, Result

#: Stands for the best peer of equal durability.
BEST = "best peer"

#: Contenders that are no servers.
HALF, MEMORY, UDF, WRITER = "half the rows", "memory", "plain UDF", "Spark's writer"
ARROW_UDF = "Arrow UDF"
WITHOUT_CAPTURE = "no capture"
ALONE = "one broker"


@dataclass(frozen=True)
class Goal:
    """At least, or at most, so much: of a contender's figure, or where none is named, as it is."""

    section: str
    names: str
    value: float
    against: str = ""
    at_most: bool = False
    #: What is compared with what, for the page.
    text: str = ""

    def __str__(self) -> str:
        figure = f"{self.value:,.10g}".replace(",", " ")
        whose = PEERS.get(self.against, self.against)
        times = f" × {whose}" if whose else ""  # noqa: RUF001 - times it is
        return f"{'≤' if self.at_most else '≥'} {figure}{times}"

    def is_met(self, result: Result) -> bool | None:
        """Is it? None where one of the two is not there."""
        if self.against:
            figure = result.ratio(result.best if self.against == BEST else self.against)
        else:
            figure = result.ours
        if figure is None:
            return None
        return figure <= self.value if self.at_most else figure >= self.value


NATS, MOSQUITTO = "nats-server", "mosquitto"
SYNCED = "JetStream, synced"

GOALS = (
    Goal("pubsub", "1 → 1, * → *", 0.5, NATS,
         text="messages translated from one dialect to another, beside nats-server's own"),
    Goal("pubsub", "1 → 1, *", 2, NATS, text="one publisher, one subscriber, of one dialect"),
    Goal("pubsub", "1 → 4, *", 2, NATS, text="one publisher, four subscribers, of one dialect"),
    Goal("pubsub", "1000 topics, *", 1, NATS, text="a thousand topics in random order"),
    Goal("latency", "p50, *", 2, NATS, at_most=True, text="the median round trip of a request"),
    Goal("latency", "p99, *", 3, NATS, at_most=True, text="the 99th percentile of round trips"),
    Goal("durable", "store updates, 64 clients", 20_000,
         text="durable updates of a key a second, from 64 clients"),
    Goal("durable", "acked publishes, *", 1, BEST,
         text="publishes that are answered when they are on the disk"),
    Goal("durable", "queue put-get-ack, *", 1, BEST,
         text="put, get and ack of a queue message"),
    Goal("durable", "captured publishes", 1, BEST,
         text="publishes without an answer, until all are on the disk"),
    Goal("durable", "captured bytes", 0.5, "the disk",
         text="bytes that the log writes to its files, beside plain sequential writes"),
    Goal("durable", "published and heard, beside one that waits", 0.95, "without it",
         text="a stream keeps its rate beside a client that waits for the disk each time"),
    Goal("durable", "paced publisher, share of its pace", 0.7, WITHOUT_CAPTURE,
         text="below the disk's rate, capture costs a publisher at most 30 %"),
    Goal("cluster", "pub/sub at the owner", 0.8, ALONE,
         text="both clients at the node that owns the address, beside a broker without a cluster"),
    Goal("cluster", "pub/sub from the owner to another node", 0.5, NATS,
         text="from one node to another, beside two servers of a NATS cluster"),
    Goal("cluster", "acked publishes, *", 1, SYNCED,
         text="answered publishes, beside JetStream with three replicas, all synced"),
    Goal("cluster", "queue put-get-ack, *", 1, SYNCED,
         text="put, get and ack, beside work queues of JetStream with three replicas, all synced"),
    Goal("cluster", "silence, drain", 0.5, at_most=True,
         text="seconds without an answer while a node is drained"),
    Goal("cluster", "silence, node killed", 5, at_most=True,
         text="seconds without an answer after the kill of a node"),
    Goal("cluster", "silence, NATS server killed", 10, at_most=True,
         text="seconds without an answer after the kill of a NATS server"),
    Goal("mqtt", "QoS 0, *", 5, MOSQUITTO, text="one publisher, one subscriber, QoS 0"),
    Goal("mqtt", "QoS [12], *, no capture", 2, MOSQUITTO,
         text="QoS 1 and 2 from 64 publishers with a window of 20, nothing kept"),
    Goal("mqtt", "QoS [12], *", 1, MOSQUITTO,
         text="the same, answered when it is on the disk; Mosquitto keeps nothing"),
    Goal("mqtt", "connections, memory", 20, at_most=True,
         text="KiB resident for each connection of MQTT that says nothing"),
    Goal("backlog", "stream, *", 1, "JetStream",
         text="queue messages of 1 KiB, pipelined; JetStream answers before they are on the disk"),
    Goal("backlog", "long queue, bytes a message", 120, at_most=True,
         text="bytes of memory for each of 10 million messages that wait"),
    Goal("backlog", "long queue, seconds to open", 15, at_most=True,
         text="seconds until the broker listens after a kill, with 10 million messages waiting"),
    Goal("backlog", "long queue, * beside a short one", 0.8,
         text="the rate of a queue of 10 million messages, of that of a short one"),
    Goal("attacks", "wildcard subscription, *", 5, at_most=True,
         text="ms by which a wildcard subscription delays others, among 100 000 addresses"),
    Goal("attacks", "ping p99, *", 20, at_most=True,
         text="ms that a client waits for a PONG while another one attacks"),
    Goal("pressure", "stream, memory moved", 64, at_most=True,
         text="MiB by which the broker grows while 2 GiB go to a slow reader"),
    Goal("pressure", "slow ones beside, *, rate kept", 0.9, "without them",
         text="what subscribers get beside one that stopped reading and one that reads at 1 %"),
    Goal("pressure", "slow ones beside, *, time moving", 0.9,
         text="the share of the time in which subscribers were not kept waiting"),
    Goal("pressure", "idle connections, memory", 20, at_most=True,
         text="KiB resident for each connection that says nothing"),
    Goal("pressure", "idle connections, rate of others", 0.95, "without them",
         text="no loss of rate, but for the few per cent by which two runs differ anyway"),
    Goal("http", "stored batches", 2e6, text="rows a second of the log, as it is stored"),
    Goal("console", "overview, of a core", 2, at_most=True,
         text="per cent of a core that an open overview costs the broker"),
    Goal("console", "tail of *", 10, at_most=True,
         text="per cent of a core that a tail of 1 000 messages a second costs the broker"),
    Goal("console", "closed page, *", 0.2, at_most=True,
         text="per cent of a core that a page costs after it was closed"),
    Goal("console", "first paint", 300, at_most=True, text="ms to the first paint, on loopback"),
    Goal("console", "*, frames", 30,
         text="frames a second with 10 000 addresses and a tail of 1 000 messages a second"),
    Goal("console", "*, memory", 200, at_most=True, text="MB of the page meanwhile"),
    Goal("wire", "scan, described: *", 3e6, text="frames a second of described dialects, one core"),
    Goal("wire", "scan, a plug-in in Python", 50e3, text="messages a second, one core"),
    Goal("wire", "broker, a plug-in in Python", 50e3,
         text="the same, from a publisher to a subscriber, in a broker without a log"),
    Goal("wire", "scan, kobold-[23]*", 3e6, text="frames a second that need CBOR, one core"),
    Goal("wire", "scan, *", 10e6, text="frames a second, one core"),
    Goal("wire", "scan to Arrow, *", 3e6, text="frames a second to the log's columns"),
    Goal("wire", "translation, slowest, *", 2e6,
         text="frames a second scanned and written in the slowest other dialect"),
    Goal("spark", "count", 0.8, MEMORY, text="reading the log, beside ready-made Arrow batches"),
    Goal("spark", "land", 4, WRITER,
         text="landing the log, beside Spark's own Parquet writer fed with ready Arrow batches"),
    Goal("spark", "size of the files", 1.2, WRITER, at_most=True,
         text="bytes of the landed files, beside those that Spark writes"),
    Goal("spark", "scan of the table", 1, WRITER,
         text="rows a second that Spark reads of the table, beside its own files"),
    Goal("spark", "*, twice the rows", 2.1, HALF, at_most=True,
         text="the time for twice the rows"),
    Goal("decode", "typed *", 3, ARROW_UDF,
         text="a capture into a table with typed columns of JSON or CBOR payloads, beside a Python "
         "UDF as Spark runs it by default, in Arrow batches, and Spark's writer with its rows"),
    Goal("decode", "decode, beside a UDF", 5, UDF,
         text="decoding a capture into a table, beside a UDF in plain Python that only decodes it"),
    Goal("decode", "decode", 4, WRITER,
         text="decoding a capture into a table, beside Spark's own writer fed with its rows"),
    Goal("decode", "*, twice the rows", 2.1, HALF, at_most=True,
         text="the time for twice the rows"),
    Goal("decode", "function *", 3, ARROW_UDF,
         text="payloads decoded by `from_payload` in a query, beside a Python UDF as Spark runs it "
         "by default, in Arrow batches"),
    Goal("spark", "publish to visible row, default trigger, p50", 1.5, at_most=True,
         text="seconds from a publish until its row is in the table, batches every 2 s"),
    Goal("spark", "publish to visible row, default trigger, p95", 3, at_most=True,
         text="the 95th percentile of it"),
    Goal("spark", "publish to visible row, --every 0, p50", 0.5, at_most=True,
         text="seconds from a publish until its row is in the table, one batch after the other"),
    Goal("spark", "publish to visible row, --every 0, p95", 1, at_most=True,
         text="the 95th percentile of it"),
    Goal("spark", "first row after the start", 15, at_most=True,
         text="seconds from the start of `lake land` until its first row is in the table"),
)  # fmt: skip


def goal(section: str, name: str) -> Goal | None:
    """What is wanted of a result, if anything."""
    for each in GOALS:
        if each.section == section and fnmatchcase(name, each.names):
            return each
    return None
