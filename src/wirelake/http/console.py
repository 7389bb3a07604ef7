"""The endpoints of the console: its files, logins, live figures, and what its pages ask for."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from wirelake import __version__
from wirelake.address import check_address, check_filter
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights, covers
from wirelake.console import MISSING, load
from wirelake.errors import RefusedError
from wirelake.http.exchange import (
    Stream,
    answer,
    body,
    number,
    one,
    path_part,
    peer,
    query,
    require,
    require_admin,
    rights_of,
    rights_of_token,
)
from wirelake.http.figures import Figures
from wirelake.http.gate import Gate
from wirelake.http.ledger import Ledger
from wirelake.http.live import MOST_FILTERS, MOST_LIVE, MOST_RATE, Live
from wirelake.http.logins import Logins, cookie_header
from wirelake.wire import DIALECTS

#: Seconds of rates that can be asked for.
MOST_SECONDS = 3600
#: The body of a login, in bytes.
MAX_LOGIN = 4096

_KINDS = ("publish", "subscribe", "serve", "store", "declare", "clients")


class Console:
    """What a browser needs beside the interface that everybody uses."""

    def __init__(self, gate: Gate, ledger: Ledger, executor: Executor, about: str) -> None:
        self._gate = gate
        self._node: Node = gate.node
        self._about = about  # the page that is shown where the console is not installed
        self._files = load()
        self._figures = Figures(gate, ledger, executor)
        self._live: set[Live] = set()
        self.logins = Logins(gate.node)

    def stop_live(self) -> None:
        """Let every stream end."""
        for live in list(self._live):
            live.end()

    # Files

    async def page(self, request: Request) -> Response:
        """The console, or how to get it."""
        query(request)
        if "index.html" not in self._files:
            return HTMLResponse(self._about.replace("<!--missing-->", f"<p>{MISSING}</p>"))
        return self._file(request, "index.html")

    async def file(self, request: Request) -> Response:
        """A file of the console."""
        query(request)
        name = path_part(request, "file")
        if name not in self._files:
            raise RefusedError("not_found", "the console has no such file")
        return self._file(request, name)

    def _file(self, request: Request, name: str) -> Response:
        file = self._files[name]
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, 200, headers, file.media_type)

    # Logins

    async def session(self, request: Request) -> Response:
        """Who this is, and what they may do."""
        query(request)
        rights = rights_of(request, self._node)
        login = self.logins.of(request)
        return answer(self._described(rights, login.csrf if login is not None else ""))

    async def log_in(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        query(request)
        try:
            given = msgspec.json.decode(await body(request, MAX_LOGIN), type=dict[str, str])
            token = given["token"]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
            raise RefusedError("bad_request", 'the body is {"token": "…"}') from None
        rights = rights_of_token(request, self._node, token)
        if rights.is_open:
            return answer(self._described(rights, ""))
        cookie, login = self.logins.open(rights, time.monotonic())
        headers = {"Set-Cookie": cookie_header(request, cookie), "Cache-Control": "no-store"}
        return answer(self._described(rights, login.csrf), headers=headers)

    async def log_out(self, request: Request) -> Response:
        """End a login."""
        query(request)
        rights_of(request, self._node, reads=True)  # which asks for the word against forgery
        self.logins.close(request)
        return Response(status_code=204, headers={"Set-Cookie": cookie_header(request, "")})

    def _described(self, rights: Rights, csrf: str) -> dict[str, Any]:
        return {
            "name": rights.name,
            "admin": rights.admin,
            "open": rights.is_open,
            "stranger": rights.is_empty,
            "rights": {kind: list(getattr(rights, kind)) for kind in _KINDS},
            "csrf": csrf,
            "version": __version__,
            "dialects": list(DIALECTS),
            "log": self._node.capture.active,
        }

    # Live

    async def live(self, request: Request) -> Response:
        """Figures once a second, and a tail of some filters."""
        found = query(request, "part", "filter", "rate")
        rights = rights_of(request, self._node)
        known = self._figures.parts()
        wanted = list(dict.fromkeys(found.get("part", [])))
        for name in wanted:
            if name not in known:
                raise RefusedError("bad_request", f"there is no part {name}")
        filters = list(dict.fromkeys(check_filter(one) for one in found.get("filter", [])))
        if len(filters) > MOST_FILTERS:
            raise RefusedError("too_large", f"a tail has at most {MOST_FILTERS} filters")
        if rights.is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        for filter in filters:
            require(rights, "subscribe", filter)
        rate = number(one(found, "rate", "200"), "rate", least=1, most=MOST_RATE)
        if len(self._live) >= MOST_LIVE:
            raise RefusedError("busy", f"{MOST_LIVE} pages are open already")
        parts = {name: known[name] for name in wanted}
        live = Live(self._gate, rights, peer(request), parts, filters, rate)
        await live.open()
        self._live.add(live)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

        def ended() -> None:
            self._live.discard(live)
            live.close()

        return Stream(live.stream(), headers, "text/event-stream", ended)

    async def rates(self, request: Request) -> Response:
        """Rates by dialect of the last seconds."""
        found = query(request, "seconds")
        require_admin(rights_of(request, self._node))
        most = number(one(found, "seconds", "600"), "seconds", least=1, most=MOST_SECONDS)
        return answer(await self._figures.rates(most))

    async def depths(self, request: Request) -> Response:
        """The depths of a queue in the last hour."""
        query(request)
        name = check_address(path_part(request, "name"))
        require(rights_of(request, self._node), "subscribe", name)
        return answer(await self._gate.ask(lambda: self._node.traffic.depths(name)))

    # Connections

    async def close_connection(self, request: Request) -> Response:
        """Close a connection, once what was written to it has gone out."""
        query(request)
        require_admin(rights_of(request, self._node))
        wanted = number(path_part(request, "number"), "the number")

        def close() -> None:
            for session in self._node.sessions:
                if session.number == wanted:
                    session.say_goodbye()
                    session.close("closed by an operator")
                    return
            raise RefusedError("not_found", f"no connection {wanted}")

        await self._gate.ask(close)
        return Response(status_code=204)

    # Access

    async def access(self, request: Request) -> Response:
        """The tokens and what they may do: all of them for operators, else one's own."""
        query(request)
        mine = rights_of(request, self._node)
        if mine.is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        shown = [one for one in self._node.all_rights if mine.admin or one.key == mine.key]
        return answer({"tokens": [self._rights(one) for one in shown]})

    def _rights(self, rights: Rights) -> dict[str, Any]:
        kinds = {kind: list(getattr(rights, kind)) for kind in _KINDS}
        name = "everybody" if rights.is_open else rights.name
        return {"name": name, "token": bool(rights.key), "admin": rights.admin, **kinds}

    async def may(self, request: Request) -> Response:
        """May a token do something, and why, or why not?"""
        found = query(request, "token", "kind", "address")
        mine = rights_of(request, self._node)
        name, kind, address = (one(found, key) for key in ("token", "kind", "address"))
        if kind not in (*_KINDS, "admin"):
            raise RefusedError("bad_request", f"kind is one of {', '.join((*_KINDS, 'admin'))}")
        if kind != "admin":
            check_filter(address)
        rights = mine
        if name and name != mine.name:
            require_admin(mine)
            by_name: dict[str, Rights] = {one.name: one for one in self._node.all_rights}
            if name not in by_name:
                raise RefusedError("not_found", f"no token {name}")
            rights = by_name[name]
        allowed, why = explain(rights, kind, address)
        return answer({"allowed": allowed, "why": why})


def explain(rights: Rights, kind: str, address: str) -> tuple[bool, str]:
    """Whether rights allow something, and the filter that does, or what is missing."""
    who = "everybody" if rights.is_open else rights.name
    if rights.is_open:
        return True, "no tokens are configured: everybody may do everything"
    if kind == "admin":
        return rights.admin, f"{who} has {'' if rights.admin else 'no '}admin"
    if kind == "declare" and rights.admin:
        return True, f"{who} has admin, which includes making queues"
    allowed: tuple[str, ...] = getattr(rights, kind)
    for filter in allowed:
        if filter == "#" or covers(filter, address):
            return True, f"{who} may {kind} {filter}, which covers {address}"
    if not allowed:
        return False, f"{who} has no right to {kind} anything"
    listed = ", ".join(allowed)
    return False, f"{who} may {kind} {listed}; none of these covers {address}"
