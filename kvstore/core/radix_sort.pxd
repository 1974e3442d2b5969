"""See radix_sort.pyx."""

from libc.stdint cimport uint64_t


cdef struct Keyed:
    # The number that orders a row, and the place of the row.
    uint64_t key
    Py_ssize_t row


cdef Keyed *sort_keyed(Keyed *rows, Keyed *spare, Py_ssize_t count) noexcept nogil
