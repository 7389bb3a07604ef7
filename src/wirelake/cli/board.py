"""What `wirelake up` shows: the broker's figures once a second, and what happened last.

The figures are those of `/metrics`; rates are differences of two readings. Rows landed are the ends
of the log less what the pipeline has not read, as offsets count from 0 without holes. On a terminal
all of it is one screen, drawn anew from what is known then; elsewhere it is lines.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from wirelake.cli.group import Child
from wirelake.cli.show import printable
from wirelake.errors import EngineError

#: Readings that a curve is drawn from, and events that are remembered.
READINGS, EVENTS = 60, 100
#: Seconds that the broker may take to tell its figures.
PATIENCE = 5.0
#: Columns of a screen that is wide, lines of one that has room for everything, columns of clients.
WIDE, TALL, CLIENTS = 110, 24, 18

#: A broker is asked directly, whatever proxy the environment names for the world outside.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_BARS = "▁▂▃▄▅▆▇█"
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) [\w.]+: (.*)")
_LIGHTS = {"up": "green", "starting": "yellow", "pausing": "red", "ended": "bright_black"}
_FAULTS = {
    "protocol_errors": "protocol errors",
    "torn_frames": "torn frames",
    "slow_consumers": "slow consumers",
    "disk_waits": "waits for the disk",
    "commit_failures": "failed commits",
}
_FAULTS_BY_REASON = ("refused", "dropped", "timeouts")


@dataclass(frozen=True, slots=True)
class Figures:
    """The broker's figures of one moment."""

    at: float  # a clock that only goes forward
    clients: dict[str, int]
    received: int
    delivered: int
    carried: int  # bytes, in and out
    committed: int  # bytes
    queues: dict[str, tuple[int, int]]  # messages that are ready, and those held by consumers
    log_bytes: int
    log_rows: int  # ever written
    lag: int | None  # rows that the pipeline has not landed; none before it told
    faults: dict[str, int]
    trouble: bool

    @classmethod
    def parse(cls, text: str, query: str, at: float) -> Figures:
        """Read them from what Prometheus would get."""
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]

        def total(name: str) -> int:
            return int(sum(one.value for one in samples if one.name == f"wirelake_{name}"))

        def by(name: str, label: str) -> dict[str, int]:
            return {
                one.labels[label]: int(one.value)
                for one in samples
                if one.name == f"wirelake_{name}"
            }

        held = by("queue_held", "queue")
        lags = [
            int(one.value)
            for one in samples
            if one.name == "wirelake_query_lag" and one.labels["query"] == query
        ]
        faults = {text: total(f"{name}_total") for name, text in _FAULTS.items()}
        for kind in _FAULTS_BY_REASON:
            for reason, count in by(f"{kind}_total", "reason").items():
                faults[f"{kind}: {reason.replace('_', ' ')}"] = count
        return cls(
            at=at,
            clients=by("clients", "dialect"),
            received=total("received_total"),
            delivered=total("delivered_total"),
            carried=total("bytes_in_total") + total("bytes_out_total"),
            committed=total("commit_bytes_total"),
            queues={name: (n, held[name]) for name, n in by("queue_ready", "queue").items()},
            log_bytes=total("log_bytes"),
            log_rows=total("log_next"),
            lag=sum(lags) if lags else None,
            faults={text: count for text, count in faults.items() if count},
            trouble=bool(total("trouble")),
        )

    @property
    def landed(self) -> int:
        """Rows that the pipeline has landed, ever."""
        return 0 if self.lag is None else self.log_rows - self.lag


def read_figures(url: str, query: str, token: str) -> Figures:
    """Ask the broker; EngineError where it does not tell. Blocks."""
    try:
        return Figures.parse(fetch(f"{url}/metrics", token).decode(), query, time.monotonic())
    except (ValueError, KeyError):
        raise EngineError(f"the figures at {url} cannot be read") from None


def fetch(url: str, token: str) -> bytes:
    """What a broker's HTTP has there; EngineError where it has nothing. Blocks."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise EngineError("HTTP needs a token with more rights: WIRELAKE_TOKEN") from None
        raise EngineError(f"{url}: {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = cause.strerror.lower() if isinstance(cause, OSError) and cause.strerror else cause
        raise EngineError(f"no answer at {urlsplit(url).netloc}: {reason}") from None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    at: str
    who: str
    text: str
    is_bad: bool


@dataclass
class Board:
    """All that is known, and the screen with it."""

    children: list[Child] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # where it listens
    http: str = ""
    lake: str = ""  # where rows land, or why they do not
    examples: list[str] = field(default_factory=list)
    blindness: str = ""  # why there are no figures
    began: float = field(default_factory=time.monotonic)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS))
    _readings: deque[Figures] = field(default_factory=lambda: deque(maxlen=READINGS + 1))

    def add(self, figures: Figures) -> None:
        """A new reading."""
        self.blindness = ""
        self._readings.append(figures)

    def tell(self, who: str, text: str, *, is_bad: bool = False) -> Event:
        """Something happened."""
        at = time.strftime("%H:%M:%S")
        self.events.append(Event(at, who, printable(text), is_bad))
        return self.events[-1]

    def rates(self, name: str) -> list[float]:
        """How fast a figure grew between readings, a second; a broker that restarts begins at 0."""
        readings = list(self._readings)
        return [
            max(0, getattr(new, name) - getattr(old, name)) / max(new.at - old.at, 0.001)
            for old, new in pairwise(readings)
        ]

    def summary(self) -> str:
        """Everything in one line."""
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

    # The screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height, width = options.height or console.height, options.max_width
        space = [Text()] if height > TALL else []
        examples = self._examples() if height >= TALL - 4 else []
        top: list[Text | Table] = [self._heading(), *space, *self._addresses(), Text()]
        figures = self._figures(width, height)
        taken = len(top) + figures.row_count + 2 + len(space) + len(examples)
        middle: list[Text | Table] = [figures, *space, self._errors(width), Text()]
        events: list[Text | Table] = [
            *self._latest(max(1, height - taken))
        ]  # they get what is left of the height
        yield Group(*(_on_one_line(part) for part in [*top, *middle, *events, *examples]))

    def _heading(self) -> Table:
        seconds = int(time.monotonic() - self.began)
        lights = Text()
        for child in self.children:
            lights.append(" ● ", _LIGHTS[child.state])
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
        """What was not done, by kind, and where there is room by reason."""
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
                (f"{event.who:<9}", "cyan"),
                (event.text, "yellow" if event.is_bad else ""),
            )
        for _ in range(room - len(events)):
            yield Text()

    def _examples(self) -> list[Text]:
        title = Text.assemble((" try", "bold"), ("      Ctrl-C ends all of it", "dim"))
        return [Text(), title, *(Text(f" {line}") for line in self.examples)]


def told_by(line: str) -> tuple[str, bool]:
    """What a line of a child's log says, and whether it is bad news."""
    found = _LOGGED.fullmatch(line)
    return (found[2], found[1] not in ("DEBUG", "INFO")) if found else (line, True)


def _on_one_line(part: Text | Table) -> Text | Table:
    """The same, cut where the line ends."""
    if isinstance(part, Text):
        part.no_wrap, part.overflow = True, "ellipsis"
    return part


def _kinds(faults: dict[str, int]) -> Counter[str]:
    """The same by kind, without the reasons."""
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
    """The longest queues first; those that do not fit are added up."""
    lines = [_row("queues", f"{'ready':>6} {'held':>6}", width, "bold")]
    shown = sorted(queues.items(), key=lambda item: (-sum(item[1]), item[0]))
    if len(shown) >= most:
        rest = shown[most - 2 :]
        more = sum(ready for _, (ready, _) in rest), sum(held for _, (_, held) in rest)
        shown = [*shown[: most - 2], (f"{len(rest)} more", more)]
    return lines + [_row(name, f"{r:>6,} {h:>6,}", width) for name, (r, h) in shown]


def _row(name: str, value: str, width: int, style: str = "") -> Text:
    """A name and its value at both ends of a line; of a long name, the end."""
    room = width - len(value) - 2
    name = printable(name)
    if len(name) > room:
        name = "…" + name[len(name) - room + 1 :]
    return Text(f" {name:<{room}} {value}", style)


def _short(places: list[str]) -> list[str]:
    """Listeners; after the first, a host is named only where it is another one."""
    shown, last = [], ""
    for place in places:
        family, _, rest = place.partition("://")
        host, colon, port = rest.rpartition(":")
        shown.append(f"{family} :{port}" if colon and host == last else place)
        last = host
    return shown


def _recent(rates: list[float]) -> float:
    """Of the last few seconds: calmer than that of one."""
    last = rates[-3:]
    return sum(last) / len(last) if last else 0.0


def _curve(rates: list[float], length: int) -> str:
    """The last readings as bars, the highest of them as high as it goes."""
    last = rates[max(0, len(rates) - length) :]
    top = max(last, default=0.0)
    if not top:
        return _BARS[0] * len(last)
    return "".join(_BARS[round(rate / top * (len(_BARS) - 1))] for rate in last)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
