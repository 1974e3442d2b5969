"""See int_columns.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class Cursor:
    # Bytes that are read, and how far.
    cdef bytes kept
    cdef const uint8_t *data
    cdef Py_ssize_t size, at
    cdef void begin(self, bytes data, Py_ssize_t at) noexcept
    cdef uint64_t number(self) except? 0
    cdef int column(self, int64_t *out, Py_ssize_t count) except -1


cdef object cut_short()
cdef int take_signed(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *value
) except -1
