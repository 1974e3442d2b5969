"""See pulled_columns.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from kvstore.core.arrow.column_batch cimport OutColumn
from kvstore.core.messages cimport Collector
from kvstore.core.records cimport Span


cdef struct Pair:
    Span name
    Span value


@cython.final
cdef class PulledColumns(Collector):
    cdef tuple _names
    cdef OutColumn _queue, _offset, _position, _size, _body, _tag, _keys, _key, _properties
    cdef OutColumn _pairs, _name, _value, _group, _message_id, _flags, _born_at, _stored_at
    cdef OutColumn _expires_at
    cdef bint _has_texts
    cdef int64_t _last_offset
    # The pairs of one message.
    cdef Pair *_own
    cdef Py_ssize_t _own_count
    cdef Py_ssize_t _own_room
    cdef int _add_numbers(
        self, int64_t queue, int64_t offset, int64_t position, int64_t size, int64_t flags,
        int64_t born_at, int64_t stored_at,
    ) except -1
    cdef int _add_texts(
        self, const uint8_t *raw, Py_ssize_t size, const uint8_t *host, Py_ssize_t host_size,
        int64_t position,
    ) except -1
    cdef int _add_expiry(self, int64_t time) except -1 nogil
    cdef int _add_own(self, Span *name, Span *value) except -1 nogil
    cdef int _add_id(
        self, Span *found, const uint8_t *host, Py_ssize_t host_size, int64_t position
    ) except -1 nogil
    cdef int _add_keys(self, Span *found) except -1 nogil
