# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Packed pairs: (key hash, position) pairs <-> the bytes of key blocks.

The idea: docs/keys.md has the layout: a header of 5 bytes, then the distances of the hashes from
the block's first, then the positions, both plane by plane. A hash is found by bisection of the
packed bytes, decoding nothing.

Invariants: a block's length is held against its header before anything is read or allocated; a
block of several pairs has at least one byte for each; a column has the least width that fits.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvstore.core.buffers cimport View, numbers_of, room_of
from kvstore.core.hashing cimport may_hold_digest

import numpy as np

from kvstore.errors import FormatError

cdef enum:
    HEAD = 5
    WIDTH_MAX = 8
    # Bits of a hash, and those that are left for its place in a column.
    HASH_BITS = 40
    PLACE_BITS = 24
    # Bits of a hash that are the topic's, and not in a filter.
    TOPIC_BITS = 8

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64), _uint64 = np.dtype(np.uint64)


cdef struct Header:
    int wide
    int far
    Py_ssize_t count


cdef inline int _width(uint64_t largest) noexcept nogil:
    cdef int found = 0
    while largest:
        largest >>= 8
        found += 1
    return found


cdef inline void _put_planes(
    uint8_t *out, const uint64_t *values, Py_ssize_t count, uint64_t base, int width
) noexcept nogil:
    cdef Py_ssize_t i
    cdef int plane
    for plane in range(width):
        for i in range(count):
            out[plane * count + i] = <uint8_t>((values[i] - base) >> 8 * plane)


cdef void _take_planes(
    const uint8_t *data, uint64_t *out, Py_ssize_t count, uint64_t base, int width
) noexcept nogil:
    cdef Py_ssize_t i
    cdef int plane
    for i in range(count):
        out[i] = 0
    for plane in range(width):
        for i in range(count):
            out[i] |= <uint64_t>data[plane * count + i] << 8 * plane
    for i in range(count):
        out[i] += base


cdef Header _measure(
    const uint64_t *hashes, const uint64_t *positions, Py_ssize_t count, uint64_t first
) noexcept nogil:
    cdef Header found
    cdef uint64_t every = 0
    cdef Py_ssize_t i
    for i in range(count):
        every |= positions[i]
    found.count, found.far = count, _width(every)
    found.wide = _width(hashes[count - 1] - first)
    if count > 1 and not found.wide and not found.far:
        found.far = 1
    return found


cdef void _put(
    uint8_t *out, const uint64_t *hashes, const uint64_t *positions, Header head, uint64_t first
) noexcept nogil:
    cdef int i
    out[0] = <uint8_t>(head.wide | head.far << 4)
    for i in range(4):
        out[1 + i] = <uint8_t>(head.count >> 8 * i)
    _put_planes(out + HEAD, hashes, head.count, first, head.wide)
    _put_planes(out + HEAD + head.wide * head.count, positions, head.count, 0, head.far)


cdef _check_pairs(View hashes, View positions, int64_t first):
    cdef Py_ssize_t i
    cdef int64_t before = first
    cdef bint falls = False
    if hashes.count != positions.count:
        raise ValueError(f"{hashes.count} hashes have {positions.count} positions")
    with nogil:
        for i in range(hashes.count):
            falls |= hashes.numbers[i] < before
            before = hashes.numbers[i]
    if falls:
        raise ValueError("the hashes of a block must rise from its first")


def sort_pairs(hashes, positions):
    cdef View h = numbers_of(hashes), p = numbers_of(positions), joined, places
    cdef uint64_t every = 0
    cdef Py_ssize_t i
    if h.count != p.count:
        raise ValueError(f"{h.count} hashes have {p.count} positions")
    for i in range(h.count):
        every |= <uint64_t>h.numbers[i]
    both, found = _empty(h.count, _uint64), _empty(h.count, _int64)
    joined, places = room_of(both.view(_int64)), room_of(found)
    if every >> HASH_BITS or h.count > 1 << PLACE_BITS:
        for i in range(h.count):
            joined.numbers[i], places.numbers[i] = h.numbers[i], p.numbers[i]
        order = np.argsort(both.view(_int64), kind="stable")
        return both.view(_int64)[order], found[order]
    # Numbers of a hash and its place sort five times as fast as an order of hashes does.
    with nogil:
        for i in range(h.count):
            joined.numbers[i] = <int64_t>(<uint64_t>h.numbers[i] << PLACE_BITS | <uint64_t>i)
    both.sort()
    with nogil:
        for i in range(h.count):
            places.numbers[i] = p.numbers[joined.numbers[i] & (1 << PLACE_BITS) - 1]
            joined.numbers[i] = <int64_t>(<uint64_t>joined.numbers[i] >> PLACE_BITS)
    return both.view(_int64), found


def pack_blocks(hashes, positions, Py_ssize_t together):
    cdef View h = numbers_of(hashes), p = numbers_of(positions)
    cdef Py_ssize_t count, at = 0
    cdef Header head
    cdef uint64_t first
    cdef uint8_t *out
    if not 0 < together <= 0xFFFFFFFF:
        raise ValueError("a block has at least one pair")
    if not h.count and not p.count:
        return []
    _check_pairs(h, p, h.numbers[0] if h.count else 0)
    found = []
    while at < h.count:
        count = min(together, h.count - at)
        first = <uint64_t>h.numbers[at]
        with nogil:
            head = _measure(<uint64_t *>h.numbers + at, <uint64_t *>p.numbers + at, count, first)
        value = PyBytes_FromStringAndSize(NULL, HEAD + (head.wide + head.far) * count)
        out = <uint8_t *>PyBytes_AS_STRING(value)
        with nogil:
            _put(out, <uint64_t *>h.numbers + at, <uint64_t *>p.numbers + at, head, first)
        found.append((<int64_t>first, value))
        at += count
    return found


def pack_block(int64_t first, hashes, positions):
    cdef View h = numbers_of(hashes), p = numbers_of(positions)
    if not 0 < h.count <= 0xFFFFFFFF:
        raise ValueError("a block has at least one pair")
    _check_pairs(h, p, first)
    cdef uint64_t *of = <uint64_t *>h.numbers
    cdef Header head = _measure(of, <uint64_t *>p.numbers, h.count, <uint64_t>first)
    value = PyBytes_FromStringAndSize(NULL, HEAD + (head.wide + head.far) * h.count)
    _put(<uint8_t *>PyBytes_AS_STRING(value), of, <uint64_t *>p.numbers, head, <uint64_t>first)
    return value


cdef Header _header(bytes value) except *:
    cdef Header head
    cdef Py_ssize_t size = len(value)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(value)
    if size < HEAD:
        raise FormatError(f"a key block has {size} bytes, at least {HEAD} are needed")
    head.wide, head.far = at[0] & 15, at[0] >> 4
    head.count = at[1] | at[2] << 8 | at[3] << 16 | <uint32_t>at[4] << 24
    if not head.count or (head.wide + head.far == 0 and head.count > 1):
        raise FormatError(f"a key block of no bytes a pair can't hold {head.count} pairs")
    if (
        head.wide > WIDTH_MAX or head.far > WIDTH_MAX
        or size != HEAD + (head.wide + head.far) * head.count
    ):
        raise FormatError("a key block's length does not follow from its header")
    return head


def count_in(bytes value not None):
    return _header(value).count


def unpack_block(int64_t first, bytes value not None):
    return unpack_blocks((first,), (value,))


def unpack_blocks(firsts, values):
    cdef tuple held = tuple(values), begins = tuple(firsts)
    cdef Py_ssize_t total = 0, i
    cdef Header head
    cdef int64_t first
    cdef const uint8_t *at
    if len(held) != len(begins):
        raise ValueError(f"{len(held)} blocks have {len(begins)} first hashes")
    for value in held:
        total += _header(value).count
    hashes, positions = _empty(total, _int64), _empty(total, _int64)
    cdef View h = room_of(hashes), p = room_of(positions)
    total = 0
    for i in range(len(held)):
        value, first = held[i], begins[i]
        head = _header(value)
        at = <const uint8_t *>PyBytes_AS_STRING(value) + HEAD
        with nogil:
            _take_planes(at, <uint64_t *>h.numbers + total, head.count, <uint64_t>first, head.wide)
            at += head.wide * head.count
            _take_planes(at, <uint64_t *>p.numbers + total, head.count, 0, head.far)
        total += head.count
    return hashes, positions


cdef inline uint64_t _number(
    const uint8_t *at, Py_ssize_t i, int width, Py_ssize_t count
) noexcept nogil:
    cdef uint64_t found = 0
    cdef int plane
    for plane in range(width):
        found |= <uint64_t>at[plane * count + i] << 8 * plane
    return found


cdef Py_ssize_t _before(const uint8_t *at, Header head, uint64_t wanted) noexcept nogil:
    # How many distances of a block are below `wanted`.
    cdef Py_ssize_t low = 0, high = head.count, middle
    while low < high:
        middle = (low + high) >> 1
        if _number(at, middle, head.wide, head.count) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def find_in_block(int64_t first, bytes value not None, int64_t low, int64_t high):
    cdef Header head = _header(value)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(value) + HEAD
    cdef const uint8_t *behind = at + head.wide * head.count
    cdef uint64_t distance
    cdef int64_t position
    cdef Py_ssize_t i
    found = []
    if high < first or high < low:
        return found
    distance = <uint64_t>high - <uint64_t>first
    i = _before(at, head, <uint64_t>low - <uint64_t>first if low > first else 0)
    for i in range(i, head.count):
        if _number(at, i, head.wide, head.count) > distance:
            break
        position = <int64_t>_number(behind, i, head.far, head.count)
        found.append((
            <int64_t>(<uint64_t>first + _number(at, i, head.wide, head.count)), position,
        ))
    return found


cdef list _inside(int64_t first, bytes value, int64_t wanted, int64_t base):
    # The positions of a hash, behind `base`; None unless it is between the block's first and last.
    cdef Header head = _header(value)
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(value) + HEAD
    cdef const uint8_t *behind = at + head.wide * head.count
    cdef uint64_t distance = <uint64_t>wanted - <uint64_t>first
    cdef Py_ssize_t i
    cdef list found
    if wanted <= first or distance >= _number(at, head.count - 1, head.wide, head.count):
        return None
    found = []
    for i in range(_before(at, head, distance), head.count):
        if _number(at, i, head.wide, head.count) != distance:
            break
        # Without a sign, since a damaged block may state any position.
        found.append(<int64_t>(<uint64_t>base + _number(behind, i, head.far, head.count)))
    return found


cdef list _known(list blocks, int64_t wanted, int64_t base):
    # As `_inside`, of the block that begins before the hash.
    cdef Py_ssize_t low = 0, high = len(blocks), middle
    cdef int64_t first
    while low < high:
        middle = (low + high) >> 1
        first, _ = <tuple?>blocks[middle]
        if first < wanted:
            low = middle + 1
        else:
            high = middle
    if not low:
        return None
    first, value = <tuple?>blocks[low - 1]
    return _inside(first, <bytes?>value, wanted, base)


def known_positions(
    list parts not None, dict filters not None, dict blocks not None, dict asked not None,
    int64_t wanted, int64_t begin, int64_t end, int64_t piece_blocks, int hashes,
):
    cdef list found = [], inside
    cdef uint64_t digest = <uint64_t>wanted >> TOPIC_BITS
    cdef int64_t base, stop, count, piece
    cdef bint holds
    if not 0 < piece_blocks <= 0xFFFFFFFF or digest > 0xFFFFFFFF:
        raise ValueError(f"hash {wanted} has no piece of {piece_blocks} blocks")
    for part in parts:
        serial, base, stop, count = <tuple?>part
        if base >= end or stop <= begin:
            continue
        if not 0 <= count <= 0xFFFFFFFF:
            raise ValueError("a filter has fewer than 2**32 blocks")
        piece = <int64_t>(digest * <uint64_t>count >> 32) // piece_blocks
        key = (serial, piece)
        data = filters.get(key)
        if data is None:
            return None
        holds = may_hold_digest(
            <bytes?>data, 0, count, piece * piece_blocks, <uint32_t>digest, hashes
        )
        asked[serial] = holds
        if not holds:
            continue
        read = blocks.get(key)
        inside = None if read is None else _known(<list?>read, wanted, base)
        if inside is None:
            return None
        found += inside
    if len(found) > 1:
        found = sorted(set(found), reverse=True)
    return [p for p in found if begin <= p < end]
