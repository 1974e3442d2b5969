# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Queue offsets: the next offset of each queue that was put to, and where queues ended before.

The idea: an offset is taken for each message of a put, by a look-up in a map of numbers. A queue
that is not in the map is asked for once. A put that fails gives its offsets back.

A queue may have been closed since a put was begun (`meta.closed_queues`). An encoder counts that,
and each batch has the count of its beginning. So a put compares two numbers before it takes
offsets, and only a late one looks at its queues.

The heads of queues, as a checkpoint left them, are numbers in maps as well: with forty thousand
queues objects of Python took three times the memory.

Invariants: no offset is given twice, unless it was given back or its queue was forgotten; a batch
that is not late was begun behind the last closing.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvstore.core.encoding cimport Encoder, PreparedBatch
from kvstore.core.number_map cimport NumberMap

cdef enum:
    # In the place of a queue's next offset.
    UNKNOWN = -2
    SEGMENT_MAX = 0xFFFFFFFF


@cython.final
cdef class QueueOffsets:
    def __cinit__(self, end):
        self._end = end
        self._next = NumberMap()

    def __len__(self):
        return self._next.count

    cdef int64_t take(self, uint64_t queue) except -1:
        cdef int64_t *next = self._next.there(queue)
        cdef int64_t found
        if next != NULL and next[0] >= 0:
            found = next[0]
            next[0] += 1
            return found
        found = self._end(queue)
        self.set(queue, found + 1)
        return found

    cdef int set(self, uint64_t queue, int64_t next) except -1:
        return self._next.put(queue, next if next >= 0 else UNKNOWN)

    def forget(self, uint64_t queue):
        if self._next.find(queue) >= 0:
            self._next.put(queue, UNKNOWN)

    def forget_all(self):
        self._next.empty()


@cython.final
cdef class QueueHeads:
    def __cinit__(self):
        self._next = NumberMap()
        self._segments = NumberMap()

    def __len__(self):
        return self._next.count

    def next_offset(self, uint64_t queue):
        cdef int64_t found = self._next.find(queue)
        return None if found < 0 else found

    def segment(self, uint64_t queue):
        return None if self._next.find(queue) < 0 else self._segments.find(queue) - 1

    def note(self, list queues not None, list next_offsets not None, list segments not None):
        cdef Py_ssize_t i
        cdef uint64_t queue
        cdef int64_t next, segment
        if not len(queues) == len(next_offsets) == len(segments):
            raise ValueError("a queue has one next offset and one segment")
        for i in range(len(queues)):
            queue, next, segment = queues[i], next_offsets[i], segments[i]
            if not -1 <= segment <= SEGMENT_MAX:
                raise ValueError(f"there is no segment {segment}")
            # The offset comes last: who finds it finds the segment.
            self._segments.put(queue, segment + 1)
            self._next.put(queue, next if next >= 0 else UNKNOWN)

    def forget(self, uint64_t queue):
        if self._next.find(queue) >= 0:
            self._next.put(queue, UNKNOWN)

    def forget_all(self):
        self._next.empty()
        self._segments.empty()


def count_closing(Encoder encoder not None):
    encoder.closings += 1


def late_targets(PreparedBatch batch not None, Encoder encoder not None):
    cdef Py_ssize_t i
    if batch.closings == encoder.closings:
        return None
    return [
        batch.rows[i].target if batch.rows[i].due else batch.rows[i].queue_key
        for i in range(batch.count)
    ]
