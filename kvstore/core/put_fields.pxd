"""See put_fields.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kvstore.core.put_values cimport Message


cdef enum:
    # Digits of the queue that a pending message goes to, and of its due time in ms.
    QUEUE_DIGITS = 10
    DUE_DIGITS = 13


cdef struct Times:
    # The times in ms that a caller may give: from `begin` to before `end`. The clock's time may be
    # `cut` ahead of that of a put.
    int64_t begin, end, cut


cdef int refuse(const char *why) except -1 nogil
cdef Message message_of(object message)
cdef int64_t number_within(object given, int64_t largest) except -1
cdef int64_t number_or_none(object given, int64_t largest) except? -1
cdef bint is_delayed(Message message) noexcept
cdef Times times_of(bint any_time, int64_t cut_ms)
cdef int64_t due_of(Message message, int64_t now_ms, const Times *times) except -1
cdef int check_time(int64_t time, const Times *times) except -1 nogil
cdef int64_t due_at(int64_t due, int64_t now_ms, const Times *times) except -1 nogil
cdef int write_digits(int64_t number, int digits, uint8_t *out) noexcept nogil
