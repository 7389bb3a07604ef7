"""Nodes as processes of their own, `wirelake serve --cluster`, for tests."""

from __future__ import annotations

import json
import os
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

    def __init__(
        self, folder: Path, name: str, urls: list[str], prefix: str, more: str, replicas: int
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.listen = self.http = ""
        config = self.folder / "wirelake.toml"
        config.write_text(
            f"{more}\n[cluster]\nservers = {json.dumps(urls)}\n"
            f'prefix = "{prefix}"\nnode = "{name}"\nreplicas = {replicas}\npartitions = 6\n{TIMING}'
        )
        self.config = config
        self.data = self.folder / "data"
        #: Seconds by which its clock is ahead of this machine's.
        self.ahead = 0.0
        self.process: subprocess.Popen[str]

    @property
    def command(self) -> list[str]:
        """What starts it; one that is started again listens where it did."""
        return [
            *(sys.executable, "-m", "wirelake", "serve", "--config", str(self.config)),
            *("--data", str(self.data), "--listen", self.listen or "auto://127.0.0.1:0"),
            *("--http", self.http.removeprefix("http://") or "127.0.0.1:0", "--json"),
        ]

    def launch(self) -> None:
        """Start the process."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self._clock() if self.ahead else None,
            )

    def _clock(self) -> dict[str, str]:
        """What makes an interpreter tell another time: it imports `sitecustomize` at its start."""
        folder = self.folder / "clock"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(
            "import time\n"
            "seconds, nanoseconds = time.time, time.time_ns\n"
            f"time.time = lambda: seconds() + {self.ahead}\n"
            f"time.time_ns = lambda: nanoseconds() + {int(self.ahead * 1e9)}\n"
        )
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths)}

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

    def freeze(self) -> None:
        """Stop the process, whose connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a stopped process go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop it as planned; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Nodes:
    """Several nodes, which are ended when the block ends."""

    def __init__(
        self, folder: Path, urls: list[str], prefix: str, more: str = "", replicas: int = 1
    ) -> None:
        self.all: dict[str, NodeProcess] = {}
        #: Where single nodes find NATS, if not where the others do.
        self.ways: dict[str, list[str]] = {}
        self._folder, self._urls, self._prefix, self._more = folder, urls, prefix, more
        self._replicas = replicas

    def start(self, *names: str) -> list[NodeProcess]:
        """Start nodes beside each other, and wait until all have joined."""
        made = [self.prepare(name) for name in names]
        for one in made:
            one.launch()
        for one in made:
            one.wait()
        return made

    def prepare(self, name: str) -> NodeProcess:
        """Return a node, which may not have been started."""
        return self.all.setdefault(name, self._make(name))

    def _make(self, name: str) -> NodeProcess:
        more, replicas = self._more, self._replicas
        urls = self.ways.get(name, self._urls)
        return NodeProcess(self._folder, name, urls, self._prefix, more, replicas)

    def __enter__(self) -> Nodes:
        return self

    def restart(self, name: str) -> None:
        """Start a node again that has ended, and wait until it has joined."""
        one = self.all[name]
        assert one.process.stdout is not None
        one.process.stdout.close()
        one.launch()
        one.wait()

    def stop(self) -> None:
        """Stop all nodes as planned, all at once."""
        alive = [one for one in self.all.values() if one.process.poll() is None]
        for one in alive:
            one.process.send_signal(signal.SIGTERM)
        for one in alive:
            one.process.wait(PATIENCE)

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
