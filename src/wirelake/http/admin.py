"""What operators see and do: health, addresses, connections, queues, queries."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from wirelake.address import check_address, check_topic
from wirelake.broker import inventory
from wirelake.broker.node import Node
from wirelake.broker.queue import DEAD
from wirelake.broker.rights import Rights
from wirelake.config import QueueSettings
from wirelake.errors import RefusedError
from wirelake.http.exchange import (
    MOST,
    MOST_BYTES,
    answer,
    as_json,
    body,
    is_forwarded,
    number,
    one,
    path_part,
    query,
    refused,
    require,
    require_admin,
    rights_of,
)
from wirelake.http.gate import Gate
from wirelake.http.ledger import PROGRESS, Ledger
from wirelake.http.relay import Extent, Relay
from wirelake.journal.engine import Stored

#: Messages that are moved in one turn of the broker's event loop.
MOVED_AT_ONCE = 500
#: A description of a queue, or of a query's progress, in bytes.
SMALL_BODY = 64 << 10


class Admin:
    """The endpoints of an operator."""

    def __init__(self, gate: Gate, ledger: Ledger, relay: Relay) -> None:
        self._relay = relay
        self._gate = gate
        self._node: Node = gate.node
        self._ledger = ledger

    # Health

    async def health(self, request: Request) -> Response:
        """Is everything that is accepted kept?"""
        query(request)
        engine = self._node.engine
        try:
            trouble, backlog = await self._gate.ask(lambda: (engine.trouble, engine.backlog))
        except RefusedError as error:
            return refused(error.code, error.text, state="silent")
        if trouble:
            if not self._is_operator(request):
                trouble = "what must be kept cannot be written"  # paths are none of their business
            return refused("busy", trouble, state="trouble", backlog=backlog)
        if backlog > self._node.capture.backlog:
            text = "more waits for the disk than may"
            return refused("busy", text, state="behind", backlog=backlog)
        return answer({"state": "ok", "backlog": backlog})

    def _is_operator(self, request: Request) -> bool:
        try:
            return rights_of(request, self._node).admin
        except RefusedError:
            return False

    # Addresses and connections

    async def addresses(self, request: Request) -> Response:
        """What is subscribed to, queued and served, as far as these rights go."""
        query(request)
        rights = rights_of(request, self._node)
        return answer(await self._gate.ask(lambda: inventory.addresses(self._node, rights)))

    async def connections(self, request: Request) -> Response:
        """Who is connected."""
        query(request)
        require_admin(rights_of(request, self._node))
        found = await self._gate.ask(lambda: inventory.connections(self._node, time.monotonic()))
        return answer({"connections": found})

    # Queues

    async def queues(self, request: Request) -> Response:
        """The queues that these rights may consume."""
        query(request)
        rights = rights_of(request, self._node)

        def states() -> list[dict[str, Any]]:
            now = time.monotonic()
            return [
                inventory.queue(queue, now)
                for queue in self._node.queues.all()
                if rights.allows("subscribe", queue.settings.name)
            ]

        found = await self._gate.ask(states)
        if self._is_asked_for_all(request):
            told = await self._relay.ask_owners(request)
            by_name = {one["name"]: one for part in told for one in part["queues"]}
            by_name |= {one["name"]: one for one in found}
            found = [by_name[name] for name in sorted(by_name)]
        return answer({"queues": found})

    def _is_asked_for_all(self, request: Request) -> bool:
        """Whether other nodes have a part of what a request is for."""
        return self._relay.is_shared and not is_forwarded(request)

    async def queue(self, request: Request) -> Response:
        """One queue: its settings and its state."""
        query(request)
        name = self._queue_name(request, "subscribe")
        return answer(
            await self._gate.ask(
                lambda: inventory.queue(self._node.queues.get(name), time.monotonic())
            )
        )

    async def declare(self, request: Request) -> Response:
        """Make a queue, or change the settings of one."""
        query(request)
        rights = rights_of(request, self._node)
        name = check_topic(path_part(request, "name"))
        self._node.queues.check_right(name, rights)
        wanted = _parsed(await body(request, SMALL_BODY) or b"{}", dict[str, Any])

        def declare() -> tuple[dict[str, Any], bool]:
            is_new = name not in self._node.queues
            if is_new:
                self._node.queues.declare(QueueSettings(name).changed(wanted), rights)
            else:
                queue = self._node.queues.open(name)
                settings = queue.settings.changed(wanted)
                if settings != queue.settings:
                    require_admin(rights)
                    queue.change(settings)
            return inventory.queue(self._node.queues.get(name), time.monotonic()), is_new

        state, is_new = await self._gate.change(declare)
        return answer(state, 201 if is_new else 200)

    async def remove(self, request: Request) -> Response:
        """Remove a queue with all that is in it."""
        query(request)
        name = self._queue_name(request, "admin")
        await self._gate.change(lambda: self._node.queues.remove(name))
        return Response(status_code=204)

    async def peek(self, request: Request) -> Response:
        """The messages that come next, without taking them."""
        count = number(one(query(request, "count"), "count", "10"), "count", least=1, most=MOST)
        name = self._queue_name(request, "subscribe")

        def peek() -> list[Stored]:
            queue = self._node.queues.get(name)
            queue.dispatch(time.monotonic())  # what has become due comes next, too
            return queue.peek(count)

        found = await self._gate.ask(peek)
        shown: list[dict[str, Any]] = []
        size = 0
        for stored in found:
            size += len(stored.message.payload)
            if shown and size > MOST_BYTES:
                break
            more = {"sequence": stored.sequence, "attempts": stored.attempts}
            shown.append(as_json(stored.message, **more))
        return answer({"messages": shown})

    async def purge(self, request: Request) -> Response:
        """Throw away all that nobody holds."""
        query(request)
        name = self._queue_name(request, "admin")
        return answer(
            {"purged": await self._gate.change(lambda: self._node.queues.get(name).purge())}
        )

    async def move(self, request: Request) -> Response:
        """Give messages to another queue: dead letters back to where they came from, say."""
        found = query(request, "to", "count", "sequence")
        name = self._queue_name(request, "admin")
        to = one(found, "to") or name.removesuffix(DEAD)
        if check_topic(to) == name:
            raise RefusedError("bad_request", "say where to: this is no queue of dead letters")
        count = number(one(found, "count", str(2**31)), "count", least=1)
        only = frozenset(number(one, "sequence") for one in found.get("sequence", ()))
        if self._relay.is_shared and self._relay.is_elsewhere(to):
            text = f"{to} is kept by another node: messages are moved within a node only"
            raise RefusedError("conflict", text)
        return answer({"moved": await self._gate.run(self._move(name, to, count, only)), "to": to})

    async def _move(self, name: str, to: str, count: int, only: frozenset[int]) -> int:
        """On the broker's loop: move messages in turns; what comes meanwhile stays."""
        failures = self._node.engine.failures
        source = self._node.queues.get(name)
        count = min(count, len(source))
        target = self._node.queues.declare(QueueSettings(to))
        self._node.capture.check_disk()
        moved = source.move_to(target, 0, time.monotonic(), only) if only else 0
        while moved < count and not only:
            now = time.monotonic()
            some = source.move_to(target, min(MOVED_AT_ONCE, count - moved), now)
            if some == 0:
                break
            moved += some
            await asyncio.sleep(0)
        await self._gate.durable(failures)
        return moved

    def _queue_name(self, request: Request, kind: str) -> str:
        rights = rights_of(request, self._node)
        name = check_address(path_part(request, "name"))
        if kind == "admin":
            require_admin(rights)
        else:
            require(rights, kind, name)
        return name

    # Queries

    async def progress(self, request: Request) -> Response:
        """How far every query has read."""
        query(request)
        rights = rights_of(request, self._node)
        _require_reader(rights)
        found = await self._gate.ask(self._queries)
        if self._is_asked_for_all(request):
            for told in await self._relay.ask_owners(request):
                found += told["queries"]
        if not is_forwarded(request):
            extents = await self._relay.extents()
            found = [self._with_lags(one, extents) for one in found]
        return answer({"queries": sorted(found, key=lambda one: str(one["query"]))})

    def _queries(self) -> list[dict[str, Any]]:
        return [
            {
                "query": query,
                "time": int(progress.time * 1_000_000),
                "offsets": {str(key): value for key, value in progress.offsets.items()},
            }
            for query, progress in self._ledger.queries.items()
        ]

    @staticmethod
    def _with_lags(query: dict[str, Any], extents: dict[int, Extent]) -> dict[str, Any]:
        """A query, with the rows of each partition that it has not read yet."""
        offsets = query["offsets"]
        lags = {
            str(partition): max(0, one.next - offsets.get(str(partition), one.first))
            for partition, one in extents.items()
        }
        return {**query, "lags": lags, "lag": sum(lags.values())}

    def progress_key(self, request: Request) -> str:
        """Where the progress of a request's query is kept."""
        return PROGRESS + path_part(request, "query")

    async def advance(self, request: Request) -> Response:
        """A query says how far it has read."""
        query(request)
        rights = rights_of(request, self._node)
        _require_reader(rights)
        # Where no tokens are configured, progress belongs to nobody.
        owner = "" if rights.is_open else rights.name
        name = path_part(request, "query")
        offsets = _parsed(await body(request, SMALL_BODY), dict[str, int])

        extents = await self._relay.extents()
        ends = {str(partition): one.next for partition, one in extents.items()}
        for partition, offset in offsets.items():
            if partition not in ends:
                raise RefusedError("bad_request", f"the log has no partition {partition}")
            if not 0 <= offset <= ends[partition]:
                text = f"partition {partition} ends at {ends[partition]}, not {offset}"
                raise RefusedError("bad_request", text)

        def advance() -> dict[str, Any]:
            numbers = {int(key): value for key, value in offsets.items()}
            self._ledger.advance(name, numbers, owner, admin=rights.admin)
            return next(one for one in self._queries() if one["query"] == name)

        told = await self._gate.change(advance)
        return answer({"query": name, "lag": self._with_lags(told, extents)["lag"]})

    async def forget(self, request: Request) -> Response:
        """A query reads no more."""
        query(request)
        require_admin(rights_of(request, self._node))
        name = path_part(request, "query")
        await self._gate.change(lambda: self._ledger.forget(name))
        return Response(status_code=204)


def _parsed(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("bad_request", f"the body: {error}") from None


def _require_reader(rights: Rights) -> None:
    if not (rights.admin or rights.subscribe):
        raise RefusedError("unauthorized", "this is for those who may read the log")
