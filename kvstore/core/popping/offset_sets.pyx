# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""Sets of offsets: the messages of a queue that are locked or parked, one bit each.

The idea: bits lie in pages of 256, and a `Shelf` finds the lowest page that has a bit. So the
lowest offset that is not done is known without a look at any row, however many there are. A `Shelf`
keeps numbers, each with a value, and finds the lowest whose value is not 0: pages, or stretches of
time with their due rows.

Invariants: a number of a `Shelf` whose value went to 0 stays for a while, because mostly it comes
back; there are never more of these than half of all plus 64.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memset

from kvstore.core.buffers cimport load_be64

cdef extern from *:
    int popcount "__builtin_popcountll"(uint64_t word) noexcept nogil
    int trailing_zeros "__builtin_ctzll"(uint64_t word) noexcept nogil

cdef enum:
    PAGE_BITS = 8
    PAGE = 1 << PAGE_BITS
    IN_PAGE = PAGE - 1
    WORDS = BITMAP_WORDS

cdef object _ALL = (<object>1 << PAGE) - 1
cdef object _WORD_MAX = (<object>1 << 64) - 1
# How many of a shelf's values may be 0, beside half of them.
EMPTY_MAX = 64


cdef int load_bits(object bits, uint64_t *words) except -1:
    # A bitmap as 4 words, the lowest first.
    cdef Py_ssize_t i
    cdef bytes raw
    if 0 <= bits <= _WORD_MAX:
        words[0] = bits
        words[1] = words[2] = words[3] = 0
        return 0
    if bits < 0 or bits > _ALL:
        raise ValueError(f"a bitmap of {PAGE} bits can't be {bits:#x}")
    raw = bits.to_bytes(PAGE >> 3, "big")
    for i in range(WORDS):
        words[WORDS - 1 - i] = load_be64(<const uint8_t *>PyBytes_AS_STRING(raw) + 8 * i)
    return 0


cdef object _bits_of(const uint64_t *words):
    cdef object bits = words[WORDS - 1]
    cdef int i
    for i in range(WORDS - 2, -1, -1):
        bits = bits << 64 | words[i]
    return bits


cdef class Shelf:
    def __cinit__(self):
        self.values, self._order, self._empty = {}, [], 0

    cpdef put(self, number, value):
        self._set(number, self.values.get(number), value)

    cpdef add(self, number, by):
        cdef object old = self.values.get(number)
        self._set(number, old, by if old is None else old + by)

    cdef _set(self, number, old, value):
        self.values[number] = value
        if old is None:
            self._push(number)
            self._empty += not value
            self._tidy()
        elif not old:
            self._empty -= bool(value)
        elif not value:
            self._empty += 1
            self._tidy()

    cdef _turn(self, bint is_empty):
        # A value that is still there became empty, or is not any more.
        self._empty += 1 if is_empty else -1
        if is_empty:
            self._tidy()

    cdef _tidy(self):
        if self._empty > EMPTY_MAX + (len(self.values) >> 1):
            self.values = {number: value for number, value in self.values.items() if value}
            self._order = sorted(self.values)
            self._empty = 0

    cpdef first(self):
        while self._order:
            lowest = self._order[0]
            if self.values[lowest]:
                return lowest
            del self.values[lowest]
            self._empty -= 1
            self._drop_first()
        return None

    cdef _push(self, number):
        cdef list order = self._order
        cdef Py_ssize_t at = len(order), above
        order.append(number)
        while at and number < order[(at - 1) >> 1]:
            above = (at - 1) >> 1
            order[at] = order[above]
            at = above
        order[at] = number

    cdef _drop_first(self):
        cdef list order = self._order
        cdef object last = order.pop()
        cdef Py_ssize_t at = 0, below = 1, count = len(order)
        while below < count:
            if below + 1 < count and order[below + 1] < order[below]:
                below += 1
            if not order[below] < last:
                break
            order[at] = order[below]
            at, below = below, 2 * below + 1
        if count:
            order[at] = last

    def __len__(self):
        return len(self.values)


@cython.freelist(64)
cdef class Page:
    def __bool__(self):
        return (self.words[0] | self.words[1] | self.words[2] | self.words[3]) != 0

    cdef Py_ssize_t _count(self, Py_ssize_t before) noexcept:
        # How many of the bits before one are set.
        cdef Py_ssize_t count = 0, i
        for i in range(WORDS):
            if before >= 64 * (i + 1):
                count += popcount(self.words[i])
            elif before > 64 * i:
                count += popcount(self.words[i] & ((<uint64_t>1 << (before & 63)) - 1))
        return count


cdef class OffsetSet:
    def __cinit__(self):
        self.count, self.pages = 0, Shelf()

    cpdef add(self, int64_t first, bits):
        self.change(first, bits, True)

    cpdef remove(self, int64_t first, bits):
        self.change(first, bits, False)

    cdef int change(self, int64_t first, bits, bint add) except -1:
        cdef uint64_t words[WORDS]
        # Those of two pages, and one more.
        cdef uint64_t out[2 * WORDS + 1]
        cdef int64_t page = first >> PAGE_BITS
        cdef Py_ssize_t i, at = (first & IN_PAGE) >> 6
        cdef int by = <int>(first & 63)
        load_bits(bits, words)
        memset(out, 0, sizeof(out))
        for i in range(WORDS):
            out[at + i] |= words[i] << by
            if by:
                out[at + i + 1] |= words[i] >> (64 - by)
        self._change_page(page, out, add)
        if out[4] | out[5] | out[6] | out[7]:
            self._change_page(page + 1, out + WORDS, add)
        return 0

    cdef Page _page(self, int64_t number):
        cdef object found = self.pages.values.get(number)
        return Page.__new__(Page) if found is None else <Page>found

    cdef _change_page(self, int64_t number, const uint64_t *words, bint add):
        cdef Page page = self._page(number)
        cdef Py_ssize_t i, before = page._count(PAGE)
        for i in range(WORDS):
            page.words[i] = page.words[i] | words[i] if add else page.words[i] & ~words[i]
        self._changed(number, page, before)

    cdef _changed(self, int64_t number, Page page, Py_ssize_t before):
        cdef Py_ssize_t count = page._count(PAGE)
        self.count += count - before
        if number not in self.pages.values:
            self.pages.put(number, page)
        elif (not before) != (not count):
            self.pages._turn(not count)

    def replace(self, int64_t first, bits):
        cdef int64_t number = first >> PAGE_BITS
        cdef Page page = self._page(number)
        cdef Py_ssize_t before = page._count(PAGE)
        load_bits(bits, page.words)
        self._changed(number, page, before)

    cpdef lowest(self):
        cdef object number = self.pages.first()
        cdef Page page
        cdef int i = 0
        if number is None:
            return None
        page = <Page>self.pages.values[number]
        while not page.words[i]:
            i += 1
        return (number << PAGE_BITS) + 64 * i + trailing_zeros(page.words[i])

    def has_below(self, offset):
        lowest = self.lowest()
        return lowest is not None and lowest < offset

    cpdef within(self, int64_t first, Py_ssize_t size):
        cdef int64_t number = first >> PAGE_BITS, at = -(first & IN_PAGE)
        cdef object found = 0
        while at < size:
            page = self.pages.values.get(number)
            if page is not None:
                here = _bits_of((<Page>page).words)
                found |= here << at if at >= 0 else here >> -at
            number, at = number + 1, at + PAGE
        return found & ((<object>1 << max(size, 0)) - 1)

    def count_from(self, int64_t offset):
        cdef int64_t last = offset >> PAGE_BITS
        cdef Py_ssize_t count = self.count
        if not self.has_below(offset):
            return count
        for number, page in self.pages.values.items():
            if number <= last:
                count -= (<Page>page)._count(PAGE if number < last else offset & IN_PAGE)
        return count


cdef class QueueLocks:
    def __cinit__(self):
        self.rows, self.dues, self.gone_below = 0, None, 0
        self.locked, self.redelivered, self.parked = OffsetSet(), OffsetSet(), OffsetSet()

    def has_gone(self, low):
        if not self.locked.has_below(low):
            return False
        return self.locked.count_from(self.gone_below) > self.locked.count_from(low)

    def lowest(self):
        locked, parked = self.locked.lowest(), self.parked.lowest()
        if locked is None or parked is None:
            return parked if locked is None else locked
        return min(locked, parked)


cpdef below(offset, first, bits):
    return (bits & ((<object>1 << min(max(0, offset - first), bits.bit_length())) - 1)).bit_count()
