# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Pending tail: the pending messages that a tail has, and the waits that ended in it.

The idea: a put notes the messages that wait, and the records that end a wait, as the tail notes
entries. A heap gives the next due ones. A wait that ended before its row reached RocksDB leaves
nothing; one whose row is there, or in the tail before, is kept so that the checkpoint removes the
row (docs/timing.md).

Invariants: a message is pending in one tail at most, the one that got its record; a wait ends once;
`take_back` leaves the tail as it was before the records from a position on.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from kvstore.core.buffers cimport (
    View, grown, load_be32, load_be64, numbers_of, store_be32, store_be64,
)
from kvstore.core.encoding cimport Row
from kvstore.core.number_map cimport NumberMap
from kvstore.core.radix_sort cimport Keyed, sort_keyed


cdef enum:
    # Their numbers take 32 bits.
    PENDING_MAX = 0xFFFFFFFF


cdef inline int64_t _due(const Pending *one) noexcept:
    return <int64_t>(one.due_and_end >> 1)


cdef inline bint _has_ended(const Pending *one) noexcept:
    return one.due_and_end & 1


cdef inline void _set(
    Pending *one, int64_t due, int64_t position, uint32_t topic, uint32_t size
) noexcept:
    one.due_and_end = <uint64_t>due << 1
    one.position, one.topic, one.size = position, topic, size


# Without the garbage collector, as `Tail`.
@cython.final
@cython.no_gc
cdef class PendingTail:
    def __cinit__(self):
        self._ended_numbers = NumberMap()

    def __dealloc__(self):
        free(self._added)
        free(self._heap)
        free(self._ended)
        free(self._enders)

    def __len__(self):
        cdef Py_ssize_t i, found = 0
        for i in range(self._count):
            found += not _has_ended(self._added + i)
        return found

    # --- noting ---

    cdef int note(self, Row *row) except -1:
        if row.ends:
            self.end(row.ends - 1, row.ended_due, row.ended_topic, row.position)
        if row.due:
            self.add(row.due, row.position, <uint32_t>(row.target >> 32), <uint32_t>row.size)
        return 0

    cdef int add(self, int64_t due, int64_t position, uint32_t topic, uint32_t size) except -1:
        cdef Py_ssize_t room
        if self._count == self._room:
            room = 2 * self._room + 64
            if room > PENDING_MAX:
                raise MemoryError("a tail has fewer than 2**32 pending messages")
            self._added = <Pending *>grown(self._added, room, sizeof(Pending))
            self._room = room
        _set(self._added + self._count, due, position, topic, size)
        self._push(self._count)
        self._count += 1
        return 0

    cdef int end(self, int64_t position, int64_t due, uint32_t topic, int64_t ender) except -1:
        cdef Pending *one = self._there(position)
        cdef Py_ssize_t room
        if one != NULL:
            one.due_and_end |= 1
        if self._ended_count == self._ended_room:
            room = 2 * self._ended_room + 64
            self._ended = <Pending *>grown(self._ended, room, sizeof(Pending))
            self._enders = <int64_t *>grown(self._enders, room, sizeof(int64_t))
            self._ended_room = room
        self._ended_numbers.put(<uint64_t>position, self._ended_count)
        self._enders[self._ended_count] = ender
        _set(self._ended + self._ended_count, due, position, topic, 0)
        # The end of an ended one: it had no row, since this tail had it.
        self._ended[self._ended_count].due_and_end |= one != NULL
        self._ended_count += 1
        return 0

    cdef int take_back(self, int64_t position) except -1:
        cdef Pending *one
        cdef bint is_less = False
        while self._ended_count and self._enders[self._ended_count - 1] >= position:
            self._ended_count -= 1
            one = self._there(self._ended[self._ended_count].position)
            if one != NULL:
                one.due_and_end &= ~<uint64_t>1
                is_less = True
        while self._count and self._added[self._count - 1].position >= position:
            self._count -= 1
            is_less = True
        if is_less:
            self.give_back()
        return 0

    def add_found(self, rows):
        cdef View given = numbers_of(rows)
        cdef int64_t *row = given.numbers
        cdef Py_ssize_t i
        if given.count % 4:
            raise ValueError("a pending message has four numbers")
        for i in range(given.count // 4):
            self.add(row[0], row[1], <uint32_t>row[2], <uint32_t>row[3])
            row += 4

    def end_found(self, rows):
        cdef View given = numbers_of(rows)
        cdef int64_t *row = given.numbers
        cdef Py_ssize_t i
        if given.count % 4:
            raise ValueError("an ended wait has four numbers")
        for i in range(given.count // 4):
            self.end(row[0], row[1], <uint32_t>row[2], row[3])
            # A checkpoint that a crash cut short may have written its row.
            self._ended[self._ended_count - 1].due_and_end &= ~<uint64_t>1
            row += 4

    # --- the heap; the next due, and of those the first in the log, is its first ---

    cdef int _push(self, Py_ssize_t number) except -1:
        cdef Py_ssize_t room, at = self._heap_count, above
        if at == self._heap_room:
            room = 2 * self._heap_room + 64
            self._heap = <uint32_t *>grown(self._heap, room, sizeof(uint32_t))
            self._heap_room = room
        self._heap_count += 1
        while at:
            above = (at - 1) >> 1
            if not _is_before(self._added, number, self._heap[above]):
                break
            self._heap[at] = self._heap[above]
            at = above
        self._heap[at] = <uint32_t>number
        return 0

    cdef void _pop(self) noexcept:
        cdef Py_ssize_t at = 0, below, last
        self._heap_count -= 1
        last = self._heap[self._heap_count]
        while True:
            below = 2 * at + 1
            if below >= self._heap_count:
                break
            if below + 1 < self._heap_count and _is_before(
                self._added, self._heap[below + 1], self._heap[below]
            ):
                below += 1
            if not _is_before(self._added, self._heap[below], last):
                break
            self._heap[at] = self._heap[below]
            at = below
        self._heap[at] = <uint32_t>last

    def first_due(self):
        while self._heap_count and _has_ended(self._added + self._heap[0]):
            self._pop()
        return _due(self._added + self._heap[0]) if self._heap_count else None

    def take_due(self, int64_t until, Py_ssize_t limit, int64_t end, PendingTail later):
        cdef list found = []
        cdef Pending one
        while self._heap_count and len(found) < limit:
            one = self._added[self._heap[0]]
            if not _has_ended(&one) and (_due(&one) > until or one.position >= end):
                break
            # It leaves the heap first: making a tuple may collect garbage, and so let other threads
            # add one that is due before it.
            self._pop()
            if not _has_ended(&one) and not (later is not None and later.has_ended(one.position)):
                found.append((_due(&one), one.position, one.topic, one.size))
        return found

    def give_back(self):
        cdef Py_ssize_t i
        self._heap_count = 0
        for i in range(self._count):
            if not _has_ended(self._added + i):
                self._push(i)

    # --- looking ---

    cdef Pending *_there(self, int64_t position) noexcept:
        # The pending message at a position, whether or not its wait ended; NULL: it is not here.
        # They are in the order of the log.
        cdef Py_ssize_t middle, low = 0, high = self._count
        while low < high:
            middle = (low + high) >> 1
            if self._added[middle].position < position:
                low = middle + 1
            else:
                high = middle
        if low == self._count or self._added[low].position != position:
            return NULL
        return self._added + low

    cpdef bint has_ended(self, int64_t position):
        cdef int64_t number = self._ended_numbers.find(<uint64_t>position)
        return 0 <= number < self._ended_count and self._ended[number].position == position

    def __contains__(self, int64_t position):
        cdef Pending *one = self._there(position)
        return one != NULL and not _has_ended(one)

    def pending(self, int64_t due, int64_t position, int64_t end, Py_ssize_t limit):
        # Sorted as a whole: a page of a list is asked for seldom, and a tail is bounded.
        cdef list found = []
        cdef Py_ssize_t i
        cdef Pending *one
        for i in range(self._count):
            one = self._added + i
            if (
                not _has_ended(one) and one.position < end
                and (_due(one) > due or (_due(one) == due and one.position > position))
            ):
                found.append((_due(one), one.position, one.topic, one.size))
        found.sort()
        return found[:limit]

    def counts(self):
        # By topic: how many more are pending than before this tail.
        cdef dict found = {}
        cdef Py_ssize_t i
        for i in range(self._count):
            found[self._added[i].topic] = found.get(self._added[i].topic, 0) + 1
        for i in range(self._ended_count):
            found[self._ended[i].topic] = found.get(self._ended[i].topic, 0) - 1
        return {topic: count for topic, count in found.items() if count}

    # --- for a checkpoint, of a tail that gets no more entries ---

    def rows(self):
        cdef list keys = [], values = []
        cdef Py_ssize_t i, count = 0
        cdef uint8_t value[8]
        cdef Pending *one
        cdef Keyed *keyed = <Keyed *>grown(NULL, 2 * self._count + 1, sizeof(Keyed))
        cdef Keyed *ordered
        try:
            for i in range(self._count):
                if not _has_ended(self._added + i):
                    keyed[count].key, keyed[count].row = <uint64_t>_due(self._added + i), i
                    count += 1
            # By due time; equal ones stay in the order of the log.
            ordered = sort_keyed(keyed, keyed + self._count, count)
            for i in range(count):
                one = self._added + ordered[i].row
                keys.append(_key(_due(one), one.position))
                store_be32(value, one.topic)
                store_be32(value + 4, one.size)
                values.append(value[:8])
        finally:
            free(keyed)
        return keys, values

    def ended_keys(self):
        cdef Py_ssize_t i
        return [
            _key(_due(self._ended + i), self._ended[i].position)
            for i in range(self._ended_count) if not _has_ended(self._ended + i)
        ]


def waiting_rows(list rows not None, tails):
    cdef list found = []
    cdef tuple asked = tuple(tails)
    cdef const uint8_t *at
    cdef int64_t position
    cdef bint has_ended
    for key, value in rows:
        if len(<bytes?>key) != 16 or len(<bytes?>value) != 8:
            raise ValueError("a row of a message that waits has 16 bytes and 8")
        at = <const uint8_t *>PyBytes_AS_STRING(key)
        position = <int64_t>load_be64(at + 8)
        has_ended = False
        for tail in asked:
            has_ended |= (<PendingTail?>tail).has_ended(position)
        if not has_ended:
            due = <int64_t>load_be64(at)
            at = <const uint8_t *>PyBytes_AS_STRING(value)
            found.append((due, position, load_be32(at), load_be32(at + 4)))
    return found


cdef inline bint _is_before(const Pending *added, Py_ssize_t a, Py_ssize_t b) noexcept:
    # Numbers rise with positions.
    cdef int64_t first = _due(added + a), second = _due(added + b)
    return first < second or (first == second and a < b)


cdef bytes _key(int64_t due, int64_t position):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, 16)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(key)
    store_be64(out, <uint64_t>due)
    store_be64(out + 8, <uint64_t>position)
    return key
