"""The settings: read from a TOML file once, checked strictly, and handed on as typed values.

Whatever is wrong with a setting is a ConfigError that names it and the file. Every setting has a
default; `Settings()` is the broker that starts without a file.

Tokens stand in the file as SHA-256 hashes. A slow hash would protect secrets that people think up;
ours are made here from 119 random bits, which nobody guesses however fast the hash is, and a broker
to which ten thousand clients come back at once must check them quickly.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct

from wirelake.dialects import AUTO, DIALECTS, default_ports, families
from wirelake.errors import ConfigError, RefusedError

DEFAULT_HOST = "127.0.0.1"
HTTP_PORT = 7780

#: An mfp client says `name:token` in 32 characters (spec: mfp 8): this leaves eleven for the name.
TOKEN_LENGTH = 20
_TOKEN_ALPHABET = string.ascii_letters + string.digits

_MEBIBYTE = 1 << 20
_PREFIX = "^[A-Za-z0-9_-]{1,32}$"
_NAME_OR_EMPTY = "^[A-Za-z0-9_-]{0,64}$"
_HTTP_OR_EMPTY = r"^(https?://[^\s/@?#,]+)?$"
_YEAR = 365 * 24 * 3600.0

Filters = tuple[str, ...]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file, in which nothing unknown may stand."""


def _is(meaning: str, **rules: Any) -> Meta:
    """What a setting means, and which values it may have."""
    return Meta(description=meaning, **rules)


class LimitSettings(_Table, frozen=True, kw_only=True):
    """What peers may send, in bytes, and how many there may be; sizes are for new connections."""

    message: Annotated[int, _is("a message", ge=1024, le=1 << 30)] = 64 * _MEBIBYTE
    headers: Annotated[int, _is("all headers of a message", ge=256, le=1 << 30)] = 64 << 10
    sequence: Annotated[int, _is("a multi-part sequence", ge=1024, le=1 << 30)] = 64 * _MEBIBYTE
    stranger_frame: Annotated[
        int, _is("a frame before authentication, where there are tokens", ge=1024, le=1 << 30)
    ] = 64 << 10
    unfinished: Annotated[
        int, _is("frames of all connections that are not complete yet", ge=_MEBIBYTE)
    ] = 256 * _MEBIBYTE
    min_rate: Annotated[
        int,
        _is("bytes a second of a started frame or body after `handshake_timeout`; 0: any", ge=0),
    ] = 1024
    connections: Annotated[int, _is("connections in all", ge=1)] = 100_000
    connections_per_peer: Annotated[
        int, _is("connections without a token from one address; loopback is exempt", ge=1)
    ] = 1000


class QuotaSettings(_Table, frozen=True, kw_only=True):
    """How much one connection may have, and all of them together: what is more is refused."""

    levels: Annotated[int, _is("levels of an address or a filter", ge=1, le=128)] = 32
    subscriptions: Annotated[
        int, _is("subscriptions of one connection, queues that it consumes included", ge=1)
    ] = 10_000
    all_subscriptions: Annotated[int, _is("subscriptions in all", ge=1)] = 1_000_000
    wildcards: Annotated[int, _is("subscriptions of one connection that have wildcards", ge=1)] = (
        1_000
    )
    services: Annotated[int, _is("addresses that one connection serves", ge=1)] = 1_000
    all_services: Annotated[int, _is("the same in all", ge=1)] = 100_000
    requests: Annotated[int, _is("requests of one connection without a reply", ge=1)] = 10_000
    all_requests: Annotated[int, _is("the same in all", ge=1)] = 1_000_000
    pulls: Annotated[int, _is("requests for queue messages of one connection that wait", ge=1)] = (
        1_000
    )
    all_pulls: Annotated[int, _is("the same in all", ge=1)] = 100_000
    watches: Annotated[int, _is("filters of keys that one connection watches", ge=1)] = 1_000
    all_watches: Annotated[int, _is("the same in all", ge=1)] = 100_000
    streams: Annotated[int, _is("byte streams of one connection", ge=1)] = 1_000
    all_streams: Annotated[int, _is("ends of byte streams in all", ge=1)] = 100_000
    queues: Annotated[int, _is("queues in all, those of dead letters not counted", ge=1)] = 100_000
    keys: Annotated[int, _is("keys of the data store in all", ge=1)] = 1_000_000
    key_bytes: Annotated[int, _is("bytes of all keys and their values", ge=1024)] = 1024 * _MEBIBYTE
    deleted_keys: Annotated[int, _is("deleted keys whose last revision is remembered", ge=1)] = (
        10_000
    )
    sessions: Annotated[int, _is("MQTT sessions that outlive their connections", ge=1)] = 100_000
    session_messages: Annotated[
        int, _is("messages that wait for one of them; what is more is dropped", ge=1)
    ] = 100_000
    session_bytes: Annotated[int, _is("bytes of these messages, likewise", ge=1024)] = (
        1024 * _MEBIBYTE
    )
    will_bytes: Annotated[int, _is("bytes of the wills of all MQTT clients", ge=1024)] = (
        256 * _MEBIBYTE
    )
    unreleased: Annotated[
        int, _is("messages of QoS 2 that an MQTT 5 client has not released", ge=1, le=0xFFFF)
    ] = 1_000
    aliases: Annotated[int, _is("topic aliases of an MQTT 5 client", ge=0, le=0xFFFF)] = 64
    retained: Annotated[int, _is("retained messages in all", ge=1)] = 1_000_000
    retained_bytes: Annotated[int, _is("bytes of all retained messages", ge=1024)] = (
        1024 * _MEBIBYTE
    )


class FlowSettings(_Table, frozen=True, kw_only=True):
    """What becomes of clients that read too slowly."""

    outbox: Annotated[int, _is("bytes that may wait for one client", ge=64 << 10)] = 8 * _MEBIBYTE
    total: Annotated[int, _is("bytes that may wait for all clients together", ge=_MEBIBYTE)] = (
        256 * _MEBIBYTE
    )
    patience: Annotated[float, _is("seconds that publishers wait for one subscriber …", gt=0)] = 2.0
    window: Annotated[float, _is("… within this many seconds", gt=0)] = 30.0
    policies: Annotated[
        dict[str, Literal["disconnect", "drop", "pause"]],
        _is("by filter; the first that matches an address counts, and `disconnect` otherwise"),
    ] = {}


class IdentitySettings(_Table, frozen=True, kw_only=True):
    """Client ids, where tokens are configured."""

    reserve: Annotated[
        float,
        _is("seconds that an id stays its token's after a disconnect or a restart", ge=0, le=_YEAR),
    ] = 600.0
    max_reserved: Annotated[
        int, _is("ids that stay reserved for one token; the oldest go first", ge=0, le=1 << 24)
    ] = 10_000


class GuessSettings(_Table, frozen=True, kw_only=True):
    """What becomes of peers that send wrong tokens."""

    free: Annotated[int, _is("wrong tokens of one connection without a delay", ge=0)] = 3
    most: Annotated[int, _is("attempts after which a connection is closed", ge=1)] = 20
    free_per_peer: Annotated[int, _is("wrong tokens of one address without a delay", ge=0)] = 20
    first_delay: Annotated[
        float, _is("seconds until the next token is looked at; doubles each time", ge=0, le=_YEAR)
    ] = 0.25
    longest_delay: Annotated[float, _is("seconds that it reaches", ge=0, le=_YEAR)] = 30.0
    forget: Annotated[float, _is("seconds after which an address starts anew", gt=0)] = 600.0
    remembered: Annotated[
        int, _is("addresses that are remembered; the oldest go first", ge=1, le=1 << 24)
    ] = 10_000
    held_answers: Annotated[
        int, _is("answers of HTTP to wrong tokens that are delayed at a time", ge=0)
    ] = 64


class WebSettings(_Table, frozen=True, kw_only=True):
    """How much HTTP, WebSockets and the console may hold; what is more is refused."""

    connections_per_peer: Annotated[
        int, _is("connections of HTTP from one address; loopback is exempt", ge=1)
    ] = 512
    bodies: Annotated[
        int,
        _is("bytes of bodies and unfinished WebSocket messages in all", ge=_MEBIBYTE),
    ] = 256 * _MEBIBYTE
    websocket_message: Annotated[
        int, _is("bytes of a WebSocket message; fixed at the start", ge=1024, le=1 << 30)
    ] = _MEBIBYTE
    log_reads: Annotated[
        int, _is("bytes of the log that wait for clients to read them", ge=_MEBIBYTE)
    ] = 64 * _MEBIBYTE
    read_timeout: Annotated[
        float, _is("seconds until a client that reads nothing is cut off", gt=0)
    ] = 60.0
    events: Annotated[int, _is("event streams at a time", ge=0)] = 256
    pages: Annotated[int, _is("pages of the console with live figures at a time", ge=0)] = 128
    logins: Annotated[int, _is("logins of browsers; the idlest goes first", ge=1)] = 1_000
    login_idle: Annotated[
        float, _is("seconds that a login lives without a request", gt=0, le=_YEAR)
    ] = 12 * 3600.0
    producers: Annotated[
        int, _is("producers whose batches are remembered; the idlest goes first", ge=1)
    ] = 10_000
    queries: Annotated[int, _is("queries whose progress is kept", ge=1)] = 1_000
    head: Annotated[
        int, _is("bytes of the head of a request; fixed at the start", ge=8 << 10, le=1 << 24)
    ] = 128 << 10
    searches: Annotated[
        int, _is("searches of the log at a time, answers being sent included", ge=1)
    ] = 16
    search_time: Annotated[
        float, _is("seconds until a search answers with what it has found so far", gt=0, le=3600)
    ] = 2.0
    search_bytes: Annotated[
        int, _is("bytes of rows that one search holds; an export of more is refused", ge=64 << 10)
    ] = 16 * _MEBIBYTE
    export_rows: Annotated[int, _is("rows of an export", ge=1, le=10_000_000)] = 100_000
    export_time: Annotated[
        float, _is("seconds that the search for an export takes at most", gt=0, le=3600)
    ] = 20.0
    sql_time: Annotated[float, _is("seconds until a statement of SQL is ended", gt=0, le=3600)] = (
        30.0
    )
    sql_memory: Annotated[int, _is("bytes of memory of the process that runs SQL", ge=1 << 30)] = (
        3 << 30
    )
    sql_rows: Annotated[
        int, _is("rows of each partition that a statement sees, the latest ones", ge=1)
    ] = 200_000
    sql_answer: Annotated[
        int, _is("bytes of the answer to a statement", ge=64 << 10, le=1 << 30)
    ] = 16 * _MEBIBYTE
    trace_time: Annotated[float, _is("seconds until a trace ends by itself", gt=0, le=_YEAR)] = 60.0
    trace_messages: Annotated[
        int, _is("messages after which a trace ends by itself", ge=1, le=100_000)
    ] = 200
    trace_bytes: Annotated[
        int, _is("bytes of messages and frames that a trace holds", ge=64 << 10)
    ] = 4 * _MEBIBYTE


class MfpSettings(_Table, frozen=True, kw_only=True):
    """What mfp alone needs."""

    oversize: Annotated[
        Literal["drop", "split"], _is("what becomes of a message that is too long for mfp")
    ] = "drop"


class RetentionSettings(_Table, frozen=True, kw_only=True):
    """How long captured messages are kept: without this, for ever; the first filter counts."""

    filter: Annotated[str, _is("the addresses that this is for")] = "#"
    age: Annotated[float, _is("seconds after which they may go", gt=0)] | None = None
    bytes: Annotated[int, _is("of the log, above which the oldest go", ge=_MEBIBYTE)] | None = None


class CaptureSettings(_Table, frozen=True, kw_only=True):
    """The log of what passes through the broker."""

    enabled: Annotated[bool, _is("keep a log at all")] = True
    exclude: Annotated[Filters, _is("filters of addresses that are not captured")] = ()
    partitions: Annotated[
        int, _is("of the log; fixed when the data directory is made", ge=1, le=256)
    ] = 4
    compression: Annotated[
        Literal["none", "lz4", "zstd"], _is("of what is written from now on")
    ] = "none"
    segment: Annotated[int, _is("bytes of one file of the log", ge=_MEBIBYTE)] = 256 * _MEBIBYTE
    backlog: Annotated[
        int, _is("bytes that may wait for the disk before publishers wait", ge=_MEBIBYTE)
    ] = 64 * _MEBIBYTE
    retention: tuple[RetentionSettings, ...] = ()


Mode = Literal["round-robin", "push", "pull"]

_LARGEST = 1 << 53  # an integer that JSON's readers keep exact


class QueueSettings(_Table, frozen=True):
    """How a queue behaves; one that exists keeps the settings it was made with.

    The rules hold however a value is made: by the configuration, a dialect, HTTP or the disk.
    """

    name: Annotated[str, _is("its address")]
    mode: Annotated[Mode, _is("one consumer at a time, every consumer, or only on request")] = (
        "round-robin"
    )
    ack_timeout: Annotated[
        float, _is("seconds until a message is delivered again", ge=0.001, le=_YEAR)
    ] = 30.0
    max_deliveries: Annotated[int, _is("before a message is a dead letter", ge=1, le=1_000_000)] = 5
    content_type: Annotated[int, _is("of its messages, for TMQ", ge=0, le=0xFFFF)] = 0
    dedup_window: Annotated[
        float, _is("seconds in which a producer's message id is taken once", ge=0, le=_YEAR)
    ] = 120.0
    max_messages: Annotated[int, _is("beyond which it is full; 0: no limit", ge=0, le=_LARGEST)] = (
        1_000_000
    )
    max_bytes: Annotated[
        int,
        _is(
            "of messages with headers and overhead, beyond which it is full; 0: no limit",
            ge=0,
            le=_LARGEST,
        ),
    ] = 1 << 30
    keep_expired: Annotated[bool, _is("messages past their ttl become dead letters")] = False

    def __post_init__(self) -> None:
        for field, least, most in _ranges(QueueSettings):
            value = getattr(self, field)
            if not least <= value <= most:  # not a number is in no range
                text = f"{field} is {value}; it is between {least} and {most}"
                raise ValueError(text)

    def changed(self, wanted: Mapping[str, object], *, from_text: bool = False) -> QueueSettings:
        """Return these settings with some of them changed.

        With `from_text` numbers may be given as text. Raises RefusedError (`bad_request`) that
        names the setting which is unknown or out of range.
        """
        given = msgspec.structs.asdict(self)
        if unknown := sorted(wanted.keys() - (given.keys() - {"name", "content_type"})):
            raise RefusedError("bad_request", f"a queue has no setting {unknown[0]}")
        try:
            return msgspec.convert({**given, **wanted}, QueueSettings, strict=not from_text)
        except msgspec.ValidationError as error:
            setting, reason = _explain(str(error))
            where = "" if setting == "settings" else f"{setting}: "
            raise RefusedError("bad_request", f"{where}{reason}") from None


@cache
def _ranges(table: type[Struct]) -> list[tuple[str, float, float]]:
    """The fields of a table that have a least and a largest value, with both."""
    described = msgspec.inspect.type_info(table)
    assert isinstance(described, msgspec.inspect.StructType)
    kinds = [(one.name, one.type) for one in described.fields]
    kinds = [
        (name, kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind)
        for name, kind in kinds
    ]
    return [
        (name, kind.ge, kind.le)
        for name, kind in kinds
        if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType)
        and kind.ge is not None
        and kind.le is not None
    ]


class DialectSettings(_Table, frozen=True, kw_only=True):
    """A dialect that a file in TOML describes: see `wirelake dialect`."""

    file: Annotated[str, _is("the description, found from the folder of the configuration file")]


class TlsSettings(_Table, frozen=True, kw_only=True):
    """Files in PEM format, found from the folder of the configuration file."""

    cert: Annotated[str, _is("the broker's certificate")]
    key: Annotated[str, _is("its key, without a password")]
    client_ca: Annotated[str, _is("who signs the certificates of clients; none: not asked for")] = (
        ""
    )
    require_client_cert: Annotated[bool, _is("refuse clients without one")] = False

    def __post_init__(self) -> None:
        if self.require_client_cert and not self.client_ca:
            raise ValueError("require_client_cert needs client_ca, to check them against")


class TokenSettings(_Table, frozen=True, kw_only=True):
    """A token, by its hash (`wirelake token` makes one), and what its holder may do."""

    name: Annotated[
        str,
        _is("whose it is; also the name in a certificate", pattern=r"^[^\x00-\x1f\x7f]{1,64}$"),
    ]
    hash: Annotated[str, _is("of the token", pattern="^sha256:[0-9a-f]{64}$")]
    publish: Annotated[Filters, _is("filters of addresses to publish and send requests to")] = ()
    subscribe: Annotated[Filters, _is("to subscribe to, and of queues to consume")] = ()
    serve: Annotated[Filters, _is("to answer requests for")] = ()
    store: Annotated[Filters, _is("of keys in the data store")] = ()
    declare: Annotated[Filters, _is("of addresses to make queues of; `admin` includes it")] = ()
    clients: Annotated[Filters, _is("of client ids that may be claimed with it")] = ("#",)
    admin: Annotated[bool, _is("may do what operators do")] = False


class ClusterSettings(_Table, frozen=True, kw_only=True):
    """One node of several that share their partitions through NATS JetStream.

    Files are found from the folder of the configuration file.
    """

    servers: Annotated[
        tuple[str, ...], _is("NATS servers, `nats://HOST:PORT`; none: there is no cluster")
    ] = ()
    node: Annotated[
        str,
        _is("this node's name, which no other has; empty: the host's", pattern=_NAME_OR_EMPTY),
    ] = ""
    http: Annotated[
        str,
        _is(
            "where clients and other nodes reach this node's HTTP, `http://HOST:PORT`; empty: its"
            " listener's address, with the host's name instead of 0.0.0.0",
            pattern=_HTTP_OR_EMPTY,
        ),
    ] = ""
    prefix: Annotated[
        str, _is("of streams and subjects: one NATS serves several clusters", pattern=_PREFIX)
    ] = "WL"
    partitions: Annotated[
        int, _is("of a new cluster, fixed then; 0: 16, or as many as it has", ge=0, le=1024)
    ] = 0
    replicas: Annotated[int, _is("servers that keep each stream", ge=1, le=5)] = 3
    user: Annotated[str, _is("the name to log in to NATS with")] = ""
    password: Annotated[str, _is("its password")] = ""
    token: Annotated[str, _is("a NATS token, instead of a name")] = ""
    credentials: Annotated[str, _is("a NATS credentials file, instead of a name")] = ""
    ca: Annotated[str, _is("who signs the certificates of NATS servers; empty: the system's")] = ""
    cert: Annotated[str, _is("a certificate to show to NATS")] = ""
    key: Annotated[str, _is("its key")] = ""
    monitors: Annotated[
        tuple[str, ...], _is("monitoring pages of the servers, to check that they sync each write")
    ] = ()
    beat: Annotated[float, _is("seconds between heartbeats; the same on all nodes", gt=0)] = 0.5
    dead: Annotated[float, _is("seconds of silence until a node is dead; likewise", gt=0)] = 2.0
    lease: Annotated[
        float, _is("seconds that an owner may answer reads after a commit; likewise", gt=0)
    ] = 1.0
    give_up: Annotated[float, _is("seconds until a commit without an answer fails", gt=0)] = 30.0
    members: Annotated[int, _is("nodes of the cluster", ge=1, le=4096)] = 256
    questions: Annotated[
        int, _is("questions of other nodes' HTTP that this one answers at a time", ge=1, le=65536)
    ] = 256

    def __post_init__(self) -> None:
        if self.dead < 3 * self.beat:
            raise ValueError("dead is less than three times beat: one late heartbeat would do")
        if self.cert and not self.key:
            raise ValueError("cert needs key")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen at: a host and a port, with TLS or without, or the path of a socket."""

    family: str
    host: str = DEFAULT_HOST
    port: int = 0
    tls: bool = False
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Listener:
        """Read `mfp://127.0.0.1:7777`, `auto+tls://0.0.0.0:7700`, `kobold+unix:///run/x.sock`."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError("listen", f"{url}: {error}") from None
        family, _, over = parts.scheme.partition("+")
        if family not in (AUTO, *families()) or over not in ("", "tls", "unix"):
            raise ConfigError(
                "listen",
                f"{url}: a listener is one of {', '.join([AUTO, *families()])},"
                " alone or with +tls or +unix, then ://",
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError("listen", f"{url}: a listener has a host and a port, or a path")
        if over == "unix":
            if parts.netloc or not parts.path.startswith("/"):
                raise ConfigError("listen", f"{url}: a socket's path is whole: {family}+unix:///…")
            return cls(family, host="", path=unquote(parts.path))
        if parts.path not in ("", "/"):
            raise ConfigError("listen", f"{url}: only a +unix listener has a path")
        if port is None:
            port = default_ports().get(family)
        if port is None:
            raise ConfigError("listen", f"{url}: {family} has no default port: give one")
        return cls(family, host or DEFAULT_HOST, port, over == "tls")

    def __str__(self) -> str:
        if self.path:
            return f"{self.family}+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.family}{'+tls' if self.tls else ''}://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Can nobody but processes of this machine connect?"""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name, which may lead anywhere


def default_listeners() -> tuple[str, ...]:
    """Return the URLs where a broker listens if nothing else is said: every family's own port."""
    return tuple(f"{family}://{DEFAULT_HOST}:{port}" for family, port in default_ports().items())


class Settings(_Table, frozen=True, kw_only=True):
    """Everything that can be set."""

    listen: Annotated[tuple[str, ...], _is("URLs: a family, then a host and a port or a path")] = (
        msgspec.field(default_factory=default_listeners)
    )
    insecure: Annotated[bool, _is("let other machines connect although there are no tokens")] = (
        False
    )
    data: Annotated[str, _is("the folder of what must survive")] = "data"
    http: Annotated[
        str, _is("where HTTP listens, `https://HOST:PORT` with TLS; empty: nowhere")
    ] = f"{DEFAULT_HOST}:{HTTP_PORT}"
    http_connections: Annotated[
        int, _is("of HTTP at a time; beyond that, idle ones are closed", ge=8, le=1 << 20)
    ] = 1024
    http_origins: Annotated[
        tuple[str, ...],
        _is("origins of web pages that may open WebSockets, beside our own: `https://example.org`"),
    ] = ()
    handshake_timeout: Annotated[
        float, _is("seconds of silence inside a handshake, a frame, a request or a body", gt=0)
    ] = 30.0
    request_timeout: Annotated[float, _is("seconds that a reply may take", gt=0)] = 30.0
    limits: LimitSettings = LimitSettings()
    quotas: QuotaSettings = QuotaSettings()
    flow: FlowSettings = FlowSettings()
    identity: IdentitySettings = IdentitySettings()
    guesses: GuessSettings = GuessSettings()
    web: WebSettings = WebSettings()
    mfp: MfpSettings = MfpSettings()
    capture: CaptureSettings = CaptureSettings()
    queues: tuple[QueueSettings, ...] = ()
    dialects: tuple[DialectSettings, ...] = ()
    tls: TlsSettings | None = None
    cluster: ClusterSettings = ClusterSettings()
    tokens: tuple[TokenSettings, ...] = ()

    def __post_init__(self) -> None:
        names = [queue.name for queue in self.queues]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"queues: {twice[0]} is there twice")
        for kind in ("name", "hash"):
            values = [getattr(token, kind) for token in self.tokens]
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"tokens: two have the {kind} {twice[0]}")

    @property
    def has_default_listeners(self) -> bool:
        """Whether nobody said where to listen."""
        return self.listen == default_listeners()

    @property
    def listeners(self) -> list[Listener]:
        """Where to listen; only on this machine where anybody may do anything."""
        found = [Listener.parse(url) for url in self.listen]
        if not found:
            raise ConfigError("listen", "there is nothing to listen at")
        self.check_exposure(found)
        return found

    def check_exposure(self, listeners: Iterable[Listener]) -> None:
        """Refuse listeners that others can reach where no tokens say what they may do."""
        if self.tokens or self.insecure:
            return
        for listener in listeners:
            if not listener.is_local:
                raise ConfigError(
                    "listen",
                    f"{listener} can be reached from other machines and no tokens are configured;"
                    " add some (wirelake token) or allow it (--insecure)",
                )


class _Described(Struct):
    """The part of the settings that all others need."""

    dialects: tuple[DialectSettings, ...] = ()


def read_settings(file: Path) -> Settings:
    """The settings of a TOML file; the dialects that it names are there afterwards."""
    try:
        content = file.read_bytes()
        for described in msgspec.toml.decode(content, type=_Described).dialects:
            # First, as listeners name families, and every family may have a default listener.
            DIALECTS.describe(file.parent / described.file)
        settings = msgspec.toml.decode(content, type=Settings)
    except OSError as error:
        raise ConfigError(str(file), error.strerror or str(error)) from None
    except msgspec.ValidationError as error:
        setting, reason = _explain(str(error))
        raise ConfigError(setting, f"{reason} ({file})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), str(error)) from None
    folder = file.parent
    files = ("credentials", "ca", "cert", "key")
    given = {name: getattr(settings.cluster, name) for name in files}
    there = {name: value and str(folder / value) for name, value in given.items()}
    cluster = msgspec.structs.replace(settings.cluster, **there)
    settings = msgspec.structs.replace(settings, cluster=cluster)
    if settings.tls is None:
        return settings
    found = msgspec.structs.replace(
        settings.tls,
        cert=str(folder / settings.tls.cert),
        key=str(folder / settings.tls.key),
        client_ca=settings.tls.client_ca and str(folder / settings.tls.client_ca),
    )
    return msgspec.structs.replace(settings, tls=found)


def _explain(text: str) -> tuple[str, str]:
    """What msgspec says of a value, as the setting's name and the reason."""
    reason, _, path = text.partition(" - at `$")
    setting = path.rstrip("`").lstrip(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason):
        return ".".join(filter(None, (setting, unknown[1]))), "there is no such setting"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return ".".join(filter(None, (setting, missing[1]))), "this setting is missing"
    if not setting and ": " in reason:
        setting, _, reason = reason.partition(": ")  # from a check of our own
    return setting or "settings", reason[:1].lower() + reason[1:]


def new_token() -> str:
    """A token that nobody can guess, short enough for every dialect."""
    return "".join(secrets.choice(_TOKEN_ALPHABET) for _ in range(TOKEN_LENGTH))


def hash_token(token: str) -> str:
    """How a token stands in the configuration."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()
