"""See offset_sets.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint64_t


cdef enum:
    BITMAP_WORDS = 4


# A bitmap of 256 bits as words, the lowest first. ValueError for any that is no such bitmap.
cdef int load_bits(object bits, uint64_t *words) except -1
cpdef below(offset, first, bits)


@cython.final
cdef class Shelf:
    # `values` may be changed by others as long as values other than 0 stay so. `_order` is a heap
    # of its numbers, each once; `_empty` says how many of the values are 0.
    cdef readonly dict values
    cdef list _order
    cdef Py_ssize_t _empty
    cpdef put(self, number, value)
    cpdef add(self, number, by)
    cdef _set(self, number, old, value)
    cdef _turn(self, bint is_empty)
    cdef _tidy(self)
    cpdef first(self)
    cdef _push(self, number)
    cdef _drop_first(self)


@cython.final
cdef class Page:
    cdef uint64_t words[BITMAP_WORDS]
    cdef Py_ssize_t _count(self, Py_ssize_t before) noexcept


@cython.final
cdef class OffsetSet:
    # `first` and `bits` name offsets: `first` + i for bit i. `pages` has a `Page` for each 256.
    cdef readonly Py_ssize_t count
    cdef readonly Shelf pages
    cpdef add(self, int64_t first, bits)
    cpdef remove(self, int64_t first, bits)
    cdef int change(self, int64_t first, bits, bint add) except -1
    cdef Page _page(self, int64_t number)
    cdef _change_page(self, int64_t number, const uint64_t *words, bint add)
    cdef _changed(self, int64_t number, Page page, Py_ssize_t before)
    cpdef lowest(self)
    cpdef within(self, int64_t first, Py_ssize_t size)


@cython.final
cdef class QueueLocks:
    cdef public object rows, dues, gone_below
    cdef readonly OffsetSet locked, redelivered, parked
