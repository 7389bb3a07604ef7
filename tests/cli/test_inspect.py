"""`wirelake inspect`, run as a user runs it."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.message import Message, Op, Parameters
from wirelake.wire import FrameTable


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "wirelake", *arguments], input=data, capture_output=True, timeout=60
    )


def inspect_json(data: bytes, *arguments: str) -> list[dict[str, object]]:
    """What `inspect --json` says of bytes that are all right."""
    result = run("inspect", "-", "--json", *arguments, data=data)
    assert result.returncode == 0, result.stderr
    assert result.stderr == b""
    return [json.loads(line) for line in result.stdout.splitlines()]


def frames(dialect: str, *messages: Message) -> bytes:
    """A capture of what a client sends."""
    table = FrameTable()
    table.fill(messages)
    return bytes(encoder(dialect).encode(table))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_publish_is_shown_alike_in_every_dialect(dialect: str) -> None:
    data = frames(dialect, Message(address="a/b", payload=b"hi"), Message("a/b", b"\xff\x00"))
    shown = [m for m in inspect_json(data, "--dialect", dialect) if m["op"] == "publish"]
    assert [(m["address"], m["payload"], m["base64"]) for m in shown] == [
        ("a/b", "hi", "aGk="),
        ("a/b", None, "/wA="),
    ]
    assert {m["dialect"] for m in shown} == {dialect}


def test_json_has_these_fields_and_no_others() -> None:
    metadata = b"id=7;tx=t1;ttl=500;prio=1;to=bob;from=al;k=v;token=secret;"
    frame = b"PUB\r\n" + metadata + b"\r\na/b\r\nhello\r\n"
    (message,) = inspect_json(len(frame).to_bytes(4, "big") + frame)
    assert message == {
        "offset": 0,
        "dialect": "kobold-1",
        "op": "publish",
        "address": "a/b",
        "id": "7",
        "correlation_id": "t1",
        "source": "al",
        "target": "bob",
        "content_type": 0,
        "priority": 1,
        "ttl": 500,
        "headers": {"k": "v"},
        "payload": "hello",
        "base64": base64.b64encode(b"hello").decode(),
    }


def test_the_offset_is_that_of_a_messages_first_frame() -> None:
    data = b"5|0|greet|hello" + b"4|m|t|abcd3|m||efg2|0||hi" + b"4|mm|t|abcd2|0||hi" + b"1|0|t|x"
    shown = inspect_json(data)
    assert [m["offset"] for m in shown] == [0, 15, 40, 51, 58]
    assert [base64.b64decode(str(m["base64"])) for m in shown] == [
        b"hello", b"abcdefghi", b"abcd", b"hi", b"x",
    ]  # fmt: skip


def test_the_address_of_an_mfp_message_is_the_topic_set_before_it() -> None:
    data = frames("mfp-1", Message("one", b"1"), Message("two", b"2"), Message("two", b"3"))
    shown = inspect_json(data, "--dialect", "mfp-1")
    assert [(m["op"], m["address"]) for m in shown] == [
        ("topic", "one"), ("publish", "one"), ("topic", "two"), ("publish", "two"),
        ("publish", "two"),
    ]  # fmt: skip


def test_the_dialect_is_told_from_the_first_bytes() -> None:
    handshake = Message(op=Op.HANDSHAKE, source="alice", parameters=Parameters(connection="pub"))
    captures = {
        dialect: (
            b"TMQ/" + dialect.removeprefix("tmq-").encode() if dialect.startswith("tmq") else b""
        )
        + frames(
            dialect,
            *([handshake] if dialect == "mfp-1" or dialect.startswith("mqtt") else []),
            Message("a/b", b"hi"),
        )
        for dialect in DIALECTS
    }
    for dialect, data in captures.items():
        assert {m["dialect"] for m in inspect_json(data)} == {dialect}


def test_a_little_endian_tmq_capture_is_read_once_hello_has_told() -> None:  # spec: tmq 2
    table, writer = FrameTable(), encoder("tmq-1.01")
    published = Message("a/b", b"x" * 300, content_type=0x0102)
    table.fill([Message(op=Op.HANDSHAKE), Message(op=Op.HELLO), published])
    writer.set_variant("little")
    shown = inspect_json(bytes(writer.encode(table)))
    assert [m["op"] for m in shown] == ["handshake", "hello", "publish"]
    assert shown[2]["content_type"] == 0x0102
    assert shown[2]["payload"] == "x" * 300


def test_an_inclusive_kobold_capture_of_one_frame_is_read() -> None:
    (message,) = inspect_json(b"\x00\x00\x00\x10PUB\r\n\r\nt\r\n\r\n")
    assert message["address"] == "t"


def test_bad_input_shows_what_was_decoded_and_then_the_error() -> None:
    result = run("inspect", "-", "--json", data=b"5|0|greet|hello7|0|t|x-1|")
    assert result.returncode == 2
    assert [json.loads(line)["address"] for line in result.stdout.splitlines()] == ["greet"]
    told = json.loads(result.stderr)
    assert (told["error"], told["exit"]) == ("protocol", 2)
    assert told["text"].startswith("-: boson-text: byte 15: ")


def test_a_capture_that_ends_inside_a_frame_is_bad_input() -> None:
    result = run("inspect", "-", data=b"5|0|greet|hello5|0|greet|hel")
    assert result.returncode == 2
    assert b"greet" in result.stdout
    assert b"byte 15: the stream ends inside a frame" in result.stderr


def test_bytes_of_no_dialect_name_the_option_to_use() -> None:
    result = run("inspect", "-", data=b"GET / HTTP/1.1\r\n\r\n")
    assert result.returncode == 2
    assert result.stdout == b""
    assert b"--dialect names it: boson-text" in result.stderr


def test_an_empty_capture_is_an_empty_table() -> None:
    assert inspect_json(b"") == []
    assert run("inspect", "-").returncode == 0


def test_a_missing_file_is_one_line_and_exit_code_1() -> None:
    result = run("inspect", "no/such/file")
    assert result.returncode == 1
    assert result.stderr == b"wirelake: no/such/file: No such file or directory\n"


def test_the_table_for_people_shows_text_and_hides_tokens_and_escapes(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    capture.write_bytes(
        frames(
            "kobold-3",
            Message("a/[b]", b"\x1b[31mred", id="7", parameters=Parameters(token="secret")),
        )
    )
    result = run("inspect", str(capture))
    shown = result.stdout.decode()
    assert result.returncode == 0
    assert "a/[b]" in shown
    assert "id=7" in shown
    assert "\\x1b[31mred" in shown
    assert "secret" not in shown


def test_a_reader_that_goes_away_is_nothing_to_complain_about(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    capture.write_bytes(frames("boson-text", *[Message("a", b"x" * 100)] * 4000))
    command = [sys.executable, "-m", "wirelake", "inspect", str(capture), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""


def test_the_version_names_the_kernels() -> None:
    assert run("--version").stdout in (
        b"wirelake 0.1.0 (compiled kernels)\n", b"wirelake 0.1.0 (plain kernels)\n",
    )  # fmt: skip


def test_help_has_examples() -> None:
    assert b"wirelake inspect device.bin" in run("inspect", "--help").stdout
