"""`wirelake demo` against real brokers: what it sends is in the log, and in the report."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import wirelake
from tests.cli.terminal import Terminal
from tests.cli.test_up import Start, start
from wirelake.dialects import DIALECTS
from wirelake.testing import Broker

__all__ = ["start"]  # a fixture


#: What is in the log of each pattern, and who can have said it.
TMQ = {"tmq-1.00", "tmq-1.01"}
OPS = {
    "publish": {"boson-text", "boson-binary", "kobold-1", "tmq-1.00", "mfp-1", "mqtt-3.1.1"},
    "request": {"boson-text", "boson-binary", "kobold-2", "tmq-1.01", "mqtt-5"},
    "reply": {"boson-text", "boson-binary", "kobold-1", "kobold-3"},
    "enqueue": {"boson-text", *TMQ},
    "deliver": {"boson-binary", "kobold-2", "mfp-1", *TMQ},
    "ack": {"boson-binary", "kobold-2", *TMQ},
    "set": {"boson-binary", "kobold-1", "kobold-3"},
    "open": {"boson-binary", "kobold-1"},
    "close": {"boson-binary", "kobold-1"},
    "direct": {"boson-binary", "kobold-3", *TMQ},
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a log and HTTP, on free ports."""
    with Broker(data=tmp_path / "data", http=True) as broker:
        yield broker


def demo(*arguments: str | Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """The command, until it ends."""
    command = [sys.executable, "-m", "wirelake", "demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def place(broker: Broker) -> list[str]:
    """Where a demo finds a broker: its listeners, and HTTP."""
    return [*map(str, broker.listeners), "--http", broker.http_url.removeprefix("http://")]


def logged(http: str) -> set[tuple[str, str]]:
    """Every op with the dialects that it was said in."""
    found: set[tuple[str, str]] = set()
    with urllib.request.urlopen(f"{http}/v1/log") as answer:
        partitions = json.load(answer)["partitions"]
    for one in partitions:
        url = f"{http}/v1/log/{one['partition']}?columns=op,dialect"
        with urllib.request.urlopen(url) as answer, pa.ipc.open_stream(answer) as stream:
            found |= {(row["op"], row["dialect"]) for row in stream.read_all().to_pylist()}
    return found


def test_every_dialect_and_every_pattern_is_in_the_log(broker: Broker) -> None:
    result = demo(*place(broker), "--rate", "400", "--duration", "10", "--no-report", "--json")
    assert result.returncode == 0, result.stderr
    found = logged(broker.http_url)
    missing = {(op, dialect) for op, dialects in OPS.items() for dialect in dialects} - found
    assert not missing
    counts = json.loads(result.stdout)
    sent = {(one["dialect"], one["pattern"]): one["messages"] for one in counts["sent"]}
    heard = {(one["dialect"], one["pattern"]): one["messages"] for one in counts["heard"]}
    assert {dialect for dialect, _ in sent} | {dialect for dialect, _ in heard} == set(DIALECTS)
    assert counts["happened"]["reconnects"] > 0
    assert broker.counters()["received"] >= sum(
        messages for (_, pattern), messages in sent.items() if pattern == "publish"
    )


def test_counts_are_shown_as_a_table_and_what_cannot_be_reached_is_said(broker: Broker) -> None:
    urls = [str(one) for one in broker.listeners if one.family in ("boson", "kobold")]
    result = demo(*urls, "--duration", "2", "--no-report")
    assert result.returncode == 0, result.stderr
    missing = "mfp-1, tmq-1.00, tmq-1.01, mqtt-3.1.1, mqtt-5"
    assert f"without {missing}: no listener for it was given" in result.stderr
    head, *rows, last = result.stdout.splitlines()
    assert head.split() == [
        "sent/heard",
        "publish",
        "chat",
        "request",
        "queue",
        "store",
        "stream",
        "direct",
    ]
    assert [row.split()[0] for row in rows] == [
        name for name in DIALECTS if not name.startswith(("mfp", "tmq", "mqtt"))
    ]
    assert re.match(r"[\d,]+ messages sent; ", last)


def test_without_a_broker_it_says_how_to_get_one() -> None:
    result = demo("kobold-3://127.0.0.1:1", "--no-report")
    assert (result.returncode, result.stdout) == (1, "")
    assert "is there a broker? `wirelake up` starts one" in result.stderr
    assert "Traceback" not in result.stderr


async def test_one_demo_at_a_time_is_on_a_broker(broker: Broker) -> None:
    async with wirelake.connect(broker.url("kobold-3"), client_id="demo"):
        result = await asyncio.to_thread(demo, *place(broker), "--no-report")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].endswith("another demo is running on this broker")


def test_a_broker_that_restarts_does_not_end_it(broker: Broker) -> None:
    command = [sys.executable, "-m", "wirelake", "demo", *place(broker)]
    running = subprocess.Popen(
        [*command, "--duration", "8", "--no-report", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with wirelake.connect_sync(broker.url("kobold-3")) as client:
            with client.subscribe("house/#") as messages:
                messages.receive(timeout=60)
            broker.restart()
            with client.subscribe("house/#") as messages:
                messages.receive(timeout=60)
        said, errors = running.communicate(timeout=60)
        assert running.returncode == 0, errors
        assert json.loads(said)["heard"]
    finally:
        running.kill()
        running.communicate()


def test_ctrl_c_ends_it_with_what_was_done_so_far(broker: Broker) -> None:
    terminal = Terminal("demo", *place(broker), "--duration", "100", "--no-report", columns=100)
    try:
        terminal.wait(r"[1-9][\d,]* messages ━")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 130
        terminal.wait("^sent/heard +publish")
        terminal.wait("messages sent;")
    finally:
        terminal.close()


def test_a_broker_without_a_log_has_no_report(tmp_path: Path) -> None:
    capture = {"enabled": False}
    with Broker(data=tmp_path / "data", http=True, capture=capture) as broker:
        result = demo(*place(broker), "--duration", "1", "--table", tmp_path / "lake")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "wirelake: no report: the broker has no log"
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
async def test_with_the_pipeline_running_the_report_has_all_that_was_said(
    start: Start, tmp_path: Path
) -> None:
    group = await start("--every", "5")
    port, http = await group.listens()
    table = tmp_path / "data" / "lake"
    result = await asyncio.to_thread(
        demo,
        *(f"auto://127.0.0.1:{port}", "--http", http.removeprefix("http://")),
        *("--rate", "400", "--duration", "10", "--table", table),
    )
    assert result.returncode == 0, result.stderr
    assert "waiting for the pipeline to land it" in result.stderr
    page = tmp_path / "data" / "report.html"
    assert result.stdout.splitlines()[-1] == f"see {page.as_uri()}"
    shown = page.read_text()
    assert all(dialect in shown for dialect in DIALECTS)
    assert "shop/orders" in shown
    group.process.send_signal(signal.SIGTERM)
    assert await group.end() == (0, "")


@pytest.mark.slow
def test_without_a_pipeline_what_was_said_is_landed_afterwards(
    broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    result = demo(
        *place(broker), "--duration", "5", "--table", tmp_path / "lake", "--out", out, "--json"
    )
    assert result.returncode == 0, result.stderr
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["sent"]
    assert "landing what was said" in result.stderr
    assert "service/price" in out.read_text()
