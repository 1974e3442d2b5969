"""See messages.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kvstore.core.records cimport Parts


cpdef bint any_expired(list messages, int64_t now) except -1


cdef class Collector:
    cdef int take(self, const uint8_t *record, Parts *p, object unpack) except -1
