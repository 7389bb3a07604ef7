"""How clients speak a described dialect."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech, refusal
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import Message, Op, Parameters

#: Answers that are waited for at a time, where tickets are large enough for more.
MOST_TICKETS = 0xFFFF


class FramedSpeech(Speech):
    """A described dialect: an answer is known by its ticket, by its id, or by its turn."""

    has_unserve = False

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self._description = one = DIALECTS[dialect].description
        self._is_answered = "acknowledgement of a publish" in DIALECTS[dialect].abilities
        self._numbers = count(1)
        self._ticket = 0
        self._tickets = 0  # different ones
        if one.ticket:
            field = next(field for field in one.fields if field.name == one.ticket)
            self._tickets = min(MOST_TICKETS, (1 << int(field.type[1:])) - 1)
        self._asked: dict[int, str] = {}  # keys of what has no answer, in the order of asking

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """Show the token, where the description has a frame for it."""
        if token:
            yield self.control(Message(op=Op.AUTH, parameters=Parameters(token=token)))

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish; where frames are answered, this one is, whether or not it is waited for."""
        message = replace(message, op=Op.PUBLISH)
        return self._numbered(message) if self._is_answered else Ask(message, "")

    def control(self, message: Message) -> Ask:
        """Ask for what the description has a value of `ops` for."""
        names = {Op.PING: "ping", Op.AUTH: "auth"}
        name = names.get(message.op, message.op.label)
        ops = self._description.ops
        if ops is None or getattr(ops, name, None) is None:
            text = f"{self.dialect} has no frame for {name}: its description has no ops.{name}"
            raise RefusedError("bad_request", text)
        if message.op != Op.PING and ops.accepted is None:
            text = f"{self.dialect} has no answer to {name}: its description has no ops.accepted"
            raise RefusedError("bad_request", text)
        return self._numbered(message)

    def _numbered(self, message: Message) -> Ask:
        """Give a message what its answer is known by."""
        key = f"turn:{next(self._numbers)}"
        if self._tickets:
            for _ in range(self._tickets):
                self._ticket = self._ticket % self._tickets + 1
                if self._ticket not in self._asked:
                    break
            else:
                text = f"{self._tickets} frames of {self.dialect} have no answer yet"
                raise RefusedError("busy", f"{text}, and each needs a ticket of its own")
            message = replace(message, ticket=self._ticket)
            self._asked[self._ticket] = key
        else:
            self._asked[next(self._numbers)] = key
        return Ask(message, key)

    def hear(self, message: Message) -> Heard:
        """Tell deliveries from answers."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.OK | Op.PONG:
                return Heard(Sort.ANSWER, self._key(message))
            case Op.ERROR:
                return Heard(Sort.ANSWER, self._key(message), refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)

    def _key(self, message: Message) -> str:
        """What has this ticket, or else what was asked first of all that has no answer."""
        if self._tickets:
            return self._asked.pop(message.ticket & MOST_TICKETS, "")
        first = next(iter(self._asked), None)
        return self._asked.pop(first) if first is not None else ""
