from wirelake.wire.octets cimport Octets
from wirelake.wire.table cimport FrameTable

cdef class Scanner:
    cdef readonly str dialect
    cdef readonly object limits
    cdef public long long offset
    cdef public Py_ssize_t need
    cdef public bint again
    cdef public Py_ssize_t most_others
    cdef public bint together
    cdef bint ended
    cdef bint midway
    cdef long long max_message
    cdef int max_address
    cdef long long max_headers

    cpdef Py_ssize_t scan(self, const unsigned char[::1] data, FrameTable table) except -1
    cdef int start(self, FrameTable table) except -1
    cdef Py_ssize_t frame(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end, FrameTable table) except -1
    cpdef read_headers(self, FrameTable table)

cdef class Encoder:
    cdef readonly str dialect
    cdef readonly bint client
    cdef readonly dict skipped
    cdef Octets out
    cdef Octets marked
    cdef public bytes origin
    cdef readonly str variant
    cdef public Py_ssize_t keep
    cdef bint own
    cdef bint hops

    cpdef object encode(self, FrameTable table, object rows=*)
    cdef int frame(self, FrameTable table, Py_ssize_t row) except -1
    cdef int mark(self, Py_ssize_t at) except -1
    cdef int _row(self, FrameTable table, Py_ssize_t row) except -1
