"""What every journal promises: files, beside and in place, memory, streams, and the faulty one.

Streams are those of a fake, and those of a real nats-server.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.journal.faulty import FaultyJournal
from tests.journal.samples import (
    Outcomes,
    State,
    commit,
    keys,
    payloads,
    read_batches,
    some_rows,
)
from tests.journal.servers import Servers
from tests.journal.streamed import Stream, StreamedJournal
from wirelake.errors import EngineError
from wirelake.journal.contract import Journal, Needed, Outcome, Space
from wirelake.journal.files import FilesJournal
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.memory import MemoryJournal
from wirelake.journal.record import (
    Change,
    Entry,
    Note,
    Put,
    QueueChanges,
    Record,
    Type,
    checkpoint,
    decode_entries,
    encode_entries,
)
from wirelake.journal.streams import Access


class InPlace(FilesJournal):
    """Files, of which every commit is made in place."""

    def append(self, commits, done, *, in_place=False):  # type: ignore[no-untyped-def]  # as there
        super().append(commits, done, in_place=True)


MAKERS: dict[str, Callable[[Path], Journal]] = {
    "files": lambda folder: FilesJournal(folder, partitions=4, tidy_every=0),
    "files in place": lambda folder: InPlace(folder, partitions=4, tidy_every=0),
    "small segments": lambda folder: FilesJournal(
        folder, partitions=4, segment_bytes=1, tidy_every=0
    ),
    "memory": lambda _: MemoryJournal(partitions=4),
    "streams": lambda _: StreamedJournal([Stream() for _ in range(4)], "a"),
    "faulty": lambda _: FaultyJournal(partitions=4),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A nats-server that syncs every write."""
    with Servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture(params=[*MAKERS, "JetStream"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    """A new journal with four partitions."""
    made: Journal
    if request.param == "JetStream":
        servers: Servers = request.getfixturevalue("server")
        settings = StreamSettings(prefix=secrets.token_hex(4), partitions=4, replicas=1)
        made = JetStreamJournal(tmp_path, Access(servers=servers.urls), settings, node="a")
    else:
        made = MAKERS[request.param](tmp_path)
    yield made
    made.close()


def test_a_new_partition_is_empty(journal: Journal) -> None:
    found = journal.recover(2)
    assert (found.partition, found.offset, found.slot) == (2, 0, 0)
    assert list(found.records) == []
    assert found.losses == journal.losses == []
    assert [(one.first, one.next, one.slot) for one in journal.positions()] == [(0, 0, 0)] * 4
    assert list(journal.read(2, 0, 100)) == []


def test_a_durable_commit_is_found_again(journal: Journal) -> None:
    journal.recover(1)
    assert commit(journal, 1, [keys({"a": b"1"}), keys({"b": b"2"})]) is Outcome.DURABLE
    assert commit(journal, 1, [keys({"a": b"3"}, 2)]) is Outcome.DURABLE
    assert State.of(journal.recover(1)).keys == {b"a": b"3", b"b": b"2"}
    assert State.of(journal.recover(0)).keys == {}


def test_an_epoch_is_higher_than_those_before_it(journal: Journal) -> None:
    first = journal.recover(0).epoch
    commit(journal, 0, [keys({"a": b"1"})])
    assert journal.recover(0).epoch > first


def test_an_append_has_an_outcome_for_each_partition(journal: Journal) -> None:
    for partition in range(4):
        journal.recover(partition)
    outcomes = Outcomes()
    journal.append({3: [keys({"a": b"1"})], 0: [keys({"b": b"2"})]}, outcomes)
    assert outcomes.wait(2) == {0: Outcome.DURABLE, 3: Outcome.DURABLE}
    assert [len(State.of(journal.recover(partition)).keys) for partition in range(4)] == [
        1,
        0,
        0,
        1,
    ]


def test_outcomes_come_in_order(journal: Journal) -> None:
    journal.recover(0)
    order: list[int] = []
    outcomes = Outcomes()
    for k in range(200):
        journal.append({0: [keys({"a": b"%d" % k})]}, partial(_note, order, k))
    journal.append({0: [keys({"a": b"last"})]}, outcomes)
    outcomes.wait()
    assert order == list(range(200))
    assert State.of(journal.recover(0)).keys == {b"a": b"last"}
    assert journal.backlog == 0


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


def test_an_answer_may_append(journal: Journal) -> None:
    journal.recover(0)
    outcomes = Outcomes()
    journal.append(
        {0: [keys({"a": b"1"})]},
        lambda _: journal.append({0: [keys({"b": b"2"})]}, outcomes, in_place=True),
        in_place=True,
    )
    assert outcomes.wait() == {0: Outcome.DURABLE}


def test_rows_are_read_by_offset(journal: Journal) -> None:
    journal.recover(1)
    commit(journal, 1, [some_rows(0, [b"a", b"b", b"c"])])
    commit(journal, 1, [some_rows(3, [b"d"]), keys({"k": b"v"}), some_rows(4, [b"e", b"f"])])
    everything = {k: bytes([97 + k]) for k in range(6)}
    assert payloads(journal, 1) == everything
    assert read_batches(journal.read(1, 1, 4)) == [(0, 3), (3, 1)]
    assert read_batches(journal.read(1, 5, 6)) == [(4, 2)]
    assert read_batches(journal.read(1, 6, 9)) == []
    position = journal.positions()[1]
    assert (position.first, position.next) == (0, 6)
    assert (position.first_time, position.last_time) == (1_000_000, 1_000_000)
    assert journal.recover(1).offset == 6


def test_rows_are_no_part_of_what_is_recovered(journal: Journal) -> None:
    journal.recover(1)
    commit(journal, 1, [some_rows(0, [b"a"]), keys({"k": b"v"})])
    assert [record.type for record in journal.recover(1).records] == [Type.KEYS]


def test_messages_have_slots_of_their_own(journal: Journal) -> None:
    journal.recover(1)
    commit(journal, 1, [some_rows(0, [b"a"]), some_rows(0, [b"x", b"y"], type=Type.MESSAGES)])
    assert payloads(journal, 1) == {0: b"a"}
    assert payloads(journal, 1, space=Space.PRIVATE) == {0: b"x", 1: b"y"}
    assert journal.positions()[1].slot == 2
    found = journal.recover(1)
    assert (found.offset, found.slot) == (1, 2)


def test_batches_without_a_matching_address_may_be_left_out(journal: Journal) -> None:
    journal.recover(0)
    commit(journal, 0, [some_rows(0, [b"a"], address="one"), some_rows(1, [b"b"], address="two")])
    found = list(journal.read(0, 0, 9, may_match=lambda address: address == "two"))
    assert read_batches(found) == [(1, 1)]


def test_a_place_is_never_given_twice(journal: Journal) -> None:
    journal.recover(0)
    commit(journal, 0, [some_rows(5, [b"a", b"b"]), some_rows(3, [b"x"], type=Type.MESSAGES)])
    with pytest.raises(EngineError, match="offset 6 of partition 0 was given before"):
        journal.append({0: [some_rows(6, [b"c"])]}, Outcomes())
    with pytest.raises(EngineError, match="slot 3 of partition 0 was given before"):
        journal.append({0: [some_rows(3, [b"c"], type=Type.MESSAGES)]}, Outcomes())
    assert commit(journal, 0, [some_rows(7, [b"c"])]) is Outcome.DURABLE
    assert payloads(journal, 0) == {5: b"a", 6: b"b", 7: b"c"}


def test_an_append_that_is_refused_appends_nothing(journal: Journal) -> None:
    journal.recover(0)
    journal.recover(1)
    commit(journal, 1, [some_rows(0, [b"a"])])
    for commits, why in [
        ({0: [keys({"a": b"1"})], 1: [some_rows(0, [b"b"])]}, "was given before"),
        ({0: [keys({"a": b"1"})], 2: [keys({"a": b"1"})]}, "partition 2 was not taken up"),
        ({0: [keys({"a": b"1"})], 1: []}, "the commit of partition 1 is empty"),
        ({0: [keys({"a": b"1"})], 4: [keys({"a": b"1"})]}, "there is no partition 4"),
    ]:
        with pytest.raises(EngineError, match=why):
            journal.append(commits, Outcomes())
    assert commit(journal, 0, [keys({"b": b"2"})]) is Outcome.DURABLE
    assert State.of(journal.recover(0)).keys == {b"b": b"2"}


def test_a_partition_that_is_not_there_is_an_error(journal: Journal) -> None:
    with pytest.raises(EngineError, match="there is no partition 4: the journal has 4"):
        journal.recover(4)
    with pytest.raises(EngineError, match="there is no partition -1"):
        list(journal.read(-1, 0, 1))


def test_recovery_begins_with_the_checkpoint(journal: Journal) -> None:
    journal.recover(0)
    for k in range(10):
        commit(journal, 0, [keys({f"old/{k}": b"1"})])
    begin = journal.positions()[0].number
    before = journal.positions()[0].since_checkpoint
    commit(journal, 0, [keys({"a": b"state"})])
    commit(journal, 0, [keys({"b": b"change between parts"})])
    commit(journal, 0, [keys({"c": b"state"}), checkpoint(begin)])
    commit(journal, 0, [keys({"d": b"change"})])
    assert State.of(journal.recover(0)).keys.keys() == {b"a", b"b", b"c", b"d"}
    assert journal.positions()[0].since_checkpoint < before


def test_a_checkpoint_of_one_partition_leaves_others_alone(journal: Journal) -> None:
    for partition in (0, 1):
        journal.recover(partition)
        commit(journal, partition, [keys({"old": b"1"})])
    commit(journal, 0, [checkpoint(journal.positions()[0].number)])
    assert State.of(journal.recover(0)).keys == {}
    assert State.of(journal.recover(1)).keys == {b"old": b"1"}


def test_what_is_needed_can_be_read(journal: Journal) -> None:
    journal.recover(0)
    for k in range(4):
        commit(journal, 0, [some_rows(k, [b"m%d" % k], type=Type.MESSAGES)])
    journal.keep(0, Needed(private=[(1, 2)], slot=3))
    found = payloads(journal, 0, space=Space.PRIVATE)
    assert found.keys() >= {1, 3}
    assert found[1] == b"m1"


def test_queue_changes_come_back_as_they_were(journal: Journal) -> None:
    changes = QueueChanges()
    changes.declare(7, 1, b'{"name": "jobs"}')
    changes.declare(8, 5, b"")
    sizes = array("q", [10, 20, 30])
    runs = [
        Put(7, 1, 1000, 50, False, 128),
        Put(7, 2000, 3, 0, True, sizes, 3, 0, array("q", [7, 8, 9])),
    ]
    for put in runs:
        changes.put(put)
    changes.attempt(7, 1, 10, 1)
    changes.attempt(7, 11, 5, 1)
    changes.attempt(7, 16, 1, 2)
    changes.drop(7, 5)
    changes.drop(7, 6, 4)
    changes.drop(8, 10)
    changes.remove(9)
    assert changes
    journal.recover(3)
    commit(journal, 3, [changes.record()])
    (record,) = journal.recover(3).records
    found = QueueChanges.parse(record.data)
    assert found.declared == [(7, 1, b'{"name": "jobs"}'), (8, 5, b"")]
    assert list(found.puts()) == runs
    assert list(found.attempts()) == [(7, 1, 15, 1), (7, 16, 1, 2)]
    assert list(found.drops()) == [(7, 5, 5), (8, 10, 1)]
    assert list(found.removed) == [9]


def test_runs_that_go_on_are_one_run() -> None:
    changes = QueueChanges()
    for k in range(1000):
        changes.put(Put(1, 1 + k, 1, 70 + k, size=9))
    assert list(changes.puts()) == [Put(1, 1, 1000, 70, size=9)]
    assert len(changes.record().data) < 200
    changes.put(Put(1, 1001, 1, 1070, size=10))
    assert len(list(changes.puts())) == 2


def test_an_attribute_has_one_value_for_each_message() -> None:
    with pytest.raises(ValueError, match="one value for each"):
        QueueChanges().put(Put(1, 1, 3, 0, size=array("q", [1])))


def test_entries_come_back_as_they_were(journal: Journal) -> None:
    entries = [
        Entry(Change.SET, b"a", b"\0value", 3, 9),
        Entry(Change.SET_ROW, b"b", b"", 4, 0, 12345),
        Entry(Change.DELETE, b"c", b"", 5),
        Entry(Change.FORGET, b"d"),
    ]
    notes = [
        Entry(Change.SET, b"id" * 500, b"", note=Note.SEEN),
        Entry(Change.SET, b"", b"", 7, 1 << 60, note=Note.SEEN),
    ]
    journal.recover(0)
    records = [encode_entries(Type.KEYS, entries), encode_entries(Type.NOTES, notes * 9)]
    commit(journal, 0, records)
    found = list(journal.recover(0).records)
    assert [record.type for record in found] == [Type.KEYS, Type.NOTES]
    assert list(decode_entries(found[0].data)) == entries
    assert list(decode_entries(found[1].data)) == notes * 9


def test_a_record_may_have_no_body(journal: Journal) -> None:
    journal.recover(0)
    assert commit(journal, 0, [Record(Type.NOTES)]) is Outcome.DURABLE
    assert [record.data for record in journal.recover(0).records] == [b""]


def test_a_closed_journal_takes_nothing(journal: Journal) -> None:
    journal.recover(0)
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"1"})]}, outcomes)
    journal.close()
    assert outcomes.wait() == {0: Outcome.DURABLE}
    journal.close()
    with pytest.raises(EngineError, match="the journal is closed"):
        journal.append({0: [keys({"a": b"1"})]}, Outcomes())
    with pytest.raises(EngineError, match="the journal is closed"):
        journal.recover(0)


def test_who_takes_a_partition_up_fences_its_owner_before() -> None:
    streams = [Stream(), Stream()]
    first, second = StreamedJournal(streams, "a"), StreamedJournal(streams, "b")
    for partition in (0, 1):
        first.recover(partition)
    commit(first, 0, [keys({"a": b"1"})])
    assert State.of(second.recover(0)).keys == {b"a": b"1"}
    outcomes = Outcomes()
    first.append({0: [keys({"a": b"2"})], 1: [keys({"a": b"2"})]}, outcomes)
    first.append({0: [keys({"a": b"3"})]}, outcomes)
    assert outcomes.told == [{0: Outcome.LOST}, {1: Outcome.DURABLE}, {0: Outcome.LOST}]
    assert commit(second, 0, [keys({"b": b"4"})]) is Outcome.DURABLE
    found = first.recover(0)
    assert found.epoch == 3
    assert State.of(found).keys == {b"a": b"1", b"b": b"4"}
    assert commit(second, 0, [keys({"b": b"5"})]) is Outcome.LOST


# What only the faulty one can show, and an owner has to live with.


def test_a_fenced_owner_has_lost_its_partition() -> None:
    journal = FaultyJournal()
    journal.recover(0)
    journal.recover(1)
    journal.fence(0)
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"1"})], 1: [keys({"a": b"1"})]}, outcomes)
    journal.append({0: [keys({"a": b"2"})]}, outcomes)
    assert outcomes.told == [{0: Outcome.LOST}, {1: Outcome.DURABLE}, {0: Outcome.LOST}]
    assert State.of(journal.recover(0)).keys == {}
    assert commit(journal, 0, [keys({"a": b"3"})]) is Outcome.DURABLE


@pytest.mark.parametrize("stored", [False, True])
def test_after_unavailable_only_recovery_tells(stored: bool) -> None:
    journal = FaultyJournal(held=True)
    journal.recover(0)
    (journal.lose_answer if stored else journal.refuse)(0)
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"1"})]}, outcomes)
    journal.append({0: [keys({"b": b"2"})]}, outcomes)
    assert journal.backlog > 0
    with pytest.raises(EngineError, match="has appends under way"):
        journal.recover(0)
    journal.release()
    assert outcomes.told == [{0: Outcome.UNAVAILABLE}] * 2
    found = State.of(journal.recover(0)).keys
    assert found == ({b"a": b"1"} if stored else {})


def test_what_is_held_is_unavailable_when_the_journal_is_closed() -> None:
    journal = FaultyJournal(held=True)
    journal.recover(0)
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"1"})]}, outcomes)
    journal.close()
    assert outcomes.told == [{0: Outcome.UNAVAILABLE}]
