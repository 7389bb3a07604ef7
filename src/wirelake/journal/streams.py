"""JetStream as a journal needs it: the connection, streams, and the messages that are in them.

A partition is a stream, `<prefix>_<partition>`, with one subject. Each message begins with an
*envelope* of 68 bytes, which tells where the partition's chain stood before it, so that a reader
can begin with any message. Behind it stand the records of one or more commits (`record.py`). A
commit that is larger than a message may be travels as numbered parts, one message each.

A message follows if its chain continues the one that the reader has. Parts without their last one
are dropped: their writer died, and nobody was told that the commit is durable.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import ssl
import struct
import urllib.error
import urllib.request
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import nats
import nats.errors
from nats.aio.client import Client
from zlib_ng.zlib_ng import crc32

from wirelake.errors import ConfigError, EngineError
from wirelake.journal.record import End, Header, Piece, is_whole, parse_header

log = logging.getLogger("wirelake.journal")

VERSION = 1
_MAGIC = b"WLJM"
#: Magic, version, zero, part, parts, mark; number, epoch, offset, slot and checksum of the end
#: before the message; zeros; checksum of all this.
_ENVELOPE = struct.Struct("<4sBxHHxx8sqqqqI8xI")
ENVELOPE = _ENVELOPE.size
_SUM = struct.Struct("<I")
#: Bytes of a message that its NATS headers may take.
_HEADERS = 512
#: A commit has no more parts.
MOST_PARTS = 0xFFFF

#: Codes of JetStream's errors.
_WRONG_SEQUENCE = (10071, 10164)
_NO_STREAM = 10059
_NAME_IN_USE = 10058
_NO_MESSAGE = 10037

#: How long an answer may take (seconds), and how long to wait before what failed is tried again.
ANSWER = 2.0
PAUSE = 0.1
#: How long the server remembers the id of a message (seconds).
REMEMBERED = 120
#: Bytes and messages that are asked for at once.
FETCH_BYTES = 8 << 20
FETCH_MESSAGES = 512


class Durations:
    """How often something took how long; may be read from any thread."""

    #: Upper bounds of the classes (seconds); the last class has none. An election takes up to 9 s.
    bounds = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self.classes = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def count(self, seconds: float) -> None:
        """Count one more."""
        self.classes[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the NATS servers are, and how to log in."""

    servers: tuple[str, ...]
    user: str = ""
    password: str = ""
    token: str = ""
    #: A file with a JWT and its seed.
    credentials: str = ""
    #: Files: who signs the servers' certificates, and a certificate of ours with its key.
    ca: str = ""
    cert: str = ""
    key: str = ""

    async def connect(self, name: str, servers: Iterable[str] = (), **options: Any) -> Client:
        """Connect to these servers, or to any. Raises EngineError (retriable) without success."""
        errors: list[Exception] = []

        async def note(error: Exception) -> None:
            errors.append(error)
            log.debug("the connection to NATS: %r", error)

        given: dict[str, Any] = {
            "servers": list(servers or self.servers),
            "name": name,
            "max_reconnect_attempts": 2,
            "reconnect_time_wait": 0.1,
            "connect_timeout": 2,
            "ping_interval": 2,
            "max_outstanding_pings": 2,
            "error_cb": note,
        }
        given |= self.login() | options
        try:
            client = await asyncio.wait_for(nats.connect(**given), 10)
            client.options["max_reconnect_attempts"] = -1  # what was there once comes again
            return client
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            where = ", ".join(given["servers"])
            # A server that refuses a login hangs up, and its reason may not be read in time. If one
            # of the attempts has read it, that is what to report.
            refused = [one for one in errors if isinstance(one, nats.errors.AuthorizationError)]
            why = [*refused, *errors, error][0]
            raise EngineError(f"no NATS server at {where}: {why!r}", retriable=True) from error

    def login(self) -> dict[str, Any]:
        """Return the options of `nats.connect` that log in; raises ConfigError for bad files."""
        named = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.credentials,
        }
        given: dict[str, Any] = {option: value for option, value in named.items() if value}
        if self.ca or self.cert or any(one.startswith("tls://") for one in self.servers):
            given["tls"] = self._tls()
        return given

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("nats", f"the certificates cannot be read: {error}") from error
        return context


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    data: bytes
    id: str = ""


class Envelope(NamedTuple):
    """What the beginning of a message says."""

    part: int
    parts: int
    mark: bytes
    #: Where the chain stood before the message.
    before: End

    def pack(self) -> bytes:
        """The bytes."""
        fields = (VERSION, self.part, self.parts, self.mark, *self.before)
        data = _ENVELOPE.pack(_MAGIC, *fields, 0)[:-4]
        return data + _SUM.pack(crc32(data))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Envelope | None:
        """What a message says, None where it is not as it was written.

        Raises EngineError for a message of a newer format.
        """
        if len(data) < ENVELOPE or bytes(data[:4]) != _MAGIC:
            return None
        if crc32(data[: ENVELOPE - 4]) != _SUM.unpack_from(data, ENVELOPE - 4)[0]:
            return None
        _, version, part, parts, mark, *before, _ = _ENVELOPE.unpack_from(data)
        if version > VERSION:
            raise EngineError(
                f"a message of the stream has format {version}, of a newer version of Wirelake;"
                f" this one reads format {VERSION}"
            )
        return cls(part, parts, mark, End(*before))


def split(
    pieces: list[Piece], mark: bytes, before: End, max_payload: int
) -> list[tuple[Envelope, bytes]]:
    """The messages that records make: one, or parts where they are too large for it."""
    data = b"".join(pieces)
    room = room_of(max_payload)
    count = max(1, -(-len(data) // room))
    if count > MOST_PARTS:
        raise EngineError(f"a commit of {len(data)} bytes has more than {MOST_PARTS} parts")
    parts = []
    for k in range(count):
        envelope = Envelope(k, count, mark, before)
        parts.append((envelope, envelope.pack() + data[k * room : (k + 1) * room]))
    return parts


def room_of(max_payload: int) -> int:
    """The bytes of records that fit into a message."""
    return max_payload - ENVELOPE - _HEADERS


def parse_records(data: bytes | memoryview, end: End) -> tuple[list[Header], memoryview] | None:
    """The headers and bytes of the records that follow `end`, without those before it.

    None where they are not as they were written, or do not follow.
    """
    data = memoryview(data)
    headers: list[Header] = []
    at = begin = 0
    while at < len(data):
        header = parse_header(data[at:])
        if header is None or not is_whole(data[at : at + header.size], header):
            return None
        at += header.size
        if header.number <= end.number:  # known, and the same?
            if header.number == end.number and header.checksum != end.checksum:
                return None
            begin = at
            continue
        if (header.number, header.chain) != (end.number + 1, end.checksum):
            return None
        end = end.behind(header)
        headers.append(header)
    return headers, data[begin:]


class Assembly:
    """Puts the parts of commits together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._before: End | None = None

    def add(self, envelope: Envelope, data: bytes) -> bytes | None:
        """The records of a message, or of several with the last of them; None until then.

        Raises ValueError for a part that does not follow the one before it.
        """
        if envelope.part == 0:
            self._parts, self._before = [], envelope.before
        elif len(self._parts) != envelope.part or self._before != envelope.before:
            raise ValueError("a part does not follow the one before it")
        self._parts.append(data[ENVELOPE:])
        if len(self._parts) < envelope.parts:
            return None
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_open(self) -> bool:
        """Are there parts that wait for others?"""
        return bool(self._parts)


class Published(Enum):
    """What became of a message."""

    STORED = "stored"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class State(NamedTuple):
    """Which sequences a stream has: [first, last], and none where last is before first."""

    first: int
    last: int


class Stream:
    """One partition's stream."""

    def __init__(self, client: Client, prefix: str, partition: int) -> None:
        self._client = client
        self.name = f"{prefix}_{partition}"
        self.subject = f"{prefix}.journal.{partition}"
        #: Where the server tells of every message that it has stored.
        self.told = f"{prefix}.stored.{partition}"

    async def _call(self, api: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Ask JetStream. Raises EngineError (retriable) without an answer."""
        subject = f"$JS.API.{api}.{self.name}"
        try:
            answer = await self._client.request(subject, json.dumps(body).encode(), timeout=ANSWER)
            found = json.loads(answer.data)
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            text = f"JetStream does not answer {api}: {type(error).__name__}"
            raise EngineError(text, retriable=True) from error
        return dict(found)

    async def _done(self, api: str, body: Mapping[str, object]) -> dict[str, Any]:
        answer = await self._call(api, body)
        if "error" in answer:
            raise EngineError(f"{self.name}: {api}: {_text(answer)}", retriable=True)
        return answer

    async def config(self) -> dict[str, Any] | None:
        """The stream's settings; None where there is none."""
        answer = await self._call("STREAM.INFO", {})
        if _code(answer) == _NO_STREAM:
            return None
        if "error" in answer:
            raise EngineError(f"{self.name}: {_text(answer)}", retriable=True)
        return dict(answer["config"])

    async def make(self, replicas: int, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Make the stream, unless somebody else just did; return its settings.

        Raises ConfigError where the servers cannot make it so.
        """
        answer = await self._call(
            "STREAM.CREATE",
            {
                "name": self.name,
                "subjects": [self.subject],
                "retention": "limits",
                "storage": "file",
                "num_replicas": replicas,
                "discard": "new",
                "max_msgs": -1,
                "max_bytes": -1,
                "max_age": 0,
                "deny_delete": True,
                "deny_purge": False,
                "allow_direct": True,
                "duplicate_window": REMEMBERED * 1_000_000_000,
                "republish": {"src": self.subject, "dest": self.told, "headers_only": True},
                "metadata": dict(metadata),
            },
        )
        if "error" in answer and _code(answer) != _NAME_IN_USE:
            raise ConfigError("nats", f"the stream {self.name} cannot be made: {_text(answer)}")
        found = await self.config()
        if found is None:
            raise EngineError(f"the stream {self.name} was not made", retriable=True)
        return found

    def check(self, config: Mapping[str, Any], replicas: int) -> list[str]:
        """What is weak about a stream. Raises ConfigError for settings that would lose data."""
        wanted: dict[str, object] = {
            "subjects": [self.subject],
            "retention": "limits",
            "storage": "file",
            "deny_delete": True,
            "deny_purge": False,
            "allow_direct": True,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
        }
        for setting, value in wanted.items():
            if config.get(setting, False) != value:
                text = f"{setting} is {config.get(setting)!r}, and has to be {value!r}"
                raise ConfigError("nats", f"the stream {self.name}: {text}")
        if (config.get("republish") or {}).get("dest") != self.told:
            raise ConfigError("nats", f"the stream {self.name} is not republished to {self.told}")
        found = int(config["num_replicas"])
        weak = []
        if found < max(3, replicas):
            weak.append(f"R{found}" + (f" instead of R{replicas}" if found < replicas else ""))
        return weak

    async def state(self) -> State:
        """Which sequences there are, as the leader knows."""
        found = (await self._done("STREAM.INFO", {}))["state"]
        return State(int(found["first_seq"]), int(found["last_seq"]))

    async def purge(self, sequence: int) -> None:
        """Remove the messages before a sequence."""
        await self._done("STREAM.PURGE", {"seq": sequence})

    async def publish(self, data: bytes, id: str, expected: int) -> tuple[Published, int, str]:
        """Try once to add a message behind this sequence: what is known, its sequence, and why.

        A second try with the same id gets the answer of the first.
        """
        if not self._client.is_connected:
            await asyncio.sleep(PAUSE)
            return Published.UNKNOWN, 0, "no connection to NATS"
        headers = {"Nats-Msg-Id": id, "Nats-Expected-Last-Sequence": str(expected)}
        try:
            answer = await self._client.request(self.subject, data, ANSWER, headers=headers)
            found = json.loads(answer.data)
        except nats.errors.NoRespondersError:
            return Published.UNKNOWN, 0, f"the stream {self.name} has no leader"
        except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
            return Published.UNKNOWN, 0, f"no answer from {self.name}: {type(error).__name__}"
        if "error" not in found:
            return Published.STORED, int(found["seq"]), ""
        if _code(found) in _WRONG_SEQUENCE:
            return await self._fenced(id, expected)
        return Published.UNKNOWN, 0, f"{self.name}: {_text(found)}"

    async def _fenced(self, id: str, expected: int) -> tuple[Published, int, str]:
        """The sequence was wrong: is it our own message that stands there, or somebody else's?

        Our own it is where the server has forgotten its id. A new leader may not know the last
        messages yet: then nobody else's is there.
        """
        with contextlib.suppress(EngineError):
            found = await self.leaders(expected + 1)
            if found is not None and found.id == id:
                return Published.STORED, found.sequence, ""
            if found is not None:
                return Published.FENCED, 0, "somebody else owns the partition"
            state = await self.state()
            if state.last > expected:  # it was purged, which only another owner can have done
                return Published.FENCED, 0, "somebody else owns the partition"
        return Published.UNKNOWN, 0, f"{self.name} does not know message {expected} yet"

    async def leaders(self, sequence: int) -> Stored | None:
        """A message as the leader has it; None where it has none. Raises EngineError."""
        answer = await self._call("STREAM.MSG.GET", {"seq": sequence})
        if "error" in answer:
            if _code(answer) == _NO_MESSAGE:
                return None
            raise EngineError(f"{self.name}: {_text(answer)}", retriable=True)
        found = answer["message"]
        headers = base64.b64decode(found.get("hdrs", "")).decode(errors="replace")
        id = headers.partition("Nats-Msg-Id:")[2].partition("\r\n")[0].strip()
        return Stored(int(found["seq"]), base64.b64decode(found.get("data", "")), id)

    async def fetch(self, sequence: int, most: int = FETCH_MESSAGES) -> list[Stored]:
        """Messages from a sequence on that some replica has: fewer, or none, where it lacks them.

        Raises EngineError (retriable) without an answer.
        """
        return await fetch(self._client, self.name, sequence, most)


async def fetch(client: Client, stream: str, sequence: int, most: int) -> list[Stored]:
    """Messages of a stream from a sequence on, from the replica that is next to a connection."""
    body = {"seq": sequence, "batch": most, "max_bytes": FETCH_BYTES}
    found: list[Stored] = []
    try:
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, pending_bytes_limit=1 << 30)
        try:
            await client.publish(
                f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode(), reply=inbox
            )
            while True:
                message = await subscription.next_msg(timeout=ANSWER)
                headers = message.headers or {}
                if "Nats-Sequence" not in headers:  # the end, or there is none
                    return found
                id = headers.get("Nats-Msg-Id", "")
                found.append(Stored(int(headers["Nats-Sequence"]), message.data, id))
                if most == 1:
                    return found
        finally:
            await subscription.unsubscribe()
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        if found:
            return found
        text = f"{stream} cannot be read: {type(error).__name__}"
        raise EngineError(text, retriable=True) from error


def lazily_synced(monitors: Iterable[str]) -> str:
    """What the servers' monitoring pages say about how soon a write is on the disk; blocks."""
    lazy = []
    for url in monitors:
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=ANSWER) as answer:
                config = json.load(answer).get("jetstream", {}).get("config", {})
        except (OSError, ValueError) as error:
            lazy.append(f"{url} does not say how it syncs ({type(error).__name__})")
            continue
        if not config.get("sync_always"):
            seconds = config.get("sync_interval", 0) / 1e9
            lazy.append(f"{url} syncs every {seconds:g} s")
    return ", ".join(lazy)


def _code(answer: Mapping[str, Any]) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def _text(answer: Mapping[str, Any]) -> str:
    error = answer["error"]
    return f"{error.get('description', '')} ({error.get('err_code', error.get('code'))})"
