"""`wirelake queue put`, `get` and `ls`, run as a user runs them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Group

#: What can take a message out of a queue when it likes.
PULLING = ["kobold-1", "kobold-2", "kobold-3", "boson-binary", "tmq-1.00", "tmq-1.01"]


QUEUE = Group("queue")
shown, objects = QUEUE.shown, QUEUE.objects


@pytest.mark.parametrize("dialect", PULLING)
def test_lines_are_put_and_taken_in_order_and_only_once(place: str, dialect: str) -> None:
    url, name = f"{dialect}://{place}", f"lines/{dialect}"
    assert shown("put", url, name, "--lines", data=b"one\ntwo\r\nthree") == []
    assert shown("get", url, name) == [f"{name}  one"]
    assert shown("get", url, name, "--count", "9", "--raw") == ["two", "three"]
    empty = QUEUE.run("get", url, name)
    assert (empty.returncode, empty.stdout) == (4, b"")
    assert empty.stderr.decode() == f"wirelake: {name} has no message to give\n"


@pytest.mark.parametrize("dialect", ["boson-text", "mfp-1"])
def test_a_dialect_without_a_pull_puts_into_a_queue_and_follows_it(
    place: str, dialect: str
) -> None:
    name = f"follow/{dialect}"
    shown("put", f"kobold-2://{place}", name, "first")  # which makes it
    shown("put", f"{dialect}://{place}", name, "second")
    arguments = ("--follow", "--count", "2", "--raw", "--timeout", "60")
    assert shown("get", f"{dialect}://{place}", name, *arguments) == ["first", "second"]
    assert QUEUE.run("get", f"kobold-1://{place}", name).returncode == 4


def test_following_goes_on_until_the_count_or_the_time(place: str) -> None:
    url = f"kobold-3://{place}"
    shown("put", url, "on", "--lines", data=b"1\n2\n3\n")
    assert shown("get", url, "on", "--follow", "--count", "2", "--raw") == ["1", "2"]
    assert shown("get", url, "on", "--follow", "--timeout", "1", "--raw") == ["3"]
    late = QUEUE.run("get", url, "on", "--follow", "--count", "1", "--timeout", "0.5")
    assert (late.returncode, late.stderr) == (4, b"wirelake: time is up\n")


def test_get_waits_for_a_message_that_is_put_later(place: str) -> None:
    url = f"kobold-3://{place}"
    shown("put", url, "later", "first")
    shown("get", url, "later")
    command = [*COMMAND, "queue", "get", url, "later", "--wait", "60", "--raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as waiting:
        while not any(each["name"] == "later" and each["consumers"] for each in objects("ls", url)):
            assert waiting.poll() is None
        shown("put", url, "later", "here")
        output, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, output) == (0, b"here\n")


def test_a_message_that_was_looked_at_requeued_or_refused(place: str) -> None:
    url = f"boson-binary://{place}"
    shown("put", url, "tried", "x", "--id", "m1", "--header", "colour=red", "--priority", "1")
    (seen,) = objects("get", url, "tried", "--no-ack")
    assert (seen["attempt"], seen["id"], seen["priority"]) == (1, "m1", 1)
    assert seen["headers"] == {"colour": "red"}
    assert base64.b64decode(seen["base64"]) == b"x"
    attempts = [objects("get", url, "tried", how)[0]["attempt"] for how in ("--requeue", "--nack")]
    assert attempts == [2, 3]
    assert QUEUE.run("get", url, "tried").returncode == 4
    (dead,) = objects("get", url, "tried/$dead")
    assert dead["headers"]["dead.reason"]


def test_urgent_messages_come_first_and_delayed_ones_in_their_time(
    place: str, tmp_path: Path
) -> None:
    url = f"kobold-2://{place}"
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00")
    shown("put", url, "mixed", "in an hour", "--delay", "3600000")
    shown("put", url, "mixed", "--file", file)
    shown("put", url, "mixed", "urgent", "--priority", "1")
    payloads = [
        base64.b64decode(each["base64"]) for each in objects("get", url, "mixed", "--count", "9")
    ]
    assert payloads == [b"urgent", b"\xff\x00"]
    shown("put", url, "mixed", "soon", "--delay", "100")
    assert shown("get", url, "mixed", "--wait", "60", "--raw") == ["soon"]


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3", "boson-binary", "tmq-1.01"])
def test_queues_are_listed_for_people_and_programs(place: str, dialect: str) -> None:
    url, name = f"{dialect}://{place}", f"listed/{dialect}"
    shown("put", url, name, "x")
    (entry,) = (each for each in objects("ls", url) if each["name"] == name)
    assert (entry["messages"], entry["ready"], entry["held"], entry["consumers"]) == (1, 1, 0, 0)
    header, *lines = shown("ls", url)
    assert header.split() == ["queue", "mode", "messages", "ready", "held", "consumers"]
    assert [name, "round-robin", "1", "1", "0", "0"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["get", "mfp://{}", "q"], 1, b"mfp-1 has no pull; boson-binary, kobold-1"),
        (["get", "mfp://{}", "q", "--follow", "--no-ack"], 1, b"mfp-1 has no nack"),
        (["get", "tmq://{}", "q", "--nack"], 1, b"tmq-1.01 has no nack without requeue"),
        (["get", "tmq://{}", "known", "--wait", "1"], 1, b"tmq-1.01 has no pull that waits"),
        (["get", "tmq://{}", "none"], 1, b"there is no queue none"),
        (["get", "kobold-3://{}", "none", "--follow"], 1, b"there is no queue none"),
        (["get", "boson-binary://{}", "none"], 1, b"there is no queue none"),
        (["put", "tmq://{}", "q", "x", "--header", "a=b"], 1, b"tmq-1.01 has no header"),
        (["put", "boson-text://{}", "q", "x", "--delay", "5"], 1, b"boson-text has no delay"),
        (["put", "kobold-3://{}", "q/#", "x"], 1, b"bad_request"),
        (["put", "kobold-3://127.0.0.1:1", "q", "x"], 1, b"127.0.0.1:1"),
        (["put", "nonsense://{}", "q", "x"], 2, b"nonsense"),
        (["put", "kobold-3://{}", "q", "--file", "no/such/file"], 1, b"No such file"),
        (["ls", "boson-text://{}"], 1, b"boson-text has no list of queues"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    place: str, arguments: list[str], code: int, said: bytes
) -> None:
    shown("put", f"kobold-3://{place}", "known", "x")
    result = QUEUE.run(*[argument.format(place) for argument in arguments])
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in result.stderr
    assert result.stderr.count(b"\n") == 1
    names = [each["name"] for each in objects("ls", f"kobold-3://{place}")]
    assert "none" not in names, "nothing is made by asking for it"


@pytest.mark.parametrize("wrong", [["--nack", "--no-ack"], ["--follow", "--wait", "1"]])
def test_options_that_exclude_each_other_are_told(place: str, wrong: list[str]) -> None:
    assert QUEUE.run("get", f"kobold-3://{place}", "q", *wrong).returncode == 2


@pytest.mark.parametrize("command", ["put", "get", "ls"])
def test_every_command_has_examples(command: str) -> None:
    assert f"wirelake queue {command} " in "\n".join(shown(command, "--help"))
