"""See bits.pyx."""

from libc.stdint cimport uint8_t, uint64_t


cdef inline Py_ssize_t size_of_bits(int width, Py_ssize_t count) noexcept nogil:
    # The bytes of `count` values, without overflow for counts up to 2**62.
    return (count >> 3) * width + (((count & 7) * width + 7) >> 3)


cdef void pack_bits(
    uint8_t *out, const uint64_t *values, Py_ssize_t count, int width, uint64_t base, bint steps
) noexcept nogil
cdef void unpack_bits(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t skip, int width, Py_ssize_t count,
    uint64_t *out,
) noexcept nogil
