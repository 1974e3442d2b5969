# cython: language_level=3, wraparound=False, cdivision=True, binding=False
"""In-flight rows: what a table knows of its lock rows without reading them, and a pop's usual step.

The idea: messages are counted by 1/8 s of their due time, and the offsets of each queue are sets.
So the lowest offset that is not done, and whether anything is due, are known without a look at any
row, however many there are. Mostly nothing is due, and a pop's messages were read ahead: then
`take` makes its whole change. A `Change` collects rows that are written together, and says what
they change here once they are.

Invariants: between two changes the counters and sets here equal the rows of `locks`; keys and rows
are tuples in the order of `LockKey` and `Lock`.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kvstore.core.buffers cimport store_be32, store_be64
from kvstore.core.messages cimport any_expired
from kvstore.core.popping.offset_sets cimport BITMAP_WORDS, QueueLocks, Shelf, below, load_bits
from kvstore.core.popping.receipts cimport Asked, Delivery, Receipts, delivery_of

cdef enum:
    PAGE = 256
    WORDS = BITMAP_WORDS
    # Due times are counted by so many ms, as a power of two.
    BUCKET = 7
    KEY = 28
    HEAD = 17
    HAS_ATTEMPT_ID = 1
    HAS_MOVED = 2
    HAS_REASON = 4
    ATTEMPT_ID = 16
    REASON_MAX = 512

cdef dict _NO_ROWS = {}
PARKED = (1 << 64) - 1
# Rows of all tables that are known.
KNOWN_MAX = 1024


cdef tuple _tuple(object given, Py_ssize_t count):
    # Named tuples are tuples, too.
    if not isinstance(given, tuple) or len(<tuple>given) != count:
        raise TypeError(f"{given!r} is not a tuple of {count} values")
    return <tuple>given


cdef bytes _key(object given):
    cdef tuple key = _tuple(given, 5)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, KEY)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(packed)
    store_be32(out, key[0])
    store_be32(out + 4, key[1])
    store_be64(out + 8, key[2])
    store_be32(out + 16, key[3])
    store_be64(out + 20, key[4])
    return packed


cdef Py_ssize_t _bytes_in(const uint64_t *words) noexcept:
    # Up to the last one that is not 0.
    cdef Py_ssize_t size = PAGE >> 3
    while size and not words[(size - 1) >> 3] >> 8 * ((size - 1) & 7) & 0xFF:
        size -= 1
    return size


cdef void _store_bits(const uint64_t *words, Py_ssize_t size, uint8_t *out) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        out[i] = <uint8_t>(words[i >> 3] >> 8 * (i & 7))


def pack_lock(lock):
    cdef tuple row = _tuple(lock, 7)
    cdef uint64_t locked[WORDS]
    cdef uint64_t moved[WORDS]
    cdef bytes attempt_id = row[5], reason = row[6]
    cdef Py_ssize_t size, length = len(reason), at = HEAD + len(attempt_id)
    cdef bint has_moved = row[4] != 0
    cdef uint8_t *out
    if len(attempt_id) not in (0, ATTEMPT_ID):
        raise ValueError(f"an attempt id has 0 or {ATTEMPT_ID} bytes, not {len(attempt_id)}")
    if length > REASON_MAX:
        raise ValueError(f"a reason has up to {REASON_MAX} bytes, not {length}")
    if length:
        at += 2 + length
    load_bits(row[3], locked)
    load_bits(row[4], moved)
    size = max(_bytes_in(locked), _bytes_in(moved))
    packed = PyBytes_FromStringAndSize(NULL, at + (2 * size if has_moved else size))
    out = <uint8_t *>PyBytes_AS_STRING(packed)
    out[0] = (HAS_ATTEMPT_ID if attempt_id else 0) | (HAS_MOVED if has_moved else 0)
    if length:
        out[0] |= HAS_REASON
        out[at - length - 2] = <uint8_t>(length >> 8)
        out[at - length - 1] = <uint8_t>length
        memcpy(out + at - length, PyBytes_AS_STRING(reason), length)
    store_be32(out + 1, row[0])
    store_be32(out + 5, row[1])
    store_be64(out + 9, row[2])
    memcpy(out + HEAD, PyBytes_AS_STRING(attempt_id), len(attempt_id))
    _store_bits(locked, size, out + at)
    if has_moved:
        _store_bits(moved, size, out + at + size)
    return packed


@cython.final
cdef class Change:
    # Mostly all are empty but one or two, which are made when they are needed.
    cdef readonly object removed, shrunk, parked, added
    cdef readonly list rows
    cdef readonly dict next
    cdef object _taken
    cdef dict _passed, _expired

    def __cinit__(self):
        self.removed = self.shrunk = self.parked = self._taken = ()
        self.rows, self.next, self.added = [], {}, _NO_ROWS
        self._passed = self._expired = None

    @property
    def passed(self):
        if self._passed is None:
            self._passed = {}
        return self._passed

    @property
    def expired(self):
        if self._expired is None:
            self._expired = {}
        return self._expired

    @property
    def has_expired(self):
        return bool(self._expired)

    cdef _add(self, key, lock, bytes packed):
        if not self.added:
            self.added = {}
        self.rows.append((packed, pack_lock(lock)))
        (<dict>self.added)[key] = lock

    cpdef park(self, key, lock):
        self.parked = self.parked or []
        self.parked.append((key, lock[3]))
        self.rows.append((_key(key), pack_lock(lock) if lock[3] else None))

    cpdef add(self, key, lock):
        self._add(key, lock, _key(key))

    cpdef shrink(self, key, old, new):
        if key[2] == PARKED:
            self.park(key, new)
        elif new[3]:
            self.rows.append((_key(key), pack_lock(new)))
            self.shrunk = self.shrunk or []
            self.shrunk.append((key, new, old[3] & ~new[3]))
        else:
            self.remove(key, old, new[4])

    cpdef remove(self, key, old, bad):
        if key[2] == PARKED:
            self.park(key, (*old[:3], 0, *old[4:]))
        else:
            self.rows.append((_key(key), None))
            self.removed = self.removed or []
            self.removed.append((key, old, bad))

    cpdef take(self, Receipts receipts, key, lock, list messages):
        cdef bytes packed = _key(key)
        cdef tuple row = _tuple(lock, 7)
        cdef const uint8_t *raw = <const uint8_t *>PyBytes_AS_STRING(packed)
        self._add(key, lock, packed)
        self._taken = self._taken or []
        self._taken.append(
            (delivery_of(receipts, raw, row[2]), messages, row[3], row[0], (<tuple>key)[2])
        )

    def popped(self):
        cdef list out = []
        for delivery, messages, locked, attempts, due in self._taken:
            out += (<Delivery>delivery).hand_out(messages, locked, attempts, due)
        return out

    def count_added(self):
        return sum([lock[3].bit_count() for lock in self.added.values()])


cdef class InflightRows:
    cdef readonly uint32_t group, topic
    cdef public Py_ssize_t rows, messages, parked_count
    cdef public uint64_t turn, soonest
    cdef public dict next, passed, expired, prefetched, known, attempts
    cdef public object order, tally
    # Names with one underscore are for the subclass alone.
    cdef public object _first
    cdef public dict _gone, _queues
    cdef public bint _knows_dues
    cdef public Shelf _buckets
    cdef int64_t _read_mark

    def __cinit__(self):
        # A subclass may be used before its own beginning.
        self.known, self._read_mark = {}, -1
        self.next, self.passed, self.expired, self.attempts = {}, {}, {}, {}
        self.forget_rows()

    def __init__(self, uint32_t group, uint32_t topic, dict known not None):
        self.group, self.topic, self.known = group, topic, known
        self.forget_rows()

    def forget_rows(self):
        self.rows = self.messages = self.parked_count = 0
        self.prefetched, self._gone, self._queues = {}, {}, {}
        self._first = self.order = None
        self._buckets, self._knows_dues = Shelf(), False
        for key in list(self.known):
            if key[0] == self.group and key[1] == self.topic:
                self.known.pop(key, None)

    cpdef bint may_be_due(self, uint64_t now) except -1:
        if not self.rows or self.soonest > now:
            return False
        self.soonest = self.first_due()
        return self.soonest <= now

    cpdef uint64_t first_due(self) except? 0:
        return <uint64_t>self._buckets.first() << BUCKET

    cpdef list ahead(self, queue, int64_t mark):
        if mark != self._read_mark:
            self.prefetched = {}
            self._read_mark = mark
        return self.prefetched.get(queue)

    def take(
        self, Receipts receipts not None, queues not None, Py_ssize_t limit, int64_t mark,
        uint64_t now, uint64_t due, uint32_t recoveries, uint64_t nonce, read,
    ):
        cdef list ahead, messages
        cdef Change change
        cdef Py_ssize_t i, count
        count = len(queues)
        if not count or self.parked_count or self.order is not None or self.may_be_due(now):
            return None
        queue = queues[self.turn % count]
        ahead = self.ahead(queue, mark)
        count = len(ahead) if ahead is not None else 0
        first = self.next.get(queue)
        if first is None or not 0 < limit <= PAGE:
            return None
        if count < limit or ahead[count - 1].offset != first:
            ahead = read(self, queue, first, limit)
            if ahead is None or len(ahead) < limit:
                return None
            count = len(ahead)
        messages = [ahead[count - 1 - i] for i in range(limit)]
        if any_expired(messages, <int64_t>now):
            return None
        del ahead[count - limit:]
        change = Change()
        change.next[queue] = first + limit
        lock = (1, recoveries, nonce, (<object>1 << limit) - 1, 0, b"", b"")
        change.take(receipts, (self.group, self.topic, due, queue, first), lock, messages)
        return change

    def ack(self, Change change not None, Asked asked not None, list numbers not None):
        cdef tuple lock
        rest = []
        for number in numbers:
            key, nonce = <tuple>asked.rows[number]
            found = (<dict>self.known).get(key)
            if found is None:
                rest.append(number)
                continue
            lock = _tuple(found, 7)
            if lock[2] != nonce or lock[4]:
                rest.append(number)
                continue
            left = lock[3] & ~asked.bits[number]
            if not left:
                change.remove(key, lock, 0)
            elif left != lock[3]:
                attempts, recoveries, _, _, *rest_of_row = lock
                change.shrink(key, lock, (attempts, recoveries, nonce, left, *rest_of_row))
        return rest

    cpdef added(self, key, locked):
        cdef tuple parts = _tuple(key, 5)
        cdef int64_t bucket = <int64_t>(<uint64_t>parts[2] >> BUCKET)
        cdef QueueLocks held = self._held(parts[3])
        cdef object messages = locked.bit_count()
        self._buckets.add(bucket, messages)
        if not self.rows or <uint64_t>bucket << BUCKET < self.soonest:
            self.soonest = <uint64_t>bucket << BUCKET
        held.rows += 1
        if held.dues is not None:
            (<Shelf>held.dues).add(bucket, 1)
        held.locked.change(parts[4], locked, True)
        if held.gone_below and parts[4] < held.gone_below:
            self._count_gone(bucket, below(held.gone_below, parts[4], locked))
        if not self.rows or (self._first is not None and key < self._first):
            self._first = key
        self.rows += 1
        self.messages += messages
        if self.tally is not None:
            self.tally.add(parts[2], messages)

    cpdef removed(self, key, locked):
        cdef tuple parts = _tuple(key, 5)
        cdef QueueLocks held = self._queues[parts[3]]
        held.rows -= 1
        if held.dues is not None:
            (<Shelf>held.dues).add(<uint64_t>parts[2] >> BUCKET, -1)
        if self._first is not None and key == self._first:
            self._first = None
        self.rows -= 1
        self._unlocked(parts, locked)

    cdef _unlocked(self, tuple parts, locked):
        cdef int64_t bucket = <int64_t>(<uint64_t>parts[2] >> BUCKET)
        cdef QueueLocks held = self._queues[parts[3]]
        cdef object messages = locked.bit_count()
        held.locked.change(parts[4], locked, False)
        if held.redelivered.count:
            # The messages of a row were handed out equally often: all are in the set, or none is.
            again = held.redelivered.within(parts[4], locked.bit_length()) & locked
            held.redelivered.remove(parts[4], again)
        if held.gone_below and parts[4] < held.gone_below:
            self._count_gone(bucket, -below(held.gone_below, parts[4], locked))
        self._buckets.add(bucket, -messages)
        self.messages -= messages
        if self.tally is not None:
            self.tally.remove(parts[2], messages)

    cpdef _count_gone(self, bucket, count):
        left = self._gone.get(bucket, 0) + count
        if left:
            self._gone[bucket] = left
        else:
            self._gone.pop(bucket, None)

    def park(self, key, parked):
        cdef QueueLocks held = self._held(key[3])
        before = held.parked.count
        held.parked.replace(key[4], parked)
        self.parked_count += held.parked.count - before

    cdef QueueLocks _held(self, queue):
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = QueueLocks()
            if self._knows_dues:
                found.dues = Shelf()
        return found

    def redeliver(self, key, locked):
        self._held(key[3]).redelivered.add(key[4], locked)

    def positions(self, Change change not None):
        cdef dict passed = change._passed or _NO_ROWS, expired = change._expired or _NO_ROWS
        if not (passed or expired or self.passed or self.expired):
            return [(queue, at, 0, 0) for queue, at in change.next.items()]
        return [
            (
                queue,
                at,
                self.passed.get(queue, 0) + passed.get(queue, 0),
                self.expired.get(queue, 0) + expired.get(queue, 0),
            )
            for queue, at in change.next.items()
        ]

    def apply(self, Change change not None):
        for key, lock, _ in change.removed:
            self.known.pop(key, None)
            self.removed(key, lock[3])
            if lock[5]:
                self._forget_attempt(lock[5], _key(key))
        for key, lock, gone in change.shrunk:
            self.known[key] = lock
            self._unlocked(_tuple(key, 5), gone)
        for key, lock in change.added.items():
            self.known[key] = lock
            self.added(key, lock[3])
            if lock[0] > 1:
                self.redeliver(key, lock[3])
            if lock[5]:
                self.note_attempt(lock[5], key)
        if len(self.known) > KNOWN_MAX:
            self.known.clear()
        for key, parked in change.parked:
            self.park(key, parked)
        for queue, at in change.next.items():
            self.next[queue] = at
        if change._passed:
            for queue, count in change._passed.items():
                self.passed[queue] = self.passed.get(queue, 0) + count
        if change._expired:
            for queue, count in change._expired.items():
                self.expired[queue] = self.expired.get(queue, 0) + count

    def note_attempt(self, attempt_id, key):
        self.attempts.setdefault(attempt_id, []).append(_key(key))

    cdef _forget_attempt(self, attempt_id, bytes raw_key):
        rows = self.attempts.get(attempt_id, [])
        if raw_key in rows:
            rows.remove(raw_key)
        if not rows:
            self.attempts.pop(attempt_id, None)
