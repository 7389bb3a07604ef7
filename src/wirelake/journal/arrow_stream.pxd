from wirelake.wire.octets cimport Octets

cdef class StreamWriter:
    cdef object codec
    cdef list metadata
    cdef list pieces
    cdef Octets out
    cdef list owners
    cdef long long[::1] sizes
    cdef Py_ssize_t count

    cdef int add(self, object owner, Py_ssize_t size) except -1
    cdef int end(self, Py_ssize_t number, Py_ssize_t rows, Py_ssize_t entries) except -1
    cdef int _put(self, object owner, Py_ssize_t size) except -1
    cdef object finish(self)
