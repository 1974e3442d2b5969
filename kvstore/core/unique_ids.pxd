"""See unique_ids.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef enum:
    # Hex digits of an id behind its prefix.
    ID_DIGITS = 12


@cython.final
cdef class UniqueIds:
    cdef readonly str prefix
    cdef int64_t _now
    # Ids used of this millisecond; since the month began, in ms; the number of the next id.
    cdef Py_ssize_t _used
    cdef uint64_t _time
    cdef uint64_t _counter
    cdef uint64_t take(self, int64_t now_ms) noexcept
    cdef void _begin(self, int64_t now_ms) noexcept


cdef void write_id_number(uint64_t number, uint8_t *out) noexcept nogil
