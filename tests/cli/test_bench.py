"""`wirelake bench` measures; how fast is not for a test to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import COMMAND

SHORT = ["--seconds", "0.01", "--rounds", "1"]


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A run, to its end."""
    command = [*COMMAND, "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_every_dialect_is_measured_in_every_way_that_it_has(tmp_path: Path) -> None:
    result = bench(*SHORT, "--data", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["failed"] == []
    assert report["machine"]["fsyncs_a_second"] > 0
    measured = {(each["shape"], each["name"]): each for each in report["measured"]}
    for dialect in ("boson-text", "boson-binary", "kobold-1", "kobold-2", "kobold-3"):
        assert measured["1000 topics", dialect]["messages_a_second"] > 0
        assert measured["request/reply", dialect]["p50_us"] > 0
    assert ("1 → 4", "mfp-1") in measured
    assert ("request/reply", "mfp-1") not in measured
    assert ("1 → 1", "kobold-3 → boson-text") in measured
    assert ("request/reply", "tmq-1.00 → kobold-3") in measured
    assert "fsyncs a second" in result.stderr
    assert all(name in result.stderr for _, name in measured)


def test_a_running_broker_is_measured_by_its_url_and_only_with_its_token(tmp_path: Path) -> None:
    made = subprocess.run(
        [*COMMAND, "token", "bench", "--publish", "#", "--subscribe", "#", "--serve", "#"],
        capture_output=True,
        text=True,
    )
    (tmp_path / "wirelake.toml").write_text(made.stdout, encoding="utf-8")
    quiet = ["--memory", "--no-http"]
    listen = [*quiet, "--listen", "auto://127.0.0.1:0", "--config", str(tmp_path / "wirelake.toml")]
    with subprocess.Popen(
        [*COMMAND, "serve", *listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        assert broker.stdout
        url = broker.stdout.readline().strip().removeprefix("listening on ")
        arguments = [*SHORT, "--data", str(tmp_path), "--json", "--url"]
        refused = bench(*arguments, url, "--dialect", "kobold-1")
        token = made.stderr.strip().removeprefix("token: ")
        allowed = bench(*arguments, url, "--token", token, "--dialect", "mfp-1")
        named = bench(*arguments, url.replace("auto", "tmq-1.01"), "--token", token)
        broker.terminate()
    assert refused.returncode == 1
    assert "unauthorized" in refused.stderr
    assert {each["name"] for each in json.loads(allowed.stdout)["measured"]} == {"mfp-1"}
    assert {each["name"] for each in json.loads(named.stdout)["measured"]} == {"tmq-1.01"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "auto://127.0.0.1"], 2, "say the port"),
        (["--url", "nonsense://127.0.0.1"], 2, "nonsense"),
        (["--url", "kobold-3://127.0.0.1", "--dialect", "mfp-1"], 2, "auto:// can be all of them"),
        (["--url", "tmq://127.0.0.1", "--dialect", "mfp-1"], 2, "does not speak mfp-1"),
        (["--data", "no/such/folder"], 1, "no/such/folder: no such file or directory"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    result = bench("--data", tmp_path, *arguments)
    (line,) = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (code, "")
    assert line.startswith("wirelake: ")
    assert said in line


def test_an_unknown_dialect_is_told() -> None:
    result = bench("--dialect", "nonsense")
    assert (result.returncode, result.stdout) == (2, "")
    assert "nonsense is none of" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_broker(tmp_path: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "bench", "--seconds", "600", "--data", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(started := children.read_text().split()) < 2:  # the broker, and a subscriber
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert not any(Path(f"/proc/{child}").exists() for child in started)


def test_help_has_examples() -> None:
    result = bench("--help")
    assert "Examples:" in result.stdout
    assert "wirelake bench --quick" in result.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wirelake queue p", {"put", "peek", "purge"}),
        ("wirelake bench --dialect tmq", {"tmq-1.00", "tmq-1.01"}),
        ("wirelake kv put --cre", {"--create"}),
    ],
)
def test_the_shell_completes_commands_and_dialects(typed: str, offered: set[str]) -> None:
    script = Path(sys.executable).parent / "wirelake"
    position = str(typed.count(" "))
    request = {"_WIRELAKE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": position}
    result = subprocess.run(
        [script], env={**os.environ, **request}, capture_output=True, text=True, timeout=60
    )
    assert set(result.stdout.split()) == offered
