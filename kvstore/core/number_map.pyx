# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Number maps: whole numbers by whole numbers, for look-ups without objects of Python.

The idea: open addressing, at most two thirds full, with the next place tried first. Key and value
stand side by side, so that a look-up reads one line of the processor's cache. The key is multiplied
by an odd constant, and the high bits of the product choose the place (Knuth, The Art of Computer
Programming, volume 3, 6.4): lower ones don't know the high bits of the key, where topics differ.

Invariant: a place whose value is `NONE` has no key, so nobody puts that value.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef enum:
    NONE = -1
    FIRST_ROOM = 64

cdef uint64_t _SPREAD = 0x9E3779B97F4A7C15


cdef inline Pair *_place(Pair *pairs, Py_ssize_t room, uint64_t key) noexcept nogil:
    # The key's place, or the empty one where it would be.
    cdef Py_ssize_t at = <Py_ssize_t>((key * _SPREAD >> 32) * <uint64_t>room >> 32)
    while pairs[at].value != NONE and pairs[at].key != key:
        at = (at + 1) & (room - 1)
    return pairs + at


@cython.final
cdef class NumberMap:
    def __dealloc__(self):
        free(self._pairs)

    cdef int64_t *there(self, uint64_t key) noexcept nogil:
        # The key's value, until the next `put`; NULL if the key is not there.
        cdef Pair *found
        if not self.count:
            return NULL
        found = _place(self._pairs, self._room, key)
        return NULL if found.value == NONE else &found.value

    cdef int64_t find(self, uint64_t key) noexcept nogil:
        # NONE if it is not there.
        cdef int64_t *value = self.there(key)
        return NONE if value == NULL else value[0]

    cdef int put(self, uint64_t key, int64_t value) except -1:
        cdef Pair *at
        if 3 * self.count >= 2 * self._room:
            self._grow()
        at = _place(self._pairs, self._room, key)
        self.count += at.value == NONE
        at.key = key
        at.value = value
        return 0

    cdef void empty(self) noexcept:
        free(self._pairs)
        self._pairs = NULL
        self._room = self.count = 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t i, room = 2 * self._room if self._room else FIRST_ROOM
        cdef Pair *pairs = <Pair *>malloc(room * sizeof(Pair))
        if pairs == NULL:
            raise MemoryError()
        memset(pairs, 0xFF, room * sizeof(Pair))
        for i in range(self._room):
            if self._pairs[i].value != NONE:
                _place(pairs, room, self._pairs[i].key)[0] = self._pairs[i]
        free(self._pairs)
        self._pairs = pairs
        self._room = room
        return 0
