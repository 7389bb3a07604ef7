"""Heartbeats, and who is alive by a node's own clock."""

from __future__ import annotations

import msgspec
import pytest

from wirelake.cluster.members import MAX_HEARTBEAT, Heartbeat, Members, Timing, hash_settings

TIMING = Timing(beat=0.5, dead=2.0)


def members(now: float = 0.0, **options: int) -> Members:
    return Members(Heartbeat("me", "me-1", version="0.2", format=1), now, TIMING, **options)


def beat(node: str, number: int, life: str = "1", **said: object) -> bytes:
    made = Heartbeat(node, life, number, version="0.2", format=1)
    return msgspec.json.encode(msgspec.structs.replace(made, **said))


def pass_time(one: Members, begin: float, end: float) -> None:
    """Let time pass in steps of a tenth of a second."""
    for k in range(1, round((end - begin) * 10) + 1):
        one.step(begin + k / 10)


def kinds(one: Members) -> list[tuple[str, str]]:
    return [(event.kind, event.node) for event in one.events]


def test_a_member_is_alive_while_its_heartbeats_come() -> None:
    one = members()
    one.hear(beat("ann", 1), 0.0)
    pass_time(one, 0.0, 1.9)
    assert set(one.alive()) == {"me", "ann"}
    one.hear(beat("ann", 2), 1.9)
    pass_time(one, 1.9, 3.8)
    assert "ann" in one.alive()
    pass_time(one, 3.8, 4.0)
    assert set(one.alive()) == {"me"}
    assert kinds(one) == [("member_joined", "ann"), ("member_lost", "ann")]


def test_a_late_heartbeat_proves_nothing() -> None:
    one = members()
    one.hear(beat("ann", 5), 0.0)
    pass_time(one, 0.0, 1.5)
    one.hear(beat("ann", 4), 1.5)
    one.hear(beat("ann", 5), 1.5)
    pass_time(one, 1.5, 2.1)
    assert "ann" not in one.alive()


def test_who_leaves_is_gone_at_once_and_stays_gone() -> None:
    one = members()
    one.hear(beat("ann", 1), 0.0)
    one.hear(beat("ann", 2, leaving=True), 0.1)
    assert "ann" not in one.alive()
    one.hear(beat("ann", 1), 0.2)
    one.hear(beat("ann", 3), 0.2)
    assert "ann" not in one.alive()
    one.hear(beat("ann", 1, life="2"), 0.3)
    assert one.alive()["ann"].heartbeat.life == "2"


def test_a_node_that_slept_does_not_take_the_others_for_dead() -> None:
    one = members()
    one.hear(beat("ann", 1), 0.0)
    pass_time(one, 0.0, 1.0)
    one.step(100.0)
    assert "ann" in one.alive()
    pass_time(one, 100.0, 101.5)
    assert "ann" not in one.alive()


def test_a_node_that_does_not_hear_itself_is_deaf() -> None:
    one = members()
    for k in range(30):
        one.hear(one.beat(), k / 10)
        one.step(k / 10)
    assert not one.is_deaf(2.9)
    assert one.is_settled(2.9)
    pass_time(one, 2.9, 5.0)
    assert one.is_deaf(5.0)
    assert not one.is_settled(5.0)


def test_a_node_that_started_again_is_another_member() -> None:
    one = members()
    one.hear(beat("ann", 9), 0.0)
    one.hear(beat("ann", 1, life="2"), 0.1)
    assert one.alive()["ann"].heartbeat.life == "2"
    assert one.alive()["ann"].since == 0.1


def test_the_younger_of_one_name_gives_way_when_it_hears_two_in_a_row() -> None:
    one = members()
    one.beat()
    one.hear(beat("me", 70, life="0", age=35.0), 0.0)
    seconds = [one.is_second]  # that may be the last word of its predecessor
    one.hear(beat("me", 71, life="0", age=35.5), 0.5)
    assert [*seconds, one.is_second] == [False, True]
    assert kinds(one) == [("name_in_use", "me")]
    old = members()
    old.beat(age=50.0)
    for number in range(100, 105):  # however many it has sent
        old.hear(beat("me", number, life="9", age=1.0), 1.0)
    assert not old.is_second


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"node": 1}', b"\xff", b"x" * 100_000])
def test_what_is_no_heartbeat_is_counted(data: bytes) -> None:
    one = members()
    one.hear(data, 0.0)
    one.hear(data, 0.0)
    assert one.refused == 2
    assert kinds(one) == [("bad_heartbeat", "?")]
    assert set(one.alive()) == {"me"}


def test_a_heartbeat_of_a_newer_version_is_understood() -> None:
    one = members()
    one.hear(b'{"node": "ann", "life": "1", "number": 1, "version": "9", "colour": "red"}', 0.0)
    assert "ann" in one.alive()
    assert ("versions_differ", "ann") in kinds(one)


def test_there_are_no_more_members_than_allowed() -> None:
    one = members(most=3)
    for name in ("a", "b", "c", "d"):
        one.hear(beat(name, 1), 0.0)
    assert set(one.alive()) == {"me", "a", "b"}
    assert "there are 3 members (cluster.members)" in one.events[-1].text


def test_differences_are_told_once() -> None:
    one = members()
    for number in range(1, 4):
        one.hear(beat("ann", number, settings="x"), 0.0)
    assert kinds(one).count(("settings_differ", "ann")) == 1
    assert hash_settings([b"a", b"bc"]) != hash_settings([b"ab", b"c"])


def test_a_heartbeat_of_the_largest_cluster_fits() -> None:
    one = members()
    lag = dict.fromkeys(range(1024), 1 << 40)
    owned = tuple(range(1024))
    assert len(one.beat(owned=owned, lag=lag)) < MAX_HEARTBEAT
