"""The benchmark runs; how fast is not for a test to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import mqtt
from bench.goals import BEST, GOALS, WITHOUT_CAPTURE, Goal, goal
from bench.peers import Mosquitto, Nats
from bench.rabbitmq import ACK, BODY, GET_OK, HEADER, NACK, RabbitMq, frame, method
from bench.results import OURS, Result, quantity
from bench.sections import SECTIONS
from wirelake.errors import EngineError

ROOT = Path(__file__).parent.parent
PROGRAM = [sys.executable, "-m", "bench"]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program, to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def by_name(report: Any, section: str) -> dict[str, Any]:
    """The results of a section."""
    (part,) = (part for part in report["parts"] if part["name"] == section)
    return {result["name"]: result for result in part["outcome"]["results"]}


def test_the_wire_benchmark_measures_everything(tmp_path: Path) -> None:
    file = tmp_path / "wire.json"
    arguments = ["--seconds", "0.01", "--dialect", "tmq-1.01", "--all-pairs", "--json", str(file)]
    result = subprocess.run(
        [sys.executable, "-m", "bench.wire", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "tmq-1.01, ids" in result.stdout
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    assert [case["name"] for case in cases] == ["tmq-1.01", "tmq-1.01, ids"]
    for case in cases:
        assert case["bytes"] <= 256 << 10
        measured = {"memcpy", "scan", "arrow", "encode", "slowest", "median", "to mfp-1"}
        assert case["rates"].keys() >= measured


def test_what_the_console_costs_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "console.json"
    command = [sys.executable, "-m", "bench.console", "--quick", "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["traffic"][0] > 0
    assert "first paint" in result.stdout or "without a browser" in result.stdout


def test_streams_of_queue_messages_are_measured_beside_peers(tmp_path: Path) -> None:
    file = tmp_path / "backlog.json"
    size = ["--messages", "2000", "--rounds", "1", "--long", "8000"]
    command = [sys.executable, "-m", "bench.backlog", *size, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    for case in ("stream, puts", "stream, gets with acks"):
        assert report["streams"][case].keys() >= {"Wirelake", "JetStream"}
    assert report["long"]["seconds to open"] > 0
    assert report["long"]["opened, gets"] > 0


def test_pressure_is_measured_in_all_three_ways(tmp_path: Path) -> None:
    file = tmp_path / "pressure.json"
    size = ["--size", str(4 << 20), "--seconds", "0.3", "--connections", "40"]
    command = [sys.executable, "-m", "bench.pressure", *size, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["stream"]["received"] == 4 << 20
    assert report["slow"]["full_speed"]["alone_megabytes_a_second"] > 0
    assert report["idle"]["connections"] == 40
    assert report["idle"]["share"] > 0


def test_mqtt_is_measured_at_every_quality_of_service(tmp_path: Path) -> None:
    file = tmp_path / "mqtt.json"
    size = ["--seconds", "0.1", "--rounds", "1", "--connections", "40"]
    command = [sys.executable, "-m", "bench.mqtt", *size, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    there = [kind.program for kind in (Mosquitto, Nats) if kind.binary()]
    for rates in found["rounds"].values():
        assert rates.keys() == {OURS, WITHOUT_CAPTURE, *there}
        assert all(rate > 0 for each in rates.values() for rate in each)
    rows = list(mqtt.results(found))
    assert {goal("mqtt", row.name).value for row in rows} == {1, 2, 5, 20}  # type: ignore[union-attr]  # all have one


@pytest.mark.soak
@pytest.mark.skipif(Nats.binary() is None, reason="nats-server is not installed")
def test_one_run_gives_a_table_a_json_and_a_page_that_can_be_made_again(tmp_path: Path) -> None:
    file, docs = tmp_path / "figures" / "bench.json", tmp_path / "page.md"
    sections = ["pubsub", "latency", "http", "wire"]
    only = [word for section in sections for word in ("--only", section)]
    result = run("--quick", *only, "--json", file, "--docs", docs)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 sections, about" in result.stderr
    assert "[2 of 4] latency" in result.stderr

    report = json.loads(file.read_text(encoding="utf-8"))
    assert [part["name"] for part in report["parts"]] == sections
    assert report["machine"]["fsyncs_a_second"] > 0
    assert report["machine"]["disk_bytes_a_second"] > 0
    assert report["versions"].keys() >= {OURS, "nats-server"}
    heard = by_name(report, "pubsub")["1 → 1, boson-text → kobold-3"]
    assert heard["ratio"] == heard["figures"][OURS] / heard["figures"][heard["best"]]
    assert heard["wanted"] == "≥ 0.5 × NATS"  # noqa: RUF001 - times it is
    assert heard["met"] == (heard["figures"][OURS] >= heard["figures"]["nats-server"] / 2)
    assert by_name(report, "latency")["p99, kobold-3"]["figures"].keys() == {OURS, "nats-server"}
    assert by_name(report, "http")["stored batches"]["figures"][OURS] > 0
    assert "scan to Arrow, boson-text" in by_name(report, "wire")

    for part in report["parts"]:
        assert SECTIONS[part["name"]].title in result.stdout
        for each in part["outcome"]["results"]:
            assert each["name"] in result.stdout
            assert f"| {each['name']} |" in docs.read_text(encoding="utf-8")

    again = tmp_path / "again.md"
    rebuilt = run("--from", file, "--docs", again)
    assert (rebuilt.returncode, rebuilt.stdout) == (0, result.stdout)
    assert again.read_bytes() == docs.read_bytes()


@pytest.mark.soak
@pytest.mark.skipif(Nats.binary() is None, reason="nats-server is not installed")
def test_a_cluster_is_measured_beside_nats_and_one_broker(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = run("--quick", "--only", "cluster", "--json", file)
    assert result.returncode == 0, result.stdout + result.stderr
    found = by_name(json.loads(file.read_text(encoding="utf-8")), "cluster")
    assert found["pub/sub at the owner"]["figures"].keys() == {OURS, "one broker"}
    between = found["pub/sub from the owner to another node"]
    assert between["figures"].keys() == {OURS, "nats-server"}
    for name in ("acked publishes, 64 clients", "queue put-get-ack, 64 clients"):
        assert found[name]["figures"].keys() == {OURS, "JetStream, synced"}
        assert found[name]["wanted"] == "≥ 1 × JetStream, synced"  # noqa: RUF001 - times it is
    for name in ("drain", "node killed", "NATS server killed"):
        assert 0 < found[f"silence, {name}"]["figures"][OURS] < 60


@pytest.mark.soak
def test_a_section_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    java.chmod(0o755)
    file, docs = tmp_path / "bench.json", tmp_path / "page.md"
    only = ["--only", "spark", "--only", "wire"]
    java_home = str(tmp_path / "jvm")
    result = run("--quick", *only, "--json", file, "--docs", docs, JAVA_HOME=java_home)
    assert result.returncode == 1
    assert "spark: failed after" in result.stderr
    assert "failed: " in result.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    outcomes = {part["name"]: part["outcome"] for part in report["parts"]}
    assert outcomes["spark"]["failures"]
    assert outcomes["wire"]["results"]
    assert "**Failed:**" in docs.read_text(encoding="utf-8")
    assert "Traceback" in (tmp_path / "spark.log").read_text(encoding="utf-8")
    assert run("--from", file).returncode == 1


@pytest.mark.soak
def test_attacks_are_measured_beside_a_broker_that_nobody_attacks() -> None:
    from bench.attacks import ATTACKS, QUIET, section

    outcome = section(lambda step: None, quick=True)
    found = {result.name: result for result in outcome.results}
    for name in ATTACKS.keys() - {QUIET}:
        result = found[f"ping p99, {name}"]
        assert result.figures.keys() == {OURS, QUIET}
        assert min(result.figures.values()) > 0
    assert found["wildcard subscription, delay of others"].unit == "ms"
    for result in outcome.results:
        assert goal("attacks", result.name) is not None


def descendants(pid: int) -> set[int]:
    """All processes that one has started, and those they have."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text(encoding="ascii").split()):
            found |= {child} | descendants(child)
    return found


def is_running(pid: int) -> bool:
    """Is it there, and not just waiting to be forgotten?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.soak
def test_a_signal_ends_it_and_every_server_that_it_has_started(tmp_path: Path) -> None:
    command = [*PROGRAM, "--only", "durable", "--json", str(tmp_path / "bench.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        # The two brokers of ours are the first and the last ones that are started.
        while not list(tmp_path.glob("*/uncaptured/journal/*.wlj")):
            assert process.poll() is None
            time.sleep(0.05)
        started = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130
    end = time.monotonic() + 10
    while (left := [pid for pid in started if is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    assert not list(tmp_path.glob("*/uncaptured"))


def test_a_json_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"machine": 3}', encoding="utf-8")
    result = run("--from", tmp_path / "bench.json")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "bench.json" in line


# Results and goals


def test_the_best_peer_is_one_of_equal_durability() -> None:
    rates = {OURS: 2.0, "JetStream": 9.0, "JetStream, synced": 3.0, "Redis, synced": 4.0}
    assert Result("acked", "a second", rates).best == "Redis, synced"
    assert Result("taken", "s", rates, less_is_better=True).best == "JetStream, synced"
    assert Result("captured", "bytes/s", {OURS: 2.0, "the disk": 4.0}).best == "the disk"
    assert Result("alone", "a second", {OURS: 2.0}).best is None


@pytest.mark.parametrize(
    ("wanted", "figures", "met"),
    [
        (Goal("s", "*", 2, "nats-server"), {OURS: 4.0, "nats-server": 2.0}, True),
        (Goal("s", "*", 2, "nats-server"), {OURS: 3.9, "nats-server": 2.0}, False),
        (Goal("s", "*", 2, "nats-server", at_most=True), {OURS: 3.9, "nats-server": 2.0}, True),
        (Goal("s", "*", 2, "nats-server"), {OURS: 4.0}, None),
        (Goal("s", "*", 1, BEST), {OURS: 3.0, "RabbitMQ": 2.0, "Redis, synced": 4.0}, False),
        (Goal("s", "*", 1, BEST), {OURS: 3.0, "RabbitMQ": 2.0, "JetStream": 4.0}, True),
        (Goal("s", "*", 20), {OURS: 20.0}, True),
        (Goal("s", "*", 20, at_most=True), {OURS: 20.1}, False),
    ],
)
def test_a_goal_is_met_or_not_or_cannot_be_told(
    wanted: Goal, figures: dict[str, float], met: bool | None
) -> None:
    assert wanted.is_met(Result("it", "a second", figures)) is met


def test_the_first_goal_that_matches_counts() -> None:
    one, between = goal("pubsub", "1 → 1, kobold-3"), goal("pubsub", "1 → 1, mfp-1 → tmq-1.01")
    assert one is not None
    assert between is not None
    assert (one.value, between.value) == (2, 0.5)
    assert goal("durable", "store updates, 1 client") is None


def test_every_goal_says_what_is_compared() -> None:
    assert all(each.section in SECTIONS and each.text for each in GOALS)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (0.0, "0.00"),
        (0.634, "0.63"),
        (12.34, "12.3"),
        (510.4, "510"),
        (2162.0, "2162"),
        (12_686.0, "12.7 k"),
        (949_000.0, "949 k"),
        (4_610_000.0, "4.61 M"),
        (1.5e9, "1.50 G"),
    ],
)
def test_figures_have_three_digits(figure: float, shown: str) -> None:
    assert quantity(figure) == shown


# RabbitMQ's answers


GOT = method(GET_OK, bytes(8)) + frame(HEADER, bytes(14)) + frame(BODY, b"payload")


@pytest.mark.parametrize("answer", [method(ACK, bytes(9)), GOT])
def test_an_answer_of_rabbitmq_is_one_when_it_is_whole(answer: bytes, tmp_path: Path) -> None:
    keeper = RabbitMq(tmp_path / "node")
    for size in range(len(answer)):
        assert not keeper.is_answered(answer[:size])
    assert keeper.is_answered(answer)


def test_a_refusal_of_rabbitmq_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="RabbitMQ"):
        RabbitMq(tmp_path / "node").is_answered(method(NACK, bytes(9)))
