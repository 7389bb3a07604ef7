"""Replaying a table, and asking questions of it: what comes out is what went in."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from typer.testing import CliRunner

import wirelake
from tests.cli.command import stdin
from tests.http.house import House, arrow, rows
from tests.spark.tables import make
from wirelake import testing
from wirelake.cli import app
from wirelake.errors import ConfigError, RefusedError
from wirelake.message import Message
from wirelake.spark import sql
from wirelake.spark import table as tables
from wirelake.spark.replay import Options, Step, replay

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)
DIALECTS = [
    "kobold-1",
    "kobold-2",
    "kobold-3",
    "boson-text",
    "boson-binary",
    "tmq-1.00",
    "tmq",
    "mfp",
]


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def lake(
    spark: SparkSession, place: Path, *messages: tuple[float, str, bytes], **columns: Any
) -> str:
    """A table of messages: seconds since the beginning, address, payload."""
    defaults = {
        "partition": 0, "op": "publish", "dialect": "kobold-2", "id": "same", "correlation_id": "",
        "source": "", "target": "", "content_type": 0, "priority": 0, "ttl": 0,
        "headers": {"who": "me", "$rev": "1"},
    }  # fmt: skip
    values = [
        defaults
        | {
            "offset": number,
            "timestamp": BEGIN + timedelta(seconds=seconds),
            "address": address,
            "payload": payload,
        }
        | columns
        for number, (seconds, address, payload) in enumerate(messages)
    ]
    make(place, values, files=3)
    return str(place)


def received(
    broker: testing.Broker, spark: SparkSession, options: Options, *filters: str
) -> tuple[list[Message], Step]:
    """What a subscriber gets of a replay."""
    with (
        wirelake.connect_sync(broker.url("kobold-3")) as client,
        client.subscribe(filters[0] if filters else "#") as messages,
    ):
        done = replay(spark, options)
        return [messages.receive(60) for _ in range(done.sent)], done


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_replay_publishes_in_the_old_order_in_any_dialect(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path, dialect: str
) -> None:
    messages = [(k / 1000, f"house/{k % 5}", b"%d" % k) for k in range(300)]
    place = lake(spark, tmp_path / "lake", *reversed(messages))
    options = Options(place, broker.url(dialect), speed=0)
    found, done = received(broker, spark, options, "house/#")
    assert [(m.address, m.payload) for m in found] == [(a, p) for _, a, p in messages]
    assert (done.sent, done.skipped, done.total) == (300, 0, 300)


def test_a_replay_takes_headers_and_leaves_ids_and_what_is_the_brokers_own(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path
) -> None:
    place = lake(spark, tmp_path / "lake", (0, "a", b"1"), (1, "a", b"2"), ttl=9, priority=1)
    found, _ = received(broker, spark, Options(place, broker.url("kobold-2"), speed=0))
    assert [(m.headers, m.priority, m.ttl) for m in found] == [({"who": "me"}, 1, 9)] * 2
    assert all(m.id != "same" for m in found)


def test_only_what_was_published_is_replayed_and_only_what_is_asked_for(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path
) -> None:
    place = lake(spark, tmp_path / "lake", *((k, f"a/{k % 2}", b"%d" % k) for k in range(20)))
    lake(spark, tmp_path / "lake", (5, "a/0", b"asked"), op="request")
    since, until = (BEGIN + timedelta(seconds=s) for s in (5, 15))
    options = Options(
        place, broker.url("kobold-2"), filter="a/0", since=since, until=until, speed=0
    )
    found, _ = received(broker, spark, options)
    assert [m.payload for m in found] == [b"6", b"8", b"10", b"12", b"14"]


def test_what_a_dialect_cannot_say_is_skipped_and_counted(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path
) -> None:
    messages = [(k, "long", b"x" * (5000 if k == 7 else 10 + k)) for k in range(20)]
    place = lake(spark, tmp_path / "lake", *messages)
    found, done = received(broker, spark, Options(place, broker.url("mfp"), speed=0))
    assert (done.sent, done.skipped) == (19, 1)
    assert [len(m.payload) for m in found] == [10 + k for k in range(20) if k != 7]


def test_a_replay_takes_as_long_as_it_took_divided_by_the_speed(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path
) -> None:
    place = lake(spark, tmp_path / "lake", *((k / 2, "a", b"%d" % k) for k in range(9)))
    steps: list[tuple[float, int]] = []
    replay(
        spark,
        Options(place, broker.url("kobold-2"), speed=4),
        lambda step: steps.append((time.monotonic(), step.time)),
    )
    begin, first = steps[0]
    for moment, stamp in steps:  # nothing comes before its time
        assert moment - begin >= (stamp - first) / 1e6 / 4 - 0.05
    assert steps[-1][1] - first == 4_000_000


def test_a_replay_that_is_cut_off_says_how_far_it_came(
    spark: SparkSession, broker: testing.Broker, tmp_path: Path
) -> None:
    place = lake(spark, tmp_path / "lake", *((k / 10, "a", b"%d" % k) for k in range(50)))
    with testing.Proxy(broker.url("kobold-2")) as proxy:
        proxy.to_broker.reset(after=300)
        with pytest.raises(RefusedError, match="of 50 messages were sent"):
            replay(spark, Options(place, proxy.url))


# SQL


def test_a_statement_sees_the_table_and_the_log(spark: SparkSession, tmp_path: Path) -> None:
    place = lake(spark, tmp_path / "lake", (0, "a", b"1"), (1, "b", b"2"))
    with House(tmp_path / "data") as house:
        house.post("/v1/publish", arrow(rows(("b", b"3"), ("c", b"4"))))
        statement = "SELECT address, lake.payload, log.payload FROM lake JOIN log USING (address)"
        (row,) = sql.query(spark, statement, lake=place, url=house.url).collect()
    assert (row[0], bytes(row[1]), bytes(row[2])) == ("b", b"2", b"3")


def test_a_statement_needs_something_to_ask(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="--url"):
        sql.query(spark, "SELECT 1")


def test_values_are_shown_to_people_and_programs() -> None:
    stamp = BEGIN.astimezone().replace(tzinfo=None)  # as Spark gives it
    values = [None, b"caf\xc3\xa9", b"\xff", stamp, {"a": b"b"}, 1.5]
    assert [sql.for_people(one) for one in values] == [
        "", "café", "\\xff", "2026-01-31T12:00:00Z", "a=b", "1.5",
    ]  # fmt: skip
    assert [sql.for_programs(one) for one in values] == [
        None, "Y2Fmw6k=", "/w==", "2026-01-31T12:00:00+00:00", {"a": "Yg=="}, 1.5,
    ]  # fmt: skip
    typed = Row(at=Row(x=1.5, tags=["a", b"b"]), big=Decimal("7.50"))
    assert sql.for_people(typed) == "at=x=1.5, tags=[a, b], big=7.50"
    assert sql.for_programs(typed) == {"at": {"x": 1.5, "tags": ["a", "Yg=="]}, "big": "7.50"}


# The command line


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["land", "--url", "http://h:1", "--table", "t", "--once", "--every", "1s"], "exclude"),
        (["land", "--url", "http://h:1", "--table", "t", "--every", "soon"], "--every"),
        (["replay", "--table", "t", "--to", "kobold-2://h", "--filter", "a/#/b"], "--filter"),
        (["replay", "--table", "t", "--to", "kobold-2://h", "--from", "noon"], "--from"),
        (["sql", "SELECT 1", "--json", "--csv"], "exclude"),
        (["sql", "SELECT 1", "--version", "1", "--as-of", "2026-01-31"], "exclude"),
        (["sql", "SELECT 1", "--table", "t", "--as-of", "noon"], "--as-of"),
        (["compact", "--table", "t", "--sort", "address", "--z-order"], "exclude"),
        (["vacuum", "--table", "t", "--keep", "10m"], "an hour is the least"),
        (["vacuum", "--table", "t", "--keep", "2w"], "is no time"),
        (["land", "--url", "http://h:1", "--table", "t", "--schema", "a=n whole"], "no type"),
        (["decode", __file__, "--table", "t", "--schema", "a"], "FILTER=FILE or FILTER=DDL"),
        (["vacuum", "--table", "no-such-table"], "there is no table"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_before_spark_is_started(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["lake", *arguments])
    assert result.exit_code == (1 if "no-such-table" in arguments else 2)
    assert text in result.output


@pytest.fixture
def same_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session of the tests, and leave it running."""
    monkeypatch.setattr("wirelake.spark.session.start", lambda *args: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)


@pytest.mark.usefixtures("same_spark")
def test_routes_and_schemas_on_the_command_line(spark: SparkSession, tmp_path: Path) -> None:
    run = CliRunner().invoke
    place = tmp_path / "lake"
    with House(tmp_path / "data") as house:
        messages = (("house/temp", b'{"celsius": 21.5}'), ("house/temp", b"?"), ("shop/a", b"1"))
        house.post("/v1/publish", arrow(rows(*messages, ("other", b"2"))))
        arguments = ["lake", "land", "--url", house.url, "--table", str(place), "--once"]
        arguments += ["--route", "house/#=house", "--route", "shop/+=shop"]
        landed = run(app, [*arguments, "--schema", "house/temp=celsius double"])
    assert landed.exit_code == 0, landed.output
    (one,) = tables.read(spark, str(place / "house")).collect()
    assert (one.address, one.celsius) == ("house/temp", 21.5)
    (two,) = tables.read(spark, str(place / "shop")).collect()
    assert (two.address, "celsius" in two) == ("shop/a", False)
    (bad,) = tables.read_errors(spark, f"{place}_errors").collect()
    assert bytes(bad.payload) == b"?"


@pytest.mark.usefixtures("same_spark")
def test_the_commands_land_ask_and_replay(tmp_path: Path, broker: testing.Broker) -> None:
    run = CliRunner().invoke
    place = str(tmp_path / "lake")
    with House(tmp_path / "data") as house:
        house.post("/v1/publish", arrow(rows(("a", b"1"), ("b", b"2"), ("b", b"\xff"))))
        landed = run(app, ["lake", "land", "--url", house.url, "--table", place, "--once"])
        assert landed.exit_code == 0, landed.output
        assert landed.output.splitlines() == ["3 rows landed, 0 to go", f"3 rows in {place}"]
    statement = "SELECT address, count(*) AS count FROM lake GROUP BY 1 ORDER BY 1"
    asked = ["lake", "sql", statement, "--table", place]
    assert run(app, asked).output.split() == ["address", "count", "a", "1", "b", "2"]
    assert run(app, [*asked, "--csv"]).output.splitlines() == ["address,count", "a,1", "b,2"]
    with stdin(b"SELECT payload FROM lake ORDER BY payload"):
        lines = run(app, ["lake", "sql", "-", "--table", place, "--json"]).output.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"payload": "1", "base64": "MQ=="},
        {"payload": "2", "base64": "Mg=="},
        {"payload": None, "base64": "/w=="},
    ]
    found = [json.loads(line) for line in run(app, [*asked, "--json"]).output.splitlines()]
    assert found == [{"address": "a", "count": 1}, {"address": "b", "count": 2}]
    before = run(app, [*asked, "--version", "0", "--csv"])
    assert before.output.splitlines() == ["address,count"]
    # A version is as old as its file in Delta's log.
    made = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    os.utime(Path(place, "_delta_log", f"{0:020}.json"), (made, made))
    before = run(app, [*asked, "--as-of", "2026-01-02T03:04", "--csv"])
    assert before.output.splitlines() == ["address,count"]
    later = datetime.now(UTC) + timedelta(hours=1)
    now = run(app, [*asked, "--as-of", f"{later:%Y-%m-%dT%H:%M}", "--csv"])
    assert now.output.splitlines() == ["address,count", "a,1", "b,2"]
    gone = run(app, [*asked, "--version", "99"])
    assert (gone.exit_code, "has no version 99" in gone.output) == (1, True)
    wrong = run(app, ["lake", "sql", "SELECT colour FROM lake", "--table", place])
    assert wrong.exit_code == 1
    assert "colour" in wrong.output
    with wirelake.connect_sync(broker.url("tmq")) as client, client.subscribe("b") as messages:
        to = ["--to", broker.url("kobold-2"), "--speed", "max"]
        played = run(app, ["lake", "replay", "--table", place, *to])
        assert "3 messages published" in played.output
        assert [messages.receive(60).payload for _ in range(2)] == [b"2", b"\xff"]
