"""The messages of a queue as columns: against a plain dictionary of them."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from wirelake.journal.record import Change, Entry, Note, Put, QueueChanges, Record
from wirelake.journal.state import CHUNK, PartitionState, References

#: Sequences around the border between two chunks.
FIRST = CHUNK - 20
SEQUENCES = st.integers(FIRST, FIRST + 40)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Puts, drops and deliveries of runs: what, the first sequence, how many, a number."""
    kinds = st.sampled_from(["put", "put", "drop", "attempt"])
    return draw(
        st.lists(st.tuples(kinds, SEQUENCES, st.integers(1, 12), st.integers(0, 3)), max_size=12)
    )


@given(steps(), SEQUENCES, st.integers(1, 30), st.integers(1, 200))
def test_columns_say_what_a_dictionary_says(
    done: list[tuple[str, int, int, int]], sequence: int, most: int, most_bytes: int
) -> None:
    columns = References()
    plain: dict[int, tuple[int, int, bool]] = {}  # place, size, private
    attempts: dict[int, int] = {}
    place = 1000
    for what, first, count, number in done:
        if what == "put":
            private = number == 3
            sizes = array("q", range(10, 10 + count))
            columns.put(Put(7, first, count, place, private, sizes))
            for k in range(count):
                plain[first + k] = place + k, 10 + k, private
                attempts[first + k] = 0
            place += count + number  # some are adjacent to what was put before
        elif what == "drop":
            columns.drop(first, count)
            for k in range(count):
                plain.pop(first + k, None)
        else:
            columns.attempt(first, count, number)
            for k in range(count):
                if first + k in plain:
                    attempts[first + k] = number
    assert len(columns) == len(plain)
    assert [(one.sequence, one.place, one.size, one.private) for one in columns] == [
        (one, *plain[one]) for one in sorted(plain)
    ]
    end = sequence + most
    assert list(columns.sizes(sequence, end)) == [
        plain[one][1] if one in plain else 0 for one in range(sequence, end)
    ]
    delivered = any(attempts[one] for one in range(sequence, end) if one in plain)
    assert columns.was_delivered(sequence, end) >= delivered
    found = list(columns.runs_after(sequence, most, most_bytes))
    expected: list[tuple[int, int, int, bool]] = []
    size = 0
    for one in sorted(one for one in plain if one >= sequence):
        # Reading goes on to the next chunk where there is one.
        expected.append((one, *plain[one]))
        size += plain[one][1]
        if len(expected) == most or size >= most_bytes:
            break
    if sequence < CHUNK and not any(one < CHUNK for one in plain):
        expected = []
    shown = [
        (run.sequence + k, run.place + k, run.size[k], run.private)  # type: ignore[index]  # one each
        for run in found
        for k in range(run.count)
    ]
    assert shown == expected


def test_a_checkpoint_of_many_queues_has_few_parts_and_says_the_same() -> None:
    state = PartitionState()
    changes = QueueChanges()
    for number in range(1, 3_001):
        changes.declare(number, 1, b'{"name":"q%d"}' % number)
        if number % 3 == 0:
            changes.put(Put(number, 1, number % 7 + 1, number * 10, size=5))
        if number % 5 == 0:
            changes.attempt(number, 1, 1, 2)
    changes.put(Put(7, 1, 40_000, 100_000, size=1))  # one with more than a part holds
    state.change_queues(changes)
    seen = [
        Entry(Change.SET, b"id", number=number, until=100, note=Note.SEEN)
        for number in range(1, 3_001, 2)
    ]
    state.change_entries(iter(seen))
    parts = list(state.parts(50))
    assert len(parts) < 20
    again = PartitionState()
    for part in parts:
        again.apply(Record(part.type, [b"".join(part.body)]))
    assert again.next_queue == state.next_queue
    for number, queue in state.queues.items():
        other = again.queues[number]
        assert (other.settings, other.following) == (queue.settings, queue.following)
        assert list(other.messages) == list(queue.messages)
        assert other.ids == queue.ids


def test_a_queue_that_is_removed_between_two_parts_has_no_more_of_them() -> None:
    state = PartitionState()
    changes = QueueChanges()
    for number in (1, 2):
        changes.declare(number, 1, b"{}")
        changes.put(Put(number, 1, 40_000, 0, size=1))
    state.change_queues(changes)
    parts = state.parts(0)
    next(parts)
    del state.queues[1]
    for part in parts:
        assert {put.queue for put in QueueChanges.parse(b"".join(part.body)).puts()} <= {2}
