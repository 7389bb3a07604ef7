from wirelake.wire.cbor cimport Cursor

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, void *overflow) except? -1.0

cdef class Columns:
    cdef readonly bytearray cells
    cdef readonly bytearray marks
    cdef readonly bytearray odd
    cdef readonly list octets
    cdef Py_ssize_t _fields
    cdef const unsigned char[::1] _names
    cdef long long[::1] _ends
    cdef long long[::1] _kinds
    cdef long long[::1] _bounds
    cdef long long[::1] _cells
    cdef double[::1] _floats
    cdef unsigned char[::1] _marks
    cdef Py_ssize_t _row
    cdef Py_ssize_t _rows

    cdef bint _document(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? 0
    cdef bint _is_complete(self) except? 0
    cdef Py_ssize_t _field(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t size) except? -1
    cdef bint _put_integer(self, Py_ssize_t field, long long number) except? 0
    cdef bint _put_octets(self, Py_ssize_t field, const unsigned char *p, Py_ssize_t at, Py_ssize_t size) except? 0

cdef class CborColumns(Columns):
    cdef Cursor _cursor

    cdef bint _value(self, Py_ssize_t field) except? 0
    cdef bint _skip(self, int depth) except? 0

cdef class JsonColumns(Columns):
    cdef const unsigned char *_p
    cdef Py_ssize_t _at
    cdef Py_ssize_t _end
    cdef long long _number
    cdef bint _is_integer
    cdef Py_ssize_t _fraction
    cdef double[::1] _powers

    cdef bint _space(self) except? 0
    cdef bint _text(self) except? 0
    cdef bint _word(self, Py_ssize_t size) except? 0
    cdef bint _digits(self) except? 0
    cdef bint _numeral(self) except? 0
    cdef bint _value(self, Py_ssize_t field) except? 0
    cdef bint _skip(self, int depth) except? 0
