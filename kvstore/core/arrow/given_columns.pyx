# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Given columns: what an Arrow library hands over becomes columns of C, to be read row by row.

The idea: the arrays stay where they are; a `Column` is a few pointers into one of them. Types are
checked once, for whole columns, and names with them. A value is checked when it is read, since
nothing else says whether bounds and indexes tell the truth; no other thread of Python is needed for
that. `message` gives a row as objects, for errors that name it.

Invariants: the arrays are released exactly once, when no row is read any more; a text, a list or an
index that its array's own lengths do not have is found, and not followed. (Arrow does not tell how
long most buffers are; an array that lies about its length cannot be told from a longer one.)
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcmp, strlen

from kvstore.core.arrow.abi cimport ArrowArray, ArrowArrayStream, ArrowSchema
from kvstore.core.buffers cimport grown
from kvstore.core.put_values cimport Message
from kvstore.core.records cimport Span

from kvstore.core.put_values import NO_PROPERTIES
from kvstore.errors import MessageIllegal

cdef enum:
    VIEW_SIZE = 16
    VIEW_INLINE = 12

# The types that a column may have: texts, bytes or texts, numbers, times, lists of texts, pairs of
# texts.
cdef dict _KINDS = {
    "body": "b", "queue": "n", "tag": "t", "keys": "tl", "properties": "p", "message_group": "t",
    "flags": "n", "message_id": "t", "born_at": "nz", "deliver_at": "nz", "expires_at": "nz",
    "dedup_id": "t",
}
cdef dict _MEANT = {
    "b": "binary or string", "n": "an integer", "nz": "an integer (ms) or a timestamp",
    "t": "string", "tl": "a list of strings, or string", "p": "a map of strings to strings",
}
cdef dict _TYPES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16",
    "i": "int32", "I": "uint32", "l": "int64", "L": "uint64", "e": "float16", "f": "float32",
    "g": "float64", "z": "binary", "Z": "large_binary", "vz": "binary_view", "u": "string",
    "U": "large_string", "vu": "string_view", "tdD": "date32", "tdm": "date64", "+l": "list",
    "+L": "large_list", "+s": "struct", "+m": "map",
}


cdef str _text(const char *given):
    return PyUnicode_DecodeUTF8(given, strlen(given), "replace") if given != NULL else ""


cdef str _type_of(const ArrowSchema *schema):
    cdef str found = _text(schema.format)
    found = _TYPES.get(found, f"of Arrow's format {found!r}")
    if schema.dictionary != NULL:
        return f"a dictionary of {_type_of(schema.dictionary)}"
    return found


cdef bint _is_struct(const ArrowSchema *schema) noexcept:
    return schema.format != NULL and strcmp(schema.format, "+s") == 0


cdef int _mistyped(str name, const ArrowSchema *schema, str kinds) except -1:
    raise MessageIllegal(
        f"the column {name!r} is {_type_of(schema)}; it must be {_MEANT[kinds]}"
    )


cdef int _untrue(str name) except -1:
    raise MessageIllegal(
        f"the column {name!r} is no valid Arrow array: its lengths, offsets or buffers contradict"
        " each other"
    )


@cython.final
cdef class GivenColumns:
    def __cinit__(self, batch):
        self._inner = []
        if hasattr(batch, "__arrow_c_array__"):
            schema, array = batch.__arrow_c_array__()
            self._add_chunk(
                <ArrowSchema *>PyCapsule_GetPointer(schema, "arrow_schema"),
                <ArrowArray *>PyCapsule_GetPointer(array, "arrow_array"),
            )
        elif hasattr(batch, "__arrow_c_stream__"):
            self._take_stream(batch.__arrow_c_stream__())
        else:
            raise MessageIllegal(
                f"put_columns was given a {type(batch).__name__}; it takes an Arrow record batch or"
                " table: anything with __arrow_c_array__ or __arrow_c_stream__"
            )

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._chunk_count):
            if self._owned[i].array.release != NULL:
                self._owned[i].array.release(&self._owned[i].array)
            free(self._owned[i])
        free(self._owned)

    def __len__(self):
        return self.count

    cdef int _take_stream(self, object capsule) except -1:
        # The capsule releases the stream.
        cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(
            capsule, "arrow_array_stream"
        )
        cdef ArrowSchema schema
        cdef ArrowArray array
        if stream.release == NULL:
            raise MessageIllegal("the Arrow stream was read before")
        memset(&schema, 0, sizeof(schema))
        try:
            failed = stream.get_schema(stream, &schema)
            while not failed:
                memset(&array, 0, sizeof(array))
                failed = stream.get_next(stream, &array)
                if failed or array.release == NULL:
                    break
                try:
                    self._add_chunk(&schema, &array)
                finally:
                    # It was not taken over: there was no memory, or the schema is none.
                    if array.release != NULL:
                        array.release(&array)
        finally:
            if schema.release != NULL:
                schema.release(&schema)
        if failed:
            raise MessageIllegal(f"the Arrow stream failed: {_text(stream.get_last_error(stream))}")
        return 0

    cdef int _add_chunk(self, ArrowSchema *schema, ArrowArray *array) except -1:
        # Takes the array over.
        cdef Owned *one
        if schema.release == NULL or array.release == NULL:
            raise MessageIllegal("the Arrow array was handed over before")
        self._owned = <Owned **>grown(self._owned, self._chunk_count + 1, sizeof(Owned *))
        one = <Owned *>calloc(1, sizeof(Owned))
        if one == NULL:
            raise MemoryError()
        one.array = array[0]
        array.release = NULL
        self._owned[self._chunk_count] = one
        self._chunk_count += 1
        self._read_chunk(&one.chunk, schema, &one.array)
        if one.chunk.count > INT64_MAX - self.count:
            _untrue("")
        self.count += one.chunk.count
        return 0

    cdef int _read_chunk(self, Chunk *chunk, ArrowSchema *schema, ArrowArray *array) except -1:
        cdef int64_t i
        cdef Column *column
        cdef set found = set()
        if not _is_struct(schema):
            raise MessageIllegal(
                f"put_columns was given an array that is {_type_of(schema)}; it takes record"
                " batches, or structs with one field for each column"
            )
        if (
            array.length < 0 or array.offset < 0 or array.n_buffers != 1 or array.buffers == NULL
            or array.n_children != schema.n_children or array.n_children < 0
            or array.n_children and (array.children == NULL or schema.children == NULL)
            or array.offset > INT64_MAX - array.length
        ):
            _untrue("")
        if array.null_count and array.buffers[0] != NULL:
            raise MessageIllegal("rows of the Arrow array are null; only values in it may be")
        chunk.count = array.length
        for i in range(array.n_children):
            if schema.children[i] == NULL or array.children[i] == NULL:
                _untrue("")
            name = _text(schema.children[i].name)
            if name not in _KINDS:
                raise MessageIllegal(
                    f"there is a column {name!r} ({_type_of(schema.children[i])}); columns may be"
                    f" {', '.join(_KINDS)}"
                )
            if name in found:
                raise MessageIllegal(f"there are two columns {name!r}")
            found.add(name)
            column = (
                &chunk.body if name == "body" else &chunk.queue if name == "queue"
                else &chunk.tag if name == "tag" else &chunk.keys if name == "keys"
                else &chunk.properties if name == "properties"
                else &chunk.group if name == "message_group"
                else &chunk.flags if name == "flags"
                else &chunk.message_id if name == "message_id"
                else &chunk.born_at if name == "born_at"
                else &chunk.deliver_at if name == "deliver_at"
                else &chunk.expires_at if name == "expires_at" else &chunk.dedup_id
            )
            self._read(
                column, schema.children[i], array.children[i], array.offset, array.length, name,
                _KINDS[name],
            )
        if chunk.body.layout == ABSENT:
            raise MessageIllegal("there is no column 'body'; put_columns needs one, of binary")
        return 0

    cdef Column *_inner_column(self) except NULL:
        room = bytearray(sizeof(Column))
        self._inner.append(room)
        return <Column *>PyByteArray_AS_STRING(room)

    cdef int _read(
        self, Column *out, ArrowSchema *schema, ArrowArray *array, int64_t begin, int64_t count,
        str name, str kinds,
    ) except -1:
        # Rows `begin` to `begin + count` of an array.
        cdef str form = _text(schema.format)
        cdef int64_t buffers = 2
        if (
            array.length < 0 or array.offset < 0 or array.offset > INT64_MAX - array.length - 1
            or begin > array.length - count or array.n_buffers < 0
            or array.n_buffers and array.buffers == NULL
        ):
            _untrue(name)
        out.begin, out.count = array.offset + begin, count
        if form == "n":
            if name == "body" or not name:
                _mistyped(name, schema, kinds)
            out.layout = NULLS
            return 0
        if len(form) == 1 and form in "cCsSiIlL" and ("n" in kinds or schema.dictionary != NULL):
            out.layout, out.letter = NUMBERS, schema.format[0]
        elif form[:2] == "ts" and form[3:4] == ":" and form[2] in "smun" and "z" in kinds:
            out.layout, out.letter, out.unit = NUMBERS, b"l", schema.format[2]
        elif form in ("u", "U", "z", "Z") and ("b" in kinds or form in "uU" and "t" in kinds):
            out.layout = TEXTS_32 if form in "uz" else TEXTS_64
            buffers = 3
        elif form == "vu" and ("t" in kinds or "b" in kinds) or form == "vz" and "b" in kinds:
            out.layout = VIEWS
            buffers = max(array.n_buffers, 3)
        elif form in ("+l", "+L", "+m") and ("p" in kinds or form != "+m" and "l" in kinds):
            out.layout = LISTS_64 if form == "+L" else LISTS_32
        else:
            _mistyped(name, schema, kinds)
        if array.n_buffers != buffers:
            _untrue(name)
        out.valid = <const uint8_t *>array.buffers[0]
        out.items = <const uint8_t *>array.buffers[1]
        if array.length and out.items == NULL or array.null_count > 0 and out.valid == NULL:
            _untrue(name)
        if out.layout in (TEXTS_32, TEXTS_64, LISTS_32, LISTS_64) and array.length:
            out.limit = _bound(out, array.offset + array.length)
        if out.layout in (TEXTS_32, TEXTS_64):
            out.data = <const uint8_t *>array.buffers[2]
        elif out.layout == VIEWS:
            out.long_texts = array.buffers + 2
            out.long_count = buffers - 3
            out.long_sizes = <const int64_t *>array.buffers[buffers - 1]
            if out.long_count and out.long_sizes == NULL:
                _untrue(name)
        elif out.layout in (LISTS_32, LISTS_64):
            self._read_lists(out, schema, array, name, kinds)
        if schema.dictionary != NULL:
            if array.dictionary == NULL or out.layout != NUMBERS or "n" in kinds:
                _mistyped(name, schema, kinds)
            out.dictionary = self._inner_column()
            self._read(
                out.dictionary, schema.dictionary, array.dictionary, 0, array.dictionary.length,
                name, "b" if "b" in kinds else "t",
            )
            if out.dictionary.layout not in (TEXTS_32, TEXTS_64, VIEWS):
                _mistyped(name, schema, kinds)
        return 0

    cdef int _read_lists(
        self, Column *out, ArrowSchema *schema, ArrowArray *array, str name, str kinds
    ) except -1:
        cdef ArrowSchema *of
        cdef ArrowArray *items
        cdef int64_t begin, count
        if (
            schema.n_children != 1 or array.n_children != 1 or schema.children == NULL
            or array.children == NULL
        ):
            _untrue(name)
        of, items = schema.children[0], array.children[0]
        if of == NULL or items == NULL:
            _untrue(name)
        out.first = self._inner_column()
        if "p" not in kinds:
            return self._read(out.first, of, items, 0, items.length, name, "t")
        if not _is_struct(of) or of.n_children != 2:
            _mistyped(name, schema, kinds)
        if (
            items.n_children != 2 or items.children == NULL or of.children == NULL
            or items.length < 0 or items.offset < 0 or items.offset > INT64_MAX - items.length
            or items.n_buffers != 1 or items.buffers == NULL
            or of.children[0] == NULL or of.children[1] == NULL
            or items.children[0] == NULL or items.children[1] == NULL
        ):
            _untrue(name)
        if items.null_count and items.buffers[0] != NULL:
            raise MessageIllegal(f"pairs of the column {name!r} are null")
        out.second = self._inner_column()
        begin, count = items.offset, items.length
        self._read(out.first, of.children[0], items.children[0], begin, count, name, "t")
        return self._read(out.second, of.children[1], items.children[1], begin, count, name, "t")

    cdef Chunk *chunk(self, Py_ssize_t number) noexcept nogil:
        return &self._owned[number].chunk

    # --- a row as objects, for errors ---

    def message(self, str topic not None, Py_ssize_t row):
        cdef Py_ssize_t i = 0
        cdef int64_t at, begin = 0, end = 0
        cdef Chunk *chunk = NULL
        if not 0 <= row < self.count:
            raise IndexError(f"there is no row {row}")
        while row >= self._owned[i].chunk.count:
            row -= self._owned[i].chunk.count
            i += 1
        chunk = &self._owned[i].chunk
        keys, properties = (), NO_PROPERTIES
        if chunk.keys.layout < LISTS_32:
            key = _object_at(&chunk.keys, row, "keys")
            keys = () if key is None else (key,)
        elif _has_list(&chunk.keys, row, &begin, &end, "keys"):
            keys = tuple([_object_at(chunk.keys.first, at, "keys") for at in range(begin, end)])
        if _has_list(&chunk.properties, row, &begin, &end, "properties"):
            properties = {}
            for at in range(begin, end):
                name = _object_at(chunk.properties.first, at, "properties")
                if name in properties:
                    raise MessageIllegal(f"there are two properties {name!r}")
                properties[name] = _object_at(chunk.properties.second, at, "properties")
        return Message(
            topic,
            _object_at(&chunk.body, row, "body"),
            _object_at(&chunk.queue, row, "queue"),
            _object_at(&chunk.tag, row, "tag"),
            keys,
            properties,
            _object_at(&chunk.group, row, "message_group"),
            _object_at(&chunk.flags, row, "flags") or 0,
            _object_at(&chunk.message_id, row, "message_id"),
            _object_at(&chunk.born_at, row, "born_at"),
            _object_at(&chunk.deliver_at, row, "deliver_at"),
            expires_at=_object_at(&chunk.expires_at, row, "expires_at"),
            dedup_id=_object_at(&chunk.dedup_id, row, "dedup_id"),
        )


cdef object _object_at(const Column *column, int64_t row, str name):
    cdef Span text
    cdef int64_t number = 0
    cdef Found found
    if column.layout == NUMBERS and column.dictionary == NULL:
        found = number_at(column, row, &number)
    else:
        found = text_at(column, row, &text)
    if found == NO_VALUE:
        return None
    if found == OUTSIDE:
        _untrue(name)
    if column.layout == NUMBERS and column.dictionary == NULL:
        if is_beyond(column, number):
            return _beyond(column, row)
        return number
    if name == "body":
        return PyBytes_FromStringAndSize(<const char *>text.at, text.size)
    return PyUnicode_DecodeUTF8(<const char *>text.at, text.size, "surrogateescape")


cdef bint is_beyond(const Column *column, int64_t number) noexcept nogil:
    # Whether a number that `number_at` gave is one that 64 bits with a sign don't hold.
    return number == INT64_MIN and (column.letter == b"L" or column.unit == b"s")


cdef object _beyond(const Column *column, int64_t row):
    cdef int64_t at = column.begin + row
    if column.letter == b"L":
        return (<const uint64_t *>column.items)[at]
    return 1000 * int((<const int64_t *>column.items)[at])


cdef bint _has_list(
    const Column *column, int64_t row, int64_t *begin, int64_t *end, str name
) except -1:
    cdef Found found = list_at(column, row, begin, end)
    if found == OUTSIDE:
        _untrue(name)
    return found == VALUE


# --- values ---


cdef inline Found _place(const Column *column, int64_t row, int64_t *at) noexcept nogil:
    # Where a row's value is among the column's items, if there is one.
    if column.layout <= NULLS:
        return NO_VALUE
    if not 0 <= row < column.count:
        return OUTSIDE
    at[0] = column.begin + row
    if column.valid != NULL and not column.valid[at[0] >> 3] >> (at[0] & 7) & 1:
        return NO_VALUE
    return VALUE


cdef inline int64_t _bound(const Column *column, int64_t at) noexcept nogil:
    if column.layout == TEXTS_64 or column.layout == LISTS_64:
        return (<const int64_t *>column.items)[at]
    return (<const int32_t *>column.items)[at]


cdef inline bint _has_bounds(
    const Column *column, int64_t at, int64_t *begin, int64_t *end
) noexcept nogil:
    # They are read once.
    begin[0] = _bound(column, at)
    end[0] = _bound(column, at + 1)
    return 0 <= begin[0] <= end[0] <= column.limit


cdef Found text_at(const Column *column, int64_t row, Span *text) noexcept nogil:
    cdef int64_t at = 0, begin = 0, end = 0
    cdef Found found = _place(column, row, &at)
    if found != VALUE:
        return found
    if column.dictionary != NULL:
        if number_at(column, row, &begin) != VALUE:
            return OUTSIDE
        return text_at(column.dictionary, begin, text)
    if column.layout == VIEWS:
        return _viewed(column, column.items + at * VIEW_SIZE, text)
    if not _has_bounds(column, at, &begin, &end) or (column.data == NULL and end > begin):
        return OUTSIDE
    # An empty text has an address, too, whatever its column has.
    text.at = column.data + begin if end > begin else <const uint8_t *>b""
    text.size = end - begin
    return VALUE


cdef Found _viewed(const Column *column, const uint8_t *view, Span *text) noexcept nogil:
    cdef int32_t words[4]
    memcpy(words, view, VIEW_SIZE)
    text.size = words[0]
    if 0 <= text.size <= VIEW_INLINE:
        text.at = view + 4
        return VALUE
    if text.size < 0 or words[3] < 0 or not 0 <= words[2] < column.long_count:
        return OUTSIDE
    if words[3] + <int64_t>text.size > column.long_sizes[words[2]]:
        return OUTSIDE
    if column.long_texts[words[2]] == NULL:
        return OUTSIDE
    text.at = <const uint8_t *>column.long_texts[words[2]] + words[3]
    return VALUE


cdef Found number_at(const Column *column, int64_t row, int64_t *number) noexcept nogil:
    # One that 64 bits with a sign don't hold is given as the least, which no field may have.
    cdef const uint8_t *items = column.items
    cdef char letter = column.letter
    cdef uint64_t wide
    cdef int64_t at = 0
    cdef Found found = _place(column, row, &at)
    if found != VALUE:
        return found
    if letter == b"l":
        number[0] = (<const int64_t *>items)[at]
    elif letter == b"i":
        number[0] = (<const int32_t *>items)[at]
    elif letter == b"I":
        number[0] = (<const uint32_t *>items)[at]
    elif letter == b"L":
        wide = (<const uint64_t *>items)[at]
        number[0] = <int64_t>wide if wide <= <uint64_t>INT64_MAX else INT64_MIN
    elif letter == b"s":
        number[0] = (<const int16_t *>items)[at]
    elif letter == b"S":
        number[0] = (<const uint16_t *>items)[at]
    elif letter == b"c":
        number[0] = (<const int8_t *>items)[at]
    else:
        number[0] = items[at]
    if column.unit == b"s":
        if -(INT64_MAX // 1000) <= number[0] <= INT64_MAX // 1000:
            number[0] *= 1000
        else:
            number[0] = INT64_MIN
    elif column.unit == b"u":
        number[0] //= 1000
    elif column.unit == b"n":
        number[0] //= 1000000
    return VALUE


cdef Found list_at(const Column *column, int64_t row, int64_t *begin, int64_t *end) noexcept nogil:
    cdef int64_t at = 0
    cdef Found found = _place(column, row, &at)
    if found != VALUE:
        return found
    if not _has_bounds(column, at, begin, end) or end[0] > column.first.count:
        return OUTSIDE
    return VALUE
