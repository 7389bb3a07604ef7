"""The messages of a queue as columns: against a plain dictionary of them."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from wirelake.journal.record import Put
from wirelake.journal.state import CHUNK, References

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
