"""Peers that begin and do not finish, and too many of them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually, frames, secret_of, token
from wirelake.message import Message, Op, Parameters

TOKENS = token("alice", publish=["#"], subscribe=["#"]) + token("root", admin=True)
SLACK = 64 * MIB
TEN = 10


def unfinished(size: int) -> bytes:
    """A publish of so many bytes, all but the last ones."""
    return frames("kobold-3", Message(address="a", payload=b"x" * size))[:-10]


def test_strangers_hold_next_to_nothing_where_there_are_tokens(tmp_path: Path) -> None:
    data = unfinished(60 * MIB)
    with Broker(tmp_path, TOKENS) as broker, ExitStack() as stack:
        before = broker.forget_peak()
        for _ in range(TEN):
            stranger = stack.enter_context(Client(broker))
            stranger.flood(data, 1)  # what follows the error is read and thrown away for a moment
            assert stranger.is_closed()
        assert broker.peak() - before < 16 * MIB
        assert broker.log().count("before authentication (limits.stranger_frame)") == TEN


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3", "boson-binary"])
def test_whoever_authenticates_may_send_large_messages_at_once(
    tmp_path: Path, dialect: str
) -> None:
    said = Parameters(token=secret_of("alice"))
    with Broker(tmp_path, TOKENS) as broker, Client(broker, dialect) as alice:
        alice.send(
            Message(op=Op.AUTH, correlation_id="1", parameters=said),
            Message(op=Op.SUBSCRIBE, address="a", correlation_id="2"),
            Message(address="a", payload=b"x" * MIB),
        )
        assert [alice.receive().op for _ in range(3)].count(Op.OK) == 2


def test_unfinished_frames_of_all_share_a_budget(tmp_path: Path) -> None:
    with Broker(tmp_path, "[limits]\nunfinished = 33_554_432") as broker, ExitStack() as stack:
        before = broker.forget_peak()
        peers = [stack.enter_context(Client(broker)) for _ in range(TEN)]
        for peer in peers:
            peer.flood(unfinished(20 * MIB), 1)
        assert eventually(lambda: broker.counters().get("unfinished_closed", 0)) >= TEN - 2
        assert broker.peak() - before < 32 * MIB + SLACK
        assert "limits.unfinished" in broker.events("unfinished_frames")[0]["text"]
        with Client(broker) as other:  # the latest gets what the others had
            other.ask(Message(op=Op.SUBSCRIBE, address="b"))
            other.send(Message(address="b", payload=b"y" * (20 * MIB)))
            assert len(other.receive().payload) == 20 * MIB


@pytest.mark.parametrize(
    "begun", [b"", frames("kobold-3", Message(op=Op.PING, correlation_id="1"))]
)
def test_a_byte_now_and_then_is_no_progress(tmp_path: Path, begun: bytes) -> None:
    config = "handshake_timeout = 1\n[limits]\nmin_rate = 100"
    with Broker(tmp_path, config) as broker, Client(broker) as slow, Client(broker) as quick:
        slow.send_bytes(begun)
        data = frames("kobold-3", Message(address="a", payload=b"x" * (4 * MIB)))
        quick.send_bytes(data[:5000])
        turn = 0

        def trickle() -> bool:
            nonlocal turn
            turn += 1
            quick.send_bytes(data[turn * 5000 : (turn + 1) * 5000])  # far more than it must
            time.sleep(0.1)
            try:
                slow.send_bytes(data[turn - 1 : turn])
            except OSError:
                return True
            return "limits.min_rate" in broker.log()

        eventually(trickle)
        assert slow.is_closed()
        assert broker.log().count("limits.min_rate") == 1
        quick.send_bytes(data[(turn + 1) * 5000 :])
        quick.send(Message(op=Op.PING, correlation_id="2"))
        assert quick.receive().correlation_id == "2"


def test_connections_are_limited_in_all(tmp_path: Path) -> None:
    with Broker(tmp_path, "[limits]\nconnections = 20") as broker, ExitStack() as stack:
        known = [stack.enter_context(Client(broker)) for _ in range(20)]
        for client in known:
            assert client.ask(Message(op=Op.PING)).op == Op.PONG
        refused = [stack.enter_context(Client(broker)) for _ in range(30)]
        assert all(client.is_closed() for client in refused)
        assert known[0].ask(Message(op=Op.PING)).op == Op.PONG
        known.pop().close()
        eventually(lambda: "connections" in broker.state())
        assert broker.counters()["refused_connections"] >= 30
        assert "limits.connections (20)" in broker.events("connections_refused")[0]["text"]
        assert broker.log().count("limits.connections") < 30  # told now and then, not each time
