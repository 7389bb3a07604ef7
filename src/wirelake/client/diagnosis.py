"""Reaching a broker by any of its URLs; where that fails, why, and what to do.

For people: after a connection has failed, the port is tried in other ways. Is anything there, does
it speak HTTP, TLS, or the dialects of another family? It is asked nothing and shown no token.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Unpack
from urllib.parse import urlsplit

from wirelake.client.client import Client, Options, connect
from wirelake.client.finding import HTTP, wire_url
from wirelake.client.http import HttpClient
from wirelake.client.speech import can
from wirelake.client.url import Place, parse
from wirelake.dialects import DIALECTS, Dialect
from wirelake.errors import EngineError, ProtocolError, RefusedError, WirelakeError

#: Seconds that each try may take, and an answer of HTTP where nothing else is said.
PATIENCE, ANSWER = 2.0, 30.0
START = "start one with `wirelake serve`, or name another by its URL"


class UnreachableError(EngineError):
    """There is no broker at a URL that answers in the way that the URL says."""


async def reach(url: str, *abilities: str, **options: Unpack[Options]) -> Client:
    """Return an open client of the broker at any of its URLs; whoever has it closes it.

    If that is the URL of HTTP, a listener is found there, of a dialect with these abilities. Raises
    ConfigError for a wrong URL, UnreachableError with what is wrong where that can be found out,
    and what opening raises.
    """
    http = (options.get("token", ""), options.get("timeout", ANSWER))
    try:
        url, options["token"] = await asyncio.to_thread(wire, url, *http, *abilities)
        client = connect(url, **options)
        try:
            await opened(client, url)
            dialect = DIALECTS[client.dialect]
            if not dialect.introduces_itself and can(dialect.name, "ping"):
                await client.ping()  # else nobody would notice that it is the wrong port
        except BaseException:
            await client.close()
            raise
    except WirelakeError as error:
        raise await diagnose(url, error) from None
    return client


def wire(url: str, token: str, timeout: float, *abilities: str) -> tuple[str, str]:
    """Return the URL of a listener and the token for it. Blocks.

    The listener is this one, or one that the HTTP at this URL tells of. That may have a token.
    """
    if not url.startswith(HTTP):
        return url, token
    http = HttpClient(url, token, timeout=timeout)
    return wire_url(http, *abilities), http.token


async def diagnose(url: str, error: WirelakeError) -> WirelakeError:
    """Return an error that says why the broker at `url` cannot be reached, or the one given."""
    if url.startswith(HTTP):
        if not isinstance(error, EngineError):
            return error  # it answered
        parts = urlsplit(url)
        place = Place("", parts.hostname or "", parts.port or (443 if url[4] == "s" else 80))
        has_tls = url.startswith(HTTP[1])
    else:
        if not isinstance(error, RefusedError | ProtocolError):
            return error
        if isinstance(error, RefusedError) and error.code not in ("closed", "timeout"):
            return error
        place = parse(url)
        has_tls = place.tls is not None
    where = place.path or _shown(place)
    if (absent := await _absence(place, where)) is not None:
        return absent
    if place.path or has_tls:
        return error
    if place.dialect and await _is_http(place):
        return _http_instead(place)
    if await _is_tls(place):
        scheme = f"{place.dialect}+tls" if place.dialect else "https"
        return UnreachableError(f"{where} speaks TLS: use {scheme}://{where}")
    if (other := await _spoken_at(place)) is not None:
        not_this = place.dialect or "HTTP"
        text = f"{where} does not speak {not_this} but {other.family}: use {other.name}://{where}"
        return UnreachableError(text)
    return error


async def opened(client: Client, url: str) -> Client:
    """Open a client; a port of HTTP that keeps silent is noticed soon.

    Raises what opening raises, and UnreachableError.
    """
    opening = asyncio.ensure_future(client.__aenter__())
    try:
        await asyncio.wait([opening], timeout=PATIENCE)
        if not opening.done():
            place = parse(url)
            if not place.path and place.tls is None and await _is_http(place):
                raise _http_instead(place)
        return await opening
    finally:
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


def _http_instead(place: Place) -> UnreachableError:
    text = f"this is HTTP, not {place.dialect}: use http://{_shown(place)}"
    return UnreachableError(text)


def _shown(place: Place) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{host}:{place.port}"


async def _absence(place: Place, where: str) -> WirelakeError | None:
    """An error if nothing listens there."""
    try:
        async with asyncio.timeout(PATIENCE):
            if place.path:
                _, writer = await asyncio.open_unix_connection(place.path)
            else:
                await _resolve(place)
                _, writer = await asyncio.open_connection(place.host, place.port)
        writer.close()
    except socket.gaierror:
        return UnreachableError(f"there is no host {place.host}")
    except TimeoutError:
        return UnreachableError(f"{where} has not answered: is the host up, and reachable?")
    except (ConnectionRefusedError, FileNotFoundError):
        return UnreachableError(f"nothing listens at {where}: {START}")
    except OSError as error:
        if "Connect call failed" in str(error):  # several addresses, and none takes us
            return UnreachableError(f"nothing listens at {where}: {START}")
    return None


async def _resolve(place: Place) -> None:
    await asyncio.get_running_loop().getaddrinfo(place.host, place.port)


async def _is_http(place: Place) -> bool:
    client = HttpClient(f"http://{_shown(place)}", timeout=PATIENCE)
    try:
        await asyncio.to_thread(client.get, "/healthz")
    except RefusedError:
        return True
    except (WirelakeError, TimeoutError):
        return False
    return True


async def _is_tls(place: Place) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is said, so it does not matter who it is
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(place.host, place.port, ssl=context)
        writer.transport.abort()
        return True
    return False


async def _spoken_at(place: Place) -> Dialect | None:
    """The dialect of another family that is spoken there, if there is one that tells."""
    mine = DIALECTS.get(place.dialect)
    for other in DIALECTS.values():
        is_other = mine is None or other.family != mine.family
        tells = other.introduces_itself or can(other.name, "ping")
        if other.is_newest and is_other and tells and await _speaks(other, place):
            return other
    return None


async def _speaks(dialect: Dialect, place: Place) -> bool:
    url = f"{dialect.name}://{_shown(place)}"
    try:
        async with (
            asyncio.timeout(PATIENCE),
            connect(url, timeout=PATIENCE, reconnect=False) as client,
        ):
            if not dialect.introduces_itself:
                await client.ping()
    except RefusedError as error:
        return error.code not in ("closed", "timeout")
    except (WirelakeError, TimeoutError):
        return False
    return True
