# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Radix sort: rows in the order of a number of 64 bits each.

The idea: the lowest byte is sorted by first. Numbers move together with the places of their rows,
and a byte that is the same in all numbers takes no pass (Knuth, The Art of Computer Programming,
volume 3, 5.2.5).

Invariant: rows with one number stay as they came.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memset


cdef Keyed *sort_keyed(Keyed *rows, Keyed *spare, Py_ssize_t count) noexcept nogil:
    # Both have room for `count` rows; the one of them that has the rows in order.
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
