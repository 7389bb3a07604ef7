"""Planning: options, bounds, rate limits, tasks, rows that are gone; none of it needs Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelake.errors import ConfigError, EngineError
from wirelake.spark.offsets import (
    Extent,
    Log,
    Offsets,
    Options,
    Place,
    Range,
    between,
    check_kept,
    micros,
    ranges,
    resolve,
    share,
    split,
)
from wirelake.wire.arrow import SCHEMA

URL = {"url": "http://127.0.0.1:7780"}
LOG = Log("ours", {0: Extent(10, 20), 1: Extent(0, 5)})

partitions = st.integers(0, 7)
counts = st.dictionaries(partitions, st.integers(0, 20) | st.integers(0, 10**6), min_size=1)


# Options


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
        ({"subscribePattern": "a/b+"}, "subscribePattern"),
        ({"subscribe": "a", "subscribePattern": "b/#"}, "subscribePattern"),
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
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options.parse(URL | given)
    assert caught.value.setting == name


def test_several_filters_are_separated_by_commas_but_a_pattern_may_have_some() -> None:
    assert Options.parse(URL | {"subscribe": "a/+, b/#,c"}).filters == ("a/+", "b/#", "c")
    assert Options.parse(URL | {"subscribePattern": "a,b/#"}).filters == ("a,b/#",)


def test_a_filter_for_everything_is_none() -> None:
    assert Options.parse(URL | {"subscribe": "a,#"}).filters == ()


def test_queries_of_the_same_filters_have_one_name_unless_they_are_given_one() -> None:
    first, same, other = (Options.parse(URL | {"subscribe": one}) for one in ("a", "a", "b"))
    assert first.query == same.query != other.query
    assert Options.parse(URL | {"query": "mine"}).query == "mine"


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
    ):
        with pytest.raises(ConfigError):
            Options.parse(URL | wrong).check_batch()


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="endingOffsets"):
        Options.parse(URL | {"endingOffsets": "latest"}).check_stream()


# Offsets


@given(counts, st.sampled_from(["", "ours"]))
def test_offsets_survive_json(offsets: Offsets, log: str) -> None:
    place = Place(offsets, log)
    assert Place.parse(json.loads(json.dumps(place.as_json()))) == place


def test_offsets_have_one_text_whatever_their_order() -> None:
    assert list(Place({2: 1, 0: 3, 10: 0}, "ours").as_json()) == ["0", "2", "10", "log"]
    assert list(Place({2: 1, 0: 3}).as_json()) == ["0", "2"]


@pytest.mark.parametrize(
    "value", [None, [], {"0": "1"}, {"x": 1}, {"0": -1}, {"-1": 1}, {"0": 1, "log": 1}]
)
def test_what_are_no_offsets_is_refused(value: object) -> None:
    with pytest.raises(EngineError):
        Place.parse(value)


def test_a_bound_is_words_or_numbers() -> None:
    assert resolve("earliest", LOG, "o") == {0: 10, 1: 0}
    assert resolve("latest", LOG, "o") == {0: 20, 1: 5}
    assert resolve(Place({0: -2, 1: -1}), LOG, "o") == {0: 10, 1: 5}
    assert resolve(Place({0: 15, 1: 0}, "ours"), LOG, "o") == {0: 15, 1: 0}


@pytest.mark.parametrize("bound", [{0: 10}, {0: 10, 1: 0, 2: 0}, {0: 21, 1: 0}])
def test_a_bound_that_the_log_does_not_have_is_refused(bound: Offsets) -> None:
    with pytest.raises(ConfigError, match="partition"):
        resolve(Place(bound), LOG, "startingOffsets")


def test_a_bound_in_another_log_is_refused() -> None:
    text = '{"0": 15, "1": 0, "log": "theirs"}'
    starting = Options.parse(URL | {"startingOffsets": text}).starting
    assert starting == Place({0: 15, 1: 0}, "theirs")
    with pytest.raises(ConfigError, match="offsets of the log theirs; this is ours"):
        resolve(starting, LOG, "startingOffsets")


# Rows that are gone


def test_rows_that_are_there_are_read_from_where_a_query_was() -> None:
    for log in ("ours", ""):  # an old checkpoint does not say which log it is of
        assert check_kept(Place({0: 12, 1: 5}, log), LOG, fail=True) == {0: 12, 1: 5}
    old = Log("", LOG.extents)  # nor does an old broker
    assert check_kept(Place({0: 12, 1: 5}, "ours"), old, fail=True) == {0: 12, 1: 5}


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    assert check_kept(Place({0: 12}), LOG, fail=True) == {0: 12, 1: 0}


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ({0: 9, 1: 0}, "rows 9 to 9 of partition 0"),
        ({0: 21, 1: 0}, "ends at 20, but was read up to 21"),
        ({0: 10, 1: 0, 2: 4}, "no partition 2"),
    ],
)
def test_rows_that_were_deleted_are_an_error_or_passed_over(start: Offsets, text: str) -> None:
    with pytest.raises(EngineError, match=text):
        check_kept(Place(start), LOG, fail=True)
    assert check_kept(Place(start), LOG, fail=False) == {0: 10, 1: 0}


def test_a_log_that_was_replaced_is_an_error_or_read_from_its_beginning() -> None:
    start = Place({0: 12, 1: 5}, "theirs")
    with pytest.raises(EngineError, match="the log theirs was read so far"):
        check_kept(start, LOG, fail=True)
    assert check_kept(start, LOG, fail=False) == {0: 10, 1: 0}
    assert between(start, Place({0: 20, 1: 5}, "ours")) == [Range(0, 0, 20), Range(1, 0, 5)]
    assert between(start, Place({0: 20, 1: 5}, "theirs")) == [Range(0, 12, 20)]


def test_a_log_that_began_anew_is_read_from_its_beginning() -> None:
    assert ranges({0: 100}, {0: 7}) == [Range(0, 0, 7)]


# Rate limits


@given(counts, counts, st.integers(1, 10**6))
def test_a_limit_is_kept_and_shared(start: Offsets, more: Offsets, most: int) -> None:
    end = {p: start.get(p, 0) + count for p, count in more.items()}
    limited = share(start, end, most)
    taken = {p: limited[p] - start.get(p, 0) for p in limited}
    waiting = {p: end[p] - start.get(p, 0) for p in end}
    assert limited.keys() == end.keys()
    assert all(0 <= taken[p] <= waiting[p] for p in taken)
    assert sum(taken.values()) == min(most, sum(waiting.values()))
    total = sum(waiting.values())
    if total > most:  # nobody gets a row more or less than its part
        assert all(abs(taken[p] - waiting[p] * most / total) <= 1 for p in taken)


def test_no_partition_starves_below_a_small_limit() -> None:
    start, end = {0: 0, 1: 0, 2: 0}, {0: 1000, 1: 10, 2: 1}
    steps = 0
    while start != end:
        start = share(start, end, 2)
        steps += 1
    assert steps == 506


# Tasks


@given(counts, counts, st.integers(0, 50), st.integers(1, 10**6))
def test_tasks_are_what_lies_between_two_offsets(
    start: Offsets, more: Offsets, at_least: int, most: int
) -> None:
    most = max(most, sum(more.values()) // 1000)  # not more tasks than a test has time for
    end = {p: start.get(p, 0) + count for p, count in more.items()}
    wanted = ranges(start, end)
    pieces = split(wanted, at_least, most)
    assert all(0 < len(piece) <= (most if at_least else 1.5 * most) for piece in pieces)
    assert len(pieces) >= min(at_least, sum(more.values()))
    for one in wanted:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert mine[0].start == one.start
        assert mine[-1].stop == one.stop
        assert all(a.stop == b.start for a, b in pairwise(mine))
    assert {piece.partition for piece in pieces} == {one.partition for one in wanted}


def test_short_ranges_are_a_task_each() -> None:
    assert split([Range(0, 5, 10), Range(3, 0, 1)]) == [Range(0, 5, 10), Range(3, 0, 1)]


def test_the_largest_tasks_come_first() -> None:
    pieces = split([Range(0, 0, 10), Range(1, 0, 900_000), Range(2, 0, 2_400_000)])
    assert list(map(len, pieces)) == [1_200_000, 1_200_000, 900_000, 10]


def test_partitions_that_are_about_a_task_long_are_a_task_each() -> None:
    # As four partitions of four million rows are: cut here and there, one task would be left over.
    lengths = {0: 1_000_000, 1: 1_003_600, 2: 1_003_200, 3: 993_200}
    pieces = split([Range(p, 0, length) for p, length in lengths.items()])
    assert sorted(map(len, pieces)) == sorted(lengths.values())


def test_a_long_range_is_cut_evenly() -> None:
    assert list(map(len, split([Range(0, 0, 2_500_000)]))) == [833333, 833333, 833334]
