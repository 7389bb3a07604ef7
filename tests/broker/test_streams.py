"""Byte streams from client to client."""

import pytest

from tests.broker.desk import Desk
from wirelake.message import Message, Op, Parameters

STREAMING = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]


@pytest.mark.parametrize("far", STREAMING)
@pytest.mark.parametrize("near", STREAMING)
def test_bytes_go_both_ways_and_the_end_tells_their_number(near: str, far: str) -> None:
    desk = Desk()
    alice, bob = desk.client(near, "alice"), desk.client(far, "bob")
    alice.send(Message(op=Op.OPEN, address="bob", correlation_id="mine"))
    (opened,) = bob.take()
    assert (opened.op, opened.source) == (Op.OPEN, "alice")
    assert [m.op for m in alice.take()] == [Op.OK]
    number = opened.correlation_id
    for chunk in (b"one", b"\x00\xff\r\n", b""):
        alice.send(Message(op=Op.DATA, correlation_id="mine", payload=chunk))
    bob.send(Message(op=Op.DATA, correlation_id=number, payload=b"back"))
    alice.send(Message(op=Op.CLOSE, correlation_id="mine"))
    *data, closed = bob.take()
    assert [(m.correlation_id, m.payload) for m in data] == [
        (number, b"one"), (number, b"\x00\xff\r\n"), (number, b""),
    ]  # fmt: skip
    assert (closed.op, closed.parameters) == (Op.CLOSE, Parameters(count=7))
    assert [m.payload for m in alice.take()] == [b"back"]


def test_the_end_of_a_connection_is_an_unclean_end_of_its_streams() -> None:
    desk = Desk()
    alice, bob = desk.client("kobold-1", "alice"), desk.client("kobold-3", "bob")
    alice.send(Message(op=Op.OPEN, address="bob", correlation_id="s"))
    alice.send(Message(op=Op.DATA, correlation_id="s", payload=b"12345"))
    bob.take()
    alice.session.lost("gone")
    (closed,) = bob.take()
    assert closed.parameters == Parameters(count=5, code="closed")


def test_streams_that_cannot_be_are_refused() -> None:
    desk = Desk()
    alice = desk.client("kobold-1", "alice")
    desk.client("tmq-1.01", "car")
    desk.client("kobold-2", "bob")
    alice.send(Message(op=Op.OPEN, address="bob", correlation_id="used"))
    alice.take()
    refusals = [
        (Message(op=Op.OPEN, address="nobody", correlation_id="s"), "not_found"),
        (Message(op=Op.OPEN, address="car", correlation_id="s"), "not_found"),
        (Message(op=Op.OPEN, address="bob"), "bad_request"),
        (Message(op=Op.OPEN, address="bob", correlation_id="used"), "conflict"),
        (Message(op=Op.DATA, correlation_id="s", payload=b"x"), "not_found"),
        (Message(op=Op.CLOSE, correlation_id="s"), "not_found"),
    ]
    for message, code in refusals:
        alice.send(message)
        assert [m.parameters.code for m in alice.take()] == [code]


def test_a_reader_that_is_slow_stops_the_writer_and_is_not_disconnected() -> None:
    desk = Desk()
    desk.node.flow.outbox = 10_000
    alice, bob = desk.client("kobold-3", "alice"), desk.client("kobold-3", "bob")
    alice.send(Message(op=Op.OPEN, address="bob", correlation_id="s"))
    bob.reads = False
    sent = 0
    while not alice.paused:
        alice.send(Message(op=Op.DATA, correlation_id="s", payload=b"x" * 1000))
        sent += 1
    assert bob.buffered < 12_000
    desk.pass_time(60, step=1)
    assert (bob.is_open, alice.paused) == (True, True)
    bob.drain()
    desk.pass_time(1)
    assert (bob.is_open, alice.paused) == (True, False)
    assert len([m for m in bob.take() if m.op == Op.DATA]) == sent
