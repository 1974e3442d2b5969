"""See tail.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvstore.core.encoding cimport PreparedBatch
from kvstore.core.number_map cimport NumberMap
from kvstore.core.pending_tail cimport PendingTail


cdef packed struct Entry:
    # Packed: a tail may have millions. A tag's hash may be a time, which has more than 32 bits.
    uint64_t queue
    int64_t offset
    int64_t position
    int64_t tag_hash
    int64_t stored_at
    uint32_t size


cdef struct KeyEntry:
    uint64_t queue
    int64_t position
    uint32_t hash
    # The number, plus 1, of the key entry before this one that has the same hash; 0: none.
    uint32_t before


cdef struct QueueEntries:
    # The positions of the offsets from `first` on.
    int64_t first
    int64_t *positions
    Py_ssize_t count
    Py_ssize_t room


@cython.final
cdef class Tail:
    cdef readonly int64_t start
    cdef readonly PendingTail timers
    cdef readonly PendingTail prepared
    cdef Entry *_entries
    cdef Py_ssize_t _count
    cdef Py_ssize_t _room
    cdef KeyEntry *_keys
    cdef Py_ssize_t _key_count
    cdef Py_ssize_t _key_room
    # The readers' views, and how many entries and keys are in them.
    cdef NumberMap _queue_slots
    cdef QueueEntries *_queues
    cdef Py_ssize_t _queue_room
    cdef Py_ssize_t _viewed
    # The bytes of each topic, and how many entries are in them.
    cdef NumberMap _topic_bytes
    cdef Py_ssize_t _weighed
    cdef NumberMap _last_keys
    cdef Py_ssize_t _keys_viewed
    cdef int _reserve(self, Py_ssize_t entries, Py_ssize_t keys) except -1
    cdef QueueEntries *_queue(self, uint64_t queue) except? NULL
    cdef const int64_t *place(
        self, uint64_t queue, int64_t offset, Py_ssize_t *left
    ) except? NULL
    cdef int _view(self, Entry *entry) except -1
    cdef void _forget_views(self) noexcept
