# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Pending records: copies of pending messages, and notes that some wait no more.

The idea: a copy is a message to put whose parts come from a record instead of objects, so it is
made as `prepare` makes one; only the properties that say how the message waits are left out, or
written anew. A record that ends a wait says where the message is, in the header's prepared
position (plus 1), and when it was due, in a property (docs/timing.md).

Invariants: body, keys, tag, group and properties of a copy are the message's own; a record that is
read is measured first.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from kvstore.core.buffers cimport View, load_be32, load_be64, view_of
from kvstore.core.encoding cimport Encoder, PreparedBatch, PutRoute, Row
from kvstore.core.expiry cimport EXPIRY_SIZE, expiry_of
from kvstore.core.hashing cimport java_hash_of
from kvstore.core.put_fields cimport DUE_DIGITS, QUEUE_DIGITS
from kvstore.core.records cimport (
    BORN_V6, FLAGS_AT, Kind, Parts, RECORD, Span, check_body, damaged, left_of, measure, next_pair,
    number_of,
)
from kvstore.core.texts cimport is_utf8

from kvstore.errors import RecordDamaged

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # The flags that a body and a tag have.
    KEPT_FLAGS = 0x703
    BORN_AT = 40


cdef struct Wait:
    # The properties of a pending message that say how it waits; `before` is the due time of the
    # message that it replaces, `cancelled` says that it is a note.
    Span due, topic, queue, before, cancelled, unique_id


cdef bint _is(const Span *name, const char *text, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0


cdef bint _note(Wait *wait, const Span *name, const Span *value) noexcept nogil:
    # Whether the property says how the message waits; if so, it is noted.
    cdef Span *place = NULL
    if _is(name, b"TIMER_OUT_MS", 12) or _is(name, b"TRAN_CHECK_MS", 13):
        place = &wait.due
    elif _is(name, b"REAL_TOPIC", 10):
        place = &wait.topic
    elif _is(name, b"REAL_QID", 8):
        place = &wait.queue
    elif _is(name, b"TIMER_BEFORE_MS", 15) or _is(name, b"TRAN_BEFORE_MS", 14):
        place = &wait.before
    elif _is(name, b"TIMER_DEL_UNIQKEY", 17) or _is(name, b"TRAN_ROLLBACK", 13):
        place = &wait.cancelled
    else:
        return False
    place[0] = value[0]
    return True


cdef bint _is_of_checks(const Span *name) noexcept nogil:
    # Whether the property says how a prepared message was asked about.
    return (
        _is(name, b"TRAN_MSG", 8) or _is(name, b"TRANSACTION_CHECK_TIMES", 23)
        or _is(name, b"TRAN_SINCE_MS", 13)
    )


cdef void _read_wait(Wait *wait, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef Span name, value
    wait.due.at = wait.topic.at = wait.queue.at = wait.before.at = NULL
    wait.cancelled.at = wait.unique_id.at = NULL
    while next_pair(&at, end, &name, &value):
        if not _note(wait, &name, &value) and _is(&name, b"UNIQ_KEY", 8):
            wait.unique_id = value


cdef int64_t _number(const Span *digits, Py_ssize_t most) noexcept nogil:
    # -1 if it is no number of at most so many digits.
    cdef int64_t found = 0
    cdef Py_ssize_t i
    if digits.at == NULL or not 0 < digits.size <= most:
        return -1
    for i in range(digits.size):
        if not 48 <= digits.at[i] <= 57:
            return -1
        found = 10 * found + digits.at[i] - 48
    return found


cdef bint _waits(const Wait *wait) noexcept nogil:
    # The queue's zeros mark a message of this store; RocketMQ writes none.
    cdef int64_t queue = _number(&wait.queue, QUEUE_DIGITS)
    return (
        0 <= queue and queue >> 32 == 0 and wait.queue.size == QUEUE_DIGITS
        and wait.topic.at != NULL and wait.cancelled.at == NULL
        and _number(&wait.due, DUE_DIGITS) > 0
    )


def read_pending(bytes properties not None):
    cdef Wait wait
    _read_wait(&wait, <const uint8_t *>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    if not _waits(&wait):
        return None
    topic = PyUnicode_DecodeUTF8(<const char *>wait.topic.at, wait.topic.size, "replace")
    return _number(&wait.due, DUE_DIGITS), topic, _number(&wait.queue, QUEUE_DIGITS)


def read_end(bytes properties not None):
    cdef Wait wait
    cdef int64_t due
    _read_wait(&wait, <const uint8_t *>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties))
    due = _number(&wait.due if wait.before.at == NULL else &wait.before, DUE_DIGITS)
    if due < 0:
        return None
    topic = None
    if wait.topic.at != NULL:
        topic = PyUnicode_DecodeUTF8(<const char *>wait.topic.at, wait.topic.size, "replace")
    return due, topic


cdef const uint8_t *_measured(
    View view, object held, Parts *parts, bint check_crc
) except NULL:
    # The record of a pending message, measured; RecordDamaged if it is not whole.
    cdef object position = held[3]
    cdef Py_ssize_t left = left_of(view, held[1], held[2])
    cdef const uint8_t *record = view.bytes + <Py_ssize_t>held[1] if left else NULL
    cdef Kind found = measure(record, left, number_of(position), parts)
    if found == RECORD and check_crc:
        found = check_body(record, parts)
    if found:
        raise damaged(found, record, parts, position)
    return record


cdef int64_t _behind(object position) except? 0:
    return <int64_t>(<uint64_t>number_of(position) + 1)


cdef int _not_pending(object position) except -1:
    raise RecordDamaged(f"the record at {position} is no message that waits", position)


def prepare_copies(
    Encoder encoder not None, held, due, *, bint check_crc, bint is_prepared=False, added=None,
    bint ends=True,
):
    cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
    cdef Py_ssize_t i, size = 0
    cdef Parts p
    cdef View view
    cdef Row *row
    cdef Wait wait
    cdef const uint8_t *record
    cdef const uint8_t *name
    cdef PutRoute route = None
    cdef object buffer = None, topic = None
    batch.begin(len(held), encoder)
    batch.any_kind = True
    for i in range(batch.count):
        one = held[i]
        if one[0] is not buffer:
            buffer = one[0]
            view = view_of(buffer)
        record = _measured(view, one, &p, check_crc)
        _read_wait(&wait, record + p.properties_at, p.properties_size)
        if not _waits(&wait) or wait.unique_id.at == NULL:
            _not_pending(one[3])
        if route is None or one[5] is not topic:
            topic = one[5]
            route = encoder.route(topic)
        batch.set_route(i, topic, route)
        row = &batch.rows[i]
        body = PyBytes_FromStringAndSize(<const char *>record + p.body_at, p.body_size)
        batch.set_body(row, body)
        row.queue = _number(&wait.queue, QUEUE_DIGITS)
        if route is not None and row.queue >= route.write_queues:
            # The topic has fewer queues than when the message was put.
            row.queue %= route.write_queues
        row.flags = load_be32(record + 16)
        row.system_flags = load_be32(record + FLAGS_AT) & KEPT_FLAGS
        row.born_at = <int64_t>load_be64(record + BORN_AT)
        row.ends = _behind(one[3]) if ends else 0
        row.ended_due = one[4]
        row.ended_topic = one[6]
        row.is_prepared = is_prepared
        row.due = due[i]
        row.properties_at = batch.properties_size
        _copy_properties(
            batch, row, record + p.properties_at, p.properties_size, &wait, added is None
        )
        if added is not None:
            _add_raw(batch, added[i])
        if row.due:
            if ends:
                batch.add_time(
                    b"TRAN_BEFORE_MS\x01" if is_prepared else b"TIMER_BEFORE_MS\x01", row.ended_due
                )
            name = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &size)
            batch.add_wait(row, name, size)
        else:
            # For consumers, and for a replay: when it was due.
            _add_ended(batch, row)
        row.properties_size = batch.properties_size - row.properties_at
        batch.measure_row(row)
    encoder.finish(batch)
    return batch


cdef int _add_raw(PreparedBatch batch, bytes raw) except -1:
    # Properties as they stand in a record.
    return batch.add(PyBytes_AS_STRING(raw), len(raw))


cdef int _add_ended(PreparedBatch batch, const Row *row) except -1:
    return batch.add_time(
        b"TRAN_CHECK_MS\x01" if row.is_prepared else b"TIMER_OUT_MS\x01", row.ended_due
    )


cdef int _copy_properties(
    PreparedBatch batch, Row *row, const uint8_t *at, Py_ssize_t size, Wait *wait,
    bint with_checks,
) except -1:
    # All but those that say how the message waits, the unique id first, behind when it expires.
    cdef const uint8_t *end = at + size
    cdef Span name, value
    if expiry_of(at, size) >= 0:
        batch.add(<const char *>at, EXPIRY_SIZE)
        at += EXPIRY_SIZE
    _add_id(batch, row, wait)
    while next_pair(&at, end, &name, &value):
        if _note(wait, &name, &value) or _is(&name, b"UNIQ_KEY", 8) or _is(&name, b"__CRC32#", 8):
            continue
        if not with_checks and _is_of_checks(&name):
            continue
        if _is(&name, b"KEYS", 4):
            _add_keys(batch, &value)
            continue
        batch.add(<const char *>name.at, name.size)
        batch.add(b"\x01", 1)
        batch.add(<const char *>value.at, value.size)
        if _is(&name, b"TAGS", 4):
            _end_tag(batch, row, &value)
        elif _is(&name, b"__SHARDINGKEY", 13):
            batch.end_group(row, batch.properties_size - value.size)
        else:
            batch.add(b"\x02", 1)
    row.hashes_end = batch.hashes_count
    return 0


cdef int _end_tag(PreparedBatch batch, Row *row, const Span *tag) except -1:
    cdef bytes text
    batch.end_tag(row, batch.properties_size - tag.size)
    if not is_utf8(tag.at, tag.size):
        # As a scan of the log sees it.
        text = PyUnicode_DecodeUTF8(<const char *>tag.at, tag.size, "replace").encode()
        row.tag_hash = java_hash_of(<const uint8_t *><const char *>text, len(text))
    return 0


cdef int _add_id(PreparedBatch batch, Row *row, const Wait *wait) except -1:
    row.id_number = -1
    batch.set_id(row, PyUnicode_DecodeUTF8(
        <const char *>wait.unique_id.at, wait.unique_id.size, "replace"
    ))
    batch.add(b"UNIQ_KEY\x01", 9)
    row.id_at = batch.properties_size
    batch.add(<const char *>wait.unique_id.at, wait.unique_id.size)
    return batch.end_id(row)


cdef int _add_keys(PreparedBatch batch, const Span *keys) except -1:
    cdef const uint8_t *at = keys.at
    cdef const uint8_t *end = at + keys.size
    cdef const uint8_t *stop
    cdef Py_ssize_t begin, count = 0
    while at < end:
        stop = <const uint8_t *>memchr(at, 32, end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            begin = batch.begin_key(count)
            batch.add(<const char *>at, stop - at)
            batch.add_hash(begin)
            count += 1
        at = stop + 1
    return batch.add(b"\x02", 1) if count else 0


def prepare_notes(
    Encoder encoder not None, held, *, bint is_prepared=False, added=None, ids=None
):
    cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
    cdef Py_ssize_t size = 0
    cdef const uint8_t *text
    cdef Py_ssize_t i
    cdef Parts p
    cdef Row *row
    cdef Wait wait
    cdef const uint8_t *record
    cdef View view
    cdef PutRoute route = encoder.pending_route(is_prepared)
    batch.begin(len(held), encoder)
    for i in range(batch.count):
        one = held[i]
        batch.set_route(i, one[5], route)
        if ids is not None and ids[i] is not None:
            # The record can't be read.
            _read_wait(&wait, NULL, 0)
            text = <const uint8_t *>PyUnicode_AsUTF8AndSize(ids[i], &size)
            wait.unique_id.at, wait.unique_id.size = text, size
            text = <const uint8_t *>PyUnicode_AsUTF8AndSize(one[5], &size)
            wait.topic.at, wait.topic.size = text, size
        else:
            view = view_of(one[0])
            record = _measured(view, one, &p, False)
            _read_wait(&wait, record + p.properties_at, p.properties_size)
            if not _waits(&wait) or wait.unique_id.at == NULL:
                _not_pending(one[3])
        row = &batch.rows[i]
        row.body = <const uint8_t *>b""
        row.born_at = -1
        row.queue = 0
        row.ends = _behind(one[3])
        row.ended_due = one[4]
        row.ended_topic = one[6]
        row.is_prepared = is_prepared
        row.properties_at = batch.properties_size
        _add_id(batch, row, &wait)
        row.hashes_end = batch.hashes_count
        _add_ended(batch, row)
        if added is not None:
            _add_raw(batch, added[i])
        if not is_prepared:
            # RocketMQ's name of a cancelled message: topic and unique id.
            batch.add(b"TIMER_DEL_UNIQKEY\x01", 18)
            batch.add(<const char *>wait.topic.at, wait.topic.size)
            batch.add(b"+", 1)
            batch.add(<const char *>wait.unique_id.at, wait.unique_id.size)
            batch.add(b"\x02", 1)
        batch.add(b"REAL_TOPIC\x01", 11)
        batch.add(<const char *>wait.topic.at, wait.topic.size)
        batch.add(b"\x02", 1)
        row.properties_size = batch.properties_size - row.properties_at
        batch.measure_row(row)
    encoder.finish(batch)
    return batch
