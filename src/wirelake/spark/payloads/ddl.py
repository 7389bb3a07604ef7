"""Columns as Spark's DDL writes them: `temp double, unit string, at struct<x: double, y: double>`.

The types are those that Spark, Delta and Arrow all have. `NOT NULL` asks for a field: a message
without it does not fit. The table's columns can be null nevertheless, since rows of other addresses
have none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

UTC_TIME = pa.timestamp("us", tz="UTC")

#: Types by their names, and by the other names that Spark has for them.
SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_TIME,
}
_ALIASES = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "text": "string",
}
_NAMES = {kind: name for name, kind in SIMPLE.items()}

#: Structs, arrays and maps may be nested this deep.
MAX_DEPTH = 16

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*')|([^\s<>(),:`']+)|([<>(),:]))")
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def parse(text: str) -> pa.Schema:
    """The columns that a text names; raises ValueError, which says what is wrong where."""
    reader = _Reader(text)
    fields = reader.fields(until="", depth=0)
    if not fields:
        raise ValueError("no columns are named")
    return pa.schema(fields)


def write(schema: pa.Schema | pa.StructType) -> str:
    """The text of columns, which `parse` takes."""
    return ", ".join(f"{_quoted(one.name)} {_written(one.type)}{_rest(one)}" for one in schema)


def _written(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        parts = (f"{_quoted(one.name)}: {_written(one.type)}{_rest(one)}" for one in kind)
        return f"struct<{', '.join(parts)}>"
    if pa.types.is_list(kind):
        return f"array<{_written(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_written(kind.key_type)}, {_written(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]


def _rest(field: pa.Field) -> str:
    return "" if field.nullable else " NOT NULL"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


class _Reader:
    """Reads a text from left to right; a token is its kind and its text."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def fields(self, until: str, depth: int) -> list[pa.Field]:
        """Names with types, up to a closing bracket or the end."""
        found: list[pa.Field] = []
        while True:
            name = self._name("a name")
            if self._peek() == ":":
                self._next()
            kind = self._type(depth)
            required = self._word("not")
            if required and not self._word("null"):
                raise ValueError(f"NOT is followed by NULL, behind {name}")
            if self._word("comment"):
                self._next()
            if any(name.lower() == one.name.lower() for one in found):
                raise ValueError(f"{name} is named twice")
            found.append(pa.field(name, kind, nullable=not required))
            token = self._next()
            if token == until:
                return found
            if token != ",":
                raise ValueError(f"{token or 'the end'!r} behind {name}; a comma was expected")

    def _type(self, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise ValueError(f"types are nested at most {MAX_DEPTH} deep")
        name = self._name("a type").lower()
        name = _ALIASES.get(name, name)
        if name in SIMPLE:
            return SIMPLE[name]
        match name:
            case "decimal" | "dec" | "numeric":
                return self._decimal()
            case "array":
                self._expect("<")
                kind = pa.list_(self._type(depth + 1))
                self._expect(">")
                return kind
            case "map":
                self._expect("<")
                key = self._type(depth + 1)
                if key != pa.string():
                    raise ValueError("the keys of a map are strings")
                self._expect(",")
                kind = pa.map_(key, self._type(depth + 1))
                self._expect(">")
                return kind
            case "struct":
                self._expect("<")
                return pa.struct(self.fields(">", depth + 1))
        known = ", ".join([*SIMPLE, "decimal(p,s)", "array<…>", "map<string,…>", "struct<…>"])
        raise ValueError(f"{name!r} is no type; types are {known}")

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._next()
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(f"decimal({precision},{scale}) is not possible: at most 38 digits")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        text = self._name("a number")
        if not (text.isascii() and text.isdecimal() and len(text) < 4):
            raise ValueError(f"{text!r} is no number of digits")
        return int(text)

    def _name(self, what: str) -> str:
        token = self._next()
        if not token or token in "<>(),:" or token.startswith("'"):
            raise ValueError(f"{token or 'the end'!r} where {what} was expected")
        return token

    def _word(self, wanted: str) -> bool:
        """Go over a keyword, if it is there."""
        if self._peek().lower() != wanted:
            return False
        self._at += 1
        return True

    def _expect(self, wanted: str) -> None:
        token = self._next()
        if token != wanted:
            raise ValueError(f"{token or 'the end'!r} where {wanted!r} was expected")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token


def _tokens(text: str) -> Iterator[str]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"what is meant by {text[at : at + 20].strip()!r}?")
        at = found.end()
        quoted, string, word, mark = found.groups()
        yield quoted.replace("``", "`") if quoted else string or word or mark
