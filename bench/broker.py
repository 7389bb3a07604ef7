"""Pub/sub and round trips for the one table, as `wirelake bench` measures them.

`wirelake.measure` says what is measured and how. Here the figures are put beside those of the
peers, a row for each dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from bench.peers import start_peers
from bench.results import OURS, PEERS, Outcome, Result, Tell
from wirelake.client.url import Place
from wirelake.dialects import DIALECTS
from wirelake.measure.broker import HOST, Wirelake, own_broker
from wirelake.measure.rounds import ASKING, Key, Results, Task, measure, plan

SIZE = 128
#: Enough for a first look: a short and a rich dialect, and what is translated between them.
QUICK_DIALECTS = ("boson-text", "kobold-3")


def pubsub(tell: Tell, *, quick: bool) -> Outcome:
    """Messages a second, for `python -m bench`."""
    return _section(tell, quick, lambda task: task.key.shape != ASKING)


def latency(tell: Tell, *, quick: bool) -> Outcome:
    """Round trips of requests, for `python -m bench`."""
    return _section(tell, quick, lambda task: task.key.shape == ASKING)


def _section(tell: Tell, quick: bool, is_wanted: Callable[[Task], bool]) -> Outcome:
    outcome = Outcome()
    seconds, rounds = (0.1, 1) if quick else (1.5, 3)

    def begin(_: int, key: Key) -> None:
        tell(f"{key.shape}, {key.name}")

    with ExitStack() as stack:
        port, _ = stack.enter_context(own_broker())
        places = [Place(one, HOST, port) for one in (QUICK_DIALECTS if quick else DIALECTS)]
        peers, notes = start_peers(stack)
        outcome.notes.extend(notes)
        planned = plan([Wirelake(place) for place in places], peers, SIZE)
        tasks = [task for task in planned if is_wanted(task)]
        found = measure(tasks, rounds, seconds, begin)
    outcome.failures = [
        f"{shape}, {name}: {reason}" for (shape, name), reason in found.failures.items()
    ]
    outcome.results = list(results(found))
    outcome.details = _details(found)
    return outcome


def results(found: Results) -> Iterator[Result]:
    """A row for each dialect and shape, beside the peers that have that shape."""
    for (shape, name), ours in found.figures.items():
        if name in PEERS:
            continue
        rounds = {OURS: ours} | {
            peer: theirs
            for (same, peer), theirs in found.figures.items()
            if same == shape and peer in PEERS
        }
        columns = ("p50", "p99") if shape == ASKING else (shape,)
        unit = "µs" if shape == ASKING else "messages/s"
        for place, column in enumerate(columns):
            each = {one: [figures[place] for figures in of] for one, of in rounds.items()}
            yield Result.of_rounds(f"{column}, {name}", unit, each, less_is_better=shape == ASKING)


def _details(found: Results) -> list[dict[str, Any]]:
    return [{**key._asdict(), "rounds": rounds} for key, rounds in found.figures.items()]
