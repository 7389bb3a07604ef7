"""Real nats-servers on loopback: one, or three that are a cluster."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

#: What must come is waited for so long (seconds).
PATIENCE = 60.0


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def wait_for(holds: object, what: str) -> None:
    """Wait until a callable is true."""
    ends = time.monotonic() + PATIENCE
    while not holds():  # type: ignore[operator]  # a callable
        assert time.monotonic() < ends, what
        time.sleep(0.05)


class Servers:
    """nats-servers with JetStream, each of which can be killed, stopped and started again."""

    def __init__(
        self, root: Path, count: int = 1, *, extra: str = "", sync: str = "always"
    ) -> None:
        self.root = root
        self.count = count
        ports = free_ports(3 * count)
        self.ports, self._routes, self._monitors = (ports[k::3] for k in range(3))
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        root.mkdir(parents=True, exist_ok=True)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
        for k in range(count):
            cluster = ""
            if count > 1:
                listen = f"127.0.0.1:{self._routes[k]}"
                cluster = f"cluster {{ name: C, listen: {listen}, routes: [{routes}] }}"
            (root / f"n{k}.conf").write_text(
                f"server_name: n{k}\nlisten: 127.0.0.1:{self.ports[k]}\n"
                f"http: 127.0.0.1:{self._monitors[k]}\n"
                f'jetstream {{ store_dir: "{root}/d{k}", max_mem: 64MB, max_file: 4GB,'
                f" sync_interval: {sync} }}\n{cluster}\n{extra}\n"
            )

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients connect."""
        return tuple(f"nats://127.0.0.1:{port}" for port in self.ports)

    @property
    def monitors(self) -> tuple[str, ...]:
        """Where the servers tell of themselves."""
        return tuple(f"http://127.0.0.1:{port}" for port in self._monitors)

    def start(self, which: Sequence[int] = ()) -> None:
        """Start all servers, or these, and wait until they can be used."""
        which = which or range(self.count)
        program = Path(sys.executable).parent / "nats-server"
        for k in which:
            with (self.root / f"n{k}.log").open("ab") as log:
                self._processes[k] = subprocess.Popen(
                    [program, "-c", self.root / f"n{k}.conf"], stdout=log, stderr=log
                )
        for k in which:
            wait_for(lambda k=k: self._is_healthy(k), f"server {k} is not healthy")

    def _is_healthy(self, k: int) -> bool:
        try:
            with urllib.request.urlopen(f"{self.monitors[k]}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _process(self, k: int) -> subprocess.Popen[bytes]:
        found = self._processes[k]
        assert found is not None
        return found

    def kill(self, k: int) -> None:
        """Kill -9."""
        self._process(k).kill()
        self._process(k).wait()

    def freeze(self, k: int) -> None:
        """Stop a process, whose connections stay."""
        self._process(k).send_signal(signal.SIGSTOP)

    def thaw(self, k: int) -> None:
        """Let a stopped process go on."""
        self._process(k).send_signal(signal.SIGCONT)

    def leader(self, stream: str) -> int:
        """The server that leads a stream."""
        found = -1

        def find() -> bool:
            nonlocal found
            for url in self.monitors:
                try:
                    with urllib.request.urlopen(f"{url}/jsz?streams=1", timeout=2) as answer:
                        told = json.load(answer)
                except OSError:
                    continue
                for account in told.get("account_details", []):
                    for one in account.get("stream_detail", []):
                        name = one.get("cluster", {}).get("leader", "")
                        if one["name"] == stream and name:
                            found = int(name[1:])
                            return True
            return False

        wait_for(find, f"{stream} has no leader")
        return found

    def blocks(self, k: int, stream: str) -> list[Path]:
        """The files in which a server keeps the messages of a stream."""
        found = (self.root / f"d{k}").glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
        return sorted(found, key=lambda path: int(path.stem))

    def close(self) -> None:
        """End all servers."""
        for one in self._processes:
            if one is not None and one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.kill()
                one.wait()

    def __enter__(self) -> Servers:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
