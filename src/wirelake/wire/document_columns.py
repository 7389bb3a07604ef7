"""CBOR maps and JSON objects into columns, without an object per value.

`read` walks payloads that lie behind one another, and writes the fields that it knows into columns.
It takes what is plain: texts as keys, no field twice, values that fit as they are; in CBOR nothing
tagged and nothing of indefinite length, in JSON nothing escaped. Any other payload is marked as
odd, for a reader that knows all of its format. So this never has to say why a payload does not fit,
and never decides that one does not.
"""

from __future__ import annotations

from array import array

import cython

if cython.compiled:
    from cython.cimports.wirelake.wire.cbor import Cursor
    from cython.cimports.wirelake.wire.octets import Octets, equal, is_utf8
else:
    from wirelake.wire.cbor import Cursor
    from wirelake.wire.octets import Octets, equal, is_utf8

#: What a field may be.
INTEGER, FLOAT, BOOLEAN, TEXT, BYTES = range(5)

#: Values that nobody asked for may be nested this deep.
MAX_DEPTH = 8

#: Marks of a value: it is absent, it is null, it is there.
ABSENT, NULL, THERE = range(3)

_INTEGER = cython.declare(cython.int, INTEGER)
_FLOAT = cython.declare(cython.int, FLOAT)
_BOOLEAN = cython.declare(cython.int, BOOLEAN)
_TEXT = cython.declare(cython.int, TEXT)
_BYTES = cython.declare(cython.int, BYTES)
_NULL = cython.declare(cython.uchar, NULL)
_THERE = cython.declare(cython.uchar, THERE)
_MAX_DEPTH = cython.declare(cython.int, MAX_DEPTH)
_UNKNOWN = cython.declare(cython.Py_ssize_t, -1)
_NO_TEXT = cython.declare(cython.Py_ssize_t, -2)
_MOST = cython.declare(cython.longlong, 2**63 - 1)
_MOST_EXACT = cython.declare(cython.longlong, 2**53)
_MOST_DIGITS = cython.declare(cython.int, 18)
_LARGEST_FLOAT = cython.declare(cython.double, 1.7976931348623157e308)

#: A field: its name, its kind, the least and the most integer, whether there must be a value.
Field = tuple[bytes, int, int, int, bool]


@cython.cclass
class Columns:
    """Reads documents with some fields, and keeps the columns of the last payloads read.

    After `read` a field has for each row a mark (in `marks`), and a cell of 64 bits (in `cells`):
    an integer, a double, or 0 and 1 of a `BOOLEAN`. Of texts and bytes cell k + 1 is where the
    value of row k ends in the field's `octets`, and cell 0 is 0. Odd rows have a 1 in `odd`, and no
    values.
    """

    def __init__(self, fields: list[Field]) -> None:
        self._fields = len(fields)
        self._names = b"".join(one[0] for one in fields) or b"-"
        self.octets = [Octets() for _ in fields]
        self.cells, self.marks, self.odd = bytearray(), bytearray(), bytearray()
        self._ends = memoryview(bytearray(8 * (len(fields) + 1))).cast("q")
        self._kinds = memoryview(bytearray(8 * (2 * len(fields) + 1))).cast("q")
        self._bounds = memoryview(bytearray(8 * (2 * len(fields) + 1))).cast("q")
        for number, (name, kind, least, most, is_required) in enumerate(fields):
            self._ends[number + 1] = self._ends[number] + len(name)
            self._kinds[2 * number] = kind
            self._kinds[2 * number + 1] = is_required
            self._bounds[2 * number] = least
            self._bounds[2 * number + 1] = most

    def read(
        self,
        data: cython.const[cython.uchar][::1],
        offsets: cython.const[cython.int][::1],
        first: cython.Py_ssize_t,
        rows: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read the payloads data[offsets[k]:offsets[k + 1]] from k = first on; how many are odd."""
        p: cython.p_const_uchar
        row: cython.Py_ssize_t
        field: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        odd: cython.uchar[::1]
        out: Octets
        self.cells = bytearray(8 * ((rows + 1) * self._fields + 1))
        self.marks = bytearray(rows * self._fields + 1)
        self.odd = bytearray(rows + 1)
        self._cells = memoryview(self.cells).cast("q")
        self._floats = memoryview(self.cells).cast("d")
        self._marks = memoryview(self.marks)
        self._rows = rows
        odd = memoryview(self.odd)
        for field in range(self._fields):
            out = self.octets[field]
            out.clear()
        if cython.compiled:
            p = cython.address(data[0]) if data.shape[0] else cython.NULL
        else:
            p = data
        for row in range(rows):
            self._row = row
            if not (
                self._document(p, offsets[first + row], offsets[first + row + 1])
                and self._is_complete()
            ):
                odd[row] = 1
                count += 1
                for field in range(self._fields):
                    self._marks[field * rows + row] = 0
            for field in range(self._fields):
                if self._kinds[2 * field] >= _TEXT:
                    out = self.octets[field]
                    self._cells[field * (rows + 1) + row + 1] = out.size
        return count

    def _document(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Read the payload p[at:end]; false where it is odd."""
        return False

    def _is_complete(self) -> cython.bint:
        """Does the row have all values that it must have?"""
        field: cython.Py_ssize_t
        for field in range(self._fields):
            if self._kinds[2 * field + 1]:
                if self._marks[field * self._rows + self._row] != _THERE:
                    return False
        return True

    def _field(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """The field whose name is p[at:at + size], _UNKNOWN, or _NO_TEXT if that is no UTF-8.

        A field that the row has already is _NO_TEXT, too: which of its values counts is not ours
        to say.
        """
        field: cython.Py_ssize_t
        names: cython.p_const_uchar
        names = cython.address(self._names[0]) if cython.compiled else self._names
        for field in range(self._fields):
            if self._ends[field + 1] - self._ends[field] == size:
                if equal(p, at, names, self._ends[field], size):
                    return _NO_TEXT if self._marks[field * self._rows + self._row] else field
        return _UNKNOWN if is_utf8(p, at, size) else _NO_TEXT

    def _put_integer(self, field: cython.Py_ssize_t, number: cython.longlong) -> cython.bint:
        """Write an integer into its cell; false where it does not fit."""
        cell: cython.Py_ssize_t = field * (self._rows + 1) + self._row
        if self._kinds[2 * field] == _INTEGER:
            if number < self._bounds[2 * field] or number > self._bounds[2 * field + 1]:
                return False
            self._cells[cell] = number
        elif self._kinds[2 * field] == _FLOAT and -_MOST_EXACT <= number <= _MOST_EXACT:
            self._floats[cell] = number
        else:
            return False
        self._marks[field * self._rows + self._row] = _THERE
        return True

    def _put_octets(
        self,
        field: cython.Py_ssize_t,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.bint:
        """Append a text or bytes to the field's; false where a text is no UTF-8."""
        out: Octets
        if self._kinds[2 * field] == _TEXT and not is_utf8(p, at, size):
            return False
        out = self.octets[field]
        out.put(p, at, size)
        self._marks[field * self._rows + self._row] = _THERE
        return True


@cython.final
@cython.cclass
class CborColumns(Columns):
    """Reads CBOR maps."""

    def __init__(self, fields: list[Field]) -> None:
        super().__init__(fields)
        self._cursor = Cursor()

    def _document(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        cursor: Cursor = self._cursor
        left: cython.longlong
        field: cython.Py_ssize_t
        cursor.set(p, at, end)
        if not cursor.head() or cursor.major != 5 or cursor.indefinite:
            return False
        left = cursor.value
        while left:
            left -= 1
            if not cursor.head() or cursor.major != 3 or cursor.indefinite:
                return False
            if cursor.value > cursor.end - cursor.at:
                return False
            field = self._field(cursor.p, cursor.at, cursor.value)
            cursor.at += cursor.value
            if field == _NO_TEXT:
                return False
            if not (self._skip(0) if field == _UNKNOWN else self._value(field)):
                return False
        return cursor.at == cursor.end

    def _value(self, field: cython.Py_ssize_t) -> cython.bint:
        """Write a field's value into its cell; false where it does not fit as it is."""
        cursor: Cursor = self._cursor
        kind: cython.longlong = self._kinds[2 * field]
        cell: cython.Py_ssize_t = field * (self._rows + 1) + self._row
        number: cython.longlong
        bits: cython.longlong
        if not cursor.head() or cursor.indefinite:
            return False
        number = cursor.value
        if cursor.major <= 1:
            if cursor.big:
                return False
            return self._put_integer(field, -1 - number if cursor.major == 1 else number)
        if (cursor.major == 3 and kind == _TEXT) or (cursor.major == 2 and kind == _BYTES):
            if number > cursor.end - cursor.at:
                return False
            cursor.at += number
            return self._put_octets(field, cursor.p, cursor.at - number, number)
        if cursor.major != 7:
            return False
        if cursor.info == 22:
            self._marks[field * self._rows + self._row] = _NULL
            return True
        if kind == _BOOLEAN and (cursor.info == 20 or cursor.info == 21):
            self._cells[cell] = cursor.info - 20
        elif kind == _FLOAT and cursor.info == 27:
            self._cells[cell] = number - _MOST - 1 if cursor.big else number
        elif kind == _FLOAT and cursor.info == 26:
            # From 32 bits to 64: the exponent has another middle. Neither zeros nor infinities.
            bits = number >> 23 & 0xFF
            if bits == 0 or bits == 0xFF:
                return False
            bits = (bits + 896) << 52 | (number & 0x7FFFFF) << 29
            self._cells[cell] = bits - _MOST - 1 if number >> 31 else bits
        else:
            return False
        self._marks[field * self._rows + self._row] = _THERE
        return True

    def _skip(self, depth: cython.int) -> cython.bint:
        """Step over a value that nobody asked for; false where it is odd."""
        cursor: Cursor = self._cursor
        left: cython.longlong
        major: cython.int
        if not cursor.head() or cursor.indefinite:
            return False
        major = cursor.major
        if major < 2:
            return True
        if major == 2 or major == 3:
            if cursor.value > cursor.end - cursor.at:
                return False
            if major == 3 and not is_utf8(cursor.p, cursor.at, cursor.value):
                return False
            cursor.at += cursor.value
            return True
        if major == 7:
            return cursor.info >= 20 and cursor.info != 24
        if major == 6 or depth >= _MAX_DEPTH:
            return False
        left = cursor.value
        while left:
            left -= 1
            if major == 5:
                if cursor.at >= cursor.end or cursor.p[cursor.at] >> 5 > 3:
                    return False  # a key that is no plain value
                if not self._skip(depth + 1):
                    return False
            if not self._skip(depth + 1):
                return False
        return True


@cython.final
@cython.cclass
class JsonColumns(Columns):
    """Reads JSON objects."""

    def __init__(self, fields: list[Field]) -> None:
        super().__init__(fields)
        self._powers = memoryview(array("d", [10.0**k for k in range(_MOST_DIGITS + 1)]))

    def _document(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        field: cython.Py_ssize_t
        key: cython.Py_ssize_t
        self._p = p
        self._at = at
        self._end = end
        if not self._space() or self._p[self._at] != 0x7B:  # {
            return False
        self._at += 1
        if not self._space():
            return False
        if self._p[self._at] == 0x7D:  # }
            self._at += 1
            return not self._space()
        while True:
            key = self._at + 1
            if not self._text():
                return False
            field = self._field(self._p, key, self._at - 1 - key)
            if field == _NO_TEXT or not self._space() or self._p[self._at] != 0x3A:  # :
                return False
            self._at += 1
            if not self._space():
                return False
            if not (self._skip(0) if field == _UNKNOWN else self._value(field)):
                return False
            if not self._space():
                return False
            self._at += 1
            if self._p[self._at - 1] == 0x7D:  # }
                return not self._space()
            if self._p[self._at - 1] != 0x2C or not self._space():  # ,
                return False

    def _space(self) -> cython.bint:
        """Step over white space; is anything behind it?"""
        c: cython.uchar
        while self._at < self._end:
            c = self._p[self._at]
            if c != 0x20 and c != 0x0A and c != 0x0D and c != 0x09:
                return True
            self._at += 1
        return False

    def _text(self) -> cython.bint:
        """Step over a text in quotes that has nothing escaped; false where there is none."""
        c: cython.uchar
        if self._p[self._at] != 0x22:  # "
            return False
        self._at += 1
        while self._at < self._end:
            c = self._p[self._at]
            self._at += 1
            if c == 0x22:
                return True
            if c < 0x20 or c == 0x5C:
                return False
        return False

    def _word(self, size: cython.Py_ssize_t) -> cython.bint:
        """Step over `true`, `false` or `null`, whose first letter and size are known."""
        word: bytes = b"null" if self._p[self._at] == 0x6E else b"false" if size == 5 else b"true"
        if self._end - self._at < size:
            return False
        if not equal(self._p, self._at, word, 0, size):
            return False
        self._at += size
        return True

    def _digits(self) -> cython.bint:
        """Step over digits; false where there are none."""
        first: cython.Py_ssize_t = self._at
        while self._at < self._end and 0x30 <= self._p[self._at] <= 0x39:
            self._at += 1
        return self._at > first

    def _numeral(self) -> cython.bint:
        """Step over a number.

        `_number` has its digits and `_fraction` how many of them stand behind the point; it is -1
        where there are too many digits, or an exponent.
        """
        first: cython.Py_ssize_t
        point: cython.Py_ssize_t
        i: cython.Py_ssize_t
        is_negative: cython.bint = self._p[self._at] == 0x2D  # -
        number: cython.longlong = 0
        if is_negative:
            self._at += 1
        first = self._at
        if not self._digits():
            return False
        if self._p[first] == 0x30 and self._at - first > 1:
            return False
        point = self._at
        self._fraction = 0
        if self._at < self._end and self._p[self._at] == 0x2E:  # .
            self._at += 1
            if not self._digits():
                return False
            self._fraction = self._at - point - 1
        if self._at - first <= _MOST_DIGITS:
            for i in range(first, self._at):
                if i != point:
                    number = 10 * number + (self._p[i] - 0x30)
            self._number = -number if is_negative else number
            self._is_integer = self._at == point
        else:
            self._fraction = -1
            self._is_integer = False
        if self._at < self._end and (self._p[self._at] | 0x20) == 0x65:  # e
            self._at += 1
            self._fraction = -1
            self._is_integer = False
            if self._at < self._end and (self._p[self._at] == 0x2B or self._p[self._at] == 0x2D):
                self._at += 1
            if not self._digits():
                return False
        return self._at < self._end  # at least the end of its object is behind it

    def _value(self, field: cython.Py_ssize_t) -> cython.bint:
        """Write a field's value into its cell; false where it does not fit as it is."""
        kind: cython.longlong = self._kinds[2 * field]
        cell: cython.Py_ssize_t = field * (self._rows + 1) + self._row
        first: cython.Py_ssize_t = self._at
        c: cython.uchar = self._p[first]
        number: cython.double
        behind: cython.p_char
        if c == 0x22:
            if kind != _TEXT or not self._text():
                return False
            return self._put_octets(field, self._p, first + 1, self._at - first - 2)
        if c == 0x6E:
            self._marks[field * self._rows + self._row] = _NULL
            return self._word(4)
        if c == 0x74 or c == 0x66:
            self._cells[cell] = c == 0x74
            self._marks[field * self._rows + self._row] = _THERE
            return kind == _BOOLEAN and self._word(4 if c == 0x74 else 5)
        if (kind != _INTEGER and kind != _FLOAT) or not self._numeral():
            return False
        if self._is_integer:
            return self._put_integer(field, self._number)
        if kind != _FLOAT:
            return False
        if self._fraction >= 0 and self._number and -_MOST_EXACT <= self._number <= _MOST_EXACT:
            # Both are exact, so their quotient is the nearest double.
            number = self._number
            number /= self._powers[self._fraction]
        elif cython.compiled:
            number = PyOS_string_to_double(  # noqa: F821 - from the .pxd
                cython.cast(cython.p_const_char, self._p + first),
                cython.address(behind),  # noqa: F821 - it is declared above
                cython.NULL,
            )
        else:
            number = float(bytes(self._p[first : self._at]))
        if not -_LARGEST_FLOAT <= number <= _LARGEST_FLOAT:
            return False
        self._floats[cell] = number
        self._marks[field * self._rows + self._row] = _THERE
        return True

    def _skip(self, depth: cython.int) -> cython.bint:
        """Step over a value that nobody asked for; false where it is odd."""
        first: cython.Py_ssize_t = self._at
        c: cython.uchar = self._p[first]
        if c == 0x22:
            return self._text() and is_utf8(self._p, first + 1, self._at - first - 2)
        if c == 0x6E or c == 0x74 or c == 0x66:
            return self._word(5 if c == 0x66 else 4)
        if c != 0x5B and c != 0x7B:  # [ {
            return self._numeral()
        if depth >= _MAX_DEPTH:
            return False
        self._at += 1
        if not self._space():
            return False
        if self._p[self._at] == c + 2:  # ] }
            self._at += 1
            return True
        while True:
            if c == 0x7B:
                first = self._at + 1
                if not self._text() or not is_utf8(self._p, first, self._at - 1 - first):
                    return False
                if not self._space() or self._p[self._at] != 0x3A:
                    return False
                self._at += 1
                if not self._space():
                    return False
            if not self._skip(depth + 1) or not self._space():
                return False
            self._at += 1
            if self._p[self._at - 1] == c + 2:
                return True
            if self._p[self._at - 1] != 0x2C or not self._space():
                return False
