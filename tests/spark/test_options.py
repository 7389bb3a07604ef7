"""The options of the source, as users write them; none of it needs Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wirelake.errors import ConfigError
from wirelake.spark.offsets import Place, micros
from wirelake.spark.options import Options, is_of_table, of_table
from wirelake.wire.arrow import SCHEMA

URL = {"url": "http://127.0.0.1:7780"}


def test_what_is_not_said_has_the_defaults_of_kafkas_source() -> None:
    options = Options.parse(URL)
    assert options.filters == ()
    assert options.fail_on_data_loss
    assert options.max_rows == options.min_partitions == 0
    assert options.columns == tuple(name for name in SCHEMA.names if name != "headers")


def test_names_of_options_have_no_case() -> None:
    options = Options.parse({"URL": "http://host:1/", "maxrowspertrigger": "7"})
    assert (options.url, options.max_rows) == ("http://host:1", 7)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"url": ""}, "url"),
        ({"url": "localhost:7780"}, "url"),
        ({"url": "http://host:port"}, "url"),
        ({"url": "http://host:1/v1/log"}, "url"),
        ({"maxRowPerTrigger": "1"}, "maxRowPerTrigger"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a/#/b"}, "subscribe"),
        ({"subscribe": "a,,b"}, "subscribe"),
        ({"subscribePattern": "a/+"}, "subscribePattern"),
        ({"subscribePattern": "a/+/b"}, "subscribePattern"),
        ({"subscribePattern": "#"}, "subscribePattern"),
        ({"subscribePattern": "+/a"}, "subscribePattern"),
        ({"subscribePattern": ""}, "subscribePattern"),
        ({"subscribe": "a", "subscribePattern": "b/.*"}, "subscribePattern"),
        ({"assign": "0"}, "assign"),
        ({"assign": "[]"}, "assign"),
        ({"assign": "{}"}, "assign"),
        ({"assign": "[-1]"}, "assign"),
        ({"assign": "[true]"}, "assign"),
        ({"assign": '{"a": 1}'}, "assign"),
        ({"assign": '{"a/#/b": [1]}'}, "assign"),
        ({"assign": '{"a": [1]}', "subscribe": "b"}, "assign"),
        ({"kafka.bootstrap.servers": "host:9092"}, "kafka.bootstrap.servers"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol"),
        ({"maxOffsetsPerTrigger": "1", "maxRowsPerTrigger": "1"}, "maxRowsPerTrigger"),
        ({"maxBytesPerTrigger": "5m"}, "maxBytesPerTrigger"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay"),
        ({"maxTriggerDelay": "a while"}, "maxTriggerDelay"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
        ({"query": "a", "groupIdPrefix": "b"}, "groupIdPrefix"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "startingOffsetsByTimestampStrategy"),
        ({"startingOffsetsByTimestamp": "1"}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 1}}'}, "startingOffsetsByTimestamp"),
        ({"endingOffsetsByTimestamp": '{"0": "soon"}'}, "endingOffsetsByTimestamp"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "endingTimestamp"),
        ({"startingOffsets": '{"house": {"0": 23}}'}, "startingOffsets"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"0": -3}'}, "startingOffsets"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"0": 1.5}'}, "startingOffsets"),
        ({"startingOffsets": "[1]"}, "startingOffsets"),
        ({"endingOffsets": '{"0": true}'}, "endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingTimestamp"),
        ({"columns": "address,colour"}, "columns"),
        ({"columns": "address,address"}, "columns"),
        ({"retrySeconds": "soon"}, "retrySeconds"),
        ({"retrySeconds": "nan"}, "retrySeconds"),
        ({"maxRowsPerTrigger": "9" * 5000}, "maxRowsPerTrigger"),
        ({"startingOffsets": f'{{"{"1" * 5000}": 1}}'}, "startingOffsets"),
        ({"startingOffsetsByTimestamp": f'{{"{"1" * 5000}": 1}}'}, "startingOffsetsByTimestamp"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options.parse(URL | given)
    assert caught.value.setting == name


def test_several_filters_are_separated_by_commas() -> None:
    assert Options.parse(URL | {"subscribe": "a/+, b/#,c"}).filters == ("a/+", "b/#", "c")


def test_a_pattern_is_a_regular_expression_and_one_that_looks_like_a_filter_is_told_so() -> None:
    assert Options.parse(URL | {"subscribePattern": "a,b/.*|c+"}).pattern == "a,b/.*|c+"
    with pytest.raises(ConfigError, match="looks like a filter, which is for subscribe"):
        Options.parse(URL | {"subscribePattern": "house/#"})


def test_partitions_are_assigned_alone_or_with_their_filters() -> None:
    options = Options.parse(URL | {"assign": "[0, 2]", "subscribe": "a,b"})
    assert options.assigned == {0: ("a", "b"), 2: ("a", "b")}
    options = Options.parse(URL | {"assign": '{"a/#": [0, 1], "b": [1], "#": [3]}'})
    assert options.assigned == {0: ("a/#",), 1: ("a/#", "b"), 3: ()}
    assert options.filters_of(1) == ("a/#", "b")
    assert options.asked == ()  # everything, because of one of them
    assert Options.parse(URL | {"assign": '{"a/#": [0, 1], "b": [1]}'}).asked == ("a/#", "b")


def test_kafka_s_names_are_taken() -> None:
    kafka = {"maxOffsetsPerTrigger": "5", "MINOFFSETSPERTRIGGER": "2", "kafka.group.id": "mine"}
    options = Options.parse(URL | kafka)
    assert (options.max_rows, options.min_rows, options.query) == (5, 2, "mine")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("15m", 900), ("15 min", 900), ("1.5h", 5400), ("1d", 86400)],
)
def test_a_delay_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert Options.parse(URL | {"maxTriggerDelay": text}).max_delay == seconds
    assert Options.parse(URL).max_delay == 900


def test_a_time_may_differ_by_partition() -> None:
    given = {"startingOffsetsByTimestamp": '{"0": 5, "3": "1970-01-01T00:00:01"}'}
    assert Options.parse(URL | given).starting_time == {0: 5000, 3: 1_000_000}
    given = {"endingOffsetsByTimestamp": '{"0": 5}'}
    assert Options.parse(URL | given).ending_time == {0: 5000}
    assert Options.parse(URL | {"endingTimestamp": "5"}).ending_time == 5000


def test_an_offset_of_a_query_s_progress_is_a_place_to_begin() -> None:
    text = '{"0": 15, "1": 0, "log": "theirs", "query": "old"}'
    starting = Options.parse(URL | {"startingOffsets": text}).starting
    assert starting == Place({0: 15, 1: 0}, "theirs", "old")


def test_a_filter_for_everything_is_none() -> None:
    assert Options.parse(URL | {"subscribe": "a,#"}).filters == ()


def test_only_a_name_that_is_given_is_known_before_a_stream_begins() -> None:
    assert Options.parse(URL).query == ""
    assert Options.parse(URL | {"query": "mine"}).query == "mine"
    assert Options.parse(URL | {"groupIdPrefix": "team-a"}).prefix == "team-a"


def test_what_spark_adds_to_the_options_of_a_table_is_ignored() -> None:
    given = {
        "provider": "wirelake", "owner": "me", "comment": "c", "location": "/tmp/t", "mine": "1",
        "url": "http://h:1", "option.url": "http://h:1", "option.serialization.format": "1",
    }  # fmt: skip
    assert is_of_table(given)
    assert of_table(given) == {"url": "http://h:1"}
    assert not is_of_table(URL)


def test_headers_are_read_on_demand() -> None:
    assert Options.parse(URL | {"includeHeaders": "true"}).columns == tuple(SCHEMA.names)
    named = URL | {"columns": "payload, address"}
    assert Options.parse(named).columns == ("payload", "address")
    assert Options.parse(named | {"includeHeaders": "true"}).columns[-1] == "headers"


def test_a_time_is_milliseconds_as_kafka_has_it_or_as_people_write_it() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("1769860800000", "2026-01-31T12:00", "2026-01-31T13:00+01:00"):
        assert Options.parse(URL | {"startingTimestamp": text}).starting_time == micros(noon)


def test_a_batch_does_not_begin_at_the_latest_nor_end_at_the_earliest() -> None:
    for wrong in (
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"0": -1}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"0": -2}'},
        {"maxRowsPerTrigger": "5"},
        {"maxBytesPerTrigger": "5"},
        {"minRowsPerTrigger": "5"},
    ):
        with pytest.raises(ConfigError):
            Options.parse(URL | wrong).check_batch()


def test_a_stream_has_no_end() -> None:
    for wrong in ({"endingOffsets": "latest"}, {"endingTimestamp": "5"}):
        with pytest.raises(ConfigError, match="endingOffsets"):
            Options.parse(URL | wrong).check_stream()
    with pytest.raises(ConfigError, match="minRowsPerTrigger"):
        Options.parse(URL | {"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"}).check_stream()
