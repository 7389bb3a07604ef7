"""What `wirelake.testing` gives: a broker of one's own, and faults that are what they say."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wirelake
from tests.conftest import Certificates
from wirelake import testing
from wirelake.config import FlowSettings, Settings
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError

# The broker


@pytest.mark.parametrize("listener", ["", "auto"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_blocking_test_talks_to_a_broker_in_any_dialect(dialect: str, listener: str) -> None:
    with (
        testing.Broker() as broker,
        wirelake.connect_sync(broker.url(dialect, listener=listener)) as client,
        client.subscribe("a") as messages,
    ):
        client.publish("a", b"hello")
        assert messages.receive(60).payload == b"hello"
        assert broker.counters()["received"] == 1
        assert broker.counters()["protocol_errors"] == 0
        assert broker.state()["subscriptions"] == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_asynchronous_test_talks_to_a_broker_in_any_dialect(dialect: str) -> None:
    async with (
        testing.Broker() as broker,
        testing.Proxy(broker.url(dialect)) as proxy,
        wirelake.connect(proxy.url) as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"hello")
        assert (await messages.receive(60)).payload == b"hello"


def test_settings_go_by_name_or_as_a_value_or_both() -> None:
    config = Settings(request_timeout=7, flow=FlowSettings(window=9))
    assert testing.Broker(config).settings == config
    assert testing.Broker(config, handshake_timeout=3).settings.request_timeout == 7
    flow = testing.Broker(flow={"outbox": 70_000, "policies": {"a": "drop"}}).settings.flow
    assert flow == FlowSettings(outbox=70_000, policies={"a": "drop"})


@pytest.mark.parametrize(
    "settings",
    [{"no_such": 1}, {"handshake_timeout": -1}, {"flow": {"policies": {"a": "x"}}}],
)
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        testing.Broker(**settings)


def test_a_real_configuration_moves_to_loopback_and_free_ports() -> None:
    config = Settings(listen=("mfp://0.0.0.0:7777", "auto://[::]:7700"), insecure=True)
    with testing.Broker(config) as one, testing.Broker(config) as two:
        places = [(each.family, each.host) for each in one.listeners]
        assert places == [("mfp", "127.0.0.1"), ("auto", "127.0.0.1")]
        ports = {each.port for each in one.listeners + two.listeners}
        assert len(ports) == 4
        assert not ports & {0, 7700, 7777}
        with wirelake.connect_sync(two.url("tmq")) as client:  # by `auto`
            client.ping()


def test_a_dialect_without_a_listener_is_said() -> None:
    with (
        testing.Broker(listen=("mfp://127.0.0.1:0",)) as broker,
        pytest.raises(ConfigError, match="no listener of this broker takes kobold-1"),
    ):
        broker.url("kobold-1")


def test_tls_and_unix_listeners_have_their_urls(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    listen = ("kobold+tls://127.0.0.1:0", f"tmq+unix://{path}")
    with testing.Broker(listen=listen, tls=certificates.tls) as broker:
        assert broker.url("tmq-1.00") == f"tmq-1.00+unix://{path}"
        with wirelake.connect_sync(broker.url("tmq-1.00")) as client:
            client.ping()
        ca = certificates.folder / "ca.pem"
        with (
            testing.Proxy(broker.url("kobold-3")) as proxy,
            wirelake.connect_sync(proxy.url, ca=ca) as client,
        ):
            assert proxy.url.startswith("kobold-3+tls://localhost:")
            client.ping()
        with pytest.raises(ConfigError, match="not for a Unix socket"):
            testing.Proxy(broker.url("tmq-1.00"))


def test_what_goes_wrong_at_the_start_is_raised_and_leaves_nothing() -> None:
    before = threads_and_sockets()
    broker = testing.Broker(listen=("auto://127.0.0.1:0", "auto+tls://127.0.0.1:0"))
    with pytest.raises(ConfigError, match="tls"):
        broker.start()
    assert threads_and_sockets() == before


def test_nothing_is_left_of_a_broker_and_a_proxy() -> None:
    before = threads_and_sockets()
    with testing.Broker() as broker, testing.Proxy(broker.url("tmq-1.01")) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as near:
            near.sendall(b"TMQ/1.01")
            assert near.recv(100) == b"TMQ/1.01"
            proxy.stall()
            broker.restart()
        proxy.close()
        broker.close()
        broker.close()
    assert threads_and_sockets() == before


def threads_and_sockets() -> tuple[set[str], int]:
    """The threads of these two that run, and how many sockets this process has open."""
    names = {thread.name for thread in threading.enumerate()}
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    sockets = sum(str(link.readlink()).startswith("socket:") for link in links)
    return names & {"wirelake broker", "wirelake proxy"}, sockets


def test_a_broker_stops_and_comes_back_where_it_was() -> None:
    with testing.Broker() as broker:
        url = broker.url("boson-binary")
        with wirelake.connect_sync(url, min_delay=0.01) as client:
            client.publish("a", b"x", ack=True)
            broker.stop()
            assert broker.counters()["received"] == 1  # as it was at the end
            with pytest.raises(RefusedError):
                wirelake.connect_sync(url).__enter__()
            broker.start()
            assert broker.url("boson-binary") == url
            assert broker.counters()["received"] == 0
            client.publish("a", b"y", ack=True)
            broker.restart()
            client.publish("a", b"z", ack=True)
            assert broker.counters()["received"] == 1


def test_a_broker_that_was_not_started_has_counted_nothing() -> None:
    with pytest.raises(ConfigError, match="not started"):
        testing.Broker().counters()


# The proxy: two ends of a wire, and nothing but sockets


class Wire:
    """A proxy, and what it connects: `near` calls, `far` is called."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.proxy = testing.Proxy(f"kobold-1://me:secret@127.0.0.1:{port}")

    def open(self) -> tuple[socket.socket, socket.socket]:
        """A new connection, both ends of it."""
        near = socket.create_connection(("127.0.0.1", self.proxy.port), 20)
        far, _ = self.listener.accept()
        far.settimeout(60)
        return near, far


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    with wire.listener, wire.proxy:
        yield wire


def read_all(sock: socket.socket) -> bytes:
    """All that comes, to the end."""
    found = b""
    while data := sock.recv(1 << 16):
        found += data
    return found


def test_without_a_fault_bytes_and_ends_go_both_ways(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        near.sendall(b"hello" * 50_000)
        near.shutdown(socket.SHUT_WR)
        assert read_all(far) == b"hello" * 50_000
        far.sendall(b"goodbye")
        far.close()
        assert read_all(near) == b"goodbye"
        assert wire.proxy.to_broker.carried == 250_000
        assert wire.proxy.to_client.carried == 7


def test_a_reset_by_either_side_is_passed_on(wire: Wire) -> None:
    for side in (0, 1):
        ends = wire.open()
        ends[side].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        ends[side].close()
        with ends[1 - side] as other, pytest.raises(ConnectionResetError):
            other.recv(1)


def test_the_url_has_all_but_the_port_of_the_brokers(wire: Wire) -> None:
    assert wire.proxy.url == f"kobold-1://me:secret@127.0.0.1:{wire.proxy.port}"


@pytest.mark.parametrize("after", [0, 1, 4, 5, 9])
def test_a_cut_comes_after_so_many_bytes_and_once(wire: Wire, after: int) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.to_broker.cut(after=after)
        near.sendall(b"hello")
        near.sendall(b"world")
        assert read_all(far) == b"helloworld"[:after]
        assert read_all(near) == b""
    near, far = wire.open()
    with near, far:
        near.sendall(b"once more")
        assert far.recv(4) == b"once"


def test_a_cut_towards_the_client_ends_what_the_broker_says(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        far.sendall(b"ab")
        assert near.recv(2) == b"ab"
        wire.proxy.to_client.cut(after=3)  # from now on
        far.sendall(b"cdefg")
        assert read_all(near) == b"cde"
        assert read_all(far) == b""


def test_a_reset_comes_after_so_many_bytes(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.to_broker.reset(after=3)
        near.sendall(b"hello")
        with pytest.raises(ConnectionResetError):
            assert b"hel".startswith(read_all(far))
        with pytest.raises(ConnectionResetError):
            near.recv(1)


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_all_connections_can_be_ended_at_once(wire: Wire, how: str) -> None:
    connections = [wire.open() for _ in range(3)]
    for near, far in connections:
        near.sendall(b"x")
        assert far.recv(1) == b"x"
    getattr(wire.proxy, how)()
    for end in [end for ends in connections for end in ends]:
        if how == "cut":
            assert end.recv(1) == b""
        else:
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    for near, far in connections:
        near.close()
        far.close()
    near, far = wire.open()
    with near, far:
        assert wire.proxy.accepted == 4


def test_bytes_are_delayed_and_keep_their_order(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.to_broker.delay(0.05, jitter=0.05, seed=1)
        began = time.monotonic()
        for k in range(3):
            near.sendall(b"%d" % k)
            assert far.recv(1) == b"%d" % k
        assert time.monotonic() - began >= 0.15
        far.sendall(b"at once")
        assert near.recv(7) == b"at once"


def test_bytes_come_one_by_one(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.split(1)
        wire.proxy.to_broker.delay(0.3)  # so that they can be told apart
        near.sendall(b"abc")
        assert [far.recv(100), far.recv(100), far.recv(100)] == [b"a", b"b", b"c"]
    with pytest.raises(ConfigError, match="1 byte or more"):
        wire.proxy.split(0)


@pytest.mark.parametrize("leaving", ["politely", "not at all", "by a reset"])
def test_half_open_swallows_bytes_and_ends_one_way(wire: Wire, leaving: str) -> None:
    near, far = wire.open()
    with near, far:
        near.sendall(b"before")
        assert far.recv(6) == b"before"
        wire.proxy.to_broker.half_open()
        near.sendall(b"unheard")
        if leaving == "not at all":
            far.sendall(b"the other way")
            assert near.recv(13) == b"the other way"
        else:
            linger = b"\1\0\0\0\0\0\0\0" if leaving == "by a reset" else b"\0\0\0\0\0\0\0\0"
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            near.close()
            far.sendall(b"x" * 100_000)  # to nobody
        assert wire.proxy.to_broker.carried == 6
        far.settimeout(0.1)
        with pytest.raises(TimeoutError):
            far.recv(1)


def test_a_stalled_way_makes_the_sender_wait_and_loses_nothing(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.to_broker.stall()
        near.setblocking(False)
        sent = 0
        block = bytes(range(256)) * 256
        while True:  # ends, for what the system holds is bounded
            try:
                sent += near.send(block[sent % len(block) :])
            except BlockingIOError:
                break
        assert wire.proxy.to_broker.carried == 0
        far.sendall(b"the other way")
        near.settimeout(60)
        assert near.recv(13) == b"the other way"
        wire.proxy.to_broker.resume()
        near.shutdown(socket.SHUT_WR)
        got = read_all(far)
        assert len(got) == sent
        assert got == (block * (sent // len(block) + 1))[:sent]


def test_new_connections_are_refused_and_accepted_again(wire: Wire) -> None:
    near, far = wire.open()
    with near, far:
        wire.proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", wire.proxy.port))
        near.sendall(b"still here")
        assert far.recv(10) == b"still here"
        wire.proxy.accept()
        for end in wire.open():
            end.close()


def test_a_healed_wire_has_no_fault(wire: Wire) -> None:
    proxy = wire.proxy
    proxy.delay(3600)
    proxy.split(1)
    proxy.half_open()
    proxy.stall()
    proxy.to_broker.cut(after=1)
    proxy.to_client.reset(after=1)
    proxy.refuse()
    proxy.heal()
    near, far = wire.open()
    with near, far:
        near.sendall(b"hello")
        far.sendall(b"hello")
        near.shutdown(socket.SHUT_WR)
        far.shutdown(socket.SHUT_WR)
        assert read_all(near) == read_all(far) == b"hello"


def test_a_broker_that_is_not_there_is_a_reset(wire: Wire) -> None:
    wire.listener.close()
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", wire.proxy.port), 20) as near,
    ):
        near.recv(1)


def test_a_proxy_that_does_not_run_says_so() -> None:
    proxy = testing.Proxy("mfp://127.0.0.1:1")
    for use in (proxy.cut, proxy.to_client.stall, lambda: proxy.url):
        with pytest.raises(ConfigError, match=r"running|started"):
            use()


async def test_many_connections_at_once_lose_nothing(wire: Wire) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    async def call(k: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.proxy.port)
        writer.write(b"%d," % k * 5000)
        writer.write_eof()
        got = await reader.read()
        writer.close()
        return got

    async with await asyncio.start_server(echo, sock=wire.listener):
        assert await asyncio.gather(*map(call, range(20))) == [b"%d," % k * 5000 for k in range(20)]


def test_a_broker_with_a_folder_finds_again_what_it_was_told_to_keep(tmp_path: Path) -> None:
    with testing.Broker(data=tmp_path / "data", http=True) as broker:
        with wirelake.connect_sync(broker.url("kobold-2")) as client:
            client.publish("a", b"x", ack=True)
            client.store.create("key", b"value")
        before = broker.http_url
        broker.restart()
        assert broker.http_url == before
        with wirelake.connect_sync(broker.url("kobold-3")) as client:
            assert client.store.read("key").value == b"value"
        with urllib.request.urlopen(f"{broker.http_url}/v1/log") as answer:
            partitions = json.load(answer)["partitions"]
    assert sum(one["next"] for one in partitions) == 2


def test_a_broker_in_memory_has_http_and_a_log_where_that_is_wanted() -> None:
    with testing.Broker(http=True) as broker:
        with wirelake.connect_sync(broker.url("boson-binary")) as client:
            client.publish("a", b"x", ack=True)
        with urllib.request.urlopen(f"{broker.http_url}/v1/log") as answer:
            partitions = json.load(answer)["partitions"]
    assert sum(one["next"] for one in partitions) == 1
