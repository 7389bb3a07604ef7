"""A plug-in in Python speaks its dialect everywhere, and hurts nobody but itself."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wirelake
from tests.broker.desk import Client, Desk
from tests.dialects.rooms import Rooms
from wirelake.dialects import DIALECTS, Dialect
from wirelake.dialects.codec import detect
from wirelake.dialects.plugin import session
from wirelake.dialects.plugin.watchdog import Watchdog
from wirelake.errors import ProtocolError
from wirelake.http import inspection
from wirelake.message import Limits
from wirelake.plugin import Message, Plugin
from wirelake.testing import Broker


def offered(plugin: type[Plugin]) -> Dialect:
    """A plug-in as an entry point offers it."""
    return replace(plugin.as_dialect(), is_foreign=True)


@pytest.fixture(autouse=True)
def spoken() -> Iterator[None]:
    """The plug-in of these tests."""
    with DIALECTS.also(offered(Rooms)):
        yield


def with_broken(**methods: Any) -> Dialect:
    """The plug-in with methods of its own."""
    made: Any = type("Broken", (Rooms,), {"name": "broken-1", "magic": (b"X",), **methods})
    return offered(made)


def events(desk: Desk) -> list[str]:
    """The events of dialects that failed."""
    return [str(one["text"]) for one in desk.node.vitals.events if one["event"] == "dialect_failed"]


def test_the_example_imports_nothing_that_is_not_public() -> None:
    source = Path(__file__).with_name("rooms.py").read_text(encoding="utf-8")
    imported = {
        node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
    }
    assert {name for name in imported if name and name.startswith("wirelake")} == {
        "wirelake.plugin"
    }


def test_it_publishes_subscribes_and_is_answered() -> None:
    desk = Desk()
    one, other = Client(desk, "rooms-1"), Client(desk, "rooms-1")
    one.say(b"SUB house/#\n")
    assert bytes(one.received) == b"OK 0\n"
    other.say(b"PUB house/temp 21\nPUB house/temp 22\n")
    assert bytes(other.received) == b"OK 1\nOK 2\n"
    assert bytes(one.received) == b"OK 0\n1 GET house/temp 21\n2 GET house/temp 22\n"


def test_what_is_refused_is_told_and_the_connection_goes_on() -> None:
    desk = Desk()
    client = Client(desk, "rooms-1")
    client.say(b"WILL $events x\nSUB a/#/b\nSUB ok\n")
    lines = bytes(client.received).splitlines()
    assert lines[0] == b"NO no will goes there"
    assert lines[1].startswith(b"NO ")
    assert lines[2] == b"OK 0"


def test_frames_are_each_receivers_own() -> None:
    desk = Desk()
    readers = [Client(desk, "rooms-1") for _ in range(2)]
    readers[0].say(b"SUB a\nSUB b\n")
    readers[1].say(b"SUB b\n")
    desk.client("kobold-3", "writer").send(Message("a", b"1"), Message("b", b"2"))
    assert bytes(readers[0].received).endswith(b"1 GET a 1\n2 GET b 2\n")
    assert bytes(readers[1].received).endswith(b"1 GET b 2\n")


def test_retained_messages_wait_for_those_who_subscribe_later() -> None:
    desk = Desk()
    Client(desk, "rooms-1").say(b"KEEP house/temp 21\nKEEP house/temp 22\n")
    late = Client(desk, "rooms-1")
    late.say(b"SUB house/#\n")
    assert b"GET house/temp 22\n" in bytes(late.received)
    assert b"21" not in bytes(late.received)


def test_a_will_is_published_when_the_connection_is_lost() -> None:
    desk = Desk()
    reader, dying = desk.client("kobold-3", "reader"), Client(desk, "rooms-1")
    reader.subscribe("house/#")
    reader.take()
    dying.say(b"WILL house/gone bye\n")
    dying.session.lost("reset by peer")
    assert [(one.address, one.payload) for one in reader.take()] == [("house/gone", b"bye")]


def test_it_is_ticked() -> None:
    desk = Desk()
    client = Client(desk, "rooms-1")
    desk.pass_time(10)
    assert client.session.plugin.ticks > 1  # type: ignore[attr-defined]


def test_answers_wait_until_what_they_answer_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    waiting: list[Any] = []
    after = lambda action, *_, **__: waiting.append(action)  # noqa: E731
    monkeypatch.setattr(desk.node.engine, "after", after)
    client = Client(desk, "rooms-1")
    client.say(b"PUB a 1\n")
    assert bytes(client.received) == b""
    waiting.pop()()
    assert bytes(client.received) == b"OK 1\n"


def test_auto_the_client_and_the_log_know_it(tmp_path: Path) -> None:
    assert detect(b"PUB a b") == "rooms-1"
    with (
        Broker(listen=("auto://127.0.0.1:1",)) as broker,
        wirelake.connect_sync(broker.url("kobold-3")) as reader,
        reader.subscribe("house/#") as inbox,
        wirelake.connect_sync(broker.url("rooms-1")) as client,
    ):
        client.publish("house/temp", b"21", ack=True)
        assert next(iter(inbox)).payload == b"21"


# What a plug-in does wrong


def fails(*_: object) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"parse": fails}, b"PUB a b\n"),
        ({"on_message": fails}, b"SUB a\n"),
        ({"accepted": fails}, b"PUB a b\n"),
        ({"accepted": lambda *_: "text"}, b"PUB a b\n"),
        ({"refused": fails}, b"SUB a/#/b\n"),
        ({"opened": fails}, b""),
        ({"own": fails}, b"SUB a\nPUB a b\n"),
        ({"encode": classmethod(fails)}, b"SUB a\nPUB a b\n"),
        ({"encode": classmethod(lambda *_: None)}, b"SUB a\nPUB a b\n"),
    ],
)
def test_what_a_plugin_raises_is_an_event_and_ends_its_connection_alone(
    method: dict[str, Any], said: bytes
) -> None:
    # decision 79
    with DIALECTS.also(with_broken(**method)):
        desk = Desk()
        well = Client(desk, "rooms-1")
        well.say(b"SUB a\n")
        broken = Client(desk, "broken-1")
        broken.say(said)
        assert not broken.is_open
        assert len(events(desk)) == 1
        assert events(desk)[0].startswith("broken-1: ")
        desk.client("kobold-3", "writer").send(Message("a", b"still here"))
        assert bytes(well.received).endswith(b"GET a still here\n")


def test_a_tick_or_an_end_that_raises_is_an_event_too() -> None:
    with DIALECTS.also(with_broken(tick=fails)):
        desk = Desk()
        broken = Client(desk, "broken-1")
        desk.pass_time(10)
        assert not broken.is_open
        assert len(events(desk)) == 1
    with DIALECTS.also(with_broken(closed=fails)):
        desk = Desk()
        Client(desk, "broken-1").session.lost("gone")
        assert len(events(desk)) == 1
        assert len(desk.node.sessions) == 0


def test_the_inspector_tells_of_a_plugin_that_fails() -> None:
    with DIALECTS.also(with_broken(parse=fails, encode=classmethod(fails))):
        told = inspection.inspect(b"X", "broken-1")
        assert told["error"]["reason"] == "the dialect's own code failed: RuntimeError: a bug"
        shown = {one["dialect"]: one for one in inspection.translations(Message("a", b"b"))}
        assert shown["broken-1"]["refused"] == "RuntimeError: a bug"
        assert "base64" in shown["kobold-3"]


@pytest.mark.parametrize("size", [0, -1, 1000])
def test_a_plugin_that_does_not_consume_is_stopped(size: int) -> None:
    def parse(self: Plugin, data: bytes) -> Iterator[tuple[Message, int]]:
        while True:
            yield Message("a", b"again"), size

    with DIALECTS.also(with_broken(parse=parse)):
        desk = Desk()
        broken = Client(desk, "broken-1")
        broken.say(b"x" * 100)
        assert not broken.is_open
        assert f"a frame of {size} bytes, and 100 are left" in events(desk)[0]


def test_a_plugin_that_does_not_return_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "WATCHDOG", Watchdog(look_every=0.01, patience=0.05))

    def parse(self: Plugin, data: bytes) -> Iterator[tuple[Message | None, int]]:
        while not caplog.records:  # as one that never returns, if nobody noticed
            time.sleep(0.01)
        yield None, len(data)

    with DIALECTS.also(with_broken(parse=parse)):
        Client(Desk(), "broken-1").say(b"X")
    first, last = (record.getMessage() for record in caplog.records)
    assert "broken-1: the plug-in has not returned" in first
    assert "in parse" in first
    assert "broken-1: the plug-in returned after" in last


def test_limits_hold_below_a_plugin() -> None:
    class Careless(Rooms):
        name = "careless-1"
        magic = (b"Y",)

        def parse(self, data: bytes) -> Iterator[tuple[Message | None, int]]:
            if data.endswith(b"\n"):
                yield Message("a" * len(data), b""), len(data)

    with DIALECTS.also(offered(Careless)):
        reader = DIALECTS["careless-1"].load("scanner")("careless-1", Limits(message=1024))
        from wirelake.wire import FrameTable

        table = FrameTable(4)
        with pytest.raises(ProtocolError, match="an address of 301 bytes; at most 255"):
            reader.scan(memoryview(b"x" * 300 + b"\n"), table)
        assert reader.scan(memoryview(b"x" * 1000), table) == 0
        with pytest.raises(ProtocolError, match="unfinished frame; at most 1024"):
            reader.scan(memoryview(b"x" * 1025), table)


def test_rows_before_a_fault_are_delivered_first() -> None:
    desk = Desk()
    client = Client(desk, "rooms-1")
    client.say(b"PUB a 1\nwhat\n")
    assert bytes(client.received) == b"OK 1\nNO what?\n"
    assert not client.is_open
    assert events(desk) == []  # the client's fault, not the plug-in's


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"interface": 2}, "interface is 2; this version of Wirelake has 1"),
        ({"interface": 0}, "interface is none"),
        ({"name": ""}, "has no name"),
        ({"parse": Plugin.parse}, "has no parse"),
    ],
)
def test_a_class_that_cannot_be_a_plugin_is_refused(fields: dict[str, Any], reason: str) -> None:
    made: Any = type("Odd", (Rooms,), fields)
    with pytest.raises(TypeError, match=reason):
        made.as_dialect()
