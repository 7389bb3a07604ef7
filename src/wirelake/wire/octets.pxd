cdef int int16(const unsigned char *p, Py_ssize_t at) noexcept
cdef long long uint32(const unsigned char *p, Py_ssize_t at) noexcept
cdef Py_ssize_t find_crlf(const unsigned char *p, Py_ssize_t at, Py_ssize_t end) noexcept
cdef bint same(const unsigned char *p, Py_ssize_t at, const unsigned char *q, Py_ssize_t n) noexcept
cdef bint equal(const unsigned char *p, Py_ssize_t at, const unsigned char *q, Py_ssize_t other, Py_ssize_t n) noexcept
cdef long long hash_of(long long seed, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept
cdef bint is_utf8(const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept
cdef long long decimal(const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept
cdef int find_name(long long[::1] packed, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) noexcept

cdef class Octets:
    cdef object owner
    cdef unsigned char *data
    cdef public Py_ssize_t size
    cdef Py_ssize_t room

    cdef int clear(self) except -1
    cdef int _own(self, Py_ssize_t room) except -1
    cpdef reserve(self, Py_ssize_t more)
    cpdef put_bytes(self, bytes value)
    cpdef object take(self, Py_ssize_t keep=*)
    cdef int grow(self, Py_ssize_t more) except -1
    cdef int put(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) except -1
    cdef int put_hex(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t n) except -1
    cdef int put_decimal(self, long long value) except -1
    cdef int put_uint8(self, int value) except -1
    cdef int put_uint16(self, int value) except -1
    cdef int put_uint32(self, long long value) except -1
    cdef int set_uint32(self, Py_ssize_t at, long long value) except -1
