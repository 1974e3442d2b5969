"""See put_values.pyx."""

from libc.stdint cimport int64_t


cdef class Message:
    cdef public object topic
    cdef public object body
    cdef public object queue
    cdef public object tag
    cdef public object keys
    cdef public object properties
    cdef public object message_group
    cdef public object flags
    cdef public object message_id
    cdef public object born_at


cdef class PutResult:
    # The id; the beginning of one, where `_counter` has its last four digits.
    cdef object _id
    cdef int _counter
    cdef public object topic
    cdef public int64_t queue
    cdef public int64_t offset
    cdef public int64_t position
    cdef public int64_t size
    cdef public object status
