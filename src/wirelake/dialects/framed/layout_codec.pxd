from wirelake.wire.octets cimport Octets

cdef class Layout:
    cdef readonly object description
    cdef readonly tuple magics
    cdef bytes magic, delimiter, ending, trailer, mark, template
    cdef int magic_len, strip, by, length_at, length_width, digits_end
    cdef readonly Py_ssize_t most
    cdef Py_ssize_t size, base
    cdef bint length_little
    cdef int count, headers, needs, parts, address_fields, known
    cdef list names, members, defaults, literals, op_texts
    cdef readonly list accepted, refused
    cdef int[::1] kind, width, at, after, little, pad, column, is_header, mode, ends
    cdef int[::1] header_fields, chain, place, part_fields, needed, has_op, known_ops
    cdef long long[::1] op_values, known_values
    cdef int id_field, ticket_field, priority_field, ttl_field, op_field, json_field
    cdef bint variable_headers, is_numeric, is_in_place, verifies
    cdef readonly bint told, asks
    cdef readonly str obstacle
    cdef int check_way, check_len, check_start, check_bits, check_size
    cdef unsigned int check_begin, check_end
    cdef bint check_hex, check_little, check_reflected, check_optional
    cdef readonly str check_name
    cdef unsigned int[::1] tables
    cdef unsigned int *table
    cdef Py_ssize_t start_size, end_size, payload_at, least, head_size
    cdef int payload_after, payload_pad

    cdef long long number(self, const unsigned char *p, Py_ssize_t at, int k) noexcept
    cdef long long checksum(self, const unsigned char *p, Py_ssize_t at, Py_ssize_t end) noexcept
    cdef bint has_checksum(self, const unsigned char *p, Py_ssize_t begin, Py_ssize_t end) noexcept
    cdef int locate(self, const unsigned char *p, Py_ssize_t begin, Py_ssize_t end, int k, long long *places, Octets side) except -1
    cdef int _locate_member(self, const unsigned char *p, Py_ssize_t begin, Py_ssize_t end, int k, long long *places, Octets side) except -1
    cdef int put_text(self, const unsigned char *p, int k, long long *places, Octets side, Octets out) except -1

cdef long long read_unsigned(const unsigned char *p, Py_ssize_t at, int width, bint little) noexcept
cdef Py_ssize_t find_byte(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, int byte) noexcept
cdef Py_ssize_t find_octets(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, bytes wanted) noexcept
cdef bint matches(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, bytes wanted) noexcept
cdef Py_ssize_t find_member(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, const unsigned char *name, Py_ssize_t n) noexcept
cdef Py_ssize_t skip_value(const unsigned char *p, Py_ssize_t at, Py_ssize_t end) noexcept
cdef int hex_digit(int byte) noexcept
cpdef Layout layout_of(object description)
