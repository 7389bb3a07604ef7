"""Pictures of a terminal: drawn from what is on its screen."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from contextlib import ExitStack
from pathlib import Path

import pyte
import pytest

from tests.cli.command import COMMAND
from tests.cli.terminal import Terminal
from tests.docs.console import ROOT
from tests.docs.drawing import WIDTH, draw
from wirelake.testing import Broker

SVG = "{http://www.w3.org/2000/svg}"


def test_a_screen_is_drawn_with_its_colours_and_columns() -> None:
    screen = pyte.Screen(20, 3)
    pyte.Stream(screen).feed("a <b>\r\n  \x1b[1;32mok\x1b[0m  \x1b[33mslow\x1b[0m")
    drawn = ElementTree.fromstring(draw(screen, "A <screen>"))
    assert drawn.findtext(f"{SVG}title") == "A <screen>"
    texts = [(one.text, one.get("class")) for one in drawn.iter(f"{SVG}text")]
    assert texts == [("a <b>", None), ("ok", "bold green"), ("slow", "yellow")]
    ok, slow = list(drawn.iter(f"{SVG}text"))[1:]
    assert float(slow.get("x", 0)) - float(ok.get("x", 0)) == pytest.approx(4 * WIDTH)


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "img").glob("*.svg")), ids=lambda picture: picture.name
)
def test_drawings_of_the_documentation_have_a_title_and_load_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    drawing = ElementTree.fromstring(text)
    assert drawing.findtext(f"{SVG}title")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"href|src=|@import|<script|url\((?!#)", text)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("WIRELAKE_PICTURES"), reason="WIRELAKE_PICTURES is not set")
def test_the_picture_of_the_terminal_is_made() -> None:
    """WIRELAKE_PICTURES=1 makes docs/img/terminal-top.svg anew: `top`, during the demo."""
    with Broker(http=True) as broker:
        http = broker.http_url.partition("//")[2]
        load = ["--duration", "25", "--rate", "2000", "--no-report"]
        demo = subprocess.Popen(
            [*COMMAND, "demo", broker.url("auto"), "--http", http, *load], stdout=subprocess.DEVNULL
        )
        top = Terminal("top", broker.http_url, columns=108, lines=30)
        try:
            top.wait(r"in +1,[0-9]{3} msg/s")
            with pytest.raises(subprocess.TimeoutExpired):
                demo.wait(12)  # until the small charts have some history
            drawn = draw(top.screen, "wirelake top in a terminal: rates, queues, connections")
        finally:
            top.type("q")
            top.end()
            top.close()
            demo.terminate()
            demo.wait()
    (ROOT / "docs" / "img" / "terminal-top.svg").write_text(drawn, encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("WIRELAKE_PICTURES"), reason="WIRELAKE_PICTURES is not set")
def test_the_picture_of_the_chat_is_made(tmp_path: Path) -> None:
    """WIRELAKE_PICTURES=1 makes docs/img/terminal-chat.svg anew: three people on three dialects."""
    with Broker(http=True, data=tmp_path) as broker, ExitStack() as stack:

        def join(dialect: str, name: str, *rooms: str) -> Terminal:
            topics = [word for room in rooms for word in ("--topic", room)]
            place = (broker.url(dialect), "--http", broker.http_url, "--name", name, *topics)
            terminal = Terminal("chat", *place, columns=92, lines=15)
            stack.callback(terminal.close)
            terminal.wait("you are in #")
            return terminal

        robert = join("tmq-1.01", "robert", "lobby", "team/ops")
        robert.say("the gateway in hall 3 is down")
        robert.wait("is down ✓✓")
        alice = join("mfp-1", "alice", "lobby", "team/ops")
        alice.wait("robert  the gateway in hall 3 is down")  # from the log
        carmen = join("kobold-3", "carmen", "lobby")
        carmen.say("/topic release day")
        alice.wait("carmen set the topic: release day")
        robert.say("good morning, alice")
        alice.wait("robert  good morning, alice")
        alice.say("good morning! I restarted it")
        alice.wait("I restarted it ✓✓✓")
        carmen.say("/me brings coffee")
        alice.wait(r"\* carmen brings coffee")
        drawn = draw(
            alice.screen, "wirelake chat in a terminal: rooms, history, members by dialect"
        )
    (ROOT / "docs" / "img" / "terminal-chat.svg").write_text(drawn, encoding="utf-8")
