"""`wirelake pub`, `sub`, `request` and `reply`, run as a user runs them."""

from __future__ import annotations

import base64
import json
import select
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def run(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command, to its end."""
    return subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=60)


def ready(place: str, process: subprocess.Popen[bytes], address: str) -> None:
    """Wait until a subscriber or a service is there: ask until it shows."""
    for _ in range(100):
        if run("request", f"kobold-3://{place}", address, "?", "--timeout", "5").returncode == 0:
            return
        assert process.poll() is None
    raise AssertionError("it never came")


def test_what_is_published_in_one_dialect_is_shown_in_another(place: str, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\x00")
    arguments = ["sub", f"tmq://{place}", "cli/+/x", "cli/done", "--json", "--timeout", "60"]
    with subprocess.Popen([*COMMAND, *arguments, "--count", "6"], **PIPES) as shown:  # type: ignore[call-overload]  # pipes
        while True:  # until it has subscribed, nobody hears
            assert run("pub", f"kobold-1://{place}", "cli/done", "are you there").returncode == 0
            if _has_output(shown):
                shown.stdout.readline()
                break
        run("pub", f"boson-text://{place}", "cli/a/x", "hello")
        run("pub", f"mfp://{place}", "cli/b/x", "--ack", "--client-id", "alice", data=b"from stdin")
        run("pub", f"kobold-2://{place}", "cli/c/x", "--file", file)
        run("pub", f"boson-binary://{place}", "cli/d/x", "--lines", data=b"one\ntwo\n")
        output, errors = shown.communicate(timeout=60)
    assert (shown.returncode, errors) == (0, b"")
    messages = [json.loads(line) for line in output.splitlines()]
    got = [(m["address"], base64.b64decode(m["base64"])) for m in messages]
    heard = [pair for pair in got if pair[0] != "cli/done"]  # of which there may be two
    assert len(heard) >= 4
    assert (
        heard
        == [
            ("cli/a/x", b"hello"),
            ("cli/b/x", b"from stdin"),
            ("cli/c/x", b"\xff\x00"),
            ("cli/d/x", b"one"),
            ("cli/d/x", b"two"),
        ][: len(heard)]
    )


def _has_output(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout
    return bool(select.select([process.stdout], [], [], 0.3)[0])


@pytest.mark.parametrize("dialect", ["boson-text", "boson-binary", "kobold-1", "tmq-1.00"])
def test_a_service_answers_with_a_commands_output(place: str, dialect: str) -> None:
    server = "kobold-3" if dialect == "tmq-1.00" else dialect
    arguments = ["reply", f"{server}://{place}", f"upper/{dialect}", "--", "tr", "a-z", "A-Z"]
    with subprocess.Popen([*COMMAND, *arguments], **PIPES) as service:  # type: ignore[call-overload]  # pipes
        ready(place, service, f"upper/{dialect}")
        asked = run("request", f"{dialect}://{place}", f"upper/{dialect}", "shout")
        service.terminate()
        service.communicate()
    assert (asked.returncode, asked.stdout) == (0, b"SHOUT\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["request", "kobold-3://{}", "nobody", "x"], 1, b"no_service"),
        (["request", "mfp://{}", "a", "x"], 1, b"mfp-1 has no request/reply"),
        (["pub", "kobold-3://{}", "a/+", "x", "--ack"], 1, b"bad_request"),
        (["pub", "nonsense://{}", "a", "x"], 2, b"nonsense"),
        (["pub", "kobold-3://127.0.0.1:1", "a", "x"], 1, b"127.0.0.1:1"),
        (["pub", "kobold-3://{}", "a", "--file", "no/such/file"], 1, b"No such file"),
        (["sub", "kobold-3://{}", "quiet", "--count", "1", "--timeout", "0.5"], 4, b"time is up"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    place: str, arguments: list[str], code: int, said: bytes
) -> None:
    result = run(*[argument.format(place) for argument in arguments])
    assert result.returncode == code
    assert said in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_a_subscriber_without_a_count_may_run_out_of_time(place: str) -> None:
    assert run("sub", f"boson-text://{place}", "quiet", "--timeout", "0.5").returncode == 0


@pytest.mark.parametrize("command", ["pub", "sub", "request", "reply", "serve", "token", "inspect"])
def test_every_command_has_examples(command: str) -> None:
    assert b"wirelake " + command.encode() in run(command, "--help").stdout
