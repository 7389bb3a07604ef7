"""Payloads decoded in your own queries, by the same schemas as `lake land --schema`.

    from wirelake.spark.functions import from_payload, misfit

    schema = "temp double, unit string"
    log.select("address", from_payload("payload", schema).alias("reading"))
    log.where(misfit("payload", schema).isNotNull())

A schema is a DDL (JSON, or `cbor: …`), or a file of this machine: it is read where the query is
written, not on executors. Both functions work on Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # as it has no types
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StringType

from wirelake.spark.payloads import Decoder, Schema
from wirelake.spark.payloads.values import Values
from wirelake.spark.typed import without_rules

__all__ = ["from_payload", "misfit"]


def from_payload(column: str | Column, schema: str) -> Column:
    """A struct of the fields of a payload; null where the payload does not fit or is null.

    Raises ConfigError where the schema is none.
    """
    read = Schema.parse(schema)
    return _function(read, _fields, from_arrow_type(without_rules(read.struct)))(column)


def misfit(column: str | Column, schema: str) -> Column:
    """Why a payload does not fit the schema; null where it fits.

    Raises ConfigError where the schema is none.
    """
    return _function(Schema.parse(schema), _reasons, StringType())(column)


def _function(
    schema: Schema, result: Callable[[pa.Array, Values], pa.Array], kind: DataType
) -> Callable[[str | Column], Column]:
    """A function of Spark over Arrow arrays of payloads."""
    made: list[Decoder] = []  # once for each task: it is not sent there

    def decode(payloads: pa.Array) -> pa.Array:
        if not made:
            made.append(schema.decoder())
        whole = payloads.fill_null(b"") if payloads.null_count else payloads
        return result(payloads, made[0].decode(whole.cast(pa.binary())))

    found: Callable[[str | Column], Column] = arrow_udf(decode, kind)
    return found


def _fields(payloads: pa.Array, found: Values) -> pa.Array:
    structs = found[0].cast(without_rules(found[0].type))
    if not payloads.null_count:
        return structs
    return pc.if_else(payloads.is_valid(), structs, pa.scalar(None, structs.type))


def _reasons(payloads: pa.Array, found: Values) -> pa.Array:
    valid = payloads.is_valid().to_pylist()
    why = (found[1].get(row) if is_valid else None for row, is_valid in enumerate(valid))
    return pa.array(why, pa.string())
