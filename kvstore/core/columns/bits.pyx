# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, cdivision=True
"""Bits: numbers <-> bytes, at as many bits a number as its column says.

The idea: writing fills a word of 64 bits and stores it when it is full. Reading takes the eight
bytes in which a number begins and shifts it out of them; a number of 58 bits and more may reach
into a ninth. Only the numbers at the end of the data, where fewer bytes follow, are read byte by
byte.

Invariants: the bytes behind the last number's are neither read nor written; bits behind the last
number are 0.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from kvstore.core.buffers cimport (
    View, load_be32, load_be64, numbers_of, room_of, store_be32, store_be64, view_of,
)

import numpy as np

from kvstore.errors import FormatError

cdef enum:
    WIDEST = 64
    # From so many numbers on other threads may run meanwhile.
    LONG = 1024

cdef object _empty = np.empty
cdef Py_ssize_t COUNT_MAX = 0x100000000000000
cdef object _zeros = np.zeros
cdef object _uint64 = np.dtype(np.uint64)


cdef void pack_bits(
    uint8_t *out, const uint64_t *values, Py_ssize_t count, int width, uint64_t base, bint steps
) noexcept nogil:
    # The part above `base` of a value, or of its difference from the one before it in memory.
    cdef uint64_t word = 0, value, mask
    cdef int room = 64, left
    cdef Py_ssize_t i
    if not width:
        return
    if not steps and not width & 7 and width & (width - 1) == 0:
        # Whole bytes, which compilers do several at a time.
        if width == 8:
            for i in range(count):
                out[i] = <uint8_t>(values[i] - base)
        elif width == 16:
            for i in range(count):
                value = values[i] - base
                out[2 * i], out[2 * i + 1] = <uint8_t>(value >> 8), <uint8_t>value
        elif width == 32:
            for i in range(count):
                store_be32(out + 4 * i, <uint32_t>(values[i] - base))
        else:
            for i in range(count):
                store_be64(out + 8 * i, values[i] - base)
        return
    mask = <uint64_t>-1 >> (WIDEST - width)
    for i in range(count):
        value = values[i] - base
        if steps:
            value -= values[i - 1]
        value &= mask
        if width < room:
            room -= width
            word |= value << room
            continue
        left = width - room
        store_be64(out, word | value >> left)
        out += 8
        room = 64 - left
        word = value << room if left else 0
    for i in range((64 - room + 7) >> 3):
        out[i] = <uint8_t>(word >> (56 - 8 * i))


cdef void unpack_bits(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t skip, int width, Py_ssize_t count,
    uint64_t *out,
) noexcept nogil:
    # `size` bytes are there; the caller has checked that they hold skip + count values.
    cdef uint64_t word, bits
    cdef Py_ssize_t i = 0, at, fast
    cdef int before, j
    if not width:
        for i in range(count):
            out[i] = 0
        return
    if not skip and width == 8:
        for i in range(count):
            out[i] = data[i]
        return
    if not skip and width == 16:
        for i in range(count):
            out[i] = <uint64_t>data[2 * i] << 8 | data[2 * i + 1]
        return
    if not skip and width == 32:
        for i in range(count):
            out[i] = load_be32(data + 4 * i)
        return
    if not skip and width == 64:
        for i in range(count):
            out[i] = load_be64(data + 8 * i)
        return
    # Values of which the nine bytes from their first on are there.
    fast = 0
    if size > 9:
        fast = <Py_ssize_t>((<uint64_t>(size - 9) << 3) / <uint64_t>width) - skip
        fast = max(0, min(fast, count))
    bits = <uint64_t>skip * <uint64_t>width
    if width <= 57:
        for i in range(fast):
            word = load_be64(data + (bits >> 3)) << (bits & 7)
            out[i] = word >> (WIDEST - width)
            bits += width
    else:
        for i in range(fast):
            at, before = bits >> 3, bits & 7
            word = load_be64(data + at) << before | data[at + 8] >> (8 - before)
            out[i] = word >> (WIDEST - width)
            bits += width
    for i in range(fast, count):
        at, before = bits >> 3, bits & 7
        word = 0
        for j in range(8):
            word = word << 8 | (data[at + j] if at + j < size else 0)
        word = word << before
        if before and at + 8 < size:
            word |= data[at + 8] >> (8 - before)
        out[i] = word >> (WIDEST - width)
        bits += width


def pack(values, int width):
    cdef View view = numbers_of(values)
    if not 0 <= width <= WIDEST:
        raise ValueError(f"values have 0 to {WIDEST} bits, not {width}")
    data = PyBytes_FromStringAndSize(NULL, size_of_bits(width, view.count))
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(data)
    if view.count < LONG:
        pack_bits(out, <uint64_t *>view.numbers, view.count, width, 0, False)
    else:
        with nogil:
            pack_bits(out, <uint64_t *>view.numbers, view.count, width, 0, False)
    return data


def unpack(data, Py_ssize_t at, int width, Py_ssize_t count, Py_ssize_t skip=0):
    cdef View view = view_of(data), room
    if not 0 <= width <= WIDEST:
        raise FormatError(f"values of {width} bits are in no column")
    if not (0 <= at <= view.size and 0 <= count < COUNT_MAX and 0 <= skip < COUNT_MAX):
        raise FormatError(f"{count} values can't begin at byte {at} of {view.size}")
    cdef Py_ssize_t size = size_of_bits(width, skip + count)
    if size > view.size - at:
        raise FormatError(f"{size} bytes are wanted, {view.size - at} are left")
    if not width:
        return _zeros(count, _uint64)
    found = _empty(count, _uint64)
    room = room_of(found)
    cdef const uint8_t *begin = view.bytes + at
    size = view.size - at
    if count < LONG:
        unpack_bits(begin, size, skip, width, count, <uint64_t *>room.numbers)
    else:
        with nogil:
            unpack_bits(begin, size, skip, width, count, <uint64_t *>room.numbers)
    return found
