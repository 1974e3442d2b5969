"""See messages.pyx."""

from libc.stdint cimport uint8_t

from kvstore.core.records cimport Parts


cdef class Collector:
    cdef int take(self, const uint8_t *record, Parts *p, object unpack) except -1
