"""Partitions of a journal that nodes share, as ownership needs them: the journal and the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from wirelake.cluster.ownership import Ownership, rank
from wirelake.errors import EngineError
from wirelake.journal.contract import Recovered
from wirelake.journal.engine import Engine
from wirelake.journal.jetstream import JetStreamJournal

log = logging.getLogger("wirelake.cluster")


class SharedPartitions:
    """Takes partitions up and lets them go, and follows those that it stands by for.

    The engine was made with `adopted=()`: what is here is decided by ownership alone.
    """

    def __init__(self, engine: Engine, journal: JetStreamJournal) -> None:
        self._engine = engine
        self._journal = journal
        self._found: dict[int, Recovered] = {}  # what was taken up and is not served yet
        self._followed: set[int] = set()
        self._letting_go: set[int] = set()
        # Held by who takes a partition up or follows it: to follow one that was just taken up would
        # end its ownership.
        self._locks = [asyncio.Lock() for _ in range(journal.partitions)]
        #: Told of a partition that the engine has lost, as by a fence.
        self.on_lost: Callable[[int], object] = lambda partition: None
        engine.listeners.append(self._changed)

    def _changed(self, partition: int, is_here: bool) -> None:
        if not is_here and partition not in self._letting_go:
            self.on_lost(partition)

    async def take_up(self, partition: int) -> tuple[int, float]:
        """Fence everybody else and replay; return the epoch, and when its record was sent.

        Raises EngineError where it cannot be done now.
        """
        async with self._locks[partition]:
            sent = time.monotonic()
            found = await asyncio.to_thread(self._journal.recover, partition)
            self._followed.discard(partition)
            self._found[partition] = found
            return found.epoch, sent

    def serve(self, partition: int) -> None:
        """Work the state of a partition out, and accept requests for it from now on."""
        try:
            self._engine.adopt(partition, self._found.pop(partition, None))
        except EngineError as error:  # to take it up again may help
            log.error("partition %d is not served: %s", partition, error)
            self.on_lost(partition)

    async def let_go(self, partition: int) -> None:
        """Accept nothing more, wait until all that was appended is durable, forget the state."""
        self._engine.end_turn()
        self.drop(partition)
        settled = asyncio.get_running_loop().create_future()
        self._engine.after(lambda: _settle(settled), failed=lambda: _settle(settled))
        await settled

    def drop(self, partition: int) -> None:
        """Forget the state of a partition that somebody else has."""
        self._found.pop(partition, None)
        self._letting_go.add(partition)
        try:
            self._engine.lose(partition)
        finally:
            self._letting_go.discard(partition)

    async def stand_by(self, ownership: Ownership) -> None:
        """Follow the partitions that this node would take over next, and no others.

        To be called again after every change of members and owners.
        """
        for partition, lock in enumerate(self._locks):
            async with lock:
                try:
                    await self._follow(partition, ownership)
                except EngineError as error:  # appends are under way: the next call tries again
                    log.info("partition %d is not followed yet: %s", partition, error)

    async def _follow(self, partition: int, ownership: Ownership) -> None:
        """Follow a partition, or end that, as ownership is now."""
        me, owner = ownership.members.me.node, ownership.owner(partition)
        if owner in ("", me) or partition in self._found or self._engine.is_here(partition):
            return
        heirs = [name for name in ownership.members.alive() if name != owner]
        is_heir = max(heirs, key=lambda name: rank(name, partition), default="") == me
        if is_heir and partition not in self._followed:
            await asyncio.to_thread(self._journal.follow, partition)
            self._followed.add(partition)
        elif not is_heir and partition in self._followed:
            await asyncio.to_thread(self._journal.unfollow, partition)
            self._followed.discard(partition)

    def lag(self) -> dict[int, int]:
        """How many messages each copy of another node's partition is behind."""
        return {one: self._journal.lag(one).messages for one in sorted(self._followed)}

    def lag_seconds(self) -> dict[int, float]:
        """Seconds since each copy of another node's partition was last level with its stream."""
        return {one: self._journal.lag(one).seconds for one in sorted(self._followed)}


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
