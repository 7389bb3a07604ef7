"""One request and its answer: parameters in, JSON out, and every error as an HTTP status, once.

Routing is done on the path as it was sent, with its percent signs, so that a `%2F` is a slash of
an address while a `/` may also separate what stands behind it (`/v1/queues/a/b/messages`). What is
taken from a path must be UTF-8, and so must header values.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as ASGIMessage

from wirelake.address import MAX_NUMBER, check_number
from wirelake.broker.guesses import refusal
from wirelake.broker.rights import Rights
from wirelake.errors import EngineError, RefusedError
from wirelake.http.limits import Delays, HttpLimits, Memory
from wirelake.http.logins import LoginError, Logins, has_cookie
from wirelake.journal.contract import Position
from wirelake.message import Message
from wirelake.wire.parameters import headers_of

if TYPE_CHECKING:
    from wirelake.broker.node import Node

#: The spec's codes as HTTP has them; `unauthorized` is 401 for those who gave no token.
STATUSES = {
    "bad_request": 400,
    "unauthorized": 403,
    "not_found": 404,
    "exists": 409,
    "conflict": 409,
    "too_large": 413,
    "no_service": 503,
    "timeout": 504,
    "busy": 503,
    "closed": 503,
    "moved": 307,
}

#: What a page of ours may load: files of this server, and nothing written into the page itself.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
#: Headers of every answer, whatever it is: any of them may be shown by a browser.
PROTECTION = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)

#: What is listed at most: messages or keys, and bytes of them.
MOST = 1000
MOST_BYTES = 8 << 20

_encode = msgspec.json.Encoder().encode


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(_encode(value) + b"\n", status, headers, "application/json")


def refused(
    code: str, text: str, status: int = 0, headers: Mapping[str, str] | None = None, **more: object
) -> Response:
    """An error, as every one looks."""
    status = status or STATUSES.get(code, 500)  # a newer node may have a code of its own
    extra = {"Retry-After": "1"} if status == 503 else {}
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return answer({"error": code, "text": text, **more}, status, {**extra, **(headers or {})})


class TokenError(RefusedError):
    """An unknown token; the answer is delayed by this many seconds."""

    delay = 0.0


class PreconditionError(RefusedError):
    """A precondition of the client (`If-Match`, `If-None-Match`) does not hold."""


class RangeError(RefusedError):
    """Rows that the log does not have: it is the log `id`, and has [first, next)."""

    def __init__(self, text: str, id: str, position: Position) -> None:
        super().__init__("not_found", text)
        self.told: dict[str, Any] = {"log": id, "first": position.first, "next": position.next}


async def on_refused(request: Request, error: Exception) -> Response:
    """Return the response for a RefusedError or an EngineError."""
    match error:
        case TokenError():
            await request.scope["delays"].wait(error.delay)
            return refused(error.code, error.text, 401)
        case LoginError():
            return refused(error.code, error.text, 401)
        case RangeError():
            return refused(error.code, error.text, 416, **error.told)
        case PreconditionError():
            return refused(error.code, error.text, 412)
        case RefusedError():
            status = 401 if error.code == "unauthorized" and not has_token(request) else 0
            return refused(error.code, error.text, status)
        case EngineError():
            return refused("busy", error.reason)
        case _:
            raise error


async def on_http_error(request: Request, error: Exception) -> Response:
    """Return the response for errors of Starlette: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        text = f"{request.method} cannot be done to this"
        return refused("bad_request", text, 405, error.headers)
    return refused("not_found", "there is nothing here; see /docs", 404)


async def on_failure(request: Request, error: Exception) -> Response:
    """A fault of our own; it is in the log."""
    return refused("internal", "the broker failed to answer this", 500)


async def on_disconnect(request: Request, error: Exception) -> Response:
    """The client went away while it was heard; nobody reads this."""
    return refused("closed", "the client went away", 503)


class CutOffError(Exception):
    """An answer that has begun must not go on: the connection is cut off in the middle of it."""


class Stream(StreamingResponse):
    """An answer of which nobody knows how long it is; `ended` is called in any case.

    A client that asks for its head alone gets that. Where the content raises CutOffError, the
    connection ends without an end of the answer, so that nobody takes what came for all of it.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes | memoryview],
        headers: Mapping[str, str],
        media_type: str,
        ended: Callable[[], object],
    ) -> None:
        self._content = self._until_cut_off(content)
        super().__init__(self._content, 200, headers, media_type)
        self._ended = ended
        self._cut_off: Callable[[], object] = bool

    async def _until_cut_off(
        self, content: AsyncGenerator[bytes | memoryview]
    ) -> AsyncGenerator[bytes | memoryview]:
        try:
            async with aclosing(content):
                async for piece in content:
                    yield piece
        except CutOffError:
            self._cut_off()
            await asyncio.Event().wait()  # until we hear that the connection is gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        self._cut_off = scope["cut_off"]
        try:
            if scope["method"] == "HEAD":
                head = Response(None, self.status_code)
                head.raw_headers = self.raw_headers
                await head(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._ended()
            await self._content.aclose()  # now, and not when somebody collects it


class Protection:
    """Adds the headers `PROTECTION` to every answer; those that an answer has already stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def protect(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                given += [header for header in PROTECTION if header[0] not in names]
                message = {**message, "headers": given}
            await send(message)

        await self._app(scope, receive, protect)


class Doorman:
    """Lets requests in whose path is routed as it was sent, and that no web page made up.

    Where no tokens are asked for, any page in a browser on this machine could otherwise use the
    broker: by a request from a foreign origin, or by a name that leads to the loopback address.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        local: bool,
        logins: Logins,
        limits: HttpLimits,
        memory: Memory,
        origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._local = local
        self._origins = origins
        self._memory = memory
        self._shared = {
            "logins": logins,
            "limits": limits,
            "memory": memory,
            "delays": Delays(limits),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            path = scope["raw_path"].decode("latin-1")
            scope = {**scope, **self._shared, "path": path, "held": [0]}
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin", b"").decode("latin-1")
            if (origin and not _is_same(origin, host)) or (self._local and not _is_local(host)):
                text = "requests of other web pages are not taken"
                await refused("unauthorized", text, 403)(scope, receive, send)
                return
            if scope.get("is_full"):
                text = "too many requests are under way (http_connections)"
                await refused("busy", text)(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin", b"").decode("latin-1")
            is_foreign = origin and origin not in self._origins and not _is_same(origin, host)
            if is_foreign or (self._local and not _is_local(host)):
                await send({"type": "websocket.close"})  # before it is accepted: 403
                return
        try:
            await self._app(scope, receive, send)
        finally:
            self._memory.give_back(scope.get("held", [0])[0])


def _is_same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    """Is this an address, and not a name that anybody may have made up?"""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name in ("", "localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def peer(request: Request) -> str:
    """Return the address of the peer, as text for people."""
    return f"{request.client.host}:{request.client.port}" if request.client else "?"


def is_forwarded(request: Request) -> bool:
    """Whether another node sent this: it is answered for the partitions of this node alone."""
    return "rights" in request.scope


def has_token(request: Request) -> bool:
    """Whether a request says who its sender is."""
    if is_forwarded(request):
        return bool(request.scope["has_token"])
    return bool(request.headers.get("authorization")) or has_cookie(request)


def rights_of(request: Request, node: Node, *, reads: bool = False) -> Rights:
    """Return the rights of a request's sender; `reads`: it changes nothing, by any method."""
    if is_forwarded(request):  # by a node that has found them
        found: Rights = request.scope["rights"]
        return found
    given = request.headers.get("authorization", "")
    if not given:
        logins: Logins = request.scope["logins"]
        return logins.rights(request, reads=reads) or node.clients.rights_of_strangers
    kind, _, token = given.partition(" ")
    return rights_of_token(request, node, token.strip() if kind.lower() == "bearer" else None)


def rights_of_token(request: Request, node: Node, given: str | None) -> Rights:
    """Return the rights of a token; TokenError, answered with a delay, for an unknown one."""
    token = given or ""
    address = request.client.host if request.client else ""
    now = time.monotonic()
    if wait := node.clients.guesses.wait(address, token, now):
        raise TokenError("unauthorized", refusal(wait))
    rights = None if given is None else node.clients.rights_of_token(token)
    if rights is None:
        error = TokenError("unauthorized", "the token is not known")
        error.delay = node.clients.guesses.failed_at(address, now)
        raise error
    if not node.clients.rights_of_strangers.is_open:
        node.clients.guesses.succeeded_at(address, token)
    return rights


def require(rights: Rights, kind: str, filter: str) -> None:
    """Refuse those who may not do this kind of thing to a filter's addresses."""
    if not rights.allows(kind, filter):
        raise RefusedError("unauthorized", f"no right to {kind} {filter}")


def require_admin(rights: Rights) -> None:
    """Refuse those who are no operators."""
    if not rights.admin:
        raise RefusedError("unauthorized", "this is for operators")


def path_part(request: Request, name: str) -> str:
    """A part of the path, decoded."""
    return _text(unquote_to_bytes(request.path_params[name]), "the path")


def query(request: Request, *known: str) -> dict[str, list[str]]:
    """Return the query's parameters; RefusedError for one that is not among these."""
    try:
        # As latin-1 at first: a replacement character would hide what is not UTF-8.
        pairs = parse_qsl(
            request.scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=100,
        )
    except ValueError:
        raise RefusedError("bad_request", "a query has at most 100 parameters") from None
    found: dict[str, list[str]] = {}
    for raw_name, raw_value in pairs:
        name, value = (_text(raw.encode("latin-1"), "the query") for raw in (raw_name, raw_value))
        if name not in known:
            raise RefusedError("bad_request", f"there is no parameter {name}")
        found.setdefault(name, []).append(value)
    return found


def one(found: dict[str, list[str]], name: str, default: str = "") -> str:
    """A parameter that may be given once."""
    values = found.get(name, [default])
    if len(values) > 1:
        raise RefusedError("bad_request", f"{name} is given twice")
    return values[0]


def number(text: str, name: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """A whole number within bounds."""
    return check_number(text, name, least=least, most=most)


def header(request: Request, name: str) -> str:
    """A header's value, empty where there is none."""
    value = request.headers.get(name, "")
    return _text(value.encode("latin-1"), name)


def header_pairs(request: Request, prefix: str) -> dict[str, str]:
    """The headers whose names begin so, without that."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = _text(value.encode("latin-1"), name)
    return found


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RefusedError("bad_request", f"{where} is not UTF-8") from None


async def body(request: Request, most: int) -> bytes:
    """Read the whole body; refuse one of more than `most` bytes, unread if its size is known."""
    too_large = RefusedError("too_large", f"a body has at most {most} bytes")
    announced = request.headers.get("content-length", "")
    if announced and number(announced, "Content-Length") > most:
        raise too_large
    parts: list[bytes] = []
    size = 0
    stream = request.stream()
    limits: HttpLimits = request.scope["limits"]
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        while True:
            async with asyncio.timeout(limits.patience):
                part = await anext(stream, None)
            if part is None:
                return b"".join(parts)
            size += len(part)
            if size > most:
                raise too_large
            if limits.is_late(size, loop.time() - begun):
                text = f"a body has at least {limits.min_rate} bytes a second (limits.min_rate)"
                raise RefusedError("timeout", text)
            request.scope["memory"].take(len(part))
            request.scope["held"][0] = size
            parts.append(part)
    except TimeoutError:
        text = f"nothing of the body came for {limits.patience:g} s (handshake_timeout)"
        raise RefusedError("timeout", text) from None


def as_json(message: Message, **more: object) -> dict[str, Any]:
    """A message as people see it: what is absent is left out, a payload is text or base64."""
    shown: dict[str, Any] = {"address": message.address, **more}
    for name in ("id", "correlation_id", "source", "priority", "ttl", "timestamp"):
        if value := getattr(message, name):
            shown[name] = value
    if headers := headers_of(message):
        shown["headers"] = dict(headers)
    return {**shown, **value_as_json(message.payload, "payload")}


def value_as_json(value: bytes, name: str) -> dict[str, str]:
    """Bytes under this name where they are UTF-8, else as `base64`."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
