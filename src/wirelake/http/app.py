"""The HTTP interface: what is where, and the endpoints of messages and of the log."""

from __future__ import annotations

import asyncio
import dataclasses
import html
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from wirelake import __version__
from wirelake.address import check_filter, check_topic
from wirelake.broker.local import DIALECT
from wirelake.broker.node import Node
from wirelake.config import Listener
from wirelake.errors import EngineError, RefusedError
from wirelake.http.admin import Admin
from wirelake.http.cluster import ClusterEndpoints
from wirelake.http.console import Console
from wirelake.http.exchange import (
    Doorman,
    Protection,
    RangeError,
    Stream,
    answer,
    body,
    header,
    header_pairs,
    is_forwarded,
    number,
    on_disconnect,
    on_failure,
    on_http_error,
    on_refused,
    one,
    path_part,
    peer,
    query,
    require,
    require_admin,
    rights_of,
)
from wirelake.http.gate import Gate
from wirelake.http.keys import Keys
from wirelake.http.ledger import PRODUCER, Ledger
from wirelake.http.limits import HttpLimits, Memory
from wirelake.http.log import Held, Selection, find_time, parse_time, parts, select, stream
from wirelake.http.metrics import CONTENT_TYPE, as_text, snapshot
from wirelake.http.openapi import description
from wirelake.http.publishing import Events, Publisher, Reader, producer_name
from wirelake.http.relay import Home, Relay, check_all
from wirelake.http.rows import read_rows
from wirelake.http.wire import Adopt, Wire
from wirelake.journal.contract import Position
from wirelake.message import LARGEST, MAX_ID, Message

Endpoint = Callable[[Request], Awaitable[Response]]

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")

ARROW = "application/vnd.apache.arrow.stream"

#: Threads that read the log and Arrow bodies; one of them waits for the disk now and then.
THREADS = 4


class Api:
    """The endpoints that are not an operator's, and what all of them share."""

    def __init__(
        self,
        gate: Gate,
        ledger: Ledger,
        listeners: Sequence[Listener] = (),
        adopt: Adopt | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self._gate = gate
        self.limits = limits or HttpLimits()
        self.memory = Memory(self.limits)
        self._node: Node = gate.node
        self._ledger = ledger
        self.relay = Relay(gate)
        self.admin = Admin(gate, ledger, self.relay)
        self.keys = Keys(gate, self.relay)
        self.wire = Wire(gate, adopt)
        self._executor = ThreadPoolExecutor(THREADS, "wirelake-http")
        self._held = Held(self.limits)
        self._publisher = Publisher(gate, ledger, self._executor, self.relay)
        self._events: set[Events] = set()
        about = _page("", _ABOUT)
        self.console = Console(
            gate, ledger, self._executor, about, listeners, self.relay, self.limits, self._held
        )
        self.cluster = ClusterEndpoints(gate)

    def stop_events(self) -> None:
        """End every event stream."""
        for events in list(self._events):
            events.end()
        self.console.stop_live()
        self.wire.stop()
        self.relay.stop()

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    # About

    async def docs(self, request: Request) -> Response:
        """The interface, for people."""
        query(request)
        script = '<script type="module" src="/console/docs.js"></script>'
        return HTMLResponse(_page("HTTP interface", _operations(description()) + script))

    async def style(self, request: Request) -> Response:
        """How these pages look."""
        query(request)
        return Response(_STYLE, media_type="text/css")

    async def openapi(self, request: Request) -> Response:
        """The interface, for programs."""
        query(request)
        return answer(description())

    async def metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        query(request)
        require_admin(rights_of(request, self._node))
        taken = await self._gate.ask(lambda: snapshot(self._node, self._ledger))
        return Response(as_text(taken), media_type=CONTENT_TYPE)

    # Messages

    async def publish(self, request: Request) -> Response:
        """Publish one message."""
        query(request)
        rights = rights_of(request, self._node)
        address = check_topic(path_part(request, "address"))
        require(rights, "publish", address)
        headers = header_pairs(request, "wirelake-header-")
        if any(name.startswith("$") for name in headers):
            raise RefusedError("bad_request", "names that begin with `$` are ours")
        names = ("wirelake-id", "wirelake-correlation-id", "wirelake-client")
        identity, correlation_id, client = (header(request, name) for name in names)
        if any(len(text.encode()) > MAX_ID for text in (identity, correlation_id, client)):
            raise RefusedError("bad_request", f"an id has at most {MAX_ID} bytes")
        ttl = number(header(request, "wirelake-ttl") or "0", "Wirelake-Ttl", most=LARGEST["ttl"])
        priority = header(request, "wirelake-priority") or "0"
        message = Message(
            address=address,
            payload=await body(request, self._node.limits.message),
            priority=number(priority, "Wirelake-Priority", most=LARGEST["priority"]),
            ttl=ttl,
            headers=headers,
            id=identity,
            correlation_id=correlation_id,
            source=client,
            dialect=DIALECT,
        )
        await self._publisher.publish(rights, message, peer(request))
        return answer({"address": address}, 202)

    def producer_key(self, request: Request) -> str:
        """Where it is kept what the producer of a request has sent; empty without a producer."""
        producer = one(query(request, "producer", "sequence"), "producer")
        rights = rights_of(request, self._node)
        return PRODUCER + producer_name(rights, producer) if producer else ""

    async def publish_rows(self, request: Request) -> Response:
        """Publish the rows of an Arrow stream."""
        found = query(request, "producer", "sequence")
        producer, sequence = one(found, "producer"), one(found, "sequence")
        if bool(producer) != bool(sequence):
            raise RefusedError("bad_request", "a producer has a sequence, and a sequence one")
        if len(sequence.encode()) > MAX_ID - 20:
            raise RefusedError("bad_request", f"a sequence has at most {MAX_ID - 20} bytes")
        rights = rights_of(request, self._node)
        if not rights.publish:
            raise RefusedError("unauthorized", "no right to publish")
        limits = self._node.limits
        data = await body(request, limits.sequence)
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._executor, read_rows, data, limits)
        is_new = True
        if producer:
            is_new = await self._publisher.publish_once(
                rights, rows, peer(request), producer, sequence
            )
        else:
            await self._publisher.publish_rows(rights, rows, peer(request))
        return answer({"published": len(rows) if is_new else 0, "duplicate": not is_new}, 202)

    async def events(self, request: Request) -> Response:
        """What is published from now on."""
        filters = [check_filter(one) for one in query(request, "filter").get("filter", [])]
        if not filters:
            raise RefusedError("bad_request", "say which addresses: filter=…")
        rights = rights_of(request, self._node)
        for filter in filters:
            require(rights, "subscribe", filter)
        self.limits.check("events", len(self._events))
        events = Events(self._gate, rights, filters, peer(request))
        await events.open()
        self._events.add(events)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

        def ended() -> None:
            self._events.discard(events)
            events.close()

        return Stream(events.stream(), headers, "text/event-stream", ended)

    # The log

    async def log(self, request: Request) -> Response:
        """The partitions of the log; refused where the filters and the pattern may not be read."""
        found = query(request, "time", "filter", "pattern")
        given, expression = one(found, "time"), one(found, "pattern")
        rights = rights_of(request, self._node)
        if not (rights.admin or rights.subscribe):
            raise RefusedError("unauthorized", "no right to read the log")
        if expression or "filter" in found:
            select(rights, found.get("filter", []), (), expression=expression)
        moment = parse_time(given, "time") if given else None
        shown = await self._described(moment)
        if self.relay.is_shared and not is_forwarded(request):
            shown = await self._of_all_nodes(request, shown)
        return answer({"partitions": shown, "log": self._node.engine.log_id})

    async def _described(self, moment: int | None) -> list[dict[str, Any]]:
        """The partitions that are here, with the offsets of a moment where one is given."""
        engine = self._node.engine
        positions = await self._gate.ask(engine.positions)
        here = [one for one in positions if engine.answers_for(one.partition)]
        shown: list[dict[str, Any]] = [dataclasses.asdict(position) for position in here]
        if moment is not None:
            for position, described in zip(here, shown, strict=True):
                described["at"] = await self._find(position, moment)
        return shown

    async def _of_all_nodes(
        self, request: Request, mine: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The partitions of the whole cluster, as their owners tell them, and who has them.

        Raises RefusedError (`busy`) while one has no owner: rows that nobody tells of must not look
        as if there were none.
        """
        told = await self.relay.ask_owners(request)
        found = {one["partition"]: one for part in told for one in part["partitions"]}
        found |= {one["partition"]: one for one in mine}
        places = await self.relay.places()
        if self._node.engine.partitions:
            check_all(found, len(places))
        return [{**found[one], "nodes": places[one]} for one in sorted(found)]

    async def _find(self, position: Position, moment: int) -> int:
        loop = asyncio.get_running_loop()
        engine = self._node.engine
        return await loop.run_in_executor(self._executor, find_time, engine, position, moment)

    async def partition(self, request: Request) -> Response:
        """Rows of a partition."""
        known = ("log", "from", "to", "filter", "pattern", "columns", "limit", "time_from")
        found = query(request, *known)
        rights = rights_of(request, self._node)
        columns = [name for text in found.get("columns", []) for name in text.split(",")]
        limit = -1
        if one(found, "limit"):
            limit = number(one(found, "limit"), "limit")
        expression = one(found, "pattern")
        selection = select(rights, found.get("filter", []), columns, limit, expression)
        wanted = number(path_part(request, "partition"), "the partition")
        engine = self._node.engine
        positions = await self._gate.ask(engine.positions)
        if wanted >= len(positions):
            raise RefusedError("not_found", f"the log has {len(positions)} partitions")
        position = positions[wanted]
        if engine.is_shared and not engine.is_here(wanted) and not _has(position, found):
            return await self.relay.redirect(request, wanted)
        if one(found, "log") not in ("", engine.log_id):
            raise RangeError(f"this is another log: {engine.log_id}", engine.log_id, position)
        if engine.is_shared and engine.is_here(wanted) and _is_behind(position, found):
            position = await self._proved(wanted)
        start, stop = await self._range(found, position, selection)
        headers = {"Wirelake-From": str(start)}
        if limit < 0 or selection.has_every_row:
            headers["Wirelake-Next"] = str(stop)
        pieces = parts(engine, wanted, start, stop, selection)
        reader = await self._gate.ask(lambda: Reader(self._node, rights, peer(request)))
        content = reader.checked(stream(pieces, self._executor, self._held))
        return Stream(content, headers, ARROW, lambda: self._gate.tell(reader.close))

    async def _proved(self, partition: int) -> Position:
        """Where a partition ends, of which this node has proved that it still owns it.

        Raises RefusedError (`busy`) where it does not.
        """
        await self._gate.change(lambda: self._node.engine.prove(partition))
        return (await self._gate.ask(self._node.engine.positions))[partition]

    async def _range(
        self, found: dict[str, list[str]], position: Position, selection: Selection
    ) -> tuple[int, int]:
        """The offsets that were asked for, if the log has them."""
        start, stop = position.first, position.next
        if given := one(found, "time_from"):
            if "from" in found:
                raise RefusedError("bad_request", "from and time_from exclude each other")
            start = await self._find(position, parse_time(given, "time_from"))
        elif given := one(found, "from"):
            start = number(given, "from")
        if given := one(found, "to"):
            stop = number(given, "to")
        if not position.first <= start <= position.next or not stop <= position.next:
            text = f"the log has the offsets from {position.first} up to {position.next}"
            raise RangeError(text, self._node.engine.log_id, position)
        if stop < start:
            raise RefusedError("bad_request", "to is before from")
        if selection.limit >= 0 and selection.has_every_row:
            stop = min(stop, start + selection.limit)
        return start, stop


def _has(position: Position, found: dict[str, list[str]]) -> bool:
    """Whether a copy of a partition that another node owns has the rows that are asked for.

    It has those of a range whose both ends are given and lie in it. What else may be asked for
    depends on where the partition begins and ends now, which the owner alone knows.
    """
    if "from" not in found or "to" not in found:
        return False
    start, stop = number(one(found, "from"), "from"), number(one(found, "to"), "to")
    return position.first <= start <= stop <= position.next


def _is_behind(position: Position, found: dict[str, list[str]]) -> bool:
    """Whether rows are asked for that a partition does not have yet, as far as this node knows."""
    asked = [number(one(found, name), name) for name in ("from", "to") if one(found, name)]
    return max(asked, default=0) > position.next


def routes(api: Api) -> list[Resource]:
    """Return the routes, longer paths first, since an address may have any number of slashes."""
    admin, keys, console, cluster = api.admin, api.keys, api.console, api.cluster
    queue, key = partial(path_part, name="name"), partial(path_part, name="key")
    made = [
        Resource("/", GET=console.page),
        Resource("/console/{file:path}", GET=console.file),
        Resource("/docs", GET=api.docs),
        Resource("/docs.css", GET=api.style),
        Resource("/openapi.json", GET=api.openapi),
        Resource("/healthz", GET=admin.health),
        Resource("/metrics", GET=api.metrics),
        Resource("/v1/addresses", GET=admin.addresses),
        Resource("/v1/session", GET=console.session, POST=console.log_in, DELETE=console.log_out),
        Resource("/v1/live", GET=console.live),
        Resource("/v1/rates", GET=console.rates),
        Resource("/v1/access", GET=console.access),
        Resource("/v1/access/may", GET=console.may),
        Resource("/v1/connections", GET=admin.connections),
        Resource("/v1/connections/{number}", DELETE=console.close_connection),
        Resource("/v1/cluster", GET=cluster.status),
        Resource("/v1/cluster/nodes/{node}/drain", PUT=cluster.drain, DELETE=cluster.end_drain),
        Resource("/v1/cluster/partitions/{partition}/move", POST=cluster.move),
        Resource("/v1/queues", GET=admin.queues),
        Resource("/v1/queues/{name:path}/messages", queue, GET=admin.peek),
        Resource("/v1/queues/{name:path}/depths", queue, GET=console.depths),
        Resource("/v1/queues/{name:path}/purge", queue, POST=admin.purge),
        Resource("/v1/queues/{name:path}/move", queue, POST=admin.move),
        Resource(
            "/v1/queues/{name:path}", queue, GET=admin.queue, PUT=admin.declare, DELETE=admin.remove
        ),
        Resource("/v1/store", GET=keys.list),
        Resource("/v1/store/{key:path}", key, GET=keys.read, PUT=keys.write, DELETE=keys.delete),
        Resource("/v1/publish", api.producer_key, POST=api.publish_rows),
        Resource("/v1/publish/{address:path}", POST=api.publish),
        Resource("/v1/events", GET=api.events),
        Resource("/v1/log", GET=api.log),
        Resource("/v1/rows", GET=console.rows),
        Resource("/v1/histogram", GET=console.histogram),
        Resource("/v1/sql", POST=console.sql),
        Resource("/v1/inspect", POST=console.inspect),
        Resource("/v1/translate", POST=console.translate),
        Resource("/v1/audience", GET=console.audience),
        Resource("/v1/trace", GET=console.trace, PUT=console.begin_trace, DELETE=console.end_trace),
        Resource("/v1/log/{partition}", GET=api.partition),
        Resource("/v1/progress", GET=admin.progress),
        Resource(
            "/v1/progress/{query}", admin.progress_key, POST=admin.advance, DELETE=admin.forget
        ),
    ]
    for resource in made:
        resource.relay = api.relay
    return made


class Resource(Route):
    """A path and what can be done to it: all other methods are refused, whoever else would match.

    Otherwise a PUT to `/v1/queues/jobs/purge` would make a queue of that name.

    `home` names what a request is about, if that belongs to one partition: then the node that owns
    the partition does the request.
    """

    relay: Relay

    def __init__(self, path: str, home: Home | None = None, **endpoints: Endpoint) -> None:
        self.endpoints = endpoints
        self._home = home
        super().__init__(path, self._do, methods=_METHODS)

    async def _do(self, request: Request) -> Response:
        endpoint = self.endpoints.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self.endpoints))})
        if self._home is not None and self.relay.is_shared:
            name = self._home(request)
            if name and self.relay.is_elsewhere(name):
                return await self.relay.pass_on(request, name)
        return await endpoint(request)


def application(api: Api, *, local: bool, origins: Sequence[str] = ()) -> ASGIApp:
    """The application; `local`: only this machine can reach it.

    Pages of these `origins` may open WebSockets, beside our own.
    """
    wire = WebSocketRoute("/wire/{name}", api.wire.serve)
    doorman = Middleware(
        Doorman,
        local=local,
        logins=api.console.logins,
        limits=api.limits,
        memory=api.memory,
        origins=origins,
    )
    app = Starlette(
        routes=[*routes(api), wire],
        middleware=[doorman],
        exception_handlers={
            RefusedError: on_refused,
            EngineError: on_refused,
            ClientDisconnect: on_disconnect,
            HTTPException: on_http_error,
            Exception: on_failure,
        },
    )
    app.router.redirect_slashes = False
    api.relay.app = app
    return Protection(app)  # outside of all else, so that answers to failures have the headers, too


_ABOUT = f"""
<!--missing-->
<p>A message broker that speaks several wire protocols at once, and keeps what passes through it in
a columnar log. This is version {__version__}.</p>
<ul>
<li><a href="/docs">The HTTP interface</a>, <a href="/openapi.json">as OpenAPI</a></li>
<li><a href="/healthz">Health</a>, <a href="/metrics">metrics</a></li>
<li><a href="/v1/addresses">Addresses</a>, <a href="/v1/queues">queues</a>,
<a href="/v1/store">keys</a>, <a href="/v1/log">the log</a></li>
</ul>
"""


_STYLE = """\
body { font: 16px/1.5 system-ui; max-width: 45em; margin: 2em auto; padding: 0 1em }
dt { margin-top: .7em }
small { color: #5d6878 }
pre { overflow: auto; max-height: 20em; white-space: pre-wrap }
@media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #e6eaf0 } a { color: #7db3ec } small { color: #9fabba }
}
"""


def _operations(described: dict[str, Any]) -> str:
    """Every operation, as a list."""
    lines = ["<dl>"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            names = ", ".join(one["name"] for one in operation.get("parameters", []))
            text = " ".join(filter(None, (operation["summary"], operation.get("description", ""))))
            place = f'data-method="{method}" data-path="{html.escape(path)}"'
            lines.append(f"<dt {place}><code>{method.upper()} {html.escape(path)}</code></dt>")
            lines.append(f"<dd>{html.escape(text)} <small>{html.escape(names)}</small></dd>")
    return "\n".join([*lines, "</dl>"])


def _page(title: str, content: str) -> str:
    heading = f"Wirelake: {title}" if title else "Wirelake"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<link rel="stylesheet" href="/docs.css">'
        f"<title>{heading}</title><h1>{heading}</h1>{content}</html>"
    )
