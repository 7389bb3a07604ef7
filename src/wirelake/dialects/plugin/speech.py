"""How clients speak the dialect of a plug-in: an answer is known by its id, or by its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech, can, refusal
from wirelake.message import Message, Op, Parameters


class PluginSpeech(Speech):
    """Messages as they are; the plug-in writes and reads them."""

    has_unserve = False

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self._asked: deque[str] = deque()  # what has no answer yet, in the order of asking

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """Show the token."""
        if token:
            yield self.control(Message(op=Op.AUTH, parameters=Parameters(token=token)))

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish; an answer is waited for where one is wanted."""
        asking = super().publish(message, ack)
        if ack and can(self.dialect, "acknowledgement of a publish"):
            self._asked.append(asking.key)
        return asking

    def control(self, message: Message) -> Ask:
        """Ask for anything; the plug-in may have no words for it."""
        number = self.new_id()
        key = f"id:{number}"
        self._asked.append(key)
        return Ask(replace(message, id=number), key)

    def hear(self, message: Message) -> Heard:
        """Tell deliveries from answers."""
        match message.op:
            case Op.PUBLISH | Op.DELIVER:
                return Heard(Sort.DELIVERY)
            case Op.OK | Op.PONG:
                return Heard(Sort.ANSWER, self._key(message))
            case Op.ERROR:
                return Heard(Sort.ANSWER, self._key(message), refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)

    def _key(self, message: Message) -> str:
        key = f"id:{message.id}"
        if message.id and key in self._asked:
            self._asked.remove(key)
            return key
        return self._asked.popleft() if self._asked and not message.id else key
