"""A client as the parts of the broker see it: who it is, what it may do, and how to reach it.

Every client is an `Endpoint`; what reads its bytes and speaks its dialect is in `session`, above
all of these parts. `Link` is what an endpoint needs of its connection: `net` implements it on
sockets, HTTP and tests in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from wirelake.errors import RefusedError
from wirelake.message import Message

if TYPE_CHECKING:
    from array import array

    from wirelake.broker.rights import Rights
    from wirelake.wire import FrameTable

#: What is done with messages for a client whose outbox is full; see `flow`.
Policy = Literal["disconnect", "drop", "pause"]


class Link(Protocol):
    """A connection, as a session sees it."""

    peer: str

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes after all that was written before."""

    def close(self) -> None:
        """Close when everything that was written has gone out."""

    def abort(self) -> None:
        """Close now; what has not gone out is lost."""

    def pause(self) -> None:
        """Read no more until `resume`."""

    def resume(self) -> None:
        """Soon give the session what it left over, then read again."""

    def receive_again(self) -> None:
        """Give the session once more what it left over."""

    def authenticated(self) -> None:
        """Count the client no more among the strangers of its address."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""

    @property
    def moved(self) -> int:
        """The bytes that have gone out since the beginning."""


class Endpoint(ABC):
    """One connected client. Its state is here; a subclass says how to talk to it."""

    #: Can a message be sent to this client itself?
    takes_direct = True
    #: Can a byte stream be opened to this client?
    has_streams = False
    #: Does this client acknowledge what it gets from a queue?
    acknowledges = True
    #: Is this client an onlooker, whose subscriptions do not stop an address becoming a queue?
    observes = False
    #: Is this another node of the cluster, which passes messages on to its own clients?
    is_node = False
    #: Does this stand for a client of another node, which has forwarded what it does here?
    is_delegate = False
    #: Is this a client of another node whose session is here, with all that it does?
    is_hosted = False
    #: Does this client want to know when other nodes have done all that it published?
    waits_for_owners = False
    #: Is nothing more read from this client while its own outbox is full?
    waits_for_itself = True
    #: Endpoints that have the same one here are of one client, which gets a message once.
    belongs_to: object = None

    def __init__(
        self, link: Link, dialect: str, table: FrameTable, rights: Rights, now: float
    ) -> None:
        self.link = link
        self.dialect = dialect
        self.table = table  # what its frames are scanned into
        self.form = dialect  # how frames for this client are written; see `Router.encoder`
        self.number = 0  # of the connection, once the node has counted it
        self.client_id = ""
        self.has_claimed = False  # the client chose its id, rather than being given one
        self.token = ""
        self.rights = rights
        self.filters: dict[str, None] = {}
        self.registration = 0  # of its last filter with other nodes; see `topics.Elsewhere`
        self.wildcards = 0  # of these filters
        self.consumes: dict[str, None] = {}  # queues
        self.unanswered = 0  # runs of rows that other nodes have not done yet, if it waits for them
        self.closed = False
        self.last_heard = self.since = now
        self.received = self.delivered = self.bytes_in = 0  # messages and bytes, see `traffic`
        # Full outboxes, its own too, the budget or the disk: nothing is read from it meanwhile.
        self.waits_for: set[object] = set()

    def __repr__(self) -> str:
        return f"<{self.dialect} {self.client_id or '?'} at {self.link.peer}>"

    @property
    @abstractmethod
    def owner(self) -> str:
        """The token entry whose rights this client has, empty for a stranger."""

    @property
    @abstractmethod
    def outgoing(self) -> int:
        """The bytes that wait for this client, or will when what they answer is durable."""

    @abstractmethod
    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send bytes after all that was sent before; whoever fills the outbox waits for it."""

    def united(self, members: tuple[Endpoint, ...]) -> Endpoint:
        """Return the endpoint that gets a message for all of these, which are of one client."""
        return self

    def observe(self, places: list[tuple[int, int] | None]) -> None:  # noqa: B027 - optional
        """Learn the partition and offset of each message that is written next, if it has one."""

    @abstractmethod
    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message; return whether the client is there and its dialect can express it."""

    def send_rows(self, table: FrameTable) -> bool:
        """Send all rows of a table to a consumer; return False where they must be sent one by one.

        Then nothing was sent.
        """
        return False

    @abstractmethod
    def send_all(self, messages: Iterable[Message | None]) -> None:
        """Send an answer that may be long, as fast as the client reads it.

        None among the messages is a good moment to give way to others. Nothing more is read from
        the client until all has been written.
        """

    @abstractmethod
    def refuse(self, message: Message, error: RefusedError) -> None:
        """Tell the client why its message was not done."""

    def refuse_unasked(self, error: RefusedError, count: int) -> None:  # noqa: B027 - optional
        """Tell the client, where its dialect can, that publishes without an id were refused."""

    @abstractmethod
    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Tell the client that these rows are done, once they are durable if they are kept."""

    def answered_late(self, table: FrameTable, done: array[int]) -> None:  # noqa: B027 - optional
        """Another node has answered rows after this client was gone: these are done, no others."""

    def answered(self) -> None:  # noqa: B027 - optional
        """Another node has done a run of rows, or refused it."""

    def end_of_pull(self, request: Message, taken: int) -> None:  # noqa: B027 - optional
        """Tell the client that its request for messages of a queue has ended."""

    def pairs_with(self, other: Endpoint) -> bool:
        """Return whether both may have the same client id at the same time."""
        return False

    def yields_to(self, other: Endpoint) -> bool:
        """Return whether another connection takes the client id over, as it is the same client."""
        return False

    def give_up_id(self) -> None:
        """Another connection has taken the client id over: end this one."""
        self.close("another connection took over its client id")

    def own_frames(
        self, frames: bytes | memoryview, marks: bytes, *, first: bool, shared: bool
    ) -> bytes | memoryview:
        """Return frames with this receiver's own fields at the marks, where the dialect has any.

        `first` is true for the first of all receivers. Frames that are `shared` with others must
        not be changed, but copied.
        """
        return frames

    def wake(self, now: float) -> None:  # noqa: B027 - most dialects have nothing to do
        """The time has come that this client's session asked for: see `Node.wake_at`."""

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Return whether frames that it sent may go to others of its form byte for byte."""
        return True

    @abstractmethod
    def authenticated(self) -> None:
        """The client has shown who it is: the limits for strangers end."""

    def tick(self, now: float) -> None:  # noqa: B027 - optional
        """Time has passed."""

    def say_goodbye(self) -> None:  # noqa: B027 - optional
        """Tell the client, where its dialect can, that the broker stops."""

    def failed(self, error: Exception) -> None:
        """The code of this client's dialect failed: end the connection."""
        self.close(f"its dialect failed: {error}")

    @abstractmethod
    def close(self, reason: str) -> None:
        """End the connection, once what was written has gone out."""

    @abstractmethod
    def lost(self, reason: str) -> None:
        """The connection has ended."""
