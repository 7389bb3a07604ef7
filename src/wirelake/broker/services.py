"""Requests and replies: a request goes to one of those that serve its address, in turn.

The broker passes a request on under a correlation id of its own, so that two requesters may use the
same one; the reply goes back under the requester's. A requester always learns what became of its
request: a reply, or an error (spec: requests).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import check_address
from wirelake.errors import RefusedError
from wirelake.message import Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session

#: How long a request without a ttl may take, in seconds.
TIMEOUT = 30.0


@dataclass(eq=False, slots=True)
class _Open:
    """A request on its way."""

    request: Message
    requester: Session
    service: Session


class Services:
    """Who serves what, and the requests that have no reply yet."""

    def __init__(self, node: Node, timeout: float = TIMEOUT) -> None:
        self._node = node
        self.timeout = timeout
        self._servers: dict[str, list[Session]] = {}
        self._open: dict[str, _Open] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._number = count(1)

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    def addresses(self) -> dict[str, int]:
        """Every address that is served, and by how many."""
        return {address: len(servers) for address, servers in self._servers.items()}

    def is_open(self, number: str) -> bool:
        """Is a request with this number of ours waiting for its reply?"""
        return number in self._open

    def serve(self, session: Session, address: str) -> None:
        """Let a session answer the requests to an address."""
        check_address(address)
        if not session.rights.allows("serve", address):
            raise RefusedError("unauthorized", f"no right to serve {address}")
        servers = self._servers.setdefault(address, [])
        if session not in servers:
            servers.append(session)

    def unserve(self, session: Session, address: str) -> None:
        """Take that back; an empty address takes all of them."""
        mine = [name for name, servers in self._servers.items() if session in servers]
        if address and address not in mine:
            raise RefusedError("not_found", f"{address} is not served by this connection")
        for name in [address] if address else mine:
            self._servers[name].remove(session)
            if not self._servers[name]:
                del self._servers[name]

    def request(self, session: Session, request: Message, now: float) -> None:
        """Pass a request on to the next of those that serve its address."""
        if not session.rights.allows("publish", check_address(request.address)):
            raise RefusedError("unauthorized", f"no right to send to {request.address}")
        servers = self._servers.get(request.address, [])
        for _ in range(len(servers)):
            service = servers.pop(0)
            servers.append(service)
            number = f"r{next(self._number)}"
            passed = replace(
                request, op="request", correlation_id=number, source=session.client_id, target=""
            )
            # Of a request that waits for its reply nothing large is kept.
            kept = replace(request, payload=b"", headers={})
            self._open[number] = _Open(kept, session, service)
            if service.send(passed):
                self._node.capture.add(passed, now)
                wait = request.ttl / 1000 if request.ttl and not session.counts_hops else None
                deadline = now + (self.timeout if wait is None else wait)
                heapq.heappush(self._deadlines, (deadline, number))
                return
            del self._open[number]
        raise RefusedError("no_service", f"nobody serves {request.address}")

    def reply(self, session: Session, reply: Message, now: float) -> None:
        """Pass a reply back to whoever asked; one that is late or made up is dropped."""
        found = self._open.get(reply.correlation_id)
        if found is None or found.service is not session:
            self._node.count_dropped("late_reply")
            return
        del self._open[reply.correlation_id]
        passed = replace(
            reply,
            op="reply",
            address=found.request.address,
            id=found.request.id,
            source=session.client_id,
            target=found.requester.client_id,
            headers={k: v for k, v in reply.headers.items() if not k.startswith("$")},
        )
        # In the log both have the broker's own number, which nobody else uses.
        self._node.capture.add(passed, now)
        found.requester.send(replace(passed, correlation_id=found.request.correlation_id))

    def left(self, session: Session, now: float) -> None:
        """A session has ended: what it serves is free, and its open requests have failed."""
        self.unserve(session, "")
        for number, found in list(self._open.items()):
            if found.service is session:
                self._fail(number, RefusedError("closed", "the service has disconnected"), now)
            elif found.requester is session:
                del self._open[number]

    def tick(self, now: float) -> None:
        """Fail the requests whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            if number in self._open:
                self._fail(number, RefusedError("timeout", "no reply in time"), now)

    def _fail(self, number: str, error: RefusedError, now: float) -> None:
        found = self._open.pop(number)
        self._node.capture.add(
            Message(
                op="error",
                address=found.request.address,
                correlation_id=number,
                target=found.requester.client_id,
                payload=error.text.encode(),
                headers={"$code": error.code},
            ),
            now,
        )
        self._node.count_refused(error.code)
        if not found.requester.closed:
            found.requester.refuse(found.request, error)
