"""The options of tables: `CREATE TABLE t USING wirelake OPTIONS (…)`.

Spark shows a Python source the OPTIONS of a table once, when the table is created, and never again:
a query of the table, or an INSERT INTO, comes without them. What does come each time is the schema.
So the schema that is given when a table is created carries the options, as metadata of its columns.
A table that is created with a list of columns has a schema that we never saw, and so no options:
each query must bring them (`SELECT … FROM t WITH (url = '…')`).

What comes with an INSERT INTO is the schema of the query, and may carry the options of a table that
is read. Publishing to that one's broker would be wrong. Spark gives columns the metadata of the
table that is written to where it has to adapt them, by a cast for example, and leaves the query's
columns as they are where they fit. So a text column of a table is annotated as VARCHAR: text in a
query does not fit, and is adapted. Spark takes that annotation off what it adapts. So metadata that
still has the annotation is that of a table that is read, and does not count.

Metadata goes wherever a column goes, into the footers of Parquet files too. So a token is refused
as an option of a table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql.types import StringType, StructField, StructType

from wirelake.errors import ConfigError

#: The key in the metadata of a table's columns.
KEY = "wirelake"
#: Spark's own annotation of text as VARCHAR, and the widest that Hive takes; no address is longer.
VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
WIDEST = "varchar(65535)"


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema for a table with these options; ConfigError where they have a token."""
    if "token" in options:
        text = (
            "Spark would copy it into the schema of the table and of all that is made from it: set "
            "WIRELAKE_TOKEN where the driver runs, or say SELECT … FROM t WITH (token = '…')"
        )
        raise ConfigError("token", text)
    told = json.dumps({"columns": schema.names, "options": dict(options)}, sort_keys=True)
    annotated = next((one.name for one in schema.fields if one.dataType == StringType()), None)
    return StructType(
        [
            StructField(
                one.name,
                one.dataType,
                one.nullable,
                {KEY: told} | ({VARCHAR: WIDEST} if one.name == annotated else {}),
            )
            for one in schema.fields
        ]
    )


def complete(
    given: Mapping[str, str], schema: StructType, known: Iterable[str], *, is_write: bool = False
) -> Mapping[str, str]:
    """The options of a query, with those of its table where it says nothing of a broker.

    `known` are the names that count; a table may have options for reading and for writing.
    """
    names = {name.lower() for name in given}
    if "url" in names or (is_write and not _is_adapted(schema)):
        return given
    table = _options_of(schema)
    wanted = {name.lower() for name in known} - names
    return {**given} | {name: value for name, value in table.items() if name.lower() in wanted}


def _is_adapted(schema: StructType) -> bool:
    """Whether columns were adapted to the table that is written to, if it is one of ours."""
    has_text = any(one.dataType == StringType() for one in schema.fields)
    return has_text and not any(VARCHAR in one.metadata for one in schema.fields)


def _options_of(schema: StructType) -> dict[str, str]:
    """The options of the table whose columns these are; none, if they are of no single table."""
    found = {one.metadata.get(KEY) for one in schema.fields}
    told = found.pop() if len(found) == 1 else None
    if not isinstance(told, str):
        return {}
    table: dict[str, dict[str, str]] = json.loads(told)
    return table["options"] if list(table["columns"]) == schema.names else {}
