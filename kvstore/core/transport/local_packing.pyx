# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Local packing: the values that most calls of the local protocol carry become MessagePack.

The idea: messages to put, results of puts and messages of the log are arrays of their fields
(docs/protocol.md), written from the fields, with nothing of Python's between. A message may hold
values that are wrong. One with a value of another type than a message has is left to the caller,
who has a general form for such values.

Invariants: what is written reads as the same value, but for sequences of texts, which are lists;
other threads of Python wait no longer for the frame of a large reply than for a part of it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kvstore.core.buffers cimport store_be32
from kvstore.core.messages cimport StoredMessage
from kvstore.core.popping.receipts cimport Popped
from kvstore.core.put_values cimport Message, PutResult
from kvstore.core.transport.message_pack cimport (
    MESSAGE_FIELDS, POPPED_FIELDS, RESULT_FIELDS, STORED_FIELDS, Out, drop, reserve, write_array,
    write_byte, write_bytes, write_float, write_head, write_natural, write_number, write_raw,
    write_text, written,
)
from kvstore.core.unique_ids cimport ID_DIGITS, UniqueIds, write_id_number

from kvstore.core.put_values import NO_PROPERTIES

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    char *PyByteArray_AS_STRING(object array)
    Py_ssize_t PyByteArray_GET_SIZE(object array)

cdef enum:
    LENGTH = 4
    # Bytes that a value takes beside its body and properties, about.
    BESIDE = 300
    # Bytes of a frame between two moments at which other threads may go on: a millisecond.
    TURN_BYTES = 1 << 20

cdef object _no_properties = NO_PROPERTIES


cdef inline int _bytes(Out *out, bytes value) except -1:
    # TypeError for None, which a field of bytes may be.
    return write_bytes(out, PyBytes_AS_STRING(value), len(value))


cdef bint _plain(Out *out, object value) except -1:
    # Writes a field of a message; False if it has another type than such fields have.
    cdef object kind = type(value)
    cdef int overflow = 0
    cdef int64_t number
    if value is None:
        reserve(out, 1)
        write_byte(out, 0xC0)
    elif kind is str:
        write_text(out, value)
    elif kind is bytes:
        _bytes(out, value)
    elif kind is int:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return False
        write_number(out, number)
    elif kind is bool:
        reserve(out, 1)
        write_byte(out, 0xC3 if value is True else 0xC2)
    elif kind is float:
        write_float(out, value)
    elif kind is bytearray:
        write_bytes(out, PyByteArray_AS_STRING(value), PyByteArray_GET_SIZE(value))
    elif kind is tuple or kind is list:
        return _texts(out, value)
    elif kind is dict:
        return _pairs(out, <dict>value)
    elif value is _no_properties:
        reserve(out, 1)
        write_byte(out, 0x80)
    else:
        return False
    return True


cdef bint _texts(Out *out, object given) except -1:
    cdef tuple texts = tuple(given)
    write_array(out, len(texts))
    for text in texts:
        if type(text) is not str:
            return False
        write_text(out, text)
    return True


cdef bint _pairs(Out *out, dict pairs) except -1:
    cdef PyObject *name
    cdef PyObject *value
    cdef Py_ssize_t at = 0
    write_head(out, 0x80, 15, 0, 0xDE, len(pairs))
    while PyDict_Next(pairs, &at, &name, &value):
        if type(<object>name) is not str or type(<object>value) is not str:
            return False
        write_text(out, <object>name)
        write_text(out, <object>value)
    return True


cdef bint _message(Out *out, Message message, UniqueIds ids, uint64_t own) except -1:
    cdef Py_ssize_t size
    cdef const char *prefix
    write_array(out, MESSAGE_FIELDS)
    if not (
        _plain(out, message.topic) and _plain(out, message.body) and _plain(out, message.queue)
        and _plain(out, message.tag) and _plain(out, message.keys)
        and _plain(out, message.properties) and _plain(out, message.message_group)
        and _plain(out, message.flags)
    ):
        return False
    if message.message_id is None:
        prefix = PyUnicode_AsUTF8AndSize(ids.prefix, &size)
        write_head(out, 0xA0, 31, 0xD9, 0xDA, size + ID_DIGITS)
        write_raw(out, prefix, size)
        reserve(out, ID_DIGITS)
        write_id_number(own, out.bytes + out.size)
        out.size += ID_DIGITS
    elif not _plain(out, message.message_id):
        return False
    return (
        _plain(out, message.born_at) and _plain(out, message.deliver_at)
        and _plain(out, message.delay) and _plain(out, message.delay_level)
        and _plain(out, message.expires_at) and _plain(out, message.dedup_id)
    )


cdef int _reserve_bodies(Out *out, tuple messages) except -1:
    # Mostly enough for all of them, so that nothing has to be moved.
    cdef Py_ssize_t size = 0
    for message in messages:
        if type(message) is Message and type((<Message>message).body) is bytes:
            size += PyBytes_GET_SIZE((<Message>message).body)
        size += BESIDE
    return reserve(out, size)


def pack_messages(messages, UniqueIds ids not None, int64_t now_ms, other):
    cdef tuple given = tuple(messages)
    cdef Out out = Out(NULL, NULL, 0, 0)
    cdef Py_ssize_t begin
    cdef uint64_t own
    cdef bint is_plain
    cdef bytes packed
    try:
        _reserve_bodies(&out, given)
        write_array(&out, len(given))
        for message in given:
            begin, own = out.size, ids.take(now_ms)
            is_plain = False
            if type(message) is Message:
                try:
                    is_plain = _message(&out, <Message>message, ids, own)
                except UnicodeEncodeError:
                    pass
            if not is_plain:
                out.size = begin
                packed = other(message, f"{ids.prefix}{own:012X}")
                write_raw(&out, PyBytes_AS_STRING(packed), len(packed))
        return written(&out)
    finally:
        drop(&out)


cdef int _begin_frame(Out *out, int kind, uint64_t number) except -1:
    # The room for its length; its array, whose third element follows.
    reserve(out, LENGTH)
    out.size = LENGTH
    write_array(out, 3)
    write_natural(out, kind)
    return write_natural(out, number)


cdef bytes _end_frame(Out *out):
    if out.size - LENGTH > 0xFFFFFFFF:
        raise OverflowError("the frame is longer than its length can say")
    store_be32(out.bytes, out.size - LENGTH)
    return written(out)


def frame_of_results(int kind, uint64_t number, list results not None):
    cdef Out out = Out(NULL, NULL, 0, 0)
    cdef PutResult result
    cdef tuple given = tuple(results)
    try:
        _begin_frame(&out, kind, number)
        write_array(&out, len(given))
        for one in given:
            result = <PutResult?>one
            write_array(&out, RESULT_FIELDS)
            _result_id(&out, result)
            write_text(&out, result.topic)
            write_number(&out, result.queue)
            write_number(&out, result.offset)
            write_number(&out, result.position)
            write_number(&out, result.size)
            write_text(&out, result.status)
            reserve(&out, 1)
            write_byte(&out, 0xC3 if result.duplicate else 0xC2)
        return _end_frame(&out)
    finally:
        drop(&out)


cdef int _result_id(Out *out, PutResult result) except -1:
    # Without making its text.
    cdef Py_ssize_t size
    cdef const char *prefix = PyUnicode_AsUTF8AndSize(result._id, &size)
    if result._number < 0:
        return write_text(out, result._id)
    write_head(out, 0xA0, 31, 0xD9, 0xDA, size + ID_DIGITS)
    write_raw(out, prefix, size)
    reserve(out, ID_DIGITS)
    write_id_number(<uint64_t>result._number, out.bytes + out.size)
    out.size += ID_DIGITS
    return 0


cdef inline Py_ssize_t _size_of(StoredMessage m) except -1:
    # About.
    return len(m.body) + len(m._raw_properties) + BESIDE


cdef int _stored(Out *out, StoredMessage m) except -1:
    write_array(out, STORED_FIELDS)
    write_text(out, m.topic)
    write_natural(out, m.queue)
    write_number(out, m.offset)
    write_number(out, m.position)
    write_number(out, m.size)
    _bytes(out, m.body)
    _bytes(out, m._raw_properties)
    write_natural(out, m.flags)
    write_natural(out, m.system_flags)
    write_number(out, m.born_at)
    write_number(out, m.stored_at)
    _bytes(out, m.raw_born_host)
    _bytes(out, m.raw_store_host)
    write_number(out, m.reconsume_times)
    write_number(out, m.prepared_position)
    write_natural(out, m.body_crc)
    return write_number(out, m.version)


cdef inline int _let_others_in(Out *out, Py_ssize_t *since) except -1:
    # Between two values of a large frame: another thread that waits for Python's lock has its turn.
    if out.size - since[0] >= TURN_BYTES:
        since[0] = out.size
        with nogil:
            pass
    return 0


def frame_of_stored(
    int kind, uint64_t number, list messages not None, bytes before=b"", bytes after=b""
):
    cdef Out out = Out(NULL, NULL, 0, 0)
    cdef Py_ssize_t size = len(before) + len(after) + BESIDE
    cdef Py_ssize_t since = 0
    cdef tuple given = tuple(messages)
    try:
        for one in given:
            size += _size_of(<StoredMessage?>one)
        reserve(&out, size)
        _begin_frame(&out, kind, number)
        write_raw(&out, PyBytes_AS_STRING(before), len(before))
        write_array(&out, len(given))
        for one in given:
            _stored(&out, <StoredMessage>one)
            _let_others_in(&out, &since)
        write_raw(&out, PyBytes_AS_STRING(after), len(after))
        return _end_frame(&out)
    finally:
        drop(&out)


cdef int _packed(Out *out, object value) except -1:
    # Of packed columns: lists, and in them plain values, of which bytes may be large.
    cdef const char *given
    cdef uint8_t *to
    cdef Py_ssize_t size
    if type(value) is list:
        write_array(out, len(<list>value))
        for one in tuple(<list>value):
            _packed(out, one)
    elif type(value) is bytes:
        given, size = PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        write_head(out, 0, -1, 0xC4, 0xC5, size)
        reserve(out, size)
        to = out.bytes + out.size
        with nogil:
            memcpy(to, given, size)
        out.size += size
    elif not _plain(out, value):
        raise TypeError(f"packed columns have no {type(value).__name__}")
    return 0


def frame_of_columns(
    int kind, uint64_t number, list packed not None, bytes before=b"", bytes after=b""
):
    cdef Out out = Out(NULL, NULL, 0, 0)
    try:
        _begin_frame(&out, kind, number)
        write_raw(&out, PyBytes_AS_STRING(before), len(before))
        _packed(&out, packed)
        write_raw(&out, PyBytes_AS_STRING(after), len(after))
        return _end_frame(&out)
    finally:
        drop(&out)


def frame_of_popped(int kind, uint64_t number, list popped not None):
    cdef Out out = Out(NULL, NULL, 0, 0)
    cdef Popped one
    cdef Py_ssize_t size = BESIDE
    cdef Py_ssize_t since = 0
    cdef tuple given = tuple(popped)
    try:
        for each in given:
            size += _size_of(<StoredMessage?>(<Popped?>each).message)
        reserve(&out, size)
        _begin_frame(&out, kind, number)
        write_array(&out, len(given))
        for each in given:
            one = <Popped>each
            write_array(&out, POPPED_FIELDS)
            _stored(&out, <StoredMessage>one.message)
            write_text(&out, one.receipt)
            write_number(&out, one.attempt)
            write_number(&out, one.due_at)
            _let_others_in(&out, &since)
        return _end_frame(&out)
    finally:
        drop(&out)
