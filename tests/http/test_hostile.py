"""Clients that mean no good, and clients that are half dead."""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.http.house import House, arrow, rows
from wirelake.config import LimitSettings, Settings, WebSettings
from wirelake.errors import RefusedError
from wirelake.http.rows import CHUNK, read_rows
from wirelake.journal.contract import Batch
from wirelake.journal.engine import Engine
from wirelake.message import Limits
from wirelake.wire import FrameTable
from wirelake.wire.arrow import from_arrow

GOOD = arrow(
    rows(
        ("house/a", b"x" * 50),
        ("house/b", b""),
        id=["1", "2"],
        headers=pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
    )
)
ENCODED = arrow(
    pa.RecordBatch.from_pydict(
        {
            "address": pa.array(["a", "b", "a"]).dictionary_encode(),
            "payload": pa.array([b"1", b"2", b"3"]).dictionary_encode(),
        }
    )
)


@pytest.fixture
def house() -> Iterator[House]:
    """A broker that keeps everything in memory."""
    with House(None, engine=Engine.in_memory(partitions=4)) as opened:
        yield opened


def talk(house: House, data: bytes) -> bytes:
    """Send bytes, and read until the broker closes."""
    with socket.create_connection(("127.0.0.1", house.port), timeout=60) as sock:
        with suppress(ConnectionError):  # it may have heard enough before it has heard all
            sock.sendall(data)
        return until_closed(sock)


def until_closed(sock: socket.socket) -> bytes:
    """What comes until the far end closes; bytes that it did not read make that a reset."""
    received = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(1 << 20):
            received += part
    return received


# Arrow bodies


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_flipped_byte_never_breaks_more_than_its_request(at: int, flip: int) -> None:
    for body in (GOOD, ENCODED):
        bad = bytearray(body)
        bad[at % len(bad)] ^= flip
        with suppress(RefusedError):  # any other error is ours
            for batch in read_rows(bytes(bad), Limits()).batches:
                from_arrow(batch, table := FrameTable(CHUNK))
                assert len(list(table.messages())) == batch.num_rows


@given(st.binary(max_size=300))
@example(b"")
@example(b"\xff\xff\xff\xff\x7f\xff\xff\x7f")
@example(struct.pack("<iI", -1, 0x7FFFFFF0) + b"x" * 64)
def test_bytes_that_are_no_arrow_are_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        read_rows(body, Limits())


@pytest.mark.parametrize("cut", range(0, len(GOOD) - 8, 40))
def test_a_stream_that_was_cut_off_is_refused_or_has_whole_rows(cut: int) -> None:
    with suppress(RefusedError):
        assert len(read_rows(GOOD[:cut], Limits())) in (0, 2)


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"address": ["a"]}, "bad_request"),
        ({"payload": [b"a"]}, "bad_request"),
        ({"address": [None], "payload": [b"a"]}, "bad_request"),
        ({"address": [1], "payload": [b"a"]}, "bad_request"),
        ({"address": ["a"], "payload": [1.5]}, "bad_request"),
        ({"address": ["a"], "payload": [["x"]]}, "bad_request"),
        ({"address": [""], "payload": [b""]}, "bad_request"),
        ({"address": ["a\n"], "payload": [b""]}, "bad_request"),
        ({"address": ["$events"], "payload": [b""]}, "bad_request"),
        ({"address": [b"\xff"], "payload": [b""]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "priority": [2]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "priority": [1000]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "ttl": [-1]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "ttl": ["soon"]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "id": ["x" * 256]}, "bad_request"),
        ({"address": ["a"], "payload": [b""], "headers": ["x"]}, "bad_request"),
        ({"address": ["a"], "payload": [b"x" * 2000]}, "too_large"),
        (
            {
                "address": ["a"],
                "payload": [b""],
                "headers": pa.array([[("k", "x" * 300)]], pa.map_(pa.string(), pa.string())),
            },
            "too_large",
        ),
        (
            {
                "address": pa.array(["a"] * 50).dictionary_encode(),
                "payload": pa.array([b"x" * 100] * 50).dictionary_encode(),
            },
            "too_large",
        ),
        (
            {"address": ["a"] * 2, "payload": pa.array([b"x" * 100] * 2, pa.binary_view())},
            "bad_request",
        ),
    ],
)
def test_rows_that_cannot_be_published_are_refused(columns: dict[str, object], code: str) -> None:
    body = arrow(pa.RecordBatch.from_pydict(columns))
    with pytest.raises(RefusedError) as caught:
        read_rows(body, Limits(message=1024, sequence=1024, headers=256))
    assert caught.value.code == code


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("batch", [rows(("a", b"\0" * 100_000)), rows(("a", b""))])
def test_a_few_bytes_that_stand_for_many_are_not_unpacked(
    compression: str, batch: pa.RecordBatch
) -> None:
    encoded = pa.RecordBatch.from_arrays(
        [column.dictionary_encode() for column in batch.columns], batch.schema.names
    )
    for one in (batch, encoded):
        with pytest.raises(RefusedError, match="compressed"):
            read_rows(arrow(one, compression=compression), Limits())


def test_a_body_of_garbage_leaves_the_broker_well(house: House) -> None:
    chance = random.Random(1)
    for _ in range(30):
        bad = bytearray(GOOD)
        for _ in range(5):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        assert house.post("/v1/publish", bytes(bad)).status in (202, 400, 413)
    assert house.post("/v1/publish", GOOD).status == 202


# HTTP


def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    limits = LimitSettings(message=1024, sequence=2048)
    with House(None, engine=Engine.in_memory(), limits=limits) as house:
        for path, most in (("/v1/publish/a", 1024), ("/v1/publish", 2048)):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            length = f"Content-Length: {most + 1}\r\n\r\n"
            assert b" 413 " in talk(house, (head + length).encode()).split(b"\r\n")[0]
        head = "PUT /v1/store/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        piece = b"400\r\n" + b"x" * 1024 + b"\r\n"
        assert b" 413 " in talk(house, chunked + 3 * piece).split(b"\r\n")[0]
        assert house.post("/v1/publish/a", b"x" * 1024).status == 202


def test_bodies_of_all_requests_together_are_bounded() -> None:
    web = WebSettings(bodies=3000)
    with House(None, engine=Engine.in_memory(), web=web) as house:
        head = b"PUT /v1/store/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2500\r\n\r\n"
        with socket.create_connection(("127.0.0.1", house.port)) as sock:
            sock.sendall(head + b"x" * 2000)
            while (got := house.put("/v1/store/b", b"x" * 1500)).status == 201:
                pass  # the other has not come yet
            assert (got.status, got.json["error"]) == (503, "busy")
            assert "(web.bodies)" in got.json["text"]
            assert house.put("/v1/store/b", b"x" * 500).status < 300
        while (got := house.put("/v1/store/b", b"x" * 2900)).status == 503:
            pass  # the other has not gone yet
        for _ in range(5):
            assert house.put("/v1/store/b", b"x" * 2900).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x00\x00\x00\x10PUB\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 400_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 400_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/publish/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_closed(house: House, data: bytes) -> None:
    assert talk(house, data)[:12] in (
        b"HTTP/1.1 400",
        b"HTTP/1.1 403",
        b"HTTP/1.1 431",
        b"",
    )
    assert house.get("/healthz").status == 200


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/v1/../v1/queues", "/%2e%2e/x", "//healthz", "/healthz/", "/V1/queues",
     "/v1/queues/", "/v1/store/", "/v1/publish/", "/%00"],
)  # fmt: skip
def test_paths_are_taken_as_they_are(house: House, path: str) -> None:
    got = house.get(path)
    assert got.status in (400, 404, 405)
    assert set(got.json) >= {"error", "text"}


@pytest.mark.parametrize("path", ["/v1/queues/%FF", "/v1/store/%C3", "/v1/queues/a%80/messages"])
def test_a_path_that_is_not_utf8_is_refused(house: House, path: str) -> None:
    got = house.get(path)
    assert (got.status, got.json["text"]) == (400, "the path is not UTF-8")


def test_a_method_that_is_not_there_is_told(house: House) -> None:
    got = house.ask("PATCH", "/v1/queues/a")
    assert (got.status, got.json["error"]) == (405, "bad_request")
    assert house.post("/healthz").status == 405


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("", "", 200),
        ("http://127.0.0.1:{port}", "", 200),
        ("http://evil.example", "", 403),
        ("null", "", 403),
        ("http://[", "", 403),
        ("", "evil.example", 403),
        ("http://evil.example", "evil.example", 403),
        ("", "localhost:{port}", 200),
        ("", "[::1]:{port}", 200),
        ("", "[::1", 403),
    ],
)
def test_other_web_pages_cannot_use_a_broker_without_tokens(
    house: House, origin: str, host: str, status: int
) -> None:
    given = {"Origin": origin, "Host": host}
    headers = {name: value.format(port=house.port) for name, value in given.items() if value}
    assert house.ask("GET", "/v1/queues", None, headers).status == status


@pytest.mark.parametrize("value", ["", "Bearer", "Basic Ym9zczpib3Nz", "Bearer wrong", "boss"])
def test_a_token_that_is_none_opens_nothing(guarded: House, value: str) -> None:
    got = guarded.ask("GET", "/v1/connections", None, {"Authorization": value})
    assert got.status == 401
    assert got.headers["www-authenticate"] == "Bearer"


def test_a_client_that_stops_in_the_middle_is_let_go(house: House) -> None:
    house.http.configure(Settings(handshake_timeout=0.05))
    assert talk(house, b"") == b""
    assert talk(house, b"GET /healthz HTTP/1.1\r\nHost: loc") == b""
    with socket.create_connection(("127.0.0.1", house.port), timeout=60) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not sock.recv(1000).endswith(b"}\n"):
            pass
        sock.sendall(b"GET /heal")
        assert until_closed(sock) == b""
    head = b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert b" 504 " in talk(house, head + b"Content-Length: 10\r\n\r\n12345")
    assert house.call(lambda: house.node.vitals.counters["received"]) == 0


def test_a_client_that_goes_away_in_the_middle_publishes_nothing(house: House) -> None:
    head = b"POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", house.port)) as sock:
            sock.sendall(head + b"12345")
    assert house.post("/v1/publish/a", b"whole").status == 202
    assert house.call(lambda: house.node.vitals.counters["received"]) == 1


def test_a_client_that_does_not_read_is_cut_off(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.http.configure(Settings(web=WebSettings(read_timeout=0.1)))
    for _ in range(20):
        house.post("/v1/publish", arrow(rows(*[("house/a", b"x" * 10_000)] * 200)))
    partition = next(
        one["partition"] for one in house.get("/v1/log").json["partitions"] if one["next"]
    )
    closed = threading.Event()
    read = house.engine.read

    def watched(*arguments: int, **options: Any) -> Iterator[Batch]:
        try:
            yield from read(*arguments, **options)
        finally:
            closed.set()

    monkeypatch.setattr(house.engine, "read", watched)
    with socket.create_connection(("127.0.0.1", house.port), timeout=60) as sock:
        sock.sendall(f"GET /v1/log/{partition} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert closed.wait(60)
        assert not until_closed(sock).endswith(b"\r\n0\r\n\r\n")


def test_requests_behind_each_other_are_answered_in_order(house: House) -> None:
    one = b"PUT /v1/store/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
    last = b"GET /v1/store/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = talk(house, one + one + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"201", b"200", b"200"]


def test_the_head_of_a_stream_alone_ends(house: House) -> None:
    for path in ("/v1/events?filter=a", "/v1/log/0", "/healthz", "/v1/store"):
        got = house.ask("HEAD", path)
        assert (got.status, got.body) == (200, b"")
    assert house.get("/healthz").status == 200
    assert house.call(lambda: len(house.node.sessions)) == 0
