"""Nodes as processes of their own, `wirelake serve --cluster`, for tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.cluster.servers import PATIENCE

#: Heartbeats and leases of the nodes, shorter than the defaults.
TIMING = "beat = 0.2\ndead = 2.0\nlease = 0.5\n"


class NodeProcess:
    """One node."""

    def __init__(self, folder: Path, name: str, urls: list[str], prefix: str, more: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.listen = self.http = ""
        config = self.folder / "wirelake.toml"
        config.write_text(
            f"{more}\n[cluster]\nservers = {json.dumps(urls)}\n"
            f'prefix = "{prefix}"\nnode = "{name}"\nreplicas = 1\npartitions = 6\n{TIMING}'
        )
        self.command = [
            *(sys.executable, "-m", "wirelake", "serve", "--config", str(config)),
            *("--data", str(self.folder / "data"), "--listen", "auto://127.0.0.1:0"),
            *("--http", "127.0.0.1:0", "--json"),
        ]
        self.process: subprocess.Popen[str]

    def launch(self) -> None:
        """Start the process."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait(self) -> None:
        """Wait until it has joined the cluster."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "node" in said:
                return
            url = said["listening"]
            if url.startswith("http"):
                self.http = url
            else:
                self.listen = url
        raise AssertionError(f"{self.name} ended: {self.log()[-2000:]}")

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "log").read_text()

    def url(self, dialect: str) -> str:
        """Where clients of a dialect connect."""
        return self.listen.replace("auto://", f"{dialect}://")

    def get(self, path: str) -> Any:
        """Ask over HTTP."""
        with urllib.request.urlopen(f"{self.http}{path}", timeout=10) as answer:
            return json.load(answer)

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Stop it as planned; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Nodes:
    """Several nodes, which are ended when the block ends."""

    def __init__(self, folder: Path, urls: list[str], prefix: str, more: str = "") -> None:
        self.all: dict[str, NodeProcess] = {}
        self._folder, self._urls, self._prefix, self._more = folder, urls, prefix, more

    def start(self, *names: str) -> list[NodeProcess]:
        """Start nodes beside each other, and wait until all have joined."""
        made = [self.all.setdefault(name, self._make(name)) for name in names]
        for one in made:
            one.launch()
        for one in made:
            one.wait()
        return made

    def _make(self, name: str) -> NodeProcess:
        return NodeProcess(self._folder, name, self._urls, self._prefix, self._more)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.all.values():
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait(PATIENCE)
            assert one.process.stdout is not None
            one.process.stdout.close()


def until(holds: Any, what: str, patience: float = PATIENCE) -> None:
    """Wait until a callable returns something that is true."""
    ends = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.05)
