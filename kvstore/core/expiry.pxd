"""See expiry.pyx."""

from libc.stdint cimport int64_t, uint8_t


cdef enum:
    # The property's bytes: its name, 0x01, 13 digits, 0x02.
    EXPIRY_SIZE = 27


cdef int write_expiry(int64_t time, uint8_t *out) noexcept nogil
cdef int64_t expiry_of(const uint8_t *properties, Py_ssize_t size) noexcept nogil
