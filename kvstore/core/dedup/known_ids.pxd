"""See known_ids.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvstore.core.encoding cimport PreparedBatch


cdef struct Put:
    uint64_t hash
    int64_t position


cdef struct Generation:
    # The ids in the order in which they came.
    Put *puts
    Py_ssize_t count
    Py_ssize_t puts_room
    # A hash table of their numbers, at most half full: the upper half of a hash, and the number
    # plus 1; 0 is an empty slot. Hashes stand in their own order, so that growing is one pass.
    uint64_t *slots
    Py_ssize_t room
    # Bits by which a hash is shifted to give its slot.
    int shift
    # Time and position of the first id, and the longest window of all, ms.
    int64_t begun
    int64_t begun_at
    int64_t window


@cython.final
cdef class KnownIds:
    cdef Generation _new
    cdef Generation _old
    cdef readonly int64_t since
    cdef readonly int64_t first_position
    cdef Py_ssize_t _most
    cdef int _look(
        self, PreparedBatch batch, Py_ssize_t i, Py_ssize_t before, int64_t now, int64_t end,
        list found,
    ) except -1
    cdef int _turn_over(self, int64_t now, int64_t position) except -1
