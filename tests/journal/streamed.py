"""A journal over streams that many nodes share, as JetStream's are: one message is one commit.

It shows that the contract and the records serve such a journal as they are: the fence is the
expected sequence of an append, and a partition is taken up by an epoch record behind what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from wirelake.errors import EngineError
from wirelake.journal.contract import (
    Batch,
    Done,
    Journal,
    Needed,
    Outcome,
    Position,
    Recovered,
    Space,
    check_partition,
)
from wirelake.journal.record import (
    HEADER,
    PLACED,
    End,
    Header,
    Record,
    Type,
    encode_commit,
    is_whole,
    parse_header,
    split_rows,
)

MARK = b"streamed"
_SPACES = {Type.ROWS: Space.LOG, Type.KEPT: Space.KEPT, Type.MESSAGES: Space.PRIVATE}


class WrongSequenceError(Exception):
    """Somebody else wrote to the stream."""


class Stream:
    """What a server keeps of a stream."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._ids: dict[str, int] = {}

    def publish(self, data: bytes, message_id: str, expected: int) -> int:
        """Add a message behind the one of this sequence; a retry gets the first answer."""
        if message_id not in self._ids:
            if expected != len(self.messages):
                raise WrongSequenceError
            self.messages.append(data)
            self._ids[message_id] = len(self.messages)
        return self._ids[message_id]


class StreamedJournal(Journal):
    """One node's way to the streams."""

    def __init__(self, streams: Sequence[Stream], node: str) -> None:
        self.partitions = len(streams)
        self.id = "streamed"
        self.losses = []
        self._streams = streams
        self._node = node
        self._ends: dict[int, End] = {}
        self._sequences: dict[int, int] = {}
        self._lost: set[int] = set()
        self._closed = False

    def recover(self, partition: int) -> Recovered:
        """Fence everybody else by an epoch record, then read what is there."""
        self._check(partition)
        stream = self._streams[partition]
        end = End()
        for header, _ in self._records(partition):
            assert (header.number, header.chain) == (end.number + 1, end.checksum)
            end = end.behind(header)
        end = end._replace(epoch=end.epoch + 1)
        owner = Record(Type.EPOCH, [self._node.encode()])
        end, _, pieces = encode_commit([owner], MARK, partition, end)
        last, message = len(stream.messages), f"{self._node}-{end.epoch}"
        self._sequences[partition] = stream.publish(b"".join(pieces), message, last)
        self._ends[partition] = end
        self._lost.discard(partition)
        found = list(self._records(partition))
        begin = max(
            ((one.number, one.base) for one, _ in found if one.type == Type.CHECKPOINT),
            default=(0, 0),
        )[1]
        hidden = (*PLACED, Type.CHECKPOINT, Type.EPOCH)
        records = [
            Record(Type(one.type), [body])
            for one, body in found
            if one.number >= begin and one.type not in hidden
        ]
        return Recovered(partition, end.epoch, end.offset, end.slot, iter(records))

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Publish a message to the stream of each partition."""
        made = {}
        for partition, records in commits.items():
            self._check(partition)
            if partition not in self._ends:
                raise EngineError(f"partition {partition} was not taken up")
            if not records:
                raise EngineError(f"the commit of partition {partition} is empty")
            made[partition] = encode_commit(records, MARK, partition, self._ends[partition])
        for partition, (end, _, pieces) in made.items():
            outcome = Outcome.LOST
            if partition not in self._lost:
                outcome = self._publish(partition, end, b"".join(pieces))
            done({partition: outcome})

    def _publish(self, partition: int, end: End, data: bytes) -> Outcome:
        stream, message = self._streams[partition], f"{end.epoch}-{end.number}"
        try:
            for _ in range(2):  # an answer may get lost: a retry does no harm
                sequence = stream.publish(data, message, self._sequences[partition])
        except WrongSequenceError:
            self._lost.add(partition)
            return Outcome.LOST
        self._sequences[partition] = sequence
        self._ends[partition] = end
        return Outcome.DURABLE

    def _records(self, partition: int) -> Iterator[tuple[Header, memoryview]]:
        """All records of a partition."""
        for message in self._streams[partition].messages:
            at, data = 0, memoryview(message)
            while at < len(data):
                header = parse_header(data[at:])
                assert header is not None
                assert is_whole(data[at : at + header.size], header)
                yield header, data[at + HEADER : at + HEADER + header.body]
                at += header.size

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The batches that hold places [start, stop) of a space, in order."""
        check_partition(partition, self.partitions)
        for one, body in self._records(partition):
            wanted = one.type in PLACED and _SPACES[Type(one.type)] is space
            if wanted and one.base < stop and one.base + one.count > start:
                names, ipc = split_rows(body)
                if may_match is None or any(map(may_match, names)):
                    times = (one.first_time, one.last_time)
                    yield Batch(partition, one.base, one.count, *times, ipc)

    def keep(self, partition: int, needed: Needed) -> None:
        """Everything is kept; a server would be told up to where to purge."""

    def positions(self) -> list[Position]:
        """Where each partition begins and ends."""
        return [self._position(partition) for partition in range(self.partitions)]

    def _position(self, partition: int) -> Position:
        found = [one for one, _ in self._records(partition)]
        log = [one for one in found if one.type == Type.ROWS]
        begin = max(
            ((x.number, x.base) for x in found if x.type == Type.CHECKPOINT), default=(0, 0)
        )
        end = self._ends.get(partition, End())
        return Position(
            partition,
            log[0].base if log else end.offset,
            end.offset,
            min((one.first_time for one in log), default=0),
            max((one.last_time for one in log), default=0),
            sum(one.size for one in log),
            end.number + 1,
            end.slot,
            sum(x.size for x in found if x.number >= begin[1] and x.type not in PLACED),
        )

    @property
    def backlog(self) -> int:
        """Nothing waits."""
        return 0

    def close(self) -> None:
        """Let go; the streams stay."""
        self._closed = True

    def _check(self, partition: int) -> None:
        if self._closed:
            raise EngineError("the journal is closed")
        check_partition(partition, self.partitions)
