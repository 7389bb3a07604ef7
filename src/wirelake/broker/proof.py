"""Proofs that a node of a cluster owns what it delivers.

A node that was replaced and does not know it yet has messages that were acknowledged elsewhere. So
a node delivers while its lease on the partition runs, and after that once an append has shown that
it still is the owner (decision 91).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from wirelake.broker.endpoint import Endpoint
from wirelake.journal.engine import Engine

#: A session, and what is to be done for it once there is a proof.
Waiting: TypeAlias = tuple[Endpoint, Callable[[], object]]


class Proof:
    """Tells whether this node certainly owns a name's partition, and proves it where need be.

    A proof that takes longer than the lease tells who was the owner, not who is. It is repeated
    once: a node that was cut off, and hears late of an append that went through before, is fenced
    by the second one. Where all appends take so long, the second one counts.
    """

    __slots__ = (
        "_engine",
        "_has_ended",
        "_is_fresh",
        "_is_second",
        "_is_under_way",
        "_partition",
        "_then",
        "_waiting",
    )

    def __init__(self, engine: Engine, name: str, then: Callable[[list[Waiting]], object]) -> None:
        """`then` is called with those who wait when there is a proof, which holds during the call.

        It is not called where the partition is lost: whoever loses it calls `end`.
        """
        self._engine = engine
        self._partition = engine.home(name)
        self._then = then
        self._waiting: list[Waiting] = []
        self._is_under_way = self._is_second = self._is_fresh = self._has_ended = False

    def holds(self) -> bool:
        """Return whether this node is the owner; where that is not certain, begin to prove it."""
        if self._is_fresh or self._engine.may_read(self._partition):
            return True
        if not self._is_under_way and not self._has_ended:
            self._begin()
        return False

    def wait(self, session: Endpoint, action: Callable[[], object]) -> None:
        """Give this to `then` when there is a proof."""
        self._waiting.append((session, action))

    def end(self) -> list[Waiting]:
        """Prove nothing more; return those who wait."""
        self._has_ended = True
        waiting, self._waiting = self._waiting, []
        return waiting

    def _begin(self) -> None:
        self._is_under_way = True
        self._engine.prove(self._partition)
        self._engine.after(self._came, partition=self._partition)

    def _came(self) -> None:
        """All that was written before is durable."""
        self._is_under_way = False
        if self._has_ended:
            return
        if not self._is_second and not self._engine.may_read(self._partition):
            self._is_second = True
            self._begin()
            return
        self._is_second, self._is_fresh = False, True
        waiting, self._waiting = self._waiting, []
        try:
            self._then(waiting)
        finally:
            self._is_fresh = False
