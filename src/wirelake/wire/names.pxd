from wirelake.wire.octets cimport Octets

cdef class Names:
    cdef long long seed
    cdef readonly Py_ssize_t count
    cdef Octets text
    cdef object owner
    cdef int[::1] ends
    cdef int[::1] slots
    cdef long long[::1] hashes
    cdef Py_ssize_t mask
    cdef Py_ssize_t least

    cpdef clear(self)
    cdef Py_ssize_t find(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept
    cdef Py_ssize_t add(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) except -1
    cpdef Py_ssize_t find_bytes(self, bytes name) noexcept
    cpdef Py_ssize_t add_bytes(self, bytes name) except -1
    cdef Py_ssize_t _slot(self, long long code, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept
    cdef int _make_room(self, Py_ssize_t room) except -1
