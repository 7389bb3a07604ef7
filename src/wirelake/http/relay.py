"""The other nodes of a cluster, as HTTP uses them.

A request for what another node owns is answered by the HTTP of that node: the request travels over
NATS with the rights that were found for its sender, and is done there as if it had come by a
socket. Tokens and cookies do not travel. So a client may ask any node.

1. A request names what it is about: a queue, a key, a query, a producer (`Resource`). Where the
   partition of that is here, it is done here.
2. Where it is not, the request is sent to the owner. A node that gets such a request and does not
   own the partition refuses it with `busy`: owners have just changed.
3. A body that is too large for NATS is not sent: the client is redirected (307) to the owner.
4. A request for all partitions is asked of every owner, with `is_forwarded` set: each answers for
   its own partitions, and who asks puts the answers together. Without an answer for each partition
   it is refused with `busy`, since what is missing must not look as if it were not there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.types import Message as ASGIMessage

from wirelake.broker.node import Cluster, Node
from wirelake.broker.rights import Rights
from wirelake.errors import EngineError, RefusedError
from wirelake.http.exchange import body, has_token, is_forwarded, refused, rights_of
from wirelake.http.gate import DURABLE, Gate
from wirelake.http.logins import CSRF

log = logging.getLogger("wirelake.http")

#: How long the owner may take: it may wait itself until a change is durable (seconds).
PATIENCE = DURABLE - 2.0
#: Bytes of an answer that comes at once, and of any.
SMALL_ANSWER = 256 << 10
MOST_ANSWER = 12 << 20

#: Bytes of a forwarded request beside its body.
SPARE = 128 << 10

#: Lists of queues of all nodes that are made at a time.
MOST_LISTS = 64

#: The headers of a request that mean something to whoever does it.
_HEADERS = (b"content-type", b"if-match", b"if-none-match", b"accept-encoding")
_OUR_HEADERS = b"wirelake-"
_SECRET = CSRF.encode()
#: Methods that change nothing.
_READING = ("GET", "HEAD")
#: The headers of an answer that are made anew.
_MADE = (b"content-length", b"transfer-encoding", b"connection", b"date", b"server")


#: The method of a question of HTTP's own.
QUESTION = "QUESTION"


class Extent(NamedTuple):
    """Where a partition begins and ends."""

    partition: int
    first: int
    next: int
    first_time: int
    last_time: int


class Forwarded(msgspec.Struct):
    """A request as it travels."""

    method: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    #: Of the sender, as its node found them, without the hash of its token.
    rights: dict[str, Any]
    has_token: bool
    peer: tuple[str, int]


class Answered(msgspec.Struct):
    """An answer as it travels."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def json(self) -> Any:
        """The value of an answer; raises RefusedError where it is a refusal."""
        told = msgspec.json.decode(self.body)
        if self.status >= 400:
            raise RefusedError(str(told.get("error", "busy")), str(told.get("text", "")))
        return told


class Relay:
    """Sends requests to other nodes, and answers theirs. It is used on HTTP's event loop."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._node: Node = gate.node
        #: Set once HTTP runs.
        self.app: ASGIApp | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        #: Answers to questions of HTTP's own, by their names.
        self.answers: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "extents": self._tell_extents,
            "queues": self._tell_queues,
        }
        gate.node.queues_elsewhere = self._list_queues
        self._lists: set[asyncio.Task[None]] = set()
        gate.node.answer = self._answer

    def stop(self) -> None:
        """Answer nothing more."""
        self._node.answer = self._node.queues_elsewhere = None

    @property
    def is_shared(self) -> bool:
        """Whether other nodes own partitions."""
        return self._node.engine.is_shared

    def is_elsewhere(self, name: str) -> bool:
        """Whether the partition of an address, a queue or a key is not here."""
        engine = self._node.engine
        return engine.is_shared and not engine.is_here(engine.home(name))

    # To other nodes

    async def pass_on(self, request: Request, name: str) -> Response:
        """Let the owner of a name do a request.

        Raises RefusedError: `busy` where nobody owns it now.
        """
        partition = self._node.engine.home(name)
        if is_forwarded(request):
            raise RefusedError("busy", f"partition {partition} has just changed its owner")
        cluster = self._cluster()
        rights_of(request, self._node)  # before its body is read
        owner, most = await self._gate.ask(lambda: (cluster.owner(partition), cluster.most))
        if owner in ("", cluster.name):
            raise RefusedError("busy", f"partition {partition} has no owner now")
        try:
            content = await body(request, most - SPARE)
        except RefusedError as error:
            if error.code != "too_large":
                raise
            return await self.redirect(request, partition)
        try:
            return made(await self.ask(request, owner, content=content))
        except RefusedError as error:
            if error.code != "too_large" or request.method not in _READING:
                raise
            return await self.redirect(request, partition)

    async def redirect(self, request: Request, partition: int) -> Response:
        """Send a client to the owner of a partition."""
        cluster = self._cluster()

        def look() -> tuple[str, str]:
            owner = cluster.owner(partition)
            return owner, cluster.nodes().get(owner, "")

        owner, url = await self._gate.ask(look)
        if not owner or owner == cluster.name:
            raise RefusedError("busy", f"partition {partition} has no owner now")
        if not url:
            raise RefusedError("busy", f"{owner} owns partition {partition}, and has no HTTP")
        asked = request.scope["query_string"].decode("latin-1")
        target = request.scope["path"] + (f"?{asked}" if asked else "")
        text = f"the node {owner} owns partition {partition}: {url}"
        headers = {"Location": url + target, "Wirelake-Node": owner}
        return refused("moved", text, 307, headers)

    async def ask(
        self,
        request: Request,
        node: str,
        *,
        content: bytes = b"",
    ) -> Answered:
        """Let a node answer a request.

        Raises RefusedError where it does not.
        """
        scope = request.scope
        client = scope.get("client") or ("?", 0)
        rights = rights_of(request, self._node)
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name in _HEADERS or (name.startswith(_OUR_HEADERS) and name != _SECRET)
        ]
        forwarded = Forwarded(
            "GET" if request.method == "HEAD" else request.method,
            scope["path"].encode("latin-1"),
            scope["query_string"],
            headers,
            content,
            _told(rights),
            has_token(request),
            (str(client[0]), int(client[1])),
        )
        data = msgspec.msgpack.encode(forwarded)
        if request.method in _READING:
            return await self._read(node, data)
        try:
            return await self._ask(node, data, SMALL_ANSWER)
        except RefusedError as error:
            if error.code != "timeout":
                raise
            text = f"the node {node} has not answered: this may have been done or not"
            raise RefusedError("timeout", text) from None

    async def _read(self, node: str, data: bytes) -> Answered:
        """Ask what changes nothing: again where its answer is large, as few of those may come."""
        try:
            return await self._ask(node, data, SMALL_ANSWER)
        except RefusedError as error:
            if error.code != "too_large":
                raise
        return await self._ask(node, data, MOST_ANSWER)

    async def _ask(self, node: str, data: bytes, most: int) -> Answered:
        """Ask a node; raises RefusedError: `too_large` for an answer of more than `most` bytes."""
        work = self._cluster().ask(node, data, timeout=PATIENCE, most=most)
        try:
            told = await self._gate.run(work)
        except EngineError as error:
            raise RefusedError("busy", error.reason) from None
        return msgspec.msgpack.decode(told, type=Answered)

    async def ask_owners(self, request: Request) -> list[Any]:
        """Ask every other node that owns partitions for its part, see `ask`; return the answers.

        Raises RefusedError: what one of them refuses, `busy` where a partition has no owner.
        """
        others = await self._others()
        told = await _all(self.ask(request, node) for node in others)
        return [one.json() for one in told]

    async def question(self, name: str, asked: dict[str, Any]) -> list[Any]:
        """Ask every other node that owns partitions a question of HTTP's own; return the answers.

        It has no rights: whoever asks has looked at those. Raises RefusedError: what a node
        refuses, `busy` where a partition has no owner.
        """
        packed = msgspec.msgpack.encode(asked)
        forwarded = Forwarded(QUESTION, name.encode(), b"", [], packed, {}, False, ("", 0))
        data = msgspec.msgpack.encode(forwarded)
        others = await self._others()
        told = await _all(self._read(node, data) for node in others)
        return [msgspec.msgpack.decode(one.body, strict=False) for one in told]

    async def _others(self) -> list[str]:
        """The other nodes that own partitions."""
        return sorted(set(await self.owners()) - {self._cluster().name})

    async def extents(self) -> dict[int, Extent]:
        """Where each partition begins and ends, of all nodes.

        Raises RefusedError (`busy`) while one has no owner.
        """
        found = await self._extents()
        if self.is_shared and self._node.engine.partitions:
            for told in await self.question("extents", {}):
                for one in told:
                    found.setdefault(one[0], Extent(*one))
            check_all(found, self._node.engine.partitions)
        return {partition: found[partition] for partition in sorted(found)}

    async def _extents(self) -> dict[int, Extent]:
        """Where the partitions that are here begin and end."""
        engine = self._node.engine
        return {
            one.partition: Extent(one.partition, one.first, one.next, one.first_time, one.last_time)
            for one in await self._gate.ask(engine.positions)
            if engine.answers_for(one.partition)
        }

    async def _tell_extents(self, _: dict[str, Any]) -> list[Extent]:
        return list((await self._extents()).values())

    async def owners(self) -> list[str]:
        """The owner of each partition; raises RefusedError (`busy`) where one has none."""
        cluster, count = self._cluster(), self._node.engine.journal.partitions

        def look() -> list[str]:
            return [cluster.owner(partition) for partition in range(count)]

        owners = await self._gate.ask(look)
        if lacking := [str(one) for one, owner in enumerate(owners) if not owner]:
            raise RefusedError("busy", f"no node owns these partitions now: {', '.join(lacking)}")
        return owners

    async def places(self) -> list[list[str]]:
        """Where HTTP has each partition: its owner's URL first, then those of its standbys."""
        cluster, count = self._cluster(), self._node.engine.journal.partitions

        def look() -> list[list[str]]:
            urls = cluster.nodes()
            return [
                [
                    url
                    for node in (cluster.owner(partition), *cluster.standbys(partition))
                    if (url := urls.get(node, ""))
                ]
                for partition in range(count)
            ]

        return await self._gate.ask(look)

    # Queues of other nodes, for clients on the wire

    def _list_queues(
        self,
        rights: Rights,
        found: Callable[[list[Any]], object],
        failed: Callable[[RefusedError], object],
    ) -> None:
        """Find the states of the queues of other nodes; on the broker's event loop."""
        if len(self._lists) >= MOST_LISTS:
            raise RefusedError("busy", f"{MOST_LISTS} lists of queues are being made already")

        async def ask() -> None:
            try:
                told = await self.question("queues", {"rights": _told(rights)})
            except RefusedError as error:
                failed(error)
            else:
                found([one for some in told for one in some])

        task = asyncio.get_running_loop().create_task(ask())
        self._lists.add(task)
        task.add_done_callback(self._lists.discard)

    async def _tell_queues(self, asked: dict[str, Any]) -> list[dict[str, object]]:
        """The states of the queues here that these rights may consume, the first thousand."""
        rights = msgspec.convert(asked["rights"], Rights)
        queues = self._node.queues
        return await self._gate.ask(lambda: queues.states(rights, time.monotonic()))

    def _cluster(self) -> Cluster:
        if self._node.cluster is None:
            raise RefusedError("busy", "this node has not joined its cluster yet")
        return self._node.cluster

    # From other nodes

    async def _answer(self, data: bytes) -> bytes:
        """Answer a request of another node; on the broker's event loop."""
        if self.app is None or self.loop is None:
            raise RefusedError("busy", "HTTP of this node has not started yet")
        forwarded = msgspec.msgpack.decode(data, type=Forwarded)
        try:
            told = asyncio.run_coroutine_threadsafe(self._do(self.app, forwarded), self.loop)
        except RuntimeError:
            raise RefusedError("closed", "HTTP of this node has stopped") from None
        return msgspec.msgpack.encode(await asyncio.wrap_future(told))

    async def _do(self, app: ASGIApp, forwarded: Forwarded) -> Answered:
        """Do a request as if it had come by a socket; on HTTP's event loop."""
        if forwarded.method == QUESTION:
            answer = self.answers.get(forwarded.path.decode("latin-1"))
            if answer is None:
                raise RefusedError("bad_request", "this node does not know the question")
            told = await answer(msgspec.msgpack.decode(forwarded.body))
            return Answered(200, [], msgspec.msgpack.encode(told))
        answered = Answered(500, [], b"")
        parts: list[bytes] = []
        waiting: list[ASGIMessage] = [{"type": "http.request", "body": forwarded.body}]

        async def receive() -> ASGIMessage:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = [
                    (bytes(name), bytes(value))
                    for name, value in message["headers"]
                    if name.lower() not in _MADE
                ]
            else:
                parts.append(bytes(message.get("body", b"")))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": forwarded.method,
            "path": forwarded.path.decode("latin-1"),
            "raw_path": forwarded.path,
            "root_path": "",
            "query_string": forwarded.query,
            "headers": forwarded.headers,
            "client": forwarded.peer,
            "server": ("", 0),
            "cut_off": bool,
            "rights": msgspec.convert({**forwarded.rights, "is_forwarded": True}, Rights),
            "has_token": forwarded.has_token,
        }
        try:
            await app(scope, receive, send)
        except Exception:  # the answer says so, and whoever asked must get it
            log.exception("a request of another node failed")
        answered.body = b"".join(parts)
        return answered


def _told(rights: Rights) -> dict[str, Any]:
    """Rights as they travel: without the hash of the token."""
    return {name: getattr(rights, name) for name in Rights.__slots__ if name != "key"}


def check_all(found: Collection[int], count: int) -> None:
    """Raise RefusedError (`busy`) unless all partitions are among these.

    What nobody tells of must not look as if it were not there.
    """
    if away := [str(one) for one in range(count) if one not in found]:
        raise RefusedError("busy", f"these partitions have no owner now: {', '.join(away)}")


async def _all(work: Iterable[Coroutine[Any, Any, Answered]]) -> list[Answered]:
    """What all of these return; raises what one of them raises when all have ended."""
    told = await asyncio.gather(*work, return_exceptions=True)
    for one in told:
        if isinstance(one, BaseException):
            raise one
    return [one for one in told if isinstance(one, Answered)]


def made(answered: Answered) -> Response:
    """The answer of another node, as this one gives it."""
    response = Response(answered.body, answered.status)
    kept = [(name, value) for name, value in answered.headers if name.lower() not in _MADE]
    length = [one for one in response.raw_headers if one[0] == b"content-length"]
    response.raw_headers = [*kept, *length]
    return response


#: Names what a request is about, and so the partition that it belongs to; empty: nothing.
Home = Callable[[Request], str]
