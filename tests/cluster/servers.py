"""nats-servers on free ports of this machine, alone or as a cluster, for tests."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

#: How long a server may take to start (seconds).
PATIENCE = 60.0


def binary() -> str | None:
    """The server's program, beside the interpreter or on the PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Servers:
    """Servers with JetStream, which are stopped when the block ends."""

    def __init__(self, folder: Path, count: int = 1, *, jetstream: str = "") -> None:
        self.folder = folder
        #: Further settings of JetStream.
        self.jetstream = jetstream
        self.count = count
        #: The port at which others reach the route of a server, where that is not its own.
        self.ways: dict[int, int] = {}
        ports = free_ports(3 * count)
        self.ports, self._routes, self._monitors = (
            ports[:count],
            ports[count : 2 * count],
            ports[2 * count :],
        )
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def _configure(self, number: int) -> Path:
        # A server that others reach by another way is called by them. It calls itself alone, which
        # has no effect: a cluster with JetStream wants at least one route.
        called = [self.ways.get(k, port) for k, port in enumerate(self._routes)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in called)
        listen = f"listen: 127.0.0.1:{self._routes[number]}"
        if number in self.ways:
            routes = f'"nats://127.0.0.1:{self.ways[number]}"'
            listen += f', advertise: "127.0.0.1:{self.ways[number]}"'
        cluster = f"cluster {{ name: C, {listen}, routes: [{routes}] }}"
        path = self.folder / f"{number}.conf"
        path.write_text(
            f"""
            server_name: s{number}
            listen: 127.0.0.1:{self.ports[number]}
            http: 127.0.0.1:{self._monitors[number]}
            jetstream {{ store_dir: "{self.folder / str(number)}" {self.jetstream} }}
            {cluster if self.count > 1 else ""}
            """
        )
        return path

    def route(self, number: int) -> int:
        """The port at which other servers reach this one."""
        return self._routes[number]

    def launch(self, number: int) -> subprocess.Popen[bytes]:
        """Start one server."""
        program = binary()
        assert program is not None
        with (self.folder / f"{number}.log").open("ab") as log:
            command = [program, "-c", str(self._configure(number))]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Servers:
        self.processes = [self.launch(number) for number in range(self.count)]
        self.wait()
        return self

    def restart(self, number: int) -> None:
        """Start a server again that has ended, and wait until it is well."""
        self.processes[number] = self.launch(number)
        self.wait(number)

    def freeze(self, number: int) -> None:
        """Stop a server, whose connections stay."""
        self.processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Let a stopped server go on."""
        self.processes[number].send_signal(signal.SIGCONT)

    def wait(self, *numbers: int) -> None:
        """Wait until these servers are well, or all."""
        deadline = time.monotonic() + PATIENCE
        for port in [self._monitors[k] for k in numbers or range(self.count)]:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    if time.monotonic() > deadline:
                        self.__exit__()
                        raise
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            process.wait(PATIENCE)
