"""What is published: valid addresses, and batches of messages as frame tables.

Addresses and filters are those of the specification (one model under every dialect).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wirelake.address import check_topic
from wirelake.errors import RefusedError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    import pyarrow as pa

Batch: TypeAlias = "Iterable[tuple[str, bytes] | Message] | pa.RecordBatch"

#: Rows encoded at a time.
ROWS = 4096


def tables_of_messages(
    messages: Sequence[tuple[str, bytes] | Message], dialect: str, most: int
) -> Iterator[FrameTable]:
    """Pairs and messages as plain publishes of at most so many bytes, for a dialect."""
    hops = dialect.startswith("tmq")
    plain = []
    for each in messages:
        if isinstance(each, Message):
            same_unit = each.dialect.startswith("tmq") == hops
            message = Message(
                check_topic(each.address),
                each.payload,
                each.id,
                content_type=each.content_type,
                priority=each.priority,
                ttl=each.ttl if same_unit else 0,
                headers=each.headers,
            )
        else:
            message = Message(check_topic(each[0]), bytes(each[1]))
        if len(message.payload) > most:
            raise RefusedError("too_large", f"a message has at most {most} bytes")
        plain.append(message)
    table = FrameTable(min(ROWS, max(1, len(plain))))
    for start in range(0, len(plain), ROWS):
        table.fill(plain[start : start + ROWS])
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
