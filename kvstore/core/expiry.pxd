"""See expiry.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kvstore.core.put_fields cimport Times


cdef enum:
    # The property's bytes: its name, 0x01, 13 digits, 0x02.
    EXPIRY_SIZE = 27


cdef int write_expiry(int64_t time, const Times *times, uint8_t *out) except -1 nogil
cdef int64_t expiry_of(const uint8_t *properties, Py_ssize_t size) noexcept nogil
