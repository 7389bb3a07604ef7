"""Peers that take all connections, all open files, or the data directory: health still answers."""

from __future__ import annotations

import json
import resource
import shutil
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.attacks.broker import LOOPBACK, Broker, Client, eventually
from wirelake.journal.files import WATCH
from wirelake.message import Message, Op

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def limited(files: int) -> partial[None]:
    """Let a process have so many open files."""
    return partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))


def answer(sock: socket.socket) -> bytes:
    """What comes next, empty where the broker hung up."""
    try:
        return sock.recv(4096)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: lo", HEALTH])
def test_idle_connections_of_http_do_not_keep_others_out(tmp_path: Path, begun: bytes) -> None:
    with Broker(tmp_path, "http_connections = 50\n") as broker, ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(broker.http_socket())
            sock.sendall(begun)
            if begun == HEALTH:
                assert answer(sock).startswith(b"HTTP/1.1 200")  # and is kept alive
        assert broker.http("/healthz")[0] == 200
        assert broker.http("/v1/queues")[0] == 200
        held = len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))
        assert held < 120


def test_a_connection_in_use_is_not_closed_for_idle_ones(tmp_path: Path) -> None:
    with Broker(tmp_path, "http_connections = 8\n") as broker, ExitStack() as stack:
        events = stack.enter_context(broker.http_socket())
        events.sendall(b"GET /v1/events?filter=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(events).startswith(b"HTTP/1.1 200")
        for _ in range(100):
            stack.enter_context(broker.http_socket())
        assert broker.http("/v1/publish/a", method="POST", body=b"hello")[0] == 202
        received = b""
        while b"hello" not in received:
            received += events.recv(4096)


def test_while_all_connections_are_busy_health_answers_and_others_are_told(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path, "http_connections = 16\n") as broker, ExitStack() as stack:
        opened = 0
        while True:
            sock = stack.enter_context(broker.http_socket())
            sock.sendall(b"GET /v1/events?filter=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = answer(sock)
            if got.startswith(b"HTTP/1.1 503"):
                break
            assert got.startswith(b"HTTP/1.1 200")
            opened += 1
            assert opened <= 16
        assert broker.http("/healthz")[0] == 200
        status, body = broker.http("/v1/queues")
        assert (status, json.loads(body)["error"]) == (503, "busy")
        assert b"http_connections" in body
    assert opened >= 8


def test_running_out_of_open_files_is_an_event_and_health_answers(tmp_path: Path) -> None:
    with Broker(tmp_path, preexec=limited(256)) as broker, ExitStack() as stack:
        with Client(broker) as client:
            put = Message(op=Op.CREATE, address="k", payload=b"before")
            assert client.ask(put).op == Op.OK
        connections = []
        for _ in range(400):
            connections.append(
                stack.enter_context(socket.create_connection((LOOPBACK, broker.port)))
            )
        for _ in range(200):
            stack.enter_context(broker.http_socket())
        eventually(lambda: "descriptors: the system" in broker.log())
        assert "limit of open files (ulimit -n) is 256" in broker.log()
        assert broker.http("/healthz")[0] == 200
        assert broker.http("/v1/store/k", method="PUT", body=b"after")[0] == 200
        assert "Too many open files" not in broker.log()
        connections[0].close()  # one that was let in
        for one in connections[1:]:
            one.close()

        def works() -> bool:
            try:
                with Client(broker) as client:
                    return client.ask(Message(op=Op.READ, address="k")).payload == b"after"
            except ConnectionError:
                return False

        eventually(works)
        assert broker.events("descriptors")
        assert broker.counters()["refused_connections"] > 0


def test_no_open_file_left_at_all_is_told(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        _, most = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (3, most))
        eventually(lambda: "no file can be opened any more" in broker.log())
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (most, most))
        assert broker.http("/healthz")[0] == 200


def delete(broker: Broker) -> None:
    """Delete the whole data directory."""
    shutil.rmtree(broker.data)


def replace(broker: Broker) -> None:
    """Put another directory where the data was."""
    broker.data.rename(broker.data.with_name("away"))
    shutil.copytree(broker.data.with_name("away"), broker.data)


def delete_files(broker: Broker) -> None:
    """Delete the files of the journal, and leave their folder."""
    for file in (broker.data / "journal").iterdir():
        file.unlink()


@pytest.mark.parametrize("harm", [delete, replace, delete_files])
def test_a_data_directory_that_is_gone_is_trouble_within_a_second(
    tmp_path: Path, harm: object
) -> None:
    with Broker(tmp_path) as broker, Client(broker) as client:
        assert client.ask(Message(op=Op.CREATE, address="k", payload=b"1")).op == Op.OK
        assert callable(harm)
        assert WATCH < 1
        harm(broker)
        body = eventually(lambda: got[1] if (got := broker.http("/healthz"))[0] == 503 else b"")
        assert json.loads(body)["state"] == "trouble"
        assert "while it was used" in json.loads(body)["text"]
        refused = client.ask(Message(op=Op.CREATE, address="other", payload=b"2"))
        assert refused.parameters.code == "busy"
        assert client.ask(Message(op=Op.READ, address="k")).payload == b"1"
        assert eventually(lambda: broker.events("trouble"))


def test_a_data_directory_that_comes_back_ends_the_trouble(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker) as client:
        away = broker.data.with_name("away")
        broker.data.rename(away)
        eventually(lambda: broker.http("/healthz")[0] == 503)
        away.rename(broker.data)
        eventually(lambda: broker.http("/healthz")[0] == 200)
        assert client.ask(Message(op=Op.CREATE, address="k", payload=b"1")).op == Op.OK
        assert eventually(lambda: broker.events("recovered"))
