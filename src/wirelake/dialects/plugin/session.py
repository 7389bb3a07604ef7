"""Sessions of plug-ins. Whatever a plug-in raises ends its connection, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from wirelake.broker.endpoint import Endpoint, Link, Policy
from wirelake.broker.node import Node
from wirelake.broker.session import Session
from wirelake.dialects import DIALECTS
from wirelake.dialects.plugin.codec import containing
from wirelake.dialects.plugin.watchdog import WATCHDOG
from wirelake.errors import RefusedError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable

#: Ops that need no disk: they are answered while it is in trouble, too.
KEPT_BY_NOBODY = (Op.SUBSCRIBE, Op.UNSUBSCRIBE, Op.AUTH, Op.PING)
#: Keys that a plug-in gets at a time.
MOST_KEYS = 1000


class PluginSession(Session):
    """A connection whose dialect is a plug-in."""

    takes_direct = False
    acknowledges = False

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        super().__init__(node, link, dialect, now)
        self._is_over = True  # the plug-in was told, or there is none
        self.plugin: Any = getattr(self.scanner, "plugin", None)
        if self.plugin is None:
            self.plugin = self._try(DIALECTS[dialect].plugin)
        if self.closed:
            return
        self._is_over = False
        self.plugin.connection = PluginConnection(self)
        self._try(self.plugin.opened)

    def receive(self, data: memoryview, now: float) -> int:
        """Process bytes from the client; a plug-in that does not return is reported."""
        with WATCHDOG.watching(self.dialect):
            return super().receive(data, now)

    def _try(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call a plug-in; what it raises beside a refusal ends the connection."""
        try:
            with containing():
                return action(*arguments)
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's, whatever it is
            self.failed(error)
            return None

    def _bytes(self, action: Callable[..., Any], *arguments: Any) -> bytes:
        """Call what returns bytes to send, b"" where it fails."""
        made = self._try(action, *arguments)
        if isinstance(made, bytes):
            return made
        if not self.closed:
            self.failed(TypeError(f"{action.__name__} gave {type(made).__name__}, not bytes"))
        return b""

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Frames are read into messages: there are none to forward."""
        return False

    def perform(self, message: Message, now: float) -> None:
        """Publish, or let the plug-in do what a message asks for."""
        if message.op == Op.PUBLISH:
            self.node.router.publish_message(self, message, now)
            return
        self._try(self.plugin.on_message, message)
        if not self.closed:
            self.answer(lambda: self.accept(message), kept=message.op not in KEPT_BY_NOBODY)

    def accept(self, message: Message) -> None:
        """Answer as the plug-in does."""
        if self.closed:
            return
        if said := self._bytes(self.plugin.accepted, message):
            self.write(said)

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Answer as the plug-in does."""
        if not self.closed and (said := self._bytes(self.plugin.refused, message, error)):
            self.write(said)

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Answer for rows, once they are durable if they are kept."""
        if not len(rows) or self.closed:
            return
        # What the plug-in read is at hand, where the table is that of this read.
        read = getattr(self.scanner, "rows", None) if table is self.table else None
        messages = [read[row] if read else table.message(row) for row in rows]

        def action() -> None:
            said = []
            for message in messages:
                if self.closed:
                    return
                said.append(self._bytes(self.plugin.accepted, message))
            if not self.closed and (answers := b"".join(said)):
                self.write(answers)

        self.answer(action, kept=kept, size=64 * len(messages))

    def own_frames(
        self, frames: bytes | memoryview, marks: bytes, *, first: bool, shared: bool
    ) -> bytes | memoryview:
        """Return frames as the plug-in makes them this receiver's own."""
        starts = [int.from_bytes(marks[k : k + 4], "big") for k in range(0, len(marks), 4)]
        own = []
        for start, end in zip(starts, [*starts[1:], len(frames)], strict=True):
            if self.closed:
                return b""
            own.append(self._bytes(self.plugin.own, bytes(frames[start:end])))
        return b"".join(own)

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message; return whether the client is there and the plug-in can say it."""
        if self.closed:
            return False
        table = self.node.tables.room(1)
        table.fill([message], message.dialect)
        try:
            frame = bytes(self.encoder.encode(table))
        except Exception as error:  # noqa: BLE001 - a plug-in's, whatever it is
            self.failed(error)
            return False
        self.encoder.skipped.clear()
        if frame and self.plugin.per_receiver:
            frame = self._bytes(self.plugin.own, frame)
        if not frame or self.closed:
            return False
        self.write(frame, policy, sender)
        return True

    def tick(self, now: float) -> None:
        """Call the plug-in's `tick`."""
        if not self.closed:
            try:
                with WATCHDOG.watching(self.dialect):
                    self._try(self.plugin.tick, now)
            except RefusedError as error:
                self.node.vitals.count_refused(error.code)

    def close(self, reason: str) -> None:
        """End the connection, and tell the plug-in first."""
        self._tell_end(reason)
        super().close(reason)

    def lost(self, reason: str) -> None:
        """The connection has ended: the plug-in may publish a will."""
        self._tell_end(reason)
        super().lost(reason)

    def _tell_end(self, reason: str) -> None:
        if self.closed or self._is_over:
            return
        self._is_over = True
        try:
            with containing():
                self.plugin.closed(reason)
        except RefusedError as error:
            self.node.vitals.count_refused(error.code)
        except Exception as error:  # noqa: BLE001 - a plug-in's, whatever it is
            self.report(error)


class PluginConnection:
    """What a plug-in sees of its session; see `wirelake.plugin.Connection`."""

    def __init__(self, session: PluginSession) -> None:
        self._session = session

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._session.link.peer

    @property
    def client_id(self) -> str:
        """The client's id, empty where it has none."""
        return self._session.client_id

    @property
    def _now(self) -> float:
        return self._session.node.vitals.now

    def publish(self, message: Message) -> None:
        """Publish a message."""
        self._session.node.topics.check_publish(self._session, message.address)
        self._session.node.router.publish_message(self._session, message, self._now)

    def subscribe(self, filter: str) -> None:
        """Subscribe, or consume a queue."""
        self._session.node.topics.subscribe(self._session, filter, self._now)

    def unsubscribe(self, filter: str) -> None:
        """End a subscription."""
        self._session.node.topics.unsubscribe(self._session, filter, self._now)

    def authenticate(self, token: str) -> None:
        """Take a token."""
        self._session.node.clients.authenticate(self._session, token)

    def claim(self, client_id: str) -> None:
        """Take a client id."""
        self._session.node.clients.claim(self._session, client_id, self._now)

    def send(self, message: Message) -> None:
        """Send one message."""
        self._session.send(message)

    def write(self, data: bytes) -> None:
        """Send bytes; a plug-in that writes without end fails."""
        session = self._session
        if session.closed:
            return
        # The rules for slow clients come when the plug-in has returned, and it may never do so.
        most = session.node.flow.limit + session.node.limits.message
        if session.outgoing > most:
            raise RuntimeError(f"more than {most} bytes wait (flow.outbox, limits.message)")
        session.write(bytes(data))

    def after_durable(self, action: Callable[[], object]) -> None:
        """Run an action once all that was published so far is durable."""
        session = self._session
        session.answer(lambda: None if session.closed else session._try(action), kept=True)

    def keep(self, key: str, value: bytes | None) -> None:
        """Put a value into the data store, or take it out."""
        session, store = self._session, self._session.node.store
        try:
            if value is None:
                store.delete(session, Message(key, op=Op.DELETE), self._now)
            else:
                store.update(session, Message(key, value, op=Op.UPDATE), self._now)
        except RefusedError as error:
            if error.code != "not_found":
                raise
            if value is not None:
                store.create(session, Message(key, value, op=Op.CREATE), self._now)

    def kept(self, filter: str) -> list[tuple[str, bytes]]:
        """Return keys and their values."""
        page, _ = self._session.node.store.page(self._session, filter)
        return [(one.key, one.value) for one in page if one.value is not None][:MOST_KEYS]

    def close(self, reason: str) -> None:
        """End the connection."""
        self._session.close(reason)
