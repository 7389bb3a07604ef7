"""The three machines of docs/cluster.md, from nothing: network namespaces, joined by a bridge.

Each machine is a namespace with an address of its own and the names of all of them; the bridge has
a fourth one. Nothing of it can be seen outside of these namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.console import ROOT, blocks

MACHINES = ("one", "two", "three")
#: How long the cluster may take to do what is waited for (seconds).
PATIENCE = 240.0
#: Where `ip netns exec` finds the files that are a namespace's own.
OWN_FILES = Path("/etc/netns")

pytestmark = pytest.mark.slow


def ip(*words: str, of: str = "") -> bool:
    """Run `ip`, in a namespace or not; whether it worked."""
    command = ["ip", *(("-n", of) if of else ()), *words]
    return not subprocess.run(command, capture_output=True, check=False).returncode


class Machines:
    """Three namespaces with one network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = f"wl{os.getpid()}"
        self.switch = f"{self._mark}-switch"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def name(self, machine: str) -> str:
        """The namespace of a machine."""
        return f"{self._mark}-{machine}"

    def make(self) -> bool:
        """Join the machines; False where this is not allowed here."""
        if not shutil.which("ip") or not ip("netns", "add", self.switch):
            return False
        hosts = "127.0.0.1 localhost\n"
        hosts += "".join(f"192.0.2.{k + 1} {one}\n" for k, one in enumerate(MACHINES))
        fine = ip("link", "add", "bridge", "type", "bridge", of=self.switch)
        fine = fine and ip("link", "set", "bridge", "up", of=self.switch)
        for k, machine in enumerate(MACHINES):
            name, port = self.name(machine), f"port{k}"
            fine = fine and ip("netns", "add", name)
            peer = ("peer", "name", "eth0", "netns", name)
            fine = fine and ip("link", "add", port, "type", "veth", *peer, of=self.switch)
            fine = fine and ip("link", "set", port, "master", "bridge", "up", of=self.switch)
            fine = fine and ip("addr", "add", f"192.0.2.{k + 1}/24", "dev", "eth0", of=name)
            fine = fine and ip("link", "set", "eth0", "up", of=name)
            fine = fine and ip("link", "set", "lo", "up", of=name)
            (OWN_FILES / name).mkdir(parents=True, exist_ok=True)
            (OWN_FILES / name / "hosts").write_text(hosts)
        return fine

    def start(self, machine: str, script: str) -> None:
        """Start a script on a machine; it runs until the end of the test."""
        with (self.folder / machine / "log").open("ab") as log:
            self.processes[machine] = subprocess.Popen(
                self._command(machine, script),
                cwd=self.folder / machine,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )

    def run(self, machine: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script on a machine to its end."""
        return subprocess.run(
            self._command(machine, script),
            cwd=self.folder / machine,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=self._environment(),
        )

    def _command(self, machine: str, script: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(machine), "bash", "-c", script]

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "HOME": str(self.folder)}

    def lose(self, machine: str) -> None:
        """Kill all that runs on a machine, as when its power fails."""
        process = self.processes.pop(machine)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Take everything away."""
        for machine in list(self.processes):
            self.lose(machine)
        for machine in MACHINES:
            ip("netns", "del", self.name(machine))
            shutil.rmtree(OWN_FILES / self.name(machine), ignore_errors=True)
        ip("netns", "del", self.switch)
        if OWN_FILES.exists() and not any(OWN_FILES.iterdir()):
            OWN_FILES.rmdir()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Three machines that can reach each other."""
    made = Machines(tmp_path)
    try:
        if not made.make():
            pytest.skip("network namespaces need root and iproute2")
        yield made
    finally:
        made.close()


def files() -> dict[str, str]:
    """The files of the page."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    return {one.title: "\n".join(one.lines) + "\n" for one in blocks(page) if "." in one.title}


def test_three_machines_are_set_up_as_the_page_says(machines: Machines, tmp_path: Path) -> None:
    written = files()
    assert set(written) == {"nats.conf", "node.toml", "start.sh", "look.sh"}
    for machine in MACHINES:
        folder = tmp_path / machine
        folder.mkdir()
        for name, text in written.items():
            text = text.replace("/var/lib/", f"{folder}/").replace(
                "MACHINE=one", f"MACHINE={machine}"
            )
            (folder / name).write_text(text)
        machines.start(machine, "source ./start.sh")
    status = "wirelake cluster status --config node.toml --json"

    def wait_for(count: int, machine: str) -> dict[str, object]:
        """Wait until this many nodes serve all partitions; return what a machine says."""
        ends = time.monotonic() + PATIENCE
        while True:
            told = machines.run(machine, status)
            found = json.loads(told.stdout) if told.returncode == 0 else {}
            nodes = found.get("nodes", [])
            served = [one["served"] for one in found.get("partitions", [])]
            if len(nodes) == count and served == [True] * 16:
                return dict(found)
            logs = {one: (tmp_path / one / "log").read_text()[-1500:] for one in MACHINES}
            assert time.monotonic() < ends, (told, logs)
            time.sleep(0.5)

    found = wait_for(3, "two")
    assert isinstance(found["nodes"], list)
    assert {one["node"] for one in found["nodes"]} == set(MACHINES)
    # Three replicas that sync every write, and enough rights: nothing is weak.
    assert [one["weak"] for one in found["nodes"]] == ["", "", ""]
    logs = [(tmp_path / one / "log").read_text() for one in MACHINES]
    assert not any("Permissions Violation" in log for log in logs)
    told = machines.run("one", "set -e; source ./look.sh")
    assert told.returncode == 0, told
    assert re.search(r"^one +[0-9 ]+", told.stdout, re.MULTILINE)
    # Any one machine may be lost, with its node and its NATS server.
    put = "wirelake queue put kobold-3://one:7700,two:7700,three:7700 jobs"
    secret = "export WIRELAKE_TOKEN='change me'"
    machines.lose("one")
    wait_for(2, "three")
    told = machines.run("three", f"{secret}; {put} again")
    assert told.returncode == 0, told
