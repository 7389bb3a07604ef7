"""What is published: valid addresses, and batches of messages as frame tables.

Addresses and filters are those of the specification (one model under every dialect).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wirelake.address import check_topic
from wirelake.client.speech import require
from wirelake.dialects import HOPS, MOST_HOPS
from wirelake.errors import RefusedError
from wirelake.message import LARGEST, Message, Op
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    import pyarrow as pa

Batch: TypeAlias = "Iterable[tuple[str, bytes] | Message] | pa.RecordBatch"

#: Rows encoded at a time.
ROWS = 4096


def message_for(
    dialect: str,
    address: str,
    payload: bytes,
    id: str = "",
    headers: Mapping[str, str] | None = None,
    priority: int = 0,
    ttl: int = 0,
) -> Message:
    """A message, if the dialect can say it."""
    given = {"message id": id, "header": headers, "priority": priority, "ttl": ttl}
    for ability, value in given.items():
        if value:
            require(dialect, ability)
    if not 0 <= priority <= LARGEST["priority"]:
        raise RefusedError("bad_request", f"a priority is 0 or 1, not {priority}")
    most = MOST_HOPS if dialect in HOPS else LARGEST["ttl"]
    if not 0 <= ttl <= most:
        raise RefusedError("bad_request", f"a ttl is 0 to {most} in {dialect}")
    return Message(
        address,
        bytes(payload),
        id,
        priority=priority,
        ttl=ttl,
        headers={} if headers is None else dict(headers),
    )


def as_messages(batch: Batch, dialect: str, most: int) -> list[Message]:
    """Pairs, messages or the rows of an Arrow record batch, as plain publishes for a dialect."""
    given: Iterable[tuple[str, bytes] | Message] = batch
    if hasattr(batch, "num_rows"):
        given = [one for table in tables_of_batch(batch, most) for one in table.messages()]
    hops = dialect in HOPS
    plain = []
    for each in given:
        if isinstance(each, Message):
            same_unit = (each.dialect in HOPS) == hops
            message = Message(
                check_topic(each.address),
                each.payload,
                each.id,
                content_type=each.content_type,
                priority=each.priority,
                ttl=each.ttl if same_unit else 0,
                headers=each.headers,
                parameters=each.parameters,
            )
        else:
            message = Message(check_topic(each[0]), bytes(each[1]))
        if len(message.payload) > most:
            raise RefusedError("too_large", f"a message has at most {most} bytes")
        plain.append(message)
    return plain


def tables_of_messages(messages: Sequence[Message], dialect: str = "") -> Iterator[FrameTable]:
    """Messages as tables; with a dialect, in that dialect's own terms, as its uids."""
    table = FrameTable(min(ROWS, max(1, len(messages))))
    for start in range(0, len(messages), ROWS):
        table.fill(messages[start : start + ROWS], dialect)
        yield table


def tables_of_batch(batch: Any, most: int) -> Iterator[FrameTable]:
    """The rows of an Arrow record batch, as plain publishes."""
    import pyarrow as pa

    from wirelake.wire.arrow import from_arrow

    table = FrameTable(min(ROWS, max(1, batch.num_rows)))
    start = 0
    while start < batch.num_rows:
        try:
            start += from_arrow(batch, table, start)
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise RefusedError("bad_request", f"not a batch of messages: {error}") from None
        rows = table.count
        if any(op != Op.PUBLISH for op in table.op[:rows]):
            raise RefusedError("bad_request", "a batch to publish has publishes only")
        if min(table.address_len[:rows]) < 1 or max(table.address_len[:rows]) > 255:
            raise RefusedError("bad_request", "an address has 1 to 255 bytes")
        if max(table.payload_len[:rows]) > most:
            raise RefusedError("too_large", f"a message has at most {most} bytes")
        none = memoryview(array("i", [0]) * rows)
        for column in (table.target_len, table.source_len, table.correlation_len):
            column[:rows] = none
        yield table
