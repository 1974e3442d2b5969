# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Texts: whether bytes are UTF-8, one of a few names, or a text that a property may have.

The idea: all are asked of bytes that are no objects of Python, while other threads run.

Invariant: `is_utf8` says what Python's own strict decoder says.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from kvstore.core.hashing cimport xxh32_of


@cython.final
cdef class NameSet:
    def __cinit__(self, names):
        cdef bytes name
        cdef uint64_t slot
        self._slots = NumberMap()
        self._names = b""
        for name in sorted([text.encode() for text in names]):
            slot = xxh32_of(<const uint8_t *><const char *>name, len(name))
            if len(name) > 255 or self._slots.find(slot) >= 0:
                raise ValueError(f"the name {name!r} is too long, or has the hash of another")
            self._slots.put(slot, len(self._names))
            self._names += bytes((len(name),)) + name
        self._at = <const uint8_t *><const char *>self._names

    cdef bint has(self, const uint8_t *at, Py_ssize_t size) noexcept nogil:
        cdef int64_t slot = self._slots.find(xxh32_of(at, size))
        cdef const uint8_t *known
        if slot < 0:
            return False
        known = self._at + slot
        return known[0] == size and memcmp(known + 1, at, size) == 0


cdef bint is_utf8(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef uint64_t word
    cdef uint8_t first, least, most
    cdef int more, i
    while at < end:
        if at[0] < 0x80:
            if end - at >= 8:
                memcpy(&word, at, 8)
                at += 1 if word & <uint64_t>0x8080808080808080 else 8
            else:
                at += 1
            continue
        first = at[0]
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if end - at <= more:
            return False
        # Neither longer than it need be, nor half of a pair, nor beyond the last character.
        least = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        most = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if not least <= at[1] <= most:
            return False
        for i in range(2, more + 1):
            if at[i] & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


cdef int copy_text(
    uint8_t *copy, const uint8_t *at, Py_ssize_t size, bint blanks
) noexcept nogil:
    # Copies a text to where it and one more word have room, and checks the copy: -1 if it is empty
    # or has one of the characters that separate, 1 if it has more than ASCII, else 0.
    cdef Py_ssize_t i = 0
    cdef uint64_t ones = 0x0101010101010101, high_bits = 0x8080808080808080
    cdef uint64_t word, found = 0, beyond = 0, blank
    memcpy(copy, at, size)
    # The last word goes on behind the text, with letters.
    memset(copy + size, c"A", WORD)
    while i < size:
        memcpy(&word, copy + i, WORD)
        beyond |= word
        # The high bit of a byte is set where it is less than 3, or the blank.
        found |= word - 3 * ones & ~word
        blank = word ^ c" " * ones
        found |= 0 if blanks else blank - ones & ~blank
        i += WORD
    if found & high_bits or not size:
        return -1
    return 1 if beyond & high_bits else 0
