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
    cdef public object deliver_at
    cdef public object delay
    cdef public object delay_level
    cdef public object expires_at
    cdef public object dedup_id


cdef class PutResult:
    # The id; the prefix of one, where `_number` is its rest.
    cdef object _id
    cdef int64_t _number
    cdef public object topic
    cdef public int64_t queue
    cdef public int64_t offset
    cdef public int64_t position
    cdef public int64_t size
    cdef public object status
    cdef public bint duplicate


# The fields of any value that names them in `__match_args__`, its text, and it with some changed.
cdef tuple fields_of(object value)
cdef str shown(object value)
cdef object replaced(object value, dict changes)
