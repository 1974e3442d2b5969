# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Sorting: rows of bytes by a number of 64 bits at their beginning.

The idea: the numbers are sorted with the places of their rows; the rows are copied once, at the
end.

Invariant: the given rows stay as they are, and memory is 32 bytes a row beside those that come out.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kvstore.core.buffers cimport View, grown, view_of
from kvstore.core.radix_sort cimport Keyed, sort_keyed

cdef uint64_t _SIGN = <uint64_t>1 << 63


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
        ordered = sort_keyed(keyed, keyed + count, count)
        for i in range(count):
            memcpy(out + i * size, view.bytes + ordered[i].row * size, size)
        free(keyed)
    return found
