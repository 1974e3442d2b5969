"""See queue_offsets.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvstore.core.number_map cimport NumberMap


@cython.final
cdef class QueueOffsets:
    cdef object _end
    cdef NumberMap _next
    cdef int64_t take(self, uint64_t queue) except -1
    cdef int set(self, uint64_t queue, int64_t next) except -1


@cython.final
cdef class QueueHeads:
    cdef NumberMap _next
    cdef NumberMap _segments
