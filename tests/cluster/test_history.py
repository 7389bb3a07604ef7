"""The checker of histories finds every kind of fault, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.history import Found, Operation, Row, Told, check, is_linearizable


def good() -> tuple[list[Operation], Found]:
    """A history of two producers, a key and a queue, in which nothing is wrong."""
    history = [
        Operation("publish", "ann", "a", 1, 0.0, 1.0, Told.DONE),
        Operation("publish", "bob", "a", 1, 0.0, 2.0),
        Operation("publish", "ann", "a", 2, 1.5, 2.5, Told.DONE),
        Operation("publish", "bob", "b", 2, 3.0, 3.5, Told.REFUSED),
        Operation("write", "ann", "k", "x", 0.0, 1.0, Told.DONE),
        Operation("read", "bob", "k", "x", 2.0, 3.0, Told.DONE),
        Operation("write", "bob", "k", "y", 4.0, 5.0),
        Operation("read", "ann", "k", "x", 6.0, 7.0, Told.DONE),
        Operation("read", "ann", "k", "y", 8.0, 9.0, Told.DONE),
        Operation("put", "ann", "q", "m", 0.0, 1.0, Told.DONE),
        Operation("put", "ann", "q", "n", 1.0, 2.0, Told.DONE),
        Operation("take", "bob", "q", "m", 2.0, 3.0, Told.DONE),
        Operation("take", "ann", "q", "m", 3.0, 4.0, Told.DONE),
        Operation("ack", "ann", "q", "m", 4.0, 5.0, Told.DONE),
        Operation("take", "ann", "q", None, 6.0, 7.0, Told.DONE),
    ]
    found = Found(
        {0: [Row(0, "a", "ann", 1), Row(1, "a", "bob", 1), Row(2, "a", "ann", 2)]},
        {0: [(1, "one"), (2, "two")]},
        {"q": ["n"]},
        {(0, 1, "one"), (0, 2, "two")},
    )
    return history, found


def test_a_good_history_has_no_fault() -> None:
    assert check(*good()) == []


def lose_a_row(history: list[Operation], found: Found) -> None:
    found.log[0] = [Row(0, "a", "ann", 1), Row(1, "a", "bob", 1)]


def find_a_refused_row(history: list[Operation], found: Found) -> None:
    found.log[0].append(Row(3, "b", "bob", 2))


def find_a_row_twice(history: list[Operation], found: Found) -> None:
    found.log[0].append(Row(3, "a", "ann", 2))


def leave_a_hole(history: list[Operation], found: Found) -> None:
    found.log[0][2] = Row(3, "a", "ann", 2)


def swap_rows(history: list[Operation], found: Found) -> None:
    found.log[0] = [Row(0, "a", "ann", 2), Row(1, "a", "bob", 1), Row(2, "a", "ann", 1)]


def give_an_epoch_twice(history: list[Operation], found: Found) -> None:
    found.epochs[0].append((1, "one"))


def serve_in_anothers_epoch(history: list[Operation], found: Found) -> None:
    found.served.add((0, 2, "one"))


def read_what_was_overwritten(history: list[Operation], found: Found) -> None:
    history.append(Operation("read", "ann", "k", "x", 10.0, 11.0, Told.DONE))


def read_what_nobody_wrote(history: list[Operation], found: Found) -> None:
    history.append(Operation("read", "ann", "k", "z", 10.0, 11.0, Told.DONE))


def read_nothing_after_a_write(history: list[Operation], found: Found) -> None:
    history.append(Operation("read", "ann", "k", None, 1.5, 1.7, Told.DONE))


def lose_a_queued_message(history: list[Operation], found: Found) -> None:
    found.queues["q"] = []


def deliver_after_an_ack(history: list[Operation], found: Found) -> None:
    history.append(Operation("take", "bob", "q", "m", 5.5, 6.0, Told.DONE))


def keep_what_was_acknowledged(history: list[Operation], found: Found) -> None:
    found.queues["q"].append("m")


def deliver_what_nobody_put(history: list[Operation], found: Found) -> None:
    history.append(Operation("take", "bob", "q", "?", 5.5, 6.0, Told.DONE))


def keep_what_nobody_put(history: list[Operation], found: Found) -> None:
    found.queues["q"].append("?")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lose_a_row, "lost"),
        (find_a_refused_row, "refused and found"),
        (find_a_row_twice, "twice"),
        (leave_a_hole, "hole"),
        (swap_rows, "order"),
        (give_an_epoch_twice, "epochs"),
        (serve_in_anothers_epoch, "owners"),
        (read_what_was_overwritten, "store"),
        (read_what_nobody_wrote, "store"),
        (read_nothing_after_a_write, "store"),
        (lose_a_queued_message, "queue"),
        (deliver_after_an_ack, "queue"),
        (keep_what_was_acknowledged, "queue"),
        (deliver_what_nobody_put, "queue"),
        (keep_what_nobody_put, "queue"),
    ],
)
def test_a_wrong_history_is_found_out(
    spoil: Callable[[list[Operation], Found], None], kind: str
) -> None:
    history, found = good()
    spoil(history, found)
    assert [text.split(":")[0] for text in check(history, found)] == [kind]


def test_a_write_without_an_answer_may_take_effect_late_or_never() -> None:
    late = [
        Operation("write", "a", "k", "x", 0.0, 1.0),
        Operation("write", "b", "k", "y", 2.0, 3.0, Told.DONE),
        Operation("read", "b", "k", "y", 4.0, 5.0, Told.DONE),
        Operation("read", "b", "k", "x", 6.0, 7.0, Told.DONE),
    ]
    assert is_linearizable(late)
    assert is_linearizable(late[:3])
    assert not is_linearizable([*late, Operation("read", "b", "k", "y", 8.0, 9.0, Told.DONE)])
