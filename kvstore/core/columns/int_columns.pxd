"""See int_columns.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef object cut_short()
cdef bint take_varint(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, uint64_t *value
) noexcept nogil
cdef int take_signed(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *value
) except -1
cdef int take_column(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *out, Py_ssize_t count
) except -1
