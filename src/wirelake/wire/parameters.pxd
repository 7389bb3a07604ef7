from wirelake.wire.octets cimport Octets

cdef class Parameter:
    cdef str name
    cdef bytes header
    cdef int kind
    cdef long long most
    cdef tuple ops
    cdef Py_ssize_t place

    cdef object read(self, str text)
    cdef str write(self, object value)
    cdef bint is_absent(self, object value)

cdef list begin()
cdef int take(list values, bytes header, str text) except -1
cdef object finish(list values, object op)
cdef int put(object parameters, Octets side) except -1
cpdef list written(object parameters)
cdef long long _shortest(str text) noexcept
