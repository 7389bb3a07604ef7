"""What the readers plan and read, on a real broker without Spark: Kafka's options, rights, lag."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from tests.http.house import TOKENS, House, arrow, rows
from wirelake.config import CaptureSettings
from wirelake.errors import ConfigError, RefusedError
from wirelake.spark import source
from wirelake.spark.offsets import Place
from wirelake.spark.source import LogReader, LogStreamReader, Piece, Wirelake

ADDRESSES = [f"house/{room}/{what}" for room in "abc" for what in ("door", "temp")]
COLUMNS = "partition,offset,timestamp,address,payload"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=4)) as opened:
        yield opened


def publish(house: House, count: int, first: int = 0) -> None:
    """Messages that are told apart by their numbers."""
    messages = [(ADDRESSES[k % len(ADDRESSES)], b"%d" % k) for k in range(first, first + count)]
    answer = house.post("/v1/publish", arrow(rows(*messages)))
    assert answer.status == 202, answer.body


def batch(house: House, **options: str) -> LogReader:
    made = Wirelake({"url": house.url, "columns": COLUMNS, **options})
    return made.reader(made.schema())


def stream(house: House, **options: str) -> LogStreamReader:
    made = Wirelake({"url": house.url, "columns": COLUMNS, **options})
    return made.streamReader(made.schema())


def found(reader: LogReader | LogStreamReader, pieces: list[Any]) -> list[dict[str, Any]]:
    """The rows of some tasks."""
    return [row for one in pieces for some in reader.read(one) for row in some.to_pylist()]


def numbers(reader: LogReader | LogStreamReader, pieces: list[Any]) -> list[int]:
    return sorted(int(row["payload"]) for row in found(reader, pieces))


def all_numbers(house: House, **options: str) -> list[int]:
    reader = batch(house, **options)
    return numbers(reader, reader.partitions())


# What is read


def test_a_pattern_is_a_regular_expression_for_whole_addresses(house: House) -> None:
    publish(house, 60)
    assert all_numbers(house, subscribePattern="house/[ab]/do+r") == [
        k for k in range(60) if k % 6 in (0, 2)
    ]
    assert all_numbers(house, subscribePattern="house") == []
    with pytest.raises(RefusedError, match="no regular expression of RE2"):
        all_numbers(house, subscribePattern="house/(")


def test_partitions_are_assigned(house: House) -> None:
    publish(house, 600)
    everything = found(reader := batch(house), reader.partitions())
    there = sorted({row["partition"] for row in everything})
    one, other = there[0], there[-1]
    assert all_numbers(house, assign=json.dumps([one])) == sorted(
        int(row["payload"]) for row in everything if row["partition"] == one
    )
    own = {row["address"] for row in everything if row["partition"] == one}
    address = sorted(own)[0]
    given = json.dumps({address: [one], "#": [other]})
    assert all_numbers(house, assign=given) == sorted(
        int(row["payload"])
        for row in everything
        if row["partition"] == other or row["address"] == address
    )
    with pytest.raises(ConfigError, match="and no 9"):
        all_numbers(house, assign="[9]")


def test_a_map_of_offsets_need_not_have_every_partition(house: House) -> None:
    publish(house, 600)
    first = found(reader := batch(house), reader.partitions())
    some = first[0]["partition"]
    rest = [int(row["payload"]) for row in first if row["partition"] != some]
    mine = [int(row["payload"]) for row in first if row["partition"] == some]
    assert all_numbers(house, startingOffsets=json.dumps({some: 5})) == sorted(rest + mine[5:])
    assert all_numbers(house, endingOffsets=json.dumps({some: 5})) == sorted(rest + mine[:5])
    begin = Place.parse(stream(house, startingOffsets=json.dumps({some: 5})).initialOffset())
    ends = {p: extent["next"] for p, extent in enumerate(house.get("/v1/log").json["partitions"])}
    assert begin.offsets == ends | {some: 5}


def test_a_batch_lies_between_two_times(house: House) -> None:
    publish(house, 100)
    time.sleep(0.01)
    publish(house, 100, first=100)
    time.sleep(0.01)
    publish(house, 100, first=200)
    rows = found(reader := batch(house), reader.partitions())
    times = {int(row["payload"]): row["timestamp"] for row in rows}

    def text(number: int) -> str:
        return str(times[number].astimezone(UTC).isoformat())

    first, last = text(100), text(200)
    assert all_numbers(house, startingTimestamp=first, endingTimestamp=last) == [*range(100, 200)]
    every = range(4)
    starting = json.dumps(dict.fromkeys(every, first))
    ending = json.dumps(dict.fromkeys(every, last))
    both = {"startingOffsetsByTimestamp": starting, "endingOffsetsByTimestamp": ending}
    assert all_numbers(house, **both) == [*range(100, 200)]
    some = rows[0]["partition"]
    mine = {int(row["payload"]) for row in rows if row["partition"] == some}
    partial = {"startingOffsetsByTimestamp": json.dumps({some: last})}
    assert all_numbers(house, **partial) == [k for k in range(300) if k not in mine or k >= 200]


def test_a_time_that_no_row_has_is_the_end_or_an_error(house: House) -> None:
    publish(house, 100)
    later = datetime(2100, 1, 1, tzinfo=UTC).isoformat()
    assert all_numbers(house, startingTimestamp=later) == []
    assert all_numbers(house, endingTimestamp=later) == [*range(100)]
    strategy = "startingOffsetsByTimestampStrategy"
    with pytest.raises(ConfigError, match="has no row from that time on"):
        all_numbers(house, startingTimestamp=later, **{strategy: "error"})
    given = {"startingOffsetsByTimestamp": json.dumps({"1": later}), strategy: "error"}
    with pytest.raises(ConfigError, match="partition 1 has no row"):
        all_numbers(house, **given)


def test_tasks_have_as_many_rows_as_may_be(house: House) -> None:
    publish(house, 600)
    assert len(batch(house).partitions()) == 1  # small ranges share a task
    assert len(batch(house, minPartitions="7").partitions()) >= 7
    few = batch(house, maxRecordsPerPartition="50")
    pieces = few.partitions()
    assert len(pieces) >= 12
    assert all(len(found(few, [piece])) <= 50 for piece in pieces)
    assert numbers(few, pieces) == [*range(600)]


# Streams


def test_a_limit_of_bytes_is_one_of_rows_by_their_average(house: House) -> None:
    publish(house, 1000)
    stored = sum(one["bytes"] for one in house.get("/v1/log").json["partitions"])
    reader = stream(house, startingOffsets="earliest", maxBytesPerTrigger=str(stored // 4))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(stored // 4)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, limit)
    assert 200 <= len(numbers(reader, reader.partitions(begin, end))) <= 250
    assert reader.latestOffset(begin, ReadAllAvailable()) == reader.reportLatestOffset() | {
        "query": begin["query"]
    }


def test_few_rows_wait_for_more_but_not_for_ever(house: House) -> None:
    reader = stream(
        house, startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="1h"
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(100)
    begin = reader.initialOffset()
    publish(house, 10)
    first = reader.latestOffset(begin, limit)  # the first batch does not wait, as Kafka's does not
    assert len(numbers(reader, reader.partitions(begin, first))) == 10
    publish(house, 99, first=10)
    assert reader.latestOffset(first, limit) == first
    assert reader.latestOffset(first, ReadAllAvailable()) != first  # a last batch
    publish(house, 1, first=109)
    second = reader.latestOffset(first, limit)
    assert len(numbers(reader, reader.partitions(first, second))) == 100
    impatient = stream(house, minOffsetsPerTrigger="100", maxTriggerDelay="1ms")
    impatient.latestOffset(begin, limit)
    assert impatient.latestOffset(first, limit) == second


def test_available_now_does_not_wait_for_more(house: House) -> None:
    reader = stream(house, startingOffsets="earliest", minOffsetsPerTrigger="100")
    begin = reader.initialOffset()
    publish(house, 5)
    first = reader.latestOffset(begin, reader.getDefaultReadLimit())
    publish(house, 5, first=5)
    reader.prepareForTriggerAvailableNow()
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert numbers(reader, reader.partitions(first, second)) == [*range(5, 10)]


def test_a_batch_has_at_least_and_at_most_so_many_rows(house: House) -> None:
    options = {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "50"}
    reader = stream(house, startingOffsets="earliest", **options)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(50)
    begin = reader.initialOffset()
    publish(house, 60)
    first = reader.latestOffset(begin, limit)
    assert len(numbers(reader, reader.partitions(begin, first))) == 50
    assert reader.latestOffset(first, limit) == first  # ten are too few


def test_two_queries_of_the_same_filter_have_two_names_and_keep_them(house: House) -> None:
    publish(house, 10)

    def run(begin: Any, **options: str) -> Any:
        reader = stream(house, subscribe="house/#", startingOffsets="earliest", **options)
        begin = begin or reader.initialOffset()
        end = reader.latestOffset(begin, reader.getDefaultReadLimit())
        reader.commit(end)
        return end

    def told() -> list[str]:
        return [one["query"] for one in house.get("/v1/progress").json["queries"]]

    ends = [run(None), run(None)]
    names = sorted(end["query"] for end in ends)
    assert len(set(names)) == 2
    assert told() == names
    publish(house, 10, first=10)
    assert [run(end)["query"] for end in ends] == [end["query"] for end in ends]
    assert told() == names
    team = run(None, groupIdPrefix="team")["query"]
    assert team.startswith("team-")
    assert "query" not in run(None, query="mine")
    assert told() == sorted([*names, team, "mine"])


def test_a_stream_reads_only_what_is_assigned(house: House) -> None:
    publish(house, 100)
    reader = stream(house, startingOffsets="earliest", assign="[0, 1]")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert set(Place.parse(end).offsets) == {0, 1}
    assert {row["partition"] for row in found(reader, reader.partitions(begin, end))} <= {0, 1}


# Rights, and what is told


def test_rights_are_checked_when_a_query_starts(tmp_path: Path) -> None:
    with House(tmp_path, tokens=TOKENS) as guarded:  # its log is empty
        for wrong in ({}, {"subscribe": "garden/#"}, {"assign": '{"garden": [0]}'}):
            with pytest.raises(RefusedError, match="no right to subscribe"):
                stream(guarded, token="reader", **wrong).initialOffset()
            with pytest.raises(RefusedError, match="no right to subscribe"):
                batch(guarded, token="reader", **wrong).partitions()
        reader = stream(guarded, token="reader", subscribe="house/#")
        begin = reader.initialOffset()
        later = stream(guarded, token="reader", subscribe="garden/#")  # a query that goes on
        with pytest.raises(RefusedError, match="no right to subscribe"):
            later.latestOffset(begin, ReadAllAvailable())
        assert stream(guarded, token="reader", subscribePattern=".*").initialOffset()


def test_a_token_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with House(tmp_path, tokens=TOKENS) as guarded:
        with pytest.raises(RefusedError, match="unauthorized"):
            batch(guarded).partitions()
        monkeypatch.setenv("WIRELAKE_TOKEN", "boss")
        assert batch(guarded).partitions() == []
        with pytest.raises(RefusedError, match="no right"):
            batch(guarded, token="reader").partitions()


def test_who_reads_all_columns_of_many_rows_is_told_once_how_to_read_fewer(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MANY_ROWS", 100)
    publish(house, 100)
    with caplog.at_level(logging.WARNING, "wirelake.spark"):
        batch(house).partitions()
        assert caplog.messages == []
        made = Wirelake({"url": house.url})
        made.reader(made.schema()).partitions()
        reader = Wirelake({"url": house.url, "startingOffsets": "earliest"})
        many = reader.streamReader(reader.schema())
        begin = many.initialOffset()
        end = many.latestOffset(begin, ReadAllAvailable())
        assert [type(one) for one in many.partitions(begin, end)] == [Piece]
        many.partitions(begin, end)
    assert len(caplog.messages) == 2
    assert all("option columns" in one for one in caplog.messages)
