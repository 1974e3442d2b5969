"""See number_map.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t


@cython.final
cdef class NumberMap:
    cdef uint64_t *_keys
    cdef int64_t *_values
    cdef Py_ssize_t _room
    cdef Py_ssize_t count
    cdef int64_t find(self, uint64_t key) noexcept nogil
    cdef int put(self, uint64_t key, int64_t value) except -1
    cdef int _grow(self) except -1
    cdef void empty(self) noexcept
