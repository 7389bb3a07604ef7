"""Byte streams from client to client, with back-pressure all the way from reader to writer.

A stream is opened to a client id; each side knows it under a transaction id of its own. The target
accepts it by not closing it. The broker keeps nothing of a stream: bytes from one side are written
to the other, and the sender is not read from while the receiver's outbox is full. When a side
closes, or its connection ends, the other is told how many bytes it was sent and, by a code, whether
the end was clean (spec: byte streams).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from wirelake.broker.capture import Capture
from wirelake.broker.clients import Clients
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.quotas import Quotas
from wirelake.errors import RefusedError
from wirelake.message import Message, Op, Parameters


@dataclass(eq=False, slots=True)
class _End:
    """One side of a stream."""

    session: Endpoint
    number: str  # what this side calls the stream
    is_target: bool = False  # of the stream, and not the one that opened it
    received: int = 0  # bytes that were written to it
    other: _End | None = None


class Streams:
    """The open streams, by session and by the session's id for them."""

    def __init__(self, quotas: Quotas, clients: Clients, capture: Capture) -> None:
        self._quotas = quotas
        self._clients = clients
        self._capture = capture
        self._ends: dict[Endpoint, dict[str, _End]] = {}
        self._number = count(1)
        #: Ends the numbers of streams: tells which node of a cluster gave them.
        self.mark = ""
        self._count = 0  # of both ends of all streams

    def open(self, session: Endpoint, message: Message, now: float) -> None:
        """Open a stream to the client that the address names."""
        mine = self._ends.setdefault(session, {})
        if not message.correlation_id:
            raise RefusedError("bad_request", "a stream has a transaction id")
        if message.correlation_id in mine:
            raise RefusedError("conflict", f"the stream {message.correlation_id} is open")
        self._quotas.check("streams", len(mine), self._count)
        target = self._clients.receiver(session, message.address)
        if not target.has_streams:
            raise RefusedError("not_found", f"{message.address} takes no streams")
        near = _End(session, message.correlation_id)
        far = _End(target, f"s{next(self._number)}{self.mark}", is_target=True, other=near)
        near.other = far
        opened = Message(
            op=Op.OPEN,
            address=message.address,
            correlation_id=far.number,
            source=session.client_id,
            payload=message.payload,
        )
        target.send(opened)
        self._capture.add(replace(opened, dialect=session.dialect), now)
        mine[near.number] = near
        self._ends.setdefault(target, {})[far.number] = far
        self._count += 2

    def data(self, session: Endpoint, message: Message, now: float) -> None:
        """Pass bytes on to the other side; its reader sets the pace."""
        other = self._end(session, message).other
        assert other is not None
        other.received += len(message.payload)
        data = Message(op=Op.DATA, correlation_id=other.number, payload=message.payload)
        other.session.send(data, "pause")

    def close(self, session: Endpoint, message: Message, now: float) -> None:
        """Close a stream; a code says that it was not complete."""
        self._close(self._end(session, message), message.parameters.code, now)

    def left(self, session: Endpoint, now: float) -> None:
        """A session has ended: close its streams with a code."""
        for end in list(self._ends.get(session, {}).values()):
            self._close(end, "closed", now)
        self._ends.pop(session, None)

    def _end(self, session: Endpoint, message: Message) -> _End:
        end = self._ends.get(session, {}).get(message.correlation_id)
        if end is None:
            raise RefusedError("not_found", f"no stream {message.correlation_id} is open")
        return end

    def _close(self, end: _End, code: str, now: float) -> None:
        other = end.other
        assert other is not None
        del self._ends[end.session][end.number]
        del self._ends[other.session][other.number]
        self._count -= 2
        said = Parameters(count=other.received, code=code)
        closed = Message(op=Op.CLOSE, correlation_id=other.number, parameters=said)
        other.session.send(closed)
        # Both rows in the log have the name that the target knows the stream under.
        far = end if end.is_target else other
        self._capture.add(
            replace(
                closed,
                address=far.session.client_id,
                correlation_id=far.number,
                source=end.session.client_id,
                dialect=end.session.dialect,
            ),
            now,
        )
