"""Typed columns beside the raw payload, by the address of a row.

A schema is given for a filter; the first whose filter matches a row's address is the row's. Columns
have the names of the payload's fields, but where the log has a column of that name (`id`,
`timestamp`, …) it is `payload_id`. Rows that no filter matches have null in them. Rows whose
payload does not fit go to the side table, with the payload and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import check_filter, matches, overlap
from wirelake.errors import ConfigError, RefusedError
from wirelake.spark.payloads import Schema
from wirelake.spark.rows import ROWS, set_aside

NEEDS_DELTA = "typed columns need --format delta: plain files have no schema to hold others to"

_TAKEN = {name.lower() for name in ROWS.names}


@dataclass(frozen=True)
class Typed:
    """The schema of the payloads of some addresses."""

    filter: str
    schema: Schema

    @classmethod
    def parse(cls, text: str) -> Typed:
        """`FILTER=FILE` or `FILTER=DDL`; ConfigError where it is neither."""
        filter, equals, schema = text.partition("=")
        if not (filter and equals and schema):
            raise ConfigError("--schema", f"{text!r} is not of the form FILTER=FILE or FILTER=DDL")
        try:
            check_filter(filter)
        except RefusedError as error:
            raise ConfigError("--schema", error.text) from None
        return cls(filter, Schema.parse(schema, "--schema"))


def column_name(field: str) -> str:
    """The column of a payload's field."""
    return f"payload_{field}" if field.lower() in _TAKEN else field


def table_schema(schemas: Sequence[Typed], filters: Sequence[str] = ()) -> pa.Schema:
    """The columns of a table for such addresses; ConfigError where schemas differ in one."""
    found: dict[str, pa.Field] = {}
    names: dict[str, str] = {}
    for one in schemas:
        if filters and not any(overlap(one.filter, other) for other in filters):
            continue
        for field in one.schema.columns:
            name = column_name(field.name)
            there = found.setdefault(name, pa.field(name, without_rules(field.type)))
            if there.type != without_rules(field.type):
                text = f"{one.filter} has {field.name} as {field.type}, another as {there.type}"
                raise ConfigError("--schema", text)
            if names.setdefault(name.lower(), name) != name:
                text = f"{name} and {names[name.lower()]} cannot both be columns"
                raise ConfigError("--schema", text)
    return pa.schema([*ROWS, *found.values()])


def without_rules(kind: pa.DataType) -> pa.DataType:
    """A type without NOT NULL inside: a row has to fit its schema, a table takes what fits."""
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, without_rules(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(without_rules(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_rules(kind.item_type))
    return kind


class Columns:
    """Adds typed columns to rows, in a task."""

    def __init__(self, schemas: Sequence[Typed]) -> None:
        self._filters = [one.filter for one in schemas]
        self._decoders = [one.schema.decoder() for one in schemas]
        self._fields = list(table_schema(schemas))[len(ROWS) :]
        self._known: dict[str, int] = {}  # by address: the number of its schema; -1: none

    def add(self, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Rows with their columns; and those that do not fit as the side table has them, if any."""
        if not self._filters:
            return rows, None
        reasons: dict[int, str] = {}
        numbers = self._numbers(rows.column("address"))
        structs: list[pa.StructArray] = []
        places: list[pa.Array] = []  # the rows of each of them
        for number in pc.unique(numbers).to_pylist():
            if number < 0:
                continue
            mine = pc.indices_nonzero(pc.equal(numbers, number)).cast(pa.int64())
            payloads = rows.column("payload")
            if len(mine) < rows.num_rows:
                payloads = payloads.take(mine)
            found, misfits = self._decoders[number].decode(_one_array(payloads))
            structs.append(found)
            places.append(mine)
            what = f"does not fit the schema of {self._filters[number]}"
            for row, why in misfits.items():
                reasons[mine[row].as_py()] = f"{what}: {why}"
        for field in self._fields:
            rows = rows.append_column(field, _column(field, structs, places, rows.num_rows))
        if not reasons:
            return rows, None
        return set_aside(rows, reasons, whole=True)

    def _numbers(self, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
        """The number of each row's schema."""
        if not pa.types.is_dictionary(addresses.type):
            addresses = addresses.dictionary_encode()
        chunks = [
            pa.array(map(self._number, chunk.dictionary.to_pylist()), pa.int32()).take(
                chunk.indices
            )
            for chunk in addresses.chunks
        ]
        return pa.chunked_array(chunks, pa.int32())

    def _number(self, address: str) -> int:
        if address not in self._known:
            found = (k for k, filter in enumerate(self._filters) if matches(filter, address))
            self._known[address] = next(found, -1)
        return self._known[address]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _column(
    field: pa.Field, structs: list[pa.StructArray], places: list[pa.Array], count: int
) -> pa.Array:
    """A column of all rows, from the values of those that have it."""
    parts, rows = [], []
    for struct, mine in zip(structs, places, strict=True):
        names = [column_name(one.name) for one in struct.type]
        if field.name in names:
            values = struct.flatten()[names.index(field.name)]
            parts.append(values if values.type == field.type else values.cast(field.type))
            rows.append(mine)
    if not parts:
        return pa.nulls(count, field.type)
    if len(parts) == 1 and len(parts[0]) == count:
        return parts[0]
    # Where each row's value is among all values; null for rows that have none.
    order = pa.concat_arrays(rows)
    where = pc.inverse_permutation(order, max_index=count - 1, output_type=pa.int64())
    return pa.concat_arrays(parts).take(where)
