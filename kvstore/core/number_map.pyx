# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Number maps: whole numbers by whole numbers, for look-ups without objects of Python.

The idea: open addressing in two columns, at most half full, with the next place tried first. The
key is multiplied by an odd constant whose high bits choose the place (Knuth, The Art of Computer
Programming, volume 3, 6.4).

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


cdef inline Py_ssize_t _place(
    const uint64_t *keys, const int64_t *values, Py_ssize_t room, uint64_t key
) noexcept nogil:
    # The key's place, or the empty one where it would be.
    cdef Py_ssize_t at = <Py_ssize_t>(key * _SPREAD >> 20) & (room - 1)
    while values[at] != NONE and keys[at] != key:
        at = (at + 1) & (room - 1)
    return at


@cython.final
cdef class NumberMap:
    def __dealloc__(self):
        free(self._keys)
        free(self._values)

    cdef int64_t find(self, uint64_t key) noexcept nogil:
        # NONE if it is not there.
        if not self.count:
            return NONE
        return self._values[_place(self._keys, self._values, self._room, key)]

    cdef int put(self, uint64_t key, int64_t value) except -1:
        cdef Py_ssize_t at
        if 2 * self.count >= self._room:
            self._grow()
        at = _place(self._keys, self._values, self._room, key)
        if self._values[at] == NONE:
            self.count += 1
        self._keys[at] = key
        self._values[at] = value
        return 0

    cdef void empty(self) noexcept:
        free(self._keys)
        free(self._values)
        self._keys = NULL
        self._values = NULL
        self._room = self.count = 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t i, at, room = 2 * self._room if self._room else FIRST_ROOM
        cdef uint64_t *keys = <uint64_t *>malloc(room * sizeof(uint64_t))
        cdef int64_t *values = <int64_t *>malloc(room * sizeof(int64_t))
        if keys == NULL or values == NULL:
            free(keys)
            free(values)
            raise MemoryError()
        memset(values, 0xFF, room * sizeof(int64_t))
        for i in range(self._room):
            if self._values[i] != NONE:
                at = _place(keys, values, room, self._keys[i])
                keys[at] = self._keys[i]
                values[at] = self._values[i]
        free(self._keys)
        free(self._values)
        self._keys = keys
        self._values = values
        self._room = room
        return 0
