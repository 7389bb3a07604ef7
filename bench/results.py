"""What every section of the benchmark gives: results, by contender.

A contender is Wirelake itself, a *peer* (another server), or a *reference*: something that is no
server, such as the disk, or Wirelake without its log. The ratio of a result is that to the best
peer of equal durability, or where there is no peer, to the reference.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "Wirelake"

#: Peers, and the column of the table that each of them is in.
PEERS = {
    "nats-server": "NATS",
    "JetStream, synced": "JetStream, synced",
    "JetStream": "JetStream",
    "redis-server": "Redis",
    "Redis, synced": "Redis",
    "mosquitto": "Mosquitto",
    "RabbitMQ": "RabbitMQ",
}
#: Peers that answer before anything is on the disk: not of equal durability.
WEAKER = frozenset({"JetStream"})

#: Where a section says how far it is.
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """One thing that was measured."""

    name: str
    unit: str
    figures: Mapping[str, float]
    less_is_better: bool = False
    #: The figures of every round, where there were several; `figures` has the medians.
    rounds: Mapping[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of_rounds(
        cls,
        name: str,
        unit: str,
        rounds: Mapping[str, list[float]],
        *,
        less_is_better: bool = False,
    ) -> Result:
        """The medians of some rounds."""
        medians = {contender: statistics.median(each) for contender, each in rounds.items()}
        return cls(name, unit, medians, less_is_better, rounds)

    @property
    def ours(self) -> float | None:
        """What Wirelake did."""
        return self.figures.get(OURS)

    @property
    def peers(self) -> dict[str, float]:
        """What other servers did."""
        return {name: figure for name, figure in self.figures.items() if name in PEERS}

    @property
    def references(self) -> dict[str, float]:
        """What it is compared with beside servers."""
        known = {OURS, *PEERS}
        return {name: figure for name, figure in self.figures.items() if name not in known}

    @property
    def best(self) -> str | None:
        """The best peer of equal durability; the reference where there is none."""
        equal = {name: figure for name, figure in self.peers.items() if name not in WEAKER}
        among = equal or self.references
        choose = min if self.less_is_better else max
        return choose(among, key=among.__getitem__) if among else None

    def ratio(self, contender: str | None) -> float | None:
        """Ours in theirs, where both are there."""
        theirs = self.figures.get(contender) if contender else None
        return self.ours / theirs if self.ours is not None and theirs else None


@dataclass
class Outcome:
    """What a section found, and what went wrong or was left out."""

    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: All figures, as the section's own program writes them.
    details: Any = None


def quantity(figure: float) -> str:
    """A figure with three digits, for people."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(figure) >= size:
            # What is shown in thousands begins at ten of them: below, digits are easier to read.
            return _digits(figure / (1e3 if letter == " k" else size)) + letter
    return f"{figure:.0f}" if abs(figure) >= 1000 else _digits(figure)


def _digits(figure: float) -> str:
    places = 0 if abs(figure) >= 100 else 1 if abs(figure) >= 10 else 2
    return f"{figure:.{places}f}"


def write_json(file: Path | None, found: object) -> None:
    """Write figures to a file, if one is wanted."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
