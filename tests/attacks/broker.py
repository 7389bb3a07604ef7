"""A broker to attack: a real `wirelake serve` process, and raw sockets that speak to it.

Everything here blocks, so that a test reads from top to bottom as the attack does. What is measured
is what the system says of the process (`rss`, `cpu`) and what the broker counts (`counters`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from wirelake.config import hash_token
from wirelake.dialects.codec import Feed, encoder
from wirelake.errors import ProtocolError
from wirelake.message import Message, Op, Parameters
from wirelake.wire import FrameTable

LOOPBACK = "127.0.0.1"
MIB = 1 << 20
#: What must come is waited for this long (seconds).
WAIT = 60.0


def token(name: str, **rights: Any) -> str:
    """A token's table for the configuration; the token itself is `secret_of(name)`.

    Rights are given as in the file: `token("alice", publish=["#"], admin=True)`.
    """
    lines = [f'name = "{name}"', f'hash = "{hash_token(secret_of(name))}"']
    lines += [f"{right} = {json.dumps(value)}" for right, value in rights.items()]
    return "\n[[tokens]]\n" + "\n".join(lines) + "\n"


def secret_of(name: str) -> str:
    """The token that `token(name)` has configured."""
    return f"{name}-secret-0123456789"


def frames(dialect: str, *messages: Message) -> bytes:
    """Messages as a client of a dialect sends them."""
    table = FrameTable(max(1, len(messages)))
    table.fill(messages, dialect)
    encode = encoder(dialect, client=True)
    data = bytes(encode.encode(table))
    assert not encode.skipped, (encode.skipped, messages)
    return data


def eventually(condition: Callable[[], Any], what: str = "it", wait: float = WAIT) -> Any:
    """Wait until a condition is true, and return what it returned."""
    deadline = time.monotonic() + wait
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {wait:g} s"
        time.sleep(0.05)
    return found


class Broker:
    """A `wirelake serve` process in a folder, with a configuration; `with` starts and kills it."""

    def __init__(
        self,
        folder: Path,
        config: str = "",
        *,
        listen: Sequence[str] = (f"auto://{LOOPBACK}:0",),
        http: str = f"{LOOPBACK}:0",
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
        preexec: Callable[[], object] | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._file = folder / "wirelake.toml"
        self._file.write_text(config)
        self._stderr = folder / "stderr"
        self._command = [*prefix, sys.executable, "-m", "wirelake", "serve"]
        self._command += ["--config", str(self._file), "--data", str(self.data), "--http", http]
        for url in listen:
            self._command += ["--listen", url]
        self._command += options
        self._preexec = preexec
        self._process: subprocess.Popen[str] | None = None
        self.ports: list[int] = []
        self.http_url = ""

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        self.ports.clear()
        with self._stderr.open("a") as stderr:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                preexec_fn=self._preexec,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            place = line.split()[-1]
            if line.startswith("listening on http"):
                self.http_url = place
                return
            if line.startswith("listening on"):
                self.ports.append(int(place.rsplit(":", 1)[1]) if place[-1].isdigit() else 0)
        self.stop()
        raise AssertionError(f"the broker did not start: {self.log()[-2000:]}")

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End the process with a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(WAIT)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def configure(self, config: str) -> None:
        """Give it another configuration while it runs, by SIGHUP."""
        self._file.write_text(config)
        self.process.send_signal(signal.SIGHUP)

    # What it is doing

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running process."""
        assert self._process is not None, "the broker was not started"
        return self._process

    @property
    def port(self) -> int:
        """The port of its first listener."""
        return self.ports[0]

    @property
    def is_alive(self) -> bool:
        """Does the process run?"""
        return self._process is not None and self._process.poll() is None

    def rss(self) -> int:
        """The bytes of memory that the process has now."""
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most bytes of memory that the process had since `forget_peak`."""
        return self._memory("VmHWM")

    def forget_peak(self) -> int:
        """Let `peak` begin anew, and return the bytes of memory that the process has now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.rss()

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, status
        return int(found[1]) << 10

    def cpu(self) -> float:
        """The seconds of processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self) -> str:
        """What it has logged since it was started for the first time."""
        return self._stderr.read_text()

    # By HTTP

    def http(
        self,
        path: str,
        *,
        method: str = "GET",
        secret: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> tuple[int, bytes]:
        """Status and body of one request; `secret` is a token."""
        request = urllib.request.Request(
            self.http_url + path, method=method, data=body, headers=dict(headers)
        )
        if secret:
            request.add_header("Authorization", f"Bearer {secret}")
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str, *, secret: str = "") -> Any:
        """What a GET returns as JSON; anything but 200 fails the test."""
        status, body = self.http(path, secret=secret)
        assert status == 200, (status, body)
        return json.loads(body)

    def state(self, secret: str = "") -> dict[str, Any]:
        """What the broker tells operators of itself; `secret` needs the right `admin`."""
        said = Parameters(token=secret)
        with Client(self, "kobold-1") as client:
            answer = client.ask(Message(op=Op.INFO, address="$node", parameters=said))
        state: dict[str, Any] = json.loads(answer.payload)
        return state

    def counters(self, secret: str = "") -> dict[str, int]:
        """What the broker has counted; what it has not is absent."""
        counters: dict[str, int] = self.state(secret)["counters"]
        return counters

    def events(self, kind: str = "", secret: str = "") -> list[dict[str, Any]]:
        """The broker's latest events, all or those of a kind."""
        events: list[dict[str, Any]] = self.state(secret)["events"]
        return [event for event in events if kind in ("", event["event"])]

    def http_socket(self) -> socket.socket:
        """A connection to HTTP, for requests that no proper client would send."""
        host, port = self.http_url.removeprefix("http://").rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=WAIT)


class Client:
    """A socket that speaks a dialect, reads only when told to, and may do anything."""

    def __init__(
        self,
        broker: Broker,
        dialect: str = "kobold-3",
        *,
        port: int = 0,
        receive_buffer: int = 0,
        source: str = "",
    ) -> None:
        self.dialect = dialect
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        self.socket.settimeout(WAIT)
        self.socket.connect((LOOPBACK, port or broker.port))
        self._feed = Feed(dialect)
        self._received: list[Message] = []
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, *messages: Message) -> None:
        """Send messages, and wait until the system has taken all of them."""
        self.send_bytes(frames(self.dialect, *messages))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def flood(self, data: bytes, times: int, stalled: float = 3.0) -> int:
        """Send bytes again and again until the broker takes no more of them.

        Returns how many bytes it took: it stops reading when nothing goes out for `stalled`
        seconds, and a connection that it ends counts as stopped, too.
        """
        self.socket.settimeout(stalled)
        taken = 0
        view = memoryview(data)
        try:
            for _ in range(times):
                at = 0
                while at < len(data):
                    at += self.socket.send(view[at : at + MIB])
                taken += at
        except OSError:  # a timeout is one, too
            taken += at
        finally:
            self.socket.settimeout(WAIT)
        return taken

    def receive(self, wait: float = WAIT) -> Message:
        """The next message; TimeoutError where none comes, ConnectionError at the end."""
        for message in self.messages(wait):
            return message
        raise ConnectionError("closed by the broker")

    def messages(self, wait: float = WAIT) -> Iterator[Message]:
        """Messages as they come, until the broker hangs up."""
        deadline = time.monotonic() + wait
        while True:
            while self._received:
                yield self._received.pop(0)
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.socket.recv(MIB)
            except ConnectionError:
                return
            finally:
                self.socket.settimeout(WAIT)
            if not data:
                return
            for table in self._feed.receive(data):
                self._received += table.messages()

    def ask(self, message: Message, wait: float = WAIT) -> Message:
        """Send a message with a new correlation id, and return its answer."""
        self._asked += 1
        number = f"ask-{self._asked}"
        self.send(replace(message, correlation_id=number))
        for answer in self.messages(wait):
            if answer.correlation_id == number:
                return answer
        raise ConnectionError("closed by the broker")

    def login(self, name: str = "", secret: str = "") -> Message:
        """Authenticate with a token and claim a client id; for Kobold and boson-binary."""
        return self.ask(Message(op=Op.AUTH, parameters=Parameters(client=name, token=secret)))

    def is_closed(self, wait: float = WAIT) -> bool:
        """Read until the broker hangs up, and say whether it did."""
        try:
            for _ in self.messages(wait):
                pass
        except TimeoutError:
            return False
        except ProtocolError:
            return self._drain(wait)
        return True

    def _drain(self, wait: float) -> bool:
        self.socket.settimeout(wait)
        try:
            while self.socket.recv(MIB):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True
