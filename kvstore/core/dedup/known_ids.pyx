# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Known ids: the log positions of the dedup ids that were put lately.

The idea: a map from a hash of topic and id to a position, in two generations. When the newer one is
as old as the longest window, or full, the older one is dropped and another begins. So memory is
bounded by the ids of two windows, and by a number of ids. `since` says from which time on the map
has every id. An older one is the caller's to look for, in the key index. Messages that repeat an id
of their own batch are found on the way.

A put looks for its ids and adds them in one turn of the log's lock. Rows that may be repeats are
listed instead, and the caller compares the records they hint at, without the lock. Its next look
lists a row again only if another hint came meanwhile.

Invariants: every id that was added at or behind `since`, or at `first_position` or behind it, is
here, under its last position, unless another id has its hash of 64 bits. So a position is a hint:
the caller compares the record, and looks in the key index if it is another id's. At the log's end
or behind it there is no record: the put that added the id failed. `first_position` rises whenever
ids are dropped, and when messages come that were not put.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from kvstore.core.buffers cimport fetch_ahead, grown
from kvstore.core.encoding cimport PreparedBatch, Row
from kvstore.core.put_route cimport PutRoute

cdef enum:
    NONE = -1
    # Of a dedup id's property: the name, and the character behind it.
    NAME_SIZE = 8
    WORD = 8
    FIRST_ROOM = 64
    # Bits of half a hash, and the lower half of a slot.
    HALF = 32
    NUMBERS = 0xFFFFFFFF
    # Rows with ids up to which the table of a batch is on the stack; it has four places a row.
    FEW = 64
    FEW_ROOM = 4 * FEW

cdef uint64_t _FACTOR = 0x9FB21C651E98DF25


cdef uint64_t _hash(const uint8_t *at, Py_ssize_t size, uint64_t topic) noexcept nogil:
    # A word at a time: multiplied by an odd constant, with its high half mixed into its low one.
    cdef uint64_t found = topic * _FACTOR + <uint64_t>size, word
    while size > 0:
        word = 0
        memcpy(&word, at, min(size, <Py_ssize_t>WORD))
        found = (found ^ word) * _FACTOR
        found ^= found >> 32
        at += WORD
        size -= WORD
    found *= _FACTOR
    return (found ^ found >> 29) * _FACTOR


cdef inline bint _is_same(PreparedBatch batch, const Row *a, const Row *b) noexcept nogil:
    return (
        a.dedup_hash == b.dedup_hash and a.queue_key >> 32 == b.queue_key >> 32
        and a.dedup_size == b.dedup_size
        and memcmp(
            batch.properties + a.dedup_at, batch.properties + b.dedup_at, a.dedup_size
        ) == 0
    )


# --- generations ---


cdef inline void _fetch(const Generation *ids, uint64_t hash) noexcept nogil:
    if ids.count:
        fetch_ahead(<const uint8_t *>(ids.slots + (hash >> ids.shift)), 1)


cdef inline uint64_t *_slot(const Generation *ids, uint64_t hash) noexcept nogil:
    # That of a hash, or the empty one where it would be.
    cdef uint64_t *at = ids.slots + (hash >> ids.shift)
    while at[0]:
        if at[0] >> HALF == hash >> HALF and ids.puts[(at[0] & NUMBERS) - 1].hash == hash:
            break
        at += 1
        if at == ids.slots + ids.room:
            at = ids.slots
    return at


cdef inline int64_t _position(const Generation *ids, uint64_t hash) noexcept nogil:
    cdef uint64_t found = _slot(ids, hash)[0] if ids.count else 0
    return ids.puts[(found & NUMBERS) - 1].position if found else NONE


cdef int _grow(Generation *ids) except -1:
    cdef Py_ssize_t i, room = 2 * ids.room if ids.room else FIRST_ROOM
    cdef int shift = 2 * HALF
    cdef uint64_t *slots = <uint64_t *>calloc(room, sizeof(uint64_t))
    cdef uint64_t *at
    if slots == NULL:
        raise MemoryError()
    while 1 << (2 * HALF - shift) < room:
        shift -= 1
    for i in range(ids.room):
        if ids.slots[i]:
            at = slots + (ids.slots[i] >> shift)
            while at[0]:
                at += 1
                if at == slots + room:
                    at = slots
            at[0] = ids.slots[i]
    free(ids.slots)
    ids.slots, ids.room, ids.shift = slots, room, shift
    return 0


cdef int _put(Generation *ids, uint64_t hash, int64_t position) except -1:
    cdef uint64_t *at
    cdef Py_ssize_t room
    if 2 * ids.count >= ids.room:
        _grow(ids)
    if ids.count == ids.puts_room:
        room = 2 * ids.puts_room + FIRST_ROOM
        ids.puts = <Put *>grown(ids.puts, room, sizeof(Put))
        ids.puts_room = room
    at = _slot(ids, hash)
    if not at[0]:
        ids.count += 1
        at[0] = hash >> HALF << HALF | <uint64_t>ids.count
    ids.puts[(at[0] & NUMBERS) - 1].hash = hash
    ids.puts[(at[0] & NUMBERS) - 1].position = position
    return 0


cdef void _forget(Generation *ids) noexcept:
    free(ids.slots)
    free(ids.puts)
    memset(ids, 0, sizeof(Generation))


cdef void _drop(Generation *ids, Py_ssize_t expected) noexcept:
    # Its memory is kept for the next generation, unless that is likely to be far smaller.
    if ids.room > 16 * expected:
        _forget(ids)
    elif ids.room:
        memset(ids.slots, 0, ids.room * sizeof(uint64_t))
        ids.count, ids.window = 0, 0


# Without the garbage collector: it refers to nothing.
@cython.final
@cython.no_gc
cdef class KnownIds:
    def __cinit__(self, int64_t since, int64_t first_position, Py_ssize_t most):
        self.since = since
        self.first_position = first_position
        self._most = most

    def __dealloc__(self):
        _forget(&self._new)
        _forget(&self._old)

    def __len__(self):
        return self._new.count + self._old.count

    def fetch(self, PreparedBatch batch not None):
        cdef Py_ssize_t i
        cdef Row *row
        for i in range(batch.count):
            row = &batch.rows[i]
            if row.dedup_size:
                row.dedup_hash = _hash(
                    batch.properties + row.dedup_at + NAME_SIZE, row.dedup_size - NAME_SIZE,
                    row.queue_key >> 32,
                )
                _fetch(&self._new, row.dedup_hash)
                _fetch(&self._old, row.dedup_hash)

    def find(self, PreparedBatch batch not None, int64_t now, int64_t end):
        cdef int32_t few[FEW_ROOM]
        cdef int32_t *rows = few
        cdef Py_ssize_t room = FEW_ROOM
        cdef list found = []
        cdef Py_ssize_t i, at
        cdef Row *row
        if batch.deduped > FEW:
            while room < 2 * batch.deduped:
                room *= 2
            rows = <int32_t *>calloc(room, sizeof(int32_t))
            if rows == NULL:
                raise MemoryError()
        elif batch.deduped > 1:
            memset(few, 0, sizeof(few))
        else:
            room, few[0] = 1, 0
        try:
            for i in range(batch.count):
                row = &batch.rows[i]
                if not row.dedup_size:
                    continue
                at = <Py_ssize_t>row.dedup_hash & (room - 1)
                while rows[at] and not _is_same(batch, row, &batch.rows[rows[at] - 1]):
                    at = (at + 1) & (room - 1)
                self._look(batch, i, rows[at] - 1, now, end, found)
                if not rows[at]:
                    rows[at] = <int32_t>i + 1
        finally:
            if rows != few:
                free(rows)
        return found

    cdef int _look(
        self, PreparedBatch batch, Py_ssize_t i, Py_ssize_t before, int64_t now, int64_t end,
        list found,
    ) except -1:
        # Lists row `i`, which repeats row `before` (-1: none), unless it is known to be new.
        cdef Row *row = &batch.rows[i]
        cdef int64_t position = NONE, hint
        cdef const uint8_t *at = batch.properties + row.dedup_at + NAME_SIZE
        if before == NONE:
            position = _position(&self._new, row.dedup_hash)
            if position == NONE:
                position = _position(&self._old, row.dedup_hash)
            if (
                position == NONE
                and now - batch.route(i).dedup_window >= self.since
            ):
                return 0
            # A hint at no record is another one than the record that comes there.
            hint = position if position < end else -2 - position
            if row.was_listed and row.hint == hint and row.listed_from == self.first_position:
                return 0
            row.was_listed, row.hint, row.listed_from = True, hint, self.first_position
        dedup_id = at[:row.dedup_size - NAME_SIZE].decode()
        if before != NONE:
            before = _given_row(batch, before)
        found.append((_given_row(batch, i), before, position, batch.topic(i), dedup_id))
        return 0

    def add(self, PreparedBatch batch not None):
        cdef Py_ssize_t i
        cdef Row *row
        cdef bint is_first = True
        for i in range(batch.count):
            row = &batch.rows[i]
            if row.dedup_size:
                if is_first:
                    self._turn_over(batch.stored_at, row.position)
                    is_first = False
                self._new.window = max(
                    self._new.window, batch.route(i).dedup_window
                )
                _put(&self._new, row.dedup_hash, row.position)

    def arriving(self, int64_t newest, int64_t end):
        self.since = max(self.since, newest + 1)
        self.first_position = max(self.first_position, end)

    cdef int _turn_over(self, int64_t now, int64_t position) except -1:
        # Begins another generation, if it is time; its first id comes now, at this position.
        cdef Generation dropped
        if self._new.count:
            if (
                self._new.count < self._most
                and now - self._new.begun <= max(self._new.window, self._old.window)
            ):
                return 0
            if self._old.count:
                self.since, self.first_position = self._new.begun + 1, self._new.begun_at
            dropped = self._old
            self._old = self._new
            self._new = dropped
            _drop(&self._new, self._old.count)
        self._new.begun, self._new.begun_at = now, position
        return 0


cdef Py_ssize_t _given_row(PreparedBatch batch, Py_ssize_t row):
    # The number that a row had before others were dropped.
    return row if batch._given is None else <Py_ssize_t>batch._given[row]


def drop_rows(PreparedBatch batch not None, rows):
    # The numbers first: what the caller's collection runs must not find a batch half done.
    cdef set gone = {int(i) for i in rows}
    cdef Py_ssize_t i, hashed = 0, kept = 0, hashes = 0, size = 0, first
    cdef list records = [], left = [], given = []
    cdef Row *row
    if not batch.deduped or not gone:
        return
    row = batch.rows + batch.count - 1
    if batch.numbered or len(batch.records) != row.at + row.size:
        raise ValueError("the batch has places already")
    for i in range(batch.count):
        row = &batch.rows[i]
        first, hashed = hashed, row.hashes_end
        if _given_row(batch, i) in gone:
            batch.deduped -= row.dedup_size > 0
            continue
        given.append(_given_row(batch, i))
        records.append(batch.records[row.at:row.at + row.size])
        left.append(i)
        for first in range(first, hashed):
            batch.hashes[hashes] = batch.hashes[first]
            hashes += 1
        row.at, row.hashes_end = size, hashes
        size += row.size
        batch.rows[kept] = row[0]
        kept += 1
    batch.records = b"".join(records)
    batch.keep(left)
    batch._given = given
    batch.count, batch.hashes_count = kept, hashes
