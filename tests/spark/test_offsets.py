"""Planning: bounds, rate limits, tasks, rows that are gone; none of it needs Spark."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelake.errors import ConfigError, EngineError
from wirelake.spark.offsets import (
    Extent,
    Log,
    Offsets,
    Place,
    Range,
    behind_latest,
    between,
    check_kept,
    ranges,
    resolve,
    rows_within,
    share,
    split,
    tasks,
)

LOG = Log("ours", {0: Extent(10, 20), 1: Extent(0, 5)})

partitions = st.integers(0, 7)
counts = st.dictionaries(partitions, st.integers(0, 20) | st.integers(0, 10**6), min_size=1)


# Offsets


@given(counts, st.sampled_from(["", "ours"]), st.sampled_from(["", "spark-1"]))
def test_offsets_survive_json(offsets: Offsets, log: str, query: str) -> None:
    place = Place(offsets, log, query)
    assert Place.parse(json.loads(json.dumps(place.as_json()))) == place


def test_offsets_have_one_text_whatever_their_order() -> None:
    assert list(Place({2: 1, 0: 3, 10: 0}, "ours").as_json()) == ["0", "2", "10", "log"]
    assert list(Place({2: 1, 0: 3}).as_json()) == ["0", "2"]


@pytest.mark.parametrize(
    "value",
    [None, [], {"0": "1"}, {"x": 1}, {"0": -1}, {"-1": 1}, {"0": 1, "log": 1}, {"query": 1}],
)
def test_what_are_no_offsets_is_refused(value: object) -> None:
    with pytest.raises(EngineError):
        Place.parse(value)


def test_a_bound_is_words_or_numbers() -> None:
    assert resolve("earliest", LOG, "o") == {0: 10, 1: 0}
    assert resolve("latest", LOG, "o") == {0: 20, 1: 5}
    assert resolve(Place({0: -2, 1: -1}), LOG, "o") == {0: 10, 1: 5}
    assert resolve(Place({0: 15, 1: 0}, "ours"), LOG, "o") == {0: 15, 1: 0}


def test_partitions_that_a_bound_does_not_name_have_the_default() -> None:
    assert resolve(Place({0: 15}), LOG, "o", "earliest") == {0: 15, 1: 0}
    assert resolve(Place({0: 15}), LOG, "o", "latest") == {0: 15, 1: 5}


def test_a_log_may_be_read_in_part() -> None:
    assert LOG.only(None) is LOG
    assert LOG.only([1]) == Log("ours", {1: LOG.extents[1]})
    with pytest.raises(ConfigError, match="the log has the partitions 0, 1, and no 7"):
        LOG.only([1, 7])


@pytest.mark.parametrize("bound", [{0: 10, 1: 0, 2: 0}, {0: 21, 1: 0}])
def test_a_bound_that_the_log_does_not_have_is_refused(bound: Offsets) -> None:
    with pytest.raises(ConfigError, match="partition"):
        resolve(Place(bound), LOG, "startingOffsets")


def test_a_bound_in_another_log_is_refused() -> None:
    with pytest.raises(ConfigError, match="offsets of the log theirs; this is ours"):
        resolve(Place({0: 15, 1: 0}, "theirs"), LOG, "startingOffsets")


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
        ({0: 10, 1: 0, 2: 4}, "partition 2 was read so far, and is not any more"),
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


# Tasks


wanted = counts.map(lambda found: [Range(p, 7, 7 + n) for p, n in found.items() if n])


@given(wanted, st.integers(0, 50), st.integers(0, 10**6))
def test_tasks_read_every_row_once(found: list[Range], at_least: int, most: int) -> None:
    planned = tasks(found, at_least, most)
    pieces = sorted(
        (one for task in planned for one in task), key=lambda one: (one.partition, one.start)
    )
    assert ranges_of(pieces) == {one.partition: (one.start, one.stop) for one in found}
    rows = sum(map(len, found))
    assert len(planned) >= min(at_least, rows)
    if most:
        assert all(sum(map(len, task)) <= most for task in planned)
    assert all(task for task in planned)


def ranges_of(pieces: list[Range]) -> dict[int, tuple[int, int]]:
    """The ranges that pieces make, if each begins where the one before it ends."""
    made: dict[int, tuple[int, int]] = {}
    for piece in pieces:
        start, stop = made.get(piece.partition, (piece.start, piece.start))
        assert stop == piece.start
        made[piece.partition] = (start, piece.stop)
    return made


def test_small_ranges_share_a_task() -> None:
    small = [Range(p, 0, 1000) for p in range(16)]
    assert [len(task) for task in tasks(small)] == [16]
    assert len(tasks(small, at_least=4)) == 4
    assert len(tasks(small, most=4000)) == 4
    assert len(tasks([Range(p, 0, 60_000) for p in range(16)])) == 16


def test_many_small_ranges_are_planned_quickly() -> None:
    # Two of these fill a task; to look through all tasks for each of them would take minutes.
    planned = tasks([Range(p, 0, 50_000 - p % 2) for p in range(100_000)])
    assert len(planned) == 50_000
    assert {len(task) for task in planned} == {2}


def test_a_large_range_does_not_share_its_task_with_small_ones() -> None:
    planned = tasks([Range(0, 0, 900_000), Range(1, 0, 10), Range(2, 0, 10)])
    assert planned == [(Range(0, 0, 900_000),), (Range(1, 0, 10), Range(2, 0, 10))]


def test_no_task_has_more_rows_than_may_be() -> None:
    planned = tasks([Range(0, 0, 1001), Range(1, 0, 5)], most=500)
    assert [sum(map(len, task)) for task in planned] == [334, 334, 333, 5]


# Limits and lag


def test_bytes_are_rows_by_the_average_of_the_log() -> None:
    log = Log("ours", {0: Extent(10, 20, 500), 1: Extent(0, 90, 9500)})
    assert rows_within(1000, log) == 10
    assert rows_within(1, log) == 1
    assert rows_within(1000, Log("ours", {0: Extent(5, 5)})) == 1000


def test_lag_has_the_names_of_kafka_s() -> None:
    ours = {"endOffset": {"0": 5, "1": 5, "query": "q"}, "latestOffset": {"0": 6, "1": 9}}
    text = {"endOffset": '{"0": 5}', "latestOffset": '{"0": 5, "log": "ours"}'}
    others = [{"endOffset": 3, "latestOffset": None}, {"endOffset": "x", "latestOffset": "{"}]
    assert behind_latest({"sources": [ours, text, *others]}) == [
        {
            "minOffsetsBehindLatest": "1",
            "maxOffsetsBehindLatest": "4",
            "avgOffsetsBehindLatest": "2.5",
        },
        {
            "minOffsetsBehindLatest": "0",
            "maxOffsetsBehindLatest": "0",
            "avgOffsetsBehindLatest": "0.0",
        },
        {},
        {},
    ]


def test_lag_is_told_before_the_first_batch_and_of_another_log() -> None:
    assert behind_latest(None) == []
    source = {"endOffset": {"0": 5, "log": "old"}, "latestOffset": {"0": 3, "log": "new"}}
    (lag,) = behind_latest({"sources": [source]})
    assert lag["maxOffsetsBehindLatest"] == "3"


def test_a_log_that_ends_before_a_place_in_it_is_told() -> None:
    log = Log("x", {0: Extent(0, 5), 1: Extent(0, 7)})
    assert not log.is_before(Place({0: 5, 1: 7}, "x"))
    assert log.is_before(Place({0: 6}, "x"))
    assert not log.is_before(Place({0: 6}, "y"))  # of another log
    assert not log.is_before(Place({2: 6}, "x"))
