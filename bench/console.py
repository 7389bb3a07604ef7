"""What the console costs, and how it feels: `python -m bench.console [--json FILE]`.

- The broker's processor time with a page open, less that without it, in turns: the overview, and a
  tail of a thousand messages a second. The traffic is the same, so the difference is the page's. A
  page is a client that reads its stream; what a browser does with it is another process' work.
- A closed page: the processor time of an idle broker before any page was open, and after.
- In Chromium, where it is installed: the first paint, and frames a second and memory while a page
  has ten thousand addresses and a tail of a thousand messages a second.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import wirelake
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.errors import ConfigError, EngineError
from wirelake.measure.broker import HOST, server
from wirelake.measure.load import end_by_signals

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Messages a second of the traffic, addresses that it goes to, and how often some are sent.
RATE, ADDRESSES, PACE = 1_000, 100, 0.05
MANY_ADDRESSES = 10_000
#: Clients that say nothing more, and queues, which the overview has to count.
CLIENTS, QUEUES = 200, 100
TICK = os.sysconf("SC_CLK_TCK")
OVERVIEW = "/v1/live?part=overview"
TAIL = f"/v1/live?part=addresses&filter=%23&rate={RATE}"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


@contextmanager
def broker() -> Iterator[tuple[int, str, int]]:
    """A broker that keeps its log on disk: its port, the URL of its HTTP, its process id."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "wirelake", "serve", "--data", folder]
        places = ["--listen", f"auto://{HOST}:0", "--http", f"{HOST}:0"]
        with server([*command, *places], subprocess.PIPE) as process:
            assert process.stdout
            lines = [process.stdout.readline().decode().strip() for _ in range(2)]
            found = [re.fullmatch(r"listening on (\S+)", line) for line in lines]
            if not found[0] or not found[1]:
                raise EngineError("the broker does not start")
            yield urlsplit(found[0][1]).port or 0, found[1][1], process.pid


def processor(pid: int) -> float:
    """The seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def traffic(port: int, addresses: int = ADDRESSES) -> Iterator[None]:
    """A publisher at RATE, until the end of the block."""
    ended = threading.Event()

    def publish() -> None:
        with wirelake.connect_sync(f"boson-binary://{HOST}:{port}", client_id="bench") as client:
            at, sent, begun = 0, 0, time.monotonic()
            while not ended.wait(PACE):
                due = int((time.monotonic() - begun) * RATE) - sent
                names = [f"bench/{(at + n) % addresses // 100}/{n % 100}" for n in range(due)]
                client.publish_many([(name, b'{"value": 21.5}') for name in names])
                at, sent = at + due, sent + due

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def crowd(port: int, url: str) -> Iterator[None]:
    """Clients and queues, so that there is something to tell: idle, but there."""
    for n in range(QUEUES):
        ask = Request(f"{url}/v1/queues/bench-queue-{n}", method="PUT")
        urlopen(ask).close()
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.create_connection((HOST, port)))
            client.sendall(b"5|0|hello|hello")
        yield


@contextmanager
def page(url: str, path: str) -> Iterator[dict[str, int]]:
    """A stream of a page that is read until the end of the block: how many bytes and messages."""
    parts = urlsplit(url)
    told = {"bytes": 0, "messages": 0}
    begun = threading.Event()
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())

        def read() -> None:
            while data := connection.recv(1 << 16):
                told["bytes"] += len(data)
                told["messages"] += data.count(b'"address"')
                if b"data: " in data:
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            if not begun.wait(60):
                raise EngineError(f"{path} tells nothing")
            yield told
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def share(pid: int, seconds: float) -> float:
    """How much of a core a process uses in the next seconds, in per cent."""
    begun, used = time.monotonic(), processor(pid)
    time.sleep(seconds)
    return 100 * (processor(pid) - used) / (time.monotonic() - begun)


def costs(seconds: float, rounds: int, tell: Tell) -> dict[str, list[float]]:
    """What pages cost, in per cent of a core, for each round."""
    found: dict[str, list[float]] = {"overview": [], "tail": [], "closed": [], "traffic": []}
    with broker() as (port, url, pid), crowd(port, url):
        time.sleep(1.0)
        quiet = [share(pid, seconds) for _ in range(rounds)]
        with traffic(port):
            time.sleep(2.0)
            for turn in range(rounds):
                tell(f"round {turn + 1} of {rounds}")
                alone = share(pid, seconds)
                found["traffic"].append(alone)
                for name, path in (("overview", OVERVIEW), ("tail", TAIL)):
                    with page(url, path) as told:
                        time.sleep(1.5)  # the first figures of a page take longer
                        before = told["messages"]
                        used = share(pid, seconds)
                        if name == "tail" and told["messages"] - before < 0.7 * RATE * seconds:
                            raise EngineError("the tail did not get what was published")
                    after = share(pid, seconds)
                    found[name].append(used - (alone + after) / 2)
                    alone = after
        time.sleep(2.0)
        found["closed"] = [share(pid, seconds) - before for before in quiet]
    return found


def browse(paints: int, seconds: float) -> dict[str, list[float]]:
    """How the page feels in Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise ConfigError("console", "Chromium is not installed")
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"paint": [], "shown": [], "frames": [], "memory": []}
    with broker() as (port, url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for _ in range(paints):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            opened = context.new_page()
            opened.goto(url)
            opened.get_by_role("heading", level=1).wait_for()
            told = opened.evaluate(
                "[performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " performance.now()]"
            )
            found["paint"].append(told[0])
            found["shown"].append(told[1])
            context.close()
        with traffic(port, MANY_ADDRESSES):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            opened = context.new_page()
            opened.goto(f"{url}/#/explore?filter=%23")
            opened.get_by_label("Messages a second at most").select_option(str(RATE))
            # Until all addresses have come by once.
            time.sleep(MANY_ADDRESSES / RATE + 2 if seconds > 5 else 2)
            frames = opened.evaluate(
                """(seconds) => new Promise((done) => {
                    let frames = 0;
                    const end = performance.now() + 1000 * seconds;
                    const draw = () => {
                        frames += 1;
                        if (performance.now() < end) requestAnimationFrame(draw);
                        else done(frames / seconds);
                    };
                    requestAnimationFrame(draw);
                })""",
                seconds,
            )
            found["frames"].append(frames)
            found["memory"].append(memory_of_pages(browser))
        browser.close()
    return found


def memory_of_pages(browser: Browser) -> float:
    """The memory of the largest process that draws pages, in MB."""
    known = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    return max(_own_memory(one["id"]) for one in known["processInfo"] if one["type"] == "renderer")


def _own_memory(pid: int) -> float:
    """The memory of a process that is no file's, in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024 / 1e6


def _result(name: str, unit: str, rounds: list[float], *, less_is_better: bool = True) -> Result:
    return Result.of_rounds(name, unit, {OURS: rounds}, less_is_better=less_is_better)


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    found = costs(1.0, 1, tell) if quick else costs(10.0, 3, tell)
    outcome = Outcome(
        [
            _result("overview, of a core", "%", found["overview"]),
            _result("tail of 1 000 messages/s, of a core", "%", found["tail"]),
            _result("closed page, of a core", "%", found["closed"]),
        ],
        details=found,
    )
    tell("Chromium")
    try:
        felt = browse(1, 1.0) if quick else browse(7, 10.0)
    except (ConfigError, ModuleNotFoundError) as error:
        outcome.notes.append(f"without a browser: {error}")
        return outcome
    found |= felt
    outcome.results += [
        _result("first paint", "ms", felt["paint"]),
        _result("overview is there", "ms", felt["shown"]),
        _result("10 000 addresses and a tail, frames", "a second", felt["frames"],
                less_is_better=False),
        _result("10 000 addresses and a tail, memory", "MB", felt["memory"]),
    ]  # fmt: skip
    return outcome


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a second each, for a look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    outcome = section(lambda step: print(step, file=sys.stderr), quick=options.quick)
    for result in outcome.results:
        rounds = result.rounds[OURS]
        each = ", ".join(f"{one:.1f}" for one in rounds)
        print(f"{result.name}: {statistics.median(rounds):.1f} {result.unit} ({each})")
    for note in outcome.notes:
        print(note)
    write_json(options.json, outcome.details)


if __name__ == "__main__":
    main()
