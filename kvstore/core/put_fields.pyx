# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put fields: the numbers of a message to put, checked, and the time at which it is due.

The idea: encoding of messages and of columns checks a number here, by one rule for each.

Invariant: a due time is 0, for now, or later than now and at most 40 years later.
"""

from cpython.object cimport PyObject
from libc.math cimport ceil
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kvstore.core.put_values cimport Message

from kvstore.core.names import DELAY_LEVELS_MS, DATES_BEGIN, DATES_END

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef enum:
    LEVELS = 18

cdef int64_t _times_begin = DATES_BEGIN, _times_end = DATES_END
# 40 years of 365.25 days.
cdef int64_t _DELAY_MAX = 1_262_304_000_000
cdef int64_t _levels[LEVELS]
_levels = DELAY_LEVELS_MS


cdef int refuse(const char *why) except -1 nogil:
    with gil:
        raise ValueError(why.decode())


cdef Message message_of(object message):
    # Of a class derived from Message, which may compute fields.
    if not isinstance(message, Message):
        refuse("not all are messages")
    return Message(*[getattr(message, name) for name in Message.__match_args__])


cdef int64_t number_within(object given, int64_t largest) except -1:
    cdef int overflow = 0
    cdef int64_t found
    if type(given) is not int:
        refuse("not a whole number")
    found = PyLong_AsLongLongAndOverflow(given, &overflow)
    if overflow or not 0 <= found <= largest:
        refuse("a number out of its range")
    return found


cdef int64_t number_or_none(object given, int64_t largest) except? -1:
    # -1 for None.
    return -1 if given is None else number_within(given, largest)


cdef bint is_delayed(Message message) noexcept:
    return (
        message.deliver_at is not None or message.delay is not None
        or message.delay_level is not None
    )


cdef int64_t due_of(Message message, int64_t now_ms, int64_t cut_ms) except -1:
    # A delay begins at the latest that the time can be, so that it never ends early.
    cdef int64_t delay
    cdef double seconds
    if message.deliver_at is not None:
        if message.delay is not None or message.delay_level is not None:
            refuse("two delays")
        return due_at(number_within(message.deliver_at, _times_end - 1), now_ms)
    if message.delay_level is not None:
        if message.delay is not None:
            refuse("two delays")
        delay = number_within(message.delay_level, LEVELS)
        if not delay:
            refuse("no delay level")
        return now_ms + cut_ms + _levels[delay - 1]
    if type(message.delay) is not float and type(message.delay) is not int:
        refuse("the delay is no number")
    seconds = message.delay
    if not 0 <= seconds <= _DELAY_MAX / 1000:
        refuse("a delay out of its range")
    # As `clock.whole_ms`: 0.069 s, times 1,000, is 69.00000000000001.
    delay = <int64_t>ceil(seconds * 1000 - 1e-6)
    return now_ms + cut_ms + delay if delay > 0 else 0


cdef bint is_time(int64_t time) noexcept nogil:
    return _times_begin <= time < _times_end


cdef int64_t due_at(int64_t due, int64_t now_ms) except -1 nogil:
    if not is_time(due) or due - now_ms > _DELAY_MAX:
        refuse("a time out of its range")
    return due if due > now_ms else 0


cdef int write_digits(int64_t number, int digits, uint8_t *out) noexcept nogil:
    # The number in decimal, with zeros before it.
    cdef uint64_t left = <uint64_t>number
    cdef int i
    for i in range(digits - 1, -1, -1):
        out[i] = <uint8_t>(48 + left % 10)
        left //= 10
    return digits
