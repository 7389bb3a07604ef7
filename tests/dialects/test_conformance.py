"""The conformance kit passes what conforms, our own dialects too, and finds each fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.dialects.described import METER, SENSOR, dialect
from tests.dialects.rooms import Rooms
from tests.dialects.test_described import AIS, GGA, SYSLOG
from wirelake.dialects.framed.description import PRESETS
from wirelake.message import Message, Op
from wirelake.testing import check_dialect

SOME = [Message("house/temp", b"21.5"), Message("house/x", b""), Message("a", bytes(range(9)))]


@pytest.mark.parametrize("name", ["boson-text", "boson-binary", "kobold-1", "kobold-2", "kobold-3"])
def test_our_own_dialects_conform(name: str) -> None:
    assert check_dialect(name, SOME, tries=100) == []


@pytest.mark.parametrize("name", ["mqtt-3.1.1", "mqtt-5"])
def test_mqtt_conforms_behind_its_connect(name: str) -> None:
    headers = {"mqtt.clean": "1", "mqtt.keepalive": "60"}
    connect = Message(op=Op.HANDSHAKE, source="device", headers=headers)
    others = [Message("house/#", op=Op.SUBSCRIBE, ticket=1), Message(op=Op.PING)]
    assert check_dialect(name, [connect, *SOME, *others], tries=100) == []


def test_described_dialects_and_presets_conform() -> None:
    assert check_dialect(dialect(METER), SOME) == []
    assert check_dialect(dialect(SENSOR), [Message("plant/1/2", b"x"), Message("plant/0/9")]) == []
    for name, message, capture in (
        ("lines", Message("lines", b"text"), b"more\r\n"),
        ("json-lines", Message("a/b", b'{"topic":"a/b","v":1}'), b'{"topic": "c"}\n'),
        ("length-prefixed", Message("a/b", b"payload"), b""),
        ("syslog-lines", Message("syslog", SYSLOG[0]), SYSLOG[1] + b"\n"),
        ("syslog-octets", Message("syslog", SYSLOG[0]), b"5 <1>xy"),
        ("nmea-0183", Message("nmea/GPZDA", b"1,2"), GGA + AIS),
    ):
        assert check_dialect(PRESETS[name], [message], capture=capture) == []


def test_a_plugin_conforms() -> None:
    said = [Message("house/temp", b"21"), Message("house/#", op=Op.SUBSCRIBE)]
    assert check_dialect(Rooms, said, capture=b"\nKEEP a b\n") == []


def broken(**fields: Any) -> type[Rooms]:
    """The plug-in, with a fault."""
    return cast("type[Rooms]", type("Broken", (Rooms,), {"name": "broken-1", **fields}))


def in_one_read(self: Rooms, data: bytes) -> Iterator[tuple[Message | None, int]]:
    for line in data.splitlines(keepends=True):  # a line without its end is taken for whole
        yield Rooms._message(self, line.rstrip(b"\n")), len(line)


def crashes(self: Rooms, data: bytes) -> Iterator[tuple[Message | None, int]]:
    for message, size in Rooms.parse(self, data):
        if max(data) > 127:
            raise KeyError("no ASCII")
        yield message, size


def waits(self: Rooms, data: bytes) -> Iterator[tuple[Message | None, int]]:
    if data.endswith(b"\n"):
        yield Message("x" * len(data), b"y"), len(data)


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"parse": in_one_read}, "splits: "),
        ({"parse": crashes}, "garbage: "),
        ({"parse": waits}, "round trip: "),
        ({"encode": classmethod(lambda *_: b"")}, "cannot be written"),
        ({"encode": classmethod(lambda *_: b"PUB other 1\n")}, "came back as"),
        ({"magic": (b"SUB",)}, "taken for no dialect"),
        ({"magic": (b"P", b"4|0|x|y")}, "boson-text begins alike"),
    ],
)
def test_each_fault_is_found(fields: dict[str, Any], finding: str) -> None:
    found = check_dialect(broken(**fields), [Message("house/temp", b"21")], tries=400)
    assert any(finding in one for one in found), found


def test_a_description_that_does_not_fit_its_messages_is_found(tmp_path: Path) -> None:
    file = tmp_path / "sensor.toml"
    file.write_text(SENSOR)
    (found,) = check_dialect(file, [Message("elsewhere", b"x")])
    assert found == "round trip: 1 messages cannot be written: {'address': 1}"
