# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put rows: rows of given columns become the records of a put, and its places become columns.

The idea: a row fills the same parts of a `PreparedBatch` as a message does, in the same order, from
bytes that are no objects; all that follows is `core.encoding`'s. Texts are copied first and then
checked, by the same functions.

Invariants: the records are those that `Encoder.prepare` makes of the rows' messages; a row that it
would refuse is refused; a body stays where it is until its record is written.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from kvstore.core.arrow.column_batch cimport ColumnBatch, OutColumn
from kvstore.core.arrow.given_columns cimport (
    ABSENT, Chunk, Column, Found, GivenColumns, LISTS_32, NO_VALUE, VALUE, list_at, number_at,
    text_at,
)
from kvstore.core.encoding cimport Encoder, PreparedBatch, Row
from kvstore.core.expiry cimport EXPIRY_SIZE, write_expiry
from kvstore.core.put_fields cimport due_at, refuse
from kvstore.core.put_route cimport PutRoute, window_of
from kvstore.core.records cimport Span
from kvstore.core.texts cimport is_utf8

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


def prepare_columns(
    Encoder encoder not None, str topic not None, GivenColumns given not None, int64_t now_ms
):
    cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
    cdef PutRoute route
    cdef Py_ssize_t i, number, first = 0
    cdef Chunk *chunk
    cdef Row *row
    cdef Span ignored, name
    name.at = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &name.size)
    batch.begin(given.count, encoder)
    route = encoder.route(topic)
    for i in range(batch.count):
        batch.set_route(i, topic, route)
    cdef Py_ssize_t above = encoder.compress_above(route)
    cdef int64_t window = window_of(route)
    for number in range(given._chunk_count):
        chunk = given.chunk(number)
        row = batch.rows + first
        for i in range(chunk.count):
            row[i].id_number = -1
            if text_at(&chunk.message_id, i, &ignored) == NO_VALUE:
                row[i].id_number = <int64_t>encoder.ids.take(now_ms)
        with nogil:
            for i in range(chunk.count):
                _add_row(batch, &row[i], chunk, i, &name, window, now_ms)
        for i in range(chunk.count):
            if row[i].body_size > above:
                body = PyBytes_FromStringAndSize(<const char *>row[i].body, row[i].body_size)
                encoder.compress_body(batch, &row[i], body, route)
            batch.measure_row(&row[i])
        first += chunk.count
    encoder.finish(batch)
    return batch


cdef list _places():
    return [
        OutColumn("queue", b"l"), OutColumn("offset", b"l"), OutColumn("position", b"l"),
        OutColumn("size", b"l"), OutColumn("message_id", b"U"), OutColumn("duplicate", b"b"),
    ]


def columns_of_results(list results not None):
    cdef list columns = _places()
    for result in results:
        for column in columns:
            (<OutColumn>column).add_value(getattr(result, (<OutColumn>column).name))
    return ColumnBatch(columns, len(results))


def result_columns(PreparedBatch batch not None):
    cdef OutColumn queue, offset, position, size, message_id, duplicate
    cdef list columns = _places()
    cdef Row *row
    cdef Span text
    cdef Py_ssize_t i
    queue, offset, position, size, message_id, duplicate = columns
    with nogil:
        for i in range(batch.count):
            row = &batch.rows[i]
            queue.add_number(<uint32_t>(row.target if row.due else row.queue_key))
            offset.add_number(-1 if row.due else row.offset)
            position.add_number(row.position)
            size.add_number(row.size)
            text = _id_of(batch, row)
            message_id.add_text(text.at, text.size)
            duplicate.add_bit(False)
    return ColumnBatch(columns, batch.count)


def row_results(PreparedBatch batch not None, status):
    cdef Span text
    cdef Py_ssize_t i
    for i in range(batch.count):
        text = _id_of(batch, &batch.rows[i])
        batch.set_id(&batch.rows[i], PyUnicode_DecodeUTF8(<const char *>text.at, text.size, NULL))
        batch.rows[i].id_number = -1
    return batch.results(status)


cdef Span _id_of(PreparedBatch batch, const Row *row) noexcept nogil:
    cdef Span found
    cdef Py_ssize_t end = row.id_at
    while batch.properties[end] != 2:
        end += 1
    found.at, found.size = batch.properties + row.id_at, end - row.id_at
    return found


cdef int _add_row(
    PreparedBatch batch, Row *row, const Chunk *chunk, int64_t i, const Span *topic, int64_t window,
    int64_t now_ms,
) except -1 nogil:
    cdef int64_t flags = 0, due = -1, expires_at = -1
    cdef uint8_t expiry[EXPIRY_SIZE]
    cdef Span body, ignored
    row.queue = row.born_at = -1
    _add_number(&chunk.queue, i, 0xFFFFFFFF, &row.queue)
    _add_number(&chunk.flags, i, 0xFFFFFFFF, &flags)
    _add_number(&chunk.born_at, i, 0x7FFFFFFFFFFFFFFF, &row.born_at)
    _add_number(&chunk.expires_at, i, 0x7FFFFFFFFFFFFFFF, &expires_at)
    row.flags = <uint32_t>flags
    if text_at(&chunk.body, i, &body) != VALUE or body.size > batch.limits.body:
        refuse("no body, or it is too large")
    row.body, row.body_size = body.at, body.size
    row.properties_at = batch.properties_size
    if expires_at >= 0:
        write_expiry(expires_at, &batch.limits.times, expiry)
        batch.add(<const char *>expiry, EXPIRY_SIZE)
    if text_at(&chunk.dedup_id, i, &ignored) != NO_VALUE:
        batch.begin_dedup_id(row, window)
        _add_value(batch, &chunk.dedup_id, i, True)
        batch.end_dedup_id(row)
    batch.add(b"UNIQ_KEY\x01", 9)
    row.id_at = batch.properties_size
    if row.id_number >= 0:
        batch.add_made_id(row)
    elif not _add_value(batch, &chunk.message_id, i, False):
        refuse("no message id")
    batch.end_id(row)
    _add_keys_of(batch, chunk, i)
    row.hashes_end = batch.hashes_count
    _add_named(batch, row, &chunk.tag, i, b"TAGS\x01", 5, True)
    _add_pairs(batch, &chunk.properties, i)
    _add_named(batch, row, &chunk.group, i, b"__SHARDINGKEY\x01", 14, False)
    _add_number(&chunk.deliver_at, i, 0x7FFFFFFFFFFFFFFF, &due)
    if due >= 0:
        if row.dedup_size:
            refuse("a message that waits has no dedup id")
        row.delayed = True
        row.due = due_at(due, now_ms, &batch.limits.times)
        if row.due:
            batch.add_wait(row, topic.at, topic.size)
    row.properties_size = batch.properties_size - row.properties_at
    return 0


cdef int _add_number(
    const Column *column, int64_t i, int64_t most, int64_t *number
) except -1 nogil:
    cdef int64_t value = 0
    cdef Found found = number_at(column, i, &value)
    if found == NO_VALUE:
        return 0
    if found != VALUE or not 0 <= value <= most:
        refuse("a number out of its range")
    number[0] = value
    return 0


cdef int _add_value(
    PreparedBatch batch, const Column *column, int64_t i, bint blanks
) except -1 nogil:
    # Adds a text; 0 if it is null.
    cdef Span text
    cdef Found found = text_at(column, i, &text)
    if found == NO_VALUE:
        return 0
    if found != VALUE:
        refuse("a text that its column does not have")
    if batch.add_text(text.at, text.size, blanks) and not is_utf8(
        batch.properties + batch.properties_size - text.size, text.size
    ):
        refuse("a text that is no UTF-8")
    return 1


cdef int _add_named(
    PreparedBatch batch, Row *row, const Column *column, int64_t i, const char *name,
    Py_ssize_t size, bint is_tag,
) except -1 nogil:
    # A tag or a group.
    cdef Py_ssize_t before = batch.properties_size
    if column.layout == ABSENT:
        return 0
    batch.add(name, size)
    if not _add_value(batch, column, i, True):
        batch.properties_size = before
        return 0
    return batch.end_tag(row, before + size) if is_tag else batch.end_group(row, before + size)


cdef int _add_keys_of(PreparedBatch batch, const Chunk *chunk, int64_t i) except -1 nogil:
    cdef int64_t begin = 0, end = 0, at
    cdef Found found
    if chunk.keys.layout < LISTS_32:
        return _add_key(batch, &chunk.keys, i, 0) and batch.add(b"\x02", 1)
    found = list_at(&chunk.keys, i, &begin, &end)
    if found != VALUE and found != NO_VALUE:
        refuse("a list that its column does not have")
    for at in range(begin, end):
        if not _add_key(batch, chunk.keys.first, at, at - begin):
            refuse("a key is null")
    return batch.add(b"\x02", 1) if end > begin else 0


cdef int _add_key(
    PreparedBatch batch, const Column *column, int64_t i, Py_ssize_t number
) except -1 nogil:
    cdef Py_ssize_t before = batch.properties_size, begin
    if column.layout == ABSENT:
        return 0
    begin = batch.begin_key(number)
    if not _add_value(batch, column, i, False):
        batch.properties_size = before
        return 0
    batch.add_hash(begin)
    return 1


cdef int _add_pairs(PreparedBatch batch, const Column *column, int64_t i) except -1 nogil:
    cdef int64_t begin = 0, end = 0, at, other
    cdef Py_ssize_t name_at
    cdef Span name, its
    cdef Found found = list_at(column, i, &begin, &end)
    if found != VALUE and found != NO_VALUE:
        refuse("pairs that their column does not have")
    for at in range(begin, end):
        name_at = batch.properties_size
        if not _add_value(batch, column.first, at, True):
            refuse("a name is null")
        for other in range(begin, at):
            if (
                text_at(column.first, at, &name) == VALUE
                and text_at(column.first, other, &its) == VALUE
                and name.size == its.size and memcmp(name.at, its.at, name.size) == 0
            ):
                refuse("two properties of one name")
        if batch.end_name(name_at):
            if not _add_value(batch, column.second, at, True):
                refuse("a value is null")
            batch.add(b"\x02", 1)
    return 0
