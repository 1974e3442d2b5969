# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Column batches: columns of C that any Arrow library, and a put, takes over without a copy.

The idea: an `OutColumn` grows in memory of its own, in Arrow's layout: 64-bit numbers, booleans,
large strings and binaries, large lists, maps. An array that is handed over points there, and each
of its parts holds its column until the library releases that part.

Invariants: a column that was handed over does not grow any more; strings are UTF-8 (those who add
them see to it); a column has a validity buffer only if one of its rows is null.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kvstore.core.arrow.abi cimport ARROW_FLAG_NULLABLE, ArrowArray, ArrowSchema
from kvstore.core.buffers cimport grown

from kvstore.errors import CallerError


cdef int _append(Bytes *out, const void *at, Py_ssize_t size) except -1 nogil:
    cdef Py_ssize_t room = out.room
    if out.size + size > room:
        room = 2 * room + size + 64
        out.at = <uint8_t *>grown(out.at, room, 1)
        out.room = room
    if size:
        memcpy(out.at + out.size, at, size)
    out.size += size
    return 0


@cython.final
cdef class OutColumn:
    def __cinit__(
        self, str name not None, bytes format not None, list children=None, bint nullable=False
    ):
        self.name = name
        self._encoded_name = name.encode()
        self._format = format
        self._flags = ARROW_FLAG_NULLABLE if nullable else 0
        self._is_map = format == b"+m"
        self._children = [<OutColumn?>one for one in children or ()]
        if format not in (b"l", b"b", b"+s"):
            self.add_end(0)

    def __dealloc__(self):
        free(self._valid.at)
        free(self._items.at)
        free(self._data.at)

    cdef int _count_row(self, bint is_null) except -1 nogil:
        cdef uint8_t byte
        cdef Py_ssize_t at = self.count >> 3
        self.count += 1
        if not is_null and not self._nulls:
            return 0
        byte = 0xFF
        # All rows before the first null are there, and of the last byte those to come, too.
        while self._valid.size <= at:
            _append(&self._valid, &byte, 1)
        if is_null:
            self._nulls += 1
            self._valid.at[at] &= ~(1 << ((self.count - 1) & 7))
        return 0

    cdef int add_number(self, int64_t number) except -1 nogil:
        _append(&self._items, &number, 8)
        return self._count_row(False)

    cdef int add_bit(self, bint bit) except -1 nogil:
        cdef uint8_t byte = 0
        if not self.count & 7:
            _append(&self._items, &byte, 1)
        self._items.at[self.count >> 3] |= bit << (self.count & 7)
        return self._count_row(False)

    cdef int add_text(self, const uint8_t *at, Py_ssize_t size) except -1 nogil:
        _append(&self._data, at, size)
        self.add_end(self._data.size)
        return self._count_row(False)

    cdef int add_value(self, object value) except -1:
        # A text that is no UTF-8 is added as it is: a put refuses it and names it.
        if value is None:
            return self.add_null()
        if self._format == b"l":
            return self.add_number(value)
        if self._format == b"b":
            return self.add_bit(value)
        if type(value) is str:
            value = (<str>value).encode("utf-8", "surrogatepass")
        return self.add_text(
            <const uint8_t *>PyBytes_AS_STRING(<bytes?>value), PyBytes_GET_SIZE(<bytes>value)
        )

    cdef int add_null(self) except -1 nogil:
        self.add_end(self._data.size)
        return self._count_row(True)

    cdef int add_end(self, Py_ssize_t end) except -1 nogil:
        cdef int64_t wide = end
        cdef int32_t narrow
        if not self._is_map:
            return _append(&self._items, &wide, 8)
        if end > INT32_MAX:
            with gil:
                raise CallerError("there are 2^31 properties or more; ask for fewer messages")
        narrow = <int32_t>end
        return _append(&self._items, &narrow, 4)

    cdef int end_list(self, Py_ssize_t items) except -1 nogil:
        # A list, or a map, that ends behind so many items of all.
        self.add_end(items)
        return self._count_row(False)

    cdef int64_t buffer_count(self):
        return {b"l": 2, b"b": 2, b"+s": 1, b"+L": 2, b"+m": 2}.get(self._format, 3)


cdef void _release_schema(ArrowSchema *schema) noexcept with gil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    schema.release = NULL
    Py_DECREF(<object>schema.private_data)


cdef void _release_array(ArrowArray *array) noexcept with gil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    array.release = NULL
    Py_DECREF(<object>array.private_data)


cdef int _show_schema(ArrowSchema *out, OutColumn column) except -1:
    cdef Py_ssize_t i
    memset(out, 0, sizeof(out[0]))
    out.format = PyBytes_AS_STRING(column._format)
    out.name = PyBytes_AS_STRING(column._encoded_name)
    out.flags = column._flags
    out.private_data = <void *>column
    Py_INCREF(column)
    out.release = _release_schema
    out.children = <ArrowSchema **>calloc(len(column._children) + 1, sizeof(ArrowSchema *))
    if out.children == NULL:
        raise MemoryError()
    for i in range(len(column._children)):
        out.children[i] = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if out.children[i] == NULL:
            raise MemoryError()
        out.n_children += 1
        _show_schema(out.children[i], <OutColumn?>column._children[i])
    return 0


cdef int _show_array(ArrowArray *out, OutColumn column) except -1:
    cdef Py_ssize_t i
    memset(out, 0, sizeof(out[0]))
    out.length, out.null_count = column.count, column._nulls
    column._buffers[0] = column._valid.at if column._nulls else NULL
    column._buffers[1] = column._items.at
    column._buffers[2] = column._data.at
    out.buffers = column._buffers
    out.n_buffers = column.buffer_count()
    out.private_data = <void *>column
    Py_INCREF(column)
    out.release = _release_array
    out.children = <ArrowArray **>calloc(len(column._children) + 1, sizeof(ArrowArray *))
    if out.children == NULL:
        raise MemoryError()
    for i in range(len(column._children)):
        out.children[i] = <ArrowArray *>calloc(1, sizeof(ArrowArray))
        if out.children[i] == NULL:
            raise MemoryError()
        out.n_children += 1
        _show_array(out.children[i], <OutColumn?>column._children[i])
    return 0


cdef void _drop_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _drop_array(object capsule) noexcept:
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void *_zeros(size_t size) except NULL:
    cdef void *found = calloc(1, size)
    if found == NULL:
        raise MemoryError()
    return found


@cython.final
cdef class ColumnBatch:
    """Columns of messages, for any Arrow library: `pyarrow.record_batch(columns)`,
    `polars.from_arrow`, `pandas.DataFrame.from_arrow` and so on take it as it is, without a copy.
    `len` is the number of rows, `names` are the columns'.
    """

    def __cinit__(self, columns, count):
        self._columns = OutColumn("", b"+s", list(columns))
        self._columns.count = count

    def __len__(self):
        return self._columns.count

    def __repr__(self):
        return f"<kvstore.ColumnBatch: {len(self)} rows of {', '.join(self.names)}>"

    @property
    def names(self):
        return [column.name for column in self._columns._children]

    def __arrow_c_schema__(self):
        # The capsule comes first: whatever is not handed over is released with it.
        capsule = PyCapsule_New(_zeros(sizeof(ArrowSchema)), "arrow_schema", _drop_schema)
        _show_schema(<ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema"), self._columns)
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        schema = self.__arrow_c_schema__()
        capsule = PyCapsule_New(_zeros(sizeof(ArrowArray)), "arrow_array", _drop_array)
        _show_array(<ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array"), self._columns)
        return schema, capsule


def columns_to_put(
    list bodies not None, list queues not None, list tags not None, list keys not None,
    list properties not None, list groups not None, list due_times not None,
    list expiries not None, list dedup_ids not None,
):
    cdef OutColumn body = OutColumn("body", b"Z"), queue = OutColumn("queue", b"l", None, True)
    cdef OutColumn tag = OutColumn("tag", b"U", None, True), key = OutColumn("item", b"U")
    cdef OutColumn all_keys = OutColumn("keys", b"+L", [key])
    cdef OutColumn name = OutColumn("key", b"U"), its = OutColumn("value", b"U")
    cdef OutColumn pairs = OutColumn("entries", b"+s", [name, its])
    cdef OutColumn maps = OutColumn("properties", b"+m", [pairs])
    cdef OutColumn group = OutColumn("message_group", b"U", None, True)
    cdef OutColumn due = OutColumn("deliver_at", b"l", None, True)
    cdef OutColumn expires_at = OutColumn("expires_at", b"l", None, True)
    cdef OutColumn dedup_id = OutColumn("dedup_id", b"U", None, True)
    cdef Py_ssize_t count = len(bodies)
    # Copies: the code of a number that is no `int` may change the lists.
    cdef list columns = [
        tuple(rows) for rows in (
            bodies, queues, tags, keys, properties, groups, due_times, expiries, dedup_ids,
        )
    ]
    for rows in columns:
        if len(rows) != count:
            raise ValueError(f"there are {count} bodies, and {len(rows)} values of another column")
    for row in zip(*columns):
        of_body, of_queue, of_tag, texts, named, of_group, time, expiry, of_dedup_id = row
        if of_body is None:
            raise TypeError("a body is None")
        body.add_value(of_body)
        queue.add_value(of_queue)
        tag.add_value(of_tag)
        for text in <list?>texts:
            key.add_value(<str?>text)
        all_keys.end_list(key.count)
        for text, value in (<dict?>named).items():
            name.add_value(<str?>text)
            its.add_value(<str?>value)
        pairs.count = name.count
        maps.end_list(name.count)
        group.add_value(of_group)
        due.add_value(time)
        expires_at.add_value(expiry)
        dedup_id.add_value(of_dedup_id)
    return ColumnBatch(
        [body, queue, tag, all_keys, maps, group, due, expires_at, dedup_id], count
    )
