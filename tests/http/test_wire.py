"""WebSocket as a transport: every dialect at `/wire/<dialect or family>`, and who may open one."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

import wirelake
from wirelake.dialects import DIALECTS
from wirelake.errors import WirelakeError
from wirelake.testing import Broker

OTHER = "https://example.org"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True, http_origins=(OTHER,)) as opened:
        yield opened


def place(broker: Broker) -> str:
    return urlsplit(broker.http_url).netloc


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_of_every_dialect_connects_over_a_websocket(
    broker: Broker, dialect: str
) -> None:
    url = f"ws://{place(broker)}/wire/{dialect}"
    async with (
        wirelake.connect(url) as client,
        wirelake.connect(broker.url("kobold-3")) as other,
        client.subscribe(f"{dialect}/in") as arriving,
        other.subscribe(f"{dialect}/out") as leaving,
    ):
        await client.publish(f"{dialect}/out", b"x" * 900)
        assert (await anext(leaving)).payload == b"x" * 900
        for k in range(100):
            await other.publish(f"{dialect}/in", b"%d" % k)
        assert [(await anext(arriving)).payload for _ in range(100)] == [
            b"%d" % k for k in range(100)
        ]


@pytest.mark.parametrize("family", ["mqtt", "mqtt-5", "auto"])
def test_a_browsers_client_of_mqtt_finds_its_sub_protocol(broker: Broker, family: str) -> None:
    with connect(
        f"ws://{place(broker)}/wire/{family}", subprotocols=[Subprotocol("mqtt")]
    ) as socket:
        assert socket.subprotocol == (None if family == "auto" else "mqtt")
        packet = bytes.fromhex("100f00044d515454040200000003626f62")
        for octet in packet:  # where messages begin and end says nothing
            socket.send(bytes([octet]))
        assert socket.recv(timeout=60) == bytes.fromhex("20020000")


def test_a_dialect_that_there_is_not_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{place(broker)}/wire/gopher")
    assert refused.value.response.status_code == 403


async def test_our_client_says_that_it_cannot_connect(broker: Broker) -> None:
    with pytest.raises(WirelakeError):
        await wirelake.connect(f"ws://{place(broker)}/nowhere/mqtt").__aenter__()


def test_only_pages_of_our_own_and_of_allowed_origins_may_open_one(broker: Broker) -> None:
    # decision 87
    url = f"ws://{place(broker)}/wire/mqtt"
    for origin in (OTHER, f"http://{place(broker)}"):
        with connect(url, origin=Origin(origin)):
            pass
    with pytest.raises(InvalidStatus) as refused:
        connect(url, origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403


def test_text_is_refused(broker: Broker) -> None:
    with connect(f"ws://{place(broker)}/wire/boson") as socket:
        socket.send("5|0|greet|hello")
        with pytest.raises(Exception, match="1003"):
            socket.recv(timeout=60)
