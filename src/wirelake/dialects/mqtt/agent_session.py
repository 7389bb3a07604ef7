"""What an MQTT client does with queues and services of other nodes: a session that acts for it.

A client of MQTT names a packet, not an op: only the broker knows whether a filter is a queue, or a
publish a request. So no session of MQTT on another node can act for it there. An agent can: it is
a session of another dialect on the client's own node, without a socket, with the rights of the
client. What it asks for goes to the owners like everything that clients of that dialect ask for,
and what comes back is read from its frames, and sent to the client as MQTT says it.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from wirelake.broker.session import Session, begin_session
from wirelake.dialects import DIALECTS
from wirelake.dialects.mqtt.memory import Options
from wirelake.message import Message, Op, Parameters
from wirelake.wire import FrameTable, Scanner

if TYPE_CHECKING:
    from wirelake.dialects.mqtt.session import MqttSession

#: The dialect of agents, which can say all that is needed here.
DIALECT = "kobold-3"
#: Requests that a client has not answered; replies to older ones are not passed on.
MOST_ASKED = 10_000


class Agent:
    """Acts for one client; it is the link of the session that it acts by."""

    moved = buffered = 0

    def __init__(self, client: MqttSession) -> None:
        node = client.node
        self.peer = client.link.peer
        #: Queues that the client consumes, and how it subscribed to them.
        self.queues: dict[str, Options] = {}
        #: Numbers of requests that the client has to answer.
        self.asked: dict[str, None] = {}
        self._client = client
        self._requests: dict[str, Message] = {}
        self._numbers = count(1)
        self._inbox: deque[bytes | memoryview] = deque()
        self._reads = False
        self._scanner: Scanner = DIALECTS[DIALECT].load("scanner")(DIALECT, node.limits)
        self._table = FrameTable(64)
        self._rest = b""  # the beginning of a frame that is not whole
        self._session: Session = begin_session(node, self, DIALECT, node.vitals.now)
        self._session.is_delegate = self._session.is_hosted = True
        self._session.last_heard = float("inf")
        self._session.represented = client.owner
        self._session.authenticated()

    # For the client

    def consume(self, queue: str, options: Options, prefetch: int) -> None:
        """Let the client have messages of a queue."""
        self.queues[queue] = options
        self._do(Message(op=Op.SUBSCRIBE, address=queue, parameters=Parameters(count=prefetch)))

    def cancel(self, queue: str) -> None:
        """Let the client have no more messages of a queue."""
        if self.queues.pop(queue, None) is not None:
            self._do(Message(op=Op.UNSUBSCRIBE, address=queue))

    def settle(self, queue: str, identity: str, *, done: bool) -> None:
        """Acknowledge a message of a queue, or give it back."""
        self._do(Message(op=Op.ACK if done else Op.NACK, address=queue, id=identity))

    def serve(self, address: str) -> None:
        """Let the client have the requests to an address."""
        self._do(Message(op=Op.SERVE, address=address))

    def unserve(self, address: str) -> None:
        """Let the client have no more requests to an address."""
        self._do(Message(op=Op.UNSERVE, address=address))

    def request(self, request: Message) -> None:
        """Ask a service; the client gets the reply, or why there is none."""
        number = f"{next(self._numbers)}"
        self._requests[number] = request
        asked = Message(
            op=Op.REQUEST,
            address=request.address,
            payload=request.payload,
            correlation_id=number,
            ttl=request.ttl,
            headers=request.headers,
        )
        self._do(asked)

    def reply(self, number: str, message: Message) -> None:
        """Answer a request that the client was sent."""
        del self.asked[number]
        reply = Message(
            op=Op.REPLY, payload=message.payload, correlation_id=number, headers=message.headers
        )
        self._do(reply)

    def end(self) -> None:
        """The client has gone."""
        self._session.lost("its client has gone")

    def _do(self, message: Message) -> None:
        session = self._session
        if session.closed:
            return
        session.client_id, session.rights = self._client.client_id, self._client.rights
        table = FrameTable(1)
        table.fill([message], DIALECT)
        session.receive_rows(table, session.node.vitals.now)

    # For the session, as its link

    def write(self, data: bytes | memoryview) -> None:
        """Send the client what the frames say."""
        self.moved += len(data)
        self._inbox.append(data)
        if self._reads:  # what a message leads to may be answered at once
            return
        self._reads = True
        try:
            while self._inbox:
                for message in self._read(self._inbox.popleft()):
                    self._tell(message)
        finally:
            self._reads = False

    def _read(self, data: bytes | memoryview) -> list[Message]:
        """Return the messages that these bytes complete."""
        found: list[Message] = []
        view, at = memoryview(b"".join((self._rest, data))), 0
        while True:
            used = self._scanner.scan(view[at:], self._table)
            at += used
            found += self._table.messages()
            if not (used and self._scanner.again):
                break
        self._table.release()
        self._rest = bytes(view[at:])
        return found

    def _tell(self, message: Message) -> None:
        client = self._client
        if client.closed:
            return
        match message.op:
            case Op.DELIVER:
                options = self.queues.get(message.address)
                if options is None:
                    self.settle(message.address, message.id, done=False)
                elif client.hand_out(message, options) and not options.qos:
                    self.settle(message.address, message.id, done=True)
            case Op.REQUEST:
                self.asked[message.correlation_id] = None
                if len(self.asked) > MOST_ASKED:
                    del self.asked[next(iter(self.asked))]
                client.send(message)
            case Op.REPLY | Op.ERROR:
                request = self._requests.pop(message.correlation_id, None)
                if request is not None:
                    client.respond(request, message)
                elif message.op == Op.ERROR:  # as where an acknowledgement comes too late
                    client.node.vitals.count_refused(message.parameters.code)

    def close(self) -> None:
        """Disconnect the client: a node that did something for it is lost."""
        self._client.close("the node that owns what it uses has disconnected it")

    abort = close

    def pause(self) -> None:
        """Go on: what an agent does was read from the client already."""

    resume = receive_again = authenticated = pause
