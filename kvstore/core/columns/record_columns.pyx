# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Record columns: properties fields and whole records, joined from the columns of many.

The idea: the inverse of `packed_texts.split_fields`, and of the columns of head fields that
archives keep. One pass measures every row; a second one writes all rows side by side into bytes of
that size. `place_records` copies such records to the places at which they stood in a log.

Invariants: no column is read beyond its end; what is written is what was measured, and lies in its
room.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kvstore.core.buffers cimport (
    View, index_of, numbers_of, room_of, store_be32, store_be64, view_of,
)
from kvstore.core.crc cimport crc32_of
from kvstore.core.records cimport (
    BORN_V6, HEAD_SIZE, RECORD_CRC_MASK, RECORD_V1, RECORD_V2, STORE_V6, V6_EXTRA,
)

import numpy as np

cdef enum:
    NAME_END = 1
    VALUE_END = 2
    TOPIC_MAX_V1 = 127
    LENGTH_MAX = 32767

cdef object _empty = np.empty
cdef object _int64 = np.dtype(np.int64)
cdef int64_t _SIZE_MAX = <int64_t>1 << 48


cdef class Texts:
    # Texts side by side, checked.
    cdef View data, borders
    cdef const uint8_t *bytes
    cdef const int64_t *bounds
    cdef Py_ssize_t count


cdef Texts _texts(object data, object bounds):
    cdef Texts found = Texts.__new__(Texts)
    cdef Py_ssize_t i
    cdef bint is_good
    found.data, found.borders = view_of(data), numbers_of(bounds)
    found.bytes, found.bounds = found.data.bytes, found.borders.numbers
    found.count = found.borders.count - 1
    is_good = found.count >= 0 and found.bounds[0] >= 0
    if is_good:
        is_good = found.bounds[found.count] <= found.data.size
        for i in range(found.count):
            is_good &= found.bounds[i] <= found.bounds[i + 1]
    if not is_good:
        raise ValueError("texts must lie in their buffer, side by side")
    return found


# --- properties fields ---


cdef struct Column:
    const uint8_t *bytes
    const int64_t *bounds
    Py_ssize_t count
    Py_ssize_t at


cdef struct Pair:
    # The bytes before a value, and the column that has the value.
    const uint8_t *before
    Py_ssize_t size
    Py_ssize_t column


cdef class _Forms:
    # The pairs of each shape: those of shape i begin at firsts[i].
    cdef list kept
    cdef Column *columns
    cdef Pair *pairs
    cdef Py_ssize_t *firsts
    cdef Py_ssize_t shapes, width

    def __cinit__(self, tuple shapes not None, dict columns not None):
        cdef Py_ssize_t n = 0, i
        cdef Texts texts
        cdef tuple shape, names
        cdef View view
        self.kept, self.shapes, self.width = [], len(shapes), len(columns)
        self.columns = <Column *>malloc(max(1, self.width) * sizeof(Column))
        self.firsts = <Py_ssize_t *>malloc((self.shapes + 1) * sizeof(Py_ssize_t))
        for shape in shapes:
            n += max(len(shape), 1)
        self.pairs = <Pair *>malloc(max(1, n) * sizeof(Pair))
        if self.columns == NULL or self.firsts == NULL or self.pairs == NULL:
            raise MemoryError
        numbers = {}
        for i, (name, (data, bounds)) in enumerate(columns.items()):
            texts = _texts(data, bounds)
            self.kept.append(texts)
            numbers[name] = i
            self.columns[i] = Column(texts.bytes, texts.bounds, texts.count, 0)
        n = 0
        for i, shape in enumerate(shapes):
            self.firsts[i] = n
            end = shape[len(shape) - 1] if shape else None
            if end not in (b"\0", b"\1", b"\2"):
                raise ValueError("a shape has no ending")
            names = (b"",) if end == b"\2" else shape[:len(shape) - 1]
            for place, name in enumerate(names):
                before = b"" if end == b"\2" else (b"\2" if place else b"") + name + b"\1"
                view = view_of(before)
                self.kept.append(view)
                if name not in numbers:
                    raise ValueError("a shape has a name without a column")
                self.pairs[n] = Pair(view.bytes, view.size, numbers[name])
                n += 1
            if names and end == b"\1":
                # Behind the last value, and no value of its own.
                view = view_of(b"\2")
                self.kept.append(view)
                self.pairs[n] = Pair(view.bytes, view.size, -1)
                n += 1
        self.firsts[self.shapes] = n

    def __dealloc__(self):
        free(self.columns)
        free(self.firsts)
        free(self.pairs)

    cdef int64_t measure(
        self, const int64_t *shape_of, Py_ssize_t rows, int64_t *ends
    ) noexcept nogil:
        # The size of all rows; -1 if a column ends before, or a shape is not there.
        cdef int64_t size = 0
        cdef Py_ssize_t row, i
        cdef Column *column
        for i in range(self.width):
            self.columns[i].at = 0
        for row in range(rows):
            if not 0 <= shape_of[row] < self.shapes:
                return -1
            for i in range(self.firsts[shape_of[row]], self.firsts[shape_of[row] + 1]):
                size += self.pairs[i].size
                if self.pairs[i].column < 0:
                    continue
                column = &self.columns[self.pairs[i].column]
                if column.at >= column.count:
                    return -1
                size += column.bounds[column.at + 1] - column.bounds[column.at]
                column.at += 1
            if size > _SIZE_MAX:
                return size
            ends[row] = size
        return size

    cdef void write(self, const int64_t *shape_of, Py_ssize_t rows, uint8_t *out) noexcept nogil:
        cdef Py_ssize_t row, i, size
        cdef Column *column
        for i in range(self.width):
            self.columns[i].at = 0
        for row in range(rows):
            for i in range(self.firsts[shape_of[row]], self.firsts[shape_of[row] + 1]):
                memcpy(out, self.pairs[i].before, self.pairs[i].size)
                out += self.pairs[i].size
                if self.pairs[i].column < 0:
                    continue
                column = &self.columns[self.pairs[i].column]
                size = column.bounds[column.at + 1] - column.bounds[column.at]
                memcpy(out, column.bytes + column.bounds[column.at], size)
                out += size
                column.at += 1


def join_fields(list shapes not None, shape_of, dict columns not None):
    # A copy: nobody changes it between its measure and its use.
    cdef _Forms forms = _Forms(tuple(shapes), columns)
    cdef View which = numbers_of(shape_of)
    bounds = _empty(which.count + 1, _int64)
    cdef View room = room_of(bounds)
    cdef int64_t size
    room.numbers[0] = 0
    with nogil:
        size = forms.measure(which.numbers, which.count, room.numbers + 1)
    if size < 0:
        raise ValueError("columns must have a value for each name of each row's shape")
    if size > _SIZE_MAX:
        raise MemoryError
    joined = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(joined)
    with nogil:
        forms.write(which.numbers, which.count, out)
    return joined, bounds


# --- records ---


cdef inline uint8_t *_put_host(
    uint8_t *out, int64_t host, const uint8_t *more, Py_ssize_t *at, bint is_v6
) noexcept nogil:
    store_be64(out, <uint64_t>host)
    if not is_v6:
        return out + 8
    memcpy(out + 8, more + at[0], V6_EXTRA)
    at[0] += V6_EXTRA
    return out + 8 + V6_EXTRA


def join_records(
    numbers, crcs, topics, topic_bounds, topic_of, bodies, body_bounds, properties,
    property_bounds, born_more, store_more,
):
    cdef View heads = numbers_of(numbers), which = numbers_of(topic_of)
    cdef View born = view_of(born_more), store = view_of(store_more)
    cdef View stated = None if crcs is None else numbers_of(crcs)
    cdef Texts names = _texts(topics, topic_bounds), body = _texts(bodies, body_bounds)
    cdef Texts fields = _texts(properties, property_bounds)
    cdef Py_ssize_t rows = body.count, row, born_at = 0, store_at = 0
    cdef int64_t total = 0, flags, topic, size, body_size, topic_size, field_size
    cdef const int64_t *of = heads.numbers
    cdef const int64_t *crc_of = NULL
    cdef uint8_t *out
    cdef uint8_t *end
    cdef uint32_t crc
    cdef bint is_first, is_good = True
    if (
        heads.count != NUMBERS * rows or which.count != rows or fields.count != rows
        or (stated is not None and stated.count != rows)
    ):
        raise ValueError("every column must have one value a record")
    if stated is not None:
        crc_of = stated.numbers
    bounds = _empty(rows + 1, _int64)
    cdef View room = room_of(bounds)
    room.numbers[0] = 0
    for row in range(rows):
        flags, topic = of[SYSTEM_FLAGS * rows + row], which.numbers[row]
        if not 0 <= topic < names.count:
            raise ValueError("a record has no topic")
        is_first = of[VERSION * rows + row] == 1
        topic_size = names.bounds[topic + 1] - names.bounds[topic]
        field_size = fields.bounds[row + 1] - fields.bounds[row]
        is_good &= topic_size <= (TOPIC_MAX_V1 if is_first else LENGTH_MAX)
        is_good &= field_size <= LENGTH_MAX
        born_at += V6_EXTRA if flags & BORN_V6 else 0
        store_at += V6_EXTRA if flags & STORE_V6 else 0
        total += HEAD_SIZE
        total += V6_EXTRA if flags & BORN_V6 else 0
        total += V6_EXTRA if flags & STORE_V6 else 0
        total += body.bounds[row + 1] - body.bounds[row] + topic_size + field_size
        total += 3 if is_first else 4
        if total > _SIZE_MAX:
            raise MemoryError
        room.numbers[row + 1] = total
    if not is_good or born_at > born.size or store_at > store.size:
        raise ValueError("a topic or properties are too long for a record, or a host is not there")
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(joined)
    born_at = store_at = 0
    with nogil:
        for row in range(rows):
            size = room.numbers[row + 1] - room.numbers[row]
            flags, topic = of[SYSTEM_FLAGS * rows + row], which.numbers[row]
            is_first = of[VERSION * rows + row] == 1
            body_size = body.bounds[row + 1] - body.bounds[row]
            topic_size = names.bounds[topic + 1] - names.bounds[topic]
            field_size = fields.bounds[row + 1] - fields.bounds[row]
            store_be32(out, <uint32_t>size)
            store_be32(out + 4, RECORD_V1 if is_first else RECORD_V2)
            if crc_of != NULL:
                crc = <uint32_t>crc_of[row]
            else:
                crc = crc32_of(body.bytes + body.bounds[row], body_size) & RECORD_CRC_MASK
            store_be32(out + 8, crc)
            store_be32(out + 12, <uint32_t>of[QUEUE * rows + row])
            store_be32(out + 16, <uint32_t>of[FLAGS * rows + row])
            store_be64(out + 20, <uint64_t>of[OFFSET * rows + row])
            store_be64(out + 28, <uint64_t>of[POSITION * rows + row])
            store_be32(out + 36, <uint32_t>flags)
            store_be64(out + 40, <uint64_t>of[BORN_AT * rows + row])
            end = _put_host(
                out + 48, of[BORN_HOST * rows + row], born.bytes, &born_at, flags & BORN_V6 != 0
            )
            store_be64(end, <uint64_t>of[STORED_AT * rows + row])
            end = _put_host(
                end + 8, of[STORE_HOST * rows + row], store.bytes, &store_at, flags & STORE_V6 != 0
            )
            store_be32(end, <uint32_t>of[RECONSUME_TIMES * rows + row])
            store_be64(end + 4, <uint64_t>of[PREPARED_POSITION * rows + row])
            store_be32(end + 12, <uint32_t>body_size)
            end += 16
            memcpy(end, body.bytes + body.bounds[row], body_size)
            end += body_size
            if not is_first:
                end[0] = <uint8_t>(topic_size >> 8)
                end += 1
            end[0] = <uint8_t>topic_size
            memcpy(end + 1, names.bytes + names.bounds[topic], topic_size)
            end += 1 + topic_size
            end[0], end[1] = <uint8_t>(field_size >> 8), <uint8_t>field_size
            memcpy(end + 2, fields.bytes + fields.bounds[row], field_size)
            out += size
    return joined, bounds


# --- records at their places ---

def place_records(room, base, positions, bytes data not None, bounds):
    cdef View into = room_of(room), at = numbers_of(positions)
    cdef Texts records = _texts(data, bounds)
    cdef Py_ssize_t row, index, placed = 0, size
    cdef int64_t begin = base
    if at.count != records.count:
        raise ValueError("there must be a position for each record")
    with nogil:
        for row in range(records.count):
            index = index_of(at.numbers[row], begin)
            if not 0 <= index < into.size:
                continue
            size = records.bounds[row + 1] - records.bounds[row]
            if size > into.size - index:
                placed = -1
                break
            memcpy(into.bytes + index, records.bytes + records.bounds[row], size)
            placed += 1
    if placed < 0:
        raise ValueError("a record does not end where its room does")
    return placed
