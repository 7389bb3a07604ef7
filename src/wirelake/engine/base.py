"""The contract between the broker and what keeps its state.

The broker decides and remembers; an engine keeps. Every write is a plain call that returns at once.
`after` runs an action when all that was written before it is durable: that is where an answer to a
client waits. An engine calls back on the thread that the broker runs on, and in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from wirelake.message import Message

Mode = Literal["round-robin", "push", "pull"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's latest state in the data store; one that was deleted keeps its last revision."""

    key: str
    revision: int
    value: bytes | None
    expires: float = 0.0  # on the broker's clock; 0: never


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue behaves (spec: queues, tmq 6)."""

    name: str
    mode: Mode = "round-robin"
    ack_timeout: float = 30.0
    max_deliveries: int = 5
    content_type: int = 0
    keep_expired: bool = False  # a message past its ttl goes to the dead letters


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a queue; sequences count up within the queue."""

    queue: str
    sequence: int
    message: Message
    attempts: int = 0
    expires: float = 0.0  # on the broker's clock; 0: never


class Engine(ABC):
    """Keeps what the broker must find again."""

    @abstractmethod
    def entries(self) -> Iterable[Entry]:
        """Every key's latest state."""

    @abstractmethod
    def write_entry(self, entry: Entry) -> None:
        """Keep a key's latest state."""

    @abstractmethod
    def queues(self) -> Iterable[QueueSettings]:
        """The queues that were declared."""

    @abstractmethod
    def declare(self, settings: QueueSettings) -> None:
        """Keep a queue."""

    @abstractmethod
    def remove(self, queue: str) -> None:
        """Forget a queue and all that is in it."""

    @abstractmethod
    def stored(self, queue: str) -> Iterable[Stored]:
        """The messages in a queue, in the order of their sequences."""

    @abstractmethod
    def put(self, stored: Stored) -> None:
        """Keep a message, or its new count of attempts."""

    @abstractmethod
    def drop(self, queue: str, sequence: int) -> None:
        """Forget a message that is done."""

    @abstractmethod
    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written so far is durable."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable, and let go."""
