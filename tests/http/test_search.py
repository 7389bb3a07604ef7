"""Rows that several nodes found apart are one list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wirelake.http.search import _Part, newest, put_together

#: For each partition, the steps of time between its rows: many are of the same time.
LOGS = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=4)


def log(steps: list[list[int]]) -> list[list[dict[str, Any]]]:
    """Rows of each partition, in order."""
    made = []
    for partition, some in enumerate(steps):
        now = 100
        rows = []
        for offset, step in enumerate(some):
            now += step
            rows.append({"partition": partition, "offset": offset, "time": now})
        made.append(rows)
    return made


@given(LOGS, st.integers(1, 5), st.integers(1, 3))
def test_pages_of_several_nodes_have_every_row_once_the_newest_first(
    steps: list[list[int]], limit: int, nodes: int
) -> None:
    rows = log(steps)
    before = {partition: len(some) for partition, some in enumerate(rows)}
    seen: list[dict[str, Any]] = []
    more = True
    while more:
        found = []
        for node in range(nodes):
            mine = [p for p in range(len(rows)) if p % nodes == node]
            parts = [_Part(p, 0, 0, 0, rows=rows[p][: before[p]]) for p in mine]
            found += newest(parts, limit)
        page = put_together(found, limit)
        assert page["rows"] or not page["more"]
        seen += page["rows"]
        before = page["before"] or before
        more = page["more"]
    everything = [row for some in rows for row in some]
    order = [(row["time"], row["partition"], row["offset"]) for row in seen]
    assert order == sorted(order, reverse=True)
    assert len(seen) == len(everything)
    assert {(p, o) for _, p, o in order} == {(r["partition"], r["offset"]) for r in everything}


def test_rows_that_a_node_has_not_read_yet_hold_older_ones_of_others_back() -> None:
    rows = log([[1, 1, 1], [1, 1, 1]])
    read = newest([_Part(0, 0, 0, 0, rows=rows[0])], 10)
    unread = newest([_Part(1, 0, 2, 103, rows=rows[1][2:])], 10)
    page = put_together([*read, *unread], 10)
    assert page["rows"] == []
    unread = newest([_Part(1, 0, 1, 102, rows=rows[1][1:])], 10)
    page = put_together([*read, *unread], 10)
    assert [(row["partition"], row["offset"]) for row in page["rows"]] == [(1, 2), (0, 2)]
    assert (page["before"], page["more"]) == ({0: 2, 1: 2}, True)
