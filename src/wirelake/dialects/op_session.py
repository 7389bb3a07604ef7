"""Sessions of the dialects that have an op and an answer for everything: Kobold, boson-binary.

What is answered (spec: kobold 9, decision 25): the data store, info and dequeue always; everything
else when the client asks for it, by `ack=1` or by giving a transaction or correlation id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import cbor2
from msgspec.structs import replace

from wirelake.address import check_number, has_wildcard
from wirelake.broker.flow import LARGE
from wirelake.broker.session import Session
from wirelake.broker.store import change
from wirelake.dialects import DIALECTS
from wirelake.engine.base import Entry
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message, Op

#: The largest parameter that is a number: messages, milliseconds, a revision.
MOST = 10**9 - 1

#: Ops that change what must survive, beside those of the data store.
KEPT = (Op.ENQUEUE, Op.ACK, Op.NACK)


class OpSession(Session):
    """A client whose frames name their op."""

    has_streams = True

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        message = self.authenticate(message, now)
        match message.op:
            case Op.PUBLISH if message.target:
                self.node.clients.send(
                    self, replace(message, op=Op.DIRECT, source=self.client_id, flags=Flag(0)), now
                )
            case Op.PUBLISH:
                self.node.router.publish_message(self, message, now)
                return
            case Op.SUBSCRIBE:
                self.node.topics.subscribe(self, message.address, now, _number(message, "$count"))
            case Op.UNSUBSCRIBE:
                self.node.topics.unsubscribe(self, message.address, now)
            case Op.REQUEST:
                if not message.correlation_id:
                    raise RefusedError("bad_request", "a request has a transaction id")
                self.node.services.request(self, message, now)
                return
            case Op.REPLY:
                self.node.services.reply(self, message, now)
                return
            case Op.SERVE:
                self.node.services.serve(self, message.address)
            case Op.UNSERVE:
                self.node.services.unserve(self, message.address)
            case Op.READ if has_wildcard(message.address):
                self._list(message)
                return
            case Op.CREATE | Op.UPDATE | Op.DELETE | Op.READ:
                self._store(message, now)
                return
            case Op.ENQUEUE:
                self.node.queues.enqueue(self, message, now)
            case Op.DEQUEUE:
                queue = self.node.queues.to_consume(self, message.address)
                wait = _number(message, "$wait") / 1000
                queue.pull(self, message, max(1, _number(message, "$count")), wait, now)
                return
            case Op.ACK:
                self.node.queues.consumed(self, message.address).ack(self, message.id, now)
            case Op.NACK:
                requeue = message.headers.get("$requeue", "1") != "0"
                queue = self.node.queues.consumed(self, message.address)
                queue.nack(self, message.id, now, requeue=requeue)
            case Op.OPEN:
                self.node.streams.open(self, message, now)
            case Op.DATA:
                self.node.streams.data(self, message, now)
                return
            case Op.CLOSE:
                self.node.streams.close(self, message, now)
                return
            case Op.WATCH:
                since = _number(message, "$rev") if "$rev" in message.headers else None
                self.node.store.watch(self, message.address, since)
            case Op.AUTH:
                pass  # done above
            case Op.PING:
                self.send(Message(op=Op.PONG, id=message.id, correlation_id=message.correlation_id))
                return
            case Op.PONG:
                return
            case Op.INFO:
                self._tell_state(message, now)
                return
            case _:
                raise RefusedError("bad_request", f"{message.op.label} is not for a broker")
        if message.correlation_id or message.flags & Flag.ACK:
            self.answer(lambda: self.accept(message), kept=message.op in KEPT)

    def _store(self, message: Message, now: float) -> None:
        """The data store always answers, once what it tells is durable."""
        store = self.node.store
        if message.op == Op.READ:
            entry = store.read(self, message)
        else:
            change = {
                Op.CREATE: store.create,
                Op.UPDATE: store.update,
                Op.DELETE: store.delete,
            }
            entry = change[message.op](self, message, now)
        value = entry.value if message.op == Op.READ and entry.value else b""
        answer = Message(
            op=Op.OK,
            id=message.id,
            correlation_id=message.correlation_id,
            payload=value,
            headers={"$rev": str(entry.revision)},
        )
        kept = store.is_changing(message.address)
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
            headers={"$count": str(count)},
        )

    def authenticate(self, message: Message, now: float) -> Message:
        """Take a token and a client id from whatever message carries them.

        Returns the message without them: a token ends at the session that checked it.
        """
        token = message.headers.get("$token", "")
        client = message.headers.get("$client", "")
        if token and token != self.token:
            self.node.clients.authenticate(self, token)
        if client and client != self.client_id:
            self.node.clients.claim(self, client, now)
        if not token and not client:
            return message
        kept = {k: v for k, v in message.headers.items() if k not in ("$token", "$client")}
        return replace(message, headers=kept)

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
                headers={"$code": error.code},
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
                headers={"$count": str(taken)},
            )
        )

    def _tell_state(self, message: Message, now: float) -> None:
        state: object
        self.rights.check_not_empty()
        if message.address == "$node":
            state = self.node.state()
            if not self.rights.admin:
                del state["events"]  # they tell who is there (decision 43)
        elif message.address == "$queues":
            state = self.node.queues.states(self, now)
        else:
            raise RefusedError("not_found", f"there is no information about {message.address}")
        tells_json = DIALECTS[self.dialect].tells_json
        payload = json.dumps(state).encode() if tells_json else cbor2.dumps(state)
        self.send(
            Message(op=Op.OK, id=message.id, correlation_id=message.correlation_id, payload=payload)
        )


def _number(message: Message, name: str) -> int:
    """A parameter that is a number, 0 where it is absent."""
    return check_number(message.headers.get(name, "0"), name[1:], most=MOST)
