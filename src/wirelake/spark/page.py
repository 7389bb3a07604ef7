"""A report as one HTML page: charts in SVG, no scripts, nothing from elsewhere.

Text is never inside a chart that is stretched: labels are HTML around it, so they keep their size
on a phone. Everything that came over a wire is escaped, control characters are shown as such.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from wirelake.dialects import DIALECTS
from wirelake.message import printable

Numbers = dict[str, Any]

_COLOURS = {name: dialect.colour for name, dialect in DIALECTS.items()}
_OTHER = "#9a9a9a"
_NOTHING = "\u2013"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1c2430;--soft:#5d6878;
--line:#e3e7ec;--accent:#2f6fb3}
@media(prefers-color-scheme:dark){:root{--back:#12161c;--card:#1b212a;--text:#e6eaf0;--soft:#9aa6b5;
--line:#2c3541;--accent:#6ea8e5}}
*{box-sizing:border-box}
body{margin:0;padding:1.5rem clamp(.75rem,3vw,2.5rem);background:var(--back);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto}
h1{font-size:1.6rem;margin:0}h2{font-size:1.05rem;margin:0 0 .75rem}
p{margin:.25rem 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.75rem;
margin:1.25rem 0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem}
.tile b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}
.wide{grid-column:1/-1}
.plot{display:block;width:100%;height:190px;border-bottom:1px solid var(--line)}
.plot rect:hover{opacity:.75}
.axis{display:flex;justify-content:space-between;gap:.5rem;color:var(--soft);font-size:.82rem}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;margin:.6rem 0 0;font-size:.86rem}
.legend i{display:inline-block;width:.75rem;height:.75rem;border-radius:3px;margin-right:.35rem}
.bar{display:grid;grid-template-columns:minmax(6rem,2fr) 3fr auto;gap:.75rem;align-items:center;
padding:.18rem 0}
.bar span:first-child{overflow-wrap:anywhere}
.bar svg{width:100%;height:.8rem}
.bar span:last-child{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;
overflow-wrap:anywhere;min-width:8rem}
"""


def page(numbers: Numbers) -> str:
    """The page of a report."""
    body = _empty() if numbers["messages"] == 0 else _tiles(numbers) + _cards(numbers)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>Wirelake report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{_head(numbers)}{body}</main>\n</body>\n</html>\n"
    )


def _head(numbers: Numbers) -> str:
    about = [f"Table {numbers['table']}"] if numbers.get("table") else []
    if numbers["first"]:
        about.append(f"{_when(numbers['first'])} to {_when(numbers['last'])} (UTC)")
    about += [f"{name} {numbers[name]}" for name in ("from", "to", "filter") if numbers.get(name)]
    if numbers.get("generated"):
        about.append(f"made {_when(numbers['generated'])}")
    lines = "".join(f'<p class="soft">{_text(line)}</p>\n' for line in about)
    if numbers["messages"] and numbers["without_time"]:
        lines += (
            f'<p class="soft">{_number(numbers["without_time"])} messages have no time, as those of'
            " a raw dump; they are not in what follows time.</p>\n"
        )
    return f"<h1>What went over the wire</h1>\n{lines}"


def _empty() -> str:
    text = "This table has no messages in the time and of the addresses that were asked for."
    return f'<div class="cards tiles">{_card("No messages", f"<p>{text}</p>")}</div>\n'


def _tiles(numbers: Numbers) -> str:
    requests, queues = numbers["requests"], numbers["queues"]
    tiles = {
        "messages": _number(numbers["messages"]),
        "of payload": _bytes(numbers["bytes"]),
        "addresses, about": _number(numbers["addresses"]),
        "dialects": _number(len([one for one in numbers["dialects"] if one["dialect"]])),
        "requests": _number(requests["requests"]),
        "unanswered": _number(requests["unanswered"]),
        "redelivered": _number(sum(queue["redelivered"] for queue in queues)),
        "errors": _number(sum(error["messages"] for error in numbers["errors"])),
    }
    shown = "".join(
        f'<div class="tile"><b>{value}</b><span class="soft">{_text(name)}</span></div>'
        for name, value in tiles.items()
    )
    return f'<div class="tiles">{shown}</div>\n'


def _cards(numbers: Numbers) -> str:
    requests, sizes = numbers["requests"], numbers["payload_bytes"]
    cards = [
        _card("Messages over time", _over_time(numbers, "messages", _number), wide=True),
        _card("Bytes over time", _over_time(numbers, "bytes", _bytes), wide=True),
        _card("Top addresses", _bars(numbers["top_addresses"], "address", "messages")),
        _card("Operations", _bars(numbers["ops"], "op", "messages")),
        _card("Payload sizes", _sizes(sizes)),
        _card("Dialects", _bars(numbers["dialects"], "dialect", "messages", _COLOURS)),
        _card("Request latency", _requests(requests), wide=True),
        _card("Queues", _queues(numbers["queues"]), wide=True),
        _card("Errors", _reasons(numbers["errors"])),
        _card("Dead letters", _reasons(numbers["dead_letters"])),
        _card("Quiet sources", _quiet(numbers["quiet_sources"])),
        _card("Bursting sources", _bursting(numbers["bursting_sources"])),
    ]
    return f'<div class="cards">\n{"".join(cards)}</div>\n'


def _card(title: str, body: str, *, wide: bool = False) -> str:
    body = body or '<p class="soft">None.</p>'
    kind = "card wide" if wide else "card"
    return f'<section class="{kind}"><h2>{_text(title)}</h2>{body}</section>\n'


def _over_time(numbers: Numbers, what: str, show: Callable[[Any], str]) -> str:
    """Stacked columns, a colour for each dialect."""
    timeline, step = numbers["timeline"], numbers["step_seconds"]
    if not timeline:
        return ""
    begins = [datetime.fromisoformat(entry["time"]).timestamp() for entry in timeline]
    columns = round((begins[-1] - begins[0]) / step) + 1
    heights: dict[int, float] = {}
    stacked = []
    for entry, begin in zip(timeline, begins, strict=True):
        column = round((begin - begins[0]) / step)
        base = heights.get(column, 0)
        heights[column] = base + entry[what]
        stacked.append((column, base, entry))
    top = max(heights.values()) or 1
    bars = "".join(
        f'<rect x="{column + 0.06:.2f}" y="{100 - 100 * (base + entry[what]) / top:.3f}"'
        f' width="0.88" height="{100 * entry[what] / top:.3f}" fill="{_colour(entry["dialect"])}">'
        f"<title>{_text(_when(entry['time']))}  {_text(entry['dialect'] or 'broker')}:"
        f" {show(entry[what])}</title></rect>"
        for column, base, entry in stacked
    )
    dialects = sorted({entry["dialect"] for entry in timeline})
    legend = "".join(
        f'<span><i style="background:{_colour(name)}"></i>{_text(name or "broker")}</span>'
        for name in dialects
    )
    return (
        f'<div class="axis"><span>{show(top)} in {_duration(step)}</span></div>'
        f'<svg class="plot" viewBox="0 0 {columns} 100" preserveAspectRatio="none" role="img"'
        f' aria-label="{_text(what)} over time">{bars}</svg>'
        f'<div class="axis"><span>{_text(_when(timeline[0]["time"]))}</span>'
        f"<span>{_text(_when(timeline[-1]['time']))}</span></div>"
        f'<div class="legend">{legend}</div>'
    )


def _bars(
    entries: Sequence[Numbers], name: str, what: str, colours: dict[str, str] | None = None
) -> str:
    """A list with a bar for each entry."""
    most = max((entry[what] for entry in entries), default=0) or 1
    return "".join(
        f'<div class="bar"><span>{_text(entry[name] or "(none)")}</span>'
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(0.5, 100 * entry[what] / most):.2f}" height="8" rx="1"'
        f' fill="{_colour(entry[name]) if colours else "var(--accent)"}"/></svg>'
        f"<span>{_number(entry[what])}</span></div>"
        for entry in entries
    )


def _sizes(sizes: Numbers) -> str:
    bins = sizes["histogram"]
    most = max(entry["messages"] for entry in bins)
    by_from = {entry["from"]: entry for entry in bins}
    low, high = bins[0]["from"], bins[-1]["from"]
    starts = [start for start in [0, *(2**k for k in range(40))] if low <= start <= high]
    bars = ""
    for column, start in enumerate(starts):
        count = by_from.get(start, {"messages": 0})["messages"]
        height = 100 * count / most
        bars += (
            f'<rect x="{column + 0.06:.2f}" y="{100 - height:.3f}" width="0.88"'
            f' height="{height:.3f}" fill="var(--accent)"><title>{_bytes(start)} to below'
            f" {_bytes(max(1, 2 * start))}: {_number(count)}</title></rect>"
        )
    row = [_bytes(sizes[key]) for key in ("min", "p50", "mean", "p95", "p99", "max")]
    return (
        f'<svg class="plot" viewBox="0 0 {len(starts)} 100" preserveAspectRatio="none" role="img"'
        f' aria-label="payload sizes">{bars}</svg>'
        f'<div class="axis"><span>{_bytes(low)}</span><span>below {_bytes(max(1, 2 * high))}</span>'
        "</div>" + _table(("min", "p50", "mean", "p95", "p99", "max"), [row])
    )


def _requests(requests: Numbers) -> str:
    if not requests["requests"]:
        return ""
    head = ("address", "requests", "answered", "failed", "unanswered", "p50", "p95", "p99", "max")
    entries = [{"address": "all", **requests}, *requests["by_address"]]
    return _table(
        head,
        [
            [
                _text(one["address"] or "(none)"),
                *(_number(one[name]) for name in head[1:5]),
                *(_ms(one["latency_ms"][name]) for name in head[5:]),
            ]
            for one in entries
        ],
    )


def _queues(queues: list[Numbers]) -> str:
    if not queues:
        return ""
    counts = ("enqueued", "delivered", "redelivered", "acknowledged", "refused", "dead")
    head = ("queue", *counts, "wait p50", "wait p99", "ack p50", "ack p99")
    return _table(
        head,
        [
            [
                _text(one["address"] or "(none)"),
                *(_number(one[name]) for name in counts),
                *(
                    _ms(one[measure][name])
                    for measure in ("waiting_ms", "acknowledgement_ms")
                    for name in ("p50", "p99")
                ),
            ]
            for one in queues
        ],
    )


def _reasons(reasons: list[Numbers]) -> str:
    named = [
        {**one, "name": f"{one['reason'] or '(no reason)'} {one['address']}".strip()}
        for one in reasons
    ]
    return _bars(named, "name", "messages")


def _quiet(sources: list[Numbers]) -> str:
    if not sources:
        return ""
    return _table(
        ("source", "messages", "last seen", "usually every", "silent for"),
        [
            [
                _text(one["source"]),
                _number(one["messages"]),
                _text(_when(one["last"])),
                _duration(one["usual_seconds"]),
                _duration(one["silent_seconds"]),
            ]
            for one in sources
        ],
    )


def _bursting(sources: list[Numbers]) -> str:
    if not sources:
        return ""
    return _table(
        ("source", "busiest minute", "messages in it", "median minute"),
        [
            [
                _text(one["source"]),
                _text(_when(one["peak_at"])),
                _number(one["peak"]),
                _number(one["median"]),
            ]
            for one in sources
        ],
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _colour(dialect: str) -> str:
    return _COLOURS.get(dialect, _OTHER)


def _text(value: str) -> str:
    """Text escaped for HTML, with nothing invisible in it."""
    return html.escape(printable(value))


def _when(time: str) -> str:
    return time.partition(".")[0].replace("T", " ").rstrip("Z")


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def _scaled(value: float, units: Sequence[str], factor: float) -> str:
    """A value with the unit in which it is a short number."""
    unit = 0
    while value >= factor and unit < len(units) - 1:
        value /= factor
        unit += 1
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {units[unit]}"


def _bytes(value: float | None) -> str:
    return _NOTHING if value is None else _scaled(value, _BYTE_UNITS, 1024)


def _ms(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return _scaled(value * 1000, ("µs", "ms", "s"), 1000)


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return _scaled(seconds / size, (unit,), 1)
    return _scaled(seconds, ("s",), 1)
