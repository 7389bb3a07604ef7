"""The broker's figures and recent events, as a screen and as lines: for `wirelake up` and `top`.

Rates are differences of two readings. The screen is drawn from the state of that moment.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from wirelake.live.children import Child
from wirelake.live.figures import Figures
from wirelake.message import printable

#: Readings that a curve shows, and events kept.
READINGS, EVENTS = 60, 100
#: Columns of a wide screen, lines of a tall one, columns of the list of clients.
WIDE, TALL, CLIENTS = 110, 24, 18

#: The figures whose rates are shown.
RATES = ("received", "delivered", "carried", "committed")

_BARS = "▁▂▃▄▅▆▇█"
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) [\w.]+: (.*)")
LIGHTS = {"up": "green", "starting": "yellow", "pausing": "red", "ended": "bright_black"}


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the list of recent events."""

    at: str
    who: str
    text: str
    is_bad: bool


@dataclass
class Board:
    """The state that the screen shows; it renders itself with Rich."""

    children: list[Child] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # URLs of the listeners
    http: str = ""
    lake: str = ""  # the table, or why there is none
    examples: list[str] = field(default_factory=list)
    blindness: str = ""  # why there are no figures now
    began: float = field(default_factory=time.monotonic)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    _readings: deque[Figures] = field(default_factory=lambda: deque(maxlen=READINGS + 1))

    def add(self, figures: Figures) -> None:
        """Add a reading."""
        self.blindness = ""
        self._readings.append(figures)

    def tell(self, who: str, text: str, *, is_bad: bool = False, at: str = "") -> Event:
        """Add an event, of now or of another time."""
        at = at or time.strftime("%H:%M:%S")
        self.events.append(Event(at, who, printable(text), is_bad))
        return self.events[-1]

    def rates(self, name: str) -> list[float]:
        """Growth of a figure per second between readings; 0 where a restart reset the figure."""
        readings = list(self._readings)
        return [
            max(0, getattr(new, name) - getattr(old, name)) / max(new.at - old.at, 0.001)
            for old, new in pairwise(readings)
        ]

    def summary(self) -> str:
        """The figures in one line."""
        if not self._readings or self.blindness:
            return self.blindness or "no figures yet"
        now = self._readings[-1]
        parts = [
            f"{_count(sum(now.clients.values()), 'client')}",
            f"{_recent(self.rates('received')):.0f} messages/s in",
            f"{_recent(self.rates('delivered')):.0f} out",
            f"{_count(sum(map(sum, now.queues.values())), 'message')} in queues",
            f"log {decimal(now.log_bytes)}",
        ]
        if now.lag is not None:
            parts.append(f"{now.landed} rows landed, {now.lag} to go")
        parts += [f"{count} {kind}" for kind, count in _kinds(now.faults).items()]
        return ", ".join(parts)

    def as_object(self) -> dict[str, object]:
        """The figures for programs; empty if there are none."""
        if not self._readings or self.blindness:
            return {}
        now = self._readings[-1]
        rates = {f"{name}_per_second": round(_recent(self.rates(name)), 1) for name in RATES}
        queues = {name: {"ready": r, "held": h} for name, (r, h) in now.queues.items()}
        return {
            "clients": now.clients,
            **rates,
            "queues": queues,
            "log_rows": now.log_rows,
            "log_bytes": now.log_bytes,
            "lag": now.lag,
            "errors": now.faults,
            "trouble": now.trouble,
        }

    # The screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height, width = options.height or console.height, options.max_width
        space = [Text()] if height > TALL else []
        examples = self._examples() if height >= TALL - 4 + self._needed() else []
        top: list[Text | Table] = [self._heading(), *space, *self._addresses(), Text()]
        figures = self._figures(width, height)
        taken = len(top) + figures.row_count + 2 + len(space) + len(examples)
        middle: list[Text | Table] = [figures, *space, self._errors(width), Text()]
        # The rest of the height is for what a kind of board has more, half of it, and for events.
        more = self._more(max(self._needed(), (height - taken) // 2))
        if more:
            more.append(Text())
        events: list[Text | Table] = [*more, *self._latest(max(1, height - taken - len(more)))]
        yield Group(*(_on_one_line(part) for part in [*top, *middle, *events, *examples]))

    def _heading(self) -> Table:
        seconds = int(time.monotonic() - self.began)
        lights = Text()
        for child in self._lit():
            lights.append(" ● ", LIGHTS[child.state])
            lights.append(child.name)
            if child.state != "up":
                lights.append(f" {child.state}", "dim")
            if child.restarts:
                lights.append(f" ({_count(child.restarts, 'restart')})", "yellow")
            lights.append(" ")
        line = Table.grid(expand=True)
        line.add_column(ratio=1)
        line.add_column(justify="right")
        name = Text.assemble(
            (" wirelake", "bold cyan"),
            (f"  up {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}", "dim"),
        )
        line.add_row(name, lights)
        return line

    def _lit(self) -> list[Child]:
        """The children whose state the heading shows."""
        return self.children

    def _addresses(self) -> Iterator[Text]:
        yield _labelled("listens", " ".join(_short(self.places)) or "…")
        yield _labelled("http", f"{self.http or '…'}    ", ("lake  ", "dim"), self.lake)

    def _figures(self, width: int, height: int) -> Table:
        """Clients, rates and queues, side by side."""
        now = self._readings[-1] if self._readings else None
        most = max(4, height - TALL + 9)
        wide = 44 if width >= WIDE else 28
        middle = width - CLIENTS - wide - 4
        clients: list[Text] = []
        traffic: list[Text] = []
        queues: list[Text] = []
        if now is None or self.blindness:
            traffic = [Text(self.blindness or "waiting for the broker", "yellow")]
        if now is not None:
            clients = _pairs("clients", now.clients)[:most]
            traffic += self._traffic(now, max(0, middle - 23))
            queues = _queues(now.queues, most, wide)
        grid = Table.grid(padding=(0, 2))
        for size in (CLIENTS, middle, wide):
            grid.add_column(width=max(1, size), no_wrap=True, overflow="ellipsis")
        for row in range(max(len(clients), len(traffic), len(queues), 7)):
            grid.add_row(
                *(block[row] if row < len(block) else "" for block in (clients, traffic, queues))
            )
        return grid

    def _traffic(self, now: Figures, room: int) -> list[Text]:
        lines = []
        for name, label in (("received", "in"), ("delivered", "out")):
            rates = self.rates(name)
            lines.append(_rate(label, f"{_recent(rates):,.0f} msg/s", _curve(rates, room)))
        for name, label in (("carried", "wire"), ("committed", "disk")):
            rates = self.rates(name)
            lines.append(_rate(label, f"{decimal(int(_recent(rates)))}/s", _curve(rates, room)))
        lines.append(_rate("log", f"{now.log_rows:,} rows", decimal(now.log_bytes)))
        if now.lag is not None:
            lines.append(_rate("landed", f"{now.landed:,} rows", ""))
            lines.append(_rate("lag", f"{now.lag:,} rows", ""))
        return lines

    def _errors(self, width: int) -> Text:
        """Counts of errors: by reason on a wide screen, else by kind."""
        now = self._readings[-1] if self._readings else None
        if now is None or not (now.faults or now.trouble):
            return _labelled("errors", ("none", "dim"))
        counts = Counter(now.faults) if width >= WIDE else _kinds(now.faults)
        text = " · ".join(f"{printable(name)} {count:,}" for name, count in counts.most_common())
        if now.trouble:
            text = f"nothing can be written · {text}"
        return _labelled("errors", (text, "yellow"))

    def _latest(self, room: int) -> Iterator[Text]:
        events = list(self.events)[-room:]
        for event in events:
            yield Text.assemble(
                (f" {event.at} ", "dim"),
                (f"{event.who:<9}" if event.who else "", "cyan"),
                (event.text, "yellow" if event.is_bad else ""),
            )
        for _ in range(room - len(events)):
            yield Text()

    def _needed(self) -> int:
        """The lines of `_more` that there is always room for."""
        return 0

    def _more(self, room: int) -> list[Text]:
        """Return further lines for the middle, at most `room`."""
        return []

    def _examples(self) -> list[Text]:
        title = Text.assemble((" try", "bold"), ("      Ctrl-C ends all of it", "dim"))
        return [Text(), title, *(Text(f" {line}") for line in self.examples)]


def told_by(line: str) -> tuple[str, bool]:
    """The text of a line of a child's log, and whether it is a warning or worse."""
    found = _LOGGED.fullmatch(line)
    return (found[2], found[1] not in ("DEBUG", "INFO")) if found else (line, True)


def _on_one_line(part: Text | Table) -> Text | Table:
    """Cut the text at the end of its line instead of wrapping it."""
    if isinstance(part, Text):
        part.no_wrap, part.overflow = True, "ellipsis"
    return part


def _kinds(faults: dict[str, int]) -> Counter[str]:
    """Errors added up by kind."""
    kinds: Counter[str] = Counter()
    for name, count in faults.items():
        kinds[name.partition(":")[0]] += count
    return kinds


def _labelled(label: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((f" {label:<9}", "dim"), *parts)


def _rate(label: str, value: str, more: str) -> Text:
    return Text.assemble((f"{label:<7}", "dim"), f"{value:>14}  ", (more, "cyan"))


def _pairs(title: str, counts: dict[str, int]) -> list[Text]:
    lines = [_row(title, f"{sum(counts.values()):,}", CLIENTS, "bold")]
    lines += [_row(name, f"{count:,}", CLIENTS) for name, count in sorted(counts.items()) if count]
    return lines


def _queues(queues: dict[str, tuple[int, int]], most: int, width: int) -> list[Text]:
    """Queues, the longest first; those that do not fit are added up."""
    lines = [_row("queues", f"{'ready':>6} {'held':>6}", width, "bold")]
    shown = sorted(queues.items(), key=lambda item: (-sum(item[1]), item[0]))
    if len(shown) >= most:
        rest = shown[most - 2 :]
        more = sum(ready for _, (ready, _) in rest), sum(held for _, (_, held) in rest)
        shown = [*shown[: most - 2], (f"{len(rest)} more", more)]
    return lines + [_row(name, f"{r:>6,} {h:>6,}", width) for name, (r, h) in shown]


def _row(name: str, value: str, width: int, style: str = "") -> Text:
    """A name on the left and its value on the right; a long name loses its beginning."""
    room = width - len(value) - 2
    name = printable(name)
    if len(name) > room:
        name = "…" + name[len(name) - room + 1 :]
    return Text(f" {name:<{room}} {value}", style)


def _short(places: list[str]) -> list[str]:
    """Listeners; a host that is the same as before is left out."""
    shown, last = [], ""
    for place in places:
        family, _, rest = place.partition("://")
        host, colon, port = rest.rpartition(":")
        shown.append(f"{family} :{port}" if colon and host == last else place)
        last = host
    return shown


def _recent(rates: list[float]) -> float:
    """The mean of the last three rates."""
    last = rates[-3:]
    return sum(last) / len(last) if last else 0.0


def _curve(rates: list[float], length: int) -> str:
    """The last rates as bars, scaled to the highest."""
    last = rates[max(0, len(rates) - length) :]
    top = max(last, default=0.0)
    if not top:
        return _BARS[0] * len(last)
    return "".join(_BARS[round(rate / top * (len(_BARS) - 1))] for rate in last)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
