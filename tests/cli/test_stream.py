"""`wirelake stream send` and `recv`, run as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command import COMMAND

STREAMING = ["kobold-1", "kobold-2", "kobold-3", "boson-binary"]


def send(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Send, to the end."""
    command = [*COMMAND, "stream", "send", *arguments]
    return subprocess.run(command, input=data, capture_output=True, timeout=60)


def deliver(
    place: str, dialect: str, client: str, *arguments: str | Path, data: bytes = b""
) -> str:
    """Send to a client that is about to be there; what is said on standard output."""
    for _ in range(100):
        result = send(f"{dialect}://{place}", client, *arguments, data=data)
        if b"not_found" not in result.stderr:
            assert (result.returncode, result.stderr) == (0, b"")
            return result.stdout.decode()
    raise AssertionError("it never came")


@contextmanager
def receiver(url: str, client: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client that waits for streams."""
    command = [*COMMAND, "stream", "recv", url, "--id", client, "--timeout", "100", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("dialect", STREAMING)
def test_a_file_arrives_byte_for_byte(place: str, tmp_path: Path, dialect: str) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(os.urandom(3_000_001))
    other = STREAMING[STREAMING.index(dialect) - 1]
    arguments = ("--output", copy, "--json")
    with receiver(f"{dialect}://{place}", f"files-{dialect}", *arguments) as process:
        names = ("--client-id", "alice", "--info", "a file")
        said = deliver(place, other, f"files-{dialect}", file, *names, "--json")
        output, errors = process.communicate(timeout=60)
    assert json.loads(said) == {"client": f"files-{dialect}", "bytes": 3_000_001}
    assert (process.returncode, errors) == (0, b"")
    result = {"source": "alice", "info": "a file", "bytes": 3_000_001, "file": str(copy)}
    assert json.loads(output) == {**result, "error": None}
    assert copy.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("data", [b"", b"from \x00 stdin"])
def test_standard_input_becomes_standard_output(place: str, data: bytes) -> None:
    client = f"pipe-{len(data)}"
    with receiver(f"kobold-3://{place}", client) as process:
        deliver(place, "kobold-3", client, data=data)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, data, b"")


def test_several_streams_become_files_that_stay_in_their_folder(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "received"
    arguments = ("--output", folder, "--count", "2")
    with receiver(f"kobold-2://{place}", "folder", *arguments) as process:
        deliver(place, "kobold-1", "folder", "--client-id", "../../evil", data=b"one")
        deliver(place, "boson-binary", "folder", "--client-id", "bob", data=b"two")
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found == {"0001-.._.._evil": b"one", "0002-bob": b"two"}


@pytest.fixture
def waiting(place: str) -> Iterator[subprocess.Popen[bytes]]:
    """The client `waiting`, which has had one stream, and waits for another."""
    with receiver(f"kobold-3://{place}", "waiting", "--count", "2") as process:
        deliver(place, "kobold-3", "waiting", data=b"hello")
        assert process.stdout
        assert process.stdout.read(5) == b"hello"
        yield process


def test_a_stream_whose_sender_dies_is_told(place: str, waiting: subprocess.Popen[bytes]) -> None:
    arguments = [f"kobold-2://{place}", "waiting", "--client-id", "weak"]
    command = [*COMMAND, "stream", "send", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sender:
        assert sender.stdin
        assert waiting.stdout
        sender.stdin.write(b"the beginning")
        sender.stdin.flush()
        assert waiting.stdout.read(13) == b"the beginning"  # it comes as it is sent
        sender.kill()
    output, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, output) == (1, b"")
    assert errors == b"wirelake: from weak: closed: the stream ended after 13 of 13 bytes\n"


def test_a_sender_whose_receiver_dies_is_told(place: str, waiting: subprocess.Popen[bytes]) -> None:
    command = [*COMMAND, "stream", "send", f"boson-binary://{place}", "waiting", "/dev/zero"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as sender:
        assert waiting.stdout
        assert waiting.stdout.read(1000) == bytes(1000)
        waiting.kill()
        _, errors = sender.communicate(timeout=60)
    assert sender.returncode == 1
    assert errors.startswith(b"wirelake: closed")
    assert errors.count(b"\n") == 1


def test_a_terminal_sees_progress_and_the_rate(
    place: str, tmp_path: Path, waiting: subprocess.Popen[bytes]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    screen, terminal = pty.openpty()
    command = [*COMMAND, "stream", "send", f"kobold-3://{place}", "waiting", str(file)]
    with subprocess.Popen(command, stderr=terminal) as sender:
        os.close(terminal)
        output, _ = waiting.communicate(timeout=60)
        seen = b""
        while more := _read(screen):
            seen += more
        os.close(screen)
    assert (sender.returncode, output) == (0, bytes(1 << 20))
    assert b"to waiting" in seen
    assert b"B/s" in seen


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # how a terminal ends
        return b""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["send", "kobold-3://{}", "nobody", "/dev/null"], 1, b"not_found"),
        (["send", "kobold-3://{}", "nobody", "no/such/file"], 1, b"No such file"),
        (["send", "mfp://{}", "nobody", "/dev/null"], 1, b"mfp-1 has no byte stream"),
        (["send", "tmq://{}", "nobody", "/dev/null"], 1, b"tmq-1.01 has no byte stream"),
        (["recv", "tmq://{}", "--id", "me"], 1, b"tmq-1.01 has no byte stream"),
        (["recv", "boson-text://{}", "--id", "me"], 2, b"client_id: boson-text has none"),
        (["recv", "kobold-3://{}", "--id", "me", "--timeout", "0.5"], 4, b"time is up"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    place: str, arguments: list[str], code: int, said: bytes
) -> None:
    command = [*COMMAND, "stream", *[argument.format(place) for argument in arguments]]
    result = subprocess.run(command, capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_an_output_that_cannot_be_written_is_one_line(place: str, tmp_path: Path) -> None:
    with receiver(f"kobold-3://{place}", "nowhere", "--output", tmp_path) as process:
        while process.poll() is None:
            send(f"kobold-3://{place}", "nowhere", data=b"x")
        assert process.stderr
        errors = process.stderr.read()
    assert process.returncode == 1
    assert errors == f"wirelake: {tmp_path}: Is a directory\n".encode()


def test_json_needs_another_place_for_the_stream(place: str) -> None:
    command = [*COMMAND, "stream", "recv", f"kobold-3://{place}", "--id", "me", "--json"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 2


@pytest.mark.parametrize("command", ["send", "recv"])
def test_every_command_has_examples(command: str) -> None:
    arguments = [*COMMAND, "stream", command, "--help"]
    output = subprocess.run(arguments, capture_output=True, timeout=60).stdout
    assert f"wirelake stream {command} ".encode() in output
