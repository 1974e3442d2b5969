"""See packed_runs.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvstore.core.number_map cimport NumberMap


cdef struct Run:
    # The positions of the offsets from `first` on.
    int64_t first
    Py_ssize_t count
    int64_t *positions


cdef struct QueueRuns:
    # By first offset.
    Run *runs
    Py_ssize_t count
    Py_ssize_t room


@cython.final
cdef class DecodedRuns:
    cdef NumberMap _slots
    cdef QueueRuns *_queues
    cdef Py_ssize_t _room
    cdef Py_ssize_t _held
    cdef QueueRuns *_queue(self, uint64_t queue) except NULL
    cdef const int64_t *place(self, uint64_t queue, int64_t offset, Py_ssize_t *left) noexcept
