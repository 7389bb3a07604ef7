"""Payloads as typed columns: what a schema is, and what fits it.

A `Schema` names a format and the columns that come of a payload. It is made of Spark's DDL or of a
file (`schemas` reads both), and goes to Spark's tasks as a plain value. `ddl` is columns as text.
`documents` (JSON, CBOR), `avro`, `protobuf` and `layout` (binary) each read one kind of payload, a
whole Arrow array at a time; `values` is what the first three share.
"""

from wirelake.spark.payloads.schemas import Decoder, Format, Schema

__all__ = ["Decoder", "Format", "Schema"]
