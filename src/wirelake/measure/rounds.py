"""What is measured of a broker, and repeated in rounds.

No machine is quiet, so rounds alternate between all that is measured, and medians count. Ratios say
more about another machine than rates do.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wirelake.errors import WirelakeError
from wirelake.measure.broker import Wirelake
from wirelake.measure.load import Asker, Driver, Load, publish_rate, round_trips

#: Who answers those that cannot serve, where it is measured too.
SERVING = "kobold-3"
#: Pairs of dialects that are measured beside each one alone.
PAIRS = (("boson-text", "kobold-3"), ("kobold-3", "boson-text"), ("mfp-1", "tmq-1.01"))
TOPICS = 1000
ASKING = "request/reply"


class Key(NamedTuple):
    """What is measured (the shape), and of which server or dialect (the name)."""

    shape: str
    name: str


@dataclass(frozen=True)
class Task:
    """One measurement of one server, which each round repeats."""

    key: Key
    run: Callable[[float], list[float]]


@dataclass
class Results:
    """The figures of every round: rates, or for requests their median and 99th percentile."""

    figures: dict[Key, list[list[float]]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)

    def medians(self) -> dict[Key, list[float]]:
        """The medians of all rounds."""
        return {
            key: [statistics.median(each) for each in zip(*rounds, strict=True)]
            for key, rounds in self.figures.items()
        }


def plan(ours: Sequence[Wirelake], peers: Sequence[Driver], size: int) -> Iterator[Task]:
    """What a round measures, in its order; `peers` are other servers to measure beside ours."""
    for shape, subscribers, topics in (("1 → 1", 1, 1), ("1 → 4", 4, 1), ("topics", 1, TOPICS)):
        label = f"{topics} topics" if topics > 1 else shape
        pairs: list[tuple[Driver, Driver]] = [(one, one) for one in (*peers, *ours)]
        if shape == "1 → 1":
            by_name = {one.name: one for one in ours}
            pairs += [(by_name[a], by_name[b]) for a, b in PAIRS if {a, b} <= by_name.keys()]
        for source, target in pairs:
            if size > min(source.most, target.most) or (topics > 1 and not source.has_topics):
                continue
            name = source.name if source is target else f"{source.name} → {target.name}"
            yield Task(
                Key(label, name), _publishing(source, target, Load(topics, size), subscribers)
            )
    serving = {one.name: one for one in ours if one.has_services}
    server = serving.get(SERVING) or next(iter(serving.values()), None)
    askers: list[tuple[Asker, Asker]] = [(one, one) for one in peers if isinstance(one, Asker)]
    for one in ours:
        if one.has_services:
            askers.append((one, one))
        elif one.has_requests and server is not None:
            askers.append((one, server))
    for asker, service in askers:
        name = asker.name if asker is service else f"{asker.name} → {service.name}"
        yield Task(Key(ASKING, name), _asking(asker, service, Load(1, size)))


def _publishing(
    source: Driver, target: Driver, load: Load, subscribers: int
) -> Callable[[float], list[float]]:
    return lambda seconds: [publish_rate(source, target, load, subscribers, seconds)]


def _asking(asker: Asker, service: Asker, load: Load) -> Callable[[float], list[float]]:
    def run(seconds: float) -> list[float]:
        taken = round_trips(asker, service, load, seconds)
        return [statistics.median(taken), statistics.quantiles(taken, n=100)[98]]

    return run


def measure(
    tasks: list[Task], rounds: int, seconds: float, begin: Callable[[int, Key], None]
) -> Results:
    """Run each task once a round; one that fails is left out from then on.

    `begin` is called before each task, with the number of the round.
    """
    results = Results()
    for turn in range(rounds):
        for task in tasks:
            begin(turn, task.key)
            if task.key not in results.failures:
                try:
                    results.figures.setdefault(task.key, []).append(task.run(seconds))
                except (WirelakeError, OSError) as error:
                    results.failures[task.key] = str(error)
                    del results.figures[task.key]
    return results
