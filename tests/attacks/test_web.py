"""Peers that attack HTTP, WebSockets and the console: what they make grow has limits."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually, frames, secret_of, token
from tests.http.house import arrow, rows
from wirelake.message import Message, Op

HANDSHAKE = (
    "GET /wire/{} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
BINARY, CONTINUED, PING = 2, 0, 9


def websocket(broker: Broker, dialect: str = "kobold-3", receive_buffer: int = 0) -> socket.socket:
    """A WebSocket, as bare as it can be."""
    host, port = broker.http_url.removeprefix("http://").rsplit(":", 1)
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect((host, int(port)))
    sock.sendall(HANDSHAKE.format(dialect).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return sock


def frame(data: bytes, opcode: int = BINARY, *, last: bool = True, size: int = -1) -> bytes:
    """A frame of a client, masked with zeros; `size` is what it says of its length."""
    size = len(data) if size < 0 else size
    first = opcode | (0x80 if last else 0)
    if size < 126:
        head = bytes([first, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, 0x80 | 127]) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + data


def rest(sock: socket.socket) -> bytes:
    """What comes until the broker hangs up."""
    received = b""
    try:
        while part := sock.recv(MIB):
            received += part
    except ConnectionError:
        pass
    return received


def until_goodbye(sock: socket.socket) -> bytes:
    """What comes until the broker hangs up, or says that it will."""
    received = b""
    try:
        while b"\x88" not in received and (part := sock.recv(MIB)):
            received += part
    except ConnectionError:
        pass
    return received


def push(sock: socket.socket, data: bytes, times: int, stalled: float = 5.0) -> None:
    """Send bytes again and again, until all is sent or the broker takes no more."""
    sock.settimeout(stalled)
    try:
        for _ in range(times):
            sock.sendall(data)
    except OSError:
        pass
    sock.settimeout(60)


def test_unfinished_messages_of_all_websockets_share_a_budget(tmp_path: Path) -> None:
    with Broker(tmp_path, "[web]\nbodies = 2_097_152\n") as broker, ExitStack() as stack:
        before = broker.forget_peak()
        sockets = [stack.enter_context(websocket(broker)) for _ in range(20)]
        for sock in sockets:
            push(sock, frame(b"x" * 600_000, size=1_000_000), 1)
        closed = [sock for sock in sockets if b"(web.bodies)" in _arrived(sock)]
        assert len(closed) >= 16
        assert broker.peak() - before < 16 * MIB
        assert len(closed) < 20
        most = b"x" * (2 * MIB - 1000)  # no room beside any of those that are left
        answer = broker.http("/v1/publish/a", method="POST", body=most)
        assert (answer[0], b"(web.bodies)" in answer[1]) == (503, True)
        for sock in sockets:
            sock.close()
        eventually(lambda: broker.http("/v1/publish/a", method="POST", body=most)[0] == 202)


def _arrived(sock: socket.socket) -> bytes:
    """What has come so far."""
    sock.settimeout(0.5)
    try:
        return rest(sock)
    except TimeoutError:
        return b""


def test_a_message_of_endlessly_many_empty_frames_ends_its_connection(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, websocket(broker) as sock:
        before = broker.forget_peak()
        push(sock, frame(b"", last=False), 1)
        push(sock, frame(b"", CONTINUED, last=False) * 10_000, 2000)
        assert b"at most 1024 frames" in rest(sock)
        assert broker.peak() - before < 16 * MIB


def test_pongs_that_nobody_reads_are_not_held(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, websocket(broker, receive_buffer=4096) as sock:
        before = broker.forget_peak()
        push(sock, frame(b"x" * 125, PING) * 1000, 500)  # 66 MB
        assert broker.peak() - before < 16 * MIB
        assert broker.http("/healthz")[0] == 200


def test_tiny_messages_to_a_broker_that_does_not_read_hold_little(tmp_path: Path) -> None:
    subscribe = frames("kobold-3", Message(op=Op.SUBSCRIBE, address="me"))
    publish = frames("kobold-3", Message(address="me", payload=b"x" * 100_000))
    with Broker(tmp_path) as broker, ExitStack() as stack:
        sockets = []
        for _ in range(5):
            sock = stack.enter_context(websocket(broker, receive_buffer=4096))
            push(sock, frame(subscribe), 1)
            push(sock, frame(publish), 150, 0.5)  # its outbox is full: nothing is read from it
            sockets.append(sock)
        before = broker.forget_peak()
        for sock in sockets:
            push(sock, frame(b"\0") * 20_000, 20, 0.5)
        assert broker.peak() - before < 32 * MIB


def test_a_message_that_does_not_go_on_ends_its_connection(tmp_path: Path) -> None:
    config = "handshake_timeout = 0.5\n[limits]\nmin_rate = 100_000\n"
    with Broker(tmp_path, config) as broker, ExitStack() as stack:
        silent, slow = (stack.enter_context(websocket(broker)) for _ in range(2))
        known = frames("kobold-3", Message(op=Op.SUBSCRIBE, address="me"))
        for sock in (silent, slow):  # with an introduction, or the dialect's own timeout ends them
            sock.sendall(frame(known) + frame(b"x", size=1_000_000))
        assert b"(limits.min_rate)" in drip(slow)
        assert b"(handshake_timeout)" in rest(silent)


def drip(sock: socket.socket) -> bytes:
    """Send a byte now and then until the broker says something; return it and what follows."""
    answer, deadline = b"", time.monotonic() + 60
    while not answer and time.monotonic() < deadline:
        sock.settimeout(60)
        sock.sendall(b"x")
        sock.settimeout(0.1)
        try:
            answer = sock.recv(4096)
        except TimeoutError:
            continue
    sock.settimeout(60)
    return answer + rest(sock)


def test_what_comes_before_the_end_of_a_websocket_is_published(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker) as listener:
        listener.ask(Message(op=Op.SUBSCRIBE, address="a"))
        with websocket(broker) as sock:
            said = frames("kobold-3", *(Message(address="a", payload=b"%d" % k) for k in range(50)))
            pieces = b"".join(frame(said[at : at + 7]) for at in range(0, len(said), 7))
            sock.sendall(pieces + frame(b"\x03\xe8", 8))
            rest(sock)
        assert [listener.receive().payload for _ in range(50)] == [b"%d" % k for k in range(50)]


@pytest.mark.parametrize("dialect", ["kobold-3", "mqtt-5", "boson", "auto"])
def test_a_stranger_by_websocket_has_the_limits_of_one_by_a_socket(
    tmp_path: Path, dialect: str
) -> None:
    config = token("root", admin=True) + "[limits]\nconnections = 5\n"
    large = {
        "kobold-3": b"\0\x10\0\0\3" + b"PUB ",
        "mqtt-5": b"\x10\xff\xff\xff\x7f",
        "boson": b"9000000|0|a|",
        "auto": b"\x10\xff\xff\xff\x7f\0\4MQTT\5",
    }[dialect]
    with Broker(tmp_path, config) as broker, ExitStack() as stack:
        before = broker.forget_peak()
        sockets = [stack.enter_context(websocket(broker, dialect)) for _ in range(4)]
        for sock in sockets:
            push(sock, frame(large + b"x" * 500_000), 20, 0.5)
            until_goodbye(sock)  # a stranger's frame is smaller
            sock.close()
        assert broker.peak() - before < 24 * MIB
        quiet = [stack.enter_context(websocket(broker, dialect)) for _ in range(7)]
        for sock in quiet[5:]:
            until_goodbye(sock)  # limits.connections
        eventually(lambda: "limits.connections (5)" in broker.log())


@pytest.mark.parametrize(
    ("path", "setting"),
    [("/v1/events?filter=a", "web.events"), ("/v1/live?filter=a", "web.pages")],
)
def test_streams_have_a_limit_that_is_named(tmp_path: Path, path: str, setting: str) -> None:
    config = "[web]\nevents = 3\npages = 3\n"
    with Broker(tmp_path, config) as broker, ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(broker.http_socket())
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert sock.recv(12) == b"HTTP/1.1 200"
        status, body = broker.http(path)
        assert (status, f"({setting})".encode() in body) == (503, True)
        broker.configure(config.replace("3", "4"))
        eventually(lambda: "the settings were read again" in broker.log())
        sock = stack.enter_context(broker.http_socket())
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert sock.recv(12) == b"HTTP/1.1 200"


def test_nobody_makes_the_broker_forget_the_batches_of_another(tmp_path: Path) -> None:
    everything: dict[str, Any] = {"publish": ["#"], "subscribe": ["#"]}
    config = "[web]\nproducers = 3\nqueries = 2\n" + token("alice", **everything)
    config += token("mallory", **everything) + token("late", **everything)
    body = arrow(rows(("a", b"x")))
    with Broker(tmp_path, config) as broker:

        def publish(name: str, producer: str) -> tuple[int, bytes]:
            path = f"/v1/publish?producer={producer}&sequence=1"
            return broker.http(path, method="POST", body=body, secret=secret_of(name))

        assert publish("alice", "mine")[0] == 202
        for k in range(10):
            assert publish("mallory", f"p{k}")[0] == 202
        assert json.loads(publish("alice", "mine")[1]) == {"published": 0, "duplicate": True}
        status, text = publish("late", "one")
        assert (status, b"(web.producers)" in text) == (503, True)
        for name in ("alice", "mallory"):
            path = f"/v1/progress/of-{name}"
            got = broker.http(path, method="POST", body=b"{}", secret=secret_of(name))
            assert got[0] == 200
        got = broker.http("/v1/progress/x", method="POST", body=b"{}", secret=secret_of("late"))
        assert (got[0], b"(web.queries)" in got[1]) == (503, True)


def test_a_body_that_comes_too_slowly_is_refused(tmp_path: Path) -> None:
    config = "handshake_timeout = 0.5\n[limits]\nmin_rate = 100_000\n"
    with Broker(tmp_path, config) as broker, broker.http_socket() as sock:
        head = "POST /v1/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        sock.sendall(head.encode())
        assert b"(limits.min_rate)" in drip(sock)


# Other machines

IN_A_NETWORK = (
    "ip link set lo up && ip addr add 10.77.0.1/24 dev lo && ip addr add 10.77.0.2/24 dev lo"
    ' && exec "$@"'
)
NETWORK = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", IN_A_NETWORK, "sh"]

#: Run beside the broker: opens connections from two addresses, and tells how each of them went.
ATTACK = """
import json, socket, sys
kind, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
begun = {
    "http": b"POST /v1/publish/a HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\nContent-Length: 9\\r\\n"
    b"Authorization: Bearer " + sys.argv[5].encode() + b"\\r\\n\\r\\nx",
    "idle": b"",
    "websocket": b"GET /wire/mqtt HTTP/1.1\\r\\nHost: 10.77.0.1\\r\\nUpgrade: websocket\\r\\n"
    b"Connection: Upgrade\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n"
    b"Sec-WebSocket-Version: 13\\r\\n\\r\\n",
    "wire": b"",
}[kind]
held = []
def attempt(source):
    sock = socket.create_connection((host, port), 60, (source, 0))
    sock.sendall(begun)
    sock.settimeout(1.5)
    said = b""
    try:
        while part := sock.recv(65536):
            said += part
            if kind == "websocket" and b"\\x88" in said:  # it says goodbye, and waits for ours
                break
    except TimeoutError:
        held.append(sock)
        return ["held", said.decode("latin-1")]
    except ConnectionError:
        pass
    return ["closed", said.decode("latin-1")]
told = [attempt("10.77.0.2") for _ in range(count)]
told.append(attempt("10.77.0.1"))
print(json.dumps(told))
"""


def in_its_network(broker: Broker, *command: str) -> Any:
    """Run a program where the broker's addresses are."""
    enter = ["nsenter", "--preserve-credentials", "--user", "--net"]
    enter += ["--target", str(broker.process.pid)]
    ran = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture
def network() -> None:
    """Whether this system lets us make one."""
    try:
        made = subprocess.run([*NETWORK, "true"], capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if made.returncode:
        pytest.skip(f"no network of our own can be made: {made.stderr.decode()}")


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("kind", ["http", "idle", "websocket", "wire"])
def test_one_address_cannot_take_all_connections(tmp_path: Path, kind: str) -> None:
    # decision 101
    config = token("root", admin=True, publish=["#"])
    config += "[limits]\nconnections_per_peer = 4\n"
    if kind != "websocket":
        config += "[web]\nconnections_per_peer = 4\n"
    with Broker(
        tmp_path,
        config,
        listen=["mqtt://10.77.0.1:0"],
        http="10.77.0.1:0",
        prefix=NETWORK,
    ) as broker:
        port = broker.port if kind == "wire" else int(broker.http_url.rsplit(":", 1)[1])
        program = [sys.executable, "-c", ATTACK, kind, "10.77.0.1", str(port), "6"]
        program.append(secret_of("root"))
        *told, other = in_its_network(broker, *program)
        assert other[0] == "held"  # another address is let in
        states = [state for state, _ in told]
        if kind == "idle":
            assert states == ["held"] * 6  # each new one ends the one that was idle the longest
        else:
            assert states == ["held"] * 4 + ["closed"] * 2
        if kind == "http":
            assert all(said.startswith("HTTP/1.1 503") for _, said in told[4:])
            assert all("(web.connections_per_peer)" in said for _, said in told[4:])
        setting = "web.connections_per_peer" if kind == "http" else "limits.connections_per_peer"
        if kind != "idle":
            assert setting in broker.log()
