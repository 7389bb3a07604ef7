"""Partitions of an engine come and go: fenced, unavailable, refused, taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.journal.faulty import FaultyJournal
from wirelake.errors import EngineError
from wirelake.journal.contract import Done
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Record
from wirelake.message import Message


def name_in(engine: Engine, partition: int, prefix: str = "n") -> str:
    """A name that belongs to a partition."""
    return next(name for k in count() if engine.home(name := f"{prefix}{k}") == partition)


def set_key(engine: Engine, partition: int, value: bytes, told: list[str] | None = None) -> None:
    """Write a key of a partition, and note what becomes of it."""
    engine.write_entry(Entry(name_in(engine, partition), 1, value))
    if told is not None:
        text = f"{partition} {value.decode()}"
        engine.after(
            lambda: told.append(f"{text} done"),
            failed=lambda: told.append(f"{text} failed"),
            partition=partition,
        )


def values(engine: Engine, partition: int) -> list[bytes | None]:
    """The values of a partition's keys."""
    return [entry.value for _, entry in engine.entries(partition)]


def test_a_partition_that_is_fenced_is_lost_and_the_others_go_on() -> None:
    journal = FaultyJournal()
    engine = Engine(journal)
    changes: list[tuple[int, bool]] = []
    engine.listeners.append(lambda *change: changes.append(change))
    told: list[str] = []
    set_key(engine, 1, b"old", told)
    journal.fence(1)
    set_key(engine, 1, b"new", told)
    assert told == ["1 old done", "1 new failed"]
    assert changes == [(1, False)]
    assert not engine.is_here(1)
    assert values(engine, 1) == []
    assert "another owner" in engine.trouble
    assert "another owner" in engine.trouble_of(name_in(engine, 1))
    assert engine.trouble_of(name_in(engine, 2)) == ""
    with pytest.raises(EngineError, match="another owner"):
        set_key(engine, 1, b"more")
    set_key(engine, 2, b"other", told)
    assert told[-1] == "2 other done"
    engine.adopt(1)
    assert changes == [(1, False), (1, True)]
    assert engine.trouble == ""
    assert values(engine, 1) == [b"old"]
    set_key(engine, 1, b"newer", told)
    assert told[-1] == "1 newer done"
    assert values(engine, 1) == [b"newer"]
    engine.close()


@pytest.mark.parametrize("stored", [True, False])
def test_after_unavailable_the_state_is_what_the_journal_has(stored: bool) -> None:
    journal = FaultyJournal()
    engine = Engine(journal)
    told: list[str] = []
    set_key(engine, 1, b"old", told)
    (journal.lose_answer if stored else journal.refuse)(1)
    set_key(engine, 1, b"new", told)
    assert told[-1] == "1 new failed"
    assert engine.is_here(1), "nobody else owns it: it is taken up again"
    assert values(engine, 1) == [b"new" if stored else b"old"]
    set_key(engine, 1, b"newer", told)
    assert told[-1] == "1 newer done"
    engine.close()


def test_queues_ids_and_places_go_back_to_what_is_durable() -> None:
    journal = FaultyJournal()
    engine = Engine(journal)
    queue = name_in(engine, 3)

    def put(sequence: int, payload: bytes) -> None:
        message = Message(address=queue, payload=payload)
        engine.put(Stored(queue, sequence, message), captured=sequence % 2 == 0)
        engine.remember_id(queue, payload.decode(), 1e12)
        engine.end_turn()

    engine.declare(QueueSettings(queue))
    for k in range(1, 5):
        put(k, b"m%d" % k)
    journal.refuse(3)
    engine.drop(queue, 1)
    put(5, b"m5")
    assert [one.sequence for one in engine.stored(queue)] == [1, 2, 3, 4]
    assert [identity for identity, _ in engine.remembered_ids(queue)] == ["m1", "m2", "m3", "m4"]
    following = engine.next_sequence(queue)
    assert following > 5, "a sequence is never given twice, even where its message was not kept"
    put(following, b"again")
    assert [one.message.payload for one in engine.stored(queue)][-1] == b"again"
    offsets = [position.next for position in engine.positions()]
    assert offsets[3] == 2 + (following % 2 == 0)
    engine.close()


class Refusing(FilesJournal):
    """Files that refuse the next append of some partitions outright."""

    refused: frozenset[int] = frozenset()

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        if self.refused & commits.keys():
            self.refused = frozenset()
            raise EngineError("a record is too large")
        super().append(commits, done, in_place=in_place)


def test_a_commit_that_is_refused_outright_leaves_no_trace_in_memory(tmp_path: Path) -> None:
    journal = Refusing(tmp_path, tidy_every=0)
    engine = Engine(journal)
    told: list[str] = []
    for partition in range(4):
        set_key(engine, partition, b"old", told)
    journal.refused = frozenset({1})
    set_key(engine, 1, b"new", told)
    assert told[-1] == "1 new failed"
    assert values(engine, 1) == [b"old"]
    assert "a commit was refused by the journal: a record is too large" in engine.damage
    assert engine.trouble == ""
    set_key(engine, 1, b"newer", told)
    assert told[-1] == "1 newer done"
    engine.close()
    again = Engine(FilesJournal(tmp_path, tidy_every=0))
    assert [values(again, partition) for partition in range(4)] == [
        [b"old"], [b"newer"], [b"old"], [b"old"],
    ]  # fmt: skip
    again.close()


async def test_a_refusal_while_others_are_under_way_waits_for_their_outcomes(
    tmp_path: Path,
) -> None:
    journal = Refusing(tmp_path, tidy_every=0)
    engine = Engine(journal, loop=asyncio.get_running_loop())
    told: list[str] = []
    for k in range(20):
        set_key(engine, 1, b"%d" % k, told)
        set_key(engine, 2, b"%d" % k, told)
        engine.end_turn()
    journal.refused = frozenset({1})
    set_key(engine, 1, b"refused", told)
    engine.end_turn()
    ends = asyncio.get_running_loop().time() + 60
    while not engine.is_here(1) or len(told) < 41:
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.01)
    done = [f"{p} {k} done" for k in range(20) for p in (1, 2)]
    assert told == [*done, "1 refused failed"]
    assert values(engine, 1) == values(engine, 2) == [b"19"]
    engine.close()


def test_what_was_written_in_the_turn_goes_with_the_partition() -> None:
    engine = Engine(FaultyJournal(), adopted=range(4))
    told: list[str] = []
    engine.write_entry(Entry(name_in(engine, 1), 1, b"thrown away"))
    engine.write_entry(Entry(name_in(engine, 2), 1, b"kept"))
    engine.lose(1)
    engine.after(lambda: told.append("both"), failed=lambda: told.append("not both"))
    set_key(engine, 2, b"later", told)
    assert told == ["not both", "2 later done"]
    engine.adopt(1)
    assert (values(engine, 1), values(engine, 2)) == ([], [b"later"])
    engine.close()


def test_an_engine_may_begin_with_some_partitions() -> None:
    engine = Engine(FaultyJournal(), adopted=[2])
    assert [engine.is_here(partition) for partition in range(4)] == [False, False, True, False]
    assert engine.trouble == "", "others have them, which is no trouble"
    with pytest.raises(EngineError, match="partition 0 is not here"):
        set_key(engine, 0, b"x")
    with pytest.raises(EngineError, match="partition 0 is not here"):
        engine.declare(QueueSettings(name_in(engine, 0)))
    engine.adopt(0)
    engine.adopt(0)
    set_key(engine, 0, b"x")
    engine.end_turn()
    engine.lose(2)
    engine.lose(2)
    assert (values(engine, 0), engine.is_here(2)) == ([b"x"], False)
    engine.checkpoint()
    engine.close()


def test_rows_for_a_partition_that_is_not_here_are_not_acknowledged() -> None:
    engine = Engine(FaultyJournal(), adopted=[0])
    told: list[str] = []
    engine.write(Message(address=name_in(engine, 1)), 1)
    engine.write(Message(address=name_in(engine, 0)), 1)
    engine.after(lambda: told.append("done"), failed=lambda: told.append("failed"))
    assert told == ["failed"]
    assert [position.next for position in engine.positions()] == [1, 0, 0, 0]
    engine.close()


def test_a_partition_that_others_own_is_not_taken_back() -> None:
    journal = FaultyJournal()
    engine = Engine(journal, adopted=range(4))
    told: list[str] = []
    journal.refuse(1)
    set_key(engine, 1, b"x", told)
    set_key(engine, 2, b"x", told)
    assert told == ["1 x failed", "2 x done"]
    assert not engine.is_here(1), "its owner is decided elsewhere"
    engine.adopt(1)
    assert values(engine, 1) == []
    engine.close()


def test_a_partition_is_lost_while_its_state_is_written_again() -> None:
    journal = FaultyJournal()
    engine = Engine(journal, checkpoint_bytes=1)
    told: list[str] = []
    for k in range(5):
        set_key(engine, 1, b"%d" % k, told)
    journal.refuse(1)
    set_key(engine, 1, b"lost", told)
    set_key(engine, 1, b"kept", told)
    assert told[-2:] == ["1 lost failed", "1 kept done"]
    engine.close()
