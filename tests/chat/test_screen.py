"""`wirelake chat` on a real terminal: a pty, with a terminal emulator that reads the screen."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import wirelake
from tests.cli.terminal import (
    CTRL_C,
    CTRL_N,
    CTRL_P,
    ENTER,
    F1,
    PAGE_DOWN,
    PAGE_UP,
    PATIENCE,
    TAB,
    UP,
    Terminal,
)
from wirelake.chat.screen import NAME_COLOURS, Colours
from wirelake.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker on a free port."""
    with Broker() as broker:
        yield broker


class Desks:
    """Terminals with people at them, until the test is over."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._terminals: list[Terminal] = []

    def open(self, dialect: str, name: str, *arguments: str, columns: int = 80) -> Terminal:
        """Somebody who has joined."""
        arguments = ("--name", name, "--heartbeat", "0.5", *arguments)
        terminal = Terminal("chat", self._broker.url(dialect), *arguments, columns=columns)
        self._terminals.append(terminal)
        terminal.wait("you are in #")
        return terminal

    def close(self) -> None:
        """Everybody goes home."""
        for terminal in self._terminals:
            terminal.close()


@pytest.fixture
def desks(broker: Broker) -> Iterator[Desks]:
    """Terminals for the people of a test."""
    desks = Desks(broker)
    yield desks
    desks.close()


def test_two_people_on_two_dialects_see_each_other_and_ticks(desks: Desks) -> None:
    alice = desks.open("kobold-3", "alice")
    alice.say("am I alone?")
    alice.wait(r"alice  am I alone\? ✓✓(?!✓)")
    robert = desks.open("mfp-1", "robert")
    robert.wait(r"│ alice +kobold-3$")
    alice.wait("· robert joined")
    alice.wait(r"│ robert +mfp-1$")
    alice.wait("alice · 2 here")
    robert.say("good morning, alice")
    alice.wait("robert  good morning, alice")
    robert.wait("good morning, alice ✓✓✓")
    assert b"\x07" in alice.seen.replace(b"\x1b]22;default\x07", b"")  # she was called
    alice.say("/me waves")
    robert.wait(r"\* alice waves")


def test_what_is_said_while_the_screen_opens_is_there(desks: Desks, broker: Broker) -> None:
    opened = threading.Event()

    def chatter() -> None:
        with wirelake.connect_sync(broker.url("kobold-3")) as plain:
            while not opened.wait(0.05):
                plain.publish("lobby", b"alice! alice!", ack=True)
            plain.publish("lobby", b"at last", ack=True)

    talking = threading.Thread(target=chatter)
    talking.start()
    try:
        alice = desks.open("kobold-3", "alice")
        alice.wait(r"\?  alice! alice!")
        alice.wait(r"^ #lobby  ")  # nothing is unread
    finally:
        opened.set()
        talking.join()
    alice.wait(r"\?  at last")


def test_where_there_is_no_acknowledgement_the_tick_says_that_it_came_back(desks: Desks) -> None:
    alice = desks.open("boson-text", "alice")
    alice.say("hello")
    alice.wait("alice  hello ✓↩")


def test_rooms_are_switched_and_count_what_is_unread(desks: Desks) -> None:
    alice, robert = desks.open("tmq-1.01", "alice"), desks.open("boson-binary", "robert")
    alice.say("/join #team/ops")
    alice.wait("you are in #team/ops")
    alice.wait(r"^ wirelake chat   #team/ops")
    robert.say("is everybody gone?")
    robert.say("alice?")
    alice.wait(r"^ #lobby @2 ")
    robert.wait(r"alice\? ✓✓(?!✓)")
    alice.type(CTRL_P)
    alice.wait(r"^ wirelake chat   #lobby")
    alice.wait(r"robert  is everybody gone\?")
    alice.wait(r"^ #lobby  ")
    robert.wait(r"alice\? ✓✓✓")
    alice.type(CTRL_N)
    alice.say("/leave")
    alice.wait("#team/ops", gone=True)


def test_somebody_killed_disappears(desks: Desks) -> None:
    alice, robert = desks.open("kobold-1", "alice"), desks.open("mfp-1", "robert")
    alice.wait(r"│ robert +mfp-1$")
    robert.process.kill()
    alice.wait("robert has gone without a word")
    alice.wait(r"│ robert +mfp-1$", gone=True)
    alice.wait("alice · 1 here")


def test_the_screen_follows_the_size_of_the_window(desks: Desks) -> None:
    alice = desks.open("kobold-2", "alice")
    alice.say("a line that is as long as it has to be, so that it is wrapped in a small window")
    alice.wait("✓✓")
    alice.resize(40, 10)
    alice.wait(r"^ rooms", gone=True)
    alice.wait(r"^ \d\d:\d\d alice  a line that is as long$")
    alice.wait(r"^ say something in #lobby")
    alice.resize(140, 30)
    alice.wait(r"^ rooms .* │ here")
    alice.wait("a line that is as long as it has to be, so that it is wrapped in a small")
    assert alice.text.count("\n") == 29


def test_history_scrolls_and_stays_where_it_is(desks: Desks) -> None:
    alice, robert = desks.open("kobold-3", "alice"), desks.open("kobold-3", "robert")
    for number in range(25):
        alice.type(f"line {number}{ENTER}")
    alice.wait("line 24 ✓✓✓")
    alice.wait("line 0 ", gone=True)
    alice.type(PAGE_UP)
    alice.wait("line 0 ")
    alice.wait("PgDn more below")
    robert.say("another one")
    robert.wait("another one ✓✓")
    assert "line 0 " in alice.text
    alice.type(PAGE_DOWN)
    alice.wait("another one")


@pytest.mark.parametrize("goodbye", ["/quit" + ENTER, CTRL_C])
def test_the_terminal_is_as_it_was_when_the_chat_is_left(desks: Desks, goodbye: str) -> None:
    alice, robert = desks.open("mfp-1", "alice"), desks.open("kobold-3", "robert")
    assert not alice.is_restored()
    alice.type(goodbye)
    assert alice.end() == 0
    assert alice.is_restored()
    robert.wait("alice left")


def test_a_signal_ends_it_properly_too(desks: Desks) -> None:
    alice = desks.open("kobold-3", "alice")
    alice.process.send_signal(signal.SIGTERM)
    alice.end()
    assert alice.is_restored()


def test_a_broker_that_goes_away_shows_and_what_is_said_meanwhile_waits(
    desks: Desks, broker: Broker
) -> None:
    alice, robert = desks.open("mfp-1", "alice"), desks.open("tmq-1.00", "robert")
    broker.stop()
    alice.wait("● reconnecting")
    robert.wait("● reconnecting")
    alice.say("anybody there?")
    alice.wait(r"anybody there\? …")
    broker.restart()
    alice.wait("● connected")
    alice.wait(r"anybody there\? ✓✓")
    robert.wait("● connected")
    robert.say("here again")
    alice.wait("robert  here again")
    robert.wait("here again ✓✓✓")
    alice.wait("alice · 2 here")


def test_nobody_can_spoil_the_screen_of_others(desks: Desks, broker: Broker) -> None:
    alice = desks.open("kobold-3", "alice")
    with wirelake.connect_sync(broker.url("kobold-1")) as plain:
        plain.publish("lobby", b"\x1b[2J\x1b[1;1Hgotcha [red]no colour[/red]\x9b2J", ack=True)
        plain.publish("lobby/$chat", b"\x1b[2J" * 100, ack=True)
        plain.publish("lobby", b"\xff" * 100_000, ack=True)
    alice.wait("�…")
    alice.type(PAGE_UP + PAGE_UP + PAGE_UP + PAGE_UP + PAGE_UP)
    alice.wait(r"\?  \[2J \[1;1Hgotcha \[red\]no")
    alice.wait(r"^ wirelake chat   #lobby")


def test_typing_is_quick_to_do(desks: Desks) -> None:
    alice, robert = desks.open("kobold-3", "alice"), desks.open("kobold-3", "Robert")
    alice.wait(r"│ Robert +kobold-3$")
    alice.type("@ro" + TAB)
    alice.wait("^ @Robert")
    alice.type("hi" + ENTER + "/wh" + TAB + ENTER)  # faster than the screen
    robert.wait("alice  @Robert hi")
    alice.wait(r"2 here: alice \(you, kobold-3\)")
    alice.type(UP + UP)
    alice.wait("^ @Robert hi")
    alice.type(" again" + ENTER + "\x1b[200~two\n  lines\x1b[201~")
    robert.wait("alice  @Robert hi again")
    alice.wait("^ two⏎  lines$")
    alice.type(ENTER)
    robert.wait(r"alice  two +│.*\n +│ {16}lines ")
    alice.type(F1)
    alice.wait("/nick NAME +take another name")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mfp://127.0.0.1:1", "--name", "alice"], "nothing listens at 127.0.0.1:1"),
        (["nonsense://x", "--name", "alice"], "'nonsense' is no dialect"),
        (["mfp://127.0.0.1:1", "--name", "b:b"], "name: has no spaces, and no :"),
        (["tmq://127.0.0.1:1", "--name", "a b"], "name: has no spaces"),
        (["tmq://127.0.0.1:1", "--name", "alice", "--topic", "a/#"], "room: .*wildcards"),
    ],
)
def test_what_is_wrong_is_said_before_the_screen_opens(arguments: list[str], said: str) -> None:
    terminal = Terminal("chat", *arguments, columns=200)
    try:
        terminal.wait(f"wirelake: .*{said}")
        assert terminal.process.wait(PATIENCE) in (1, 2)
        assert b"\x1b[" not in terminal.seen
        assert terminal.seen.count(b"\n") == 1
    finally:
        terminal.close()


@pytest.mark.parametrize("dialect", ["mfp-1", "kobold-3", "tmq-1.01", "boson-text"])
def test_a_taken_name_is_told_before_the_screen_opens(
    desks: Desks, broker: Broker, dialect: str
) -> None:
    desks.open(dialect, "alice")
    terminal = Terminal("chat", broker.url(dialect), "--name", "alice", columns=200)
    try:
        terminal.wait("wirelake: exists: .*alice")
        assert terminal.process.wait(PATIENCE) == 1
        assert b"\x1b[" not in terminal.seen
    finally:
        terminal.close()


def test_without_textual_it_says_what_to_install(broker: Broker) -> None:
    without = "import sys; sys.modules['textual'] = None; from wirelake.cli import main; main()"
    url = broker.url("kobold-3")
    terminal = Terminal("chat", url, "--name", "alice", columns=200, program=("-c", without))
    try:
        terminal.wait(r"wirelake: .*pip install 'wirelake\[chat\]'")
        assert terminal.process.wait(PATIENCE) == 2
    finally:
        terminal.close()


def test_who_comes_later_sees_what_was_said_and_the_topic(tmp_path: Path) -> None:
    with Broker(http=True, data=tmp_path) as broker:
        desks = Desks(broker)
        try:
            alice = desks.open("kobold-3", "alice")
            alice.say("the gateway is down")
            alice.say("/topic release day")
            alice.wait("^ wirelake chat   #lobby   release day")
            alice.type("/quit" + ENTER)
            alice.end()
            robert = desks.open("kobold-2", "robert")
            robert.wait("^ wirelake chat   #lobby   release day")
            robert.wait(r"── \w+, \d\d \w+ \d{4} ──")
            robert.wait(r"\d\d:\d\d +alice  the gateway is down")
            robert.say("/search GATEWAY")
            robert.wait("1 found in the log: GATEWAY")
            url = broker.url("kobold-3")
            with wirelake.connect_sync(url) as other, other.subscribe("team/ops/$chat"):
                robert.say("/rooms")
                robert.wait("others: #team/ops")  # as in the console
        finally:
            desks.close()


def test_a_message_to_one_member_is_for_that_one(desks: Desks) -> None:
    alice, robert = desks.open("kobold-3", "alice"), desks.open("mfp-1", "bob")
    robert.wait("the broker knows you as bob-")  # three letters are too few for mfp
    carol = desks.open("tmq-1.01", "carol")
    carol.wait(r"│ alice +kobold-3$")
    alice.wait(r"│ bob +mfp-1$")
    alice.say("/msg bob psst")
    robert.wait("alice  → you  psst")
    alice.wait("alice  → bob  psst ✓✓✓")
    alice.say("aloud")
    carol.wait("alice  aloud")
    assert "psst" not in carol.text


def test_a_line_shows_where_the_new_begins(desks: Desks) -> None:
    alice, robert = desks.open("kobold-3", "alice"), desks.open("kobold-3", "robert")
    robert.say("before")
    alice.wait("robert  before")
    alice.type("\x1b[O")  # another window has the keyboard
    for text in ("first", "second"):
        robert.say(text)
    alice.wait(r"robert  before.*\n.*── new ─+.*\n.*robert  first.*\n.*robert  second")
    alice.wait("^ #lobby 2 ")
    alice.type("\x1b[I")
    alice.wait("^ #lobby  ")
    alice.say("I see")
    alice.wait("── new ─", gone=True)


def test_names_are_aligned_and_long_ones_cut(desks: Desks, broker: Broker) -> None:
    alice = desks.open("kobold-3", "alice", columns=120)
    with wirelake.connect_sync(broker.url("kobold-3")) as other:
        for number, name in enumerate(("al", "x" * 200), 1):
            body = f"chat/1 say lobby {name} a1.{number} hello"
            other.publish("lobby", body.encode(), ack=True)
    alice.wait(r"│ \d\d:\d\d             al  hello")
    alice.wait(r"│ \d\d:\d\d x{13}…  hello")


def test_twelve_names_have_twelve_colours() -> None:
    colours = Colours()
    names = ["alice", "robert", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan"]
    names += ["judy", "mallory", "olivia"]
    assert len({colours.of(one) for one in names}) == 12
    assert [colours.of(one) for one in names] == [colours.of(one.upper()) for one in names]
    assert colours.of("peggy") in NAME_COLOURS
