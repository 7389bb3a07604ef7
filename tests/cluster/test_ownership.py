"""Decisions about owners: targets, take-overs, leases and hand-overs, told step by step."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from wirelake.cluster.members import Heartbeat, Members, Timing
from wirelake.cluster.ownership import (
    Action,
    Drop,
    LetGo,
    Ownership,
    Phase,
    Place,
    Read,
    Serve,
    TakeUp,
    Write,
    decode_table,
    encode_table,
    rank,
)
from wirelake.errors import EngineError

TIMING = Timing(beat=0.5, dead=2.0, lease=1.0, drift=0.25)


class One:
    """A node of a cluster with one partition, whose time is a number."""

    def __init__(self, others: tuple[str, ...] = (), partitions: int = 1) -> None:
        self.now = 100.0
        self.members = Members(Heartbeat("me", "1"), self.now, TIMING)
        self.ownership = Ownership(self.members, partitions)
        self.others = list(others)
        self.number = 0

    def pass_time(self, seconds: float) -> list[Action]:
        """Let time pass while everybody beats; return what was decided."""
        actions = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.number += 1
            self.members.hear(self.members.beat(), self.now)
            for name in self.others:
                said = msgspec.json.encode(Heartbeat(name, "1", self.number))
                self.members.hear(said, self.now)
            self.members.step(self.now)
            actions += self.ownership.step(self.now)
        return actions

    def own(self, epoch: int = 1) -> None:
        """Let this node take its partition over from nobody."""
        assert self.pass_time(0.1) == [Read()]
        self.ownership.read(None, 0)
        [write] = self.pass_time(2.5)
        assert isinstance(write, Write)
        self.ownership.wrote(1)
        assert self.pass_time(0.1) == [TakeUp(0)]
        self.ownership.taken_up(0, epoch, self.now, self.now)


def test_a_new_cluster_is_taken_when_the_node_has_listened_long_enough() -> None:
    one = One()
    assert one.pass_time(0.1) == [Read()]
    one.ownership.read(None, 0)
    assert one.pass_time(1.8) == []
    [write] = one.pass_time(0.5)
    assert write == Write((Place("me", "1"),), 0)
    one.ownership.wrote(1)
    assert one.pass_time(0.1) == [TakeUp(0)]
    assert one.ownership.taken_up(0, 1, one.now, one.now) == [Serve(0)]


def test_whoever_takes_over_waits_for_the_lease_of_the_owner_before() -> None:
    one = One()
    one.own(epoch=7)
    assert one.ownership.phase(0) is Phase.WAITING
    assert one.pass_time(1.2) == []
    assert not one.ownership.is_serving(0)
    assert one.pass_time(0.2) == [Serve(0)]


def test_nobody_waits_after_a_hand_over() -> None:
    one = One()
    assert one.pass_time(0.1) == [Read()]
    one.ownership.read((Place("me", "1", freed=6),), 4)
    assert one.pass_time(0.1) == [TakeUp(0)]
    assert one.ownership.taken_up(0, 7, one.now, one.now) == [Serve(0)]


def test_a_hand_over_that_somebody_came_before_is_waited_for() -> None:
    one = One()
    one.pass_time(0.1)
    one.ownership.read((Place("me", "1", freed=5),), 4)
    one.pass_time(0.1)
    assert one.ownership.taken_up(0, 7, one.now, one.now) == []


def test_reads_are_answered_while_the_lease_runs() -> None:
    one = One()
    one.own()
    sent = one.now
    assert one.ownership.may_read(0, sent + 0.99)
    assert not one.ownership.may_read(0, sent + 1.0)
    one.ownership.proved(0, sent + 0.5)
    assert one.ownership.may_read(0, sent + 1.49)
    one.ownership.proved(0, sent + 0.1)  # an answer that came late proves nothing new
    assert one.ownership.may_read(0, sent + 1.49)
    assert one.ownership.is_serving(0)
    one.ownership.lost(0, sent)
    assert not one.ownership.may_read(0, sent + 0.1)


def test_a_live_owner_is_left_alone_and_a_dead_one_is_not() -> None:
    one = One(("ann",))
    one.pass_time(0.1)
    one.ownership.read((Place("ann", "1"),), 3)
    assert one.pass_time(2.0) == []
    one.others.clear()
    assert one.pass_time(1.5) == []
    [write] = one.pass_time(1.0)
    assert write == Write((Place("me", "1"),), 3)


def test_a_node_that_hears_nothing_takes_nothing() -> None:
    one = One(("ann",))
    one.pass_time(0.1)
    one.ownership.read((Place("ann", "1"),), 3)
    one.pass_time(3.0)
    actions = []
    for _ in range(60):
        one.now += 0.1
        one.members.step(one.now)
        actions += one.ownership.step(one.now)
    assert "ann" not in one.members.alive()
    assert set(actions) <= {Read()}


def test_a_fenced_owner_does_not_take_its_partition_back_by_an_old_table() -> None:
    one = One()
    one.own()
    assert one.ownership.lost(0, one.now) == [Drop(0)]
    assert one.pass_time(0.1) == [Read()]
    one.ownership.read(one.ownership.table, 1)
    assert one.pass_time(1.5) == []
    one.ownership.read((Place("ann", "1"),), 2)
    assert TakeUp(0) not in one.pass_time(1.0)


def test_a_stop_hands_over_to_the_next_and_says_in_which_epoch() -> None:
    one = One(("ann",))
    assert one.pass_time(0.1) == [Read()]
    one.ownership.read((Place("me", "1"),), 2)
    assert one.pass_time(0.1) == [TakeUp(0)]
    one.ownership.taken_up(0, 1, one.now, one.now)
    one.ownership.is_leaving = True
    assert one.pass_time(0.1) == [LetGo(0)]
    assert not one.ownership.is_serving(0)
    one.ownership.let_go(0)
    [write] = [act for act in one.pass_time(0.1) if isinstance(act, Write)]
    assert write.table == (Place("ann", "1", freed=1),)
    assert not one.ownership.has_let_go
    one.ownership.wrote(3)
    one.pass_time(0.1)
    assert one.ownership.has_let_go


def test_the_last_node_leaves_its_partitions_free() -> None:
    one = One()
    one.own()
    one.ownership.is_leaving = True
    assert one.pass_time(0.1) == [LetGo(0)]
    one.ownership.let_go(0)
    [write] = [act for act in one.pass_time(0.1) if isinstance(act, Write)]
    assert write.table == (Place("", "", freed=1),)


def test_a_write_that_failed_is_followed_by_a_read() -> None:
    one = One()
    one.pass_time(0.1)
    one.ownership.read(None, 0)
    one.pass_time(2.5)
    one.ownership.write_failed()
    assert one.pass_time(0.1) == [Read()]
    one.ownership.read_failed()
    assert one.pass_time(0.1) == [Read()]


def test_an_older_table_is_not_believed() -> None:
    one = One(("ann",))
    one.pass_time(0.1)
    one.ownership.read((Place("ann", "1"),), 5)
    one.ownership.read((Place("me", "1"),), 4)
    assert one.ownership.owner(0) == "ann"


def test_a_member_that_goes_moves_its_own_share_alone() -> None:
    names = [f"n{k}" for k in range(8)]
    before = [max(names, key=lambda name: rank(name, k)) for k in range(1024)]
    after = [max(names[1:], key=lambda name: rank(name, k)) for k in range(1024)]
    assert all(one == "n0" or one == other for one, other in zip(before, after, strict=True))
    assert all(80 < share < 180 for share in Counter(before).values())


def test_the_table_survives_and_what_is_none_is_refused() -> None:
    table = (Place("a", "1", 3, "b"), Place())
    assert decode_table(encode_table(table), 2) == table
    with pytest.raises(EngineError, match="the cluster has 2 partitions, not 4"):
        decode_table(encode_table(table), 4)
    with pytest.raises(EngineError, match="cannot be read"):
        decode_table(b"{", 2)
    with pytest.raises(EngineError, match="has version 2, this node reads 1"):
        decode_table(b'{"version": 2, "places": []}', 0)
