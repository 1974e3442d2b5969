# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Scan: the records of a part of the log, one after the other, as columns.

The idea: recovery, verification, imports and archives look at every record of a segment. A scan
checks thousands of them in one call, beside other threads, and notes what an index needs of each.
The queues that they belong to are numbered as they come, so that a caller looks up each queue once,
not once a record. Tags and keys are hashed on the way if they are asked for.

Invariants: the checks are those of `check_record`; a scan ends behind the last good record, and
says why; the columns have one row a record, in the order of the log.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memchr, memcmp, memcpy

from kvstore.core.buffers cimport View, load_be32, load_be64, numbers_of, room_of, view_of
from kvstore.core.hashing cimport java_hash_of, xxh32_of
from kvstore.core.records cimport (
    BLANK, BORN_V6, FIXED_SIZE, FLAGS_AT, OFFSET_AT, Parts, QUEUE_AT, RECORD, STORED_AT, Span,
    TOO_SHORT, V6_EXTRA, ZEROS, Kind, left_of, look, next_pair, number_of,
)

import numpy as np

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64)
cdef object _uint64 = np.dtype(np.uint64)

cdef enum:
    COLUMNS = 8
    PAGE = 4096
    # Keys of one record up to which each is compared with those before it.
    FEW = 16
    OWNERS_AT_FIRST = 16
    # The least level of a topic's key index that takes a key.
    DEDUP_LEVEL = 0
    UNIQUE_LEVEL = 1
    KEY_LEVEL = 2

cdef enum Column:
    POSITIONS
    SIZES
    OWNERS
    OFFSETS
    FLAGS
    STORED
    PREPARED
    TAGS


cdef struct Owner:
    # A queue: its topic in the buffer, and its id.
    uint64_t hash
    const uint8_t *topic
    Py_ssize_t size
    uint32_t queue


cdef struct Found:
    # The columns, `limit` rows apart; owners, and a hash table of their numbers plus 1; keys.
    int64_t *table
    Py_ssize_t limit, count, owner_count, owner_room, key_count, key_room
    Owner *owners
    int32_t *slots
    uint64_t mask
    uint64_t *keys


cdef class Scan:
    cdef readonly Py_ssize_t end
    cdef readonly str stop
    # The queues: where each one's topic begins in the buffer, its size, and the queue's id.
    cdef object _owners
    cdef Py_ssize_t _count
    cdef object _table
    cdef object _keys

    def __len__(self):
        return self._count

    @property
    def positions(self):
        return self._table[POSITIONS, :self._count]

    @property
    def sizes(self):
        return self._table[SIZES, :self._count]

    @property
    def owners(self):
        return self._table[OWNERS, :self._count]

    @property
    def offsets(self):
        return self._table[OFFSETS, :self._count]

    @property
    def flags(self):
        return self._table[FLAGS, :self._count]

    @property
    def stored_at(self):
        return self._table[STORED, :self._count]

    @property
    def prepared_positions(self):
        return self._table[PREPARED, :self._count]

    @property
    def tag_hashes(self):
        return self._table[TAGS, :self._count]

    @property
    def topic_places(self):
        return self._owners[0], self._owners[0] + self._owners[1]

    @property
    def queue_ids(self):
        return self._owners[2]

    def owner_names(self, buffer):
        cdef View view = view_of(buffer)
        cdef View owners = numbers_of(self._owners)
        cdef Py_ssize_t i, count = owners.count // 3
        cdef list names = []
        for i in range(count):
            if owners.numbers[i] + owners.numbers[count + i] > view.size:
                raise ValueError("not the buffer of the scan")
            names.append((
                PyBytes_FromStringAndSize(
                    <const char *>view.bytes + owners.numbers[i], owners.numbers[count + i]
                ),
                owners.numbers[2 * count + i],
            ))
        return names

    @property
    def keys(self):
        rows = (self._keys >> 34).astype(_int64)
        return rows, self._keys & 0xFFFFFFFF, (self._keys >> 32 & 3).astype(_int64)


cdef int _owner_of(
    Found *found, const uint8_t *topic, Py_ssize_t size, uint32_t queue, int64_t *number
) noexcept nogil:
    # The number of a queue, a new one if need be; -1 if there is no memory for it.
    cdef uint64_t hash = <uint64_t>queue << 32 | xxh32_of(topic, size)
    cdef uint64_t slot
    cdef Owner *owner
    cdef void *more
    hash ^= hash >> 29
    hash *= <uint64_t>0xBF58476D1CE4E5B9
    slot = hash >> 20
    while True:
        slot &= found.mask
        if not found.slots[slot]:
            break
        owner = &found.owners[found.slots[slot] - 1]
        if (
            owner.hash == hash and owner.queue == queue and owner.size == size
            and memcmp(owner.topic, topic, size) == 0
        ):
            number[0] = found.slots[slot] - 1
            return 0
        slot += 1
    if found.owner_count == found.owner_room:
        more = realloc(found.owners, 2 * found.owner_room * sizeof(Owner))
        if more == NULL:
            return -1
        found.owners = <Owner *>more
        found.owner_room *= 2
    owner = &found.owners[found.owner_count]
    owner.hash, owner.topic, owner.size, owner.queue = hash, topic, size, queue
    number[0] = found.owner_count
    found.owner_count += 1
    found.slots[slot] = <int32_t>found.owner_count
    return 0


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t *>a)[0], y = (<const uint64_t *>b)[0]
    return (x > y) - (x < y)


cdef int _add_key(
    Found *found, Py_ssize_t first, uint64_t level, const uint8_t *key, Py_ssize_t size
) noexcept nogil:
    # A key of the current record, whose keys begin at `first`.
    cdef uint64_t digest = xxh32_of(key, size)
    cdef Py_ssize_t i
    cdef void *more
    if found.key_count - first < FEW:
        for i in range(first, found.key_count):
            if <uint32_t>found.keys[i] == digest:
                return 0
    if found.key_count == found.key_room:
        more = realloc(found.keys, (2 * found.key_room + 1024) * sizeof(uint64_t))
        if more == NULL:
            return -1
        found.keys = <uint64_t *>more
        found.key_room = 2 * found.key_room + 1024
    found.keys[found.key_count] = <uint64_t>found.count << 34 | level << 32 | digest
    found.key_count += 1
    return 0


cdef int _read_names(Found *found, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    # The tag's hash and the keys of the current record, given its properties.
    cdef const uint8_t *end = at + size
    cdef const uint8_t *stop
    cdef Span name, value, unique, keys, tag, dedup
    cdef Py_ssize_t first = found.key_count, i, kept
    cdef uint32_t hash = 0, bits = 0
    unique.at = keys.at = tag.at = dedup.at = NULL
    while next_pair(&at, end, &name, &value):
        if name.size == 4:
            if memcmp(name.at, b"TAGS", 4) == 0:
                tag = value
            elif memcmp(name.at, b"KEYS", 4) == 0:
                keys = value
        elif name.size == 8 and memcmp(name.at, b"UNIQ_KEY", 8) == 0:
            unique = value
        elif name.size == 7 and memcmp(name.at, b"__DEDUP", 7) == 0:
            # Name and id together, which no key of a message can be.
            dedup.at, dedup.size = name.at, value.at + value.size - name.at
    if tag.at != NULL:
        for i in range(tag.size):
            hash = 31 * hash + tag.at[i]
            bits |= tag.at[i]
    # That of a tag beyond ASCII is worked out later.
    found.table[TAGS * found.limit + found.count] = <int32_t>hash if bits < 128 else INT64_MIN
    if dedup.at != NULL and _add_key(found, first, DEDUP_LEVEL, dedup.at, dedup.size):
        return -1
    if unique.at != NULL and _add_key(found, first, UNIQUE_LEVEL, unique.at, unique.size):
        return -1
    if keys.at != NULL:
        at, end = keys.at, keys.at + keys.size
        while at < end:
            stop = <const uint8_t *>memchr(at, 32, end - at)
            if stop == NULL:
                stop = end
            if stop > at and _add_key(found, first, KEY_LEVEL, at, stop - at):
                return -1
            at = stop + 1
    if found.key_count - first > FEW:
        # A record of many keys: equal ones become neighbours, that of the least level the first.
        for i in range(first, found.key_count):
            found.keys[i] = found.keys[i] << 32 | found.keys[i] >> 32
        qsort(found.keys + first, found.key_count - first, sizeof(uint64_t), _compare)
        kept = first
        for i in range(first, found.key_count):
            if kept == first or found.keys[kept - 1] >> 32 != found.keys[i] >> 32:
                found.keys[kept] = found.keys[i]
                kept += 1
        found.key_count = kept
        for i in range(first, kept):
            found.keys[i] = found.keys[i] << 32 | found.keys[i] >> 32
    return 0


cdef str _run(
    Found *found, const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int64_t base,
    bint property_crc, bint with_names, int64_t whole_from,
):
    # Fills the columns; the reason why it stopped.
    cdef Parts p
    cdef Kind kind = RECORD
    cdef const uint8_t *record
    cdef int64_t *row
    cdef int64_t owner = 0
    cdef uint32_t queue, flags
    cdef bint is_torn = False, lacks_memory = False
    cdef Owner *last
    with nogil:
        while at[0] < end and found.count < found.limit:
            record = data + at[0]
            kind = look(record, end - at[0], base + at[0], property_crc, &p)
            if kind != RECORD:
                break
            # A body's CRC says nothing about the bytes behind it. Puts make sure that these hold no
            # zeros, so zeros are pages that did not reach the disk. A missing page reaches to the
            # record's last byte, unless the record is longer than a page.
            if (
                base + at[0] >= whole_from and (p.size > PAGE or not record[p.size - 1])
                and (
                    memchr(record + p.topic_at, 0, p.topic_size) != NULL
                    or memchr(record + p.properties_at, 0, p.properties_size) != NULL
                )
            ):
                is_torn = True
                break
            queue, flags = load_be32(record + QUEUE_AT), load_be32(record + FLAGS_AT)
            last = &found.owners[owner]
            if (
                not found.owner_count or last.queue != queue or last.size != p.topic_size
                or memcmp(last.topic, record + p.topic_at, p.topic_size)
            ):
                if _owner_of(found, record + p.topic_at, p.topic_size, queue, &owner):
                    lacks_memory = True
                    break
            row = found.table + found.count
            row[POSITIONS * found.limit] = base + at[0]
            row[SIZES * found.limit] = p.size
            row[OWNERS * found.limit] = owner
            row[OFFSETS * found.limit] = <int64_t>load_be64(record + OFFSET_AT)
            row[FLAGS * found.limit] = flags
            row[STORED * found.limit] = <int64_t>load_be64(
                record + STORED_AT + V6_EXTRA * (flags & BORN_V6 != 0)
            )
            row[PREPARED * found.limit] = <int64_t>load_be64(record + p.body_at - 12)
            if with_names and _read_names(found, record + p.properties_at, p.properties_size):
                lacks_memory = True
                break
            found.count += 1
            at[0] += p.size
    if lacks_memory:
        raise MemoryError
    if is_torn:
        return "torn"
    if kind == RECORD:
        return "end" if at[0] == end else "limit"
    if kind == TOO_SHORT:
        # Fewer bytes than a blank record has can still be bytes that were never written.
        return "damaged" if (data + at[0])[: min(8, end - at[0])].strip(b"\0") else "zeros"
    return "blank" if kind == BLANK else "zeros" if kind == ZEROS else "damaged"


cdef void _hash_tag(int64_t *tag, const uint8_t *record, Py_ssize_t size, int64_t position):
    # The hash of a tag beyond ASCII.
    cdef Parts p
    cdef Span name, value, found
    cdef const uint8_t *at
    cdef bytes text
    look(record, size, position, False, &p)
    at = record + p.properties_at
    found.at, found.size = at, 0
    while next_pair(&at, record + p.size, &name, &value):
        if name.size == 4 and memcmp(name.at, b"TAGS", 4) == 0:
            found = value
    text = PyUnicode_DecodeUTF8(<const char *>found.at, found.size, "replace").encode()
    tag[0] = java_hash_of(<const uint8_t *><const char *>text, len(text))


def scan(
    buffer, Py_ssize_t at, Py_ssize_t end, base, Py_ssize_t limit, *, bint property_crc=False,
    bint with_names=False, whole_from=None,
):
    cdef View view = view_of(buffer), room
    cdef Scan out = Scan.__new__(Scan)
    cdef Found found
    cdef Py_ssize_t i, left = left_of(view, at, end), slots = 64
    cdef int64_t begin = number_of(base), whole = INT64_MAX
    if whole_from is not None:
        whole = number_of(whole_from)
    out.end = at
    limit = max(0, min(limit, left // FIXED_SIZE + 1))
    while slots < 2 * limit:
        slots *= 2
    out._table = _empty((COLUMNS if with_names else COLUMNS - 1, limit), _int64)
    if begin > INT64_MAX - view.size:
        begin = INT64_MIN  # the positions of no records
    if not left:
        out.stop = "end" if at == min(end, view.size) else "damaged" if at < 0 else "zeros"
        out._keys, out._owners = _empty(0, _uint64), _empty((3, 0), _int64)
        return out
    room = room_of(out._table)
    found.table, found.limit, found.count = room.numbers, limit, 0
    found.owner_count = found.key_count = found.key_room = 0
    found.keys, found.mask, found.owner_room = NULL, slots - 1, OWNERS_AT_FIRST
    found.slots = <int32_t *>calloc(slots, sizeof(int32_t))
    found.owners = <Owner *>malloc(OWNERS_AT_FIRST * sizeof(Owner))
    try:
        if found.slots == NULL or found.owners == NULL:
            raise MemoryError
        out.stop = _run(
            &found, view.bytes, &out.end, at + left, begin, property_crc, with_names, whole
        )
        out._count = found.count
        out._owners = _empty((3, found.owner_count), _int64)
        room = room_of(out._owners)
        for i in range(found.owner_count):
            room.numbers[i] = found.owners[i].topic - view.bytes
            room.numbers[found.owner_count + i] = found.owners[i].size
            room.numbers[2 * found.owner_count + i] = found.owners[i].queue
        if with_names:
            for i in range(found.count):
                if found.table[TAGS * limit + i] == INT64_MIN:
                    _hash_tag(
                        &found.table[TAGS * limit + i],
                        view.bytes + (found.table[i] - begin), found.table[SIZES * limit + i],
                        found.table[i],
                    )
        out._keys = _empty(found.key_count, _uint64)
        if found.key_count:
            room = room_of(out._keys)
            memcpy(room.bytes, found.keys, found.key_count * sizeof(uint64_t))
    finally:
        free(found.slots)
        free(found.owners)
        free(found.keys)
    return out
