"""See hashing.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef uint32_t xxh32_of(const uint8_t *at, Py_ssize_t size) noexcept nogil
cdef int64_t java_hash_of(const uint8_t *at, Py_ssize_t size) noexcept nogil
cdef bint may_hold_digest(
    bytes data, Py_ssize_t at, int64_t blocks, int64_t first, uint32_t digest, int hashes
) except -1
