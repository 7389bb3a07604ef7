"""Sessions of the dialects that have an op and an answer for everything: Kobold, boson-binary.

What is answered (spec: kobold 9, decision 25): the data store, info and dequeue always; everything
else when the client asks for it, by `ack=1` or by giving a transaction or correlation id.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import cbor2
from msgspec.structs import replace

from wirelake.address import has_wildcard
from wirelake.broker.flow import LARGE
from wirelake.broker.route import like_run
from wirelake.broker.session import Session
from wirelake.broker.store import change
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.journal.engine import Entry
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import FrameTable

#: Ops that change what must survive, beside those of the data store.
KEPT = (Op.ENQUEUE, Op.ACK, Op.NACK)
#: Ops that are done together where several frames have them.
TOGETHER = (Op.ENQUEUE, Op.ACK)

#: What a session does for each op, and the ops that are answered there, or not at all. A table is
#: found in at once; a `match` would compare up to 25 ops, for a fifth of the time of a ping.
_VERBS: dict[Op, Callable[[OpSession, Message, float], None]] = {}
_ANSWERING: set[Op] = set()

_Verb = TypeVar("_Verb", bound="Callable[[Any, Message, float], None]")


def _does(op: Op, *, answers: bool = False) -> Callable[[_Verb], _Verb]:
    """Make a method what a session does for an op; `answers`: it also sees to the answer."""

    def note(method: _Verb) -> _Verb:
        _VERBS[op] = method
        if answers:
            _ANSWERING.add(op)
        return method

    return note


class OpSession(Session):
    """A client whose frames name their op."""

    has_streams = True
    does_together = True

    def can_delegate(self) -> bool:
        """Always: what a frame asks for is in the frame."""
        return True

    def identify(self, message: Message, now: float) -> Message:
        """Take a token and a client id from whatever message carries them."""
        return self.authenticate(message, now)

    def control_rows(self, table: FrameTable, row: int, now: float) -> int:
        """Put messages into a queue, or acknowledge messages of one, that come together."""
        op = table.op[row]
        if op not in TOGETHER or (end := like_run(table, row)) < row + 2:
            return 0
        rows = array("i", range(row, end))
        self.node.vitals.work += 2 + len(rows) // 4
        queues = self.node.queues
        refused: dict[int, RefusedError]
        try:
            if op == Op.ENQUEUE:
                refused = dict(queues.enqueue_rows(self, table, rows, now))
            else:
                queue = queues.consumed(self, table.address(row).decode())
                told = queue.ack_rows(self, table.ids(rows), now)
                refused = {one: why for one, why in zip(rows, told, strict=True) if why}
        except RefusedError as error:
            refused = dict.fromkeys(rows, error)
        asking = array("i")
        for one in rows:
            if refusal := refused.get(one):
                self.node.vitals.count_refused(refusal.code)
                self.refuse(table.message(one), refusal)
            elif table.correlation_len[one] or table.flags[one] & Flag.ACK:
                asking.append(one)
        self.accept_rows(table, asking, kept=True)
        return end - row

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        message = self.authenticate(message, now)
        do = _VERBS.get(message.op)
        if do is None:
            raise RefusedError("bad_request", f"{message.op.label} is not for a broker")
        do(self, message, now)
        if message.op not in _ANSWERING:
            self._confirm(message)

    def _confirm(self, message: Message) -> None:
        """Tell the client that its message is done, if it asked for that."""
        if message.correlation_id or message.flags & Flag.ACK:
            self.answer(lambda: self.accept(message), kept=message.op in KEPT)

    # What clients can ask for

    @_does(Op.PUBLISH, answers=True)
    def _publish(self, message: Message, now: float) -> None:
        if message.target:
            direct = replace(message, op=Op.DIRECT, source=self.client_id, flags=Flag(0))
            self.node.clients.send(self, direct, now)
            self._confirm(message)
        else:
            self.node.router.publish_message(self, message, now)

    @_does(Op.SUBSCRIBE)
    def _subscribe(self, message: Message, now: float) -> None:
        prefetch = message.parameters.count or 0
        self.node.topics.subscribe(self, message.address, now, prefetch)

    @_does(Op.UNSUBSCRIBE)
    def _unsubscribe(self, message: Message, now: float) -> None:
        self.node.topics.unsubscribe(self, message.address, now)

    @_does(Op.REQUEST, answers=True)
    def _request(self, message: Message, now: float) -> None:
        if not message.correlation_id:
            raise RefusedError("bad_request", "a request has a transaction id")
        self.node.services.request(self, message, now)

    @_does(Op.REPLY, answers=True)
    def _reply(self, message: Message, now: float) -> None:
        self.node.services.reply(self, message, now)

    @_does(Op.SERVE)
    def _serve(self, message: Message, now: float) -> None:
        self.node.services.serve(self, message.address)

    @_does(Op.UNSERVE)
    def _unserve(self, message: Message, now: float) -> None:
        self.node.services.unserve(self, message.address)

    @_does(Op.ENQUEUE)
    def _enqueue(self, message: Message, now: float) -> None:
        self.node.queues.enqueue(self, message, now)

    @_does(Op.DEQUEUE, answers=True)
    def _dequeue(self, message: Message, now: float) -> None:
        said = message.parameters
        queue = self.node.queues.to_consume(self, message.address)
        queue.pull(self, message, said.count or 1, said.wait or 0.0, now)

    @_does(Op.ACK)
    def _ack(self, message: Message, now: float) -> None:
        self.node.queues.consumed(self, message.address).ack(self, message.id, now)

    @_does(Op.NACK)
    def _nack(self, message: Message, now: float) -> None:
        queue = self.node.queues.consumed(self, message.address)
        queue.nack(self, message.id, now, requeue=message.parameters.requeue)

    @_does(Op.OPEN)
    def _open(self, message: Message, now: float) -> None:
        self.node.streams.open(self, message, now)

    @_does(Op.DATA, answers=True)
    def _data(self, message: Message, now: float) -> None:
        self.node.streams.data(self, message, now)

    @_does(Op.CLOSE, answers=True)
    def _close(self, message: Message, now: float) -> None:
        self.node.streams.close(self, message, now)

    @_does(Op.WATCH)
    def _watch(self, message: Message, now: float) -> None:
        self.node.store.watch(self, message.address, message.parameters.rev)

    @_does(Op.AUTH)
    def _auth(self, message: Message, now: float) -> None:
        """Done already, as for every message."""

    @_does(Op.PING, answers=True)
    def _ping(self, message: Message, now: float) -> None:
        self.send(Message(op=Op.PONG, id=message.id, correlation_id=message.correlation_id))

    @_does(Op.PONG, answers=True)
    def _pong(self, message: Message, now: float) -> None:
        """Nobody waits for it."""

    @_does(Op.CREATE, answers=True)
    def _create(self, message: Message, now: float) -> None:
        self._tell(message, self.node.store.create(self, message, now))

    @_does(Op.UPDATE, answers=True)
    def _update(self, message: Message, now: float) -> None:
        self._tell(message, self.node.store.update(self, message, now))

    @_does(Op.DELETE, answers=True)
    def _delete(self, message: Message, now: float) -> None:
        self._tell(message, self.node.store.delete(self, message, now))

    @_does(Op.READ, answers=True)
    def _read(self, message: Message, now: float) -> None:
        if has_wildcard(message.address):
            self._list(message)
        else:
            entry = self.node.store.read(self, message)
            self._tell(message, entry, entry.value or b"")

    def _tell(self, message: Message, entry: Entry, value: bytes = b"") -> None:
        """Answer for the data store, once what it tells is durable."""
        answer = Message(
            op=Op.OK,
            id=message.id,
            correlation_id=message.correlation_id,
            payload=value,
            parameters=Parameters(rev=entry.revision),
        )
        kept = self.node.engine.is_shared or self.node.store.is_changing(message.address)
        if len(value) > LARGE:
            self.answer(lambda: self.send_all([answer]), kept=kept)
        else:
            self.answer(lambda: self.send(answer), kept=kept, size=len(value))

    def _list(self, message: Message) -> None:
        """Every key that a filter matches as `set`, then OK with how many (decision 39)."""
        known = self.node.store.matching(self, message.address)
        self.send_all(self._listed(message, known))

    def _listed(self, message: Message, known: Iterator[Entry | None]) -> Iterator[Message | None]:
        count = 0
        for entry in known:
            if entry is None:
                yield None
            elif entry.value is not None:
                count += 1
                yield replace(change(entry), id=message.id, correlation_id=message.correlation_id)
        yield Message(
            op=Op.OK,
            id=message.id,
            correlation_id=message.correlation_id,
            parameters=Parameters(count=count),
        )

    def authenticate(self, message: Message, now: float) -> Message:
        """Take a token and a client id from whatever message carries them.

        Returns the message without them: a token ends at the session that checked it.
        """
        said = message.parameters
        token, client = said.token, said.client
        if token and token != self.token:
            self.node.clients.authenticate(self, token)
        if client and client != self.client_id:
            self.node.clients.claim(self, client, now)
        if not token and not client:
            return message
        return replace(message, parameters=said.but(token="", client=""))

    def accept(self, message: Message) -> None:
        """Tell the client that its message is done."""
        self.send(Message(op=Op.OK, id=message.id, correlation_id=message.correlation_id))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Tell the client why its message was not done."""
        self.send(
            Message(
                op=Op.ERROR,
                id=message.id,
                correlation_id=message.correlation_id,
                payload=error.text.encode(),
                parameters=Parameters(code=error.code),
            )
        )

    def refuse_unasked(self, error: RefusedError, count: int) -> None:
        """One error for all of them, without an id (decision 42)."""
        self.refuse(Message(), RefusedError(error.code, f"{error.text} ({count} published)"))

    def end_of_pull(self, request: Message, taken: int) -> None:
        """OK, with how many there were (spec: kobold, DEQ)."""
        self.send(
            Message(
                op=Op.OK,
                id=request.id,
                correlation_id=request.correlation_id,
                parameters=Parameters(count=taken),
            )
        )

    @_does(Op.INFO, answers=True)
    def _info(self, message: Message, now: float) -> None:
        state: object
        self.rights.check_not_empty()
        if message.address == "$node":
            state = self.node.state()
            if not self.rights.admin:
                del state["events"]  # they tell who is there (decision 43)
        elif message.address == "$queues":
            told, refused = partial(self._inform, message), partial(self.refuse, message)
            self.node.list_queues(self, now, told, refused)
            return
        else:
            raise RefusedError("not_found", f"there is no information about {message.address}")
        self._inform(message, state)

    def _inform(self, message: Message, state: object) -> None:
        """Answer a question about the broker."""
        tells_json = DIALECTS[self.dialect].tells_json
        payload = json.dumps(state).encode() if tells_json else cbor2.dumps(state)
        self.send(
            Message(op=Op.OK, id=message.id, correlation_id=message.correlation_id, payload=payload)
        )
