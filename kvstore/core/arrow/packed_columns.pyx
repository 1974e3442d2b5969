# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Packed columns: column batches as plain values whose buffers are bytes, to be sent, and back.

The idea: columns of any Arrow library become columns of one layout each, that of `OutColumn`,
before it is sent; so the receiver has one form to check, and puts it as it puts any other columns.
The buffers are Arrow's own, little-endian.

Invariants: the rows that are sent are those that were given, with their nulls and with the order of
their pairs; columns that are made of packed ones have no bound, and no length, that leads out of
their buffers, and take as much memory as those; any other value is a `FormatError`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kvstore.core.arrow.column_batch cimport Bytes, ColumnBatch, OutColumn
from kvstore.core.arrow.given_columns cimport (
    ABSENT, Chunk, Column, Found, GivenColumns, LISTS_32, NO_VALUE, OUTSIDE, VALUE, is_beyond,
    list_at, number_at, text_at,
)
from kvstore.core.buffers cimport grown
from kvstore.core.records cimport Span

from kvstore.core.put_values import PutResult
from kvstore.errors import FormatError, MessageIllegal

cdef enum:
    DEPTH_MAX = 3
    COLUMNS_MAX = 64
    ELEMENTS = 8

cdef int64_t _ROWS_MAX = <int64_t>1 << 40
# The columns within a column of a format.
cdef dict _INNER = {"l": 0, "b": 0, "Z": 0, "U": 0, "+L": 1, "+m": 1, "+s": 2}
# The bytes of a row's number, or of a bound: there is one bound more than rows.
cdef dict _NUMBERS = {"l": 8}
cdef dict _BOUNDS = {"Z": 8, "U": 8, "+L": 8, "+m": 4}
cdef dict _RESULTS = {
    "queue": "l", "offset": "l", "position": "l", "size": "l", "message_id": "U", "duplicate": "b",
}


# --- to be sent ---


def pack_columns(ColumnBatch batch not None):
    return [len(batch), [_packed(column) for column in batch._columns._children]]


cdef list _packed(OutColumn column):
    return [
        column.name, column._format.decode(), bool(column._flags), column.count,
        _bytes(&column._valid) if column._nulls else b"", _bytes(&column._items),
        _bytes(&column._data), [_packed(inner) for inner in column._children],
    ]


cdef bytes _bytes(const Bytes *given):
    # Other threads go on meanwhile: the batch is whole, and its memory stays as it is.
    cdef bytes copied = PyBytes_FromStringAndSize(NULL, given.size)
    cdef char *to = PyBytes_AS_STRING(copied)
    with nogil:
        if given.size:
            memcpy(to, given.at, given.size)
    return copied


def columns_to_send(GivenColumns given not None, list ids not None):
    cdef OutColumn key = OutColumn("item", b"U", None, True)
    cdef OutColumn name = OutColumn("key", b"U", None, True)
    cdef OutColumn its = OutColumn("value", b"U", None, True)
    cdef OutColumn pairs = OutColumn("entries", b"+s", [name, its])
    cdef OutColumn message_id = OutColumn("message_id", b"U")
    cdef OutColumn body = OutColumn("body", b"Z", None, True)
    cdef OutColumn keys = OutColumn("keys", b"+L", [key])
    cdef OutColumn properties = OutColumn("properties", b"+m", [pairs])
    cdef OutColumn tag = OutColumn("tag", b"U", None, True)
    cdef OutColumn group = OutColumn("message_group", b"U", None, True)
    cdef OutColumn dedup_id = OutColumn("dedup_id", b"U", None, True)
    cdef OutColumn queue = OutColumn("queue", b"l", None, True)
    cdef OutColumn flags = OutColumn("flags", b"l", None, True)
    cdef OutColumn born_at = OutColumn("born_at", b"l", None, True)
    cdef OutColumn deliver_at = OutColumn("deliver_at", b"l", None, True)
    cdef OutColumn expires_at = OutColumn("expires_at", b"l", None, True)
    cdef Py_ssize_t number, first = 0
    cdef int64_t bad
    cdef Chunk *chunk
    # Other threads may change the list while columns are copied.
    cdef tuple own_ids = tuple(ids)
    if len(own_ids) != given.count:
        raise ValueError(f"there are {given.count} rows, and {len(own_ids)} ids")
    for number in range(given._chunk_count):
        chunk = given.chunk(number)
        with nogil:
            bad = _add_texts(body, &chunk.body, chunk.count)
            bad = max(bad, _add_texts(tag, &chunk.tag, chunk.count))
            bad = max(bad, _add_texts(group, &chunk.group, chunk.count))
            bad = max(bad, _add_texts(dedup_id, &chunk.dedup_id, chunk.count))
            bad = max(bad, _add_numbers(queue, &chunk.queue, chunk.count))
            bad = max(bad, _add_numbers(flags, &chunk.flags, chunk.count))
            bad = max(bad, _add_numbers(born_at, &chunk.born_at, chunk.count))
            bad = max(bad, _add_numbers(deliver_at, &chunk.deliver_at, chunk.count))
            bad = max(bad, _add_numbers(expires_at, &chunk.expires_at, chunk.count))
            bad = max(bad, _add_lists(keys, key, &chunk.keys, chunk.count))
            bad = max(bad, _add_pairs(properties, pairs, name, its, &chunk.properties, chunk.count))
        if bad < 0:
            bad = _add_ids(message_id, &chunk.message_id, chunk.count, own_ids, first)
        if bad >= 0:
            _refuse_row(given, first + bad)
        first += chunk.count
    chosen = [body, message_id]
    chunk = given.chunk(0) if given._chunk_count else NULL
    if chunk != NULL:
        chosen += [
            column
            for column, is_there in (
                (queue, chunk.queue.layout != ABSENT), (tag, chunk.tag.layout != ABSENT),
                (keys, chunk.keys.layout != ABSENT),
                (properties, chunk.properties.layout != ABSENT),
                (group, chunk.group.layout != ABSENT), (flags, chunk.flags.layout != ABSENT),
                (born_at, chunk.born_at.layout != ABSENT),
                (deliver_at, chunk.deliver_at.layout != ABSENT),
                (expires_at, chunk.expires_at.layout != ABSENT),
                (dedup_id, chunk.dedup_id.layout != ABSENT),
            )
            if is_there
        ]
    return ColumnBatch(chosen, given.count)


cdef int _refuse_row(GivenColumns given, Py_ssize_t row) except -1:
    # A row with a text or a list that its column does not have, or a number that can't be sent.
    try:
        message = given.message("", row)
    except MessageIllegal as e:
        raise MessageIllegal(f"row {row} of {given.count}: {e}") from None
    for name in ("queue", "flags", "born_at", "deliver_at", "expires_at"):
        number = getattr(message, name)
        if number is not None and not -INT64_MAX <= number <= INT64_MAX:
            raise MessageIllegal(
                f"row {row} of {given.count}: {name} is {number}; it must be a number of 63 bits"
            )
    raise MessageIllegal(f"row {row} of {given.count}: its columns contradict each other")


# Each of these adds the rows of a chunk's column, and returns a row that the column does not have,
# or -1. A column that is not there adds nulls, which are not sent.


cdef int64_t _add_texts(OutColumn out, const Column *column, int64_t count) except -2 nogil:
    cdef int64_t i
    if column.layout == ABSENT:
        return -1
    for i in range(count):
        if not _add_text(out, column, i):
            return i
    return -1


cdef bint _add_text(OutColumn out, const Column *column, int64_t i) except -1 nogil:
    cdef Span text
    cdef Found found = text_at(column, i, &text)
    if found == VALUE:
        out.add_text(text.at, text.size)
    elif found == NO_VALUE:
        out.add_null()
    return found != OUTSIDE


cdef int64_t _add_numbers(OutColumn out, const Column *column, int64_t count) except -2 nogil:
    cdef int64_t i, value = 0
    cdef Found found
    if column.layout == ABSENT:
        return -1
    for i in range(count):
        found = number_at(column, i, &value)
        if found == VALUE and is_beyond(column, value):
            return i
        if found == VALUE:
            out.add_number(value)
        elif found == NO_VALUE:
            out.add_null()
        else:
            return i
    return -1


cdef int64_t _add_lists(
    OutColumn out, OutColumn item, const Column *column, int64_t count
) except -2 nogil:
    cdef int64_t i, at, begin = 0, end = 0
    cdef Span text
    cdef Found found
    if column.layout == ABSENT:
        return -1
    for i in range(count):
        if column.layout < LISTS_32:
            # One text each, or nulls.
            found = text_at(column, i, &text)
            if found == VALUE:
                item.add_text(text.at, text.size)
        else:
            found = list_at(column, i, &begin, &end)
            if found == VALUE:
                for at in range(begin, end):
                    if not _add_text(item, column.first, at):
                        return i
        if found == OUTSIDE:
            return i
        out.end_list(item.count)
    return -1


cdef int64_t _add_pairs(
    OutColumn out, OutColumn pairs, OutColumn name, OutColumn its, const Column *column,
    int64_t count,
) except -2 nogil:
    cdef int64_t i, at, begin = 0, end = 0
    cdef Found found
    if column.layout == ABSENT:
        return -1
    for i in range(count):
        found = list_at(column, i, &begin, &end)
        if found == OUTSIDE:
            return i
        if found == VALUE:
            for at in range(begin, end):
                if not _add_text(name, column.first, at) or not _add_text(its, column.second, at):
                    return i
        pairs.count = name.count
        out.end_list(name.count)
    return -1


cdef int64_t _add_ids(
    OutColumn out, const Column *column, int64_t count, tuple ids, Py_ssize_t first
) except -2:
    # The rows' own ids, or those of `ids`.
    cdef int64_t i
    cdef Span text
    cdef Found found
    for i in range(count):
        found = text_at(column, i, &text)
        if found == VALUE:
            out.add_text(text.at, text.size)
        elif found == NO_VALUE:
            out.add_value(<str?>ids[first + i])
        else:
            return i
    return -1


# --- that came ---


cdef int _wrong(str why) except -1:
    raise FormatError(f"these are no packed columns: {why}")


def unpack_columns(object given):
    cdef list columns
    if type(given) is not list or len(given) != 2 or type(given[1]) is not list:
        _wrong("they are no array of a number of rows and of columns")
    count, packed = given
    if type(count) is not int or not 0 <= count <= _ROWS_MAX:
        _wrong("the number of rows can't be")
    if len(packed) > COLUMNS_MAX:
        _wrong(f"there are {len(packed)} columns")
    columns = [_unpacked(one, 1) for one in packed]
    for column in columns:
        if (<OutColumn>column).count != count:
            _wrong("a column has another number of rows")
    return ColumnBatch(columns, count)


cdef OutColumn _unpacked(object given, int depth):
    cdef OutColumn column, inner
    cdef Py_ssize_t i
    if type(given) is not list or len(given) != ELEMENTS or depth > DEPTH_MAX:
        _wrong("a column is something else")
    name, form, nullable, count, valid, items, data, children = given
    if (
        type(name) is not str or type(form) is not str or form not in _INNER
        or type(nullable) is not bool or type(count) is not int or not 0 <= count <= _ROWS_MAX
        or type(valid) is not bytes or type(items) is not bytes or type(data) is not bytes
        or type(children) is not list or len(children) != _INNER[form]
    ):
        _wrong("an element of a column is something else")
    within = [_unpacked(one, depth + 1) for one in children]
    if form == "+m" and (<OutColumn>within[0])._format != b"+s":
        _wrong("a map is not one of pairs")
    column = OutColumn(name, form.encode(), within, nullable)
    column.count = count
    if form in _NUMBERS:
        size = _NUMBERS[form] * count
    elif form in _BOUNDS:
        size = _BOUNDS[form] * (count + 1)
    else:
        size = (count + 7) // 8 if form == "b" else 0
    if len(items) != size or valid and len(valid) != (count + 7) // 8:
        _wrong("a buffer has another size than its rows")
    if data and form not in ("Z", "U"):
        _wrong("a column without texts has bytes of texts")
    for i in range(len(within)):
        inner = within[i]
        if form == "+s" and inner.count != count:
            _wrong("the parts of pairs have different numbers of rows")
    _fill(&column._items, items)
    _fill(&column._data, data)
    _fill(&column._valid, valid)
    if form in _BOUNDS:
        _check_bounds(column, len(data) if form in ("Z", "U") else (<OutColumn>within[0]).count)
    if valid:
        for i in range(column.count):
            column._nulls += not column._valid.at[i >> 3] >> (i & 7) & 1
    return column


cdef int _fill(Bytes *out, bytes data) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if size > out.room:
        out.at = <uint8_t *>grown(out.at, size, 1)
        out.room = size
    if size:
        memcpy(out.at, PyBytes_AS_STRING(data), size)
    out.size = size
    return 0


cdef int _check_bounds(OutColumn column, int64_t most) except -1:
    # They rise from 0, and the last one is among what they are bounds of.
    cdef int64_t last = 0, bound
    cdef Py_ssize_t i
    for i in range(column.count + 1):
        if column._is_map:
            bound = (<const int32_t *>column._items.at)[i]
        else:
            bound = (<const int64_t *>column._items.at)[i]
        if not last <= bound <= most:
            _wrong("bounds lead out of a column")
        last = bound
    return 0


def results_in(ColumnBatch batch not None, str topic not None, object status):
    cdef Py_ssize_t i
    cdef dict found = {}
    cdef OutColumn queue, offset, position, size, message_id, duplicate
    cdef const int64_t *bounds
    for column in batch._columns._children:
        found[(<OutColumn>column).name] = (<OutColumn>column)._format.decode()
    if found != _RESULTS or len(batch._columns._children) != len(_RESULTS):
        _wrong("a put's results have other columns")
    named = {(<OutColumn>column).name: column for column in batch._columns._children}
    queue, offset, position = named["queue"], named["offset"], named["position"]
    size, message_id, duplicate = named["size"], named["message_id"], named["duplicate"]
    bounds = <const int64_t *>message_id._items.at
    return [
        PutResult(
            PyUnicode_DecodeUTF8(
                <const char *>message_id._data.at + bounds[i], bounds[i + 1] - bounds[i], "replace"
            ),
            topic,
            (<const int64_t *>queue._items.at)[i],
            (<const int64_t *>offset._items.at)[i],
            (<const int64_t *>position._items.at)[i],
            (<const int64_t *>size._items.at)[i],
            status,
            bool(duplicate._items.at[i >> 3] >> (i & 7) & 1),
        )
        for i in range(len(batch))
    ]
