# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Text forms: a column of texts of an archive -> the texts side by side.

The idea: the form of a column follows from its values: one value, unique ids, numbers behind the
same text, few distinct values, or text (docs/archive.md). Each is measured, and then written once.
A unique id is its 16 bytes, split into the parts that RocketMQ makes it of; its time is kept as the
difference to the record's born time.

Invariants: any bytes give as many texts as there are rows, of at most `limit` bytes together (but
for the digits of numbers), or raise ArchiveDamaged; nothing is allocated before that is known.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kvstore.core.buffers cimport View, numbers_of, room_of
from kvstore.core.columns.int_columns cimport Cursor

import numpy as np

from kvstore.errors import ArchiveDamaged

cdef enum:
    CONSTANT = 0
    IDS = 1
    NUMBERS = 2
    DISTINCT = 3
    TEXT = 4
    ID_DIGITS = 32
    ID_BYTES = 16
    ID_PARTS = 4
    DIGITS_MAX = 18
    # A number of 64 bits with its sign.
    NUMBER_MAX = 20

cdef object _empty = np.empty
cdef object _zeros = np.zeros
cdef object _int64 = np.dtype(np.int64)
cdef const char *_DIGITS = b"0123456789ABCDEF"


cdef class Reader(Cursor):
    # With how many bytes texts may take; then the texts.
    cdef bytes joined
    cdef Py_ssize_t count, taken
    cdef int64_t limit
    cdef int64_t *bounds

    cdef object too_large(self):
        return ArchiveDamaged(
            f"the properties of a block take more than the {self.limit} bytes there are"
        )

    cdef Py_ssize_t span(self) except -1:
        # The size of the bytes that begin at `at`, behind the number that states it.
        cdef uint64_t found = self.number()
        if found > <uint64_t>(self.size - self.at):
            raise ArchiveDamaged(
                f"{found} bytes should follow in a block, {self.size - self.at} do"
            )
        return found

    cdef uint8_t *room(self, Py_ssize_t size) except NULL:
        self.joined = PyBytes_FromStringAndSize(NULL, size)
        return <uint8_t *>PyBytes_AS_STRING(self.joined)

    cdef int constant(self) except -1:
        cdef Py_ssize_t size = self.span(), i
        cdef uint8_t *out
        if size > self.limit // self.count:
            raise self.too_large()
        out = self.room(size * self.count)
        for i in range(self.count):
            memcpy(out + i * size, self.data + self.at, size)
            self.bounds[i + 1] = (i + 1) * size
        self.at += size
        self.taken = size * self.count
        return 0

    cdef int ids(self, const int64_t *born) except -1:
        cdef Py_ssize_t i, part
        cdef int j
        cdef uint64_t high, low
        cdef uint8_t *out
        if self.count > self.limit // ID_DIGITS:
            raise self.too_large()
        parts = _empty((<int>ID_PARTS, self.count), _int64)
        cdef View room = room_of(parts)
        cdef const uint64_t *of = <const uint64_t *>room.numbers
        for part in range(ID_PARTS):
            self.column(room.numbers + part * self.count, self.count)
        out = self.room(ID_DIGITS * self.count)
        for i in range(self.count):
            high = of[i]
            low = of[self.count + i] << 48 | (of[3 * self.count + i] & 0xFFFF)
            low |= ((of[2 * self.count + i] + <uint64_t>born[i]) & 0xFFFFFFFF) << 16
            for j in range(ID_BYTES):
                out[j] = _DIGITS[high >> (60 - 4 * j) & 15]
                out[ID_BYTES + j] = _DIGITS[low >> (60 - 4 * j) & 15]
            out += ID_DIGITS
            self.bounds[i + 1] = (i + 1) * ID_DIGITS
        self.taken = ID_DIGITS * self.count
        return 0

    cdef int numbers(self) except -1:
        cdef Py_ssize_t stem = self.span(), i, size
        cdef const uint8_t *prefix = self.data + self.at
        cdef int width
        cdef uint8_t *out
        self.at += stem
        width = self.data[self.at] if self.at < self.size else DIGITS_MAX + 1
        self.at += 1
        if width > DIGITS_MAX:
            raise ArchiveDamaged(f"a column of numbers in a block has {width} digits")
        if stem > self.limit // self.count:
            raise self.too_large()
        values = _empty(self.count, _int64)
        cdef View room = room_of(values)
        self.column(room.numbers, self.count)
        for i in range(self.count):
            size = stem + _digits_of(room.numbers[i], width)
            self.bounds[i + 1] = self.bounds[i] + size
        out = self.room(self.bounds[self.count])
        for i in range(self.count):
            memcpy(out, prefix, stem)
            size = self.bounds[i + 1] - self.bounds[i]
            _put_number(out + stem, room.numbers[i], size - stem)
            out += size
        self.taken = min((stem + NUMBER_MAX) * self.count, self.limit)
        return 0

    cdef int distinct(self) except -1:
        cdef uint64_t number = self.number()
        cdef Py_ssize_t i, size
        cdef int64_t which
        cdef uint8_t *out
        if not 1 <= number <= <uint64_t>self.count:
            raise ArchiveDamaged(
                f"a column of {self.count} properties has {number} distinct values"
            )
        places, index = _empty((2, number), _int64), _empty(self.count, _int64)
        cdef View of_places = room_of(places), of_index = room_of(index)
        cdef int64_t *begin = of_places.numbers
        cdef int64_t *length = begin + number
        for i in range(<Py_ssize_t>number):
            length[i] = self.span()
            begin[i] = self.at
            self.at += length[i]
        self.column(of_index.numbers, self.count)
        for i in range(self.count):
            which = of_index.numbers[i]
            if which < 0 or <uint64_t>which >= number:
                raise ArchiveDamaged("a column of properties names a value that is not there")
            self.bounds[i + 1] = self.bounds[i] + length[which]
        if self.bounds[self.count] > self.limit:
            raise self.too_large()
        out = self.room(self.bounds[self.count])
        for i in range(self.count):
            size = length[of_index.numbers[i]]
            memcpy(out, self.data + begin[of_index.numbers[i]], size)
            out += size
        self.taken = self.bounds[self.count]
        return 0

    cdef int text(self) except -1:
        cdef Py_ssize_t i
        cdef int64_t most
        self.column(self.bounds + 1, self.count)
        most = min(self.limit, self.size - self.at)
        for i in range(self.count):
            if not 0 <= self.bounds[i + 1] <= most - self.bounds[i]:
                raise ArchiveDamaged(
                    f"properties in a block take more than the {most} bytes there are"
                )
            self.bounds[i + 1] += self.bounds[i]
        self.taken = self.bounds[self.count]
        memcpy(self.room(self.taken), self.data + self.at, self.taken)
        self.at += self.taken
        return 0


cdef inline Py_ssize_t _digits_of(int64_t number, int width) noexcept nogil:
    # The bytes of a number, with its sign, and zeros before it up to a width.
    cdef uint64_t left = -<uint64_t>number if number < 0 else <uint64_t>number
    cdef Py_ssize_t size = 1
    while left >= 10:
        left //= 10
        size += 1
    return max(size + (number < 0), width)


cdef inline void _put_number(uint8_t *out, int64_t number, Py_ssize_t size) noexcept nogil:
    cdef uint64_t left = -<uint64_t>number if number < 0 else <uint64_t>number
    cdef Py_ssize_t i
    for i in range(size - 1, -1, -1):
        out[i] = <uint8_t>(48 + left % 10)
        left //= 10
    if number < 0:
        out[0] = 45


def decode_texts(bytes data not None, Py_ssize_t at, born, Py_ssize_t limit):
    cdef Reader reader = Reader.__new__(Reader)
    cdef View times = numbers_of(born), room
    cdef int kind = -1
    bounds = _zeros(times.count + 1, _int64)
    if not times.count:
        return b"", bounds, at, 0
    room = room_of(bounds)
    reader.count, reader.limit, reader.bounds = times.count, max(limit, 0), room.numbers
    reader.begin(data, at)
    if 0 <= at < reader.size:
        kind = reader.data[at]
        reader.at = at + 1
    if kind == CONSTANT:
        reader.constant()
    elif kind == IDS:
        reader.ids(times.numbers)
    elif kind == NUMBERS:
        reader.numbers()
    elif kind == DISTINCT:
        reader.distinct()
    elif kind == TEXT:
        reader.text()
    else:
        raise ArchiveDamaged("a block has a column of properties of an unknown kind")
    return reader.joined, bounds, reader.at, reader.taken
