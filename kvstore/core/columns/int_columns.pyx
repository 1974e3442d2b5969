# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Integer columns: columns of 64-bit numbers <-> bytes, and varints, as archives have them.

The idea: a column is a constant, or numbers above a minimum, or differences above a least
difference (a column that rises evenly takes no bits at all), or indexes of few distinct values.
Each form is packed at the number of bits that its largest number needs. docs/archive.md has the
layout.

Invariants: all of int64 round-trips, since differences are taken modulo 2**64. The form depends on
the values alone. A size that bytes state is held against the bytes that follow before it is
believed. A column allocates what its caller expects, and nothing by a number that it read.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport frexp
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from kvstore.core.columns.bits cimport pack_bits, size_of_bits, unpack_bits
from kvstore.core.buffers cimport View, lower_bound, numbers_of, room_of

import numpy as np

from kvstore.errors import ArchiveDamaged

cdef enum:
    _CONSTANT = 0
    _DELTAS = 1
    _RANGE = 2
    _DISTINCT = 3
    WIDTH_MAX = 64
    # From this number on a varint takes more than one byte.
    LONG = 0xF8
    VARINT_MAX = 9
    DISTINCT_MAX = 256
    # Columns narrower than this many bits are not searched for few distinct values.
    DISTINCT_FROM = 12
    # A column needs this many rows for distinct values, and this many are looked at first.
    DISTINCT_ROWS = 24

CONSTANT = _CONSTANT

cdef object _empty = np.empty
cdef Py_ssize_t COUNT_MAX = 0x100000000000000
cdef object _int64 = np.dtype(np.int64)


cdef object cut_short():
    return ArchiveDamaged("a block ends in the middle of a column")


# --- varints ---


cdef inline int _put_varint(uint8_t *out, uint64_t value) noexcept nogil:
    # At most VARINT_MAX bytes; gives how many.
    cdef int size = 0, i
    cdef uint64_t left = value
    if value < LONG:
        out[0] = <uint8_t>value
        return 1
    while left:
        left >>= 8
        size += 1
    out[0] = <uint8_t>(LONG - 1 + size)
    for i in range(size):
        out[1 + i] = <uint8_t>(value >> 8 * (size - 1 - i))
    return 1 + size


cdef inline uint64_t _zigzag(int64_t value) noexcept nogil:
    return <uint64_t>value << 1 ^ (<uint64_t>-1 if value < 0 else 0)


cdef inline int64_t _of_zigzag(uint64_t value) noexcept nogil:
    return <int64_t>(value >> 1 ^ (0 - (value & 1)))


cdef bint _take_varint(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, uint64_t *value
) noexcept nogil:
    # False if it is not all there.
    cdef Py_ssize_t begin = at[0]
    cdef int more, i
    if begin < 0 or begin >= size:
        return False
    value[0] = data[begin]
    at[0] = begin + 1
    if value[0] < LONG:
        return True
    more = <int>value[0] - (LONG - 1)
    if more > size - begin - 1:
        return False
    value[0] = 0
    for i in range(more):
        value[0] = value[0] << 8 | data[begin + 1 + i]
    at[0] = begin + 1 + more
    return True


def write_varint(uint64_t value):
    cdef uint8_t out[VARINT_MAX]
    return PyBytes_FromStringAndSize(<char *>out, _put_varint(out, value))


def write_signed(int64_t value):
    cdef uint8_t out[VARINT_MAX]
    return PyBytes_FromStringAndSize(<char *>out, _put_varint(out, _zigzag(value)))


def read_varint(bytes data not None, Py_ssize_t at):
    cdef uint64_t value
    if not _take_varint(<const uint8_t *>PyBytes_AS_STRING(data), len(data), &at, &value):
        raise cut_short()
    return value, at


# --- encoding ---


cdef inline int _width(int64_t least, int64_t most) noexcept nogil:
    # The bits that most - least takes; one too many where rounding to a float goes up, never too
    # few. The format's files have been written so.
    cdef int found
    frexp(<double>(<uint64_t>most - <uint64_t>least), &found)
    return min(found, WIDTH_MAX)


cdef struct Form:
    int kind
    int width
    int64_t base


cdef Form _form_of(const int64_t *values, Py_ssize_t count) noexcept nogil:
    cdef Form form
    cdef int64_t least = values[0], most = values[0], low, high, step
    cdef int by_step
    cdef Py_ssize_t i
    for i in range(1, count):
        least = min(least, values[i])
        most = max(most, values[i])
    form.kind, form.width, form.base = _CONSTANT, 0, least
    if least == most:
        return form
    low = high = <int64_t>(<uint64_t>values[1] - <uint64_t>values[0])
    for i in range(2, count):
        step = <int64_t>(<uint64_t>values[i] - <uint64_t>values[i - 1])
        low = min(low, step)
        high = max(high, step)
    form.kind, form.width = _RANGE, _width(least, most)
    by_step = _width(low, high)
    if (count - 1) * by_step + 16 < count * form.width:
        form.kind, form.width, form.base = _DELTAS, by_step, low
    return form


cdef Py_ssize_t _distinct_of(
    const int64_t *values, Py_ssize_t count, int64_t *found
) noexcept nogil:
    # The distinct values in order, DISTINCT_MAX at most; 0 if there are too many.
    cdef Py_ssize_t known = 0, i, at
    for i in range(count):
        if i == DISTINCT_ROWS and known * 2 > DISTINCT_ROWS:
            return 0
        at = lower_bound(found, known, values[i])
        if at < known and found[at] == values[i]:
            continue
        if known == DISTINCT_MAX or (known + 1) * 2 > count:
            return 0
        memmove(found + at + 1, found + at, (known - at) * sizeof(int64_t))
        found[at] = values[i]
        known += 1
    if count == DISTINCT_ROWS and known * 2 > DISTINCT_ROWS:
        return 0
    return known


cdef _distinct(const int64_t *values, Py_ssize_t count, Py_ssize_t below):
    # The column as indexes of distinct values, if it takes less than `below` bytes; else None.
    cdef int64_t found[DISTINCT_MAX]
    cdef uint8_t head[2 + VARINT_MAX * (DISTINCT_MAX + 1)]
    cdef Py_ssize_t known, i, size
    cdef int bits = 0, at
    cdef uint64_t *index
    cdef uint8_t *out
    with nogil:
        known = _distinct_of(values, count, found)
    if not known:
        return None
    while (known - 1) >> bits:
        bits += 1
    head[0] = _DISTINCT
    at = 1 + _put_varint(head + 1, known)
    for i in range(known):
        at += _put_varint(head + at, _zigzag(found[i]))
    head[at] = <uint8_t>bits
    at += 1
    size = at + size_of_bits(bits, count)
    if size >= below:
        return None
    index = <uint64_t *>malloc(count * sizeof(uint64_t))
    if index == NULL:
        raise MemoryError
    try:
        data = PyBytes_FromStringAndSize(NULL, size)
        out = <uint8_t *>PyBytes_AS_STRING(data)
        with nogil:
            for i in range(count):
                index[i] = lower_bound(found, known, values[i])
            memmove(out, head, at)
            pack_bits(out + at, index, count, bits, 0, False)
    finally:
        free(index)
    return data


cdef _encode(const int64_t *values, Py_ssize_t count):
    cdef Form form
    cdef uint8_t head[2 + 2 * VARINT_MAX]
    cdef int at = 1
    cdef Py_ssize_t size
    cdef uint8_t *out
    with nogil:
        form = _form_of(values, count)
        head[0] = form.kind
        if form.kind == _DELTAS:
            at += _put_varint(head + at, _zigzag(values[0]))
        at += _put_varint(head + at, _zigzag(form.base))
        if form.kind != _CONSTANT:
            head[at] = <uint8_t>form.width
            at += 1
    if form.kind == _CONSTANT:
        return PyBytes_FromStringAndSize(<char *>head, at)
    cdef bint steps = form.kind == _DELTAS
    size = at + size_of_bits(form.width, count - steps)
    if form.width >= DISTINCT_FROM and count >= DISTINCT_ROWS:
        data = _distinct(values, count, size)
        if data is not None:
            return data
    data = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t *>PyBytes_AS_STRING(data)
    with nogil:
        memmove(out, head, at)
        pack_bits(
            out + at, <const uint64_t *>values + steps, count - steps, form.width,
            <uint64_t>form.base, steps,
        )
    return data


def encode_columns(values, bounds):
    cdef View rows = numbers_of(values), ends = numbers_of(bounds)
    cdef Py_ssize_t i
    cdef int64_t begin, end
    found = []
    for i in range(ends.count - 1):
        begin, end = ends.numbers[i], ends.numbers[i + 1]
        if not 0 <= begin < end <= rows.count:
            raise ValueError(f"rows {begin} to {end} are no slice of {rows.count} rows")
        found.append(_encode(rows.numbers + begin, end - begin))
    return found


# --- decoding ---


cdef int _unpack(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *out, Py_ssize_t count
) except -1:
    cdef int bits
    cdef Py_ssize_t begin = at[0], room
    if begin >= size:
        raise cut_short()
    bits = data[begin]
    begin += 1
    room = size_of_bits(bits, count)
    if bits > WIDTH_MAX or room > size - begin:
        raise cut_short()
    with nogil:
        unpack_bits(data + begin, size - begin, 0, bits, count, <uint64_t *>out)
    at[0] = begin + room
    return 0


cdef int take_signed(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *value
) except -1:
    cdef uint64_t found
    if not _take_varint(data, size, at, &found):
        raise cut_short()
    value[0] = _of_zigzag(found)
    return 0


cdef int _decode_distinct(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *out, Py_ssize_t count
) except -1:
    cdef int64_t known[DISTINCT_MAX]
    cdef uint64_t number, largest = 0
    cdef Py_ssize_t i
    if not _take_varint(data, size, at, &number):
        raise cut_short()
    if not 1 <= number <= DISTINCT_MAX:
        raise ArchiveDamaged(
            f"a column has {number} distinct values, at most {DISTINCT_MAX} may be"
        )
    for i in range(<Py_ssize_t>number):
        take_signed(data, size, at, &known[i])
    _unpack(data, size, at, out, count)
    for i in range(count):
        largest = max(largest, <uint64_t>out[i])
    if largest >= number:
        raise ArchiveDamaged("a column names a distinct value that is not there")
    for i in range(count):
        out[i] = known[out[i]]
    return 0


cdef int _take_column(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t *at, int64_t *out, Py_ssize_t count
) except -1:
    # `count` values, one or more, into `out`; `at` becomes the index behind them.
    cdef int64_t first, base
    cdef Py_ssize_t i
    cdef int kind
    if at[0] < 0 or at[0] >= size:
        raise cut_short()
    kind = data[at[0]]
    at[0] += 1
    if kind == _CONSTANT:
        take_signed(data, size, at, &base)
        for i in range(count):
            out[i] = base
    elif kind == _RANGE:
        take_signed(data, size, at, &base)
        _unpack(data, size, at, out, count)
        for i in range(count):
            out[i] = <int64_t>(<uint64_t>out[i] + <uint64_t>base)
    elif kind == _DELTAS:
        take_signed(data, size, at, &first)
        take_signed(data, size, at, &base)
        _unpack(data, size, at, out + 1, count - 1)
        out[0] = first
        for i in range(1, count):
            first = <int64_t>(<uint64_t>first + <uint64_t>out[i] + <uint64_t>base)
            out[i] = first
    elif kind == _DISTINCT:
        _decode_distinct(data, size, at, out, count)
    else:
        raise ArchiveDamaged(f"a block has a column of a kind {kind}, which there is not")
    return 0


@cython.auto_pickle(False)
cdef class Cursor:
    cdef void begin(self, bytes data, Py_ssize_t at) noexcept:
        self.kept, self.at = data, at
        self.data, self.size = <const uint8_t *>PyBytes_AS_STRING(data), len(data)

    cdef uint64_t number(self) except? 0:
        cdef uint64_t found
        if not _take_varint(self.data, self.size, &self.at, &found):
            raise cut_short()
        return found

    cdef int column(self, int64_t *out, Py_ssize_t count) except -1:
        if count:
            _take_column(self.data, self.size, &self.at, out, count)
        return 0


def decode_column(bytes data not None, Py_ssize_t at, Py_ssize_t count):
    if not 0 <= count < COUNT_MAX:
        raise ArchiveDamaged("a column has no rows")
    found = _empty(count, _int64)
    cdef View room = room_of(found)
    if count:
        _take_column(<const uint8_t *>PyBytes_AS_STRING(data), len(data), &at, room.numbers, count)
    return found, at
