# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Packed runs: entries of queues <-> the bytes of runs, many runs in one call; and the positions of
runs that were read, in memory.

The idea: docs/runs.md has the layout: a header of 26 bytes, then four columns of what comes on top
of the header's values. A first pass finds each column's width and so the size of everything; the
second writes each byte once. Reading does the same: first all headers are held against the lengths,
then the columns are read.

Invariants: nothing is read or written before the sizes that headers state were compared with the
bytes there are; the arithmetic is modulo 2**64, so no header makes it overflow; a column has the
least width that fits. `DecodedRuns` is changed and read between two steps of the interpreter.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove

from kvstore.core.buffers cimport View, grown, index_of, numbers_of, room_of, view_of
from kvstore.core.number_map cimport NumberMap

import numpy as np

from kvstore.errors import FormatError

cdef enum:
    HEAD = 26
    COUNT_MAX = 0xFFFF
    # A width above 8 is in bits: it is 8 plus the number of bits.
    BITS = 8
    COLUMNS = 4

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64)
cdef object _uint8 = np.dtype(np.uint8)


cdef inline void _store(uint8_t *at, uint64_t number, int width) noexcept nogil:
    cdef int i
    for i in range(width):
        at[i] = <uint8_t>(number >> 8 * i)


cdef inline uint64_t _load(const uint8_t *at, int width) noexcept nogil:
    cdef uint64_t found = 0
    cdef int i
    for i in range(width):
        found |= <uint64_t>at[i] << 8 * i
    return found


cdef inline int _bit_length(uint64_t number) noexcept nogil:
    cdef int found = 0
    while number:
        number >>= 1
        found += 1
    return found


cdef inline Py_ssize_t _room(int width, Py_ssize_t count) noexcept nogil:
    # The bytes of a column.
    return (count * (width - BITS) + 7) >> 3 if width > BITS else count * width


cdef inline Py_ssize_t _skip(int column) noexcept nogil:
    # Entries that a column does not have: the first position and time are in the header.
    return 1 if column == 0 or column == 3 else 0


cdef inline uint64_t _above(
    const uint64_t *values, Py_ssize_t i, int column, uint64_t base
) noexcept nogil:
    # The field of an entry that a column holds.
    return values[i] - (values[i - 1] if column == 0 or column == 3 else base)


cdef int _measure(
    const uint64_t *values, Py_ssize_t begin, Py_ssize_t end, int column, uint64_t *base
) noexcept nogil:
    # The width of a column, and the least value of those that keep a distance from it; -1 if the
    # values fall where they must not.
    cdef Py_ssize_t i
    cdef uint64_t largest = 0, delta, all_bits = 0
    cdef int64_t least, most
    cdef int bits
    if column == 0 or column == 3:
        base[0] = values[begin]
        for i in range(begin + 1, end):
            delta = values[i] - values[i - 1]
            all_bits |= delta
        if <int64_t>all_bits < 0:
            return -1
        largest = all_bits
    else:
        least = most = <int64_t>values[begin]
        for i in range(begin + 1, end):
            least = min(least, <int64_t>values[i])
            most = max(most, <int64_t>values[i])
        base[0] = <uint64_t>least
        largest = <uint64_t>most - <uint64_t>least
    bits = _bit_length(largest)
    if column and 0 < bits < BITS:
        return BITS + bits
    return (bits + 7) >> 3


cdef void _write_column(
    uint8_t *out, const uint64_t *values, Py_ssize_t begin, Py_ssize_t end, int column, int width,
    uint64_t base,
) noexcept nogil:
    cdef Py_ssize_t first = begin + _skip(column), count = end - first, i, at = 0
    cdef uint64_t above
    cdef unsigned int kept = 0
    cdef int plane, bits = width - BITS, held = 0
    if not width:
        return
    if width > BITS:
        # The lowest bit first.
        for i in range(first, end):
            kept |= <unsigned int>_above(values, i, column, base) << held
            held += bits
            if held >= 8:
                out[at] = <uint8_t>kept
                at += 1
                kept >>= 8
                held -= 8
        if held:
            out[at] = <uint8_t>kept
        return
    for i in range(count):
        above = _above(values, first + i, column, base)
        for plane in range(width):
            out[plane * count + i] = <uint8_t>(above >> 8 * plane)


def pack_runs(positions, sizes, tag_hashes, stored_at, starts):
    cdef View begins = numbers_of(starts)
    cdef View a = numbers_of(positions), b = numbers_of(sizes)
    cdef View c = numbers_of(tag_hashes), d = numbers_of(stored_at)
    cdef const uint64_t *values[COLUMNS]
    values[0], values[1] = <uint64_t *>a.numbers, <uint64_t *>b.numbers
    values[2], values[3] = <uint64_t *>c.numbers, <uint64_t *>d.numbers
    cdef Py_ssize_t total = a.count, runs = begins.count, run, begin, end, count, size = 0
    if b.count != total or c.count != total or d.count != total:
        raise ValueError("the columns of runs have several lengths")
    if not runs:
        if total:
            raise ValueError("entries that are in no run")
        return b"", [], []
    if begins.numbers[0] != 0 or begins.numbers[runs - 1] >= total:
        raise ValueError("runs begin at the first entry, and end behind the last")
    stops_array, widths_array = _empty(runs, _int64), _empty(runs * COLUMNS, _uint8)
    bases_array = _empty(runs * COLUMNS, _int64)
    cdef View stops = room_of(stops_array), widths = room_of(widths_array)
    cdef View bases = room_of(bases_array)
    cdef int column, width, fault = 0
    cdef uint8_t *own
    cdef uint64_t *base
    with nogil:
        for run in range(runs):
            begin = begins.numbers[run]
            end = begins.numbers[run + 1] if run + 1 < runs else total
            if end <= begin or end > total:
                fault = 1
                break
            count = end - begin
            if count > COUNT_MAX:
                fault = 2
                break
            size += HEAD
            for column in range(COLUMNS):
                width = _measure(
                    values[column], begin, end, column,
                    <uint64_t *>&bases.numbers[run * COLUMNS + column],
                )
                if width < 0:
                    fault = 3
                    break
                widths.bytes[run * COLUMNS + column] = <uint8_t>width
                size += _room(width, count - _skip(column))
            if fault:
                break
            stops.numbers[run] = size
    if fault == 1:
        raise ValueError("the starts of runs must rise")
    if fault == 2:
        raise FormatError(f"a run has at most {COUNT_MAX} entries")
    if fault == 3:
        raise FormatError("entries of a run must rise in position and store time")
    data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    with nogil:
        for run in range(runs):
            begin = begins.numbers[run]
            end = begins.numbers[run + 1] if run + 1 < runs else total
            own, base = &widths.bytes[run * COLUMNS], <uint64_t *>&bases.numbers[run * COLUMNS]
            out[0] = own[0] | own[1] << 4
            out[1] = own[2] | own[3] << 4
            _store(out + 2, end - begin, 2)
            _store(out + 4, base[0], 4)
            _store(out + 8, base[1], 4)
            _store(out + 12, base[2], 8)
            _store(out + 20, base[3], 6)
            out += HEAD
            for column in range(COLUMNS):
                _write_column(
                    out, values[column], begin, end, column, own[column], base[column]
                )
                out += _room(own[column], end - begin - _skip(column))
    ends = stops_array.tolist()
    return data, [0, *ends[:runs - 1]], ends


cdef void _read_column(
    const uint8_t *data, uint64_t *out, Py_ssize_t count, int column, int width, uint64_t base
) noexcept nogil:
    # `count` entries; those that a column does not have are the base itself.
    cdef Py_ssize_t first = _skip(column), kept = count - first, i, at = 0
    cdef int plane, bits = width - BITS, held = 0
    cdef unsigned int left = 0
    cdef uint64_t above
    if first:
        out[0] = base
    if not width:
        for i in range(first, count):
            out[i] = base
        return
    if width > BITS:
        for i in range(first, count):
            if held < bits:
                left |= <unsigned int>data[at] << held
                at += 1
                held += 8
            out[i] = left & ((1 << bits) - 1)
            left >>= bits
            held -= bits
    elif width == 1:
        for i in range(kept):
            out[first + i] = data[i]
    elif width == 2:
        for i in range(kept):
            out[first + i] = data[i] | <uint64_t>data[kept + i] << 8
    else:
        for i in range(kept):
            above = 0
            for plane in range(width):
                above |= <uint64_t>data[plane * kept + i] << 8 * plane
            out[first + i] = above
    if first:
        for i in range(1, count):
            out[i] += out[i - 1]
    else:
        for i in range(count):
            out[i] += base


cdef inline int _width(const uint8_t *head, int column) noexcept nogil:
    return head[column >> 1] >> 4 * (column & 1) & 15


def unpack_runs(values):
    cdef tuple held = tuple(values)
    cdef Py_ssize_t runs = len(held), run, size, entries = 0, count, shortest = HEAD
    cdef int column
    cdef const uint8_t *at
    for value in held:
        shortest = min(shortest, len(<bytes?>value))
    if shortest < HEAD:
        raise FormatError(f"a run has {shortest} bytes, at least {HEAD} are needed")
    for value in held:
        at = <const uint8_t *>PyBytes_AS_STRING(value)
        count = _load(at + 2, 2)
        size = HEAD
        for column in range(COLUMNS):
            size += _room(_width(at, column), count - _skip(column))
        if not count or size != len(<bytes>value) or _width(at, 0) > BITS:
            raise FormatError("a run's length does not follow from its header")
        entries += count
    data = b"".join(held)
    starts = _empty(runs, _int64)
    found = [_empty(entries, _int64) for column in range(COLUMNS)]
    cdef View view = view_of(data), begins = room_of(starts)
    cdef View a = room_of(found[0]), b = room_of(found[1])
    cdef View c = room_of(found[2]), d = room_of(found[3])
    cdef uint64_t *out[COLUMNS]
    cdef uint64_t base[COLUMNS]
    out[0], out[1] = <uint64_t *>a.numbers, <uint64_t *>b.numbers
    out[2], out[3] = <uint64_t *>c.numbers, <uint64_t *>d.numbers
    cdef const uint8_t *head
    entries = 0
    with nogil:
        at = view.bytes
        for run in range(runs):
            head = at
            count = _load(head + 2, 2)
            base[0], base[1] = _load(head + 4, 4), _load(head + 8, 4)
            base[2], base[3] = _load(head + 12, 8), _load(head + 20, 6)
            at += HEAD
            for column in range(COLUMNS):
                _read_column(
                    at, out[column] + entries, count, column, _width(head, column), base[column]
                )
                at += _room(_width(head, column), count - _skip(column))
            begins.numbers[run] = entries
            entries += count
    return (*found, starts)


@cython.final
cdef class DecodedRuns:
    def __cinit__(self):
        self._slots = NumberMap()

    def __dealloc__(self):
        if self._slots is not None:
            self.forget()

    def __len__(self):
        return self._held

    def forget(self):
        cdef Py_ssize_t slot, i
        for slot in range(self._slots.count):
            for i in range(self._queues[slot].count):
                free(self._queues[slot].runs[i].positions)
            free(self._queues[slot].runs)
        free(self._queues)
        self._queues = NULL
        self._room = self._held = 0
        self._slots.empty()

    cdef QueueRuns *_queue(self, uint64_t queue) except NULL:
        cdef int64_t slot = self._slots.find(queue)
        cdef Py_ssize_t room
        if slot < 0:
            slot = self._slots.count
            if slot == self._room:
                room = 2 * self._room + 16
                self._queues = <QueueRuns *>grown(self._queues, room, sizeof(QueueRuns))
                self._room = room
            self._queues[slot].runs = NULL
            self._queues[slot].count = self._queues[slot].room = 0
            self._slots.put(queue, slot)
        return self._queues + slot

    def add(self, uint64_t queue, int64_t first, int64_t base, bytes value not None):
        cdef Py_ssize_t size = len(value), count, at, stop, room, i
        cdef const uint8_t *head = <const uint8_t *>PyBytes_AS_STRING(value)
        cdef int64_t *positions
        if size < HEAD:
            raise FormatError(f"a run has {size} bytes, at least {HEAD} are needed")
        count = _load(head + 2, 2)
        cdef int width = _width(head, 0)
        if not count or width > BITS or HEAD + width * (count - 1) > size:
            raise FormatError("a run's length does not follow from its header")
        cdef QueueRuns *of = self._queue(queue)
        # Those that begin in this one are parts of it, since runs are joined when a segment is
        # sealed. They go: the last one that begins at an offset or before it must have the offset.
        at = stop = _runs_until(of, first)
        if at and of.runs[at - 1].first == first:
            at -= 1
        while stop < of.count and 0 <= index_of(of.runs[stop].first, first) < count:
            stop += 1
        if at == stop and of.count == of.room:
            room = 2 * of.room + 1
            of.runs = <Run *>grown(of.runs, room, sizeof(Run))
            of.room = room
        positions = <int64_t *>grown(NULL, count, sizeof(int64_t))
        _read_column(
            head + HEAD, <uint64_t *>positions, count, 0, width,
            <uint64_t>base + _load(head + 4, 4),
        )
        for i in range(at, stop):
            free(of.runs[i].positions)
        memmove(of.runs + at + 1, of.runs + stop, (of.count - stop) * sizeof(Run))
        of.runs[at].first, of.runs[at].count, of.runs[at].positions = first, count, positions
        of.count += 1 - (stop - at)
        self._held += 1 - (stop - at)

    cdef const int64_t *place(self, uint64_t queue, int64_t offset, Py_ssize_t *left) noexcept:
        # The position of an offset, and how many follow it in its run, itself included; or NULL.
        cdef int64_t slot = self._slots.find(queue)
        cdef Py_ssize_t at
        if slot < 0:
            return NULL
        at = _runs_until(self._queues + slot, offset)
        if not at:
            return NULL
        cdef Run *run = self._queues[slot].runs + at - 1
        at = index_of(offset, run.first)
        if not 0 <= at < run.count:
            return NULL
        left[0] = run.count - at
        return run.positions + at

    def positions(self, uint64_t queue, int64_t offset, Py_ssize_t limit):
        # The list comes first: making one may collect garbage, and so let other threads forget.
        cdef list out = []
        cdef Py_ssize_t left = 0, i
        cdef const int64_t *found = self.place(queue, offset, &left)
        for i in range(max(min(limit, left), 0)):
            out.append(found[i])
        return out


cdef Py_ssize_t _runs_until(const QueueRuns *of, int64_t offset) noexcept:
    # How many of a queue's runs begin at an offset or before it.
    cdef Py_ssize_t low = 0, high = of.count, middle
    while low < high:
        middle = (low + high) >> 1
        if of.runs[middle].first <= offset:
            low = middle + 1
        else:
            high = middle
    return low
