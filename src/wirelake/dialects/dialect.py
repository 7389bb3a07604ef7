"""A dialect as a value: everything that the rest of Wirelake asks about a protocol.

The parts that need code (scanner, encoder, session, speech, detection) are named as
`module:attribute` and imported on first use. So a client never imports the broker, and Spark's
executors import neither the broker nor the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

#: A rule of detection sees this many bytes of a stream at most: an mfp handshake takes them all.
HEAD = 23
#: What a rule answers where a stream is of another dialect.
NO = ""

#: A class or function, or where to import it from: `package.module:name`.
Part: TypeAlias = str | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One version of one wire protocol."""

    name: str
    #: The dialects of a family share a listener, which tells them apart by their first bytes.
    family: str
    #: The family's name alone, as in `kobold://host`, means this dialect.
    is_newest: bool = True
    #: Where the family listens by default; None: it has no listener unless one is configured.
    port: int | None = None

    # Bytes. `scanner(name, limits)` reads frames, `encoder(name, client)` writes them.
    scanner: Part
    encoder: Part
    #: A rule `f(head) -> str | None`: the dialect of a stream that begins with `head`, "" if it is
    #: another, None where more bytes must tell. On `auto`, rules are asked by rank. Dialects that
    #: are distinguished together share one. Without a rule a dialect is not on `auto`.
    detect: Part | None = None
    rank: int = 100
    #: The rule on the family's own listener, where there is less to tell apart.
    detect_in_family: Part | None = None

    # The two ends: `session(node, link, name, now)` of the broker, `speech(name)` of the client.
    session: Part
    speech: Part
    #: `memory(node)`: what the broker keeps of the family's clients beyond their connections. It is
    #: made when the broker starts, and has a method `tick(now)`.
    memory: Part | None = None
    #: What clients can do in this dialect; see `wirelake.client.speech`.
    abilities: frozenset[str] = frozenset()
    #: A client introduces itself before anything else.
    introduces_itself: bool = False
    #: On a listener of its own, a connection counts as begun before its client says anything.
    begins_at_once: bool = False
    #: A client opens one connection for each role; these connections share its client id.
    roles: tuple[str, ...] = ()
    #: `f(client_id, token) -> client_id` raises ConfigError for what the dialect cannot say.
    identity: Part | None = None

    # What frames can say.
    #: The ttl counts hops, not milliseconds.
    ttl_in_hops: bool = False
    #: Delivered frames name their address.
    has_addresses: bool = True
    #: A frame's address may have been set by an earlier frame.
    has_topic_frames: bool = False
    #: States and lists are sent as JSON, not as CBOR.
    tells_json: bool = False
    #: A publish that asks for a response is a request.
    requests_by_publish: bool = False
    #: What one direction of a connection tells of the variant holds for the other.
    shares_variant: bool = False
    #: Frames have bytes that differ from receiver to receiver: see `Encoder.marks`.
    per_receiver: bool = False
    #: Bytes of a payload at most, 0: no limit of the dialect's own.
    max_payload: int = 0
    #: How charts show it.
    colour: str = "#888888"
    #: What a file in TOML says of it, where it is described: see `wirelake.dialects.framed`.
    description: Any = None
    #: The class, where it is a `wirelake.plugin.Plugin`.
    plugin: Any = None
    #: Its code comes from somebody else: what it raises ends its connections, not the broker.
    is_foreign: bool = False

    def load(self, part: str) -> Any:
        """Return one of the parts (`"scanner"`, `"session"`, …), imported on first use."""
        return _load(getattr(self, part))


@cache
def _load(part: Part) -> Any:
    if not isinstance(part, str):
        return part
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)
