"""See number_map.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t


cdef struct Pair:
    uint64_t key
    int64_t value


@cython.final
cdef class NumberMap:
    cdef Pair *_pairs
    cdef Py_ssize_t _room
    cdef Py_ssize_t count
    cdef int64_t *there(self, uint64_t key) noexcept nogil
    cdef int64_t find(self, uint64_t key) noexcept nogil
    cdef int put(self, uint64_t key, int64_t value) except -1
    cdef int _grow(self) except -1
    cdef void empty(self) noexcept
