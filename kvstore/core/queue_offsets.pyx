# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Queue offsets: the next offset of each queue that was put to.

The idea: an offset is taken for each message of a put, by a look-up in a map of numbers. A queue
that is not in the map is asked for once.

Invariant: no offset is given twice, unless somebody forgets those that were given.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvstore.core.number_map cimport NumberMap

cdef enum:
    # In the place of a queue's next offset.
    UNKNOWN = -2


@cython.final
cdef class QueueOffsets:
    def __init__(self, end):
        self._end = end
        self._next = NumberMap()

    def __len__(self):
        return self._next.count

    cdef int64_t take(self, uint64_t queue) except -1:
        cdef int64_t found = self._next.find(queue)
        if found < 0:
            found = self._end(queue)
        self._next.put(queue, found + 1)
        return found

    def forget(self, uint64_t queue):
        if self._next.find(queue) >= 0:
            self._next.put(queue, UNKNOWN)

    def forget_all(self):
        self._next.empty()
