# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Tail: entries, keys and pending messages that were appended but not yet checkpointed.

The idea: two growing columns of fixed-size entries, in log order; a put adds a few numbers a
message. A reader's question about a queue or a key needs a view by queue or by hash. The view is
made when somebody asks, and goes on from where it was left.

Invariants: entries are in log order, their positions rise. A queue's offsets in one tail have no
gaps. Entries are added under the log's lock and read without it, between two steps of the
interpreter. The log's visible end, not the end of the tail, bounds what a reader may see.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from kvstore.core.buffers cimport View, grown, index_of, lower_bound, numbers_of, room_of
from kvstore.core.encoding cimport PreparedBatch, Row
from kvstore.core.number_map cimport NumberMap
from kvstore.core.pending_tail cimport PendingTail
from kvstore.core.queue_offsets cimport QueueOffsets
from kvstore.core.radix_sort cimport Keyed, sort_keyed
from kvstore.core.records cimport BLANK_LEAST

import numpy as np

from kvstore.core.pending_tail import waiting_rows

# Callers know them as parts of a tail.
globals()["PendingTail"] = PendingTail
globals()["waiting_rows"] = waiting_rows

cdef enum:
    # Their numbers take 32 bits.
    KEYS_MAX = 0xFFFFFFFE

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64)


cdef inline int64_t _offset(const QueueEntries *queue, Py_ssize_t at) noexcept:
    # Without a sign, since entries that were found may state any offset.
    return <int64_t>(<uint64_t>queue.first + <uint64_t>at)


cdef int _number(PreparedBatch batch, QueueOffsets offsets) except -1:
    # All rows get offsets, or none takes one.
    batch.numbered = 0
    try:
        while batch.numbered < batch.count:
            batch.rows[batch.numbered].offset = offsets.take(batch.rows[batch.numbered].queue_key)
            batch.numbered += 1
    except BaseException:
        _give_back(batch, offsets)
        raise
    return 0


cdef int _give_back(PreparedBatch batch, QueueOffsets offsets) except -1:
    # The last first: a queue that occurs twice gets its first offset back.
    while batch.numbered:
        batch.numbered -= 1
        offsets.set(batch.rows[batch.numbered].queue_key, batch.rows[batch.numbered].offset)
    return 0


# Without the garbage collector, which would clear the maps before `__dealloc__` needs them. They
# refer to nothing, so no cycle can go through a tail.
@cython.final
@cython.no_gc
cdef class Tail:
    def __cinit__(self, int64_t start):
        self.start = start
        self._topic_bytes = NumberMap()
        self._queue_slots = NumberMap()
        self._last_keys = NumberMap()
        self.timers = PendingTail()
        self.prepared = PendingTail()

    def __dealloc__(self):
        # A tail whose making failed has no maps.
        if self._last_keys is not None:
            self._forget_views()
        free(self._queues)
        free(self._entries)
        free(self._keys)

    def __len__(self):
        return self._count

    @property
    def keys_held(self):
        return self._key_count

    # --- adding ---

    cdef int _reserve(self, Py_ssize_t entries, Py_ssize_t keys) except -1:
        cdef Py_ssize_t room
        if self._count + entries > self._room:
            room = 2 * self._room + entries
            self._entries = <Entry *>grown(self._entries, room, sizeof(Entry))
            self._room = room
        if self._key_count + keys > self._key_room:
            room = 2 * self._key_room + keys
            if room > KEYS_MAX:
                raise MemoryError("a tail has fewer than 2**32 keys")
            self._keys = <KeyEntry *>grown(self._keys, room, sizeof(KeyEntry))
            self._key_room = room
        return 0

    def add(
        self, PreparedBatch batch not None, QueueOffsets offsets not None, int64_t position,
        int64_t segment_size, int64_t stored_at,
    ):
        cdef Py_ssize_t i, stop, first = 0, hashed = 0
        cdef list pieces = []
        cdef int64_t room
        cdef Row *row
        cdef Entry *entry
        cdef KeyEntry *key
        if segment_size <= BLANK_LEAST or position < 0:
            raise ValueError("no such position or segment")
        _number(batch, offsets)
        while True:
            room = segment_size - position % segment_size
            stop = batch.fitting(first, room - BLANK_LEAST)
            if stop == first and room == segment_size and batch.count:
                raise ValueError("a record is larger than a segment")
            pieces.append((position, batch.place(first, stop, position, stored_at)))
            if stop == batch.count:
                break
            position += room
            first = stop
        self._reserve(batch.count, batch.hashes_count)
        entry = self._entries + self._count
        key = self._keys + self._key_count
        for i in range(batch.count):
            row = &batch.rows[i]
            entry.queue = row.queue_key
            entry.offset = row.offset
            entry.position = row.position
            entry.size = <uint32_t>row.size
            entry.tag_hash = row.tag_hash
            entry.stored_at = batch.stored_at
            entry += 1
            if row.due or row.ends:
                (self.prepared if row.is_prepared else self.timers).note(row)
            for hashed in range(hashed, row.hashes_end):
                key.queue = row.queue_key
                key.position = row.position
                key.hash = batch.hashes[hashed]
                key += 1
            hashed = row.hashes_end
        self._count += batch.count
        self._key_count += batch.hashes_count
        return pieces

    def add_found(self, entries, keys):
        cdef View rows = numbers_of(entries)
        cdef View hashes = numbers_of(keys)
        cdef int64_t *found = rows.numbers
        cdef Py_ssize_t i
        cdef Entry *entry
        cdef KeyEntry *key
        if rows.count % 6 or hashes.count % 3:
            raise ValueError("an entry has six numbers, a key three")
        self._reserve(rows.count // 6, hashes.count // 3)
        for i in range(rows.count // 6):
            entry = self._entries + self._count + i
            entry.queue, entry.offset, entry.position = <uint64_t>found[0], found[1], found[2]
            entry.size, entry.tag_hash, entry.stored_at = <uint32_t>found[3], found[4], found[5]
            found += 6
        for i in range(hashes.count // 3):
            key = self._keys + self._key_count + i
            key.queue = <uint64_t>hashes.numbers[3 * i]
            key.position = hashes.numbers[3 * i + 1]
            key.hash = <uint32_t>hashes.numbers[3 * i + 2]
        self._count += rows.count // 6
        self._key_count += hashes.count // 3

    def take_back(
        self, PreparedBatch batch not None, QueueOffsets offsets not None, int64_t position
    ):
        _give_back(batch, offsets)
        while self._count and self._entries[self._count - 1].position >= position:
            self._count -= 1
        while self._key_count and self._keys[self._key_count - 1].position >= position:
            self._key_count -= 1
        self.timers.take_back(position)
        self.prepared.take_back(position)
        self._forget_views()

    def tell_ends(self, QueueOffsets offsets not None):
        cdef Py_ssize_t i
        for i in range(self._count):
            offsets.set(self._entries[i].queue, <int64_t>(<uint64_t>self._entries[i].offset + 1))

    # --- queues ---

    cdef QueueEntries *_queue(self, uint64_t queue) except? NULL:
        # NULL, without an error, for a queue that has no entries here.
        cdef int64_t slot
        while self._viewed < self._count:
            self._view(self._entries + self._viewed)
            self._viewed += 1
        slot = self._queue_slots.find(queue)
        return NULL if slot < 0 else self._queues + slot

    cdef int _view(self, Entry *entry) except -1:
        cdef int64_t slot = self._queue_slots.find(entry.queue)
        cdef QueueEntries *found
        cdef Py_ssize_t room
        if slot < 0:
            slot = self._queue_slots.count
            if slot == self._queue_room:
                room = 2 * self._queue_room + 16
                self._queues = <QueueEntries *>grown(self._queues, room, sizeof(QueueEntries))
                self._queue_room = room
            found = self._queues + slot
            found.first = entry.offset
            found.positions = NULL
            found.count = found.room = 0
            self._queue_slots.put(entry.queue, slot)
        found = self._queues + slot
        if found.count == found.room:
            room = 2 * found.room + 4
            found.positions = <int64_t *>grown(found.positions, room, sizeof(int64_t))
            found.room = room
        found.positions[found.count] = entry.position
        found.count += 1
        return 0

    cdef void _forget_views(self) noexcept:
        cdef Py_ssize_t slot
        for slot in range(self._queue_slots.count):
            free(self._queues[slot].positions)
        self._queue_slots.empty()
        self._last_keys.empty()
        self._topic_bytes.empty()
        self._viewed = self._keys_viewed = self._weighed = 0

    def __contains__(self, uint64_t queue):
        return self._queue(queue) != NULL

    def bounds(self, uint64_t queue, int64_t end):
        cdef QueueEntries *found = self._queue(queue)
        if found == NULL:
            return None
        return found.first, _offset(found, lower_bound(found.positions, found.count, end))

    def first_within(self, uint64_t queue, int64_t begin, int64_t end):
        cdef QueueEntries *found = self._queue(queue)
        cdef Py_ssize_t at
        if found == NULL:
            return None
        at = lower_bound(found.positions, found.count, begin)
        if at == found.count or found.positions[at] >= end:
            return None
        return _offset(found, at)

    cdef const int64_t *place(
        self, uint64_t queue, int64_t offset, Py_ssize_t *left
    ) except? NULL:
        # The position of an offset, and how many follow it here, itself included; or NULL.
        cdef QueueEntries *found = self._queue(queue)
        cdef Py_ssize_t at
        if found == NULL:
            return NULL
        at = index_of(offset, found.first)
        if not 0 <= at < found.count:
            return NULL
        left[0] = found.count - at
        return found.positions + at

    def positions(self, uint64_t queue, int64_t offset, Py_ssize_t limit):
        # The list comes first: making one may collect garbage, and so let other threads add.
        cdef list out = []
        cdef Py_ssize_t left = 0, i
        cdef const int64_t *found = self.place(queue, offset, &left)
        for i in range(max(min(limit, left), 0)):
            out.append(found[i])
        return out

    # --- keys ---

    def find_key(self, int64_t key_hash):
        # The list comes first, as in `positions`.
        cdef list found = []
        cdef int64_t at
        cdef KeyEntry *key
        while self._keys_viewed < self._key_count:
            key = self._keys + self._keys_viewed
            key.before = <uint32_t>(self._last_keys.find(key.hash) + 1)
            self._last_keys.put(key.hash, self._keys_viewed)
            self._keys_viewed += 1
        at = self._last_keys.find(<uint64_t>(key_hash >> 8))
        while at >= 0:
            found.append(self._keys[at].position)
            at = <int64_t>self._keys[at].before - 1
        found.reverse()
        return found

    # --- for a checkpoint, of a tail that gets no more entries ---

    def topic_bytes(self):
        cdef dict found = {}
        cdef Py_ssize_t i
        cdef Entry *entry
        cdef int64_t *size
        while self._weighed < self._count:
            entry = self._entries + self._weighed
            size = self._topic_bytes.there(entry.queue >> 32)
            if size == NULL:
                self._topic_bytes.put(entry.queue >> 32, entry.size)
            else:
                size[0] += entry.size
            self._weighed += 1
        for i in range(self._topic_bytes._room):
            if self._topic_bytes._pairs[i].value >= 0:
                found[self._topic_bytes._pairs[i].key] = self._topic_bytes._pairs[i].value
        return found

    def entry_columns(self):
        cdef Py_ssize_t count = self._count, i
        table = _empty((6, count), _int64)
        cdef View room = room_of(table)
        cdef int64_t *out = room.numbers
        cdef Entry *entry
        # By queue; each queue's entries stay in the order of the log.
        cdef Keyed *keyed = <Keyed *>grown(NULL, 2 * count + 1, sizeof(Keyed))
        cdef Keyed *ordered
        with nogil:
            for i in range(count):
                keyed[i].key, keyed[i].row = self._entries[i].queue, i
            ordered = sort_keyed(keyed, keyed + count, count)
            for i in range(count):
                entry = self._entries + ordered[i].row
                out[i] = <int64_t>entry.queue
                out[count + i] = entry.offset
                out[2 * count + i] = entry.position
                out[3 * count + i] = entry.size
                out[4 * count + i] = entry.tag_hash
                out[5 * count + i] = entry.stored_at
        free(keyed)
        return table

    def key_pairs(self, int64_t segment_size, bytes topic_bytes not None):
        cdef list found = []
        cdef const uint8_t *low = <const uint8_t *>PyBytes_AS_STRING(topic_bytes)
        cdef uint64_t topics = <uint64_t>len(topic_bytes)
        cdef Py_ssize_t begin = 0, end, i
        cdef int64_t segment, base
        cdef bint is_known = True
        cdef KeyEntry *keys = self._keys
        cdef View room, places
        if segment_size <= 0:
            raise ValueError("a segment has at least one byte")
        while begin < self._key_count:
            segment = keys[begin].position // segment_size
            base, end = segment * segment_size, begin
            with nogil:
                while end < self._key_count and (
                    <uint64_t>keys[end].position - <uint64_t>base < <uint64_t>segment_size
                ):
                    end += 1
            hashes, positions = _empty(end - begin, _int64), _empty(end - begin, _int64)
            room, places = room_of(hashes), room_of(positions)
            with nogil:
                for i in range(end - begin):
                    is_known = keys[begin + i].queue >> 32 < topics
                    if not is_known:
                        break
                    room.numbers[i] = (
                        <int64_t>keys[begin + i].hash << 8 | low[keys[begin + i].queue >> 32]
                    )
                    places.numbers[i] = keys[begin + i].position - base
            if not is_known:
                raise IndexError("a topic has no byte")
            found.append((segment, hashes, positions))
            begin = end
        return found
