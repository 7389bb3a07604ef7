"""Every dialect to every dialect, through the `auto` listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.conftest import Certificates
from tests.dialects.described import METER, dialect
from tests.net.peer import Peer, close_all
from wirelake.config import Settings
from wirelake.dialects import DIALECTS
from wirelake.message import Message
from wirelake.net.server import Server

PAYLOADS = [bytes(range(256))[:n] * k for n, k in [(0, 1), (1, 1), (7, 3), (256, 1), (200, 5)]]


@pytest.fixture(params=["auto", "auto+tls"])
async def connect(
    request: pytest.FixtureRequest, certificates: Certificates
) -> AsyncIterator[Callable[[Peer], Awaitable[Peer]]]:
    """Opens a peer's connection to a broker on a free port, in the clear and over TLS."""
    settings = Settings(listen=(f"{request.param}://127.0.0.1:0",), tls=certificates.tls)
    with DIALECTS.also(dialect(METER)):
        server = Server.configured(settings)
        (listener,) = await server.start()
        tls = certificates.client() if listener.tls else None
        yield lambda peer: peer.open(listener.port, tls=tls)
        await server.stop()


#: All of ours, and one that a file describes.
SPOKEN = [*DIALECTS, "meter-1"]


@pytest.mark.parametrize("target", SPOKEN)
@pytest.mark.parametrize("source", SPOKEN)
async def test_bytes_and_order_are_exact_from_every_dialect_to_every_dialect(
    connect: Callable[[Peer], Awaitable[Peer]], source: str, target: str
) -> None:
    subscriber = await connect(Peer(target, "receiver", "sub"))
    publisher = await connect(Peer(source, "sender"))
    await subscriber.subscribe("house/+/temp")
    sent = [Message(address=f"house/{k % 3}/temp", payload=p) for k, p in enumerate(PAYLOADS * 4)]
    await publisher.send(*sent)
    got: list[Message] = []
    while len(got) < len(sent):
        message = await subscriber.receive()
        got.append(message)
    assert [m.payload for m in got] == [m.payload for m in sent]
    if target != "mfp-1":
        assert [m.address for m in got] == [m.address for m in sent]
    await close_all([subscriber, publisher])
