# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put fields: the numbers of a message to put, checked, and the time at which it is due.

The idea: encoding of messages and of columns checks a number here, by one rule for each.

Invariants: a due time is 0, for now, or later than now and at most 40 years later. A time from
before 2000, or from 2100 on, is taken to be in a wrong unit unless the store takes any time; then
one is refused that is negative, or has more digits than a record has room for.
"""

from cpython.object cimport PyObject
from libc.math cimport ceil
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kvstore.core.put_values cimport Message

from kvstore.core.names import DATES_BEGIN, DATES_END, DELAY_LEVELS_MS, DIGITS_END

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef enum:
    LEVELS = 18

cdef int64_t _dates_begin = DATES_BEGIN, _dates_end = DATES_END, _digits_end = DIGITS_END
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


cdef Times times_of(bint any_time, int64_t cut_ms):
    if any_time:
        return Times(0, _digits_end, cut_ms)
    return Times(_dates_begin, _dates_end, cut_ms)


cdef int64_t due_of(Message message, int64_t now_ms, const Times *times) except -1:
    # A delay begins at the latest that the time can be, so that it never ends early.
    cdef int64_t delay
    cdef double seconds
    if message.deliver_at is not None:
        if message.delay is not None or message.delay_level is not None:
            refuse("two delays")
        return due_at(number_within(message.deliver_at, times.end - 1), now_ms, times)
    if message.delay_level is not None:
        if message.delay is not None:
            refuse("two delays")
        delay = number_within(message.delay_level, LEVELS)
        if not delay:
            refuse("no delay level")
        return _end_of(_levels[delay - 1], now_ms, times)
    if type(message.delay) is not float and type(message.delay) is not int:
        refuse("the delay is no number")
    if type(message.delay) is int:
        # Before it becomes a float: a large one has no float.
        number_within(message.delay, _DELAY_MAX // 1000)
    seconds = message.delay
    if not 0 <= seconds <= _DELAY_MAX / 1000:
        refuse("a delay out of its range")
    # As `clock.whole_ms`: 0.069 s, times 1,000, is 69.00000000000001.
    delay = <int64_t>ceil(seconds * 1000 - 1e-6)
    return _end_of(delay, now_ms, times) if delay > 0 else 0


cdef int64_t _end_of(int64_t delay, int64_t now_ms, const Times *times) except -1:
    cdef int64_t end = now_ms + times.cut + delay
    if end >= times.end:
        refuse("a delay that ends out of its range")
    return end


cdef int check_time(int64_t time, const Times *times) except -1 nogil:
    if not times.begin <= time < times.end:
        refuse("a time out of its range")
    return 0


cdef int64_t due_at(int64_t due, int64_t now_ms, const Times *times) except -1 nogil:
    check_time(due, times)
    if due - now_ms > _DELAY_MAX:
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
