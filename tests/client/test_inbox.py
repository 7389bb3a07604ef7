"""What comes to a client by its name before its program listens, while it does, and after."""

from __future__ import annotations

import asyncio

import pytest

from wirelake.client import inbox
from wirelake.client.inbox import Inbox, Listeners


def listeners(limit: int) -> tuple[Listeners[int], list[int]]:
    """Listeners for numbers, and what of them nobody took."""
    unwanted: list[int] = []
    return Listeners(Inbox(limit, 1000), unwanted.append, one=True), unwanted


async def test_the_first_listener_gets_what_came_before_it() -> None:
    some, unwanted = listeners(2)
    for number in range(3):
        some.put(number, 1)
    assert unwanted == [2]  # there was no room for it to wait
    taken = Inbox[int](10, 1000)
    some.add(taken)
    some.put(3, 1)
    assert [await taken.get() for _ in range(3)] == [0, 1, 3]
    some.put(4, 1)
    some.remove(taken)
    some.put(5, 1)
    assert unwanted == [2, 4, 5]


async def test_what_nobody_listens_for_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "PATIENCE", 0.01)
    some, unwanted = listeners(10)
    some.put(0, 1)
    some.put(1, 1)
    assert unwanted == []
    while not unwanted:
        await asyncio.sleep(0.001)
    some.put(2, 1)
    assert unwanted == [0, 1, 2]
