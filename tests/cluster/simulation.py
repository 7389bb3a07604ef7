"""A cluster in one thread, whose time, network and faults come from a seed.

Nodes run the real `Members` and `Ownership`. What they share is simulated: heartbeats that are late
or lost, a table with compare-and-set, and a fenced stream per partition (`tests.journal.streamed`).
An owner keeps a log, a store and queues in memory, appends one commit at a time, and answers when
it is durable. Every node has a clock of its own, an hour off and up to 10 % fast or slow.

A `flaw` breaks one rule on purpose, so that it can be shown that the checker finds it.
"""

from __future__ import annotations

import heapq
import pickle
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from tests.cluster.history import Found, Operation, Row, Told
from tests.journal.streamed import Stream, WrongSequenceError
from wirelake.cluster.members import Heartbeat, Members, Timing
from wirelake.cluster.ownership import (
    Action,
    Drop,
    LetGo,
    Ownership,
    Read,
    Serve,
    Table,
    TakeUp,
    Write,
)

TIMING = Timing()
STEP = 0.1
#: How long a client waits for an answer before it tries again elsewhere.
PATIENCE = 1.5


class Bucket:
    """The table of owners, as a KV bucket keeps it."""

    def __init__(self) -> None:
        self.table: Table | None = None
        self.revision = 0

    def write(self, table: Table, revision: int) -> int:
        """Write if the revision is this one; return the new one, 0 where it is not."""
        if revision != self.revision:
            return 0
        self.table, self.revision = table, revision + 1
        return self.revision


@dataclass
class State:
    """What an owner knows of a partition."""

    rows: list[Row] = field(default_factory=list)
    keys: dict[str, Any] = field(default_factory=dict)
    queues: dict[str, dict[Any, None]] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)  # the results of changes, by their ids

    def apply(self, change: Change) -> Any:
        """Do what a change asks for, once."""
        if change.id in self.done:
            return self.done[change.id]
        result = None
        if change.kind == "publish":
            number = len(self.rows)
            self.rows.append(Row(number, change.name, change.client, change.value))
        elif change.kind == "write":
            self.keys[change.name] = change.value
        elif change.kind == "put":
            self.queues.setdefault(change.name, {})[change.value] = None
        elif change.kind == "ack":
            self.queues.setdefault(change.name, {}).pop(change.value, None)
        self.done[change.id] = result
        return result


@dataclass(frozen=True)
class Change:
    """A request that changes something, with an id that stays the same when it is retried."""

    id: str
    kind: str
    client: str
    name: str
    value: Any


Answer = Callable[[Told, Any], None]


class Owned:
    """A partition that a node has taken up."""

    def __init__(self, epoch: int, sequence: int, state: State) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.state = state
        self.serves = False
        self.number = 0
        self.open: list[Change] = []  # what the next commit gets
        self.answers: list[tuple[Answer, Any]] = []
        self.is_appending = False
        self.when_idle: Callable[[], None] | None = None


class Node:
    """One process, and those that follow it under the same name."""

    def __init__(self, simulation: Simulation, name: str, partitions: int) -> None:
        self.simulation = simulation
        self.name = name
        self.partitions = partitions
        chance = simulation.chance
        self.offset = chance.uniform(-3600, 3600)
        self.rate = chance.uniform(0.9, 1.1)
        self.life = 0
        self.runs = self.is_stopped = False
        self.hears = self.is_heard = True  # what reaches it, and from it
        self.is_hushed = False  # its heartbeats are lost, and nothing else
        self.put_off: list[Callable[[], None]] = []
        self.start()

    def clock(self) -> float:
        """What this node's monotonic clock says."""
        return self.offset + 10_000 + self.rate * self.simulation.now

    def start(self) -> None:
        """Start a new process."""
        self.life += 1
        self.runs = True
        me = Heartbeat(self.name, f"{self.name}-{self.life}")
        timing = replace(TIMING, drift=-1.0) if self.simulation.flaw == "wait" else TIMING
        self.members = Members(me, self.clock(), timing)
        self.ownership = Ownership(self.members, self.partitions)
        self.owned: dict[int, Owned] = {}
        self.put_off.clear()
        self.later(0, self.step)
        self.later(0, self.beat)

    def kill(self) -> None:
        """End the process at once."""
        self.runs = self.is_stopped = False

    def stop(self) -> None:
        """Let the process not run, as SIGSTOP does."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let the process run again: what came meanwhile is still there."""
        self.is_stopped = False
        waiting, self.put_off = self.put_off, []
        for do in waiting:
            do()

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Do something in this process after some time, if it still runs."""
        life = self.life

        def now() -> None:
            if self.runs and self.life == life:
                if self.is_stopped:
                    self.put_off.append(now)
                else:
                    do()

        self.simulation.at(delay, now)

    # Members and ownership

    def beat(self) -> None:
        """Send a heartbeat."""
        changes = {"owned": self.ownership.owned(), "revision": self.ownership.revision}
        data = self.members.beat(**changes, deaf=self.members.is_deaf(self.clock()))
        self.simulation.send_all(self, data)
        self.later(TIMING.beat, self.beat)

    def hear(self, data: bytes) -> None:
        """A heartbeat comes."""
        self.members.hear(data, self.clock())

    def step(self) -> None:
        """Let the time pass."""
        self.members.step(self.clock())
        self.act(self.ownership.step(self.clock()))
        self.later(STEP, self.step)

    def act(self, actions: list[Action]) -> None:
        """Do what was decided."""
        for action in actions:
            match action:
                case Read():
                    self.ask(self._read, self._has_read, self.ownership.read_failed)
                case Write(table, revision):
                    write = partial(self.simulation.bucket.write, table, revision)
                    self.ask(write, self._has_written, self.ownership.write_failed)
                case TakeUp(partition):
                    self.take_up(partition)
                case Serve(partition):
                    self.owned[partition].serves = True
                    epoch = self.owned[partition].epoch
                    self.simulation.found.served.add((partition, epoch, self.name))
                case LetGo(partition):
                    self.let_go(partition)
                case Drop(partition):
                    self.drop(partition)

    def _read(self) -> tuple[Table | None, int]:
        return self.simulation.bucket.table, self.simulation.bucket.revision

    def _has_read(self, answer: tuple[Table | None, int]) -> None:
        self.ownership.read(*answer)
        self.act(self.ownership.step(self.clock()))

    def _has_written(self, revision: int) -> None:
        if revision:
            self.ownership.wrote(revision)
        else:
            self.ownership.write_failed()
        self.act(self.ownership.step(self.clock()))

    def ask(
        self, do: Callable[[], Any], then: Callable[[Any], None], fail: Callable[[], None]
    ) -> None:
        """Let NATS do something; `fail` where no answer comes in time."""
        answered = False

        def answer(result: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                then(result)

        def give_up() -> None:
            nonlocal answered
            if not answered:
                answered = True
                fail()

        self.simulation.call(self, do, answer)
        self.later(2.0, give_up)

    # Partitions

    def take_up(self, partition: int) -> None:
        """Fence everybody else by an epoch record, and replay."""
        stream = self.simulation.streams[partition]
        sent = self.clock()

        def publish() -> tuple[int, list[bytes]] | None:
            messages = list(stream.messages)
            epoch = 1 + max((pickle.loads(one)[0] for one in messages), default=0)
            record = pickle.dumps((epoch, self.name, None))
            identity = f"{self.name}-{self.life}-{next(self.simulation.ids)}"
            try:
                self.simulation.publish(stream, record, identity, len(messages))
            except WrongSequenceError:
                return None
            return epoch, messages

        def taken(result: tuple[int, list[bytes]] | None) -> None:
            if result is None:
                self.ownership.not_taken_up(partition, self.clock())
                return
            epoch, messages = result
            state = State()
            for one in messages:
                for change in pickle.loads(one)[2] or ():
                    state.apply(change)
            self.owned[partition] = Owned(epoch, len(messages) + 1, state)
            self.act(self.ownership.taken_up(partition, epoch, sent, self.clock()))

        self.ask(publish, taken, lambda: self.ownership.not_taken_up(partition, self.clock()))

    def let_go(self, partition: int) -> None:
        """Finish what was appended, and forget the state."""
        owned = self.owned[partition]
        owned.serves = False

        def finished() -> None:
            if self.owned.get(partition) is owned:
                del self.owned[partition]
                self.ownership.let_go(partition)
                self.act(self.ownership.step(self.clock()))

        owned.when_idle = finished
        if not owned.is_appending and not owned.open and not owned.answers:
            self.later(0, finished)  # other actions of this step come first

    def drop(self, partition: int) -> None:
        """Forget the state: nobody gets an answer."""
        self.owned.pop(partition, None)

    def receive(self, partition: int, change: Change, answer: Answer) -> None:
        """Do what a client asks for."""
        owned = self.owned.get(partition)
        if owned is None or not owned.serves:
            answer(Told.REFUSED, None)
            return
        if change.kind in ("read", "take"):
            if change.kind == "read":
                result = owned.state.keys.get(change.name)
            else:
                result = next(iter(owned.state.queues.get(change.name, ())), None)
            is_idle = not owned.open and not owned.is_appending
            may_read = self.ownership.may_read(partition, self.clock())
            if self.simulation.flaw == "lease":
                is_idle = may_read = not owned.open
            if is_idle and may_read:
                answer(Told.DONE, result)
                return
        else:
            result = owned.state.apply(change)
            owned.open.append(change)
        owned.answers.append((answer, result))
        self.append(partition, owned)

    def append(self, partition: int, owned: Owned) -> None:
        """Append a commit, unless one is under way."""
        if owned.is_appending or not (owned.open or owned.answers):
            return
        changes, owned.open = owned.open, []
        answers, owned.answers = owned.answers, []
        owned.is_appending = True
        owned.number += 1
        record = pickle.dumps((owned.epoch, self.name, changes))
        identity = f"{owned.epoch}-{self.name}-{owned.number}"
        stream, expected = self.simulation.streams[partition], owned.sequence
        if self.simulation.flaw == "early":
            for answer, result in answers:
                answer(Told.DONE, result)
            answers.clear()

        def publish() -> int:
            try:
                return self.simulation.publish(stream, record, identity, expected)
            except WrongSequenceError:
                return 0

        def send() -> None:
            if self.owned.get(partition) is owned:
                sent = self.clock()
                self.ask(publish, lambda sequence: appended(sequence, sent), send)

        def appended(sequence: int, sent: float) -> None:
            if self.owned.get(partition) is not owned:
                return
            if not sequence:
                self.act(self.ownership.lost(partition, self.clock()))
                return
            self.ownership.proved(partition, sent)
            owned.sequence = sequence
            owned.is_appending = False
            for answer, result in answers:
                answer(Told.DONE, result)
            self.append(partition, owned)
            if not owned.is_appending and owned.when_idle is not None:
                owned.when_idle()

        send()


class Client:
    """Does one thing after the other, and tries again elsewhere until it has an answer."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.numbers = count(1)
        self.node = ""
        simulation.at(simulation.chance.uniform(0, 3), self.next)

    def next(self) -> None:
        """Begin the next operation."""
        simulation, chance = self.simulation, self.simulation.chance
        if simulation.is_over:
            simulation.idle += 1
            return
        kind = chance.choice(["publish", "write", "read", "read", "put", "take", "take"])
        partition = chance.randrange(len(simulation.streams))
        name = f"{kind[0] if kind == 'publish' else 'k' if kind in ('write', 'read') else 'q'}"
        name = f"{name}{partition}"
        value: Any = None
        if kind in ("write", "put"):
            value = f"{self.name}/{next(self.numbers)}"
        elif kind == "publish":
            value = next(self.numbers)
        self.begin(kind, partition, name, value)

    def begin(self, kind: str, partition: int, name: str, value: Any) -> None:
        """Begin an operation."""
        simulation = self.simulation
        one = Operation(kind, self.name, name, value, simulation.now)
        simulation.history.append(one)
        change = Change(f"{self.name}-{next(simulation.ids)}", kind, self.name, name, value)
        self.attempt(one, partition, change, 0)

    def attempt(self, one: Operation, partition: int, change: Change, tried: int) -> None:
        """Ask some node; take the first answer."""
        simulation, chance = self.simulation, self.simulation.chance
        is_settled = False

        def answer(told: Told, result: Any) -> None:
            nonlocal is_settled
            if is_settled:
                return
            is_settled = True
            if told is Told.DONE:
                one.told, one.ended = told, simulation.now
                if one.kind in ("read", "take"):
                    one.value = result
                if one.kind == "take" and result is not None and chance.random() < 0.7:
                    self.begin("ack", partition, one.name, result)
                else:
                    simulation.at(chance.uniform(0, 0.1), self.next)
            else:
                again()

        def silence() -> None:
            nonlocal is_settled
            if not is_settled:
                is_settled = True
                again()

        def again() -> None:
            self.node = ""
            if tried > 200:  # it will never be known
                simulation.gave_up += 1
                simulation.at(0, self.next)
                return
            wait = chance.uniform(0.01, 0.2)
            simulation.at(wait, lambda: self.attempt(one, partition, change, tried + 1))

        node = simulation.nodes[chance.randrange(len(simulation.nodes))]
        if chance.random() < 0.8:  # it mostly asks where it should, by what that node knows
            owner = node.ownership.owner(partition)
            node = next((each for each in simulation.nodes if each.name == owner), node)
        simulation.call(
            node,
            lambda: None,
            lambda _: node.receive(
                partition, change, lambda told, result: simulation.reply(answer, told, result)
            ),
            is_client=True,
        )
        simulation.at(PATIENCE, silence)


class Simulation:
    """The whole of it, from a seed."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        partitions: int = 2,
        clients: int = 4,
        seconds: float = 20.0,
        flaw: str = "",
    ) -> None:
        self.chance = random.Random(seed)
        self.flaw = flaw
        self.now = 0.0
        self.seconds = seconds
        self.is_over = False
        self.idle = self.gave_up = 0
        self.ids = count(1)
        self.history: list[Operation] = []
        self.found = Found()
        self.faults: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.bucket = Bucket()
        self.streams = [Stream() for _ in range(partitions)]
        self.frozen_until = 0.0  # an election: NATS answers nobody before
        self.loss = self.chance.choice([0.0, 0.0, 0.02, 0.1])
        self.nodes: list[Node] = []
        for k in range(nodes):
            self.nodes.append(Node(self, f"n{k}", partitions))
        self.clients = [Client(self, f"c{k}") for k in range(clients)]

    # Time and the network

    def at(self, delay: float, do: Callable[[], None]) -> None:
        """Do something after some time."""
        heapq.heappush(self._events, (self.now + delay, next(self._order), do))

    def delay(self) -> float:
        """How long a message takes: mostly little, now and then longer than a lease."""
        if self.chance.random() < 0.02:
            return self.chance.uniform(0.5, 3.0) if self.loss else 0.3
        return self.chance.uniform(0.0005, 0.01)

    def send_all(self, sender: Node, data: bytes) -> None:
        """Send a heartbeat to all nodes."""
        for node in self.nodes:
            is_lost = self.chance.random() < self.loss
            if not is_lost and sender.is_heard and node.hears and not sender.is_hushed:
                node.later(self.delay(), partial(node.hear, data))

    def call(
        self,
        node: Node,
        do: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        is_client: bool = False,
    ) -> None:
        """Let a server do something for a node, and tell the node; or let a client ask a node."""
        if is_client:
            if self.chance.random() >= self.loss:
                node.later(self.delay(), lambda: then(None))
            return

        def at_the_server() -> None:
            if self.now < self.frozen_until:
                self.at(self.frozen_until - self.now, at_the_server)
                return
            result = do()
            if node.hears and self.chance.random() >= self.loss:  # else the answer is lost
                node.later(self.delay(), lambda: then(result))

        if node.is_heard and self.chance.random() >= self.loss:
            self.at(self.delay(), at_the_server)

    def reply(self, answer: Answer, told: Told, result: Any) -> None:
        """Send an answer to a client."""
        if self.chance.random() >= self.loss:
            self.at(self.delay(), lambda: answer(told, result))

    def publish(self, stream: Stream, record: bytes, identity: str, expected: int) -> int:
        """Add a record to a stream."""
        if self.flaw == "fence":
            expected = len(stream.messages)
        return stream.publish(record, identity, expected)

    # Faults

    def disturb(self) -> None:
        """Do harm to one node, or two, or to NATS, and then again."""
        chance = self.chance
        if self.now > self.seconds - 6:
            return
        for _ in range(chance.choice([1, 1, 1, 2])):
            node = chance.choice(self.nodes)
            fault = chance.choice(
                [
                    "kill",
                    "stop",
                    "cut",
                    "deafen",
                    "mute",
                    "hush",
                    "freeze",
                    "drain",
                    "move",
                    "leave",
                ]
            )
            lasts = chance.uniform(0.2, 6.0)
            self.faults.append(f"{self.now:.1f} {fault} {node.name} for {lasts:.1f}")
            getattr(self, fault)(node, lasts)
        self.at(chance.uniform(1.0, 5.0), self.disturb)

    def kill(self, node: Node, lasts: float) -> None:
        """kill -9, and a start later."""
        if node.runs:
            node.kill()
            self.at(lasts, node.start)

    def stop(self, node: Node, lasts: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if node.runs and not node.is_stopped:
            node.stop()
            self.at(lasts, node.go_on)

    def cut(self, node: Node, lasts: float) -> None:
        """No way to NATS and back."""
        self.deafen(node, lasts)
        self.mute(node, lasts)

    def deafen(self, node: Node, lasts: float) -> None:
        """Nothing reaches it."""
        node.hears = False
        self.at(lasts, lambda: setattr(node, "hears", True))

    def mute(self, node: Node, lasts: float) -> None:
        """Nothing comes from it."""
        node.is_heard = False
        self.at(lasts, lambda: setattr(node, "is_heard", True))

    def hush(self, node: Node, lasts: float) -> None:
        """Nobody hears that it is alive, but all else goes on."""
        node.is_hushed = True
        self.at(lasts, lambda: setattr(node, "is_hushed", False))

    def freeze(self, node: Node, lasts: float) -> None:
        """An election of JetStream."""
        self.frozen_until = self.now + lasts

    def drain(self, node: Node, lasts: float) -> None:
        """Drain a node for a while."""
        if node.runs:
            node.members.beat(draining=True)
            members = node.members

            def end() -> None:
                members.beat(draining=False)

            node.later(lasts, end)

    def move(self, node: Node, lasts: float) -> None:
        """Move a partition to a node, or back to where the hash says."""
        partition = self.chance.randrange(len(self.streams))
        other = self.chance.choice([*self.nodes[1:], None])
        if node.runs and (other is None or other.name in node.members.alive()):
            node.ownership.move(partition, other.name if other else "")

    def leave(self, node: Node, lasts: float) -> None:
        """A planned stop, and a start later."""
        if not node.runs or node.ownership.is_leaving:
            return
        node.ownership.is_leaving = True
        self.send_all(node, node.members.beat(draining=True))
        left = self.now + 3.0

        def look() -> None:
            if node.ownership.has_let_go or self.now > left:
                self.send_all(node, node.members.leave())
                node.kill()
                self.at(lasts, node.start)
            else:
                node.later(0.05, look)

        look()

    # The run

    def run(self) -> None:
        """Let all of it happen, heal everything, and read back what is there."""
        self.at(self.chance.uniform(3.0, 5.0), self.disturb)
        self.at(self.seconds, self.heal)
        while self._events and self.now < self.seconds + 60 and self.idle < len(self.clients):
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.look_around()

    def heal(self) -> None:
        """End all faults."""
        self.loss = 0.0
        self.is_over = True

    def look_around(self) -> None:
        """Read everything back from the streams."""
        for partition, stream in enumerate(self.streams):
            state, epochs = State(), []
            for message in stream.messages:
                epoch, node, changes = pickle.loads(message)
                if changes is None:
                    epochs.append((epoch, node))
                for change in changes or ():
                    state.apply(change)
            self.found.log[partition] = state.rows
            self.found.epochs[partition] = epochs
            for name, messages in state.queues.items():
                self.found.queues[name] = list(messages)

    @property
    def takeovers(self) -> deque[float]:
        """How long take-overs took."""
        return deque(took for node in self.nodes for took in node.ownership.takeovers)
