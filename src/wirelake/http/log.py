"""The log as an Arrow stream: rows of one partition, as they are stored wherever that is possible.

A stored batch is what stands in an Arrow stream, so one that is wanted whole is sent without a look
at its rows. Others are decoded, cut and written again. A stream may replace its dictionaries, so a
part that was written again brings its own, and stored and written parts follow each other freely.

A filter is a regular expression over the dictionary of a batch's addresses; rows are then taken by
Arrow, so nothing is done per row in Python. A client's own regular expression is evaluated by RE2,
in time that is linear in the address, and never by Python's `re`. What matches here and there is
put together, so that few rows of many batches do not become many tiny batches.

Who may see what: a subscriber's right shows what a subscriber could have got, and what became of it
in queues; the right to keys shows their changes; everything else (requests and replies, direct
messages, byte streams) is for operators.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import check_filter, check_number, filter_expression
from wirelake.broker.rights import Rights
from wirelake.errors import EngineError, RefusedError
from wirelake.http.limits import HttpLimits
from wirelake.journal.arrow_stream import END, PREAMBLE, STORED, decode
from wirelake.journal.contract import Batch, Position
from wirelake.journal.engine import Engine

#: What is read in one turn of a thread, and sent at once at most: larger pieces are cut, and only
#: small ones are put together, as that is a copy.
PART = 1 << 20
SMALL = 64 << 10
#: Send an empty batch after this long without a matching row, as a heartbeat (seconds).
SILENCE = 5.0

#: A client's regular expression has at most this many bytes.
MAX_PATTERN = 4096
#: Addresses whose match with a client's regular expression is remembered within a request.
KNOWN_ADDRESSES = 16_384

_PUBLISHED = ("publish", "enqueue", "deliver", "ack", "nack", "dead")
_KEPT = ("set", "del")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns are wanted; all of them where nothing is said."""

    pattern: str = ""  # of addresses, made of filters; for RE2 and for Python
    wanted: str = ""  # of addresses, made by a client; for RE2 only
    ops: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    limit: int = -1

    @property
    def has_every_row(self) -> bool:
        """Whether no row is left out but for the limit."""
        return not (self.pattern or self.wanted or self.ops)

    @property
    def schema(self) -> pa.Schema:
        """The stream's schema."""
        if not self.columns:
            return STORED
        return pa.schema([STORED.field(name) for name in self.columns])


def select(
    rights: Rights,
    filters: Iterable[str],
    columns: Iterable[str],
    limit: int = -1,
    expression: str = "",
) -> Selection:
    """What of the wanted rows these rights show; filters that they do not cover are refused.

    An expression without filters selects among the addresses that the rights show: nobody can tell
    from an expression alone which addresses it covers.
    """
    filters = [check_filter(one) for one in filters]
    columns = tuple(columns)
    for name in columns:
        if name not in STORED.names:
            raise RefusedError("bad_request", f"the log has no column {name}")
    if len(set(columns)) < len(columns):
        raise RefusedError("bad_request", "a column is named twice")
    wanted = _whole_match(expression) if expression else ""
    ops: tuple[str, ...] = ()
    if not rights.admin:
        if expression and not filters and "#" not in rights.subscribe:
            filters = list(rights.subscribe)
            if not filters:
                raise RefusedError("unauthorized", "no right to subscribe to anything")
        for one in filters or ["#"]:
            if not rights.allows("subscribe", one):
                raise RefusedError("unauthorized", f"no right to subscribe to {one}")
        stored = all(rights.allows("store", one) for one in filters or ["#"])
        ops = (*_PUBLISHED, *_KEPT) if stored else _PUBLISHED
    return Selection(pattern(filters), wanted, ops, columns, limit)


def _whole_match(expression: str) -> str:
    """A client's regular expression, made to match whole addresses; RefusedError where it is none.

    It is tried alone first: one such as `a)|(b` is wrong, but would not be within a group.
    """
    if len(expression.encode()) > MAX_PATTERN:
        raise RefusedError("too_large", f"a pattern has at most {MAX_PATTERN} bytes")
    whole = f"^(?:{expression})$"
    for one in (expression, whole):
        try:
            pc.match_substring_regex(pa.array([""]), one)
        except pa.ArrowInvalid as error:
            reason = str(error).partition("\n")[0].removeprefix("Invalid regular expression: ")
            text = f"the pattern is no regular expression of RE2: {reason}"
            raise RefusedError("bad_request", text) from None
    return whole


def pattern(filters: Iterable[str]) -> str:
    """A regular expression for the addresses that one of the filters matches."""
    found = [filter_expression(one) for one in filters]
    return f"(?s)^(?:{'|'.join(found)})$" if found else ""


def parts(
    engine: Engine, partition: int, start: int, stop: int, selection: Selection
) -> Generator[list[bytes | memoryview]]:
    """An Arrow stream of the rows [start, stop) that are selected, in pieces; for any thread."""
    waiting: list[bytes | memoryview] = []
    size = 0
    last = time.monotonic()
    for piece in _pieces(engine, partition, start, stop, selection):
        if piece is not None:
            waiting.append(piece)
            size += len(piece)
        is_silent = time.monotonic() - last > SILENCE
        if is_silent and not waiting:
            waiting.append(_written(pa.Table.from_batches([], selection.schema)))
        if size < PART and not is_silent:
            continue
        yield _to_send(waiting)
        waiting, size, last = [], 0, time.monotonic()
    yield _to_send([*waiting, END])


def _to_send(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Small pieces put together, large ones cut; what is neither is not copied."""
    made: list[bytes | memoryview] = []
    for is_small, some in groupby(pieces, lambda piece: len(piece) < SMALL):
        for piece in [b"".join(some)] if is_small else some:
            view = memoryview(piece)
            made += [view[at : at + PART] for at in range(0, len(view), PART)]
    return made


def _pieces(
    engine: Engine, partition: int, start: int, stop: int, selection: Selection
) -> Iterator[bytes | memoryview | None]:
    """What the stream consists of; None where a batch was looked at and nothing is to be sent."""
    schema = selection.schema
    yield PREAMBLE if schema is STORED else schema.serialize().to_pybytes()
    chosen: list[pa.RecordBatch] = []
    size = 0
    left = selection.limit
    plain = schema is STORED and selection.has_every_row
    for stored in _in_order(engine, partition, start, stop, selection):
        is_cut = stored.base < start or stored.base + stored.count > stop
        if plain and not is_cut:
            is_whole = True
        else:
            batch = some = decode(stored.ipc)
            if is_cut:
                some = between(some, start, stop)
            some = matching(some, selection)
            if left >= 0:
                some = some.slice(0, left)
                left -= some.num_rows
            is_whole = schema is STORED and some.num_rows == batch.num_rows
            if some.num_rows and not is_whole:
                chosen.append(_compact(some.select(schema.names), schema))
                size += chosen[-1].get_total_buffer_size()
        if chosen and (is_whole or size >= PART):
            yield _written(pa.Table.from_batches(chosen, schema))
            chosen, size = [], 0
        yield stored.ipc if is_whole else None
        if left == 0:
            break
    if chosen:
        yield _written(pa.Table.from_batches(chosen, schema))


def _in_order(
    engine: Engine, partition: int, start: int, stop: int, selection: Selection
) -> Iterator[Batch]:
    """The stored batches that may have selected addresses; what was deleted is an error."""
    at = start
    may_match = _address_test(selection)
    for stored in engine.read(partition, start, stop, may_match=may_match) if start < stop else ():
        if stored.base > at:
            _check_kept(engine, partition, at, stored.base)
        at = stored.base + stored.count
        yield stored
    if at < stop:
        _check_kept(engine, partition, at, stop)


def _address_test(selection: Selection) -> Callable[[str], bool] | None:
    """Whether an address may be selected; None where any is."""
    search = re.compile(selection.pattern).search
    if not selection.wanted:
        return (lambda address: search(address) is not None) if selection.pattern else None

    # A call of RE2 has a cost of its own, and addresses come again.
    @lru_cache(maxsize=KNOWN_ADDRESSES)
    def is_wanted(address: str) -> bool:
        hit = pc.match_substring_regex(pa.array([address]), selection.wanted)
        return bool(hit[0].as_py()) and search(address) is not None

    return is_wanted


def _check_kept(engine: Engine, partition: int, at: int, stop: int) -> None:
    """Raise EngineError where rows [at, stop) are missing because they are gone.

    A copy of another node's partition may have been replaced by one that begins elsewhere.
    """
    position = engine.positions()[partition]
    if position.first > at:
        raise EngineError(f"the rows up to {position.first} were deleted while they were read")
    if position.next < stop:
        raise EngineError(f"the rows from {position.next} on are not here any more")


def between(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """The rows whose offsets are in [start, stop)."""
    offsets = batch.column("offset")
    begin = pc.sum(pc.less(offsets, start)).as_py() or 0
    end = pc.sum(pc.less(offsets, stop)).as_py() or 0
    return batch.slice(begin, end - begin)


def matching(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """The rows that are selected, found by the dictionaries alone."""
    for expression in filter(None, (selection.pattern, selection.wanted)):
        addresses = batch.column("address")
        hits = pc.match_substring_regex(addresses.dictionary, expression)
        batch = _taking(batch, addresses, hits)
    if selection.ops:
        ops = batch.column("op")
        batch = _taking(batch, ops, pc.is_in(ops.dictionary, pa.array(selection.ops)))
    return batch


def _taking(batch: pa.RecordBatch, column: pa.DictionaryArray, hits: pa.Array) -> pa.RecordBatch:
    """The rows whose value in a column is a hit."""
    if pc.all(hits).as_py() is not False:
        return batch
    if not pc.any(hits).as_py():
        return batch.slice(0, 0)
    return batch.filter(hits.take(column.indices))


def _compact(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch without the entries of its dictionaries that no row has."""
    return pa.RecordBatch.from_arrays(
        [
            column.dictionary_decode().dictionary_encode()
            if isinstance(column, pa.DictionaryArray) and len(column.dictionary) > len(column)
            else column
            for column in batch.columns
        ],
        schema=schema,
    )


def _written(table: pa.Table) -> memoryview:
    """A table as one batch of a stream, with its dictionaries."""
    batches = table.unify_dictionaries().combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        for batch in batches or [pa.RecordBatch.from_pylist([], table.schema)]:
            stream.write_batch(batch)
    written = memoryview(sink.getvalue())
    return written[len(table.schema.serialize()) : len(written) - len(END)]


class Held:
    """The bytes of the log that are held for clients until they have read them.

    Where those of all clients together are too many (`web.log_reads`), nothing more is read from
    the log for anybody until some have gone. Clients that read nothing are cut off after a while,
    so that time comes.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._size = 0
        self._gone = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """May more be held?"""
        return self._size < self._limits.web.log_reads

    async def room(self) -> None:
        """Wait until more may be held."""
        while not self.has_room:
            self._gone.clear()
            await self._gone.wait()

    def add(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self._size += size
        if size < 0:
            self._gone.set()


async def stream(
    turns: Generator[list[bytes | memoryview]], executor: Executor, held: Held
) -> AsyncGenerator[bytes | memoryview]:
    """What an iterator yields in other threads.

    Each turn is made while the one before is sent, as long as there is room for it.
    """
    loop = asyncio.get_running_loop()
    size = 0
    await held.room()
    coming: asyncio.Future[list[bytes | memoryview] | None]
    coming = loop.run_in_executor(executor, next, turns, None)
    try:
        while (pieces := await asyncio.shield(coming)) is not None:
            size = sum(map(len, pieces))
            held.add(size)
            is_ahead = held.has_room
            if is_ahead:
                coming = loop.run_in_executor(executor, next, turns, None)
            for piece in pieces:
                yield piece
            held.add(-size)
            size = 0
            if not is_ahead:
                del pieces
                await held.room()
                coming = loop.run_in_executor(executor, next, turns, None)
    finally:
        held.add(-size)
        # A generator cannot be closed while it runs: so its thread is waited for, come what may.
        coming.add_done_callback(lambda done: _close(done, turns))


def _close(done: asyncio.Future[Any], turns: Generator[list[bytes | memoryview]]) -> None:
    if not done.cancelled():
        done.exception()  # whoever would have been told is gone
    turns.close()


def find_time(engine: Engine, position: Position, time: int) -> int:
    """The first offset received at `time` (µs) or later, the next one if there is none.

    Times never go back within a partition, so a few batches are looked at, not all.
    """
    low, high = position.first, position.next
    while low < high:
        middle = (low + high) // 2
        stored = next(iter(engine.read(position.partition, middle, middle + 1)), None)
        if stored is None:  # a hole that retention left
            stored = next(iter(engine.read(position.partition, middle, high)), None)
            if stored is None:
                high = middle
                continue
        if stored.last_time < time:
            low = max(middle, stored.base + stored.count - 1) + 1
        elif stored.first_time >= time:
            high = min(middle, stored.base)
        else:
            batch = decode(stored.ipc)
            times = batch.column("timestamp").cast(pa.int64())
            earlier = pc.sum(pc.less(times, time)).as_py()
            return int(batch.column("offset")[earlier].as_py())
    return low


def parse_time(text: str, name: str) -> int:
    """µs since 1970, from a number of them or from a date and time of ISO 8601."""
    if text.isdecimal():
        return check_number(text, name, most=10**18)
    try:
        given = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise RefusedError("bad_request", f"{name} is µs since 1970, or ISO 8601") from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=datetime.UTC)
    return int((given - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / _MICROSECOND)


_MICROSECOND = datetime.timedelta(microseconds=1)
