r"""The guides to the dialects: every byte of their exchanges is sent to a broker and compared.

An exchange is a fenced block `wire`. `alice > …` is what the client alice sends, `alice < …` what
the broker sends her, line after line; each name is a connection of its own. Bytes are printable
ASCII and the escapes `\r`, `\n`, `\t`, `\0`, `\\` and `\xNN`; `…` stands for bytes that differ from
run to run, `[closed]` for the end of the connection. A line that begins with spaces continues the
one before; two spaces and `# ` begin a comment, and so does `# ` at the beginning of a line.

Every block meets a broker of its own, that of a `toml` block of its section if there is one, so the
ids that a broker counts up are the same in every run. A line is sent when the broker has done all
that was sent before; at the end nothing may have come that the guide does not say.

A `python` block is a whole program: it runs as it stands, but for the port, and prints what the
`text` block after it says.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from wirelake.address import has_wildcard
from wirelake.config import Settings
from wirelake.dialects import DIALECTS, default_ports
from wirelake.dialects.codec import Feed
from wirelake.errors import ProtocolError
from wirelake.message import Flag, Message, Op
from wirelake.testing import Broker

FOLDER = Path(__file__).parents[2] / "docs" / "dialects"
INDEX = "index.md"
PAGES = {
    "boson-text": "boson-text.md",
    "boson-binary": "boson-binary.md",
    "mfp-1": "mfp.md",
    "kobold-1": "kobold-1.md",
    "kobold-2": "kobold-2.md",
    "kobold-3": "kobold-3.md",
    "tmq-1.00": "tmq.md",
    "tmq-1.01": "tmq.md",
    "mqtt-3.1.1": "mqtt.md",
    "mqtt-5": "mqtt.md",
}
#: TMQ's versions write short payloads alike, so what the page shows in one must hold in the other.
VERSIONS = ("TMQ/1.01", "TMQ/1.00")

#: How long a test waits for what must come, before it fails (seconds).
PATIENCE = 60.0

ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}
ESCAPED = {value[0]: f"\\{name}" for name, value in ESCAPES.items()}
VARYING = None
CLOSED = "[closed]"


# Reading a page


@dataclass(frozen=True)
class Step:
    """One line of an exchange: what a client sends, or what it gets."""

    place: str
    name: str
    sends: bool
    parts: tuple[bytes | None, ...]  # None stands for bytes that vary
    closes: bool = False

    @property
    def data(self) -> bytes:
        """The bytes of a line in which nothing varies."""
        assert VARYING not in self.parts, f"{self.place}: nobody can send …"
        return b"".join(part for part in self.parts if part is not None)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, the heading it stands under, and its text."""

    page: str
    line: int
    kind: str
    heading: str
    text: str
    config: str = ""  # the `toml` block of its section

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page."""
    found: list[Block] = []
    heading = config = kind = ""
    body: list[str] = []
    first = 0
    for number, line in enumerate((FOLDER / page).read_text(encoding="utf-8").splitlines(), 1):
        if kind:
            if line == "```":
                text = "\n".join(body)
                if kind == "toml":
                    config = text
                found.append(Block(page, first, kind, heading, text, config))
                kind = ""
            else:
                body.append(line)
        elif line.startswith("```"):
            kind, body, first = line[3:] or "none", [], number
        elif line.startswith("#"):
            heading = line.lstrip("# ")
            config = "" if line.startswith("## ") else config
    assert not kind, f"{page}: a block is not closed"
    return found


def steps_of(block: Block) -> list[Step]:
    """The lines of an exchange, with those that continue another joined to it."""
    found: list[Step] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        place = f"{block.page}:{number}"
        said = re.sub(r"(^|\s{2,})# .*", "", line).rstrip()
        if not said:
            continue
        if said.startswith(" "):
            assert found, f"{place}: there is nothing to continue"
            last = found.pop()
            parts = last.parts + bytes_of(said.lstrip(), place)
            found.append(Step(last.place, last.name, last.sends, parts))
            continue
        match = re.fullmatch(r"(\w+) ([<>]) (.*)", said)
        assert match, f"{place}: neither `name > bytes` nor `name < bytes`: {said}"
        name, way, rest = match.groups()
        closes = rest == CLOSED
        parts = () if closes else bytes_of(rest, place)
        found.append(Step(place, name, way == ">", parts, closes))
    for step in found:
        assert step.closes or step.parts, f"{step.place}: no bytes"
        assert step.parts[-1:] != (VARYING,), f"{step.place}: an end that varies is no end"
    return found


def bytes_of(text: str, place: str) -> tuple[bytes | None, ...]:
    """What a line of the guide stands for."""
    parts: list[bytes | None] = []
    for token in re.findall(r"\\x[0-9a-f]{2}|\\.|…|[ -\[\]-~]+|.", text):
        if token == "…":
            parts.append(VARYING)
        elif token.startswith("\\x"):
            parts.append(bytes.fromhex(token[2:]))
        elif token.startswith("\\"):
            assert token[1:] in ESCAPES, f"{place}: {token} is no escape"
            parts.append(ESCAPES[token[1:]])
        else:
            assert token.isascii(), f"{place}: {token!r} is not ASCII; write \\xNN"
            parts.append(token.encode())
    return tuple(parts)


def shown(data: bytes) -> str:
    """Bytes as the guides write them."""
    text = ""
    for at, octet in enumerate(data):
        digit_follows = data[at + 1 : at + 2].isdigit()  # \0 and a digit would read as octal
        if octet in ESCAPED and not (octet == 0 and digit_follows):
            text += ESCAPED[octet]
        else:
            text += chr(octet) if 32 <= octet < 127 else f"\\x{octet:02x}"
    return text


# Holding an exchange


@dataclass
class Wire:
    """One client's connection: nothing but a socket."""

    sock: socket.socket
    waiting: bytes = b""
    closed: bool = False  # by the broker
    left: bool = False  # by the client

    def get(self, step: Step) -> None:
        """Take what a line says from what comes."""
        pattern = re.compile(
            b"".join(b".*?" if part is VARYING else re.escape(part) for part in step.parts),
            re.DOTALL,
        )
        plain = None if VARYING in step.parts else step.data
        while (match := pattern.match(self.waiting)) is None:
            hopeless = plain is not None and not plain.startswith(self.waiting)
            if hopeless or not self._read():
                end = " and then nothing" if not hopeless else ""
                pytest.fail(f"{step.place}: {step.name} got{end}: {shown(self.waiting)}")
        self.waiting = self.waiting[match.end() :]

    def hear_the_end(self, step: Step) -> None:
        """The broker hangs up, without another word."""
        while self._read():
            pass
        assert self.closed, f"{step.place}: the broker has not hung up"
        self.nothing_more(step.place, step.name)

    def nothing_more(self, place: str, name: str) -> None:
        """All that has come was in the guide."""
        self.sock.settimeout(0)
        was_closed = self.closed
        while self._read():
            pass
        assert not self.waiting, f"{place}: {name} also got: {shown(self.waiting)}"
        assert self.closed == was_closed or self.left, f"{place}: the broker hung up on {name}"

    def _read(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return False
        self.closed = self.closed or not data
        self.waiting += data
        return bool(data)


@dataclass
class Stage:
    """A broker, and the clients of one exchange with it."""

    broker: Broker
    port: int
    sent: int = 0
    wires: dict[str, Wire] = field(default_factory=dict)

    def hold(self, steps: list[Step], place: str) -> None:
        """Say what the guide says, and compare what comes."""
        for step in steps:
            wire = self._wire(step.name)
            if step.sends and step.closes:
                self._hang_up(wire)
            elif step.sends:
                wire.sock.sendall(step.data)
                self.sent += len(step.data)
                self._until(lambda: self.broker.counters()["bytes_in"] >= self.sent, step.place)
            elif step.closes:
                wire.hear_the_end(step)
            else:
                wire.get(step)
        for _ in range(3):  # turns of its event loop, for what it writes a turn later
            self.broker.state()
        for name, wire in self.wires.items():
            wire.nothing_more(place, name)

    def _wire(self, name: str) -> Wire:
        if name not in self.wires:
            sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
            self.wires[name] = Wire(sock)
        return self.wires[name]

    def _hang_up(self, wire: Wire) -> None:
        before = self.broker.state()["connections"]
        wire.sock.shutdown(socket.SHUT_WR)
        self._until(lambda: self.broker.state()["connections"] < before, "a client hung up")
        wire.left = True

    def _until(self, condition: Callable[[], bool], place: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{place}: the broker has not taken this"

    def close(self) -> None:
        """Hang up all of them."""
        for wire in self.wires.values():
            wire.sock.close()


def family_of(page: str) -> str:
    """The listener that the exchanges of a page go to."""
    return "auto" if page == INDEX else re.split(r"[-.]", page)[0]


def settings_of(block: Block) -> Settings:
    """The settings that a block's section asks for."""
    return msgspec.toml.decode(block.config, type=Settings)


def hold(block: Block, steps: list[Step]) -> None:
    """Hold an exchange with a broker of its own."""
    with Broker(settings_of(block)) as broker:
        stage = Stage(broker, port_of(broker, family_of(block.page)))
        try:
            stage.hold(steps, block.place)
        finally:
            stage.close()


def port_of(broker: Broker, family: str) -> int:
    """Where a broker listens for a family."""
    return urlsplit(broker.url(family)).port or 0


ALL_PAGES = sorted({*PAGES.values(), INDEX})
BLOCKS = [block for page in ALL_PAGES for block in blocks_of(page)]
EXCHANGES = [block for block in BLOCKS if block.kind == "wire"]
PROGRAMS = [block for block in BLOCKS if block.kind == "python"]


def in_other_version(steps: list[Step]) -> list[Step]:
    """A TMQ exchange as the other version has it."""
    here, there = (version.encode() for version in VERSIONS)

    def changed(part: bytes | None) -> bytes | None:
        return there if part == here else part

    return [
        Step(step.place, step.name, step.sends, tuple(map(changed, step.parts)), step.closes)
        for step in steps
    ]


@pytest.mark.parametrize("block", EXCHANGES, ids=lambda block: block.place)
def test_an_exchange_has_the_very_bytes(block: Block) -> None:
    hold(block, steps_of(block))


@pytest.mark.parametrize(
    "block",
    [b for b in EXCHANGES if b.page == "tmq.md" and VERSIONS[1] not in b.text],
    ids=lambda block: block.place,
)
def test_an_exchange_of_tmq_holds_in_both_versions(block: Block) -> None:
    steps = in_other_version(steps_of(block))
    assert any(VERSIONS[1].encode() in step.parts for step in steps)
    hold(block, steps)


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.place)
def test_a_program_does_what_the_guide_says(block: Block) -> None:
    output = BLOCKS[BLOCKS.index(block) + 1]
    assert output.kind == "text", f"{block.place}: what does it print?"
    family = family_of(block.page)
    with Broker(settings_of(block)) as broker:
        port = str(default_ports()[family])
        assert block.text.count(port) == 1
        program = block.text.replace(port, str(port_of(broker, family)))
        ran = subprocess.run(
            [sys.executable, "-I", "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout.rstrip("\n") == output.text


@pytest.mark.parametrize(
    "block",
    [block for block in PROGRAMS if block.page != "mqtt.md"],  # there are libraries for MQTT
    ids=lambda block: block.place,
)
def test_a_program_is_small_and_needs_nothing_but_a_socket(block: Block) -> None:
    imports = re.findall(r"^\s*(?:import|from) (\w+)", block.text, re.MULTILINE)
    assert "socket" in imports
    assert set(imports) <= {"socket", "struct"}
    assert len(block.text.splitlines()) <= 60


# Nothing is missing


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_has_its_guide_with_a_program(dialect: str) -> None:
    assert any(block.page == PAGES[dialect] for block in EXCHANGES)
    assert any(block.page == PAGES[dialect] for block in PROGRAMS)


def test_there_is_no_page_beside_the_guides() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == ALL_PAGES


def said_in(page: str, dialect: str) -> Iterator[Message]:
    """What clients of a dialect say in the exchanges of a page, up to what breaks the grammar."""
    for block in EXCHANGES:
        steps = steps_of(block) if block.page == page else []
        if page == "tmq.md" and dialect == "tmq-1.00":
            steps = in_other_version(steps)
        streams: dict[str, list[Step]] = {}
        for step in steps:
            if step.sends and not step.closes:
                streams.setdefault(step.name, []).append(step)
        for stream in streams.values():
            feed = Feed(family=None if page == INDEX else family_of(page))
            try:
                for step in stream:
                    for table in feed.receive(step.data):
                        if feed.dialect == dialect:
                            yield from table.messages()
            except ProtocolError:
                continue


def has_op(*ops: str) -> Callable[[list[Message]], bool]:
    """Does somebody say every one of these?"""
    return lambda said: {*ops} <= {message.op.label for message in said}


def anyone(condition: Callable[[Message], object]) -> Callable[[list[Message]], bool]:
    """Is there a message of this kind?"""
    return lambda said: any(condition(message) for message in said)


#: How to see in what was said that an ability was shown.
SHOWS: dict[str, Callable[[list[Message]], bool]] = {
    "acknowledgement of a publish": anyone(lambda m: m.op == Op.PUBLISH and m.flags & Flag.ACK),
    "acknowledgement of a direct message": anyone(
        lambda m: m.op == Op.PUBLISH and m.target and m.flags & Flag.ACK
    ),
    "byte stream": has_op("open", "data", "close"),
    "client id": anyone(
        lambda m: m.parameters.client or m.op == Op.HANDSHAKE or b"Client-Id" in m.payload
    ),
    "data store": has_op("create", "read", "update", "delete", "watch"),
    "declaration of queues": has_op("declare", "remove"),
    "delay": anyone(lambda m: "delay" in m.headers),
    "direct message": anyone(lambda m: m.op == Op.DIRECT or (m.op == Op.PUBLISH and m.target)),
    "header": anyone(lambda m: m.op == Op.PUBLISH and m.headers),
    "list of queues": anyone(lambda m: m.op == Op.LIST or m.address == "$queues"),
    "message id": anyone(lambda m: m.op == Op.PUBLISH and m.id),
    "nack": has_op("nack", "ack"),
    "nack without requeue": anyone(lambda m: not m.parameters.requeue),
    "ping": has_op("ping"),
    "prefetch": anyone(lambda m: m.op == Op.SUBSCRIBE and m.parameters.count),
    "priority": anyone(lambda m: m.priority),
    "pull": has_op("dequeue"),
    "pull that waits": anyone(lambda m: m.op == Op.DEQUEUE and m.parameters.wait is not None),
    "request/reply": anyone(
        lambda m: (
            m.op == Op.REQUEST
            or (m.op == Op.PUBLISH and (m.flags & Flag.RESPONSE or "mqtt.response" in m.headers))
        )
    ),
    "service": lambda said: (
        has_op("serve", "reply")(said) or any(m.address.startswith("$serve/") for m in said)
    ),
    "state of the broker": anyone(lambda m: m.address == "$node"),
    "ttl": anyone(lambda m: m.ttl),
    # What every dialect has.
    "publish": has_op("publish"),
    "subscribe": anyone(lambda m: m.op == Op.SUBSCRIBE and has_wildcard(m.address)),
    "unsubscribe": has_op("unsubscribe"),
}
EVERYWHERE = {"publish", "subscribe", "unsubscribe"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_guide_shows_all_that_its_dialect_can_do(dialect: str) -> None:
    said = list(said_in(PAGES[dialect], dialect))
    wanted = DIALECTS[dialect].abilities | EVERYWHERE
    assert [ability for ability in sorted(wanted) if not SHOWS[ability](said)] == []


def table_of(heading: str) -> list[list[str]]:
    """The first table under a heading of the overview, without its rule."""
    text = (FOLDER / INDEX).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [head, *rows]


def test_the_overview_says_which_dialect_can_do_what() -> None:
    head, *rows = table_of("Which dialect can do what")
    columns = [re.findall(r"\[([^]]+)\]", cell)[0] for cell in head[1:]]
    assert columns == [
        "boson-text",
        "boson-binary",
        "mfp",
        "kobold-1, 2, 3",
        "tmq",
        "mqtt-3.1.1",
        "mqtt-5",
    ]
    shown = (*list(DIALECTS)[:4], "tmq-1.01", "mqtt-3.1.1", "mqtt-5")
    of_columns = [DIALECTS[name].abilities for name in shown]
    can = {row[0]: row[1:] for row in rows}
    assert (
        set(can) == {ability for one in DIALECTS.values() for ability in one.abilities} | EVERYWHERE
    )
    for ability, cells in can.items():
        assert cells == [
            "yes" if ability in abilities | EVERYWHERE else "no" for abilities in of_columns
        ], ability
    for name in ("kobold-2", "kobold-3"):
        assert DIALECTS[name].abilities == DIALECTS["kobold-1"].abilities
    assert DIALECTS["tmq-1.00"].abilities == DIALECTS["tmq-1.01"].abilities


def test_the_overview_says_where_the_broker_listens() -> None:
    _, *rows = table_of("Ports")
    said = {row[0].strip("`"): int(row[1]) for row in rows}
    assert said == default_ports()


# The reading of exchanges


def block_of(text: str) -> Block:
    """An exchange that stands in no page."""
    return Block("kobold-1.md", 0, "wire", "", text)


def test_bytes_are_read_as_they_are_shown() -> None:
    every = bytes(range(256)) + b"\x001\\"
    (step,) = steps_of(block_of(f"a > {shown(every)}x"))
    assert step.data == every + b"x"


@pytest.mark.parametrize(
    "text",
    [
        "PING is sent",
        "  continued",
        "a > \\q",
        "a > ö",
        "a < all…",
        "a >  # nothing",
    ],
)
def test_what_is_no_exchange_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        steps_of(block_of(text))


PING = r"a > \0\0\0\x0cPING\r\n\r\n\r\n\r\n"
PONG = r"a < \0\0\0\x0cPONG\r\n\r\n\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{PING}\n{PONG.replace('PONG', 'PING')}", "got: "),
        (f"{PING}\n{PONG}\na < more", "got and then nothing: "),
        (PING, "also got: "),
        (f"{PING}\n{PONG}\na < [closed]", "has not hung up"),
        (r"a > \x7f", "hung up on a"),
    ],
    ids=["another answer", "a missing one", "one too many", "no end", "an end"],
)
def test_an_exchange_that_goes_otherwise_fails(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 0.3)
    block = block_of(text)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(says)):
        hold(block, steps_of(block))
