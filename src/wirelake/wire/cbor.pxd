from wirelake.wire.octets cimport Octets

cdef class Cursor:
    cdef const unsigned char *p
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef int major
    cdef int info
    cdef long long value
    cdef bint indefinite
    cdef bint short
    cdef bint big
    cdef str problem

    cdef int set(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) except -1
    cdef bint head(self) except? 0
    cdef bint refuse(self, str problem) except? 0
    cdef bint at_break(self) except? 0
    cdef bint skip(self, int depth) except? 0
    cdef bint join(self, Octets out) except? 0

cdef int put_head(Octets out, int major, long long value) except -1
cdef int put_text(Octets out, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) except -1
