"""What the attackers tried at the borders and what held: origins, hosts, TLS, depth, bombs."""

from __future__ import annotations

import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pyarrow as pa
import pytest

from tests.attacks.broker import LOOPBACK, MIB, Broker, Client, frames, secret_of, token
from tests.conftest import Certificates
from tests.http.house import arrow
from wirelake.message import Message, Op
from wirelake.net.access import tls_context


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker without tokens, as on a desk."""
    with Broker(tmp_path_factory.mktemp("borders")) as started:
        yield started


def status(broker: Broker, method: str, path: str, *headers: str) -> int:
    """The status of the answer to a request with exactly these headers."""
    lines = [
        f"{method} {path} HTTP/1.1",
        *headers,
        "Content-Length: 0",
        "Connection: close",
        "",
        "",
    ]
    with broker.http_socket() as sock:
        sock.sendall("\r\n".join(lines).encode())
        head = b""
        while part := sock.recv(4096):
            head += part
    assert head.startswith(b"HTTP/1.1 ")
    assert b"access-control-allow" not in head.lower()
    return int(head[9:12])


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (["Host: localhost"], 202),
        (["Host: LOCALHOST:7780"], 202),
        (["Host: 127.0.0.1", "Origin: http://127.0.0.1"], 202),
        (["Host: [::1]"], 202),
        (["Host: evil.com"], 403),
        (["Host: localhost.evil.com"], 403),
        (["Host: 127.0.0.1.evil.com"], 403),
        (["Host: 2130706433"], 403),
        (["Host: 0x7f000001"], 403),
        (["Host: evil.com", "Origin: http://evil.com"], 403),
        (["Host: 127.0.0.1", "Origin: null"], 403),
        (["Host: 127.0.0.1", "Origin: http://evil.com"], 403),
        (["Host: 127.0.0.1", "Origin: http://127.0.0.1.evil.com"], 403),
        (["Host: 127.0.0.1", "Origin: http://127.0.0.1:1"], 403),
        (["Host: 127.0.0.1", "Origin: http://127.0.0.1@evil.com"], 403),
        (["Host: 127.0.0.1", "Host: evil.com"], 400),
        ([], 400),
    ],
)
def test_a_page_of_another_origin_or_host_cannot_publish(
    broker: Broker, headers: list[str], wanted: int
) -> None:
    assert status(broker, "POST", "/v1/publish/x", *headers) == wanted


def test_no_page_of_another_origin_is_told_that_it_may(broker: Broker) -> None:
    for path in ("/v1/publish/x", "/v1/store/k", "/"):
        asked = ("Host: localhost", "Origin: http://evil.com", "Access-Control-Request-Method: PUT")
        assert status(broker, "OPTIONS", path, *asked) == 403
        assert status(broker, "OPTIONS", path, "Host: localhost") == 405


@pytest.mark.parametrize("path", ["/v1/store/..%2f..%2fetc", "/v1/queues/%24events"])
def test_a_path_leads_nowhere_else(broker: Broker, path: str) -> None:
    assert status(broker, "PUT" if "queues" in path else "GET", path, "Host: localhost") in (
        400,
        404,
    )


@pytest.mark.parametrize("dialect", ["kobold-2", "kobold-3"])
def test_cbor_of_any_depth_ends_no_more_than_its_connection(broker: Broker, dialect: str) -> None:
    plain = frames(dialect, Message(address="x", payload=b"p", headers={"deep": "X" * 200}))
    value = b"\x78\xc8" + b"X" * 200
    assert value in plain
    shapes = (b"\x81", b"\xd8\x20", b"\x9f", b"\xbf", b"\xa1\x61a")
    deep = [shape * (202 // len(shape)) + b"\0" * (202 % len(shape)) for shape in shapes]
    for nested in deep:
        with Client(broker, dialect) as client:
            client.send_bytes(plain.replace(value, nested))
            client.send(Message(op=Op.PING, correlation_id="1"))
            assert client.is_closed(), nested
    with Client(broker, dialect) as client:
        assert client.ask(Message(op=Op.PING)).op == Op.PONG
    assert cbor2.loads(value)
    assert "Traceback" not in broker.log()


def bombs() -> dict[str, pa.RecordBatch]:
    """Bodies of some kilobytes that stand for gigabytes."""
    value = pa.array([b"x" * (64 << 10)], pa.binary())
    many = pa.array([0] * 100_000, pa.int32())
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([10_000_000], pa.int32()), pa.array(["x"]))
    nothing = pa.nulls(50_000_000)
    return {
        "a dictionary": pa.record_batch(
            {
                "address": pa.array(["a"] * len(many)),
                "payload": pa.DictionaryArray.from_arrays(many, value),
            }
        ),
        "run ends": pa.record_batch({"address": runs, "payload": runs}),
        "nulls": pa.record_batch([nothing, nothing], names=["address", "payload"]),
    }


@pytest.mark.parametrize("kind", ["a dictionary", "run ends", "nulls"])
def test_an_arrow_body_that_stands_for_much_more_is_refused(broker: Broker, kind: str) -> None:
    body = arrow(bombs()[kind])
    assert len(body) < 4 * MIB
    before = broker.forget_peak()
    assert broker.http("/v1/publish", method="POST", body=body)[0] in (400, 413)
    assert broker.peak() - before < 64 * MIB
    assert broker.http("/healthz")[0] == 200


# TLS


@pytest.fixture
def over_tls(tmp_path: Path, certificates: Certificates) -> Iterator[Broker]:
    """A broker that takes certificates of clients, one of whom is alice."""
    tls = certificates.tls_for_clients(required=False)
    config = token("alice", publish=["#"], subscribe=["#"])
    config += f'[tls]\ncert = "{tls.cert}"\nkey = "{tls.key}"\nclient_ca = "{tls.client_ca}"\n'
    with Broker(tmp_path, config, listen=[f"kobold+tls://{LOOPBACK}:0"]) as started:
        yield started


def shake_hands(broker: Broker, context: ssl.SSLContext) -> bytes:
    """Connect over TLS and ask for something; what comes back."""
    with (
        socket.create_connection((LOOPBACK, broker.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        ask = Message(op=Op.SUBSCRIBE, address="x", correlation_id="1")
        sock.sendall(frames("kobold-1", ask))
        return sock.recv(4096)


def test_old_versions_of_tls_are_refused(over_tls: Broker, certificates: Certificates) -> None:
    assert tls_context(certificates.tls).minimum_version >= ssl.TLSVersion.TLSv1_2
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = certificates.client()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = version
            context.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake_hands(over_tls, context)


def test_a_certificate_that_nobody_signed_has_no_rights_whatever_its_name(
    over_tls: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    key, made = tmp_path / "own.key", tmp_path / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(made), "-subj", "/CN=alice"]
    subprocess.run(command, check=True, capture_output=True)
    context = certificates.client()
    context.load_cert_chain(made, key)
    try:
        answer = shake_hands(over_tls, context)
    except (ssl.SSLError, ConnectionError):
        answer = b""
    assert b"OK" not in answer
    assert b"OK" in shake_hands(over_tls, certificates.client("alice"))
    assert b"unauthorized" in shake_hands(over_tls, certificates.client())


def test_a_second_broker_on_the_same_data_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    config = token("root", store=["#"], admin=True)
    with Broker(tmp_path, config) as first:
        put = first.http("/v1/store/k", method="PUT", body=b"1", secret=secret_of("root"))
        assert put[0] == 201
        second = Broker(tmp_path, config)
        with pytest.raises(AssertionError, match="in use by process "):
            second.start()
        assert first.http("/v1/store/k", secret=secret_of("root")) == (200, b"1")
        assert first.http("/healthz")[0] == 200
