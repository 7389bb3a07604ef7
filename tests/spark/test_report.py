"""The numbers of a report, worked out by hand, and the page that shows them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.tables import make
from wirelake.address import matches
from wirelake.errors import EngineError
from wirelake.spark import table
from wirelake.spark.page import page
from wirelake.spark.report import report

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEFAULTS = {
    "partition": 0, "address": "", "op": "publish", "dialect": "mfp-1", "id": "",
    "correlation_id": "", "source": "", "target": "", "content_type": 0, "priority": 0, "ttl": 0,
    "headers": {}, "payload": b"",
}  # fmt: skip


def row(seconds: float, address: str, op: str = "publish", **fields: Any) -> dict[str, Any]:
    """A row of the log, so many seconds after noon."""
    time = NOON + timedelta(seconds=seconds)
    return {**DEFAULTS, "timestamp": time, "address": address, "op": op, **fields}


def numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the offsets that `frame` gives them."""
    return [{**one, "offset": number} for number, one in enumerate(rows)]


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows as Spark has them."""
    names = table.LOG_SCHEMA.names
    tuples = [
        tuple({**one, "offset": number}[name] for name in names) for number, one in enumerate(rows)
    ]
    return spark.createDataFrame(tuples, table.LOG_SCHEMA)


def request(seconds: float, number: str, op: str = "request", **fields: Any) -> dict[str, Any]:
    return row(seconds, "time", op, correlation_id=number, dialect="kobold-3", **fields)


ROWS = [
    # Sizes 0, 3, 10, 100 on two addresses.
    row(0, "house/a"),
    row(1, "house/a", payload=b"abc"),
    row(61, "house/a", payload=b"x" * 10, dialect="tmq-1.01"),
    row(2, "<b>&\x07", payload=b"x" * 100),
    # Answered after 10 ms, after 30 ms, failed after 50 ms, never; the first number is used again.
    request(10, "1"),
    request(10.010, "1", "reply"),
    request(20, "2"),
    request(20.030, "2", "reply"),
    request(30, "3"),
    request(30.050, "3", "error", headers={"$code": "timeout"}),
    request(40, "1"),
    request(41, "4", "reply"),
    # In TMQ a publish that wants a response is a request.
    row(50, "time", correlation_id="t", dialect="tmq-1.01"),
    row(50.020, "", "reply", correlation_id="t", dialect="tmq-1.01"),
    # j1 waits 2 s, is acknowledged after 1 s; j2 waits 4 s, is delivered again, acknowledged 3 s
    # after that; j3 is never delivered and dies.
    row(100, "jobs", "enqueue", id="j1"),
    row(102, "jobs", "deliver", id="j1"),
    row(103, "jobs", "ack", id="j1"),
    row(100, "jobs", "enqueue", id="j2"),
    row(104, "jobs", "deliver", id="j2"),
    row(105, "jobs", "nack", id="j2"),
    row(106, "jobs", "deliver", id="j2"),
    row(109, "jobs", "ack", id="j2"),
    row(100, "jobs", "enqueue", id="j3"),
    row(110, "jobs", "dead", id="j3", headers={"dead.reason": "expired"}),
    row(111, "", "error", content_type=404, dialect="tmq-1.00"),
]


@pytest.fixture(scope="module")
def numbers(spark: SparkSession) -> dict[str, Any]:
    return report(frame(spark, ROWS))


def test_messages_and_bytes_are_counted_by_dialect_and_over_time(numbers: dict[str, Any]) -> None:
    assert (numbers["messages"], numbers["bytes"], numbers["without_time"]) == (25, 113, 0)
    assert (numbers["first"], numbers["last"]) == ("2026-03-01T12:00:00Z", "2026-03-01T12:01:51Z")
    assert numbers["dialects"] == [
        {"dialect": "mfp-1", "messages": 13, "bytes": 103},
        {"dialect": "kobold-3", "messages": 8, "bytes": 0},
        {"dialect": "tmq-1.01", "messages": 3, "bytes": 10},
        {"dialect": "tmq-1.00", "messages": 1, "bytes": 0},
    ]
    assert numbers["step_seconds"] == 1
    assert numbers["timeline"][:2] == [
        {"time": "2026-03-01T12:00:00Z", "dialect": "mfp-1", "messages": 1, "bytes": 0},
        {"time": "2026-03-01T12:00:01Z", "dialect": "mfp-1", "messages": 1, "bytes": 3},
    ]
    assert sum(step["messages"] for step in numbers["timeline"]) == 25


def test_the_busiest_addresses_come_first(numbers: dict[str, Any]) -> None:
    assert numbers["top_addresses"][:3] == [
        {"address": "jobs", "messages": 10, "bytes": 0},
        {"address": "time", "messages": 9, "bytes": 0},
        {"address": "house/a", "messages": 3, "bytes": 13},
    ]


def test_payload_sizes_have_percentiles_and_a_histogram(numbers: dict[str, Any]) -> None:
    sizes = numbers["payload_bytes"]
    assert (sizes["min"], sizes["mean"], sizes["max"]) == (0, 113 / 25, 100)
    assert (sizes["p50"], sizes["p95"], sizes["p99"]) == (0, 10, 100)
    assert sizes["histogram"] == [
        {"from": 0, "below": 1, "messages": 22},
        {"from": 2, "below": 4, "messages": 1},
        {"from": 8, "below": 16, "messages": 1},
        {"from": 64, "below": 128, "messages": 1},
    ]


def test_requests_are_joined_with_what_answers_them(numbers: dict[str, Any]) -> None:
    requests = numbers["requests"]
    counts = [requests[name] for name in ("requests", "answered", "failed", "unanswered")]
    assert counts == [5, 3, 1, 1]
    assert requests["latency_ms"] == {"p50": 20, "p95": 50, "p99": 50, "max": 50}
    (by_address,) = requests["by_address"]
    assert by_address["address"] == "time"


def test_queue_messages_have_waiting_and_acknowledgement_times(numbers: dict[str, Any]) -> None:
    (queue,) = numbers["queues"]
    assert queue == {
        "address": "jobs",
        "enqueued": 3,
        "delivered": 3,
        "redelivered": 1,
        "acknowledged": 2,
        "refused": 1,
        "dead": 1,
        "waiting_ms": {"p50": 2000, "p95": 4000, "p99": 4000, "max": 4000},
        "acknowledgement_ms": {"p50": 1000, "p95": 3000, "p99": 3000, "max": 3000},
    }


def test_errors_and_dead_letters_have_their_reasons(numbers: dict[str, Any]) -> None:
    assert numbers["errors"] == [
        {"reason": "404", "address": "", "messages": 1},
        {"reason": "timeout", "address": "time", "messages": 1},
    ]
    assert numbers["dead_letters"] == [{"reason": "expired", "address": "jobs", "messages": 1}]


def test_quiet_and_bursting_sources_are_named(spark: SparkSession) -> None:
    steady = [row(10 * k, "a", source="steady") for k in range(61)]
    quiet = [row(5 * k, "a", source="quiet") for k in range(5)]
    bursting = [row(60 * k, "a", source="bursting") for k in range(9)]
    bursting += [row(300 + k, "a", source="bursting") for k in range(1, 12)]
    numbers = report(frame(spark, steady + quiet + bursting))
    assert numbers["quiet_sources"] == [
        {
            "source": "quiet",
            "messages": 5,
            "last": "2026-03-01T12:00:20Z",
            "usual_seconds": 5,
            "silent_seconds": 580,
        }
    ]
    assert numbers["bursting_sources"] == [
        {
            "source": "bursting",
            "peak": 12,
            "peak_at": "2026-03-01T12:05:00Z",
            "median": 1,
            "minutes": 9,
        }
    ]


def test_rows_without_a_time_count_but_are_in_no_timeline(spark: SparkSession) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rows = [{**row(0, "a", source="s"), "timestamp": epoch}]
    numbers = report(frame(spark, rows))
    assert (numbers["messages"], numbers["without_time"], numbers["timeline"]) == (1, 1, [])
    assert "1 messages have no time" in page(numbers)


def test_the_page_is_whole_by_itself_and_shows_text_as_text(numbers: dict[str, Any]) -> None:
    shown = page(numbers)
    assert "&lt;b&gt;&amp;\\x07" in shown
    assert "<b>&" not in shown
    assert "<script" not in shown
    assert not re.findall(r"(?:https?:|//|url\(|@import|src=|href=)", shown)
    assert shown.count("<svg") >= 4
    for opened in ("div", "section", "svg", "table", "rect", "span", "title"):
        closed = shown.count(f"</{opened}>") + len(re.findall(rf"<{opened}\b[^>]*/>", shown))
        assert len(re.findall(rf"<{opened}\b", shown)) == closed, opened
    assert "nan" not in shown.lower().replace("unanswered", "")


def test_an_empty_table_gives_a_page_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path / "table", [])
    numbers = report(table.read(spark, str(tmp_path / "table")))
    assert numbers["messages"] == 0
    assert "No messages" in page(numbers)


def test_a_table_that_is_not_there_is_an_error_of_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="nowhere") as error:
        table.read(spark, str(tmp_path / "nowhere"))
    assert "\n" not in str(error.value)


def test_a_report_can_be_of_some_time_and_some_addresses(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "table")
    make(target, numbered(ROWS))
    rows = table.read(
        spark,
        target,
        since=NOON + timedelta(seconds=1),
        until=NOON + timedelta(seconds=61),
        filter="house/#",
    )
    assert [bytes(one["payload"]) for one in rows.collect()] == [b"abc"]


def test_a_filter_means_to_spark_what_it_means_to_the_broker(spark: SparkSession) -> None:
    filters = ["#", "+", "a/+", "a/#", "a", "+/b", "a.c", "$x", "$x/#", "a/+/c", "ž/(b|\\d)*", "/#"]
    addresses = ["a", "b", "a/b", "a/b/c", "abc", "a.c", "$x", "$x/y", "", "/a", "ž/(b|\\d)*", "a/"]
    rows = spark.createDataFrame([(address,) for address in addresses], "address string")
    for filter in filters:
        found = {
            one[0] for one in rows.where(rows["address"].rlike(table.pattern(filter))).collect()
        }
        assert found == {address for address in addresses if matches(filter, address)}, filter


@pytest.mark.slow
def test_the_command_line_writes_the_page_and_the_same_numbers(
    spark: SparkSession, tmp_path: Path, numbers: dict[str, Any]
) -> None:
    target, out = tmp_path / "table", tmp_path / "out.html"
    make(target, numbered(ROWS))
    arguments = ["lake", "report", "--table", str(target), "--out", str(out), "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "wirelake", *arguments],
        capture_output=True,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    written = json.loads(result.stdout)
    assert {name: written[name] for name in numbers} == numbers
    assert out.read_text(encoding="utf-8") == page(written)
