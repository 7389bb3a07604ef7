"""Our broker for the load generator: a connection in each dialect, and a broker to measure."""

from __future__ import annotations

import random
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wirelake.client.speech import Ask, Heard, Speech, can, speech
from wirelake.client.url import Place
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed
from wirelake.errors import EngineError, RefusedError
from wirelake.measure.load import SERVICE, Asker, Load
from wirelake.message import Message, Op
from wirelake.wire import Encoder, FrameTable

HOST = "127.0.0.1"
PATIENCE = 20.0


class Wirelake(Asker):
    """A Wirelake broker, in one dialect."""

    def __init__(self, place: Place) -> None:
        self.name = place.dialect
        self.has_topics = DIALECTS[place.dialect].has_addresses  # else one topic at a time
        self.has_requests = can(place.dialect, "request/reply")
        self.has_services = can(place.dialect, "service")
        self.most = DIALECTS[place.dialect].max_payload or 64 << 20
        self._place = place

    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes, and the block to send."""
        connection = self.connect("pub")
        talk = speech(self.name)
        encoder = talk.encoder()
        messages = [
            talk.publish(Message(address, load.payload), ack=False).message
            for address in load.addresses()
        ]
        # mfp's TOPICSET is sent once and answered, so it must not be part of the block.
        once, again = (encode(encoder, self.name, messages[:1]) for _ in range(2))
        connection.sendall(once[: len(once) - len(again)])
        return connection, encode(encoder, self.name, messages)

    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""
        return self.connect("sub", lambda talk: talk.subscribe(filter))

    def requester(self, payload: bytes) -> tuple[socket.socket, bytes]:
        """A connection that asks the service, and its request."""
        talk = speech(self.name)
        request = talk.request(Message(SERVICE, payload)).message
        return self.connect("pub"), encode(talk.encoder(), self.name, [request])

    def service(self, payload: bytes) -> tuple[socket.socket, Callable[[bytes], bytes]]:
        """A connection that serves, and what it answers to the bytes of a request."""
        connection = self.connect("sub", lambda talk: talk.serve(SERVICE))
        feed = Feed(self.name)
        talk = speech(self.name)
        encoder = talk.encoder()
        prepared: dict[int, tuple[bytes, bytes]] = {}  # replies, by the length of their number

        def frame_of(stand_in: bytes) -> bytes:
            reply = Message(op=Op.REPLY, correlation_id=stand_in.decode(), payload=payload)
            return encode(encoder, self.name, [talk.reply(reply)])

        def prepare(size: int) -> tuple[bytes, bytes]:
            # At least one letter stands for nothing but the number, which MQTT has twice.
            stand_ins = [letter * size for letter in (b"Q", b"X", b"Z")]
            chosen = min(stand_ins, key=lambda one: frame_of(one).count(one))
            return frame_of(chosen), chosen

        def answer(data: bytes) -> bytes:
            replies = []
            for table in feed.receive(data):
                for request in table.messages():
                    number = request.correlation_id.encode()
                    if len(number) not in prepared:
                        prepared[len(number)] = prepare(len(number))
                    frame, stand_in = prepared[len(number)]
                    replies.append(frame.replace(stand_in, number))
            return b"".join(replies)

        return connection, answer

    def connect(
        self, role: str, then: Callable[[Speech], Ask] | None = None, client_id: str = ""
    ) -> socket.socket:
        """A connection that has introduced itself, and sent one more request if `then` is given."""
        connection = dial(self._place)
        talk = speech(self.name)
        encoder = talk.encoder()
        feed = Feed(self.name)
        if DIALECTS[self.name].roles and not client_id:
            client_id = f"wl-{secrets.token_hex(4)}"
        asks = list(talk.greet(client_id, self._place.token, role))
        for ask in [*asks, *([then(talk)] if then else [])]:
            connection.sendall(encode(encoder, self.name, [ask.message]))
            _hear(connection, feed, talk.hear, ask.key)
        return connection


def _hear(
    connection: socket.socket, feed: Feed, hear: Callable[[Message], Heard], key: str
) -> None:
    """Wait for the answer with this key; raises it if it is a refusal."""
    while data := connection.recv(65536):
        for table in feed.receive(data):
            for message in table.messages():
                heard = hear(message)
                if heard.key == key:
                    if heard.refusal:
                        raise heard.refusal
                    return
    raise RefusedError("closed", "the broker hung up")


def encode(encoder: Encoder, dialect: str, messages: list[Message]) -> bytes:
    """The frames of messages."""
    table = FrameTable(len(messages))
    table.fill(messages, dialect)
    return bytes(encoder.encode(table))


def dial(place: Place) -> socket.socket:
    """Connect; RefusedError `closed` names the place if that fails."""
    try:
        if place.path:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place.path)
        else:
            connection = socket.create_connection((place.host, place.port), PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(PATIENCE)
        if place.tls:
            return place.tls.wrap_socket(connection, server_hostname=place.host)
    except OSError as error:
        raise RefusedError("closed", f"{place}: {error}") from None
    return connection


def free_port() -> int:
    """A port that is free, below the range from which systems take ports for connections."""
    for port in random.sample(range(10_000, 32_768), 100):
        with suppress(OSError), socket.create_server((HOST, port)):
            return port
    raise EngineError("no port is free")


@contextmanager
def own_broker(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a broker without storage as a process; yields its `auto` port and its process id."""
    command = [sys.executable, "-m", "wirelake", "serve", "--memory", "--no-http"]
    listen = ["--listen", f"auto://{HOST}:0"]
    with server([*command, *listen, *arguments], subprocess.PIPE) as process:
        assert process.stdout
        line = process.stdout.readline().decode().strip()
        if not line:
            raise EngineError("the broker does not start")
        yield int(line.rpartition(":")[2]), process.pid


@contextmanager
def server(
    command: list[str], output: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us; we end the server
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
