# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Texts: many slices of one buffer, split, numbered, parsed and joined, with no object for each.

The idea: a column of texts is a buffer and two columns of numbers, where each text begins and where
it ends. Properties fields are split into such columns by their names (docs/archive.md). A column's
texts are then numbered, or read as ids or numbers, whichever its form in an archive needs.

Invariants: every slice is inside its buffer before a byte is read; texts are the same only where
all of their bytes are; numbers depend on the texts and their order alone, not on the table's seed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from kvstore.core.buffers cimport View, load_be32, load_be64, numbers_of, room_of, view_of
from kvstore.core.crc cimport crc32_of
from kvstore.core.hashing cimport xxh32_of

import numpy as np

cdef enum:
    NAME_END = 1
    VALUE_END = 2
    SPACE = 32
    ID_DIGITS = 32
    ID_BYTES = 16
    ID_PARTS = 4
    # Decimal digits that always fit 64 bits.
    DIGITS_MAX = 18
    OPEN = 0
    TERMINATED = 1
    VERBATIM = 2

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64)
cdef object _uint32 = np.dtype(np.uint32)
# Other in each process, so that nobody can choose texts that collide.
cdef uint64_t _SEED = <uint64_t><Py_ssize_t>hash(b"texts") | 1


cdef class Slices:
    # Texts in a buffer, checked.
    cdef View data, starts, stops
    cdef const uint8_t *bytes
    cdef const int64_t *start
    cdef const int64_t *stop
    cdef Py_ssize_t count


cdef Slices _slices(object data, object starts, object stops):
    cdef Slices found = Slices.__new__(Slices)
    cdef Py_ssize_t i
    cdef bint is_good
    found.data, found.starts, found.stops = view_of(data), numbers_of(starts), numbers_of(stops)
    found.bytes, found.count = found.data.bytes, found.starts.count
    found.start, found.stop = found.starts.numbers, found.stops.numbers
    is_good = found.stops.count == found.count
    if is_good:
        for i in range(found.count):
            is_good &= 0 <= found.start[i] <= found.stop[i] <= found.data.size
    if not is_good:
        raise ValueError("texts must lie in their buffer, and have a begin and an end each")
    return found


def gather(data, starts, stops):
    cdef Slices texts = _slices(data, starts, stops)
    cdef int64_t total = 0, size
    cdef Py_ssize_t i
    for i in range(texts.count):
        total += texts.stop[i] - texts.start[i]
        if total < 0 or total > <int64_t>1 << 48:
            raise MemoryError
    joined = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(joined)
    with nogil:
        for i in range(texts.count):
            size = texts.stop[i] - texts.start[i]
            memcpy(out, texts.bytes + texts.start[i], size)
            out += size
    return joined


def crc_texts(data, starts, stops):
    cdef Slices texts = _slices(data, starts, stops)
    cdef Py_ssize_t i
    found = _empty(texts.count, _uint32)
    cdef View room = room_of(found)
    cdef uint32_t *out = <uint32_t *>room.bytes
    with nogil:
        for i in range(texts.count):
            out[i] = crc32_of(texts.bytes + texts.start[i], texts.stop[i] - texts.start[i])
    return found


# --- properties fields ---


cdef class _Shapes:
    # Numbers of names, and of shapes by their names' numbers and their end, in the order in which
    # they came.
    cdef dict names, numbers
    cdef list shapes, every

    def __cinit__(self):
        self.names, self.numbers, self.shapes, self.every = {}, {}, [], []

    cdef int64_t name(self, const uint8_t *at, Py_ssize_t size) except -1:
        text = PyBytes_FromStringAndSize(<const char *>at, size)
        found = self.names.get(text)
        if found is None:
            found = self.names[text] = len(self.every)
            self.every.append(text)
        return found

    cdef int64_t shape(self, const int64_t *names, Py_ssize_t count, int end) except -1:
        key = PyBytes_FromStringAndSize(<const char *>names, 8 * count), end
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.shapes)
            own = [] if end == VERBATIM else [self.every[names[i]] for i in range(count)]
            self.shapes.append((*own, bytes((end,))))
        return found


def split_fields(data, starts, stops):
    cdef Slices fields = _slices(data, starts, stops)
    cdef _Shapes known = _Shapes()
    cdef Py_ssize_t row, i, most = fields.count, n = 0, first, before = 0, pairs = -1
    cdef const uint8_t *bytes_ = fields.bytes
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *close
    cdef const uint8_t *stem
    cdef int kind, kind_before = -1
    cdef int64_t size, last, shape = 0
    cdef bint is_same
    for row in range(fields.count):
        at, end = bytes_ + fields.start[row], bytes_ + fields.stop[row]
        while True:
            at = <const uint8_t *>memchr(at, VALUE_END, end - at)
            if at == NULL:
                break
            most += 1
            at += 1
    table = _empty((5, most), _int64)
    shape_of = _empty(fields.count, _int64)
    cdef View room = room_of(table), shapes = room_of(shape_of)
    cdef int64_t *names = room.numbers
    cdef int64_t *rows = names + most
    cdef int64_t *begins = rows + most
    cdef int64_t *ends = begins + most
    cdef int64_t *sizes = ends + most
    for row in range(fields.count):
        at, end = bytes_ + fields.start[row], bytes_ + fields.stop[row]
        first, is_same, kind = n, True, OPEN
        if at < end:
            if end[-1] == VALUE_END:
                kind = TERMINATED
                end -= 1
            while True:
                close = <const uint8_t *>memchr(at, VALUE_END, end - at)
                if close == NULL:
                    close = end
                stem = <const uint8_t *>memchr(at, NAME_END, close - at)
                if stem == NULL:
                    kind = VERBATIM
                    break
                size = stem - at
                # Mostly the name that stands here in the row before.
                i = before + n - first
                if n - first < pairs and sizes[i] == size and not memcmp(
                    bytes_ + begins[i] - 1 - size, at, size
                ):
                    names[n] = names[i]
                else:
                    is_same = False
                    names[n] = known.name(at, size)
                sizes[n], begins[n], ends[n], rows[n] = size, stem + 1 - bytes_, close - bytes_, row
                n += 1
                if close == end:
                    break
                at = close + 1
        if kind == VERBATIM:
            # The field as it is, under no name.
            n = first + 1
            names[first], sizes[first], rows[first] = known.name(bytes_, 0), -1, row
            begins[first], ends[first] = fields.start[row], fields.stop[row]
        if not is_same or kind != kind_before or n - first != pairs:
            shape = known.shape(names + first, n - first, kind)
        before, pairs, kind_before = first, n - first, kind
        shapes.numbers[row] = shape
    return known.shapes, shape_of, known.every, table[:4, :n]


# --- forms of columns ---


cdef inline uint64_t _hash_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t found = _SEED ^ <uint64_t>size * 0x9E3779B97F4A7C15u
    cdef uint64_t word
    while size > 0:
        word = 0
        if size >= 8:
            word = load_be64(at)
        else:
            memcpy(&word, at, size)
        found = (found ^ word) * 0xFF51AFD7ED558CCDu
        found ^= found >> 32
        at += 8
        size -= 8
    found *= _SEED
    return found ^ found >> 29


cdef Py_ssize_t _number(
    const uint8_t *data, const int64_t *start, const int64_t *stop, Py_ssize_t count,
    Py_ssize_t most, int32_t *table, uint64_t mask, int64_t *numbers, int64_t *firsts,
) noexcept nogil:
    # The texts' numbers; how many there are, or one more than the most.
    cdef Py_ssize_t known = 0, i, other
    cdef int64_t size
    cdef uint64_t slot
    for i in range(count):
        size = stop[i] - start[i]
        if i and size == stop[i - 1] - start[i - 1] and not memcmp(
            data + start[i], data + start[i - 1], size
        ):
            numbers[i] = numbers[i - 1]
            continue
        slot = _hash_of(data + start[i], size) & mask
        while table[slot]:
            other = firsts[table[slot] - 1]
            if stop[other] - start[other] == size and not memcmp(
                data + start[other], data + start[i], size
            ):
                break
            slot = (slot + 1) & mask
        if not table[slot]:
            if known == most:
                return known + 1
            firsts[known] = i
            known += 1
            table[slot] = <int32_t>known
        numbers[i] = table[slot] - 1
    return known


def number_texts(data, starts, stops, Py_ssize_t most):
    cdef Slices texts = _slices(data, starts, stops)
    cdef uint64_t mask = 15
    cdef Py_ssize_t known
    most = max(0, min(most, texts.count))
    if most >= <Py_ssize_t>1 << 30:
        raise ValueError("more texts than are numbered")
    while mask < 2 * <uint64_t>most:
        mask = mask << 1 | 1
    numbers, firsts = _empty(texts.count, _int64), _empty(most, _int64)
    cdef View of_texts = room_of(numbers), of_firsts = room_of(firsts)
    cdef int32_t *table = <int32_t *>calloc(mask + 1, sizeof(int32_t))
    if table == NULL:
        raise MemoryError
    with nogil:
        known = _number(
            texts.bytes, texts.start, texts.stop, texts.count, most, table, mask,
            of_texts.numbers, of_firsts.numbers,
        )
    free(table)
    return None if known > most else (numbers, firsts[:known])


cdef inline bint _put_digits(const uint8_t *at, uint8_t *out) noexcept nogil:
    # The bytes of an id's digits, which are capitals.
    cdef int i, digit
    for i in range(ID_DIGITS):
        if 48 <= at[i] < 58:
            digit = at[i] - 48
        elif 65 <= at[i] < 71:
            digit = at[i] - 55
        else:
            return False
        out[i >> 1] = <uint8_t>(out[i >> 1] << 4 | digit if i & 1 else digit)
    return True


def parse_ids(data, starts, stops):
    cdef Slices texts = _slices(data, starts, stops)
    cdef Py_ssize_t i
    cdef uint8_t raw[ID_BYTES]
    for i in range(texts.count):
        if texts.stop[i] - texts.start[i] != ID_DIGITS:
            return None
    parts = _empty((ID_PARTS, texts.count), _int64)
    cdef View room = room_of(parts)
    cdef int64_t *out = room.numbers
    for i in range(texts.count):
        if not _put_digits(texts.bytes + texts.start[i], raw):
            return None
        out[i] = <int64_t>load_be64(raw)
        out[texts.count + i] = raw[8] << 8 | raw[9]
        out[2 * texts.count + i] = load_be32(raw + 10)
        out[3 * texts.count + i] = raw[14] << 8 | raw[15]
    return parts


cdef Py_ssize_t _stem_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    while size and 48 <= at[size - 1] < 58:
        size -= 1
    return size


def parse_numbers(data, starts, stops):
    cdef Slices texts = _slices(data, starts, stops)
    cdef Py_ssize_t i, j, stem, size, least = DIGITS_MAX, most = 0
    cdef const uint8_t *at
    cdef bint is_plain = True
    cdef int64_t number
    if not texts.count:
        return None
    at = texts.bytes + texts.start[0]
    stem = _stem_of(at, texts.stop[0] - texts.start[0])
    numbers = _empty(texts.count, _int64)
    cdef View room = room_of(numbers)
    for i in range(texts.count):
        at, size = texts.bytes + texts.start[i], texts.stop[i] - texts.start[i]
        if (
            not stem < size <= stem + DIGITS_MAX
            or _stem_of(at, size) != stem
            or memcmp(at, texts.bytes + texts.start[0], stem)
        ):
            return None
        number = 0
        for j in range(stem, size):
            number = number * 10 + (at[j] - 48)
        room.numbers[i] = number
        size -= stem
        least, most = min(least, size), max(most, size)
        is_plain &= size == 1 or at[stem] != 48
        if not is_plain and least != most:
            return None
    return numbers, stem, 0 if is_plain else least


def hash_texts(data, starts, stops, bint by_word):
    cdef Slices texts = _slices(data, starts, stops)
    cdef Py_ssize_t i, most = texts.count, n = 0
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *stop
    if by_word:
        for i in range(texts.count):
            most += (texts.stop[i] - texts.start[i]) >> 1
    hashes, rows = _empty(most, _uint32), _empty(most, _int64)
    cdef View of_hashes = room_of(hashes), of_rows = room_of(rows)
    cdef uint32_t *out = <uint32_t *>of_hashes.bytes
    with nogil:
        for i in range(texts.count):
            at, end = texts.bytes + texts.start[i], texts.bytes + texts.stop[i]
            while at < end:
                stop = <const uint8_t *>memchr(at, SPACE, end - at) if by_word else NULL
                if stop == NULL:
                    stop = end
                if at < stop:
                    out[n], of_rows.numbers[n] = xxh32_of(at, stop - at), i
                    n += 1
                at = stop + 1
    return hashes[:n], rows[:n]
