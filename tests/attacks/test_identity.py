"""Strangers that want to be somebody else, or to read what was not sent to them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.attacks.broker import Broker, Client, eventually, frames, secret_of, token
from wirelake.message import Flag, Message, Op, Parameters

OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
EVERYTHING = {one: ["#"] for one in ("publish", "subscribe", "serve", "store", "declare")}
CONFIG = (
    token("alice", **EVERYTHING)
    + token("mallory", publish=["#"], subscribe=["#"])
    + token("root", admin=True, **EVERYTHING)
)
ALICE, MALLORY = secret_of("alice"), secret_of("mallory")


@pytest.mark.parametrize("dialect", OPS)
def test_a_stranger_neither_ends_a_client_nor_gets_its_messages(
    tmp_path: Path, dialect: str
) -> None:
    with (
        Broker(tmp_path, CONFIG) as broker,
        Client(broker) as owner,
        Client(broker, dialect) as thief,
        Client(broker) as sender,
    ):
        assert owner.login("dev-1", ALICE).op == Op.OK
        refused = thief.ask(Message(op=Op.PING, parameters=Parameters(client="dev-1")))
        assert (refused.op, refused.parameters.code) == (Op.ERROR, "unauthorized")
        sender.login("sender", ALICE)
        assert sender.ask(Message(target="dev-1", payload=b"for dev-1")).op == Op.OK
        assert owner.receive().payload == b"for dev-1"
        # The owner comes back, with its token and at once.
        with Client(broker, dialect) as again:
            assert again.login("dev-1", ALICE).op == Op.OK
            assert owner.is_closed()
        (event,) = broker.events("takeover", secret_of("root"))
        assert "dev-1" in event["text"]


@pytest.mark.parametrize("dialect", OPS)
def test_a_token_ends_at_the_session_that_checked_it(tmp_path: Path, dialect: str) -> None:
    said = Parameters(token=ALICE)
    with (
        Broker(tmp_path, CONFIG) as broker,
        Client(broker) as other,
        Client(broker, dialect) as alice,
    ):
        other.login("other", ALICE)
        other.ask(Message(op=Op.SERVE, address="svc"))
        other.ask(Message(op=Op.SUBSCRIBE, address="topic"))
        messages = {
            "request": Message(op=Op.REQUEST, address="svc", correlation_id="1"),
            "direct": Message(address="unused", target="other"),
            "publish": Message(address="topic"),
            "enqueue": Message(op=Op.ENQUEUE, address="jobs", id="7"),
            "create": Message(op=Op.CREATE, address="key", correlation_id="2"),
        }
        for name, message in messages.items():
            alice.send(
                Message(
                    address=message.address,
                    op=message.op,
                    id=message.id,
                    target=message.target,
                    correlation_id=message.correlation_id,
                    payload=name.encode(),
                    parameters=said,
                )
            )
        other.send(Message(op=Op.DEQUEUE, address="jobs", parameters=Parameters(wait=60.0)))
        seen: dict[bytes, Message] = {}
        while len(seen) < 4:
            message = other.receive()
            seen[message.payload] = message
        assert seen.keys() == {b"request", b"direct", b"publish", b"enqueue"}
        for message in seen.values():
            assert (message.parameters.token, message.parameters.client) == ("", ""), message
            assert ALICE not in str(message)
        status, rows = broker.http("/v1/log", secret=secret_of("root"))
        assert status == 200
        assert ALICE.encode() not in rows
        assert ALICE not in broker.log()
        broker.stop()
        assert files_with(broker.data, ALICE.encode()) == []


def files_with(folder: Path, needle: bytes) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found, "there is something to look at"
    return [path for path in found if needle in path.read_bytes()]


def test_nobody_else_reads_the_data_whatever_the_umask(tmp_path: Path) -> None:
    shell = ["sh", "-c", 'umask 000; exec "$@"', "sh"]
    with Broker(tmp_path, prefix=shell) as broker, Client(broker) as client:
        assert client.ask(Message(op=Op.ENQUEUE, address="jobs", payload=b"x")).op == Op.OK
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in broker.data.rglob("*")}
        assert stat.S_IMODE(broker.data.stat().st_mode) == 0o700
        assert len(modes) > 2
        for path, mode in modes.items():
            assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("dialect", OPS)
def test_a_source_is_what_the_broker_knows(tmp_path: Path, dialect: str) -> None:
    with (
        Broker(tmp_path, CONFIG) as broker,
        Client(broker, dialect) as listener,
        Client(broker, dialect) as mallory,
        Client(broker, dialect) as nameless,
    ):
        listener.login("listener", ALICE)
        listener.ask(Message(op=Op.SUBSCRIBE, address="topic"))
        mallory.login("mal", MALLORY)
        nameless.login("", MALLORY)
        claimed = Message(address="topic", source="alice")
        mallory.send_bytes(frames(dialect, claimed, Message(address="topic", source="mal")))
        assert [listener.receive().source for _ in range(2)] == ["mal", "mal"]
        nameless.send(claimed)
        assert listener.receive().source == ""
        eventually(lambda: len(sources(broker)) == 3)
        assert sources(broker) == ["", "mal", "mal"]


def sources(broker: Broker) -> list[str]:
    """The sources of all rows of the log."""
    import pyarrow as pa

    found = []
    for partition in range(4):
        _, body = broker.http(f"/v1/log/{partition}", secret=secret_of("root"))
        with pa.ipc.open_stream(body) as reader:
            found += reader.read_all().column("source").cast(pa.string()).to_pylist()
    return sorted(found)


def test_a_redirect_of_tmq_names_its_sender(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, CONFIG) as broker,
        Client(broker) as bob,
        Client(broker, "tmq-1.01") as mallory,
    ):
        bob.login("bob", ALICE)
        mallory.send(Message(op=Op.HANDSHAKE))
        hello = f"Client-Id: mal\r\nClient-Token: {MALLORY}\r\n"
        mallory.send(Message(op=Op.HELLO, payload=hello.encode()))
        inner = Message(op=Op.DIRECT, target="bob", source="alice", payload=b"pay mallory", id="5")
        mallory.send(
            Message(op=Op.REDIRECT, target="bob", payload=frames("tmq-1.01", inner)),
        )
        message = bob.receive()
        assert (message.payload, message.source) == (b"pay mallory", "mal")


def test_nobody_makes_the_message_of_another_a_duplicate(tmp_path: Path) -> None:
    with Broker(tmp_path, CONFIG) as broker, Client(broker) as alice, Client(broker) as mallory:
        alice.login("alice-prod", ALICE)
        mallory.login("alice-2", MALLORY)
        assert alice.ask(Message(op=Op.ENQUEUE, address="orders", payload=b"first")).op == Op.OK
        forged = {"Wirelake-Client": "alice-prod", "Wirelake-Id": "1"}
        status, body = broker.http(
            "/v1/publish/orders", method="POST", body=b"evil", secret=MALLORY, headers=forged
        )
        assert (status, b"in use" in body) == (409, True), body
        # The same name under another token is another producer.
        evil = Message(
            op=Op.ENQUEUE, address="orders", payload=b"evil", id="1", source="alice-prod"
        )
        assert mallory.ask(evil).op == Op.OK
        real = Message(op=Op.ENQUEUE, address="orders", payload=b"real", id="1", flags=Flag.ACK)
        assert alice.ask(real).op == Op.OK
        assert broker.json("/v1/queues/orders", secret=ALICE)["messages"] == 3
