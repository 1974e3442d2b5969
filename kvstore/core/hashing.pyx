# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Hashing: XXH32, of a key or an id; Java's hash, of a tag.

The idea: XXH32 is wide enough for a key index, and fast on texts of a few dozen bytes. The encoder
and the scan call it on the bytes that they have at hand. RocketMQ filters tags by their Java hash.

Invariant: the same bytes give the same number, on every machine and in every version: they are on
disk.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef extern from "Python.h":
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    uint32_t PyUnicode_READ_CHAR(object text, Py_ssize_t index)

cdef enum:
    P1 = 2654435761
    P2 = 2246822519
    P3 = 3266489917
    P4 = 668265263
    P5 = 374761393
    STRIPE = 16


cdef inline uint32_t _load(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint32_t _rotated(uint32_t number, int bits) noexcept nogil:
    return number << bits | number >> (32 - bits)


cdef inline uint32_t _round(uint32_t total, const uint8_t *at) noexcept nogil:
    return _rotated(total + _load(at) * <uint32_t>P2, 13) * <uint32_t>P1


cdef uint32_t xxh32_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef uint32_t a, b, c, d
    cdef uint32_t found = P5
    if size >= STRIPE:
        a = <uint32_t>P1 + <uint32_t>P2
        b = P2
        c = 0
        d = 0 - <uint32_t>P1
        while end - at >= STRIPE:
            a = _round(a, at)
            b = _round(b, at + 4)
            c = _round(c, at + 8)
            d = _round(d, at + 12)
            at += STRIPE
        found = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
    found += <uint32_t>size
    while end - at >= 4:
        found = _rotated(found + _load(at) * <uint32_t>P3, 17) * <uint32_t>P4
        at += 4
    while at < end:
        found = _rotated(found + at[0] * <uint32_t>P5, 11) * <uint32_t>P1
        at += 1
    found = (found ^ found >> 15) * <uint32_t>P2
    found = (found ^ found >> 13) * <uint32_t>P3
    return found ^ found >> 16


def xxh32(bytes data not None):
    return xxh32_of(<const uint8_t *><const char *>data, len(data))


cdef int64_t java_hash_of(object text):
    # Of a str's UTF-16, as a number with a sign.
    cdef uint32_t found = 0, unit
    cdef Py_ssize_t i
    for i in range(PyUnicode_GET_LENGTH(text)):
        unit = PyUnicode_READ_CHAR(text, i)
        if unit > 0xFFFF:
            found = 31 * found + (0xD800 + ((unit - 0x10000) >> 10))
            unit = 0xDC00 + (unit & 0x3FF)
        found = 31 * found + unit
    return <int32_t>found


def java_hash(str text not None):
    return java_hash_of(text)
