"""Where a broker is and who is calling, from a URL: `kobold-3+tls://name:token@host:7702`.

The scheme is a dialect, or a family for its newest dialect, then `+tls` or `+unix` or both. Every
fault of it is a `ConfigError` at once, before anything is connected; none shows the token.
"""

from __future__ import annotations

import os
import ssl
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from os import PathLike
from urllib.parse import unquote, urlsplit

from wirelake.dialects import AUTO, AUTO_PORT, DIALECTS, Dialect, families
from wirelake.errors import ConfigError

#: The schemes of WebSockets, where HTTP listens by default, and the path that a dialect follows.
WEBSOCKETS = ("ws", "wss")
HTTP_PORT = 7780
WIRE = "/wire/"


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, the dialect to speak there, and the identity to claim."""

    dialect: str
    host: str
    port: int
    path: str = ""  # of a Unix socket; then there is no host
    client_id: str = ""
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    is_websocket: bool = False  # then `path` is that of the URL
    #: Further hosts and ports of the same cluster, to be tried when this one does not answer.
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        tls = "+tls" if self.tls else ""
        if self.is_websocket:
            return self.websocket_url
        if self.path:
            return f"{self.dialect}{tls}+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.dialect}{tls}://{host}:{self.port}"

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """All hosts and ports, in the order of the URL."""
        return ((self.host, self.port), *self.others)

    @property
    def family(self) -> str:
        """The family of the dialect."""
        return DIALECTS[self.dialect].family

    @property
    def websocket_url(self) -> str:
        """Where a WebSocket is opened."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.path}"


def parse(
    url: str,
    *,
    client_id: str = "",
    token: str = "",
    tls: ssl.SSLContext | None = None,
    ca: str | PathLike[str] | None = None,
    cert: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
) -> Place:
    """Read a URL; what is given beside it goes before what it says."""
    if "://" not in url:
        place = url.rpartition("@")[2]  # what stands before it may be a token
        text = f"{place!r} has no scheme: say in which dialect, as in kobold-3://{place}"
        raise ConfigError("url", text)
    url, more = _first_host(url)
    if more:
        places = [parse(f"{url.partition('://')[0]}://{host}", tls=tls) for host in more]
        if any(one.path or one.is_websocket for one in places):
            raise ConfigError("url", "several hosts are for connections by TCP")
        first = parse(url, client_id=client_id, token=token, tls=tls, ca=ca, cert=cert, key=key)
        return replace(first, others=tuple((one.host, one.port) for one in places))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may show what was meant to be a token
        raise ConfigError("url", "it has a host, and a port from 1 to 65535") from None
    name, *options = parts.scheme.split("+")
    is_websocket = name in WEBSOCKETS and not options
    path = unquote(parts.path)
    if is_websocket:
        options = ["tls"] if name == "wss" else []
        if not path.startswith(WIRE):
            raise ConfigError("url", f"a WebSocket is at {name}://host:port{WIRE}<dialect>")
        name = path.removeprefix(WIRE)
    dialect = DIALECTS.named(name)
    if dialect is None:
        known = ", ".join([*families(), *DIALECTS])
        raise ConfigError("url", f"{name or 'none'!r} is no dialect; there are {known}")
    if len(set(options)) < len(options) or not {"tls", "unix"}.issuperset(options):
        raise ConfigError("url", f"{parts.scheme!r}: behind a dialect come +tls and +unix")
    if parts.query or parts.fragment:
        raise ConfigError("url", "it has no ?query and no #fragment")
    if is_websocket:
        port = port or HTTP_PORT
    elif "unix" in options:
        if parts.netloc.rpartition("@")[2] or len(path) < 2:
            raise ConfigError("url", f"a Unix socket is {parts.scheme}:///path/of/the/socket")
    elif path not in ("", "/"):
        raise ConfigError("url", "it has no path, unless it is of a Unix socket")
    elif port == 0:
        raise ConfigError("url", "nothing listens at port 0")
    if not (tls or ca or cert or key) and "tls" in options:
        # Commands have no options for these, so that every one of them can have them.
        ca, cert, key = (os.environ.get(f"WIRELAKE_{name}") for name in ("CA", "CERT", "KEY"))
    if not (tls or ca or cert or key):
        context = ssl.create_default_context() if "tls" in options else None
    elif "tls" not in options:
        raise ConfigError("url", f"keys and certificates are for {dialect.name}+tls://")
    else:
        context = tls or _context(ca, cert, key)
    client_id = client_id or unquote(parts.username or "")
    token = token or unquote(parts.password or "")
    if port is None and dialect.port is None and "unix" not in options:
        raise ConfigError("url", f"{dialect.name} has no default port: give one")
    return Place(
        dialect.name,
        "" if "unix" in options else parts.hostname or "127.0.0.1",
        (dialect.port or 0) if port is None else port,
        path if "unix" in options or is_websocket else "",
        _identity(dialect, client_id, token),
        token,
        context,
        is_websocket,
    )


def _first_host(url: str) -> tuple[str, list[str]]:
    """Return a URL with the first of its hosts alone, and the other hosts with their ports."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    first, *others = hosts.split(",")
    if not others:
        return url, []
    return f"{scheme}{separator}{user}{at}{first}{slash}{path}", others


def dialect_urls(urls: Iterable[str], *, token: str = "") -> dict[str, str]:
    """The URL of each dialect that these listeners speak, by dialect; the first URL is taken.

    `auto` stands for all dialects, a family for its own, a dialect for itself. Raises ConfigError
    if a scheme is none of these, or what follows it is wrong.
    """
    found: dict[str, str] = {}
    for url in urls:
        scheme, separator, rest = url.partition("://")
        family, plus, over = scheme.lower().partition("+")
        if family == AUTO and ":" not in rest.rpartition("@")[2] and "unix" not in over:
            rest = f"{rest.rstrip('/')}:{AUTO_PORT}"
        spoken = [one.name for one in DIALECTS.values() if family in (AUTO, one.name, one.family)]
        if not spoken:
            known = ", ".join([AUTO, *families(), *DIALECTS])
            text = f"{family or url!r} is neither a listener nor a dialect: {known}"
            raise ConfigError("url", text)
        for name in spoken:
            found.setdefault(name, f"{name}{plus}{over}{separator}{rest}")
            parse(found[name], token=token)
    return found


def _context(
    ca: str | PathLike[str] | None,
    cert: str | PathLike[str] | None,
    key: str | PathLike[str] | None,
) -> ssl.SSLContext:
    """TLS with this authority instead of the system's, and this certificate of our own."""
    if key and not cert:
        raise ConfigError("key", "a key belongs to a certificate: give cert= too")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise ConfigError("cert" if cert else "ca", str(error)) from None
    return context


def _identity(dialect: Dialect, client_id: str, token: str) -> str:
    """Return the client id, if the dialect can say it with this token; it may make one up."""
    for setting, text in (("client_id", client_id), ("token", token)):
        if any(unicodedata.category(c) == "Cc" for c in text):
            raise ConfigError(setting, "has no control characters")
    if len(client_id.encode()) > 255:
        raise ConfigError("client_id", "has at most 255 bytes")
    if dialect.identity is not None:
        checked: str = dialect.load("identity")(client_id, token)
        return checked
    return client_id
