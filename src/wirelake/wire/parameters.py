"""Parameters of ops as headers: the one table of their names, texts and values.

On the wire and in the log a parameter stands among the headers as `$` and its name. In memory it
is a field of `Parameters`, with a type. What is read is written again as it was: a text that is no
value of its parameter, or that would be written differently, is kept beside the values
(`verbatim`).

A text that is no value makes a message faulty only where its op takes that parameter: a message
for a queue may well have a `rev` of `1.2`. The session refuses a faulty message.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import cython
from msgspec.structs import astuple, fields

from wirelake.address import MAX_NUMBER, check_number
from wirelake.errors import RefusedError
from wirelake.message import NO_PARAMETERS, Message, Op, Parameters

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets
else:
    from wirelake.wire.octets import Octets

# What a parameter is: text (absent where it is empty); a number (absent: None); milliseconds, of
# which the value is seconds (None); a switch, on unless it is `0` (on); a time of kobold-2, which
# may be before 1970 (None).
TEXT, NUMBER, SECONDS, SWITCH, TIME = range(5)
_TEXT = cython.declare(cython.int, TEXT)
_NUMBER = cython.declare(cython.int, NUMBER)
_SECONDS = cython.declare(cython.int, SECONDS)
_SWITCH = cython.declare(cython.int, SWITCH)
_TIME = cython.declare(cython.int, TIME)

#: The largest number of messages or milliseconds.
MOST = 10**9 - 1


@cython.final
@cython.cclass
class Parameter:
    """One parameter: a field of `Parameters`, and a header of the same name with a `$`."""

    def __init__(
        self, name: str, kind: int, most: int = MAX_NUMBER, ops: tuple[Op, ...] = ()
    ) -> None:
        self.name = name
        self.header = b"$" + name.encode()
        self.kind = kind
        self.most = most
        self.ops = ops  # those that cannot be done where the text is no value
        self.place = _FIELDS.index(name)

    def read(self, text: str) -> Any:
        """Return the value of a text; raises RefusedError where it is none."""
        if self.kind == _TEXT:
            return text
        if self.kind == _SWITCH:
            return text != "0"
        if self.kind == _NUMBER:
            return check_number(text, self.name, most=self.most)
        if self.kind == _SECONDS:
            return check_number(text, self.name, most=self.most) / 1000
        if text[:1] == "-":
            return -check_number(text[1:], self.name, most=1 << 63)
        return check_number(text, self.name, most=self.most)

    def write(self, value: Any) -> str:
        """Return the text of a value."""
        if self.kind == _TEXT:
            return str(value)
        if self.kind == _SWITCH:
            return "1" if value else "0"
        return str(round(value * 1000) if self.kind == _SECONDS else value)

    def is_absent(self, value: Any) -> cython.bint:
        """Return whether this stands for no value."""
        if self.kind == _TEXT:
            return not value
        return value is True if self.kind == _SWITCH else value is None


_FIELDS = [one.name for one in fields(Parameters)]
_VERBATIM = cython.declare(cython.Py_ssize_t, _FIELDS.index("verbatim"))
_FAULT = cython.declare(cython.Py_ssize_t, _FIELDS.index("fault"))

#: In the order in which they are written.
_TABLE = (
    Parameter("client", TEXT),
    Parameter("token", TEXT),
    Parameter("rev", NUMBER, ops=(Op.UPDATE, Op.DELETE, Op.WATCH)),
    Parameter("count", NUMBER, MOST, (Op.SUBSCRIBE, Op.DEQUEUE)),
    Parameter("wait", SECONDS, MOST, (Op.DEQUEUE,)),
    Parameter("code", TEXT),
    Parameter("attempt", NUMBER),
    Parameter("requeue", SWITCH),
    Parameter("timestamp", TIME),
    Parameter("connection", TEXT),
)
#: The headers that scanners write and others look for.
TOKEN, CODE, TIMESTAMP, CONNECTION = b"$token", b"$code", b"$timestamp", b"$connection"

_ABSENT = list(astuple(NO_PARAMETERS))


def _by_header() -> dict[bytes, Parameter]:
    known: Parameter
    found = {}
    for known in _TABLE:
        found[known.header] = known
    return found


_BY_HEADER = _by_header()
#: The names of all headers that are parameters.
HEADERS = frozenset(header.decode() for header in _BY_HEADER)
#: Headers that codecs write in places of their own.
TOKEN, CODE = b"$token", b"$code"


def _shortest(text: str) -> cython.longlong:
    """Return the number that at most 18 digits are in its shortest form, -1 for other texts."""
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(text)
    digit: cython.int
    if not 0 < n < 19 or (text[0] == "0" and n > 1):
        return -1
    for i in range(n):
        digit = ord(text[i]) - 48
        if not 0 <= digit < 10:
            return -1
        value = 10 * value + digit
    return value


def begin() -> list[Any]:
    """Return the values of no parameters, for `take` to fill and `finish` to turn into one."""
    return _ABSENT[:]


def take(values: list[Any], header: bytes, text: str) -> cython.int:
    """Read a header into the values; return 0 where it is no parameter."""
    known: Parameter
    number: cython.longlong
    found = _BY_HEADER.get(header)
    if found is None:
        return 0
    known = found
    if known.kind == _TEXT and text:
        values[known.place] = text
        return 1
    if known.kind in (_NUMBER, _SECONDS, _TIME):  # as it mostly is
        number = _shortest(text)
        if 0 <= number <= known.most:
            values[known.place] = number / 1000.0 if known.kind == _SECONDS else number
            return 1
    value: Any = None
    with suppress(RefusedError):
        value = values[known.place] = known.read(text)
    if known.is_absent(value) or known.write(value) != text:
        values[_VERBATIM] = {**values[_VERBATIM], known.name: text}
    return 1


def finish(values: list[Any], op: Op) -> Parameters:
    """Return the parameters of these values; faulty where the op takes one that is no value."""
    known: Parameter
    texts = values[_VERBATIM]
    if texts:
        for known in _TABLE:
            if op in known.ops and known.name in texts:
                try:
                    known.read(texts[known.name])
                except RefusedError as error:
                    values[_FAULT] = error.text
                    break
    return Parameters(*values)


def put(parameters: Parameters, side: Octets) -> cython.int:
    """Append parameters as headers, in the one form, to the side buffer of a frame table."""
    header: bytes
    text: bytes
    for header, text in written(parameters):
        side.put_uint32(len(header))
        side.put_uint32(len(text))
        side.put_bytes(header)
        side.put_bytes(text)
    return 0


def packed(parameters: Parameters) -> bytes:
    """Return parameters as headers, in the one form of a frame table."""
    out = Octets(64)
    put(parameters, out)
    return bytes(out.data[: out.size])


def written(parameters: Parameters) -> list[tuple[bytes, bytes]]:
    """Return parameters as headers."""
    known: Parameter
    values: tuple[Any, ...] = astuple(parameters)
    texts = values[_VERBATIM] or None
    found = []
    for known in _TABLE:
        if texts is not None and known.name in texts:
            found.append((known.header, texts[known.name].encode()))
        elif not known.is_absent(values[known.place]):
            found.append((known.header, known.write(values[known.place]).encode()))
    return found


def split(headers: Mapping[str, str], op: Op) -> tuple[Mapping[str, str], Parameters]:
    """Take headers in the wire's form apart: the user's, and the parameters."""
    if HEADERS.isdisjoint(headers):
        return headers, NO_PARAMETERS
    values = begin()
    own = {name: text for name, text in headers.items() if not take(values, name.encode(), text)}
    return own, finish(values, op)


def headers_of(message: Message) -> Mapping[str, str]:
    """Return all headers of a message in the wire's form: the user's, then the parameters."""
    if message.parameters is NO_PARAMETERS:
        return message.headers
    said = {header.decode(): text.decode() for header, text in written(message.parameters)}
    return {**message.headers, **said}
