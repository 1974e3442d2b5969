# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Hashing: XXH32, of a key or an id; Java's hash, of a tag; the bits of hashes in key filters.

The idea: XXH32 is wide enough for a key index, and fast on texts of a few dozen bytes. The encoder
and the scan call it on the bytes that they have at hand. RocketMQ filters tags by their Java hash.
A key filter is blocks of 512 bits: the upper bits of digest times number of blocks say which block
a digest has, and pieces of 9 bits of its mix say which bits of the block (`record.key_filter` says
more).

Invariants: the same bytes give the same number and the same bits, on every machine and in every
version: they are on disk. An added digest is never denied.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kvstore.core.buffers cimport View, room_of, view_of

import numpy as np

cdef object _array = np.array
cdef object _uint32 = np.dtype(np.uint32)

cdef enum:
    P1 = 2654435761
    P2 = 2246822519
    P3 = 3266489917
    P4 = 668265263
    P5 = 374761393
    STRIPE = 16
    BLOCK_BYTES = 64
    BITS_OF_PLACE = 9
    PLACES = 511
    # So many places a mixed number has.
    PLACES_MAX = 7


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


cdef int64_t java_hash_of(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    # Of a text's UTF-16, as a number with a sign. The bytes are UTF-8, halves of pairs included; a
    # character that they cut ends it.
    cdef const uint8_t *end = at + size
    cdef uint32_t found = 0, unit
    while at < end:
        unit = at[0]
        if unit < 0x80:
            at += 1
        elif end - at < 2 + (unit >= 0xE0) + (unit >= 0xF0):
            break
        elif unit < 0xE0:
            unit = (unit & 0x1F) << 6 | at[1] & 0x3F
            at += 2
        elif unit < 0xF0:
            unit = (unit & 0xF) << 12 | <uint32_t>(at[1] & 0x3F) << 6 | at[2] & 0x3F
            at += 3
        else:
            unit = (unit & 7) << 18 | <uint32_t>(at[1] & 0x3F) << 12 | (
                <uint32_t>(at[2] & 0x3F) << 6 | at[3] & 0x3F
            )
            at += 4
            found = 31 * found + (0xD800 + ((unit - 0x10000) >> 10))
            unit = 0xDC00 + (unit & 0x3FF)
        found = 31 * found + unit
    return <int32_t>found


def java_hash(str text not None):
    cdef bytes encoded = text.encode("utf-8", "surrogatepass")
    return java_hash_of(<const uint8_t *><const char *>encoded, len(encoded))


# --- key filters ---


cdef inline uint64_t _mix(uint64_t digest) noexcept nogil:
    # The finisher of splitmix64: every bit of its result depends on every bit of the digest.
    cdef uint64_t mixed = digest + <uint64_t>0x9E3779B97F4A7C15
    mixed = (mixed ^ mixed >> 30) * <uint64_t>0xBF58476D1CE4E5B9
    mixed = (mixed ^ mixed >> 27) * <uint64_t>0x94D049BB133111EB
    return mixed ^ mixed >> 31


cdef int _check(int64_t blocks, int64_t first, int hashes) except -1:
    if not 0 <= blocks <= 0xFFFFFFFF or not 0 <= first <= 0xFFFFFFFF:
        raise ValueError("a filter has fewer than 2**32 blocks")
    if not 0 <= hashes <= PLACES_MAX:
        raise ValueError("a digest sets at most 7 bits")
    return 0


cdef inline int64_t _block_of(uint32_t digest, int64_t blocks) noexcept nogil:
    return <int64_t>(digest * <uint64_t>blocks >> 32)


cdef inline bint _holds(const uint8_t *bits, uint64_t mixed, int hashes) noexcept nogil:
    cdef int turn
    for turn in range(hashes):
        if not bits[(mixed & PLACES) >> 3] >> (mixed & 7) & 1:
            return False
        mixed >>= BITS_OF_PLACE
    return True


def add_digests(filled, digests, int64_t blocks, int64_t first, int hashes):
    cdef View out = room_of(filled)
    # A copy, which nobody changes behind the check.
    cdef View given = view_of(_array(digests, _uint32))
    cdef const uint32_t *numbers = <const uint32_t *>given.bytes
    cdef Py_ssize_t i, count = given.size >> 2
    cdef int64_t there = out.size // BLOCK_BYTES
    cdef uint8_t *bits
    cdef uint64_t mixed
    cdef int turn
    _check(blocks, first, hashes)
    for i in range(count):
        if not 0 <= _block_of(numbers[i], blocks) - first < there:
            raise ValueError("a digest belongs to another part of the filter")
    with nogil:
        for i in range(count):
            bits = out.bytes + (_block_of(numbers[i], blocks) - first) * BLOCK_BYTES
            mixed = _mix(numbers[i])
            for turn in range(hashes):
                bits[(mixed & PLACES) >> 3] |= <uint8_t>(1 << (mixed & 7))
                mixed >>= BITS_OF_PLACE


cdef bint may_hold_digest(
    bytes data, Py_ssize_t at, int64_t blocks, int64_t first, uint32_t digest, int hashes
) except -1:
    cdef const uint8_t *bits = <const uint8_t *><const char *>data
    cdef int64_t block = _block_of(digest, blocks) - first
    _check(blocks, first, hashes)
    if at < 0 or block < 0 or len(data) - at < BLOCK_BYTES * (block + 1):
        return True
    return _holds(bits + at + block * BLOCK_BYTES, _mix(digest), hashes)


def may_hold(
    bytes data not None, Py_ssize_t at, int64_t blocks, int64_t first, uint32_t digest, int hashes
):
    return may_hold_digest(data, at, blocks, first, digest, hashes)


def count_denied(bytes data not None, Py_ssize_t at, int64_t blocks, digests, int hashes):
    cdef const uint8_t *bits = <const uint8_t *><const char *>data
    cdef View given = view_of(_array(digests, _uint32))
    cdef const uint32_t *numbers = <const uint32_t *>given.bytes
    cdef Py_ssize_t i, denied = 0
    _check(blocks, 0, hashes)
    if at < 0 or len(data) - at < BLOCK_BYTES * blocks or not blocks:
        raise ValueError(f"{len(data)} bytes have no {blocks} blocks of a filter from {at} on")
    with nogil:
        for i in range(given.size >> 2):
            denied += not _holds(
                bits + at + _block_of(numbers[i], blocks) * BLOCK_BYTES, _mix(numbers[i]), hashes
            )
    return denied


def masks_of(uint32_t digest):
    cdef uint8_t masks[(PLACES_MAX + 1) * BLOCK_BYTES]
    cdef uint64_t mixed = _mix(digest)
    cdef Py_ssize_t turn
    memset(masks, 0, BLOCK_BYTES)
    for turn in range(1, PLACES_MAX + 1):
        memcpy(masks + turn * BLOCK_BYTES, masks + (turn - 1) * BLOCK_BYTES, BLOCK_BYTES)
        masks[turn * BLOCK_BYTES + ((mixed & PLACES) >> 3)] |= <uint8_t>(1 << (mixed & 7))
        mixed >>= BITS_OF_PLACE
    return masks[:(PLACES_MAX + 1) * BLOCK_BYTES]
