"""See texts.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from kvstore.core.number_map cimport NumberMap


@cython.final
cdef class NameSet:
    cdef NumberMap _slots
    # Each name behind a byte that has its size.
    cdef bytes _names
    cdef const uint8_t *_at
    cdef bint has(self, const uint8_t *at, Py_ssize_t size) noexcept nogil


cdef enum:
    # Bytes of a word that is checked at once.
    WORD = 8


cdef bint is_utf8(const uint8_t *at, Py_ssize_t size) noexcept nogil
cdef int copy_text(
    uint8_t *copy, const uint8_t *at, Py_ssize_t size, bint blanks
) noexcept nogil
