"""See given_columns.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from kvstore.core.arrow.abi cimport ArrowArray, ArrowSchema
from kvstore.core.records cimport Span


cdef enum Layout:
    # Of a column's values; ABSENT: there is no such column, NULLS: it is null throughout.
    ABSENT
    NULLS
    NUMBERS
    TEXTS_32
    TEXTS_64
    VIEWS
    LISTS_32
    LISTS_64


cdef enum Found:
    # A value of a column: there, null, or not where its column can have it.
    NO_VALUE
    VALUE
    OUTSIDE


cdef struct Column:
    Layout layout
    # Where the rows begin in the array's buffers, and how many there are.
    int64_t begin, count
    const uint8_t *valid
    # Numbers, bounds of texts or lists, or views; and the bytes of texts.
    const uint8_t *items
    const uint8_t *data
    # The end of the last text or list.
    int64_t limit
    # Of numbers: the letter of the format; of a time its unit, else 0.
    char letter
    char unit
    # Of views: the buffers of long texts, and their sizes.
    const void **long_texts
    const int64_t *long_sizes
    int64_t long_count
    # Numbers of texts that stand here; NULL: the texts themselves are in this column.
    Column *dictionary
    # Of lists, what they are lists of: texts, or pairs of them.
    Column *first
    Column *second


cdef struct Chunk:
    # The rows of one record batch, as columns. Those of `store` are made by the reader.
    int64_t count
    Column body, queue, tag, keys, properties, group, flags, message_id, born_at, deliver_at
    Column expires_at, dedup_id


cdef struct Owned:
    ArrowArray array
    Chunk chunk


@cython.final
cdef class GivenColumns:
    # Each at an address of its own, which its columns know.
    cdef Owned **_owned
    cdef Py_ssize_t _chunk_count
    cdef readonly Py_ssize_t count
    # Memory of the inner columns.
    cdef list _inner
    cdef int _take_stream(self, object capsule) except -1
    cdef int _add_chunk(self, ArrowSchema *schema, ArrowArray *array) except -1
    cdef int _read_chunk(self, Chunk *chunk, ArrowSchema *schema, ArrowArray *array) except -1
    cdef int _read(
        self, Column *out, ArrowSchema *schema, ArrowArray *array, int64_t begin, int64_t count,
        str name, str kinds,
    ) except -1
    cdef int _read_lists(
        self, Column *out, ArrowSchema *schema, ArrowArray *array, str name, str kinds
    ) except -1
    cdef Column *_inner_column(self) except NULL
    cdef Chunk *chunk(self, Py_ssize_t number) noexcept nogil


cdef Found text_at(const Column *column, int64_t row, Span *text) noexcept nogil
cdef bint is_beyond(const Column *column, int64_t number) noexcept nogil
cdef Found number_at(const Column *column, int64_t row, int64_t *number) noexcept nogil
cdef Found list_at(const Column *column, int64_t row, int64_t *begin, int64_t *end) noexcept nogil
