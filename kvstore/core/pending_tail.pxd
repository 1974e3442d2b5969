"""See pending_tail.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvstore.core.encoding cimport Row
from kvstore.core.number_map cimport NumberMap


cdef struct Pending:
    # Its due time, twice, and 1 more if its wait has ended: a tail may have millions.
    uint64_t due_and_end
    int64_t position
    uint32_t topic
    uint32_t size


@cython.final
cdef class PendingTail:
    # The messages that were added, in the order of the log; and their numbers as a heap, the next
    # due first.
    cdef Pending *_added
    cdef Py_ssize_t _count
    cdef Py_ssize_t _room
    cdef uint32_t *_heap
    cdef Py_ssize_t _heap_count
    cdef Py_ssize_t _heap_room
    # Messages whose wait ended here, each with the position of the record that ends it.
    cdef Pending *_ended
    cdef int64_t *_enders
    cdef Py_ssize_t _ended_count
    cdef Py_ssize_t _ended_room
    cdef NumberMap _ended_numbers
    cdef int note(self, Row *row) except -1
    cdef int add(self, int64_t due, int64_t position, uint32_t topic, uint32_t size) except -1
    cdef int end(self, int64_t position, int64_t due, uint32_t topic, int64_t ender) except -1
    cdef int take_back(self, int64_t position) except -1
    cpdef bint has_ended(self, int64_t position)
    cdef Pending *_there(self, int64_t position) noexcept
    cdef int _push(self, Py_ssize_t number) except -1
    cdef void _pop(self) noexcept
