"""Clients that others wrote, as bytes, against a broker that runs.

Frames follow the specification's vectors and layouts, TMQ's also the published .NET client. Every
answer is compared as bytes: nothing passes through our own scanners and encoders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal
from urllib.parse import urlsplit

import pytest

from wirelake.config import TokenSettings, hash_token
from wirelake.testing import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker on free ports."""
    async with Broker() as running:
        yield running


class Stranger:
    """A connection that sends and expects bytes."""

    def __init__(self, broker: Broker, family: str) -> None:
        self._port = urlsplit(broker.url(family)).port

    async def open(self) -> Stranger:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def say(self, *frames: bytes | str) -> None:
        """Send frames in one write; text is hexadecimal."""
        self._writer.write(b"".join(_bytes(frame) for frame in frames))
        await self._writer.drain()

    async def hears(self, *frames: bytes | str) -> None:
        """Assert that these bytes come next."""
        expected = b"".join(_bytes(frame) for frame in frames)
        async with asyncio.timeout(60):
            got = await self._reader.readexactly(len(expected))
        assert got == expected, (got, expected)

    async def is_hung_up_on(self) -> bool:
        """Is the end of the connection what comes next?"""
        async with asyncio.timeout(60):
            return not await self._reader.read(1)

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()


def _bytes(frame: bytes | str) -> bytes:
    return bytes.fromhex(frame) if isinstance(frame, str) else frame


# Kobold protocol 2, as the specification's vector of the Go client has it: six keys in this order,
# and a content that was never set is null.

_ID, _TYPE, _TOPIC = b"\x62id", b"\x6cmessage_type", b"\x65topic"
_TX, _CONTENT, _TIME = b"\x6etransaction_id", b"\x67content", b"\x69timestamp"


def go(message_id: bytes, code: str, topic: bytes, tx: bytes, content: bytes | None) -> bytes:
    """A message of the Go client; texts are shorter than 24 bytes."""
    fields = (
        (_ID, bytes([0x60 + len(message_id)]) + message_id),
        (_TYPE, bytes.fromhex(code)),
        (_TOPIC, bytes([0x60 + len(topic)]) + topic),
        (_TX, bytes([0x60 + len(tx)]) + tx),
        (_CONTENT, b"\xf6" if content is None else bytes([0x40 + len(content)]) + content),
        (_TIME, b"\0"),
    )
    body = b"\xa6" + b"".join(key + value for key, value in fields)
    return len(body).to_bytes(4, "big") + body


async def test_the_go_client_subscribes_serves_and_consumes(broker: Broker) -> None:
    """spec: kobold 5: each of these carries a null content."""
    subscriber = await Stranger(broker, "kobold").open()
    # The very bytes of the specification's vector, then a SUB whose answer is asked for.
    await subscriber.say(
        "00000043a66269646273316c6d6573736167655f747970650265746f70696363612f626e7472616e7361637469"
        "6f6e5f69646067636f6e74656e74f66974696d657374616d7000",
        go(b"s2", "02", b"c/d", b"t1", None),
    )
    await subscriber.hears(go(b"s2", "181a", b"", b"t1", b""))
    publisher = await Stranger(broker, "kobold").open()
    await publisher.say(go(b"p1", "01", b"a/b", b"", b"hello"))
    await subscriber.hears(go(b"p1", "01", b"a/b", b"", b"hello"))
    # A publish of nothing is forwarded as it came.
    await publisher.say(go(b"p2", "01", b"a/b", b"", None))
    await subscriber.hears(go(b"p2", "01", b"a/b", b"", None))

    server = await Stranger(broker, "kobold").open()
    await server.say(go(b"v1", "06", b"time", b"t2", None))  # ADV
    await server.hears(go(b"v1", "181a", b"", b"t2", b""))

    await publisher.say(go(b"e1", "08", b"jobs", b"t3", b"dig"))  # ENQ
    await publisher.hears(go(b"e1", "181a", b"", b"t3", b""))
    worker = await Stranger(broker, "kobold").open()
    await worker.say(go(b"d1", "09", b"jobs", b"t4", None))  # DEQ: a MSG, then OK
    attempt = b"\x68metadata\xa1\x67attempt\x611"
    count = b"\x68metadata\xa1\x65count\x611"
    await worker.hears(
        with_metadata(go(b"e1", "0a", b"jobs", b"t3", b"dig"), attempt),
        with_metadata(go(b"d1", "181a", b"", b"t4", b""), count),
    )
    await worker.say(go(b"e1", "0b", b"jobs", b"t5", None))  # ACK
    await worker.hears(go(b"e1", "181a", b"", b"t5", b""))
    for peer in (subscriber, publisher, server, worker):
        await peer.close()


def with_metadata(frame: bytes, metadata: bytes) -> bytes:
    """The frame with a seventh key."""
    body = b"\xa7" + frame[5:] + metadata
    return len(body).to_bytes(4, "big") + body


async def test_a_message_type_that_is_null_is_none(broker: Broker) -> None:  # spec: kobold 5
    peer = await Stranger(broker, "kobold").open()
    await peer.say(go(b"s1", "f6", b"a", b"", None))
    text = b"a map without message_type"
    body = (
        b"\xa7\x62id`" + _TYPE + b"\x18\x1b" + _TOPIC + b"`" + _TX + b"`" + _CONTENT
        + bytes([0x58, len(text)]) + text + _TIME + b"\0\x68metadata\xa1\x64code\x6bbad_request"
    )  # fmt: skip
    await peer.hears(len(body).to_bytes(4, "big") + body)
    assert await peer.is_hung_up_on()
    await peer.close()


# TMQ 1.01, as the .NET client writes it. Every message has ttl 16, a message id and, once the
# client has an id, that as its source. Hello has FA, its first line is a request line, and
# `Client-Id` comes last. Up to version 2.0.5 numbers are big-endian, from 2.0.6 on little-endian.


class Net:
    """The frames of the .NET client `net`, whose ids are `i1`, `i2` and so on."""

    def __init__(self, order: Literal["big", "little"]) -> None:
        self.order = order

    def number(self, value: int) -> bytes:
        """A content type, or a length of two bytes."""
        return value.to_bytes(2, self.order)

    def frame(
        self,
        head: str,
        content_type: int,
        message_id: bytes = b"",
        source: bytes = b"",
        target: bytes = b"",
        payload: bytes = b"",
    ) -> bytes:
        """Two bytes in hexadecimal, three lengths, the content type, the length, all the rest."""
        size = len(payload)
        length = bytes([size]) if size < 253 else b"\xfd" + self.number(size)
        lengths = bytes([len(message_id), len(source), len(target)])
        ids = message_id + source + target
        return bytes.fromhex(head) + lengths + self.number(content_type) + length + ids + payload

    @property
    def hello(self) -> bytes:
        """Type server with FA; the id and the source are there."""
        lines = b"CONNECT /\r\nClient-Type: net\r\nClient-Id: net\r\n"
        return self.frame("9010", 101, b"i0", b"net", b"", lines)

    @property
    def accepted(self) -> bytes:
        """The broker's answer to it."""
        return self.frame("1010", 202, target=b"net", payload=b"Server: wirelake\r\n")


ORDERS = pytest.mark.parametrize("order", ["big", "little"])
GREETING = b"TMQ/1.01"


async def net_client(broker: Broker, net: Net) -> Stranger:
    """One that has sent its greeting and Hello in one go, as it does."""
    peer = await Stranger(broker, "tmq").open()
    await peer.say(GREETING, net.hello)
    await peer.hears(GREETING, net.accepted)
    return peer


def test_the_two_orders_are_the_bytes_of_the_specification() -> None:
    """spec: tmq 2: `00 65` and `65 00`; 300 bytes are `fd 01 2c` and `fd 2c 01`."""
    for order, content_type, length in [("big", "0065", "fd012c"), ("little", "6500", "fd2c01")]:
        net = Net(order)  # type: ignore[arg-type]
        assert net.hello[5:7].hex() == content_type
        assert net.frame("1110", 7, payload=b"x" * 300)[7:10].hex() == length


@ORDERS
async def test_the_dotnet_client_joins_and_pushes(
    broker: Broker, order: Literal["big", "little"]
) -> None:
    """spec: tmq 1, 2, 4, 7: 200 alone is success to it, and an acknowledgement echoes."""
    net = Net(order)
    peer = await net_client(broker, net)
    await peer.say(net.frame("1090", 601, b"i1", b"net", b"news"))
    await peer.hears(net.frame("1410", 200, b"i1", b"", b"net"))
    # A push that waits for its acknowledgement; it is also delivered to itself.
    await peer.say(net.frame("1150", 513, b"i2", b"net", b"news", b"x" * 300))
    await peer.hears(
        net.frame("910f", 513, b"i2", b"net", b"news", b"x" * 300),
        net.frame("1310", 513, b"i2", b"", b"news"),
    )
    await peer.say(net.frame("1090", 602, b"i3", b"net", b"news"))
    await peer.hears(net.frame("1410", 200, b"i3", b"", b"net"))
    await peer.say(net.frame("1090", 602, b"i4", b"net", b"news"))
    text = b"no subscription to news"
    await peer.hears(net.frame("1410", 404, b"i4", b"", b"net", text))
    await peer.say("89ff000000000000")
    await peer.hears("8aff000000000000")
    await peer.say("0810000000000000")  # terminate
    assert await peer.is_hung_up_on()
    await peer.close()


@ORDERS
async def test_the_dotnet_client_consumes_refuses_and_acknowledges(
    broker: Broker, order: Literal["big", "little"]
) -> None:
    """spec: tmq 4, 7."""
    net = Net(order)
    peer = await net_client(broker, net)
    await peer.say(net.frame("1090", 610, b"i1", b"net", b"jobs", net.number(7)))
    await peer.hears(net.frame("1410", 200, b"i1", b"", b"net"))
    await peer.say(net.frame("1150", 7, b"i2", b"net", b"jobs", b"dig"))
    await peer.hears(net.frame("1310", 7, b"i2", b"", b"jobs"))
    await peer.say(net.frame("1090", 601, b"i3", b"net", b"jobs"))
    await peer.hears(
        net.frame("914f", 7, b"i2", b"net", b"jobs", b"dig"),
        net.frame("1410", 200, b"i3", b"", b"net"),
    )
    # The acknowledgement has FA as the message had, and its content type.
    await peer.say(net.frame("9310", 7, b"i2", b"net", b"jobs", b"FAILED"))
    await peer.hears(net.frame("114f", 7, b"i2", b"net", b"jobs", b"dig"))
    await peer.say(net.frame("1310", 7, b"i2", b"net", b"jobs"))
    await peer.say(net.frame("1090", 611, b"i4", b"net", b"jobs", net.number(7)))
    await peer.hears(net.frame("1410", 200, b"i4", b"", b"net"))
    await peer.close()


@ORDERS
async def test_the_dotnet_client_pulls(broker: Broker, order: Literal["big", "little"]) -> None:
    """spec: tmq 6: a channel message with RS and no payload."""
    net = Net(order)
    peer = await net_client(broker, net)
    options = b"Content-Type: 7\r\nUse-Message-Id: 1\r\nQueue-Status: pull\r\n"
    await peer.say(net.frame("1090", 610, b"i1", b"net", b"jobs", options))
    await peer.hears(net.frame("1410", 200, b"i1", b"", b"net"))
    await peer.say(net.frame("1190", 7, b"i2", b"net", b"jobs"))
    await peer.hears(net.frame("1410", 404, b"i2", b"", b"net"))  # nothing there: no payload
    await peer.say(net.frame("1110", 7, b"i3", b"net", b"jobs", b"dig"))
    await peer.say(net.frame("1190", 7, b"i4", b"net", b"jobs"))
    await peer.hears(net.frame("9450", 7, b"i4", b"net", b"net", b"dig"))
    await peer.say(net.frame("9310", 7, b"i4", b"net", b"net"))  # it names the source
    await peer.say(net.frame("1190", 7, b"i5", b"net", b"jobs"))
    await peer.hears(net.frame("1410", 404, b"i5", b"", b"net"))
    # 612, by the same lines.
    await peer.say(net.frame("1090", 612, b"i6", b"net", b"jobs", b"Content-Type: 7\r\n"))
    await peer.hears(net.frame("1410", 200, b"i6", b"", b"net"))
    await peer.close()


async def test_dotnet_clients_of_both_versions_talk_to_each_other(broker: Broker) -> None:
    """spec: tmq 2, 7, 8: client messages and their acknowledgements change the byte order."""
    old, new = Net("big"), Net("little")
    peers = [await Stranger(broker, "tmq").open() for _ in range(2)]
    for net, peer, name in zip((old, new), peers, (b"old", b"new"), strict=True):
        await peer.say(GREETING, net.frame("9010", 101, b"i0", name, b"", b"Client-Id: " + name))
        await peer.hears(GREETING)
        await peer.hears(net.frame("1010", 202, b"", b"", name, b"Server: wirelake\r\n"))
    await peers[0].say(old.frame("1250", 513, b"d1", b"old", b"new", b"y" * 253))
    await peers[1].hears(new.frame("1250", 513, b"d1", b"old", b"new", b"y" * 253))
    await peers[1].say(new.frame("1310", 513, b"d1", b"new", b"old"))
    await peers[0].hears(old.frame("1310", 513, b"d1", b"new", b"old"))
    for peer in peers:
        await peer.close()


async def test_the_dotnet_client_without_connection_data_sends_no_hello(broker: Broker) -> None:
    """spec: tmq 1: it has no id that it would send, and the order is big-endian."""
    net = Net("big")
    peer = await Stranger(broker, "tmq").open()
    await peer.say(GREETING, net.frame("1090", 601, b"i1", b"", b"news"))
    await peer.hears(GREETING, net.frame("1410", 200, b"i1", b"", b"client-1"))
    await peer.say(net.frame("1110", 7, b"i2", b"", b"news", b"hi"))
    await peer.hears(net.frame("910f", 7, b"i2", b"client-1", b"news", b"hi"))
    await peer.close()


async def test_where_tokens_are_needed_a_client_without_hello_is_closed() -> None:
    """spec: tmq 1: 401."""
    net = Net("big")
    friend = TokenSettings(name="friend", hash=hash_token("secret"), publish=("#",))
    async with Broker(tokens=(friend,)) as guarded:
        peer = await Stranger(guarded, "tmq").open()
        await peer.say(GREETING, net.frame("1090", 601, b"i1", b"", b"news"))
        await peer.hears(GREETING, net.frame("1010", 401, payload=b"Hello comes first"))
        assert await peer.is_hung_up_on()
        await peer.close()


# mfp, by the layout of the specification: type, uid, a length of four bytes.

_UID = bytes.fromhex("00112233445566778899aabbccddeeff")
_SUCCESS, _FAIL = "0000000100", "0000000101"


def mfp(kind: str, payload: bytes, last: int = 0) -> bytes:
    """A frame under a uid that ends in this byte."""
    uid = _UID[:-1] + bytes([last])
    return bytes.fromhex(kind) + uid + len(payload).to_bytes(4, "big") + payload


def answer(outcome: str, last: int = 0) -> bytes:
    """The acknowledgement of the frame whose uid ends in this byte."""
    return b"\x03" + _UID[:-1] + bytes([last]) + bytes.fromhex(outcome)


async def test_an_mfp_body_over_1000_bytes_fails_and_is_counted(broker: Broker) -> None:
    """spec: mfp 4, 5: FAIL where an acknowledgement was asked for; the connection lives on."""
    subscriber, publisher = [await Stranger(broker, "mfp").open() for _ in range(2)]
    await subscriber.say(mfp("00", b"\1\1\0a\0n\0n\0e"), mfp("01", b"\1news", 1))
    await subscriber.hears(answer(_SUCCESS), answer(_SUCCESS, 1))
    await publisher.say(mfp("00", b"\1\0\0c\0a\0r\0l"), mfp("01", b"\0news", 1))
    await publisher.hears(answer(_SUCCESS), answer(_SUCCESS, 1))
    await publisher.say(mfp("02", b"\0\0" + b"x" * 1001, 2))  # TEXT, YES
    await publisher.hears(answer(_FAIL, 2))
    await publisher.say(mfp("02", b"\1\0" + b"\xff" * 65534, 3))  # RAWDATA, YES: the largest frame
    await publisher.hears(answer(_FAIL, 3))
    # Without a wish for an answer there is none: what comes next is that of the last one.
    await publisher.say(
        mfp("02", b"\0\1" + b"x" * 1001, 4),  # NO
        mfp("02", b"\0\0" + b"y" * 1000, 5),
    )
    await publisher.hears(answer(_SUCCESS, 5))
    await subscriber.hears(mfp("02", b"\0\1" + b"y" * 1000, 5))
    assert broker.counters()["refused.too_large"] == 3
    assert broker.counters()["received"] == 1
    await publisher.say(mfp("02", b"\0\0" + b"x" * 65535, 6))  # over 64 KiB: closed
    assert await publisher.is_hung_up_on()
    await subscriber.close()
    await publisher.close()
