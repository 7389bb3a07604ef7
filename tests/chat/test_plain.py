"""`wirelake chat` without a screen: in pipes, for programs, and as bots."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import wirelake
from wirelake.chat.bots import names
from wirelake.config import TokenSettings, hash_token
from wirelake.dialects import DIALECTS
from wirelake.testing import Broker

COMMAND = [sys.executable, "-m", "wirelake", "chat"]
PATIENCE = 60  # seconds; only a broken program needs them


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker on a free port."""
    with Broker() as broker:
        yield broker


class Pipe:
    """Somebody in the chat, at both ends of a pipe."""

    def __init__(self, url: str, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, url, "--name", name, "--heartbeat", "0.5", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout
        self.heard: list[str] = []

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def say(self, line: str) -> None:
        """A line in."""
        self._input.write(line + "\n")
        self._input.flush()

    def hear(self, pattern: str) -> str:
        """Lines out, until one matches."""
        for line in self._output:
            self.heard.append(line)
            if re.search(pattern, line):
                return line.rstrip("\n")
        raise AssertionError(f"{pattern!r} never came")

    def event(self, **wanted: object) -> dict[str, Any]:
        """Events out, until one has these fields."""
        for line in self._output:
            event: dict[str, Any] = json.loads(line)
            if wanted.items() <= event.items():
                return event
        raise AssertionError(f"{wanted} never came")

    def end(self) -> tuple[int, str]:
        """No more lines in; the exit code, and what it said about errors."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


def run(*arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [*COMMAND, *arguments]
    return subprocess.run(command, input=data, capture_output=True, text=True, timeout=PATIENCE)


def test_lines_in_are_said_and_lines_out_are_heard(broker: Broker) -> None:
    with Pipe(broker.url("mfp-1"), "alice") as alice:
        assert alice.hear("you are in") == "* you are in #lobby, with 0 others"
        with Pipe(broker.url("boson-text"), "robert") as robert:
            assert alice.hear("joined") == "* robert joined"
            robert.hear("with 1 other$")
            robert.say("hello, alice")
            assert alice.hear("hello") == "robert: hello, alice"
            alice.say("/me nods")
            assert robert.hear("nods") == "* alice nods"
            assert robert.end() == (0, "")
        assert alice.hear("left") == "* robert left"
        alice.say("/join other")
        alice.say("/who")
        assert alice.hear("1 here") == "#other * 1 here: alice (you, mfp-1)"


def test_an_input_that_ends_is_delivered_whole(broker: Broker) -> None:
    with Pipe(broker.url("kobold-3"), "alice", "--topic", "logs") as alice:
        alice.hear("you are in")
        lines = "".join(f"line {number}\n" for number in range(200)) + "no newline"
        done = run(broker.url("mfp-1"), "--name", "logger", "--topic", "logs", data=lines)
        assert (done.returncode, done.stderr) == (0, "")
        alice.hear("logger joined")
        for number in range(200):
            assert alice.hear("logger") == f"logger: line {number}"
        assert alice.hear("logger") == "logger: no newline"


def test_programs_get_objects(broker: Broker) -> None:
    url = broker.url("tmq-1.01")
    with (
        Pipe(url, "alice", "--json", "--topic", "jsón") as alice,
        wirelake.connect_sync(broker.url("kobold-1")) as plain,
    ):
        alice.event(event="notice", text="you are in #jsón, with 0 others")
        alice.say("a ✓ b")
        said = alice.event(event="said", own=True)
        assert {
            "room": "jsón",
            "name": "alice",
            "kind": "say",
            "text": "a ✓ b",
        }.items() <= said.items()
        alice.event(event="tick", id=said["id"], tick="taken", why="")
        plain.publish("jsón", b"21.5", ack=True)
        heard = alice.event(event="said", own=False)
        assert (heard["name"], heard["id"], heard["text"]) == ("", "", "21.5")
        with Pipe(broker.url("boson-binary"), "robert", "--topic", "jsón") as robert:
            alice.event(event="notice", text="robert joined")
            alice.say("seen?")
            alice.event(event="tick", tick="seen")
            robert.process.kill()
            alice.event(event="notice", text="robert has gone without a word")


@pytest.mark.slow
def test_every_dialect_takes_part(broker: Broker) -> None:
    people: dict[str, Pipe] = {}
    try:
        for dialect in DIALECTS:
            name = dialect.replace(".", "-")
            people[name] = Pipe(broker.url(dialect), name, "--topic", "all")
        for one in people.values():
            one.hear("you are in")
        for one in people.values():
            one.say("/who")
            # Some may still be on their way in.
            while f"{len(DIALECTS)} here" not in one.hear(r"\d+ here"):
                one.say("/who")
        for name, one in people.items():
            one.say(f"hello from {name}")
            for other, pipe in people.items():
                if other != name:
                    assert pipe.hear("hello") == f"{name}: hello from {name}"
    finally:
        for one in people.values():
            one.close()


def test_a_message_that_is_too_long_is_refused_and_the_chat_goes_on(broker: Broker) -> None:
    with Pipe(broker.url("kobold-3"), "alice", "--topic", "long") as alice:
        alice.say("x" * 200_000)
        alice.hear("too_large: a message has at most")
        alice.say("/who")
        alice.hear("1 here")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_goodbye(broker: Broker, number: signal.Signals) -> None:
    with Pipe(broker.url("kobold-3"), "alice", "--topic", "bye") as alice:
        alice.hear("you are in")
        with Pipe(broker.url("mfp-1"), "robert", "--topic", "bye") as robert:
            robert.hear("you are in")
            robert.process.send_signal(number)
            assert robert.process.wait(PATIENCE) == 130
        alice.hear("robert left")


def test_it_ends_when_nobody_reads_its_output(broker: Broker) -> None:
    with Pipe(broker.url("kobold-3"), "alice", "--topic", "deaf") as alice:
        alice.hear("you are in")
        assert alice.process.stdout
        alice.process.stdout.close()
        alice.say("/who")
        assert alice.process.wait(PATIENCE) == 0


def test_it_listens_for_as_long_as_it_is_told(broker: Broker) -> None:
    done = run(broker.url("kobold-3"), "--name", "alice", "--topic", "quiet", "--duration", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "* you are in #quiet, with 0 others\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["mfp://127.0.0.1:1", "--name", "alice"], 1, "127.0.0.1:1"),
        (["nonsense://x"], 2, "'nonsense' is no dialect"),
        (["mfp://127.0.0.1:1", "--name", "b:b"], 2, "has no spaces, and no :"),
        (["kobold-3://127.0.0.1:1", "--bots", "1", "--topic", "a b"], 2, "room: has no spaces"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


RIGHTS = {
    "talker": {"publish": ["team/#"], "subscribe": ["team/#"]},
    "narrow": {
        "publish": ["team/ops", "team/ops/$chat"],
        "subscribe": ["team/ops", "team/ops/$chat"],
    },
    "reader": {"subscribe": ["team/#"]},
    "writer": {"publish": ["team/#"]},
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker that wants tokens; each is the name of its holder, twice."""
    tokens = tuple(
        TokenSettings(name=name, hash=hash_token(name * 2), **rights)  # type: ignore[arg-type]  # rights are filters
        for name, rights in RIGHTS.items()
    )
    with Broker(tokens=tokens) as broker:
        yield broker


@pytest.mark.parametrize(
    "dialect", ["mfp-1", "kobold-3", pytest.param("boson-text", marks=pytest.mark.slow)]
)
def test_a_room_takes_rights_to_what_is_below_its_topic(guarded: Broker, dialect: str) -> None:
    for name in ("talker", "narrow"):
        arguments = ["--name", name, "--topic", "team/ops", "--token", name * 2]
        done = run(guarded.url(dialect), *arguments, data="hello\n")
        assert (done.returncode, done.stderr) == (0, "")
    for name in ("reader", "writer"):
        arguments = ["--name", name, "--topic", "team/ops", "--token", name * 2]
        done = run(guarded.url(dialect), *arguments, data="hello\n")
        assert done.returncode == 1
        assert done.stderr.startswith("wirelake: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["mfp-1", "boson-text"])
def test_bots_come_talk_answer_and_leave(broker: Broker, dialect: str) -> None:
    room = f"bots/{dialect}"
    # They are so slow that whatever they say is an answer.
    arguments = [*COMMAND, broker.url(dialect), "--bots", "3", "--topic", room, "--rate", "0.01"]
    with (
        Pipe(broker.url("kobold-3"), "alice", "--topic", room) as alice,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as bots,
    ):
        try:
            for name in ("Agnes", "Boris", "Chiara"):
                alice.hear(f"{name} joined")
            # All of them are asked, since one may have left for a moment.
            alice.say("Agnes, Boris, Chiara: how are you?")
            alice.hear("^(Agnes|Boris|Chiara): ")
        finally:
            bots.send_signal(signal.SIGINT)
            output, _ = bots.communicate(timeout=PATIENCE)
        assert bots.returncode == 0
        for name in ("Agnes", "Boris", "Chiara"):
            assert re.search(rf"^\d\d:\d\d:\d\d {name} joined #{room}$", output, re.MULTILINE)
        summary = output.splitlines()[-1]
        found = re.fullmatch(
            r"3 bots: (\d+) joins, (\d+) leaves, (\d+) messages said \((\d+) .*\), (\d+) heard",
            summary,
        )
        assert found
        joins, leaves, said, answers, heard = map(int, found.groups())
        assert joins == leaves >= 3
        while sum(line.endswith(" left\n") for line in alice.heard) < leaves:
            alice.hear("left$")
        assert said >= answers >= 1
        assert heard >= 1


@pytest.mark.slow
def test_bots_talk_of_their_own_accord(broker: Broker) -> None:
    arguments = ["--bots", "3", "--topic", "busy", "--rate", "600"]
    with (
        Pipe(broker.url("kobold-3"), "alice", "--topic", "busy") as alice,
        Pipe(broker.url("tmq-1.01"), "", *arguments) as bots,
    ):
        for _ in range(5):
            alice.hear("^(Agnes|Boris|Chiara): .")
        bots.process.terminate()
        assert bots.end() == (0, "")


def test_bots_go_when_their_time_is_up(broker: Broker) -> None:
    done = run(broker.url("tmq-1.00"), "--bots", "2", "--topic", "brief", "--duration", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("2 bots: 2 joins, 2 leaves, ")


def test_bots_that_find_no_broker_say_so() -> None:
    done = run("kobold-3://127.0.0.1:1", "--bots", "1", "--duration", "0.5")
    assert done.returncode == 1
    assert "Agnes cannot be here: closed: kobold-3://127.0.0.1:1" in done.stdout


def test_there_are_as_many_names_as_bots() -> None:
    made = names(60)
    assert len(set(made)) == 60
    assert all(4 <= len(name) <= 32 for name in made)


def test_it_has_help_with_examples() -> None:
    text = run("--help").stdout
    assert "wirelake chat mfp://localhost" in text
    assert "WIRELAKE_URL" in text  # where the broker is, if no URL is given
