# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Group heads: the fixed columns of a group of an archive -> a table of numbers, one row a field.

The idea: a table has the rows that `record_columns` joins into records, in that order, so that
nothing stands between the two. Columns are decoded into their rows, and what they state by
differences (offsets from the directory's first ones, times from a line or from store times) is
added up there. docs/archive.md has the layout.

Invariants: nothing is allocated before the number of rows is known to be the directory's; the
offsets of each block are those of the directory; every number fits its field of a record.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from kvstore.core.buffers cimport View, numbers_of, room_of
from kvstore.core.columns.int_columns cimport Cursor, cut_short, take_signed
from kvstore.core.columns.record_columns cimport (
    BORN_AT, BORN_HOST, FLAGS, NUMBERS, OFFSET, POSITION, PREPARED_POSITION, QUEUE,
    RECONSUME_TIMES, STORED_AT, STORE_HOST, SYSTEM_FLAGS, VERSION,
)

import numpy as np

from kvstore.errors import ArchiveDamaged

cdef enum:
    # Formats of a group, kinds of columns and limits, as tiering.archive.layout has them.
    COLUMNS = 1
    VERBATIM = 255
    CONSTANT = 0
    BY_BLOCK = 4
    LINE = 5
    ROWS_MAX = 0x10000
    BODIES_MAX = 0x40000000

cdef object _empty = np.empty
cdef object _zeros = np.zeros
cdef object _int64 = np.dtype(np.int64)
cdef uint64_t _INT64_MAX = 0x7FFFFFFFFFFFFFFF

# Usually the same in all rows of a group, in the order of their columns.
cdef int[7] _FIELDS = [
    FLAGS, SYSTEM_FLAGS, VERSION, RECONSUME_TIMES, PREPARED_POSITION, BORN_HOST, STORE_HOST
]


cdef inline int64_t _plus(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef class Payload(Cursor):
    # With the blocks that the rows belong to.
    cdef Py_ssize_t rows, blocks
    cdef View counts
    cdef const int64_t *count_of

    cdef bint take_kind(self, int kind) except -1:
        # Whether the next column is of that kind, whose byte is then read.
        if self.at >= self.size:
            raise cut_short()
        if self.data[self.at] != kind:
            return False
        self.at += 1
        return True

    cdef int head(self) except -1:
        # The format; raises unless there are as many rows as the directory says.
        cdef uint64_t rows
        cdef Py_ssize_t i
        cdef int kind
        self.rows, self.blocks = 0, self.counts.count
        for i in range(self.blocks):
            if self.count_of[i] < 1:
                self.blocks = 0
                break
            self.rows = <Py_ssize_t>min(self.rows + min(self.count_of[i], ROWS_MAX), 2 * ROWS_MAX)
        if not self.blocks:
            raise ArchiveDamaged("it has a block without messages, as the directory says")
        rows = self.number()
        if not 1 <= rows <= ROWS_MAX:
            raise ArchiveDamaged(f"it has {rows} messages, 1 to {<int>ROWS_MAX} may be")
        if rows != <uint64_t>self.rows:
            raise ArchiveDamaged(f"it has {rows} messages instead of {self.rows}")
        kind = self.data[0]
        if kind != COLUMNS and kind != VERBATIM:
            raise ArchiveDamaged(f"its fixed part is of format {kind}, which there is not")
        return kind

    cdef int offsets(self, int64_t *out, const int64_t *firsts, const int64_t *lasts) except -1:
        # From how many offsets are missing before each in its block.
        cdef Py_ssize_t block, i, begin = 0, end
        self.column(out, self.rows)
        for block in range(self.blocks):
            end = begin + self.count_of[block]
            for i in range(begin, end):
                out[i] = _plus(_plus(out[i], firsts[block]), i - begin)
            if out[begin] != firsts[block] or out[end - 1] != lasts[block]:
                raise ArchiveDamaged(
                    f"it holds offsets {out[begin]} to {out[end - 1]}, which the directory does"
                    " not say"
                )
            begin = end
        return 0

    cdef int by_block(self, int64_t *out, int64_t *scratch) except -1:
        # Maybe as first values and differences of blocks. `scratch` has a place a row.
        cdef Py_ssize_t block, i, begin = 0, end, step = self.blocks
        if not self.take_kind(BY_BLOCK):
            return self.column(out, self.rows)
        self.column(scratch, self.blocks)
        # Each difference stands behind the row that it is for, or in it.
        self.column(out + self.blocks, self.rows - self.blocks)
        for block in range(self.blocks):
            end = begin + self.count_of[block]
            out[begin] = scratch[block]
            for i in range(begin + 1, end):
                out[i] = _plus(out[i - 1], out[step])
                step += 1
            begin = end
        return 0

    cdef int times(self, int64_t *out, const int64_t *positions, int64_t *scratch) except -1:
        # Maybe as distances from a line between the least position and the greatest.
        cdef int64_t first, takes, least = positions[0], most = positions[0], length, product
        cdef Py_ssize_t i
        if not self.take_kind(LINE):
            return self.by_block(out, scratch)
        take_signed(self.data, self.size, &self.at, &first)
        take_signed(self.data, self.size, &self.at, &takes)
        self.column(out, self.rows)
        for i in range(1, self.rows):
            least, most = min(least, positions[i]), max(most, positions[i])
        length = <int64_t>((<uint64_t>most - <uint64_t>least) & _INT64_MAX)
        length = max(length, 1)
        for i in range(self.rows):
            # A time beyond 64 bits wraps: it is no real time then, but no error either.
            product = <int64_t>((<uint64_t>positions[i] - <uint64_t>least) * <uint64_t>takes)
            out[i] = _plus(out[i], _plus(first, product // length))
        return 0

    cdef int bodies(self, int64_t *ends) except -1:
        # The bounds of bodies, from their lengths.
        cdef Py_ssize_t i
        self.column(ends + 1, self.rows)
        ends[0] = 0
        for i in range(1, self.rows + 1):
            if not 0 <= ends[i] <= BODIES_MAX - ends[i - 1]:
                raise ArchiveDamaged(
                    f"bodies in a block take more than the {<int>BODIES_MAX} bytes there are"
                )
            ends[i] += ends[i - 1]
        return 0


def decode_heads(bytes data not None, queues, counts, first_offsets, last_offsets):
    cdef View of_queues = numbers_of(queues), firsts = numbers_of(first_offsets)
    cdef View lasts = numbers_of(last_offsets), room, bounds
    cdef Payload payload = Payload.__new__(Payload)
    cdef Py_ssize_t rows, i, block, begin = 0
    cdef int64_t *table
    cdef int64_t value
    cdef int kind
    cdef bint is_constant = True, is_wrong = False
    # The first byte is the format.
    payload.begin(data, 1)
    payload.counts = numbers_of(counts)
    payload.count_of = payload.counts.numbers
    if not payload.counts.count == of_queues.count == firsts.count == lasts.count:
        raise ValueError("every block has a queue, a number of messages, a first and a last offset")
    kind = payload.head()
    rows = payload.rows
    numbers = (_zeros if kind == VERBATIM else _empty)((<int>NUMBERS, rows), _int64)
    ends = _empty(rows + 1, _int64)
    room, bounds = room_of(numbers), room_of(ends)
    table = room.numbers
    for block in range(payload.blocks):
        for i in range(begin, begin + payload.count_of[block]):
            table[QUEUE * rows + i] = of_queues.numbers[block]
        begin += payload.count_of[block]
    payload.offsets(table + OFFSET * rows, firsts.numbers, lasts.numbers)
    payload.by_block(table + POSITION * rows, bounds.numbers)
    payload.times(table + STORED_AT * rows, table + POSITION * rows, bounds.numbers)
    if kind == VERBATIM:
        payload.bodies(bounds.numbers)
        return numbers, ends, True, False, payload.at
    payload.column(table + BORN_AT * rows, rows)
    for i in range(rows):
        table[BORN_AT * rows + i] = _plus(table[BORN_AT * rows + i], table[STORED_AT * rows + i])
    payload.bodies(bounds.numbers)
    for kind in _FIELDS:
        is_constant &= payload.at < payload.size and data[payload.at] == CONSTANT
        payload.column(table + kind * rows, rows)
    for i in range(rows):
        is_wrong |= (
            table[FLAGS * rows + i] | table[SYSTEM_FLAGS * rows + i]
            | _plus(table[RECONSUME_TIMES * rows + i], 0x80000000)
        ) & ~<int64_t>0xFFFFFFFF != 0
        value = table[VERSION * rows + i]
        is_wrong |= value != 1 and value != 2
    if is_wrong:
        raise ArchiveDamaged("it has a number that does not fit its field")
    return numbers, ends, False, is_constant, payload.at
