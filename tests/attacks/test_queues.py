"""Settings that stop a broker, readers that divert a topic, dead letters that vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.broker import Broker, Client, eventually, secret_of, token
from wirelake.message import Flag, Message, Op, Parameters

NONSENSE = ["Ack-Timeout: nan", "Ack-Timeout: inf", "Ack-Timeout: -1", "Ack-Timeout: 1e23",
            "Max-Deliveries: -3", "Max-Deliveries: " + "9" * 5000]  # fmt: skip


@pytest.mark.parametrize("dialect", ["tmq-1.00", "tmq-1.01"])
def test_no_setting_of_a_queue_keeps_a_broker_from_starting(tmp_path: Path, dialect: str) -> None:
    broker = Broker(tmp_path)
    with broker, Client(broker, dialect) as client:
        client.send(Message(op=Op.HANDSHAKE))
        assert client.receive().op == Op.HANDSHAKE
        client.send(Message(op=Op.HELLO, payload=b"Client-Id: c\r\n"))
        assert client.receive().op == Op.OK
        for number, line in enumerate(NONSENSE):
            payload = b"\0\0" + line.encode() + b"\r\n"
            name = f"q{number}"
            client.send(
                Message(op=Op.DECLARE, address=name, payload=payload, id="1", flags=Flag.RESPONSE)
            )
            assert client.receive().content_type == 400, line
        client.send(
            Message(op=Op.DECLARE, address="good", payload=b"\0\0", id="2", flags=Flag.RESPONSE)
        )
        assert client.receive().content_type == 200
    with broker:
        assert [one["name"] for one in broker.json("/v1/queues")["queues"]] == ["good"]


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-1", "kobold-2", "kobold-3"])
def test_a_reader_does_not_divert_a_topic(tmp_path: Path, dialect: str) -> None:
    config = token("alice", publish=["#"], subscribe=["#"]) + token("reader", subscribe=["#"])
    with (
        Broker(tmp_path, config) as broker,
        Client(broker) as listener,
        Client(broker, dialect) as reader,
        Client(broker) as publisher,
    ):
        listener.login("", secret_of("alice"))
        listener.ask(Message(op=Op.SUBSCRIBE, address="house/#"))
        publisher.login("", secret_of("alice"))
        reader.login("", secret_of("reader"))
        refused = reader.ask(Message(op=Op.DEQUEUE, address="house/door"))
        assert refused.parameters.code == "unauthorized"
        assert b"declare" in refused.payload
        status, _ = broker.http(
            "/v1/queues/house/door", method="PUT", body=b"{}", secret=secret_of("reader")
        )
        assert status == 403
        publisher.send(Message(address="house/door", payload=b"open"))
        assert listener.receive().payload == b"open"


def test_dead_letters_are_found_though_somebody_subscribed_before(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with broker, Client(broker) as waiting, Client(broker) as worker:
        assert waiting.ask(Message(op=Op.SUBSCRIBE, address="jobs/$dead")).op == Op.OK
        worker.ask(Message(op=Op.ENQUEUE, address="jobs", payload=b"j1", id="j1"))
        worker.send(Message(op=Op.DEQUEUE, address="jobs"))
        assert worker.receive().payload == b"j1"
        refusal = Message(op=Op.NACK, address="jobs", id="j1", parameters=Parameters(requeue=False))
        worker.receive()  # the end of the pull
        assert worker.ask(refusal).op == Op.OK
        assert waiting.receive().payload == b"j1"
        assert broker.json("/v1/queues/jobs")["messages"] == 0
        assert "missed a tick" not in broker.log()
    with broker:
        # It was not acknowledged, so it is there again.
        eventually(lambda: broker.json("/v1/queues/jobs/$dead")["messages"] == 1)
