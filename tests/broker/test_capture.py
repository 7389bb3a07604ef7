"""What of the traffic goes to the log, and what happens when the log cannot keep up."""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

import pytest

from tests.broker.desk import Desk
from wirelake.broker.node import Node
from wirelake.dialects import DIALECTS
from wirelake.journal.arrow_stream import decode
from wirelake.journal.engine import Engine
from wirelake.journal.memory import MemoryJournal
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import FrameTable

PARTITIONS = 4


@pytest.fixture
def desk() -> Desk:
    return Desk(Node(Engine.in_memory(partitions=PARTITIONS), epoch=1_000_000.0))


def logged(desk: Desk, *ops: str) -> list[dict[str, Any]]:
    """The rows of the log, by partition and offset; of these ops only, if any are named."""
    rows = []
    for position in desk.node.engine.positions():
        for batch in desk.node.engine.read(position.partition, position.first, position.next):
            rows += decode(batch.ipc).to_pylist()
    return [row for row in rows if not ops or row["op"] in ops]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_published_is_captured_with_who_sent_it_and_when(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect, "sender")
    client.publish("a/b", b"1")
    desk.now += 2
    client.publish("a/b", b"2")
    first, second = logged(desk)
    assert (first["address"], first["op"], first["dialect"]) == ("a/b", "publish", dialect)
    assert [first["payload"], second["payload"]] == [b"1", b"2"]
    assert first["source"] == ("" if dialect == "boson-text" else "sender")
    assert first["partition"] == crc32(b"a/b") % PARTITIONS
    assert (first["offset"], second["offset"]) == (0, 1)
    assert first["timestamp"].timestamp() == 1_000_100.0
    assert (second["timestamp"] - first["timestamp"]).total_seconds() == 2


def test_rows_of_many_addresses_in_one_read_keep_their_order(desk: Desk) -> None:
    client = desk.client("kobold-2", "sender")
    client.send(*[Message(f"t/{n % 7}", str(n).encode()) for n in range(300)])
    rows = logged(desk)
    assert sorted(int(row["payload"]) for row in rows) == list(range(300))
    for number in range(7):
        mine = [int(row["payload"]) for row in rows if row["address"] == f"t/{number}"]
        assert mine == sorted(mine)


def test_what_is_refused_or_excluded_or_reserved_is_not_captured(desk: Desk) -> None:
    desk.node.capture.exclude = ("private/#",)
    client = desk.client("kobold-2")
    for address in ("private/a", "public", "a/+", "$events"):
        client.publish(address, b"x")
    assert [row["address"] for row in logged(desk)] == ["public"]


def test_a_token_is_never_captured(desk: Desk) -> None:
    client = desk.client("kobold-3")
    client.send(Message("a", b"x", headers={"unit": "C"}, parameters=Parameters(token="geheim")))
    client.send(Message(op=Op.AUTH, parameters=Parameters(token="geheim")))
    (row,) = logged(desk)
    assert row["headers"] == [("unit", "C")]


def test_a_request_and_its_reply_have_one_correlation_id_that_nobody_else_has(desk: Desk) -> None:
    """decision 46"""
    service = desk.client("kobold-1", "clock")
    service.send(Message(op=Op.SERVE, address="time"))
    for name in ("anne", "bert"):
        asker = desk.client("kobold-2", name)
        asker.send(Message(op=Op.REQUEST, address="time", payload=b"?", correlation_id="same"))
        (request,) = [m for m in service.take() if m.op == Op.REQUEST]
        service.send(Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"noon"))
        assert asker.take()[-1].correlation_id == "same"
    rows = logged(desk)
    assert [(row["op"], row["source"], row["target"]) for row in rows] == [
        ("request", "anne", ""),
        ("reply", "clock", "anne"),
        ("request", "bert", ""),
        ("reply", "clock", "bert"),
    ]
    ids = [row["correlation_id"] for row in rows]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert {row["address"] for row in rows} == {"time"}


def test_a_request_that_fails_leaves_an_error_with_its_code(desk: Desk) -> None:
    service = desk.client("kobold-1", "clock")
    service.send(Message(op=Op.SERVE, address="time"))
    asker = desk.client("kobold-2", "anne")
    asker.send(Message(op=Op.REQUEST, address="time", correlation_id="t", ttl=1000))
    desk.pass_time(2)
    request, error = logged(desk)
    assert (error["op"], error["headers"]) == ("error", [("$code", "timeout")])
    assert error["correlation_id"] == request["correlation_id"]


def test_the_life_of_a_queue_message_is_captured(desk: Desk) -> None:
    worker = desk.client("kobold-2", "worker")
    desk.client("mfp-1", "maker").publish("jobs", b"not yet a queue")
    desk.client("kobold-3", "maker").send(
        Message(op=Op.ENQUEUE, address="jobs", payload=b"work", id="j1")
    )
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    for requeue in (True, False):
        said = Parameters(requeue=requeue)
        worker.send(Message(op=Op.NACK, address="jobs", id="j1", parameters=said))
    rows = logged(desk, "enqueue", "deliver", "nack", "dead", "ack")
    life = [(row["op"], dict(row["headers"]).get("$attempt")) for row in rows if row["id"] == "j1"]
    assert life == [
        ("enqueue", None),
        ("deliver", "1"),
        ("nack", "1"),
        ("deliver", "2"),
        ("nack", "2"),
        ("dead", None),
        ("enqueue", None),
    ]
    assert [row["payload"] for row in rows if row["op"] == "enqueue"] == [b"work", b"work"]
    assert {row["target"] for row in rows if row["op"] == "deliver"} == {"worker"}


def test_changes_of_the_store_direct_messages_and_streams_are_captured(desk: Desk) -> None:
    anne, bert = desk.client("kobold-2", "anne"), desk.client("kobold-3", "bert")
    anne.send(
        Message(op=Op.CREATE, address="key", payload=b"v"),
        Message(op=Op.DELETE, address="key"),
        Message(op=Op.PUBLISH, target="bert", payload=b"hello"),
        Message(op=Op.OPEN, address="bert", correlation_id="s", payload=b"a file"),
        Message(op=Op.DATA, correlation_id="s", payload=b"bytes"),
        Message(op=Op.CLOSE, correlation_id="s"),
    )
    assert bert.take()
    told = {
        row["op"]: (row["address"], row["source"], row["payload"], dict(row["headers"]))
        for row in logged(desk)
    }
    assert told == {
        "set": ("key", "anne", b"v", {"$rev": "1"}),
        "del": ("key", "anne", b"", {"$rev": "2"}),
        "direct": ("", "anne", b"hello", {}),
        "open": ("bert", "anne", b"a file", {}),
        "close": ("bert", "anne", b"", {"$count": "5"}),
    }


def full_disk() -> Engine:
    """An engine whose disk takes nothing."""
    engine = Engine.in_memory(partitions=1)
    engine.journal.troubles = {0: "no space left on device"}
    return engine


def test_a_full_disk_refuses_what_is_to_be_kept_and_lets_the_rest_pass() -> None:
    """decision 47"""
    desk = Desk(Node(full_disk()))
    subscriber, client = desk.client("kobold-2"), desk.client("kobold-2", "c")
    subscriber.subscribe("a")
    client.publish("a", b"live")
    client.publish("a", b"asked", ack=True)
    client.send(
        Message(op=Op.ENQUEUE, address="jobs", payload=b"x", correlation_id="t1"),
        Message(op=Op.CREATE, address="key", payload=b"x", correlation_id="t2"),
    )
    assert subscriber.payloads() == [b"live"]
    answers = client.take()
    assert [m.parameters.code for m in answers] == ["busy"] * 3
    assert all(b"no space left" in m.payload for m in answers)
    assert desk.node.vitals.counters["dropped.uncaptured"] == 1
    desk.node.engine.journal.troubles = {}
    client.publish("a", b"again", ack=True)
    assert [m.op for m in client.take()] == [Op.OK]
    assert [row["payload"] for row in logged(desk)] == [b"again"]


@pytest.mark.parametrize("topics", [1, 3])
def test_on_a_full_disk_what_asks_for_nothing_passes_beside_what_does(topics: int) -> None:
    """decision 47"""
    desk = Desk(Node(full_disk()))
    subscriber, client = desk.client("kobold-2"), desk.client("kobold-2", "c")
    subscriber.subscribe("#")
    client.send(
        *[
            Message(
                address=f"a/{n % topics}",
                payload=str(n).encode(),
                flags=Flag.ACK if n % 4 == 3 else Flag(0),
                id=f"m{n}",
            )
            for n in range(2000)
        ]
    )
    assert subscriber.payloads() == [str(n).encode() for n in range(2000) if n % 4 != 3]
    answers = client.take()
    assert [m.parameters.code for m in answers] == ["busy"] * 500
    assert [m.id for m in answers] == [f"m{n}" for n in range(2000) if n % 4 == 3]


class SlowDisk(Engine):
    """An engine whose disk is behind until it is told to catch up."""

    def __init__(self) -> None:
        super().__init__(MemoryJournal(partitions=1))
        self.waiting: list[Any] = []
        self.behind = 0

    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int | array[int], source: bytes
    ) -> None:
        super().append(table, rows, timestamp, source)
        self.behind += sum(table.payload_len[: table.count])

    @property
    def backlog(self) -> int:
        return self.behind

    def after(self, action: Any, client: int = 0, **_: Any) -> None:
        self.waiting.append(action)

    def catch_up(self) -> None:
        """All that was written is durable."""
        self.behind = 0
        waiting, self.waiting = self.waiting, []
        for action in waiting:
            action()


def test_publishers_wait_for_a_disk_that_is_too_far_behind() -> None:
    engine = SlowDisk()
    desk = Desk(Node(engine))
    desk.node.capture.backlog = 1000
    fast, other = desk.client("kobold-2"), desk.client("boson-text")
    fast.publish("a", bytes(900))
    waiting = [fast.paused]
    fast.publish("a", bytes(900))
    other.publish("a", b"x")
    waiting += [fast.paused, other.paused]
    assert waiting == [False, True, True]
    assert desk.node.vitals.counters["disk_waits"] == 1
    fast.session.lost("gone")
    engine.catch_up()
    assert not other.paused


def test_an_answer_leaves_when_what_it_answers_is_durable() -> None:
    engine = SlowDisk()
    desk = Desk(Node(engine))
    client = desk.client("kobold-2")
    client.send(*[Message("a", b"x", id=f"m{n}", flags=Flag.ACK) for n in range(100)])
    client.send(Message(op=Op.CREATE, address="key", payload=b"v", correlation_id="t"))
    assert client.take() == []
    engine.catch_up()
    assert [m.id or m.correlation_id for m in client.take()] == [
        *(f"m{n}" for n in range(100)),
        "t",
    ]


def test_timestamps_never_go_back_whatever_the_clock_does(desk: Desk) -> None:
    """decision 48"""
    client = desk.client("kobold-2")
    for epoch in (1_000_000.0, 900_000.0, 1_000_500.0):
        desk.node.tick(desk.now, epoch)
        client.publish("a", b"x")
    times = [row["timestamp"].timestamp() for row in logged(desk)]
    assert times == [1_000_100.0, 1_000_100.0, 1_000_600.0]
