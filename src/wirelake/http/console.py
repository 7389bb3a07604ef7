"""The endpoints of the console: its files, logins, live figures, and what its pages ask for."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from wirelake import __version__
from wirelake.address import check_address, check_filter, covers
from wirelake.broker import inventory
from wirelake.broker.node import Node
from wirelake.broker.rights import KINDS, Rights
from wirelake.broker.trace import Trace, TraceLimits
from wirelake.config import Listener
from wirelake.console import MISSING, is_fixed, load
from wirelake.dialects import AUTO, DIALECTS
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
from wirelake.http.inspection import MOST_BYTES, inspect, traced, translations
from wirelake.http.ledger import Ledger
from wirelake.http.limits import HttpLimits
from wirelake.http.live import MOST_FILTERS, MOST_RATE, Live
from wirelake.http.log import Held, Selection, parse_time, select, stream
from wirelake.http.logins import Logins, cookie_header
from wirelake.http.publishing import Reader
from wirelake.http.relay import Relay, check_all
from wirelake.http.search import (
    LONGEST,
    MOST_BUCKETS,
    MOST_ROWS,
    Found,
    Wanted,
    as_told,
    exported,
    histogram,
    look,
    put_together,
)
from wirelake.http.sql import MAX_SQL, Sql, is_there
from wirelake.message import Message

T = TypeVar("T")

#: Seconds of rates that can be asked for.
MOST_SECONDS = 3600
#: The maximum number of an address's receivers that are listed.
MOST_SHOWN = 200
#: The body of a login, in bytes.
MAX_LOGIN = 4096

#: The parameters of a search in the log.
_SEARCH = ("filter", "op", "dialect", "text", "id", "header", "time_from", "time_to")


class Console:
    """The requests that only the console uses."""

    def __init__(
        self,
        gate: Gate,
        ledger: Ledger,
        executor: Executor,
        about: str,
        listeners: Sequence[Listener],
        relay: Relay,
        limits: HttpLimits,
        held: Held,
    ) -> None:
        self._relay = relay
        self._held = held
        self._searches = 0  # under way, or their answers are being sent
        relay.answers |= {"rows": self._tell_rows, "histogram": self._tell_histogram}
        self._gate = gate
        self._limits = limits
        self._node: Node = gate.node
        self._about = about  # the page that is shown where the console is not installed
        self._files = load()
        self._listeners = listeners
        self._executor = executor
        self._figures = Figures(gate, ledger, executor)
        self._live: set[Live] = set()
        self._sql = Sql(executor, limits)
        self._trace: Trace | None = None  # the latest, which may have ended
        self.logins = Logins(gate.node, self._limits)

    def stop_live(self) -> None:
        """End every stream."""
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
        kept = "public, max-age=31536000, immutable" if is_fixed(name) else "no-cache"
        headers = {"ETag": file.etag, "Cache-Control": kept, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if takes_gzip(request):
            return Response(
                file.small, 200, headers | {"Content-Encoding": "gzip"}, file.media_type
            )
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
            "rights": {kind: list(getattr(rights, kind)) for kind in KINDS},
            "csrf": csrf,
            "version": __version__,
            "dialects": list(DIALECTS),
            "about": {
                name: {"family": one.family, "colour": one.colour, "port": self._port(one.family)}
                for name, one in DIALECTS.items()
            },
            "listeners": [] if rights.is_empty else list(self._node.listeners),
            "log": self._node.capture.active,
            "sql": rights.admin and self._node.capture.active and is_there(),
        }

    def _port(self, family: str) -> int:
        """Where a family can be spoken without TLS; 0: nowhere."""
        for wanted in (family, AUTO):
            for listener in self._listeners:
                if listener.family == wanted and not listener.tls and not listener.path:
                    return listener.port
        return 0

    # Live

    async def live(self, request: Request) -> Response:
        """Figures once a second, and a tail of some filters."""
        found = query(request, "part", "filter", "watch", "rate")
        rights = rights_of(request, self._node)
        known = self._figures.parts()
        wanted = list(dict.fromkeys(found.get("part", [])))
        for name in wanted:
            if name not in known:
                raise RefusedError("bad_request", f"there is no part {name}")
        filters, watched = (
            list(dict.fromkeys(check_filter(one) for one in found.get(name, [])))
            for name in ("filter", "watch")
        )
        if len(filters) + len(watched) > MOST_FILTERS:
            raise RefusedError("too_large", f"a tail has at most {MOST_FILTERS} filters")
        if rights.is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        for filter in filters:
            require(rights, "subscribe", filter)
        for filter in watched:
            require(rights, "store", filter)
        rate = number(one(found, "rate", "200"), "rate", least=1, most=MOST_RATE)
        self._limits.check("pages", len(self._live))
        parts = {name: known[name] for name in wanted}
        live = Live(self._gate, rights, peer(request), parts, filters, watched, rate)
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
        shown = [one for one in self._node.clients.all_rights if mine.admin or one.key == mine.key]
        return answer({"tokens": [self._rights(one) for one in shown]})

    def _rights(self, rights: Rights) -> dict[str, Any]:
        kinds = {kind: list(getattr(rights, kind)) for kind in KINDS}
        name = "everybody" if rights.is_open else rights.name
        return {"name": name, "token": bool(rights.key), "admin": rights.admin, **kinds}

    async def may(self, request: Request) -> Response:
        """May a token do something, and why, or why not?"""
        found = query(request, "token", "kind", "address")
        mine = rights_of(request, self._node)
        name, kind, address = (one(found, key) for key in ("token", "kind", "address"))
        if kind not in (*KINDS, "admin"):
            raise RefusedError("bad_request", f"kind is one of {', '.join((*KINDS, 'admin'))}")
        if kind != "admin":
            check_filter(address)
        rights = mine
        if name and name != mine.name:
            require_admin(mine)
            by_name: dict[str, Rights] = {one.name: one for one in self._node.clients.all_rights}
            if name not in by_name:
                raise RefusedError("not_found", f"no token {name}")
            rights = by_name[name]
        allowed, why = explain(rights, kind, address)
        return answer({"allowed": allowed, "why": why})

    # The log

    async def rows(self, request: Request) -> Response:
        """Rows of the log as JSON, the newest first; or as a file, the oldest first."""
        found = query(request, *_SEARCH, "before", "offset", "limit", "format")
        rights = self._reader(request)
        form = one(found, "format", "json")
        if form not in ("json", "jsonl", "csv"):
            raise RefusedError("bad_request", "format is json, jsonl or csv")
        web = self._limits.web
        most = MOST_ROWS if form == "json" else web.export_rows
        limit = number(one(found, "limit", "100"), "limit", least=1, most=most)
        start, stop = _times(found)
        before, only = _cursor(one(found, "before"), "before"), None
        if place := _cursor(one(found, "offset"), "offset"):
            if len(place) > 1:
                raise RefusedError("bad_request", "offset is PARTITION:OFFSET")
            ((only, offset),) = place.items()
            before = before or {only: offset + 1}
        longest = 1 << 20 if limit <= 10 else LONGEST
        asked = {
            "selection": dataclasses.asdict(select(rights, found.get("filter", ()), ())),
            "wanted": dataclasses.asdict(_wanted(found)),
            "start": start,
            "stop": stop,
            "before": before,
            "only": only,
            "limit": limit,
            "budget": web.search_time if form == "json" else web.export_time,
            "longest": longest + 1 if form == "json" else 0,
        }
        with self._searching() as ended:
            told = await self._found(request, rights, asked)
            told["rows"] = told["rows"][:limit]
            if form != "json":
                told["rows"].reverse()
                pieces = stream(exported(told["rows"], form), self._executor, self._held)
                media = "application/jsonl" if form == "jsonl" else "text/csv"
                headers = {"Content-Disposition": f'attachment; filename="wirelake-log.{form}"'}
                return Stream(pieces, headers, media, ended())
            rows = [as_told(row, longest) for row in told["rows"]]
            made = answer({**told, "rows": rows})
            headers = {"Content-Length": str(len(made.body))}
            return Stream(_whole(made.body), headers, "application/json", ended())

    @contextmanager
    def _searching(self) -> Iterator[Callable[[], Callable[[], None]]]:
        """Count a search until the block ends, or until what it was given is called.

        Raises RefusedError where too many are under way.
        """
        self._limits.check("searches", self._searches)
        self._searches += 1
        is_handed_on = False

        def end() -> None:
            self._searches -= 1

        def hand_on() -> Callable[[], None]:
            nonlocal is_handed_on
            is_handed_on = True
            return end

        try:
            yield hand_on
        finally:
            if not is_handed_on:
                end()

    async def _found(
        self, request: Request, rights: Rights, asked: dict[str, Any]
    ) -> dict[str, Any]:
        """What a search finds on all nodes; raises RefusedError for an export without room."""
        only, limit = asked["only"], asked["limit"]
        reader = await self._gate.ask(lambda: Reader(self._node, rights, peer(request)))
        try:
            parts = await self._tell_rows(asked)
            if self._relay.is_shared:
                for some in await self._relay.question("rows", asked):
                    parts += msgspec.convert(some, list[Found])
                if only is None:
                    check_all({part.partition for part in parts}, self._node.engine.partitions)
            told = put_together(parts, limit)
            if reader.is_revoked:
                raise RefusedError("unauthorized", "the rights of this token have changed")
        finally:
            self._gate.tell(reader.close)
        if not asked["longest"] and len(told["rows"]) < limit and any(one.is_full for one in parts):
            text = f"these rows have more than {self._limits.web.search_bytes} bytes"
            raise RefusedError("too_large", f"{text} (web.search_bytes): ask for fewer")
        return told

    async def _tell_rows(self, asked: dict[str, Any]) -> list[Found]:
        """The rows of a search that this node owns; this node's own limits hold."""
        web = self._limits.web
        work = partial(
            look,
            self._node.engine,
            msgspec.convert(asked["selection"], Selection),
            msgspec.convert(asked["wanted"], Wanted),
            **{name: asked[name] for name in ("start", "stop", "before", "only", "longest")},
            limit=min(asked["limit"], web.export_rows),
            budget=min(asked["budget"], max(web.search_time, web.export_time)),
            room=web.search_bytes,
        )
        return await self._run(work)

    async def _tell_histogram(self, asked: dict[str, Any]) -> dict[str, Any]:
        """How many rows this node owns of which time."""
        work = partial(
            histogram,
            self._node.engine,
            msgspec.convert(asked["selection"], Selection),
            msgspec.convert(asked["wanted"], Wanted),
            asked["start"],
            asked["stop"],
            min(asked["buckets"], MOST_BUCKETS),
            self._limits.web.search_time,
        )
        return await self._run(work)

    async def histogram(self, request: Request) -> Response:
        """How many rows the log has of which time."""
        found = query(request, *_SEARCH, "buckets")
        rights = self._reader(request)
        start, stop = _times(found)
        if stop and stop < start:
            raise RefusedError("bad_request", "time_to is before time_from")
        buckets = number(one(found, "buckets", "60"), "buckets", least=1, most=MOST_BUCKETS)
        selection = select(rights, found.get("filter", ()), ())
        if self._relay.is_shared:  # all nodes must count the same times
            filled = [one for one in (await self._relay.extents()).values() if one.next > one.first]
            start = start or min((one.first_time for one in filled), default=0)
            stop = stop or max((one.last_time for one in filled), default=0) + 1
        asked = {
            "selection": dataclasses.asdict(selection),
            "wanted": dataclasses.asdict(_wanted(found)),
            "start": start,
            "stop": stop,
            "buckets": buckets,
        }
        with self._searching():
            told = await self._tell_histogram(asked)
            if self._relay.is_shared:
                parts = [told, *await self._relay.question("histogram", asked)]
                counts = (one["counts"] for one in parts)
                told["counts"] = [sum(some) for some in zip(*counts, strict=True)]
                told["since"] = max(one["since"] for one in parts)
        return answer(told)

    def _reader(self, request: Request) -> Rights:
        """The rights of somebody who may read some of the log."""
        rights = rights_of(request, self._node)
        if not (rights.admin or rights.subscribe):
            raise RefusedError("unauthorized", "no right to read the log")
        return rights

    async def _run(self, work: Callable[[], T]) -> T:
        """Do something that takes a while on a thread of HTTP."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def sql(self, request: Request) -> Response:
        """Run a statement of SQL over the latest rows."""
        query(request)
        require_admin(rights_of(request, self._node))
        try:
            given = msgspec.json.decode(await body(request, MAX_SQL), type=_Statement)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RefusedError("bad_request", f"the body: {error}") from None
        if not self._node.capture.active:
            raise RefusedError("not_found", "there is no log")
        since = int((time.time() - given.hours * 3600) * 1_000_000)
        return answer(await self._sql.run(self._node.engine, given.sql, max(0, since)))

    # Bytes

    async def inspect(self, request: Request) -> Response:
        """What is in these bytes, and where."""
        dialect = one(query(request, "dialect"), "dialect")
        if dialect not in ("", *DIALECTS):
            raise RefusedError("bad_request", f"there is no dialect {dialect}")
        if rights_of(request, self._node, reads=True).is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        data = await body(request, MOST_BYTES)
        return answer(await self._run(partial(inspect, data, dialect)))

    async def translate(self, request: Request) -> Response:
        """A message in every dialect."""
        query(request)
        if rights_of(request, self._node, reads=True).is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        try:
            given = msgspec.json.decode(await body(request, 2 * MOST_BYTES), type=_Given)
            payload = base64.b64decode(given.base64) if given.base64 else given.payload.encode()
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise RefusedError("bad_request", f"the body: {error}") from None
        message = Message(
            address=check_address(given.address),
            payload=payload,
            id=given.id,
            correlation_id=given.correlation_id,
            source=given.source,
            priority=given.priority,
            ttl=given.ttl,
            headers={key: value for key, value in given.headers.items() if key[:1] != "$"},
        )
        told = await self._run(partial(translations, message, client=given.client))
        return answer({"translations": told})

    async def audience(self, request: Request) -> Response:
        """Who would get what is published to an address now."""
        found = query(request, "address")
        require_admin(rights_of(request, self._node))
        address = check_address(one(found, "address"))

        def ask() -> dict[str, Any]:
            node, now = self._node, time.monotonic()
            if address in node.queues:
                consumers = [one for one in node.sessions if address in one.consumes]
                kind = "queue"
            else:
                consumers, kind = node.topics.subscribers(address), "topic"
            shown = [inventory.connection(one, now) for one in consumers[:MOST_SHOWN]]
            captured = node.capture.takes(address)
            return {"kind": kind, "captured": captured, "count": len(consumers), "who": shown}

        return answer(await self._gate.ask(ask))

    # A trace

    async def trace(self, request: Request) -> Response:
        """What the trace has seen."""
        query(request)
        require_admin(rights_of(request, self._node))
        trace = self._trace
        if trace is None:
            return answer({"filter": "", "left": 0, "messages": []})
        is_on = await self._gate.ask(lambda: trace.is_on)
        left = max(0.0, trace.until - time.monotonic()) if is_on else 0.0
        seen = await self._run(lambda: [traced(one) for one in list(trace.messages)])
        return answer({"filter": trace.filter, "left": left, "messages": seen})

    async def begin_trace(self, request: Request) -> Response:
        """Trace a filter for a while; another trace ends."""
        query(request)
        require_admin(rights_of(request, self._node))
        try:
            given = msgspec.json.decode(await body(request, MAX_LOGIN), type=dict[str, str])
            filter = check_filter(given["filter"])
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
            raise RefusedError("bad_request", 'the body is {"filter": "…"}') from None

        def begin() -> Trace:
            node = self._node
            parts = node.vitals, node.topics, node.queues, node.router
            return Trace(*parts, filter, time.monotonic(), limits)

        web = self._limits.web
        limits = TraceLimits(web.trace_time, web.trace_messages, web.trace_bytes)
        self._trace = await self._gate.ask(begin)
        return answer({"filter": filter, "left": limits.seconds})

    async def end_trace(self, request: Request) -> Response:
        """End the trace; what it has seen stays."""
        query(request)
        require_admin(rights_of(request, self._node))

        if self._trace is not None:
            await self._gate.ask(self._trace.end)
        return Response(status_code=204)


async def _whole(content: bytes | memoryview) -> AsyncGenerator[bytes | memoryview]:
    yield content


def takes_gzip(request: Request) -> bool:
    """Does whoever asks read gzip?"""
    for coding in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = coding.partition(";")
        if name.strip().lower() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Statement(msgspec.Struct):
    """A statement, and over how many hours of the log."""

    sql: str
    hours: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0


class _Given(msgspec.Struct):
    """A message as `/v1/rows` and `/v1/live` tell it; what else they tell is ignored."""

    address: str
    payload: str = ""
    base64: str = ""
    id: str = ""
    correlation_id: str = ""
    source: str = ""
    priority: Annotated[int, msgspec.Meta(ge=0, le=127)] = 0
    ttl: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    headers: dict[str, str] = {}
    client: bool = False


def _wanted(found: dict[str, list[str]]) -> Wanted:
    """Which rows a search is for, beside their addresses and times."""
    name, _, value = one(found, "header").partition("=")
    return Wanted(
        tuple(found.get("op", ())),
        tuple(found.get("dialect", ())),
        one(found, "text"),
        one(found, "id"),
        (name, value),
    )


def _times(found: dict[str, list[str]]) -> tuple[int, int]:
    """The time that a search is for, in µs; 0 for an open end."""
    start, stop = (
        parse_time(one(found, key), key) if one(found, key) else 0
        for key in ("time_from", "time_to")
    )
    return start, stop


def _cursor(text: str, name: str) -> dict[int, int]:
    """Offsets by partition, as an answer with `more` has them: `0:17,1:4`."""
    try:
        pairs = (pair.split(":") for pair in text.split(",")) if text else ()
        return {int(partition): int(offset) for partition, offset in pairs}
    except ValueError:
        raise RefusedError("bad_request", f"{name} is PARTITION:OFFSET,…") from None


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
