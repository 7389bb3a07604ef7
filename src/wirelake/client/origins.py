"""Where the HTTP of one or several nodes is: `http://one:7780,two:7780`, as origins.

An origin is a scheme, a host and a port, as in `http://one:7780`. A token is sent to the origins of
a URL and to those that a node of them tells as nodes of its cluster, and nowhere else; and never
without TLS where the URL asks for TLS.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from wirelake.errors import ConfigError, EngineError

#: Redirects of one request, at most.
MOST_REDIRECTS = 4


def origins(url: str) -> tuple[str, ...]:
    """The origins of a URL with one or several hosts; raises ConfigError where it is none."""
    scheme, _, places = url.rstrip("/").partition("://")
    found: list[str] = []
    for place in places.split(","):
        one = f"{scheme}://{place.strip().removeprefix(f'{scheme}://')}"
        try:
            parts = urlsplit(one)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable or parts.path or parts.query or parts.fragment or parts.username:
            raise ConfigError("url", f"{url} is not of the form http://host:port")
        if one not in found:
            found.append(one)
    return tuple(found)


def redirected(location: str, sent_to: str) -> tuple[str, str]:
    """The origin that an answer redirects to, and the path there.

    Raises EngineError for what is no URL of HTTP, and for one without TLS where there was TLS.
    """
    parts = urlsplit(location)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.username:
        raise EngineError(f"{sent_to} redirects to {location!r}, which is no URL")
    if sent_to.startswith("https:") and parts.scheme != "https":
        text = f"{sent_to} redirects to {parts.scheme}://{parts.netloc}, which has no TLS"
        raise EngineError(f"{text}: nothing is sent there")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", path


def check_node(origin: str, nodes: Iterable[str], sent_to: str) -> None:
    """Raise EngineError for a redirect to what is no node of the cluster."""
    if origin not in nodes:
        text = f"{sent_to} redirects to {origin}, which is no node of its cluster"
        raise EngineError(f"{text}: nothing is sent there")
