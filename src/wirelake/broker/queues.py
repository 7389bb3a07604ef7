"""All queues of a broker: which addresses are queues, and who may declare, fill and consume them.

An address is a topic until somebody declares it a queue, or puts a message there, or takes one from
there (spec: a topic or a queue).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from wirelake.address import MAX_ADDRESS, check_address, check_topic
from wirelake.broker.bodies import Bodies
from wirelake.broker.capture import Capture
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.queue import DEAD, Queue, Shared
from wirelake.broker.quotas import Quotas
from wirelake.broker.rights import Rights
from wirelake.broker.topics import Topics
from wirelake.broker.vitals import Vitals
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine, QueueSettings
from wirelake.message import Message
from wirelake.wire import FrameTable

#: Bytes of a queue's name: its dead letters have an address, too.
MAX_NAME = MAX_ADDRESS - len(DEAD)
#: A broker whose clock ticks so late (seconds) was stopped, or its machine was.
STANDSTILL = 1.0
#: Queues that one tick of the clock looks after; the others have to wait for the next.
QUEUES_AT_ONCE = 1_000
#: The work of making a queue, as `Vitals.work` counts it.
DECLARED = 20
#: A list of queues on the wire has at most this many.
LISTED = 1_000


class Queues:
    """All queues, by address."""

    def __init__(
        self,
        engine: Engine,
        vitals: Vitals,
        quotas: Quotas,
        capture: Capture,
        flow: Flow,
        topics: Topics,
    ) -> None:
        self._engine = engine
        self._vitals = vitals
        self._quotas = quotas
        self._topics = topics
        self._capture = capture
        self._shared = Shared(engine, vitals, quotas, capture, flow, Bodies(engine), self.open)
        self._queues = {
            s.name: Queue(self._shared, s)
            for s in engine.queues()
            if not s.name.startswith("$")  # dialects keep theirs there
        }
        self._ticked = 0.0
        topics.inboxes = self

    def __contains__(self, name: str) -> bool:
        """Whether this is the address of a queue, or of the dead letters of one."""
        return name in self._queues or (
            name.endswith(DEAD) and name.removesuffix(DEAD) in self._queues
        )

    def get(self, name: str) -> Queue:
        """Return a queue; raises RefusedError (`not_found`) where there is none."""
        if name not in self._queues:
            self._capture.check_here(name)
            raise RefusedError("not_found", f"no queue {name}")
        return self._queues[name]

    def open(self, name: str) -> Queue:
        """Return the queue of an address that is one, or the dead letters of one.

        The dead letters of a queue belong to it from the start, but take room only when somebody
        asks for them. Raises RefusedError (`not_found`) where the address is neither.
        """
        if name in self and name not in self._queues:
            return self._make(QueueSettings(name))
        return self.get(name)

    def __len__(self) -> int:
        return len(self._queues)

    def all(self) -> Iterable[Queue]:
        """Return every queue."""
        return self._queues.values()

    def states(self, rights: Rights, now: float) -> list[dict[str, object]]:
        """Return the states of the queues that these rights may consume, the first thousand."""
        rights.check_not_empty()
        states = (
            queue.state(now)
            for queue in self.all()
            if rights.allows("subscribe", queue.settings.name)
        )
        listed = list(islice(states, LISTED))
        self._vitals.work += len(listed) // 2
        return listed

    # What sessions do with a queue that they name

    def enqueue(self, session: Endpoint, message: Message, now: float) -> None:
        """Put one message into the queue that it names, which is declared if need be."""
        if not session.rights.allows("publish", check_address(message.address)):
            raise RefusedError("unauthorized", f"no right to publish to {message.address}")
        self._named(session, message.address).take(session, message, now)

    def enqueue_rows(
        self, session: Endpoint, table: FrameTable, rows: Sequence[int], now: float
    ) -> Iterator[tuple[int, RefusedError]]:
        """Put rows into the queue that all of them name; yield those that are refused, and why.

        Raises RefusedError where none of them can be put.
        """
        name = table.address(rows[0]).decode()
        if not session.rights.allows("publish", check_address(name)):
            raise RefusedError("unauthorized", f"no right to publish to {name}")
        return self._named(session, name).take_rows(session, table, rows, now)

    def to_consume(self, session: Endpoint, name: str) -> Queue:
        """Return a queue that a session may take messages from; it is declared if need be."""
        self._check_consumer(session, name)
        self._topics.check_quota(session, name)
        queue = self._named(session, name)
        session.consumes[name] = None
        return queue

    def consumed(self, session: Endpoint, name: str) -> Queue:
        """Return the queue whose message a session acknowledges.

        Who may not consume it does not learn whether there is such a queue.
        """
        self._check_consumer(session, name)
        return self.get(name)

    def _check_consumer(self, session: Endpoint, name: str) -> None:
        if not session.rights.allows("subscribe", check_address(name)):
            raise RefusedError("unauthorized", f"no right to consume {name}")

    def _named(self, session: Endpoint, name: str) -> Queue:
        if name in self:
            return self.open(name)
        return self.declare(QueueSettings(name), session.rights, implied=True)

    # Declaring

    def declare(
        self, settings: QueueSettings, rights: Rights | None = None, *, implied: bool = False
    ) -> Queue:
        """Make an address a queue, unless it is one, and return it.

        `rights` are those of whoever wants it, None for the broker itself. A declaration is
        `implied` where somebody just put into, or took from, an address. Raises RefusedError:
        `unauthorized` without the right `declare`, `conflict` where subscribers of a topic would
        get nothing more.
        """
        name = settings.name
        if name in self:
            return self.open(name)
        check_topic(name)
        self.check_right(name, rights)
        self._capture.check_here(name)
        self._quotas.check_levels(name)
        self._quotas.check_all("queues", len(self._queues))
        if len(name.encode()) > MAX_NAME:
            text = f"a queue's name has at most {MAX_NAME} bytes, to leave room for {DEAD}"
            raise RefusedError("bad_request", text)
        self._check_subscribers(name, rights, implied=implied)
        queue = self._make(settings)
        if self._topics.subscribers(name + DEAD):
            self.open(name + DEAD)  # from now on they consume it
        return queue

    def check_right(self, name: str, rights: Rights | None) -> None:
        """Raise RefusedError where rights do not let their holder make this address a queue."""
        if rights is not None and not rights.admin and not rights.allows("declare", name):
            text = f"to make {name} a queue takes the right `declare`"
            raise RefusedError("unauthorized", text)

    def _check_subscribers(self, name: str, rights: Rights | None, *, implied: bool) -> None:
        """Raise RefusedError where subscribers would lose a topic (spec: a topic or a queue)."""
        subscribers = self._topics.subscribers(name)
        if any(name in session.filters for session in subscribers):
            raise RefusedError("conflict", f"{name} is a topic that has subscribers")
        if subscribers and implied and rights is not None and not rights.may_declare:
            text = f"{name} is a topic that a wildcard is subscribed to: declare the queue first"
            raise RefusedError("conflict", text)

    def _make(self, settings: QueueSettings) -> Queue:
        name = settings.name
        self._vitals.work += DECLARED
        self._engine.declare(settings)
        self._queues[name] = queue = Queue(self._shared, settings)
        self._topics.turn_into_queue(name, queue)
        return queue

    def remove(self, name: str) -> None:
        """Remove a queue and its messages."""
        queue = self.get(name)
        self._shared.wake.discard(queue)
        del self._queues[name]
        queue.close()
        self._engine.remove(name)
        self._topics.forget(name)

    def adopt(self, partition: int) -> None:
        """Take up the queues of a partition that is here now."""
        for settings in self._engine.queues(partition):
            if settings.name.startswith("$"):
                continue
            queue = self._queues[settings.name] = Queue(self._shared, settings)
            self._topics.turn_into_queue(settings.name, queue)

    def lose(self, partition: int) -> None:
        """Let go of the queues of a partition that is not here any more."""
        for name in [name for name in self._queues if self._engine.home(name) == partition]:
            queue = self._queues.pop(name)
            self._shared.wake.discard(queue)
            queue.lose()

    def left(self, session: Endpoint, now: float) -> None:
        """A session has ended: the messages that it holds go to others."""
        for name in session.consumes:
            if name in self._queues:
                self._queues[name].cancel(session, now)

    def tick(self, now: float) -> None:
        """Tick the queues that have something to do."""
        stood_still = now - self._ticked > STANDSTILL
        self._ticked = now
        if stood_still:
            return  # what came meanwhile is heard first: an ack in time counts
        for queue in self._shared.wake.due(now, QUEUES_AT_ONCE):
            queue.tick(now)
