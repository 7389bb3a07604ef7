"""Plug-ins that fail in every way: an event, the end of their own connection, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually
from wirelake.message import Message, Op

#: A plug-in that does what a line says.
GRENADE = """
import asyncio, sys
from wirelake.plugin import Flag, Message, Op, Plugin

class Odd(str):
    def encode(self, *_):
        return 7

NONSENSE = {
    "tuple": lambda: None, "pair": lambda: (1, 2, 3), "text": lambda: ("text", 1),
    "float": lambda: (None, 0.5), "zero": lambda: (Message("a", b"x"), 0),
    "minus": lambda: (Message("a", b"x"), -3), "beyond": lambda: (Message("a", b"x"), 1 << 70),
    "address": lambda: (Message(7, b"x"), 1), "payload": lambda: (Message("a", "text"), 1),
    "headers": lambda: (Message("a", b"x", headers={1: 2}), 1),
    "op": lambda: (Message("a", b"x", op="publish"), 1),
    "flags": lambda: (Message("a", b"x", flags=1 << 200), 1),
    "ttl": lambda: (Message("a", b"x", ttl=-(1 << 80)), 1),
    "id": lambda: (Message("a", b"x", id=b"bytes"), 1),
    "half": lambda: (Message("a" + chr(0xD800), b"x"), 1),
    "odd": lambda: (Message(Odd("a"), b"x"), 1),
    "long": lambda: (Message("a" * 10_000, b"x"), 1),
    "large": lambda: (Message("a", b"x" * (65 << 20)), 1),
    "parameters": lambda: (Message("a", b"x", parameters=7), 1),
}
RAISED = {
    "bug": RuntimeError("a bug"), "exit": SystemExit(3), "cancelled": asyncio.CancelledError(),
    "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(), "memory": MemoryError(),
    "stop": StopIteration(), "base": BaseException("base"), "os": OSError(24, "too many files"),
}

class Grenade(Plugin):
    interface = 1
    name = "grenade-1"

    def __init__(self):
        self.word = self.where = ""

    def do(self, where):
        if self.where != where:
            return
        if self.word in RAISED:
            raise RAISED[self.word]
        if self.word == "deep":
            self.do(where)
        if self.word == "write":
            while True:
                self.connection.write(b"x" * 100_000)

    def parse(self, data):
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\\n"):
                return
            self.where, _, self.word = line.decode().strip().partition(" ")
            if self.where == "need":
                self.need = self.word
                return
            self.do("parse")
            if self.where == "yield":
                yield NONSENSE[self.word]()
            elif self.where in ("message", "accepted", "bytes"):
                yield Message("a", op=Op.SUBSCRIBE), len(line)
            elif self.where == "refused":
                yield Message("a/#/b", op=Op.SUBSCRIBE), len(line)
            else:
                yield None, len(line)

    @classmethod
    def encode(cls, message, client):
        return b"frame\\n"

    def on_message(self, message):
        self.do("message")
        super().on_message(message)

    def accepted(self, message):
        self.do("accepted")
        return {"bytes text": "text", "bytes none": None}.get(f"{self.where} {self.word}", b"ok\\n")

    def refused(self, message, error):
        self.do("refused")
        return b"no\\n"

    def tick(self, now):
        self.do("tick")

    def closed(self, reason):
        self.do("closed")

class Unborn(Plugin):
    interface = 1
    name = "unborn-1"

    def __init__(self):
        sys.exit(4)

    def parse(self, data):
        yield None, len(data)

    @classmethod
    def encode(cls, message, client):
        return b""
"""


def broker_with(folder: Path) -> Broker:
    """A broker in whose environment a package offers the plug-ins."""
    site = folder / "site"
    about = site / "grenade-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "grenade.py").write_text(GRENADE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: grenade\nVersion: 1.0\n")
    offered = "grenade-1 = grenade:Grenade\nunborn-1 = grenade:Unborn\n"
    (about / "entry_points.txt").write_text(f"[wirelake.dialects]\n{offered}")
    names = ("auto", "grenade-1", "unborn-1")
    return Broker(
        folder,
        listen=[f"{name}://127.0.0.1:0" for name in names],
        prefix=["env", f"PYTHONPATH={site}"],
    )


#: The words of the plug-in: what it raises, and what it yields as a frame.
RAISED = ("bug", "exit", "cancelled", "interrupt", "generator", "memory", "stop", "base", "os")
WORDS = (*RAISED, "deep")
NONSENSE = (
    "tuple", "pair", "text", "float", "zero", "minus", "beyond", "address", "payload", "headers",
    "op", "flags", "ttl", "id", "half", "odd", "long", "large", "parameters",
)  # fmt: skip


def test_whatever_a_plugin_does_ends_its_own_connection_alone(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker, Client(broker, "kobold-3") as other:
        other.ask(Message(op=Op.PING))
        before = broker.forget_peak()
        said = [f"{where} {word}" for where in ("parse", "message", "accepted") for word in WORDS]
        said += [f"yield {word}" for word in NONSENSE]
        said += ["need text", "bytes text", "bytes none", "refused bug", "refused exit"]
        survived = []
        for line in said:
            with Client(broker, port=broker.ports[1]) as client:
                client.send_bytes(line.encode() + b"\n" + b"x" * 8)
                if not client._drain(10.0):
                    survived.append(line)
        assert not survived
        for word in WORDS:  # what a plug-in raises at the end of a connection, or in between
            for where in ("closed", "tick"):
                with Client(broker, port=broker.ports[1]) as client:
                    client.send_bytes(f"{where} {word}\n".encode())
                    assert where == "closed" or client._drain(30.0), (where, word)
        assert broker.is_alive
        assert other.ask(Message(op=Op.PING)).op == Op.PONG
        assert broker.peak() - before < 250 * MIB  # a message of 65 MiB, and its copies
        # Some of what is yielded breaks a limit that all dialects have: then the peer is to blame.
        failed = eventually(lambda: broker.counters().get("dialect_failures", 0) >= 50)
        assert failed
        told = [event["text"] for event in broker.events("dialect_failed")]
        assert any("SystemExit" in text for text in told)


@pytest.mark.parametrize("where", ["parse", "message", "accepted", "tick"])
def test_a_plugin_that_writes_without_end_is_stopped(tmp_path: Path, where: str) -> None:
    with broker_with(tmp_path) as broker, Client(broker, "kobold-3") as other:
        before = broker.forget_peak()
        with Client(broker, port=broker.ports[1], receive_buffer=4096) as client:
            client.send_bytes(f"{where} write\n".encode())
            eventually(lambda: broker.counters().get("dialect_failures", 0) == 1)
            assert other.ask(Message(op=Op.PING)).op == Op.PONG
        assert broker.peak() - before < 160 * MIB  # flow.outbox and limits.message
        (event,) = broker.events("dialect_failed")
        assert "(flow.outbox, limits.message)" in event["text"]


def test_a_plugin_that_cannot_even_begin_is_told(tmp_path: Path) -> None:
    with broker_with(tmp_path) as broker, Client(broker, "kobold-3") as other:
        for _ in range(5):
            with Client(broker, port=broker.ports[2]) as client:
                client.send_bytes(b"x\n")
                assert client._drain(30.0)
        assert other.ask(Message(op=Op.PING)).op == Op.PONG
        assert broker.is_alive
        eventually(lambda: broker.events("dialect_failed"))
