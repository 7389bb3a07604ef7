"""Devices that attack described dialects: lengths, delimiters, checksums, headers, addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually
from tests.dialects.described import METER, SENSOR
from wirelake.dialects import DIALECTS
from wirelake.dialects.framed.description import dialect_of, parse_description
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable

#: Frames that are as large as a message may be, with a length of four bytes.
LARGE = """
name = "large-1"
address = "{topic}"
[frame]
by = "length"
most = 1073741824
length = {at = 0, width = 4, counts = "rest"}
[[fields]]
name = "topic"
at = 4
prefix = 1
[payload]
after = "topic"
"""

#: Lines without a limit of their own, whose fields become headers and the address.
WORDS = """
name = "words-1"
address = "w/{first}"
[frame]
by = "delimiter"
delimiter = "\\n"
most = 1073741824
[[fields]]
name = "first"
until = " "
[[fields]]
name = "second"
after = "first"
until = " "
[payload]
after = "second"
"""

#: A member of a JSON object is the address.
JSON = """
name = "json-1"
address = "j/{topic}"
[frame]
by = "delimiter"
delimiter = "\\n"
most = 16777216
[[fields]]
name = "topic"
json = "topic"
"""

DESCRIBED = {"meter": METER, "sensor-2": SENSOR, "large-1": LARGE, "words-1": WORDS, "json-1": JSON}


def broker_with(folder: Path, config: str = "") -> Broker:
    """A broker that speaks the described dialects; `port_of` tells where."""
    for name, text in DESCRIBED.items():
        (folder / f"{name}.toml").write_text(text)
        config += f'\n[[dialects]]\nfile = "{name}.toml"\n'
    families = ["auto", *DESCRIBED]
    return Broker(folder, config, listen=[f"{name}://127.0.0.1:0" for name in families])


def port_of(broker: Broker, name: str) -> int:
    """Where a dialect is spoken."""
    return broker.ports[1 + list(DESCRIBED).index(name)]


def frame(text: str, message: Message) -> bytes:
    """A message as a device says it."""
    described = dialect_of(parse_description(text))
    with DIALECTS.also(described):
        table = FrameTable(1)
        table.fill([message], described.name)
        return bytes(described.load("encoder")(described.name, True).encode(table))


def is_well(broker: Broker) -> bool:
    """Does the broker go on for others?"""
    with Client(broker) as client:
        return client.ask(Message(op=Op.PING)).op == Op.PONG


GOOD = frame(SENSOR, Message("plant/1/2", b"21.5", ticket=7))


@pytest.mark.parametrize("stated", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 64 * MIB + 5])
def test_a_length_at_the_limits_ends_its_connection(tmp_path: Path, stated: int) -> None:
    with broker_with(tmp_path) as broker:
        before = broker.forget_peak()
        for _ in range(10):
            with Client(broker, port=port_of(broker, "large-1")) as client:
                client.flood(stated.to_bytes(4, "big") + b"\x01a" + b"x" * 1000, 3)
                assert client._drain(30.0)
        assert broker.peak() - before < 32 * MIB
        assert broker.counters()["protocol_errors"] == 10
        assert is_well(broker)


def test_unfinished_frames_share_the_budget_of_all_dialects(tmp_path: Path) -> None:
    with broker_with(tmp_path, "[limits]\nunfinished = 16_777_216\n") as broker:
        before = broker.forget_peak()
        clients = [Client(broker, port=port_of(broker, "large-1")) for _ in range(12)]
        for client in clients:
            client.flood((60 * MIB).to_bytes(4, "big") + b"\x01a" + b"x" * (8 * MIB), 1, 1.0)
        assert broker.peak() - before < 80 * MIB
        for client in clients:
            client.close()
        assert is_well(broker)


@pytest.mark.parametrize("name", ["words-1", "json-1"])
def test_a_delimiter_that_never_comes_costs_its_own_connection(tmp_path: Path, name: str) -> None:
    with broker_with(tmp_path, "[limits]\nmessage = 4_194_304\n") as broker:
        before, cpu = broker.forget_peak(), broker.cpu()
        with Client(broker, port=port_of(broker, name)) as client:
            client.flood(b"x" * 16_384, 4_000, 5.0)  # 62 MiB in small pieces
            assert client._drain(30.0)
        assert broker.peak() - before < 48 * MIB
        assert broker.cpu() - cpu < 20  # each byte is looked at a few times, not thousands of times
        assert is_well(broker)


def test_a_flood_of_wrong_checksums_is_counted_and_holds_nothing(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker:
        bad = GOOD[:-4] + bytes(byte ^ 0xFF for byte in GOOD[-4:-2]) + GOOD[-2:]
        before = broker.forget_peak()
        for _ in range(300):
            with Client(broker, port=port_of(broker, "sensor-2")) as client:
                client.flood(bad * 100, 1, 5.0)
        eventually(lambda: broker.counters().get("protocol_errors", 0) >= 300)
        assert broker.peak() - before < 32 * MIB
        with Client(broker, port=port_of(broker, "sensor-2")) as client:
            client.send_bytes(GOOD)
            assert client.socket.recv(3) == b"\x06\x00\x07"


def test_fields_cannot_make_headers_grow(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker:
        before = broker.forget_peak()
        for _ in range(20):
            with Client(broker, port=port_of(broker, "words-1")) as client:
                client.flood(b"a " + b"h" * MIB + b" x\n", 10, 5.0)
                assert client._drain(30.0)
        assert broker.peak() - before < 48 * MIB
        assert broker.counters()["protocol_errors"] == 20
        assert is_well(broker)


@pytest.mark.parametrize(
    "said",
    [
        b"+ s x\n", b"# s x\n", b"a/#/b s x\n", b"\xff\xfe s x\n", b"\0 s x\n", b"a\x7f s x\n",
        b" s x\n", b"//// s x\n", b"/".join([b"l"] * 100) + b" s x\n", b"a" * 5_000 + b" s x\n",
        b"\xed\xa0\x80 s x\n", b"a\rb s x\n",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(tmp_path: Path, said: bytes) -> None:
    with broker_with(tmp_path) as broker, Client(broker) as reader:
        reader.ask(Message(op=Op.SUBSCRIBE, address="#"))
        with Client(broker, port=port_of(broker, "words-1")) as client:
            client.flood(said, 1)
            client.flood(b"well s x\n", 1)
            client.socket.settimeout(1)
            client._drain(1.0)
        with Client(broker) as writer:
            writer.ask(Message("last", b"x", op=Op.PUBLISH, flags=Flag.ACK))
        seen = []
        while (got := reader.receive()).address != "last":
            seen.append(got.address)
        for address in seen:  # what came through is an address that any client may have
            assert address.startswith("w/")
            assert not set(address) & set("+#\0")
            assert len(address.split("/")) <= 32
        assert is_well(broker)


def test_json_that_is_hostile_is_an_error_and_no_work(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker:
        before, cpu = broker.forget_peak(), broker.cpu()
        for said in (
            b"[" * 1_000_000, b'{"a":' * 500_000, b'{"topic": ' + b"9" * 1_000_000 + b"}",
            b'{"topic": "' + b"\\u0041" * 200_000 + b'"}', b'{"topic": ["a"]}', b'{"topic": null}',
            b'{"topic": "a", ' * 100_000, b'{"topic": "\\ud800"}', b'{"topic": "+"}', b"\xff" * 99,
            b'{' + b",".join(b'"k%d": 1' % k for k in range(50_000)) + b', "topic": "x"}',
        ):  # fmt: skip
            with Client(broker, port=port_of(broker, "json-1")) as client:
                client.flood(said + b"\n", 1, 5.0)
                client._drain(0.5)
        assert broker.peak() - before < 64 * MIB
        assert broker.cpu() - cpu < 20
        assert is_well(broker)


def test_ever_new_addresses_do_not_make_the_broker_grow(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker:
        with Client(broker, port=port_of(broker, "words-1")) as client:

            def publish(numbers: range) -> int:
                client.send_bytes(b"".join(b"a/%d s x\n" % k for k in numbers))
                wanted = numbers.stop
                eventually(lambda: broker.counters().get("received", 0) >= wanted, "publishing")
                return broker.rss()

            before = publish(range(100_000))
            assert publish(range(100_000, 400_000)) - before < 64 * MIB
        assert is_well(broker)
