"""The source on a real session and a real broker: batches, streams, and what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.query import StreamingQuery

from tests.http.house import TOKENS, House, arrow, rows
from wirelake import testing
from wirelake.config import CaptureSettings
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.spark import behind_latest, log_client, register, session
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Range
from wirelake.spark.options import Options
from wirelake.spark.pushdown import Wanted
from wirelake.spark.source import BATCH_BYTES, LogReader, for_spark, schema_of

ADDRESSES = [f"house/{room}/{what}" for room in "abc" for what in ("door", "temp")]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=2)) as opened:
        yield opened


@pytest.fixture
def wirelake(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def publish(house: House, count: int, first: int = 0) -> None:
    """Messages that are told apart by their numbers."""
    messages = [(ADDRESSES[k % len(ADDRESSES)], b"%d" % k) for k in range(first, first + count)]
    answer = house.post("/v1/publish", arrow(rows(*messages)))
    assert answer.status == 202, answer.body


def log(spark: SparkSession, house: House, **options: Any) -> DataFrame:
    return spark.read.format("wirelake").options(url=house.url, **options).load()


def numbers(found: DataFrame) -> list[int]:
    return sorted(int(row.payload) for row in found.select("payload").collect())


# Batches


def test_a_batch_is_the_log_row_by_row(wirelake: SparkSession, house: House) -> None:
    publish(house, 1000)
    found = log(wirelake, house, includeHeaders="true").toArrow()
    stored = pa.concat_tables(
        house.get(f"/v1/log/{partition}").table for partition in range(2)
    ).cast(found.schema)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert found.sort_by(order).equals(stored.sort_by(order))
    assert found.num_rows == 1000


def test_a_batch_has_the_columns_and_addresses_that_are_asked_for(
    wirelake: SparkSession, house: House
) -> None:
    publish(house, 60)
    found = log(wirelake, house, subscribe="house/+/door, house/b/temp", columns="payload,address")
    assert found.columns == ["payload", "address"]
    assert numbers(found) == [k for k in range(60) if k % 2 == 0 or k % 6 == 3]
    own = wirelake.read.format("wirelake").schema("offset long, op string").option("url", house.url)
    assert {row.op for row in own.load().collect()} == {"publish"}


def test_a_batch_reads_between_offsets_and_from_a_time_on(
    wirelake: SparkSession, house: House
) -> None:
    publish(house, 100)
    position = house.get("/v1/log").json["partitions"]
    ends = {str(one["partition"]): one["next"] for one in position}
    half = json.dumps({p: end // 2 for p, end in ends.items()})
    first = log(wirelake, house, endingOffsets=half)
    second = log(wirelake, house, startingOffsets=half)
    assert numbers(first.union(second)) == list(range(100))
    publish(house, 10, first=100)
    stamps = [row.timestamp for row in log(wirelake, house).where("payload = '100'").collect()]
    later = stamps[0].astimezone(UTC).isoformat()
    assert numbers(log(wirelake, house, startingTimestamp=later)) == list(range(100, 110))


def test_filters_leave_to_spark_only_what_the_broker_cannot_do(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 600)
    everything = log(wirelake, house)
    assert numbers(everything.where("address = 'house/a/door'")) == list(range(0, 600, 6))
    assert numbers(everything.where("address like 'house/a/%'")) == [
        k for k in range(600) if k % 6 < 2
    ]
    assert everything.where("address in ('house/a/door', 'nowhere')").count() == 100
    assert everything.where("address = 'house/#'").count() == 0
    assert everything.where("partition = 1 and offset >= 10 and offset < 15").count() == 5
    assert everything.where("offset < 0 or partition > 5").count() == 0
    stamp = everything.selectExpr("max(timestamp)").collect()[0][0]
    text = stamp.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    at = everything.where(f"timestamp = timestamp '{text}'").count()
    assert at == everything.where(f"timestamp >= timestamp '{text}'").count() > 0
    assert everything.where(f"timestamp > timestamp '{text}'").count() == 0
    assert everything.where(f"timestamp < timestamp '{text}'").count() == 600 - at


def test_what_is_pushed_down_never_leaves_the_broker(house: House) -> None:
    publish(house, 600)

    def asked(*filters: Filter, **options: str) -> tuple[int, list[Filter]]:
        given = {"url": house.url, "columns": "address,payload", "pushdown": "true"}
        parsed = Options.parse(given | options)
        reader = LogReader(parsed, schema_of(parsed.columns))
        left = list(reader.pushFilters(list(filters)))
        pieces = reader.partitions()
        return sum(len(batch) for piece in pieces for batch in reader.read(piece)), left

    address, offset = ("address",), ("offset",)
    assert asked() == (600, [])
    assert asked(EqualTo(address, "house/b/temp")) == (100, [])
    assert asked(EqualTo(address, "house/b/temp"), subscribe="house/+/door") == (0, [])
    assert asked(In(address, ("house/a/door", "house/b/door"))) == (200, [])
    assert asked(EqualTo(("partition",), 0), LessThanOrEqual(offset, 9)) == (10, [])
    some = [StringStartsWith(address, "house/a/d"), IsNotNull(address)]
    assert asked(*some) == (200, some)
    assert asked(GreaterThan(("timestamp",), datetime(2100, 1, 1, tzinfo=UTC))) == (0, [])


def test_a_name_with_a_wildcard_is_not_taken_for_a_filter() -> None:
    wanted = Wanted()
    assert not wanted.take(EqualTo(("address",), "house/#"), ())
    assert not wanted.take(In(("address",), tuple(f"a/{k}" for k in range(1000))), ())
    assert wanted.filters(()) == ()


@pytest.mark.parametrize("address", ["", "a#b", "x" * 256, "a\nb"])
def test_what_can_be_no_address_finds_nothing_and_is_no_error(house: House, address: str) -> None:
    publish(house, 6)
    parsed = Options.parse({"url": house.url, "pushdown": "true"})
    for one in (
        EqualTo(("address",), address),
        In(("address",), ("house/a/door", address)),
        StringStartsWith(("address",), f"{address}/x"),
    ):
        reader = LogReader(parsed, schema_of(parsed.columns))
        assert list(reader.pushFilters([one])) == [one]  # so Spark compares it
        assert sum(len(batch) for p in reader.partitions() for batch in reader.read(p)) == 6


def test_a_log_without_rows_is_an_empty_table(wirelake: SparkSession, house: House) -> None:
    assert log(wirelake, house).count() == 0


ONE_COLUMN = pa.schema([("address", pa.string())])


def stored(*batches: list[bytes]) -> pa.Table:
    """Addresses as the log has them, a dictionary for each batch."""
    return pa.Table.from_batches(
        [
            pa.RecordBatch.from_arrays(
                [pa.array(one, pa.binary()).view(pa.string()).dictionary_encode()], ["address"]
            )
            for one in batches
        ]
    )


def test_small_batches_go_to_spark_together() -> None:
    (joined,) = for_spark([stored([b"a", b"b"], [b"c"], [b"a"])], ONE_COLUMN)
    assert joined.schema == ONE_COLUMN
    assert joined.column(0).to_pylist() == ["a", "b", "c", "a"]
    assert list(for_spark([], ONE_COLUMN)) == []


def test_large_batches_go_to_spark_in_pieces() -> None:
    names = [b"%060d" % k for k in range(400_000)]
    pieces = list(for_spark([stored(names)], ONE_COLUMN))
    assert len(pieces) > 5
    assert max(piece.nbytes for piece in pieces) <= BATCH_BYTES
    assert b"".join(name.encode() for piece in pieces for name in piece[0].to_pylist()) == (
        b"".join(names)
    )


@pytest.mark.parametrize(
    "batches",
    [
        [[b"a"] * 3, [b"a"] * 2],  # one value everywhere
        [[b"a"] * 3, [b"b"] * 2],
        [[b"a"], [b"b", b"a"]],
        [[b"\xff"] * 3],
        [[b""] * 3],
    ],
)
def test_columns_with_few_values_are_the_same_without_dictionaries(
    batches: list[list[bytes]],
) -> None:
    (found,) = for_spark([stored(*batches)], ONE_COLUMN)
    assert found[0].view(pa.binary()).to_pylist() == [*chain(*batches)]


# What goes wrong


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "a/#/b"}, "subscribe"),
        ({"colums": "address"}, "no such option"),
        ({"startingOffsets": "latest"}, "no rows"),
        ({"startingOffsets": '{"7": 0}'}, "partition 7 is not read"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(
    wirelake: SparkSession, house: House, options: dict[str, str], text: str
) -> None:
    with pytest.raises(Exception, match="wirelake") as caught:
        log(wirelake, house, **options).count()
    assert text in session.reason(caught.value)


def test_a_schema_that_the_log_does_not_have_is_refused(
    wirelake: SparkSession, house: House
) -> None:
    reader = wirelake.read.format("wirelake").schema("payload string").option("url", house.url)
    with pytest.raises(Exception, match="the log has no column payload string"):
        reader.load().count()


def test_a_reader_without_the_right_is_told_so(tmp_path: Path) -> None:
    with House(tmp_path, tokens=TOKENS) as guarded:
        client = LogClient(guarded.url, "reader", patience=0)
        assert client.log().extents
        with pytest.raises(RefusedError, match="no right to subscribe"):
            list(client.read(Range(0, 0, 1), ["garden/#"]))
        with pytest.raises(RefusedError, match="unauthorized"):
            LogClient(guarded.url, patience=0).log()


def test_a_broker_that_cannot_be_reached_is_told_after_a_while() -> None:
    with testing.Broker() as broker:
        url = broker.url("kobold").replace("kobold", "http")
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        LogClient(url, patience=0.2).log()
    assert caught.value.retriable


def test_what_is_no_broker_is_told() -> None:
    with testing.Broker() as broker:
        url = broker.url("boson").replace("boson", "http")
        with pytest.raises(EngineError, match="cannot be reached"):
            LogClient(url, patience=0).log()


def test_a_read_that_breaks_off_goes_on_behind_the_last_row(house: House) -> None:
    for first in range(0, 20_000, 2000):
        publish(house, 2000, first)
    extents = LogClient(house.url).log().extents
    way = house.url.replace("http", "kobold")
    with testing.Proxy(way) as proxy:
        client = LogClient(proxy.url.replace("kobold", "http"), patience=10)
        found: list[int] = []
        for partition, extent in extents.items():
            proxy.to_client.reset(after=300_000)
            known = proxy.accepted + 1
            for table in client.read(Range(partition, 0, extent.next)):
                found += map(int, table.column("payload").to_pylist())
                if proxy.accepted > known:
                    known = proxy.accepted
                    proxy.to_client.reset(after=300_000)
        assert proxy.accepted >= 2 * len(extents)
    assert sorted(found) == list(range(20_000))


def test_a_read_takes_one_request_however_much_it_reads(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 20_000, 2000):
        publish(house, 2000, first)
    # Batches end anywhere in blocks, and some are larger than one.
    monkeypatch.setattr(log_client, "BLOCK", 10_000)
    extents = LogClient(house.url).log().extents
    with testing.Proxy(house.url.replace("http", "kobold")) as proxy:
        client = LogClient(proxy.url.replace("kobold", "http"), patience=0)
        found = [
            int(payload)
            for partition, extent in extents.items()
            for table in client.read(Range(partition, 0, extent.next))
            for payload in table.column("payload").to_pylist()
        ]
        assert proxy.accepted == len(extents)
    assert sorted(found) == list(range(20_000))


def test_an_answer_that_somebody_in_between_made_one_piece_of_is_read_as_well(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(house, 2000)
    extents = LogClient(house.url).log().extents
    monkeypatch.setattr(log_client, "BLOCK", 10_000)
    missing = 0  # bytes at the end

    class Between(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got = house.get(self.path)
            self.send_response(got.status)
            self.send_header("Content-Length", str(len(got.body)))
            self.end_headers()
            self.wfile.write(got.body[: len(got.body) - missing])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            client = LogClient(f"http://127.0.0.1:{server.server_port}", patience=0)
            found = [
                int(payload)
                for partition, extent in extents.items()
                for table in client.read(Range(partition, 0, extent.next))
                for payload in table.column("payload").to_pylist()
            ]
            assert sorted(found) == list(range(2000))
            missing = 8  # which say that this is the end
            with pytest.raises(EngineError, match="cannot be reached"):
                list(client.read(Range(0, 0, extents[0].next)))
        finally:
            server.shutdown()


def test_rows_that_came_before_a_connection_broke_are_not_asked_for_again(house: House) -> None:
    for first in range(0, 20_000, 2000):
        publish(house, 2000, first)
    extent = LogClient(house.url).log().extents[0]
    with testing.Proxy(house.url.replace("http", "kobold")) as proxy:
        client = LogClient(proxy.url.replace("kobold", "http"), patience=10)
        proxy.to_client.reset(after=200_000)
        first = next(client.read(Range(0, 0, extent.next)))
    assert 0 < first.num_rows < extent.next


def test_rows_that_were_deleted_before_they_were_read_are_told_or_passed_over(
    house: House,
) -> None:
    publish(house, 100)
    end = LogClient(house.url).log().extents[0].next
    client = LogClient(house.url, patience=0)
    beyond = Range(0, 0, end + 10)
    with pytest.raises(EngineError, match="was the broker's data replaced"):
        list(client.read(beyond))
    assert list(client.read(beyond, fail_on_data_loss=False)) == []
    there = Range(0, 0, end)
    assert sum(table.num_rows for table in client.read(there, log=client.log().id)) == end
    with pytest.raises(EngineError, match="the log ffff was read so far"):
        list(client.read(there, log="ffff"))
    assert list(client.read(there, log="ffff", fail_on_data_loss=False)) == []


# Streams


class Batches:
    """What a stream has given, batch by batch."""

    def __init__(self) -> None:
        self.found: list[list[int]] = []
        self._changed = threading.Condition()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        found = numbers(rows)
        with self._changed:
            self.found.append(found)
            self._changed.notify_all()

    @property
    def all(self) -> list[int]:
        return sorted(number for batch in self.found for number in batch)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, 120)


def stream(
    spark: SparkSession, house: House, folder: Path, batches: Batches, **options: Any
) -> StreamingQuery:
    source = spark.readStream.format("wirelake").options(url=house.url, **options).load()
    writer = source.writeStream.foreachBatch(batches)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def test_a_stream_reads_all_there_is_in_batches_and_later_goes_on(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    batches = Batches()
    options = {"startingOffsets": "earliest", "maxRowsPerTrigger": 40, "query": "test"}
    publish(house, 100)
    query = stream(wirelake, house, tmp_path, batches, **options)
    query.awaitTermination()
    assert list(map(len, batches.found)) == [40, 40, 20]
    publish(house, 30, first=100)
    query = stream(wirelake, house, tmp_path, batches, **options)
    query.awaitTermination()
    assert batches.all == list(range(130))
    last = query.recentProgress[-1]["sources"][0]
    assert last["latestOffset"] == last["endOffset"]
    (progress,) = house.get("/v1/progress").json["queries"]
    assert (progress["query"], progress["lag"]) == ("test", 0)


def test_a_stream_begins_at_the_end_and_takes_new_addresses_up(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 50)
    batches = Batches()
    source = wirelake.readStream.format("wirelake").options(url=house.url, subscribe="house/#")
    writer = source.load().writeStream.foreachBatch(batches)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()  # it has begun
        publish(house, 10, first=50)
        house.post("/v1/publish", arrow(rows(("house/new", b"60"), ("garden", b"61"))))
        batches.wait_for(11)
    finally:
        query.stop()
    assert batches.all == list(range(50, 61))


def test_a_stream_outlives_a_broker_that_restarts(wirelake: SparkSession, tmp_path: Path) -> None:
    batches = Batches()
    with House(tmp_path / "data") as first:
        publish(first, 100)
        port = first.port
        source = wirelake.readStream.format("wirelake")
        source = source.options(url=first.url, startingOffsets="earliest")
        writer = source.load().writeStream.foreachBatch(batches)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        batches.wait_for(100)
    try:
        with House(tmp_path / "data", http=f"127.0.0.1:{port}") as second:
            publish(second, 100, first=100)
            batches.wait_for(200)
    finally:
        query.stop()
    assert batches.all == list(range(200))


@pytest.mark.parametrize("count", [8, 300])  # less than what was read, and more
def test_a_stream_whose_broker_was_replaced_fails_or_begins_anew(
    wirelake: SparkSession, tmp_path: Path, count: int
) -> None:
    batches = Batches()
    with House(tmp_path / "one") as first:
        publish(first, 100)
        port = first.port
        stream(wirelake, first, tmp_path, batches, startingOffsets="earliest").awaitTermination()
    with House(tmp_path / "two", http=f"127.0.0.1:{port}") as second:
        publish(second, count, first=1000)
        with pytest.raises(Exception, match="replaced"):
            stream(wirelake, second, tmp_path, batches).awaitTermination()
        stream(wirelake, second, tmp_path, batches, failOnDataLoss="false").awaitTermination()
    assert batches.all == [*range(100), *range(1000, 1000 + count)]


def test_what_a_stream_cannot_do_is_told(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="a stream has no end"):
        stream(wirelake, house, tmp_path, Batches(), endingOffsets="latest").awaitTermination()


def test_a_query_s_progress_tells_its_lag(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 100)
    batches = Batches()
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    query = stream(wirelake, house, tmp_path, batches, **options)
    query.awaitTermination()
    assert [len(batch) for batch in batches.found] == [40, 40, 20]
    lags = [behind_latest(progress)[0] for progress in query.recentProgress]
    most = [int(lag["maxOffsetsBehindLatest"]) for lag in lags]
    assert most[0] >= most[1] > most[-1] == 0
    assert float(lags[0]["avgOffsetsBehindLatest"]) == 30.0


# What Spark keeps from Python sources: docs/spark.md says so, and where this changes, it must too


def test_a_query_that_uses_one_column_reads_all(wirelake: SparkSession, house: House) -> None:
    shown = StringIO()
    with redirect_stdout(shown):
        log(wirelake, house).select("address").explain(mode="formatted")
    assert "payload" in shown.getvalue()


def test_a_python_source_has_no_metrics_of_its_own(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 10)
    query = stream(wirelake, house, tmp_path, Batches(), startingOffsets="earliest")
    query.awaitTermination()
    last = query.lastProgress
    assert last is not None
    assert not last["sources"][0]["metrics"]


def test_a_python_source_has_no_real_time_mode(
    wirelake: SparkSession, house: House, tmp_path: Path
) -> None:
    wirelake.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
    source = wirelake.readStream.format("wirelake").option("url", house.url).load()
    writer = source.writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    real_time = writer.trigger(realTime="5 seconds")  # type: ignore[call-overload]  # not declared
    try:
        with pytest.raises(Exception, match="REAL_TIME_MODE"):
            real_time.start().awaitTermination()
    finally:
        wirelake.conf.unset("spark.sql.streaming.realTimeMode.allowlistCheck")


def test_options_are_told_without_spark() -> None:
    with pytest.raises(ConfigError, match="url"):
        Options.parse({})
