"""One URL for everything: from a listener of a broker to its HTTP, and back.

A broker with HTTP tells its listeners: on the wire as a part of its state, over HTTP in
`/v1/session`. Where a dialect cannot ask for that, HTTP is looked for at its usual port, and must
have the listener that the URL names.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote, urlsplit

from wirelake.client.http import HttpClient
from wirelake.client.speech import can
from wirelake.client.sync import connect_sync
from wirelake.client.url import parse
from wirelake.config import DEFAULT_HOST, Settings
from wirelake.dialects import AUTO, DIALECTS, Dialect
from wirelake.errors import EngineError, WirelakeError

HTTP = ("http://", "https://")
#: The port of HTTP, unless the settings say another.
HTTP_PORT = int(Settings().http.rpartition(":")[2])


def http_client(
    url: str, token: str = "", *, timeout: float = 30.0, port: int = HTTP_PORT
) -> HttpClient:
    """Return a client of a broker's HTTP, given the URL of that or of any of its listeners.

    Raises ConfigError for a URL that is none, EngineError if the broker's HTTP is not found, and
    what a connection to the listener raises.
    """
    if url.startswith(HTTP):
        return HttpClient(url, token, timeout=timeout)
    place = parse(url, token=token)
    host = place.host or DEFAULT_HOST
    if can(place.dialect, "state of the broker"):
        with connect_sync(url, token=token, timeout=timeout, reconnect=False) as client:
            listeners = client.info().get("listeners", [])
        for one in listeners:
            if str(one).startswith(HTTP):
                return HttpClient(_reached(str(one), host), place.token, timeout=timeout)
        raise EngineError(f"the broker at {place} has no HTTP, which this needs")
    shown = f"[{host}]" if ":" in host else host
    found = HttpClient(f"http://{shown}:{port}", place.token, timeout=timeout)
    try:
        listeners = _listeners(found)
    except (WirelakeError, TimeoutError) as error:
        text = f"{place.dialect} cannot ask the broker for its HTTP, which this needs: {error}"
        raise EngineError(f"{text}; give its URL, as in {found.url}") from None
    if not any(_is_at(one, place.port, place.path) for one in listeners):
        text = f"the HTTP at {found.url} is of another broker than {place}"
        raise EngineError(f"{text}: give the URL of the right one")
    return found


def wire_url(http: HttpClient, *abilities: str) -> str:
    """Return the URL of a listener, in a dialect with these abilities and as many as there are.

    Raises EngineError if the broker tells of no such listener, and what a request raises.
    """
    listeners = _listeners(http)
    host = urlsplit(http.url).hostname or DEFAULT_HOST
    found = [
        (one, dialect)
        for dialect in DIALECTS.values()
        for one in listeners
        if dialect.abilities.issuperset(abilities) and _takes(one, dialect)
    ]
    if not found:
        wanted = " and ".join(abilities) or "messages"
        raise EngineError(f"the broker at {http.url} tells of no listener for {wanted}")

    def rank(pair: tuple[str, Dialect]) -> tuple[bool, int, bool]:
        one, dialect = pair
        return "+unix" in one, -len(dialect.abilities), not dialect.is_newest

    listener, dialect = min(found, key=rank)
    _, colon, place = _reached(listener, host).partition("://")
    over = listener.partition("://")[0].partition("+")[2]
    return f"{dialect.name}{'+' * bool(over)}{over}{colon}{place}"


def _listeners(http: HttpClient) -> list[str]:
    """What a broker's HTTP tells of its listeners; EngineError if it is no broker of ours."""
    told = http.get("/v1/session")
    listeners = told.get("listeners", []) if isinstance(told, dict) else None
    if not isinstance(listeners, list):
        raise EngineError(f"{http.url}: this is no broker of ours")
    return [str(one) for one in listeners if not str(one).startswith(HTTP)]


def _takes(listener: str, dialect: Dialect) -> bool:
    family = listener.partition("://")[0].partition("+")[0]
    return family == dialect.family or (family == AUTO and dialect.detect is not None)


def _is_at(listener: str, port: int, path: str) -> bool:
    parts = urlsplit(listener)
    return unquote(parts.path) == path if path else parts.port == port


def _reached(listener: str, host: str) -> str:
    """The URL of a listener as seen from here: one at all addresses is at the host we know."""
    parts = urlsplit(listener)
    if parts.hostname and _is_any(parts.hostname):
        shown = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{shown}:{parts.port}"
    return listener


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_url(text: str | None) -> bool:
    """Whether a text is meant as a URL: an address of messages has no `://` in it."""
    return text is not None and "://" in text


def without_scheme(text: str) -> str:
    """What a text that names a host was meant to be, as a URL; empty if it names none.

    The scheme follows from a default port; else it is that of the dialect that can do the most.
    """
    host, colon, port = text.rpartition(":")
    has_port = bool(host and colon) and port.isascii() and port.isdigit() and "/" not in host
    if not has_port and text != "localhost" and not _is_address(text):
        return ""
    newest = [one for one in DIALECTS.values() if one.is_newest]
    schemes = {str(one.port): one.name for one in newest if one.port}
    schemes[str(HTTP_PORT)] = "http"
    fullest = max(newest, key=lambda one: len(one.abilities)).name
    return f"{schemes.get(port, fullest)}://{text}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True
