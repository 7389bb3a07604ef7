"""The sections of the benchmark, and how one is run: in a process of its own.

So a section may fork, start Java, run out of memory or never end, and the next one is not touched
by it. What it prints goes to a file; how far it is, and what it found, comes through a pipe.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.results import Outcome, Tell
from wirelake.errors import ConfigError
from wirelake.measure.load import end_by_signals

_spawn = multiprocessing.get_context("spawn")
#: A section that takes so many times what it should, and as many seconds more, is given up.
MOST_TIMES, MOST_MORE = 5, 180.0
ENDING = 30.0


@dataclass(frozen=True)
class Section:
    """What is measured together: a function, and about how long it takes on two cores."""

    title: str
    module: str
    function: str
    seconds: float
    quick_seconds: float

    def expected(self, *, quick: bool) -> float:
        """About how many seconds it takes."""
        return self.quick_seconds if quick else self.seconds


SECTIONS = {
    "pubsub": Section("Pub/sub, nothing kept", "bench.broker", "pubsub", 230, 15),
    "latency": Section("Round trips of requests", "bench.broker", "latency", 50, 5),
    "durable": Section("Durable", "bench.durable", "section", 260, 20),
    "cluster": Section("A cluster", "bench.cluster", "section", 240, 130),
    "mqtt": Section("MQTT", "bench.mqtt", "section", 180, 15),
    "backlog": Section("Queues in streams, and long ones", "bench.backlog", "section", 330, 30),
    "attacks": Section("Others, while one client attacks", "bench.attacks", "section", 90, 25),
    "pressure": Section("Under pressure", "bench.pressure", "section", 240, 20),
    "http": Section("The log by HTTP", "bench.http", "section", 40, 4),
    "console": Section("The console", "bench.console", "section", 180, 25),
    "wire": Section("The wire library, one core", "bench.wire", "section", 100, 5),
    "spark": Section("Spark reads and lands the log", "bench.spark", "section", 420, 90),
    "decode": Section("Spark decodes captures", "bench.decode", "section", 260, 60),
}


def run(name: str, *, quick: bool, log: Path, tell: Tell) -> tuple[Outcome, float]:
    """What a section found, or why it failed; and the seconds that it took."""
    begun = time.monotonic()
    here, there = _spawn.Pipe(duplex=False)
    process = _spawn.Process(target=_work, args=(name, quick, log, there))
    process.start()
    there.close()
    try:
        most = MOST_TIMES * SECTIONS[name].expected(quick=quick) + MOST_MORE
        outcome = _listen(here, begun + most, tell)
        process.join(ENDING)  # it has told all, and is about to end by itself
    finally:
        for end in (process.terminate, process.kill):
            if process.is_alive():
                end()
                process.join(ENDING)
        here.close()
    if outcome is None:
        reason = f"it ended with {process.exitcode} before it had told what it found; see {log}"
        outcome = Outcome(failures=[reason])
    return outcome, time.monotonic() - begun


def _listen(pipe: Connection, end: float, tell: Tell) -> Outcome | None:
    while (left := end - time.monotonic()) > 0:
        if not pipe.poll(min(left, 1.0)):
            tell("")
            continue
        try:
            said: str | Outcome = pipe.recv()
        except EOFError:
            return None
        if isinstance(said, Outcome):
            return said
        tell(said)
    return Outcome(failures=["it did not end in time"])


def _work(name: str, quick: bool, log: Path, pipe: Connection) -> None:
    """Run a section, in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent to say when to end
    end_by_signals()
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    section = SECTIONS[name]
    try:
        measure = getattr(importlib.import_module(section.module), section.function)
        outcome: Outcome = measure(pipe.send, quick=quick)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (ConfigError, ModuleNotFoundError) as error:
        outcome = Outcome(notes=[f"left out: {error}"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the others go on
        traceback.print_exc()
        outcome = Outcome(failures=[f"{type(error).__name__}: {error}"])
    pipe.send(outcome)
