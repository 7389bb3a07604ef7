"""How clients speak boson-text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech, refusal
from wirelake.errors import ConfigError
from wirelake.message import Message, Op, Parameters


class BosonTextSpeech(Speech):
    """boson-text: `$ok` repeats what it answers, `$error` does not."""

    has_unserve = False

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self._asked: deque[str] = deque()  # controls without an answer, which come in order

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """`$auth` with a token; without one a ping, to be heard of."""
        if token:
            yield self.control(Message(op=Op.AUTH, parameters=Parameters(token=token)))
        else:
            yield self.ping()

    def control(self, message: Message) -> Ask:
        """By a reserved topic."""
        if message.op == Op.REQUEST:
            number = self.new_id()
            return Ask(replace(message, correlation_id=number), f"tx:{number}")
        if message.op == Op.PING:
            return Ask(message, "pong")
        # A token may or may not be repeated, so an `$auth` is known by its name alone.
        key = "$auth" if message.op == Op.AUTH else f"${message.op.label} {message.address}"
        self._asked.append(key)
        return Ask(message, key)

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.REQUEST:
                return Heard(Sort.REQUEST)
            case Op.REPLY:
                return Heard(Sort.ANSWER, f"tx:{message.correlation_id}")
            case Op.ERROR if message.correlation_id:
                return Heard(Sort.ANSWER, f"tx:{message.correlation_id}", refusal(message))
            case Op.PONG:
                return Heard(Sort.ANSWER, "pong")
            case Op.OK:
                content = message.payload.decode(errors="replace")
                key = "$auth" if content.startswith("$auth ") else content
                if key in self._asked:
                    self._asked.remove(key)
                return Heard(Sort.ANSWER, key)
            case Op.ERROR:
                key = self._asked.popleft() if self._asked else ""
                return Heard(Sort.ANSWER, key, refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)


def identity(client_id: str, token: str) -> str:
    """Refuse a client id: boson-text cannot say one."""
    if client_id:
        raise ConfigError("client_id", "boson-text has none; all other dialects have")
    return ""
