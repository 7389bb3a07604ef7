"""Numbers that are none, or that have thousands of digits, are `bad_request` everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.attacks.broker import Broker, Client
from wirelake.message import Flag, Message, Op, Parameters

HUGE = "5" * 5000
#: Arabic-Indic: a digit, but not one of ASCII.
FIVE = "\u0665"
BAD = [HUGE, FIVE, "-1", "1e9", ""]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a key."""
    with Broker(tmp_path_factory.mktemp("numbers")) as started:
        assert started.http("/v1/store/k", method="PUT", body=b"1")[0] == 201
        yield started


@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-2", "kobold-3", "boson-binary"])
def test_a_parameter_of_an_op(broker: Broker, dialect: str, number: str) -> None:
    said = {name: Parameters(verbatim={name: number}) for name in ("count", "wait", "rev")}
    with Client(broker, dialect) as client:
        for message in (
            Message(op=Op.SUBSCRIBE, address="a", parameters=said["count"]),
            Message(op=Op.DEQUEUE, address="q", parameters=said["count"]),
            Message(op=Op.DEQUEUE, address="q", parameters=said["wait"]),
            Message(op=Op.UPDATE, address="k", payload=b"2", parameters=said["rev"]),
            Message(op=Op.DELETE, address="k", parameters=said["rev"]),
            Message(op=Op.WATCH, address="k", parameters=said["rev"]),
            Message(op=Op.ENQUEUE, address="q", headers={"delay": number or "none"}),
        ):
            answer = client.ask(message)
            assert (answer.op, answer.parameters.code) == (Op.ERROR, "bad_request"), message
            assert len(answer.payload) < 200
        assert client.ask(Message(op=Op.READ, address="k")).payload == b"1"


@pytest.mark.parametrize("number", BAD[:-1])
def test_what_tmq_asks_for(broker: Broker, number: str) -> None:
    with Client(broker, "tmq-1.01") as client:
        client.send(Message(op=Op.HANDSHAKE))
        client.receive()
        client.send(Message(op=Op.HELLO, payload=b"Client-Id: numbers\r\n"))
        client.receive()
        for identity, message in enumerate(
            (
                Message(op=Op.DEQUEUE, address="t", payload=number.encode(), flags=Flag.RESPONSE),
                Message(
                    op=Op.DECLARE,
                    address="t/1",
                    payload=b"\0\0Max-Deliveries: " + number.encode() + b"\r\n",
                    flags=Flag.RESPONSE,
                ),
            )
        ):
            if b"1e9" in message.payload and message.op == Op.DECLARE:
                continue  # a number that this setting can have, written otherwise
            client.send(
                Message(
                    op=message.op,
                    address=message.address,
                    payload=message.payload,
                    flags=message.flags,
                    id=str(identity + 7),
                )
            )
            answer = client.receive()
            assert answer.content_type == 400, answer
            assert len(answer.payload) < 200


@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/store?limit={}"),
        ("PUT", "/v1/store/x?ttl={}"),
        ("GET", "/v1/log/{}"),
        ("GET", "/v1/log/0?limit={}"),
        ("GET", "/v1/log/0?from={}"),
        ("GET", "/v1/log/0?to={}"),
        ("GET", "/v1/log/0?time_from={}"),
        ("GET", "/v1/log?time={}"),
        ("GET", "/v1/queues/q/messages?count={}"),
        ("POST", "/v1/queues/q/$dead/move?count={}"),
    ],
)
def test_a_parameter_of_http(broker: Broker, method: str, path: str, number: str) -> None:
    if not number and path != "/v1/queues/q/messages?count={}":
        return  # as if it were not given
    status, body = broker.http(path.format(quote(number)), method=method, body=None)
    assert (status, json.loads(body)["error"]) == (400, "bad_request")
    assert len(body) < 300


@pytest.mark.parametrize("number", [HUGE, "-1", "1e9"])
@pytest.mark.parametrize("name", ["Wirelake-Ttl", "Wirelake-Priority", "If-Match"])
def test_a_header_of_http(broker: Broker, name: str, number: str) -> None:
    path = "/v1/store/k" if name == "If-Match" else "/v1/publish/a"
    method = "PUT" if name == "If-Match" else "POST"
    value = f'"{number}"' if name == "If-Match" else number
    status, body = broker.http(path, method=method, body=b"", headers={name: value})
    assert (status, json.loads(body)["error"]) == (400, "bad_request")


def test_the_length_of_a_body(broker: Broker) -> None:
    with broker.http_socket() as sock:
        head = f"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: {HUGE}\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "body", [b'{"0": ' + HUGE.encode() + b"}", b'{"0": 1e400}', b'{"' + HUGE.encode() + b'": 0}']
)
def test_a_number_in_a_body(broker: Broker, body: bytes) -> None:
    status, answer = broker.http("/v1/progress/q", method="POST", body=body)
    assert (status, json.loads(answer)["error"]) == (400, "bad_request")
    status, answer = broker.http(
        "/v1/queues/new", method="PUT", body=b'{"max_messages": ' + HUGE.encode() + b"}"
    )
    assert (status, json.loads(answer)["error"]) == (400, "bad_request")


def test_nothing_of_this_is_a_fault_of_the_broker(broker: Broker) -> None:
    assert "Traceback" not in broker.log()
