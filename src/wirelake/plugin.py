"""A dialect as a Python class: what the author of a plug-in imports, and nothing else is needed.

    class Ticker(Plugin):
        interface = 1
        name = "ticker-1"

        def parse(self, data): ...
        @classmethod
        def encode(cls, message, client): ...

A package offers the class by an entry point of the group `wirelake.dialects`. The broker makes one
object for each connection, and the client one for each of its own. What it raises beside
`ProtocolError` and `RefusedError` is reported as an event and ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from wirelake.dialects.dialect import NO, Dialect
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Flag, Limits, Message, Op, Parameters

__all__ = [
    "INTERFACE",
    "Connection",
    "Flag",
    "Limits",
    "Message",
    "Op",
    "Parameters",
    "Plugin",
    "ProtocolError",
    "RefusedError",
]

#: The version of this interface. A plug-in names the one it was written for.
INTERFACE = 1

_HERE = "wirelake.dialects.plugin"
#: On `auto`, dialects of others are asked behind the built-in ones.
_RANK = 1000


class Connection(Protocol):
    """A connection of the broker, as a plug-in sees it. Methods raise RefusedError as clients are
    refused: for rights, limits and filters that are none.
    """

    @property
    def peer(self) -> str:
        """The address of the client."""

    @property
    def client_id(self) -> str:
        """The client's id, empty where it has none."""

    def publish(self, message: Message) -> None:
        """Publish a message; with `Flag.ACK`, `accepted` is asked for once it is durable."""

    def subscribe(self, filter: str) -> None:
        """Let the client get messages that a filter matches, or consume the queue of this name."""

    def unsubscribe(self, filter: str) -> None:
        """End a subscription."""

    def authenticate(self, token: str) -> None:
        """Take a token: its rights are the connection's from now on."""

    def claim(self, client_id: str) -> None:
        """Take a client id; another connection that has it is refused or closed."""

    def send(self, message: Message) -> None:
        """Send one message, as `encode` writes it."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def after_durable(self, action: Callable[[], object]) -> None:
        """Run an action once all that was published so far is durable."""

    def keep(self, key: str, value: bytes | None) -> None:
        """Put a value into the data store, or take it out: what retained messages are made of."""

    def kept(self, filter: str) -> list[tuple[str, bytes]]:
        """Return the keys that a filter matches, and their values; a thousand at most."""

    def close(self, reason: str) -> None:
        """End the connection, once what was written has gone out."""


class Plugin:
    """A dialect. A subclass has at least `interface`, `name`, `parse` and `encode`."""

    #: The version of this interface that the class was written for: 1.
    interface: ClassVar[int] = 0
    name: ClassVar[str] = ""
    #: Without one, the name.
    family: ClassVar[str] = ""
    #: Where it listens by default; None: only where a listener is configured.
    port: ClassVar[int | None] = None
    #: What clients of ours can ask for, such as "acknowledgement of a publish" and "ping".
    abilities: ClassVar[frozenset[str]] = frozenset()
    #: Streams begin with one of these on `auto`; without any, and without a `detect` of its own,
    #: the dialect needs a listener of its own.
    magic: ClassVar[tuple[bytes, ...]] = ()
    #: Frames differ from receiver to receiver: `own` is asked for each.
    per_receiver: ClassVar[bool] = False
    #: Frames say the address that they go to.
    has_addresses: ClassVar[bool] = True
    #: Compiled subclasses of `wirelake.wire.Scanner` and `wirelake.wire.Encoder`, in place of
    #: `parse` and `encode`.
    scanner: ClassVar[type[Any] | None] = None
    encoder: ClassVar[type[Any] | None] = None

    #: The broker's connection; None in a client, in `inspect` and in Spark.
    connection: Connection | None = None
    #: What peers may send.
    limits: Limits = Limits()
    #: Bytes that must be there before `parse` can do more, where it knows; 0: it does not.
    need: int = 0

    @classmethod
    def detect(cls, head: bytes) -> bool | None:
        """Return whether a stream that begins like this is this dialect; None: too short to tell.

        `head` has 1 to 23 bytes. Without a `detect` of its own a plug-in is told by its `magic`.
        """
        if any(head.startswith(magic) for magic in cls.magic):
            return True
        return None if any(magic.startswith(head) for magic in cls.magic) else False

    def parse(self, data: bytes) -> Iterable[tuple[Message | None, int]]:
        """Yield each complete frame in `data` as its message and its bytes in all.

        A frame that says nothing has None. What is behind the last complete frame is given again,
        with what follows it. Raise `self.fault(…)` where a frame is none.
        """
        raise NotImplementedError

    @classmethod
    def encode(cls, message: Message, client: bool) -> bytes:
        """Return a message as a frame, as a client or a broker sends it; b"" if it cannot be said.

        Deliveries are publishes; answers have the ops OK, ERROR and PONG, unless `accepted` and
        `refused` write them otherwise.
        """
        raise NotImplementedError

    def own(self, frame: bytes) -> bytes:
        """Return a frame as this receiver gets it, where the dialect is `per_receiver`."""
        return frame

    def fault(self, reason: str, at: int = 0, answer: bytes = b"") -> ProtocolError:
        """Return the error for a frame that is none; `at` is a place in it, `answer` is sent."""
        return ProtocolError(self.name, at, reason, answer)

    # The broker's end

    def opened(self) -> None:
        """The connection has begun."""

    def on_message(self, message: Message) -> None:
        """Do what a message asks for that is no publish; raise RefusedError where it cannot be.

        Publishes go to their subscribers by themselves. What returns is answered by `accepted`.
        """
        assert self.connection is not None
        match message.op:
            case Op.SUBSCRIBE:
                self.connection.subscribe(message.address)
            case Op.UNSUBSCRIBE:
                self.connection.unsubscribe(message.address)
            case Op.AUTH:
                self.connection.authenticate(message.parameters.token)
            case _:
                raise RefusedError("bad_request", f"{self.name} has no {message.op.label}")

    def accepted(self, message: Message) -> bytes:
        """Return the answer to a message that is done, and durable; b"": none."""
        return self.encode(Message(op=Op.OK, id=message.id, ticket=message.ticket), False)

    def refused(self, message: Message, error: RefusedError) -> bytes:
        """Return the answer to a message that cannot be done; b"": none."""
        said = Parameters(code=error.code)
        answer = Message(op=Op.ERROR, id=message.id, ticket=message.ticket, parameters=said)
        return self.encode(_with_text(answer, error.text), False)

    def tick(self, now: float) -> None:
        """About a second has passed; `now` counts seconds."""

    def closed(self, reason: str) -> None:
        """The connection has ended; it can still publish, as a will."""

    @classmethod
    def as_dialect(cls) -> Dialect:
        """Return the plug-in as the registry holds it; raises TypeError where it cannot be one."""
        if cls.interface != INTERFACE:
            said = cls.interface or "none"
            text = f"{cls.__name__}.interface is {said}; this version of Wirelake has {INTERFACE}"
            raise TypeError(text)
        if not cls.name:
            raise TypeError(f"{cls.__name__} has no name")
        for part, kernel in (("parse", cls.scanner), ("encode", cls.encoder)):
            if kernel is None and getattr(cls, part) is getattr(Plugin, part):
                raise TypeError(f"{cls.__name__} has no {part}")
        own = cls.__mro__[: cls.__mro__.index(Plugin)]
        is_told = bool(cls.magic) or any("detect" in vars(one) for one in own)
        return Dialect(
            name=cls.name,
            family=cls.family or cls.name,
            port=cls.port,
            scanner=f"{_HERE}.codec:plugin_scanner",
            encoder=f"{_HERE}.codec:plugin_encoder",
            detect=_Detection(cls, alone=False) if is_told else None,
            rank=_RANK,
            detect_in_family=_Detection(cls, alone=cls.family in ("", cls.name)),
            session=f"{_HERE}.session:PluginSession",
            speech=f"{_HERE}.speech:PluginSpeech",
            abilities=frozenset(cls.abilities),
            begins_at_once=cls.family in ("", cls.name),
            has_addresses=cls.has_addresses,
            per_receiver=cls.per_receiver,
            plugin=cls,
        )


class _Detection:
    """A plug-in's rule: one that raises is no match."""

    def __init__(self, plugin: type[Plugin], *, alone: bool) -> None:
        self._plugin = plugin
        self._alone = alone  # in its family, so there is nothing to tell apart

    def __call__(self, head: bytes) -> str | None:
        if self._alone:
            return self._plugin.name
        try:
            found = self._plugin.detect(head)
        except Exception:  # noqa: BLE001 - a plug-in's, whatever it is: others are asked
            return NO
        if found is None:
            return None if len(head) < _LONGEST else NO
        return self._plugin.name if found else NO


#: The bytes that a rule sees at most.
_LONGEST = 23


def _with_text(answer: Message, text: str) -> Message:
    return Message(
        op=answer.op,
        id=answer.id,
        ticket=answer.ticket,
        parameters=answer.parameters,
        payload=text.encode(),
    )
