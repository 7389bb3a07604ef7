"""What a queue could deliver next, against a list that is sorted anew each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wirelake.broker.ready import Ready, runs


def tens(begin: int, end: int) -> list[int]:
    """Messages of ten bytes."""
    return [10] * (end - begin)


def ones(begin: int, end: int) -> list[int]:
    """Messages of one byte."""
    return [1] * (end - begin)


def test_adjacent_sequences_make_a_run() -> None:
    assert list(runs([1, 2, 3, 7, 9, 10])) == [(1, 4), (7, 8), (9, 11)]
    assert list(runs([])) == []


def test_a_run_is_taken_until_its_bytes_are_full_and_never_nothing() -> None:
    ready = Ready()
    ready.add_run(0, 10)
    assert ready.pop_run(10, 25, tens) == (range(3), -5)
    assert ready.pop_run(10, 0, tens) == (range(3, 4), -10)
    assert ready.pop_run(2, 1000, tens) == (range(4, 6), 980)
    assert len(ready) == 4


def test_a_delayed_message_is_not_ready_before_its_time() -> None:
    ready = Ready()
    ready.add_later(5.0, 1)
    assert (ready.first, ready.delayed, ready.next_due) == (None, 1, 5.0)
    assert ready.pop_due(4.9) is None
    assert ready.pop_due(5.0) == 1
    assert ready.next_due == float("inf")


class ReadyMachine(RuleBasedStateMachine):
    """Any history of a queue's ready list."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = Ready()
        self.plain: list[int] = []
        self.alone: list[tuple[int, int]] = []
        self.next = 0

    def in_order(self) -> list[int]:
        """Urgent ones first, then by sequence."""
        return [n for _, n in sorted([*self.alone, *((0, n) for n in self.plain)])]

    @rule(count=st.integers(1, 5), gap=st.integers(0, 1))
    def add_run(self, count: int, gap: int) -> None:
        begin = self.next + gap
        self.next = begin + count
        self.ready.add_run(begin, self.next)
        self.plain += range(begin, self.next)

    @rule(priority=st.integers(0, 1))
    def add(self, priority: int) -> None:
        self.ready.add(self.next, priority)
        self.alone.append((-priority, self.next))
        self.next += 1

    @precondition(lambda self: self.plain or self.alone)
    @rule()
    def pop(self) -> None:
        wanted = self.in_order()[0]
        assert self.ready.pop() == wanted
        self.forget({wanted})

    @precondition(lambda self: self.plain and not self.alone)
    @rule(most=st.integers(1, 4))
    def pop_run(self, most: int) -> None:
        taken, _ = self.ready.pop_run(most, 1 << 30, ones)
        assert list(taken) == self.plain[: len(taken)]
        assert len(taken) >= 1
        self.forget(set(taken))

    @rule(chosen=st.sets(st.integers(0, 40)))
    def remove(self, chosen: set[int]) -> None:
        wanted = [n for n in self.in_order() if n in chosen]
        assert self.ready.remove(frozenset(chosen)) == wanted
        self.forget(chosen)

    @rule()
    def clear(self) -> None:
        assert self.ready.clear() == self.in_order()
        self.plain, self.alone = [], []

    def forget(self, gone: set[int]) -> None:
        self.plain = [n for n in self.plain if n not in gone]
        self.alone = [one for one in self.alone if one[1] not in gone]

    @invariant()
    def agrees(self) -> None:
        wanted = self.in_order()
        assert list(self.ready) == wanted
        assert len(self.ready) == len(wanted)
        assert self.ready.first == (wanted[0] if wanted else None)
        assert self.ready.has_single == bool(self.alone)


ReadyMachine.TestCase.settings = settings(deadline=None)
TestReady = ReadyMachine.TestCase
