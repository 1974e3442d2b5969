# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Expiry: the time at which a message expires, as a record has it.

The idea: it is a property of one size that stands before all others. So one look at the first bytes
of the properties tells whether a record ever expires, and nearly all records end that look at their
first byte. (docs/log-format.md)

Invariant: the property is recognised at its place alone, and in its one form; anything else is a
property like others, and its message never expires.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from kvstore.core.put_fields cimport Times, check_time, write_digits

from kvstore.core.names import EXPIRES_AT

cdef enum:
    DIGITS = 13
    DIGITS_AT = EXPIRY_SIZE - 1 - DIGITS

cdef bytes _begin = EXPIRES_AT.encode() + b"\x01"
cdef const uint8_t *_begin_at = _begin
assert len(_begin) == DIGITS_AT


cdef int write_expiry(int64_t time, const Times *times, uint8_t *out) except -1 nogil:
    # The property; ValueError for a time that a caller may not give.
    check_time(time, times)
    memcpy(out, _begin_at, DIGITS_AT)
    write_digits(time, DIGITS, out + DIGITS_AT)
    out[EXPIRY_SIZE - 1] = 2
    return 0


cdef int64_t expiry_of(const uint8_t *properties, Py_ssize_t size) noexcept nogil:
    # When a record with these properties expires, in ms since the epoch; -1: never.
    cdef int64_t time = 0
    cdef uint8_t digit
    cdef int i
    if size < EXPIRY_SIZE or memcmp(properties, _begin_at, DIGITS_AT):
        return -1
    for i in range(DIGITS_AT, EXPIRY_SIZE - 1):
        digit = properties[i] - c"0"
        if digit > 9:
            return -1
        time = time * 10 + digit
    return time if properties[EXPIRY_SIZE - 1] == 2 else -1
