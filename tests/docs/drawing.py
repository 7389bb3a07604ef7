"""Draws the screen of a terminal as an SVG file that follows light and dark.

Every run of characters with one style is a `text` of fixed length, so that columns stay aligned
whatever monospace font the reader has.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char

#: The size of a character cell, and the margin around the screen (pixels).
WIDTH, HEIGHT, MARGIN = 8.4, 19.0, 14.0

#: The classes of colours: in the light, and in the dark.
COLOURS = {
    "red": ("#b3261e", "#ff8a80"),
    "green": ("#1b7a3d", "#6ddc8b"),
    "yellow": ("#8a5a00", "#ffcf5c"),
    "blue": ("#1f4fb2", "#82b1ff"),
    "magenta": ("#8e24aa", "#e5a3f5"),
    "cyan": ("#00707a", "#4dd0e1"),
}
_NAMES = {"brown": "yellow"}  # as pyte calls it


def draw(screen: pyte.Screen, title: str) -> str:
    """Return the screen as SVG; `title` is what screen readers say."""
    width = screen.columns * WIDTH + 2 * MARGIN
    height = screen.lines * HEIGHT + 2 * MARGIN
    light = " ".join(f".{name} {{ fill: {colours[0]} }}" for name, colours in COLOURS.items())
    dark = " ".join(f".{name} {{ fill: {colours[1]} }}" for name, colours in COLOURS.items())
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    font = 'font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t">',
        f'  <title id="t">{escape(title)}</title>',
        "  <style>",
        f"    text {{ {font}; fill: #1d2b33; white-space: pre }}",
        f"    rect {{ fill: #f7f9fa; stroke: #b8c6cc }} {light}",
        "    .bold { font-weight: 700 }",
        "    @media (prefers-color-scheme: dark) {",
        f"      text {{ fill: #dfe8ec }} rect {{ fill: #10181d; stroke: #3a4a52 }} {dark}",
        "    }",
        "  </style>",
        f'  <rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
    ]
    for row in range(screen.lines):
        baseline = MARGIN + row * HEIGHT + 14
        for start, text, style in _runs([screen.buffer[row][at] for at in range(screen.columns)]):
            named = f' class="{style}"' if style else ""
            lines.append(
                f'  <text{named} x="{MARGIN + start * WIDTH:g}" y="{baseline:g}"'
                f' textLength="{len(text) * WIDTH:g}">{escape(text)}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


def _runs(cells: list[Char]) -> list[tuple[int, str, str]]:
    """Return the first column, the text and the classes of each run, without outer spaces."""
    found: list[tuple[int, str, str]] = []
    at = 0
    while at < len(cells):
        style = _style(cells[at])
        end = at
        while end < len(cells) and _style(cells[end]) == style:
            end += 1
        text = "".join(cell.data for cell in cells[at:end])
        if text.strip():
            found.append((at + len(text) - len(text.lstrip()), text.strip(), style))
        at = end
    return found


def _style(cell: Char) -> str:
    colour = _NAMES.get(cell.fg.removeprefix("bright"), cell.fg.removeprefix("bright"))
    return " ".join(["bold"] * cell.bold + [colour] * (colour in COLOURS))
