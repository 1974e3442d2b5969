# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Sorting: rows by a number of 64 bits; those with one number stay as they came.

The idea: a radix sort, the lowest byte first. Numbers move together with the places of their rows,
and a byte that is the same in all numbers takes no pass (Knuth, The Art of Computer Programming,
volume 3, 5.2.5). Rows are copied once, at the end.

Invariant: the given rows stay as they are, and memory is 32 bytes a row beside those that come out.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kvstore.core.buffers cimport View, grown, view_of

cdef uint64_t _SIGN = <uint64_t>1 << 63


cdef struct Keyed:
    # The number that orders a row, and the place of the row.
    uint64_t key
    Py_ssize_t row


cdef Keyed *_sort(Keyed *rows, Keyed *spare, Py_ssize_t count) noexcept nogil:
    # Both have `count` rows; the one of them that has the rows in order.
    cdef Py_ssize_t begins[256]
    cdef Py_ssize_t i, byte, begin, here
    cdef uint64_t differing = 0
    cdef Keyed *swap
    cdef int shift
    for i in range(count):
        differing |= rows[i].key ^ rows[0].key
    for shift in range(0, 64, 8):
        if not differing >> shift & 0xFF:
            continue
        memset(begins, 0, sizeof(begins))
        for i in range(count):
            begins[rows[i].key >> shift & 0xFF] += 1
        begin = 0
        for byte in range(256):
            here = begins[byte]
            begins[byte] = begin
            begin += here
        for i in range(count):
            byte = rows[i].key >> shift & 0xFF
            spare[begins[byte]] = rows[i]
            begins[byte] += 1
        swap = rows
        rows = spare
        spare = swap
    return rows


def sort_rows(rows, Py_ssize_t size):
    cdef View view = view_of(rows)
    cdef Py_ssize_t i, count
    cdef Keyed *keyed
    cdef Keyed *ordered
    cdef uint8_t *out
    if size < 8 or view.size % size:
        raise ValueError("a row has 8 bytes at least, and all rows are whole")
    count = view.size // size
    found = PyBytes_FromStringAndSize(NULL, view.size)
    out = <uint8_t *>PyBytes_AS_STRING(found)
    keyed = <Keyed *>grown(NULL, 2 * count + 1, sizeof(Keyed))
    with nogil:
        for i in range(count):
            memcpy(&keyed[i].key, view.bytes + i * size, 8)
            # The sign turned round, so that numbers below zero come first.
            keyed[i].key ^= _SIGN
            keyed[i].row = i
        ordered = _sort(keyed, keyed + count, count)
        for i in range(count):
            memcpy(out + i * size, view.bytes + ordered[i].row * size, size)
        free(keyed)
    return found
