"""Proofs of ownership, on a journal in memory: when they are made, and which of them count."""

from __future__ import annotations

from wirelake.broker.proof import Proof, Waiting
from wirelake.journal.engine import Engine
from wirelake.journal.memory import MemoryJournal


class Owner:
    """A node that shares its one partition with others, and a lease that a test sets."""

    def __init__(self) -> None:
        self.engine = Engine(MemoryJournal(partitions=1), adopted=[0])
        #: What the next questions about the lease are answered, and all after them.
        self.leases: list[bool] = []
        self.engine.may_read = lambda partition: self.leases.pop(0) if self.leases else False
        self.deliveries: list[bool] = []
        self.proof = Proof(self.engine, "work", self.deliver)

    def deliver(self, waiting: list[Waiting]) -> None:
        """Note whether something may be delivered now."""
        self.deliveries.append(self.proof.holds())

    @property
    def commits(self) -> int:
        """How often something was appended."""
        return self.engine.statistics.commits


def test_a_lease_that_runs_costs_no_append() -> None:
    owner = Owner()
    before = owner.commits
    owner.leases = [True]
    assert owner.proof.holds()
    assert (owner.commits - before, owner.deliveries) == (0, [])


def test_an_append_within_the_lease_is_a_proof() -> None:
    owner = Owner()
    before = owner.commits
    owner.leases = [False, False, True]  # asked for, written, durable in time
    assert not owner.proof.holds()
    assert (owner.commits - before, owner.deliveries) == (1, [True])


def test_an_append_that_took_longer_than_the_lease_is_repeated_once() -> None:
    owner = Owner()
    before = owner.commits
    assert not owner.proof.holds()
    assert (owner.commits - before, owner.deliveries) == (2, [True])
    assert not owner.proof.holds(), "it held for one delivery"
    assert (owner.commits - before, owner.deliveries) == (4, [True, True])


def test_who_has_lost_the_partition_proves_nothing() -> None:
    owner = Owner()
    before = owner.commits
    assert owner.proof.end() == []
    assert not owner.proof.holds()
    assert (owner.commits - before, owner.deliveries) == (0, [])
