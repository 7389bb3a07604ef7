"""Scanners and encoders of plug-ins: around Python methods, or compiled ones of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wirelake.dialects import DIALECTS
from wirelake.errors import ProtocolError
from wirelake.message import Limits, Message
from wirelake.wire import Encoder, FrameTable, Scanner

if TYPE_CHECKING:
    from wirelake.plugin import Plugin


def plugin_scanner(dialect: str, limits: Limits) -> Scanner:
    """Return a scanner of a plug-in; its `plugin` is the object of this connection."""
    cls = DIALECTS[dialect].plugin
    if cls.scanner is not None:
        made: Scanner = cls.scanner(dialect, limits)
        return made
    with containing():
        plugin = cls()
    return PluginScanner(dialect, limits, plugin)


def plugin_encoder(dialect: str, client: bool) -> Encoder:
    """Return an encoder of a plug-in."""
    cls = DIALECTS[dialect].plugin
    if cls.encoder is not None:
        made: Encoder = cls.encoder(dialect, client)
        return made
    return PluginEncoder(dialect, client, cls)


class PluginExitError(Exception):
    """A plug-in raised what would end the broker, such as SystemExit."""


@contextmanager
def containing() -> Iterator[None]:
    """Let nothing out of a plug-in that is no Exception.

    SystemExit and KeyboardInterrupt would end the broker, and CancelledError a task of it. Raises
    PluginExitError in their place.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise PluginExitError(f"{type(error).__name__}: {error}") from error


def contained(frames: Iterable[Any]) -> Iterator[Any]:
    """Yield what a plug-in yields, see `containing`."""
    try:  # once, and not for each of them
        yield from frames
    except (Exception, GeneratorExit):
        raise
    except BaseException as error:
        raise PluginExitError(f"{type(error).__name__}: {error}") from error


class PluginScanner(Scanner):
    """Bytes to rows, by a plug-in's `parse`.

    What a plug-in does wrong is an error: a frame of no bytes, of more than there are, or without
    an end. The broker ends the connection then.
    """

    def __init__(self, dialect: str, limits: Limits, plugin: Plugin) -> None:
        super().__init__(dialect, limits)
        self.plugin = plugin
        self.rows: list[Message] = []  # of the table that was filled last
        plugin.limits = limits

    def set_limits(self, limits: Limits) -> None:
        """Set the limits, from the next frame on."""
        super().set_limits(limits)
        if hasattr(self, "plugin"):
            self.plugin.limits = limits

    def scan(self, data: memoryview, table: FrameTable) -> int:
        """Fill the table with the messages of complete frames."""
        whole = bytes(data)
        messages: list[Message] = []
        places: list[tuple[int, int]] = []
        used = 0
        self.need, self.again, self.plugin.need = 0, False, 0
        try:
            for message, size in contained(self.plugin.parse(whole)):
                if not 0 < size <= len(whole) - used:
                    left = len(whole) - used
                    raise ValueError(f"parse gave a frame of {size} bytes, and {left} are left")
                if message is not None:
                    self._check(message, used)
                    messages.append(message)
                    places.append((used, size))
                used += size
                if len(messages) == table.capacity:
                    self.again = used < len(whole)
                    break
        except ProtocolError as error:
            if not used:
                self._fill(table, [], [])
                place = self.offset + error.offset
                raise ProtocolError(self.dialect, place, error.reason, error.answer) from None
            self.again = True
        except Exception:
            if not used:  # else what came before it is delivered first
                self._fill(table, [], [])
                raise
            self.again = True
        self._fill(table, messages, places)
        left = len(whole) - used
        if not self.again and left > self.limits.message:
            text = f"{left} bytes of an unfinished frame; at most {self.limits.message}"
            if not used:
                raise self.error(0, text)
            self.again = True
        self.need = min(self.plugin.need, self.limits.message) if not self.again else 0
        self.offset += used
        return used

    def _check(self, message: Message, at: int) -> None:
        """Hold a message to the limits that hold for all dialects."""
        limits = self.limits
        for name, kind in (("payload", bytes), ("id", str), ("correlation_id", str)):
            if not isinstance(getattr(message, name), kind):
                found = type(getattr(message, name)).__name__
                raise TypeError(
                    f"parse gave a message whose {name} is {found}, not {kind.__name__}"
                )
        address = len(message.address.encode())
        if address > limits.address:
            raise self._beyond(at, f"an address of {address} bytes; at most {limits.address}")
        if len(message.payload) > limits.message:
            text = f"a payload of {len(message.payload)} bytes; at most {limits.message}"
            raise self._beyond(at, text)
        if message.headers:
            size = sum(len(k.encode()) + len(v.encode()) for k, v in message.headers.items())
            if size > limits.headers:
                raise self._beyond(at, f"{size} bytes of headers; at most {limits.headers}")

    def _beyond(self, at: int, text: str) -> ProtocolError:
        return ProtocolError(self.dialect, at, text)

    def _fill(
        self, table: FrameTable, messages: list[Message], places: list[tuple[int, int]]
    ) -> None:
        self.rows = messages
        table.fill(messages, self.dialect)
        for row, (at, size) in enumerate(places):
            table.frame_at[row], table.frame_len[row] = at, size


class PluginEncoder(Encoder):
    """Rows to frames, by a plug-in's `encode`."""

    def __init__(self, dialect: str, client: bool, plugin: type[Plugin]) -> None:
        super().__init__(dialect, client)
        self._plugin = plugin
        self._marks = b""

    def encode(self, table: FrameTable, rows: Sequence[int] | None = None) -> memoryview:
        """Return the rows as frames; a row that the plug-in cannot say is left out and counted."""
        with containing():
            return self._encode(table, range(table.count) if rows is None else rows)

    def _encode(self, table: FrameTable, rows: Sequence[int]) -> memoryview:
        frames: list[bytes] = []
        starts: list[int] = []
        at = 0
        for row in rows:
            frame: Any = self._plugin.encode(table.message(row), self.client)
            if not isinstance(frame, bytes):
                raise TypeError(f"encode gave {type(frame).__name__}, not bytes")
            if not frame:
                self.skipped["op"] = self.skipped.get("op", 0) + 1
                continue
            frames.append(frame)
            starts.append(at)
            at += len(frame)
        if self._plugin.per_receiver:
            self._marks = b"".join(start.to_bytes(4, "big") for start in starts)
        return memoryview(b"".join(frames))

    def marks(self) -> bytes:
        """Return where each frame begins: a receiver's own may differ from there on."""
        return self._marks
