"""A token that is revoked ends everything that was begun with it, HTTP's streams included."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.attacks.broker import Broker, Client, eventually, secret_of, token
from tests.http.house import arrow, rows
from wirelake.message import Message, Op, Parameters

ROOT = token("root", publish=["#"], subscribe=["#"], admin=True)
READER = token("reader", subscribe=["#"])
ROWS = 3000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with an operator and a reader, and a log of some 30 MB."""
    with Broker(tmp_path, ROOT + READER + "[capture]\npartitions = 1\n") as started:
        body = arrow(rows(*[("house/a", b"x" * 10_000)] * ROWS))
        assert started.http("/v1/publish", method="POST", body=body, secret=secret_of("root")) == (
            202,
            b'{"published":3000,"duplicate":false}\n',
        )
        yield started


def get(broker: Broker, path: str, name: str) -> socket.socket:
    """Send a request with a token, and read the beginning of the answer."""
    sock = broker.http_socket()
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret_of(name)}\r\n"
    sock.sendall(f"{head}\r\n".encode())
    assert sock.recv(4096).startswith(b"HTTP/1.1 200")
    return sock


def rest(sock: socket.socket) -> bytes:
    """What comes until the broker hangs up."""
    received = bytearray()
    try:
        while part := sock.recv(1 << 20):
            received += part
    except ConnectionResetError:
        received += b"(reset)"
    return bytes(received)


def test_a_revoked_token_ends_event_streams(broker: Broker) -> None:
    with (
        closing(get(broker, "/v1/events?filter=%23", "reader")) as mine,
        closing(get(broker, "/v1/events?filter=%23", "root")) as others,
        Client(broker) as client,
    ):
        client.login("", secret_of("reader"))
        broker.configure(ROOT)
        got = rest(mine)
        assert b"event: end" in got
        assert b"secret" not in got
        assert client.is_closed()
        status, _ = broker.http(
            "/v1/publish/secret/x", method="POST", body=b"secret", secret=secret_of("root")
        )
        assert status == 202
        seen = b""
        while b"secret" not in seen:  # others go on as before
            seen += others.recv(4096)
        assert b"event: end" not in seen
    assert broker.http("/v1/events?filter=%23", secret=secret_of("reader"))[0] == 401


def test_a_revoked_token_cuts_off_what_is_read_of_the_log(broker: Broker) -> None:
    with (
        closing(get(broker, "/v1/log/0", "reader")) as mine,
        closing(get(broker, "/v1/log/0", "root")) as others,
    ):
        broker.configure(ROOT)
        eventually(lambda: "ended: its rights have changed" in broker.log())
        got = rest(mine)
        assert len(got) < 20_000_000
        assert not got.endswith(b"0\r\n\r\n")
        others.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len(rest(others)) > 30_000_000
    assert "Traceback" not in broker.log()
    sessions = eventually(
        lambda: broker.json("/v1/connections", secret=secret_of("root"))["connections"] == []
    )
    assert sessions


def test_a_token_with_fewer_rights_ends_what_was_begun_with_more(broker: Broker) -> None:
    with closing(get(broker, "/v1/events?filter=a/%23", "reader")) as mine:
        broker.configure(ROOT + token("reader", subscribe=["b/#"]))
        assert b"event: end" in rest(mine)
    with closing(get(broker, "/v1/events?filter=b/%23", "reader")) as mine:
        broker.configure(ROOT + token("reader", subscribe=["b/#", "c/#"]))
        eventually(lambda: broker.log().count("the settings were read again") == 2)
        broker.http("/v1/publish/b/1", method="POST", body=b"more", secret=secret_of("root"))
        assert b"more" in mine.recv(4096)


def test_a_whole_log_is_read_with_a_token_that_stays(broker: Broker) -> None:
    broker.configure(ROOT + READER)
    eventually(lambda: "the settings were read again" in broker.log())
    status, body = broker.http("/v1/log/0", secret=secret_of("reader"))
    assert status == 200
    assert pa.ipc.open_stream(body).read_all().num_rows == ROWS


def test_a_revoked_token_cannot_go_on_by_a_message_on_the_wire(broker: Broker) -> None:
    with Client(broker) as client:
        assert client.login("", secret_of("reader")).op == Op.OK
        broker.configure(ROOT)
        assert client.is_closed()
    with Client(broker) as client:
        answer = client.ask(
            Message(op=Op.SUBSCRIBE, address="#", parameters=Parameters(token=secret_of("reader")))
        )
        assert answer.parameters.code == "unauthorized"
