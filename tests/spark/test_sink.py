"""The sink on a real session and a real broker: what is published, once, and what is not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StringType, StructField, StructType

from tests.http.house import TOKENS, House, arrow, rows
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.spark import register, session, sink
from wirelake.spark.sink import BatchWriter, StreamWriter
from wirelake.spark.source import schema_of
from wirelake.wire.arrow import SCHEMA

COLUMNS = schema_of(["address", "payload"])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def wirelake(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def kept(house: House, **query: str) -> list[dict[str, Any]]:
    """The log, as rows."""
    return [
        row
        for one in house.get("/v1/log").json["partitions"]
        for row in house.get(f"/v1/log/{one['partition']}").table.to_pylist()
    ]


def payloads(house: House) -> list[bytes]:
    return sorted(row["payload"] for row in kept(house))


def write(found: DataFrame, house: House, **options: str) -> None:
    found.write.format("wirelake").mode("append").options(url=house.url, **options).save()


# What is published


def test_rows_are_published_with_all_they_have(wirelake: SparkSession, house: House) -> None:
    found = wirelake.createDataFrame(
        [("house/door", "open", "id-1", 1, {"who": "me"}), ("house/temp", "21", "", 0, None)],
        "address string, payload string, id string, priority int, headers map<string,string>",
    )
    write(found.withColumn("colour", found.address), house)
    door, temp = sorted(kept(house), key=lambda row: str(row["address"]))
    assert (door["address"], door["payload"], door["id"]) == ("house/door", b"open", "id-1")
    assert (door["priority"], door["headers"]) == (1, [("who", "me")])
    assert (temp["address"], temp["payload"], temp["headers"]) == ("house/temp", b"21", [])


def test_a_row_s_own_time_is_a_header(wirelake: SparkSession, house: House) -> None:
    found = wirelake.sql(
        "SELECT 'a' AS address, 'x' AS payload, map('who', 'me') AS headers, "
        "timestamp '2026-01-31 12:00:00.25 UTC' AS timestamp UNION ALL "
        "SELECT 'b', 'x', NULL, NULL UNION ALL "
        "SELECT 'c', 'x', map('timestamp', 'mine'), timestamp '2026-01-31 12:00:00 UTC'"
    )
    write(found, house)
    assert {row["address"]: row["headers"] for row in kept(house)} == {
        "a": [("who", "me"), ("timestamp", "2026-01-31T12:00:00.250000Z")],
        "b": [],
        "c": [("timestamp", "mine")],
    }


def batches(**columns: Any) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict(columns)])


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_a_time_is_told_in_utc_wherever_a_session_is(house: House, zone: str) -> None:
    writer = BatchWriter(
        {"url": house.url}, schema_of(["address", "payload", "timestamp"]), overwrite=False
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    times = pa.array([noon, None], pa.timestamp("us", zone))
    found = batches(address=["a", "b"], payload=[b"x", b"x"], timestamp=times)
    writer.finish([writer.publish(found, "p", "0")])
    assert {row["address"]: row["headers"] for row in kept(house)} == {
        "a": [("timestamp", "2026-01-31T12:00:00.000000Z")],
        "b": [],
    }


@pytest.mark.parametrize("option", ["address", "topic"])
def test_rows_without_an_address_go_to_the_default(house: House, option: str) -> None:
    given = {"url": house.url, option: "house/all"}
    alone = BatchWriter(given, schema_of(["payload"]), overwrite=False)
    alone.finish([alone.publish(batches(payload=[b"1", b"2"]), "p", "0")])
    some = BatchWriter(given, COLUMNS, overwrite=False)
    found = batches(address=pa.array([None, "house/own"]), payload=[b"3", b"4"])
    some.finish([some.publish(found, "q", "0")])
    assert sorted((row["payload"], row["address"]) for row in kept(house)) == [
        (b"1", "house/all"),
        (b"2", "house/all"),
        (b"3", "house/all"),
        (b"4", "house/own"),
    ]


def test_columns_that_no_message_has_are_named(caplog: pytest.LogCaptureFixture) -> None:
    url = {"url": "http://127.0.0.1:1"}
    with caplog.at_level(logging.WARNING, "wirelake.spark"):
        BatchWriter(url, schema_of(SCHEMA.names), overwrite=False)
        assert caplog.messages == []
        unknown = StructType([*COLUMNS.fields, StructField("colour", StringType())])
        BatchWriter(url, unknown, overwrite=False)
    assert len(caplog.messages) == 1
    assert "left out: colour; it has address, payload, id" in caplog.messages[0]
    kafka = StructType([StructField("topic", StringType()), StructField("value", StringType())])
    with pytest.raises(ConfigError, match="no column address, and nobody knows topic, value"):
        BatchWriter(url, kafka, overwrite=False)
    with pytest.raises(ConfigError, match="no column payload"):
        BatchWriter(url | {"address": "a"}, kafka, overwrite=False)
    with pytest.raises(ConfigError, match="address"):
        BatchWriter(url | {"address": "a/#"}, COLUMNS, overwrite=False)


def test_rows_of_the_log_can_be_published_as_they_are(wirelake: SparkSession, house: House) -> None:
    house.post("/v1/publish", arrow(rows(("a", b"1"), ("b", b"2"))))
    log = wirelake.read.format("wirelake").options(url=house.url, includeHeaders="true").load()
    write(log, house)
    assert payloads(house) == [b"1", b"1", b"2", b"2"]


def test_a_batch_that_says_which_one_it_is_is_published_once(
    wirelake: SparkSession, house: House
) -> None:
    found = wirelake.range(100).selectExpr("'a' as address", "cast(id as string) as payload")
    for sequence in ("1", "1", "2", "1"):
        write(found, house, producer="job", sequence=sequence)
    assert payloads(house) == sorted(2 * [b"%d" % k for k in range(100)])


def test_a_batch_that_spark_runs_again_after_a_crash_is_not_published_twice(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    house.post("/v1/publish", arrow(rows(*((f"in/{k % 9}", b"%d" % k) for k in range(90)))))
    healed = tmp_path / "healed"

    def fail_once(address: str) -> str:
        if address == "in/3" and not healed.exists():
            raise RuntimeError("a task is lost")
        return f"out/{address}"

    source = wirelake.readStream.format("wirelake").options(
        url=house.url, subscribe="in/#", startingOffsets="earliest", columns="address,payload"
    )
    out = source.load().withColumn("address", F.udf(fail_once, "string", useArrow=False)("address"))

    def run() -> None:
        writer = out.writeStream.format("wirelake").option("url", house.url)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="a task is lost"):
        run()
    healed.touch()
    run()
    out_rows = [row for row in kept(house) if str(row["address"]).startswith("out/")]
    assert sorted(int(row["payload"]) for row in out_rows) == list(range(90))


# Chunks


def chunked(house: House, monkeypatch: pytest.MonkeyPatch, **options: str) -> StreamWriter:
    monkeypatch.setattr(sink, "CHUNK", 10_000)
    return StreamWriter({"url": house.url, **options}, COLUMNS)


def batch(*messages: tuple[str | None, bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "address": pa.array([address for address, _ in messages], pa.string()),
            "payload": pa.array([payload for _, payload in messages], pa.binary()),
        }
    )


def test_a_task_that_died_between_two_chunks_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = chunked(house, monkeypatch)
    batches = [batch(*(("a", b"%04d" % (k + n) * 50) for k in range(100))) for n in (0, 100, 200)]

    def dying() -> Iterator[pa.RecordBatch]:
        yield from batches[:2]
        raise EngineError("the executor is lost")

    with pytest.raises(EngineError, match="the executor is lost"):
        writer.publish(dying(), "query-0", "7")
    before = len(payloads(house))
    assert 0 < before < 200
    done = writer.publish(iter(batches), "query-0", "7")
    assert (done.rows, done.again) == (300, before)
    writer.finish([done])
    writer.finish([done])  # as a driver does that dies before it could say so
    assert payloads(house) == [b"%04d" % k * 50 for k in range(300)]


def test_a_task_that_is_fed_no_more_publishes_nothing_that_it_cannot_take_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what feeds a task fails, the task sees an end like any other."""
    writer = chunked(house, monkeypatch)
    batches = [batch(*(("a", b"%04d" % (k + n) * 10) for k in range(100))) for n in (0, 100, 200)]
    for end in (1, 2):
        writer.publish(iter(batches[:end]), "query-0", "7")  # and Spark throws away what it returns
    writer.finish([writer.publish(iter(batches), "query-0", "7")])
    assert payloads(house) == [b"%04d" % k * 10 for k in range(300)]


def test_one_large_message_is_a_chunk_of_its_own(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = chunked(house, monkeypatch)
    sizes = (10, 50_000, 20, 9_000)
    done = writer.publish(iter([batch(*(("a", b"x" * size) for size in sizes))]), "q-0", "0")
    writer.finish([done, None])
    assert done.rows == 4
    assert [len(row["payload"]) for row in kept(house)] == list(sizes)


def test_a_task_with_more_than_the_broker_remembers_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MOST_CHUNKS", 2)
    writer = chunked(house, monkeypatch)
    with pytest.raises(EngineError, match="repartition"):
        writer.publish(iter([batch(*(("a", b"x" * 9000) for _ in range(5)))]), "q-0", "0")


# What cannot be published


@pytest.mark.parametrize("address", ["a/+", "$events", "", None, "x" * 256, "a\x07"])
def test_a_bad_address_fails_the_batch_or_is_skipped_and_counted(
    house: House, address: str | None, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    some = batch(("good", b"1"), (address, b"2"), ("good", b"3"))
    with pytest.raises(RefusedError, match="1 rows cannot be published"):
        chunked(house, monkeypatch).publish(iter([some]), "q-0", "0")
    assert payloads(house) == []
    with caplog.at_level(logging.WARNING, "wirelake.spark"):
        writer = chunked(house, monkeypatch, onError="skip")
        done = writer.publish(iter([some]), "q-0", "0")
        writer.finish([done])
    assert (done.rows, done.skipped) == (2, 1)
    assert payloads(house) == [b"1", b"3"]
    assert "1 rows could not be published" in caplog.text


def test_numbers_and_ids_out_of_bounds_are_bad_rows(house: House) -> None:
    writer = BatchWriter(
        {"url": house.url, "onError": "skip"},
        schema_of(["address", "payload", "id", "priority", "ttl"]),
        overwrite=False,
    )
    some = pa.RecordBatch.from_pydict(
        {
            "address": ["a"] * 5,
            "payload": [b"0", b"1", b"2", b"3", b"4"],
            "id": ["", "x" * 256, "ok", "", None],
            "priority": pa.array([0, 0, 2, 1, None], pa.int32()),
            "ttl": pa.array([0, 0, 0, -1, 5], pa.int64()),
        }
    )
    done = writer.publish(iter([some]), "q-0", "0")
    writer.finish([done])
    assert (done.rows, done.skipped) == (2, 3)
    assert payloads(house) == [b"0", b"4"]


def test_a_bad_row_is_told_in_one_line_and_a_missing_right_too(
    wirelake: SparkSession, tmp_path: Path
) -> None:
    with House(tmp_path, tokens=TOKENS) as guarded:
        for address, text in (("a/#", "'a/#'"), ("garden", "no right")):
            found = wirelake.createDataFrame([(address, b"1")], COLUMNS)
            with pytest.raises(Exception, match="wirelake") as caught:
                write(found, guarded, token="sender")
            assert text in session.reason(caught.value)
        write(wirelake.createDataFrame([("house/a", b"1")], COLUMNS), guarded, token="sender")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"onErorr": "skip"}, "no such option"),
        ({"onError": "ignore"}, "neither fail nor skip"),
        ({"producer": "me"}, "sequence"),
        ({"producer": "a/#", "sequence": "1"}, "wildcards"),
        ({"path": "somewhere"}, "each row has its address"),
    ],
)
def test_a_wrong_option_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        BatchWriter({"url": "http://127.0.0.1:1", **options}, COLUMNS, overwrite=False)


def test_what_is_published_cannot_be_overwritten() -> None:
    with pytest.raises(ConfigError, match="append"):
        BatchWriter({"url": "http://127.0.0.1:1"}, COLUMNS, overwrite=True)


def test_rows_that_are_no_messages_are_refused_by_their_columns() -> None:
    with pytest.raises(ConfigError, match="no column payload"):
        StreamWriter({"url": "http://127.0.0.1:1"}, schema_of(["address"]))
    with pytest.raises(ConfigError, match="sequence"):
        StreamWriter({"url": "http://127.0.0.1:1", "sequence": "1"}, COLUMNS)
