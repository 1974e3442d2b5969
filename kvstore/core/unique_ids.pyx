# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Unique ids: the ids of messages that a producer gave none.

The idea: an id is upper-case hex text in the form that RocketMQ uses.

    address 4 or 16 | process id 2 | token 4 | ms since the month began 4 | counter 2

Its prefix stays the same; the last 6 bytes are a number. A put takes numbers; the text is made when
somebody asks. A millisecond has 65,536 ids; when they are used up, the time in the id goes on by
1 ms. The parts are for people who read a trace: the store never takes an id apart, and a producer
may give any other text. (RocketMQ: MessageClientIDSetter.)

Invariant: no id comes twice from one source within a month, even with a clock that stands still or
goes back. In later months the same time comes again, and an id does if the counter agrees as well.
"""

cimport cython
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    IDS_OF_MS = 1 << 16
    DAY_MS = 86_400_000
    # Days from 0000-03-01 to 1970-01-01; days of 400, 100 and 4 years.
    EPOCH_DAY = 719468
    DAYS_400 = 146097
    DAYS_100 = 36524
    DAYS_4 = 1460

cdef const char *_DIGITS = b"0123456789ABCDEF"


cdef int64_t _month_start_ms(int64_t now_ms) noexcept nogil:
    # When the month of a time began, in UTC: from the day of a year that begins in March.
    # (Hinnant: chrono-Compatible Low-Level Date Algorithms.)
    cdef int64_t day = now_ms // DAY_MS + EPOCH_DAY, of_era = day % DAYS_400, of_year, year
    year = (of_era - of_era // DAYS_4 + of_era // DAYS_100 - of_era // (DAYS_400 - 1)) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    day += (153 * ((5 * of_year + 2) // 153) + 2) // 5 - EPOCH_DAY - of_year
    # Without a sign: the month of the earliest time there is began before it.
    return <int64_t>(<uint64_t>day * <uint64_t>DAY_MS)


@cython.final
cdef class UniqueIds:
    def __cinit__(self, bytes address not None, pid, token):
        if len(address) not in (4, 16):
            raise ValueError(f"an address takes 4 or 16 bytes, not {len(address)}")
        self.prefix = f"{address.hex()}{pid & 0xFFFF:04x}{token & 0xFFFFFFFF:08x}".upper()
        self._now = INT64_MIN

    cdef uint64_t take(self, int64_t now_ms) noexcept:
        cdef uint64_t found
        if now_ms > self._now:
            self._begin(now_ms)
        elif self._used == IDS_OF_MS:
            self._begin(<int64_t>(<uint64_t>self._now + 1))
        found = self._time << 16 | self._counter
        self._used += 1
        self._counter = (self._counter + 1) & 0xFFFF
        return found

    cdef void _begin(self, int64_t now_ms) noexcept:
        self._now = now_ms
        self._used = 0
        self._time = <uint32_t>(<uint64_t>now_ms - <uint64_t>_month_start_ms(now_ms))

    def make(self, int64_t now_ms, Py_ssize_t count):
        return [f"{self.prefix}{self.take(now_ms):012X}" for _ in range(count)]


cdef void write_id_number(uint64_t number, uint8_t *out) noexcept nogil:
    cdef int digit
    for digit in range(ID_DIGITS):
        out[digit] = <uint8_t>_DIGITS[number >> 4 * (ID_DIGITS - 1 - digit) & 0xF]
