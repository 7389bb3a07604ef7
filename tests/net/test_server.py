"""Listeners and connections: how they open, time out, end, and what a broker says when it stops."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

import wirelake
from tests.net.peer import Peer, close_all, succeeded
from wirelake.config import (
    FlowSettings,
    LimitSettings,
    Listener,
    MfpSettings,
    Settings,
    TokenSettings,
    hash_token,
)
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError
from wirelake.message import Flag, Message, Op
from wirelake.net.connection import FULL_READS, READ, Connection
from wirelake.net.server import Server
from wirelake.testing import Broker

LOCAL = Settings(listen=("auto://127.0.0.1:0",))

Start = Callable[[Settings], Awaitable[Server]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts brokers that are stopped after the test."""
    started = []

    async def start(settings: Settings) -> Server:
        server = Server.configured(settings)
        server.listeners = await server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()


def port_of(server: Server) -> int:
    """Where its first listener is."""
    return server.listeners[0].port


def connections(server: Server) -> list[Connection]:
    """The broker's ends of its connections."""
    return list(server._hub.connections)


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something has come about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_every_family_has_a_listener_of_its_own(start: Start) -> None:
    families = {
        "boson": "boson-text",
        "kobold": "kobold-3",
        "tmq": "tmq-1.01",
        "mfp": "mfp-1",
        "mqtt": "mqtt-5",
    }
    server = await start(Settings(listen=tuple(f"{name}://127.0.0.1:0" for name in families)))
    assert [listener.family for listener in server.listeners] == list(families)
    for listener, dialect in zip(server.listeners, families.values(), strict=True):
        peer = await Peer(dialect, "somebody", "sub").open(listener.port)
        await peer.subscribe("a")
        await peer.close()


async def test_a_family_refuses_the_others_and_counts_it(start: Start) -> None:
    server = await start(Settings(listen=("kobold://127.0.0.1:0",)))
    peer = Peer("boson-text", "stray")
    await peer.connect(port_of(server))
    await peer.send_bytes(b"5|0|greet|hello")
    assert await peer.is_closed()
    assert server.node.vitals.counters["protocol_errors"] == 1
    await peer.close()


async def test_a_host_with_two_addresses_has_two_listeners(start: Start) -> None:
    server = await start(Settings(listen=("auto://localhost:0",)))
    assert {listener.host for listener in server.listeners} <= {"127.0.0.1", "::1"}
    assert all(listener.port for listener in server.listeners)


async def test_a_port_in_use_is_said_in_one_line(start: Start) -> None:
    server = await start(LOCAL)
    taken = Settings(listen=("auto://127.0.0.1:0", str(server.listeners[0])))
    with pytest.raises(ConfigError, match=r"listen: auto://127\.0\.0\.1:\d+: address already in u"):
        await start(taken)


async def test_a_host_that_is_not_there_is_said_in_one_line(start: Start) -> None:
    with pytest.raises(ConfigError, match=r"listen: auto://no\.such\.host\.invalid:1: "):
        await start(Settings(listen=("auto://no.such.host.invalid:1",), insecure=True))


async def test_connections_send_small_writes_at_once(start: Start) -> None:
    server = await start(LOCAL)
    peer = await Peer("kobold-1", "somebody").open(port_of(server))
    (connection,) = connections(server)
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert connection.peer == f"127.0.0.1:{sock.getpeername()[1]}"
    await peer.close()


# Unix sockets


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_speaks_over_a_unix_socket(
    start: Start, tmp_path: Path, dialect: str
) -> None:
    path = tmp_path / "broker.sock"
    server = await start(Settings(listen=(f"auto+unix://{path}",)))
    assert [str(listener) for listener in server.listeners] == [f"auto+unix://{path}"]
    subscriber = await Peer(dialect, "receiver", "sub").open(path=str(path))
    publisher = await Peer(dialect, "sender").open(path=str(path))
    await subscriber.subscribe("a")
    await publisher.send(Message(address="a", payload=b"hello"))
    assert (await subscriber.receive()).payload == b"hello"
    assert all(each.peer.startswith("process ") for each in connections(server))
    await close_all([subscriber, publisher])
    await server.stop()
    assert not path.exists()


async def test_the_socket_of_a_dead_broker_is_replaced(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await start(Settings(listen=(f"auto+unix://{path}",)))
    await (await Peer("kobold-2", "somebody").open(path=str(path))).close()


async def test_the_socket_of_a_living_broker_is_left_alone(start: Start, tmp_path: Path) -> None:
    settings = Settings(listen=(f"auto+unix://{tmp_path / 'broker.sock'}",))
    await start(settings)
    with pytest.raises(ConfigError, match="somebody listens there already"):
        await start(settings)
    await (await Peer("kobold-2", "somebody").open(path=str(tmp_path / "broker.sock"))).close()


async def test_a_file_that_is_no_socket_is_left_alone(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="address already in use"):
        await start(Settings(listen=(f"auto+unix://{path}",)))
    assert stat.S_ISREG(path.stat().st_mode)


async def test_a_socket_that_somebody_replaced_is_not_removed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    server = await start(Settings(listen=(f"auto+unix://{path}",)))
    path.rename(tmp_path / "moved.sock")
    path.write_text("data")
    await server.stop()
    assert path.exists()


# Large and small reads


@pytest.mark.parametrize("size", [READ // 2, READ - 64, READ, READ + 1, 3 * READ, 5 << 20])
@pytest.mark.parametrize("dialect", ["boson-text", "boson-binary", "kobold-2", "tmq-1.00"])
async def test_large_frames_arrive_whole_among_small_ones(
    start: Start, dialect: str, size: int
) -> None:
    server = await start(LOCAL)
    subscriber = await Peer(dialect, "receiver", "sub").open(port_of(server))
    publisher = await Peer(dialect, "sender").open(port_of(server))
    await subscriber.subscribe("a")
    sent = [b"before", bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"after", b"end"]
    await publisher.send(*(Message(address="a", payload=payload) for payload in sent))
    got = [(await subscriber.receive()).payload for _ in sent]
    assert got == sent
    assert all(connection._rest is None for connection in connections(server))
    await close_all([subscriber, publisher])


async def test_a_long_sequence_of_parts_arrives_whole(start: Start) -> None:
    server = await start(LOCAL)
    subscriber = await Peer("boson-text", "receiver").open(port_of(server))
    publisher = await Peer("boson-text", "sender").open(port_of(server))
    await subscriber.subscribe("t")
    part = b"p" * 50_000
    await publisher.send_bytes(b"50000|m|t|" + part + (b"50000|m||" + part) * 39 + b"0|0")
    assert (await subscriber.receive()).payload == part * 40
    await close_all([subscriber, publisher])


async def test_an_announced_length_reserves_no_memory(start: Start) -> None:
    server = await start(LOCAL)
    peer = await Peer("kobold-3", "boaster").open(port_of(server))
    await peer.send_bytes((60 << 20).to_bytes(4, "big") + b"PUB a")
    await until(lambda: connections(server)[0]._rest is not None)
    assert len(connections(server)[0].get_buffer(-1)) <= READ
    await peer.close()


# Too many


async def test_connections_of_one_address_are_limited_until_they_authenticate(start: Start) -> None:
    token = TokenSettings(name="alice", hash=hash_token("secret"), publish=("#",))
    limits = LimitSettings(connections_per_peer=3)
    server = await start(msgspec.structs.replace(LOCAL, tokens=(token,), limits=limits))
    server._hub.peers.exempts_loopback = False
    known = [
        await Peer("kobold-3", f"known-{n}", token="secret").open(port_of(server)) for n in range(4)
    ]
    strangers = [Peer("kobold-3", "") for _ in range(4)]
    for stranger in strangers:
        await stranger.connect(port_of(server))
    assert await strangers[3].is_closed()
    assert server.node.vitals.counters["refused_connections"] == 1
    assert "limits.connections_per_peer (3 without a token" in str(
        server.node.vitals.events[-1]["text"]
    )
    await strangers[0].close()
    while len(server._hub.connections) > 6:
        await asyncio.sleep(0.01)
    late = Peer("kobold-3", "")
    await late.connect(port_of(server))
    await late.send(Message(op=Op.PING, correlation_id="1"))
    assert (await late.receive()).op == Op.PONG
    await close_all([*known, *strangers, late])


# Time-outs


QUICK = msgspec.structs.replace(LOCAL, handshake_timeout=0.5)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_frame_that_is_begun_and_not_finished_times_out(
    start: Start, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start(QUICK)
    peer = await Peer(dialect, "slowcoach", "pub").open(port_of(server))
    begun = {"b": b"9|0|a|hello", "k": b"\0\0\0\x40PUB a", "t": b"\x11\0\0\0", "m": b"\x02uid"}
    beginning = b"\0\x01\0\0" if dialect == "boson-binary" else begun[dialect[0]]
    if dialect.startswith("mqtt"):
        beginning = b"\x30\x09\0\4"
    await peer.send_bytes(beginning)
    assert await peer.is_closed()
    assert server.node.vitals.counters["timeouts.frame"] == 1
    assert "nothing of a frame for 0.5 s" in caplog.text
    assert "127.0.0.1:" in caplog.text
    await peer.close()


@pytest.mark.parametrize("beginning", [b"4|m|t|abcd", b"4|mm|t|abcd3|mm||efg"])
async def test_a_sequence_that_is_begun_and_not_finished_times_out(
    start: Start, beginning: bytes
) -> None:
    server = await start(QUICK)
    peer = await Peer("boson-text", "slowcoach", "pub").open(port_of(server))
    await peer.send_bytes(beginning)
    assert await peer.is_closed()
    assert server.node.vitals.counters["timeouts.frame"] == 1
    await peer.close()


@pytest.mark.parametrize("beginning", [b"", b"TMQ/", b"TMQ/1.01", b"\0" * 20])
async def test_a_handshake_that_is_not_finished_times_out(start: Start, beginning: bytes) -> None:
    server = await start(QUICK)
    peer = Peer("tmq-1.01", "slowcoach")
    await peer.connect(port_of(server))
    await peer.send_bytes(beginning)
    if len(beginning) == 8:
        assert (await peer.receive()).op == Op.HANDSHAKE
    assert await peer.is_closed()
    assert server.node.vitals.counters["timeouts.handshake"] == 1
    await peer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_idle_connection_does_not_time_out(start: Start, dialect: str) -> None:
    server = await start(QUICK)
    waiting = Peer("tmq-1.01", "clock")
    peer = await Peer(dialect, "idle-one", "sub").open(port_of(server))
    await peer.subscribe("a")
    for _ in range(2):  # the time-out of another connection tells that the time has passed
        await waiting.connect(port_of(server))
        assert await waiting.is_closed()
        await waiting.close()
    publisher = await Peer("kobold-1", "sender").open(port_of(server))
    await publisher.send(Message(address="a", payload=b"still there?"))
    assert (await peer.receive()).payload == b"still there?"
    await close_all([peer, publisher])


async def test_a_client_that_is_made_to_wait_does_not_time_out(start: Start) -> None:
    server = await start(QUICK)
    peer = await Peer("kobold-3", "patient").open(port_of(server))
    await peer.send_bytes(b"\0\0\0\x0c")
    (connection,) = connections(server)
    await until(lambda: connection._rest is not None)
    connection.pause()
    connection.check(time.monotonic() + 1000, 0.5)
    assert connection._ended is None
    connection.resume()
    await peer.send_bytes(b"PING \r\n\xa0\r\n\r\n")
    await until(lambda: connection._rest is None)
    assert (await peer.receive()).op == Op.PONG
    await peer.close()


# Ends


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_that_sends_no_more_still_gets_its_answers(
    start: Start, dialect: str
) -> None:
    server = await start(LOCAL)
    peer = await Peer(dialect, "hasty", "sub").open(port_of(server))
    flags = Flag.RESPONSE if dialect.startswith("tmq") else Flag.ACK
    message = Message(op=Op.SUBSCRIBE, address="a", id="1", correlation_id="1", flags=flags)
    await peer.send(message, read_from=dialect)
    peer.send_eof()
    assert succeeded(await peer.receive())
    assert await peer.is_closed()
    await until(lambda: not server.node.sessions)
    await peer.close()


async def test_a_frame_torn_by_hanging_up_is_counted(start: Start) -> None:
    """decision 45"""
    server = await start(LOCAL)
    peer = await Peer("kobold-3", "torn").open(port_of(server))
    await peer.send_bytes(b"\0\0\0\x40PUB a")
    await peer.close()
    await until(lambda: not server.node.sessions)
    assert server.node.vitals.counters["torn_frames"] == 1


async def test_the_answer_to_bad_input_is_read_by_a_client_that_goes_on_sending(
    start: Start,
) -> None:
    server = await start(LOCAL)
    peer = await Peer("boson-text", "broken").open(port_of(server))
    await peer.send_bytes(b"5|!|" + bytes(1 << 20))
    answer = await peer.receive()
    assert (answer.op, answer.parameters.code) == (Op.ERROR, "bad_request")
    assert await peer.is_closed()
    await peer.close()


async def test_a_client_that_does_not_hang_up_is_cut_off_after_a_moment(start: Start) -> None:
    server = await start(LOCAL)
    peer = await Peer("boson-text", "deaf").open(port_of(server))
    await peer.send_bytes(b"?")
    await until(lambda: server.node.vitals.counters["protocol_errors"] == 1)
    await until(lambda: not connections(server))
    await peer.close()


async def test_stopping_says_goodbye_and_lets_everything_go_out(start: Start) -> None:
    server = await start(LOCAL)
    subscriber = await Peer("tmq-1.01", "receiver").open(port_of(server))
    publisher = await Peer("kobold-2", "sender").open(port_of(server))
    await subscriber.subscribe("a")
    payload = bytes(1 << 20)
    await publisher.send(
        *(Message(address="a", payload=payload) for _ in range(6)),
        Message(op=Op.PING, correlation_id="p"),
    )
    assert (await publisher.receive()).op == Op.PONG
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    got = [await subscriber.receive() for _ in range(6)]
    assert all(message.payload == payload for message in got)
    assert (await subscriber.receive()).op == Op.TERMINATE
    assert await subscriber.is_closed()
    await close_all([subscriber, publisher])
    await stopping
    with pytest.raises(ConnectionRefusedError):
        await Peer("tmq-1.01", "late").open(port_of(server))


async def test_stopping_does_not_wait_for_ever(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start(LOCAL)
    subscriber = await Peer("kobold-2", "receiver").open(port_of(server))
    await subscriber.subscribe("a")  # and reads no more
    publisher = await Peer("kobold-2", "sender").open(port_of(server))
    await publisher.send(
        Message(address="a", payload=bytes(7 << 20)), Message(op=Op.PING, correlation_id="p")
    )
    assert (await publisher.receive()).op == Op.PONG
    await close_all([publisher])
    with caplog.at_level(logging.WARNING):
        await server.stop(grace=0.2)
    assert "1 connections were cut off" in caplog.text
    await subscriber.close()


# Settings that are in force


async def test_limits_flow_and_time_outs_reach_the_node(start: Start) -> None:
    server = await start(
        Settings(
            listen=LOCAL.listen,
            limits=LimitSettings(message=2000, headers=300, sequence=4000),
            flow=FlowSettings(outbox=70_000, patience=1, window=3, policies={"a/#": "drop"}),
            request_timeout=7,
        )
    )
    node = server.node
    assert (node.limits.message, node.limits.headers, node.limits.sequence) == (2000, 300, 4000)
    assert (node.flow.outbox, node.flow.patience, node.flow.window) == (70_000, 1, 3)
    assert (node.flow.policy_of("a/b"), node.flow.policy_of("b")) == ("drop", "disconnect")
    assert node.services.timeout == 7


@pytest.mark.parametrize(("oversize", "sizes"), [("drop", [3]), ("split", [1000, 500, 3])])
async def test_mfp_gets_long_messages_in_parts_if_so_configured(
    start: Start, oversize: str, sizes: list[int]
) -> None:
    mfp = msgspec.convert({"oversize": oversize}, MfpSettings)
    server = await start(msgspec.structs.replace(LOCAL, mfp=mfp))
    subscriber = await Peer("mfp-1", "receiver", "sub").open(port_of(server))
    publisher = await Peer("kobold-1", "sender").open(port_of(server))
    await subscriber.subscribe("a")
    await publisher.send(Message(address="a", payload=b"x" * 1500), Message("a", b"end"))
    assert [len((await subscriber.receive()).payload) for _ in sizes] == sizes
    await close_all([subscriber, publisher])


async def test_a_policy_for_what_is_no_filter_is_refused() -> None:
    flow = FlowSettings(policies={"a/#/b": "drop"})
    with pytest.raises(ConfigError, match=r"flow\.policies: 'a/#/b': "):
        Server.configured(msgspec.structs.replace(LOCAL, flow=flow))


async def test_new_settings_are_in_force_for_those_who_are_there(start: Start) -> None:
    server = await start(LOCAL)
    publisher = await Peer("kobold-1", "sender").open(port_of(server))
    await publisher.send(Message(address="a"), Message(op=Op.PING, correlation_id="p"))
    assert (await publisher.receive()).op == Op.PONG  # the route to `a` is known
    flow = FlowSettings(policies={"a": "pause"})
    server.configure(msgspec.structs.replace(LOCAL, flow=flow))
    subscriber = await Peer("kobold-1", "receiver").open(port_of(server))
    await publisher.send(Message(address="a"), Message(op=Op.PING, correlation_id="p"))
    assert (await publisher.receive()).op == Op.PONG
    assert server.node.flow.policy_of("a") == "pause"
    current = server.node.clients.current_rights
    assert all(current(session.rights) is session.rights for session in server.node.sessions)
    await close_all([publisher, subscriber])


async def test_settings_that_would_let_strangers_in_are_refused_while_running() -> None:
    server = Server.configured(Settings(listen=("auto://0.0.0.0:0",), insecure=True))
    with pytest.raises(ConfigError, match="no tokens are configured"):
        server.configure(LOCAL)
    assert server.listeners == [Listener("auto", "0.0.0.0", 0)]


async def test_bytes_in_and_out_are_counted(start: Start) -> None:
    server = await start(LOCAL)
    peer = await Peer("boson-text", "counted").open(port_of(server))
    await peer.send_bytes(b"0|0|$ping|")
    assert (await peer.receive()).op == Op.PONG
    assert server.node.vitals.counters["bytes_in"] == len(b"0|0|$ping|")
    assert server.node.vitals.counters["bytes_out"] == len(b"0|0|$pong|")
    await peer.close()


def _dial(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.listeners[0].port))


def test_a_flood_gives_way_to_others_after_a_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the broker, uvloop's, would read on from one socket while there is more."""
    turns = [0]
    full_reads: Counter[int] = Counter()  # of each turn of the loop

    def count(connection: Connection, nbytes: int) -> None:
        full_reads[turns[0]] += nbytes > READ // 2
        update(connection, nbytes)

    def turn(loop: asyncio.AbstractEventLoop) -> None:
        turns[0] += 1
        loop.call_soon(turn, loop)

    update = Connection.buffer_updated
    monkeypatch.setattr(Connection, "buffer_updated", count)
    block = b"1000|0|flood|" + bytes(1000)
    with Broker() as broker, _dial(broker) as flood:
        assert broker._loop is not None
        broker._loop.call(lambda: turn(asyncio.get_running_loop()))
        for _ in range(64):
            flood.sendall(block * 1000)
        with wirelake.connect_sync(broker.url("kobold-3")) as client:
            client.publish("other", b"heard", ack=True)
    assert sum(full_reads.values()) > FULL_READS
    assert max(full_reads.values()) <= FULL_READS
