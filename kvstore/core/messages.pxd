"""See messages.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kvstore.core.records cimport Named, Parts, Span


cpdef bint any_expired(list messages, int64_t now) except -1


cdef class Collector:
    cdef int take(self, const uint8_t *record, Parts *p, object unpack) except -1


cdef class StoredMessage:
    # -1: never. Read off the properties while these are at hand, and kept where a pop looks.
    cdef int64_t _expires_at
    cdef public str topic
    cdef public uint32_t queue
    cdef public int64_t offset
    cdef public int64_t position
    cdef public int64_t size
    cdef public bytes body
    cdef bytes _raw_properties
    cdef public uint32_t flags
    cdef public uint32_t system_flags
    cdef public int64_t born_at
    cdef public int64_t stored_at
    cdef public bytes raw_born_host
    cdef public bytes raw_store_host
    cdef public int32_t reconsume_times
    cdef public int64_t prepared_position
    cdef public uint32_t body_crc
    cdef public int version
    cdef dict _properties
    # Values in `_raw_properties`, once they were searched for.
    cdef Named _named
    cdef bint _is_searched
    cdef tuple _fields(self)
    cdef str _value(self, Span *named, str name)
