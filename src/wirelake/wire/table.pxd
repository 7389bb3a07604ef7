from wirelake.wire.octets cimport Octets

cdef class FrameTable:
    cdef readonly Py_ssize_t capacity
    cdef public Py_ssize_t count
    cdef public str dialect
    cdef public bint raw_ids
    cdef bint mixed
    cdef public object buffer
    cdef readonly Octets side
    cdef object owners
    cdef object reader
    cdef int[::1] cells

    cdef public int[::1] frame_at, frame_len, op, flags
    cdef public int[::1] address_at, address_len, payload_at, payload_len
    cdef public int[::1] id_at, id_len, correlation_at, correlation_len
    cdef public int[::1] source_at, source_len, target_at, target_len
    cdef public int[::1] headers_at, headers_len
    cdef public int[::1] content_type, priority, ttl, ticket
    cdef public long long[::1] sent

    cdef const unsigned char *address_p
    cdef const unsigned char *payload_p
    cdef const unsigned char *id_p
    cdef const unsigned char *correlation_p
    cdef const unsigned char *source_p
    cdef const unsigned char *target_p

    cdef int begin(self, object reader, str dialect, const unsigned char[::1] data) except -1
    cpdef chosen(self, object rows)
    cdef int _clear(self) except -1
    cdef int point(self, str field, const unsigned char[::1] data) except -1
    cdef int blank(self, Py_ssize_t row) except -1
    cpdef read_headers(self)
    cdef int put(self, Octets out, const unsigned char *p, int at, int n) except -1
    cdef int put_id(self, Octets out, Py_ssize_t row) except -1
    cdef int side_at(self) except? 0
    cdef bytes _bytes(self, const unsigned char *p, int at, int n)
    cdef _apart(self, Py_ssize_t row, object headers)
    cdef tuple _keep(self, object value)
    cdef Py_ssize_t _row(self, Py_ssize_t row) except -1
