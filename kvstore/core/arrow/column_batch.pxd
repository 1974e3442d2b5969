"""See column_batch.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint8_t


cdef struct Bytes:
    uint8_t *at
    Py_ssize_t size
    Py_ssize_t room


@cython.final
cdef class OutColumn:
    cdef readonly str name
    cdef bytes _encoded_name
    cdef bytes _format
    cdef bint _is_map
    cdef int64_t _flags
    cdef list _children
    # One bit a row, from the first null on; numbers or bounds; the bytes of texts.
    cdef Bytes _valid
    cdef Bytes _items
    cdef Bytes _data
    cdef Py_ssize_t count
    cdef Py_ssize_t _nulls
    cdef const void *_buffers[3]
    cdef int add_number(self, int64_t number) except -1 nogil
    cdef int add_bit(self, bint bit) except -1 nogil
    cdef int add_text(self, const uint8_t *at, Py_ssize_t size) except -1 nogil
    cdef int add_value(self, object value) except -1
    cdef int add_null(self) except -1 nogil
    cdef int add_end(self, Py_ssize_t end) except -1 nogil
    cdef int _count_row(self, bint is_null) except -1 nogil
    cdef int end_list(self, Py_ssize_t items) except -1 nogil
    cdef int64_t buffer_count(self)


@cython.final
cdef class ColumnBatch:
    # A column of them all.
    cdef OutColumn _columns
