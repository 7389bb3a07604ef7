"""Who may come in and what they may do: tokens, rights, TLS and client certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from tests.conftest import Certificates
from tests.net.peer import Peer, close_all, succeeded
from wirelake.config import Settings, TlsSettings, TokenSettings, hash_token, new_token
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError
from wirelake.message import Flag, Message, Op
from wirelake.net.access import Access
from wirelake.net.server import Server

SECRET, OTHER = new_token(), new_token()
ALICE = TokenSettings(
    name="alice",
    hash=hash_token(SECRET),
    publish=("pub/#",),
    subscribe=("sub/+",),
    serve=("service",),
)
BOB = TokenSettings(name="bob", hash=hash_token(OTHER), publish=("#",), subscribe=("#",))
SETTINGS = Settings(listen=("auto://127.0.0.1:0",), tokens=(ALICE, BOB))

WITH_SERVICES = [d for d in DIALECTS if d.startswith(("kobold", "boson"))]

Start = Callable[[Settings], Awaitable[tuple[Server, int]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts brokers, each with its port, that are stopped after the test."""
    started = []

    async def start(settings: Settings) -> tuple[Server, int]:
        server = Server.configured(settings)
        (listener, *_) = await server.start()
        started.append(server)
        return server, listener.port

    yield start
    for server in started:
        await server.stop()


async def ask(peer: Peer, message: Message) -> Message:
    """Send something that wants an answer, and read that."""
    wanted = Flag.ACK
    if peer.dialect.startswith("tmq") and message.op != Op.PUBLISH:
        wanted = Flag.RESPONSE
    asked = Message(
        op=message.op, address=message.address, id="q", correlation_id="q", flags=wanted
    )
    await peer.send(asked, read_from=peer.dialect)
    return await peer.receive()


def is_unauthorized(answer: Message) -> bool:
    """Does an answer say so, as far as the dialect can?"""
    if answer.dialect == "mfp-1":
        return answer.op == Op.ERROR
    if answer.dialect.startswith("mqtt"):
        return answer.payload == (b"\x87" if answer.dialect == "mqtt-5" else b"\x80")
    return answer.parameters.code == "unauthorized" or answer.content_type == 401


# Tokens in every dialect


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_token_gives_its_rights_and_no_more(start: Start, dialect: str) -> None:
    server, port = await start(SETTINGS)
    subscriber = await Peer(dialect, "receiver", "sub", SECRET).open(port)
    assert succeeded(await ask(subscriber, Message(op=Op.SUBSCRIBE, address="sub/1")))
    for beyond in ("sub/1/2", "pub/1", "sub/#", "#"):
        assert is_unauthorized(await ask(subscriber, Message(op=Op.SUBSCRIBE, address=beyond)))
    assert server.node.vitals.counters["refused.unauthorized"] == 4
    await subscriber.close()


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-1", "kobold-2", "kobold-3"])
async def test_publishing_without_the_right_is_refused_and_counted(
    start: Start, dialect: str
) -> None:
    server, port = await start(SETTINGS)
    subscriber = await Peer(dialect, "receiver", "sub", OTHER).open(port)
    await subscriber.subscribe("#")
    publisher = await Peer(dialect, "sender", "pub", SECRET).open(port)
    assert is_unauthorized(await ask(publisher, Message(address="secret")))
    await publisher.send(Message(address="secret"), Message(address="pub/1", payload=b"may"))
    assert (await subscriber.receive()).payload == b"may"
    assert server.node.vitals.counters["refused.unauthorized"] == 2
    await close_all([subscriber, publisher])


@pytest.mark.parametrize("dialect", ["boson-text", "mfp-1", "tmq-1.00", "tmq-1.01"])
async def test_dialects_without_answers_to_publishing_have_it_counted(
    start: Start, dialect: str
) -> None:
    server, port = await start(SETTINGS)
    subscriber = await Peer("kobold-3", "receiver", "sub", OTHER).open(port)
    await subscriber.subscribe("#")
    publisher = await Peer(dialect, "sender", "pub", SECRET).open(port)
    await publisher.send(Message(address="secret"), Message(address="pub/1", payload=b"may"))
    assert (await subscriber.receive()).payload == b"may"
    assert server.node.vitals.counters["refused.unauthorized"] >= 1
    await close_all([subscriber, publisher])


@pytest.mark.parametrize("dialect", WITH_SERVICES)
async def test_serving_takes_a_right(start: Start, dialect: str) -> None:
    server, port = await start(SETTINGS)
    peer = await Peer(dialect, "servant", "pub", SECRET).open(port)
    assert succeeded(await ask(peer, Message(op=Op.SERVE, address="service")))
    assert is_unauthorized(await ask(peer, Message(op=Op.SERVE, address="service/2")))
    assert server.node.vitals.counters["refused.unauthorized"] == 1
    await peer.close()


# An mfp client always claims an id, so that without a token it does not come in at all. A client of
# MQTT that may do nothing is told so when it connects.
@pytest.mark.parametrize("dialect", [d for d in DIALECTS if not d.startswith(("mfp", "mqtt"))])
async def test_without_a_token_nothing_is_allowed(start: Start, dialect: str) -> None:
    _, port = await start(SETTINGS)
    peer = await Peer(dialect, "", "sub").open(port)
    assert is_unauthorized(await ask(peer, Message(op=Op.SUBSCRIBE, address="sub/1")))
    await peer.close()


@pytest.mark.parametrize("dialect", [one for one in DIALECTS if one != "boson-text"])
async def test_without_a_token_no_client_id_can_be_claimed(start: Start, dialect: str) -> None:
    server, port = await start(SETTINGS)
    with pytest.raises(RefusedError, match=r"unauthorized|401|0"):
        await Peer(dialect, "somebody", "sub").open(port)
    assert "somebody" not in server.node.clients


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_token_that_is_not_known_is_refused_and_never_logged(
    start: Start, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = new_token()
    with caplog.at_level(logging.DEBUG):
        server, port = await start(SETTINGS)
        with pytest.raises(RefusedError, match=r"unauthorized|401|0"):
            await Peer(dialect, "stranger", "sub", wrong).open(port)
        await (await Peer(dialect, "receiver", "sub", SECRET).open(port)).close()
    assert server.node.vitals.counters["refused.unauthorized"] == 1
    assert wrong not in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_where_no_tokens_are_configured_any_will_do(start: Start, dialect: str) -> None:
    _, port = await start(Settings(listen=SETTINGS.listen))
    peer = await Peer(dialect, "somebody", "sub", SECRET).open(port)
    await peer.subscribe("#")
    await peer.close()


def test_tokens_are_found_among_many() -> None:
    secrets = [new_token() for _ in range(50)]
    tokens = [
        TokenSettings(name=f"t{k}", hash=hash_token(secret)) for k, secret in enumerate(secrets)
    ]
    access = Access(tokens)
    found = [access.of_token(secret) for secret in secrets]
    assert [rights and rights.name for rights in found] == [token.name for token in tokens]
    assert access.of_token("") is access.of_token("t\N{SNOWMAN}") is None
    assert len({id(rights) for rights in found}) == 50


def test_rights_for_what_is_no_filter_are_refused() -> None:
    token = TokenSettings(name="eve", hash=hash_token("x"), subscribe=("a/#/b",))
    with pytest.raises(ConfigError, match=r"tokens\.eve\.subscribe: 'a/#/b': "):
        Access([token])


# Other settings while running


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_whose_token_is_withdrawn_is_disconnected(
    start: Start, dialect: str
) -> None:
    server, port = await start(SETTINGS)
    peers = [
        await Peer(dialect, name, "sub", token).open(port)
        for name, token in [("alice", SECRET), ("bobby", OTHER)]
    ]
    for peer in peers:
        await peer.subscribe("sub/1")
    server.configure(msgspec.structs.replace(SETTINGS, tokens=(BOB,)))
    assert await peers[0].is_closed()
    publisher = await Peer("kobold-3", "sender", "pub", OTHER).open(port)
    await publisher.send(Message(address="sub/1", payload=b"hello"))
    assert (await peers[1].receive()).payload == b"hello"
    await close_all([*peers, publisher])


async def test_a_client_that_may_do_more_stays_and_one_that_may_do_less_goes(start: Start) -> None:
    server, port = await start(SETTINGS)
    peer = await Peer("kobold-3", "alice", "pub", SECRET).open(port)
    more = msgspec.structs.replace(ALICE, publish=("pub/#", "more"))
    server.configure(msgspec.structs.replace(SETTINGS, tokens=(more,)))
    assert succeeded(await ask(peer, Message(address="more")))
    server.configure(SETTINGS)
    assert await peer.is_closed()
    await peer.close()


async def test_strangers_are_disconnected_when_tokens_come(start: Start) -> None:
    server, port = await start(Settings(listen=SETTINGS.listen))
    peer = await Peer("kobold-3", "stranger").open(port)
    server.configure(SETTINGS)
    assert await peer.is_closed()
    await peer.close()


async def test_wrong_settings_change_nothing(start: Start) -> None:
    server, port = await start(SETTINGS)
    wrong = msgspec.structs.replace(ALICE, publish=("#/#",))
    with pytest.raises(ConfigError):
        server.configure(msgspec.structs.replace(SETTINGS, tokens=(wrong,), handshake_timeout=0.01))
    peer = await Peer("kobold-3", "alice", "pub", SECRET).open(port)
    assert succeeded(await ask(peer, Message(address="pub/1")))
    await peer.close()


# TLS


def over_tls(tls: TlsSettings | None) -> Settings:
    """The settings with a listener that has TLS."""
    return msgspec.structs.replace(SETTINGS, listen=("auto+tls://127.0.0.1:0",), tls=tls)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("required", [True, False])
async def test_a_certificate_gives_the_rights_of_the_token_of_its_name(
    start: Start, certificates: Certificates, dialect: str, required: bool
) -> None:
    _, port = await start(over_tls(certificates.tls_for_clients(required=required)))
    peer = await Peer(dialect, "alice", "sub").open(port, tls=certificates.client("alice"))
    assert succeeded(await ask(peer, Message(op=Op.SUBSCRIBE, address="sub/1")))
    assert is_unauthorized(await ask(peer, Message(op=Op.SUBSCRIBE, address="pub/1")))
    await peer.close()


async def test_a_certificate_of_an_unknown_name_gives_none(
    start: Start, certificates: Certificates
) -> None:
    _, port = await start(over_tls(certificates.tls_for_clients(required=True)))
    peer = await Peer("kobold-1", "").open(port, tls=certificates.client("mallory"))
    assert is_unauthorized(await ask(peer, Message(op=Op.SUBSCRIBE, address="sub/1")))
    await peer.close()


async def test_where_a_certificate_is_required_nobody_comes_in_without(
    start: Start, certificates: Certificates
) -> None:
    server, port = await start(over_tls(certificates.tls_for_clients(required=True)))
    peer = Peer("kobold-1", "alice", token=SECRET)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await peer.open(port, tls=certificates.client())
    assert not server.node.sessions
    await peer.close()


async def test_where_it_is_not_a_token_does_too(start: Start, certificates: Certificates) -> None:
    _, port = await start(over_tls(certificates.tls_for_clients(required=False)))
    peer = await Peer("kobold-1", "alice", token=SECRET).open(port, tls=certificates.client())
    assert succeeded(await ask(peer, Message(op=Op.SUBSCRIBE, address="sub/1")))
    await peer.close()


async def test_a_certificate_can_take_over_its_client_id(
    start: Start, certificates: Certificates
) -> None:
    _, port = await start(over_tls(certificates.tls_for_clients(required=True)))
    tls = certificates.client("alice")
    first = await Peer("kobold-1", "one-client").open(port, tls=tls)
    second = await Peer("kobold-1", "one-client").open(port, tls=tls)
    assert await first.is_closed()
    await close_all([first, second])


async def test_withdrawing_the_entry_disconnects_its_certificate(
    start: Start, certificates: Certificates
) -> None:
    settings = over_tls(certificates.tls_for_clients(required=True))
    server, port = await start(settings)
    peer = await Peer("kobold-1", "alice").open(port, tls=certificates.client("alice"))
    server.configure(msgspec.structs.replace(settings, tokens=(BOB,)))
    assert await peer.is_closed()
    await peer.close()


async def test_a_renewed_certificate_is_seen_by_new_connections(
    start: Start, certificates: Certificates
) -> None:
    certificates.make("renewed", "renewed")
    settings = over_tls(certificates.tls)
    server, port = await start(settings)
    folder = certificates.folder
    renewed = TlsSettings(cert=str(folder / "renewed.pem"), key=str(folder / "renewed.key"))
    server.configure(msgspec.structs.replace(settings, tls=renewed))
    peer = await Peer("kobold-1", "alice", token=SECRET).open(port, tls=certificates.client())
    shown = peer._writer.get_extra_info("peercert")
    assert shown["subject"] == ((("commonName", "renewed"),),)
    await peer.close()


async def test_a_client_that_does_not_speak_tls_times_out(
    start: Start, certificates: Certificates
) -> None:
    settings = msgspec.structs.replace(over_tls(certificates.tls), handshake_timeout=0.1)
    _, port = await start(settings)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer("kobold-1", "silent")
    await peer.connect(port)
    assert await peer.is_closed()
    await peer.close()
    writer.close()


def test_certificates_that_cannot_be_used_are_named(certificates: Certificates) -> None:
    folder = certificates.folder
    good = certificates.tls
    for tls, reason in [
        (None, "tls: a \\+tls listener needs"),
        (TlsSettings(cert=str(folder / "none"), key=good.key), "tls.cert: .*no such file"),
        (TlsSettings(cert=good.cert, key=str(folder / "ca.key")), "tls.cert: .*mismatch"),
        (TlsSettings(cert=good.key, key=good.key), "tls.cert: .*not in PEM format"),
        (
            TlsSettings(cert=good.cert, key=good.key, client_ca=str(folder / "none")),
            "tls.client_ca: .*no such file",
        ),
    ]:
        with pytest.raises(ConfigError, match="(?i)" + reason):
            Server.configured(over_tls(tls))
