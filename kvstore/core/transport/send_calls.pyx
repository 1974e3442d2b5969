# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Send calls: the protobuf of RocketMQ's SendMessage, requests read and answers written.

The idea: most messages come by this call, so no object of protobuf stands between its bytes and the
messages to put, nor between results and the bytes of the answer. The fields that a store keeps are
read; of all others it is only checked that they are legal. The numbers of the fields are those of
the protocol (`serve.grpc.protocol`), which a test holds against these.

Invariants: the reader takes the bytes that protobuf's own takes, and finds the same in them: a
field that comes again replaces the one before, a message's parts that come again are merged. No
memory is taken for a length beyond the bytes that are there.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from kvstore.core.buffers cimport View, view_of
from kvstore.core.put_values cimport Message, PutResult
from kvstore.core.transport.message_pack cimport In, Out, drop, written
from kvstore.core.transport.protobuf_fields cimport (
    Field, SIZED, VARINT, check_text, next_field, refuse_bytes, within, write_number_field,
    write_sized_field,
)

from kvstore.core.put_values import NO_PROPERTIES

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # Tags: a field's number and its form. Of a request and its message:
    MESSAGES = 1 << 3 | SIZED
    TOPIC = 1 << 3 | SIZED
    USER_PROPERTIES = 2 << 3 | SIZED
    SYSTEM_PROPERTIES = 3 << 3 | SIZED
    BODY = 4 << 3 | SIZED
    # Of a Resource, an entry of a map, a DeadLetterQueue, a Timestamp or Duration, a Digest.
    FIRST_TEXT = 1 << 3 | SIZED
    SECOND_TEXT = 2 << 3 | SIZED
    SECONDS = 1 << 3 | VARINT
    NANOS = 2 << 3 | VARINT
    DIGEST_TYPE = 1 << 3 | VARINT
    # Of SystemProperties.
    TAG = 1 << 3 | SIZED
    KEYS = 2 << 3 | SIZED
    MESSAGE_ID = 3 << 3 | SIZED
    BODY_DIGEST = 4 << 3 | SIZED
    BODY_ENCODING = 5 << 3 | VARINT
    MESSAGE_TYPE = 6 << 3 | VARINT
    BORN_TIMESTAMP = 7 << 3 | SIZED
    BORN_HOST = 8 << 3 | SIZED
    STORE_TIMESTAMP = 9 << 3 | SIZED
    STORE_HOST = 10 << 3 | SIZED
    DELIVERY_TIMESTAMP = 11 << 3 | SIZED
    RECEIPT_HANDLE = 12 << 3 | SIZED
    INVISIBLE_DURATION = 15 << 3 | SIZED
    MESSAGE_GROUP = 17 << 3 | SIZED
    TRACE_CONTEXT = 18 << 3 | SIZED
    RECOVERY_DURATION = 19 << 3 | SIZED
    DEAD_LETTER_QUEUE = 20 << 3 | SIZED
    LITE_TOPIC = 21 << 3 | SIZED
    PRIORITY = 22 << 3 | VARINT
    # Of an answer and its entries, which begin with a Status: its code and text.
    STATUS = 1 << 3 | SIZED
    ENTRIES = 2 << 3 | SIZED
    CODE = 1 << 3 | VARINT
    TEXT = 2 << 3 | SIZED
    ENTRY_ID = 2 << 3 | SIZED
    ENTRY_TRANSACTION = 3 << 3 | SIZED
    ENTRY_OFFSET = 4 << 3 | VARINT
    ENTRY_HANDLE = 5 << 3 | SIZED
    # How deep those messages are within the request.
    IN_REQUEST = 1
    IN_MESSAGE = 2
    IN_PROPERTIES = 3
    OK = 20000
    NANOS_OF_MS = 1_000_000
    # Fields of which each type of messages has one of its own.
    GROUP_BIT = 1
    DELIVERY_BIT = 2
    PRIORITY_BIT = 4
    LITE_TOPIC_BIT = 8

CARRIES_GROUP, CARRIES_DELIVERY = GROUP_BIT, DELIVERY_BIT
CARRIES_PRIORITY, CARRIES_LITE_TOPIC = PRIORITY_BIT, LITE_TOPIC_BIT

cdef object _no_properties = NO_PROPERTIES
# Seconds that are less, whatever their sign, have as many ms as 64 bits hold.
cdef int64_t _SECONDS_MAX = 9_000_000_000_000_000


@cython.final
@cython.no_gc
cdef class Resource:
    cdef readonly str name
    cdef readonly str resource_namespace


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class SentMessage:
    cdef readonly Message message
    cdef readonly Resource resource
    cdef readonly int message_type
    cdef readonly int carried
    cdef readonly int body_encoding
    cdef readonly tuple digest
    cdef readonly str trace_context
    cdef readonly int priority
    cdef readonly object recovery_ms


cdef struct Text:
    # Of UTF-8; at is NULL, or the size 0, for the empty one.
    const uint8_t *at
    Py_ssize_t size


cdef struct Time:
    bint is_there
    int64_t seconds
    int32_t nanos


cdef struct Parts:
    # The parts of a message that may come in pieces.
    Text namespace, name
    Text digest
    bint has_digest
    int digest_type
    Time born, delivery, recovery


# --- reading ---


cdef inline str _text_of(Field *field):
    # UnicodeDecodeError is ValueError.
    return PyUnicode_DecodeUTF8(<const char *>field.at, field.size, NULL)


cdef inline int _keep(Text *text, Field *field) except -1:
    check_text(field)
    text.at, text.size = field.at, field.size
    return 0


cdef inline bint _is_same(Text *a, Text *b) noexcept:
    return a.size == b.size and (not a.size or memcmp(a.at, b.at, a.size) == 0)


cdef inline str _str_of(Text *text):
    return PyUnicode_DecodeUTF8(<const char *>text.at, text.size, NULL) if text.size else ""


cdef int _read_texts(Field *given, Text *first, Text *second, int depth) except -1:
    # A message of two texts.
    cdef In rest = within(given)
    cdef Field field
    while next_field(&rest, &field, depth):
        if field.tag == FIRST_TEXT:
            _keep(first, &field)
        elif field.tag == SECOND_TEXT:
            _keep(second, &field)
    return 0


cdef int _read_time(Field *given, Time *time) except -1:
    cdef In rest = within(given)
    cdef Field field
    time.is_there = True
    while next_field(&rest, &field, IN_PROPERTIES):
        if field.tag == SECONDS:
            time.seconds = <int64_t>field.number
        elif field.tag == NANOS:
            time.nanos = <int32_t>field.number
    return 0


cdef object _ms_of(Time *time):
    # Cut.
    if -_SECONDS_MAX < time.seconds < _SECONDS_MAX:
        return 1000 * time.seconds + time.nanos // NANOS_OF_MS
    return 1000 * <object>time.seconds + time.nanos // NANOS_OF_MS


cdef int _read_digest(Field *given, Parts *parts) except -1:
    cdef In rest = within(given)
    cdef Field field
    parts.has_digest = True
    while next_field(&rest, &field, IN_PROPERTIES):
        if field.tag == DIGEST_TYPE:
            parts.digest_type = <int32_t>field.number
        elif field.tag == SECOND_TEXT:
            _keep(&parts.digest, &field)
    return 0


cdef int _read_property(Field *given, Message message) except -1:
    # An entry with a field that no entry has is passed over, as protobuf's own reader does.
    cdef In rest = within(given)
    cdef Field field
    cdef Text name = Text(NULL, 0), value = Text(NULL, 0)
    cdef bint is_known = True
    while next_field(&rest, &field, IN_MESSAGE):
        if field.tag == FIRST_TEXT:
            _keep(&name, &field)
        elif field.tag == SECOND_TEXT:
            _keep(&value, &field)
        else:
            is_known = False
    if is_known:
        if message.properties is _no_properties:
            message.properties = {}
        (<dict>message.properties)[_str_of(&name)] = _str_of(&value)
    return 0


cdef int _read_system(Field *given, SentMessage sent, Parts *parts) except -1:
    cdef In rest = within(given)
    cdef Field field
    cdef Message message = sent.message
    cdef Text unused = Text(NULL, 0)
    cdef Time time = Time(False, 0, 0)
    while next_field(&rest, &field, IN_MESSAGE):
        if field.tag == MESSAGE_ID:
            message.message_id = _text_of(&field)
        elif field.tag == BODY_ENCODING:
            sent.body_encoding = <int32_t>field.number
        elif field.tag == MESSAGE_TYPE:
            sent.message_type = <int32_t>field.number
        elif field.tag == BORN_TIMESTAMP:
            _read_time(&field, &parts.born)
        elif field.tag == TAG:
            message.tag = _text_of(&field)
        elif field.tag == KEYS:
            if type(message.keys) is tuple:
                message.keys = []
            (<list>message.keys).append(_text_of(&field))
        elif field.tag == BODY_DIGEST:
            _read_digest(&field, parts)
        elif field.tag == DELIVERY_TIMESTAMP:
            _read_time(&field, &parts.delivery)
            sent.carried |= DELIVERY_BIT
        elif field.tag == MESSAGE_GROUP:
            message.message_group = _text_of(&field)
            sent.carried |= GROUP_BIT
        elif field.tag == PRIORITY:
            sent.priority = <int32_t>field.number
            sent.carried |= PRIORITY_BIT
        elif field.tag == LITE_TOPIC:
            check_text(&field)
            sent.carried |= LITE_TOPIC_BIT
        elif field.tag == TRACE_CONTEXT:
            sent.trace_context = _text_of(&field)
        elif field.tag == RECOVERY_DURATION:
            _read_time(&field, &parts.recovery)
        elif field.tag in (BORN_HOST, STORE_HOST, RECEIPT_HANDLE):
            check_text(&field)
        elif field.tag in (STORE_TIMESTAMP, INVISIBLE_DURATION):
            _read_time(&field, &time)
        elif field.tag == DEAD_LETTER_QUEUE:
            _read_texts(&field, &unused, &unused, IN_PROPERTIES)
    return 0


cdef SentMessage _read_message(Field *given, Parts *parts):
    # Of its parts only the topic is left to make.
    cdef In rest = within(given)
    cdef Field field
    cdef SentMessage sent = SentMessage.__new__(SentMessage)
    cdef Message message = Message.__new__(Message)
    sent.message = message
    sent.trace_context = ""
    message.body, message.keys, message.properties = b"", (), _no_properties
    message.flags = 0
    message.message_id = ""
    while next_field(&rest, &field, IN_REQUEST):
        if field.tag == TOPIC:
            _read_texts(&field, &parts.namespace, &parts.name, IN_MESSAGE)
        elif field.tag == BODY:
            message.body = PyBytes_FromStringAndSize(<const char *>field.at, field.size)
        elif field.tag == SYSTEM_PROPERTIES:
            _read_system(&field, sent, parts)
        elif field.tag == USER_PROPERTIES:
            _read_property(&field, message)
    message.keys = tuple(message.keys)
    if parts.born.seconds > 0 or parts.born.nanos:
        message.born_at = _ms_of(&parts.born)
        if message.born_at <= 0:
            message.born_at = None
    if parts.delivery.is_there:
        message.deliver_at = _ms_of(&parts.delivery)
    if parts.recovery.is_there:
        sent.recovery_ms = _ms_of(&parts.recovery)
    if parts.has_digest:
        sent.digest = parts.digest_type, _str_of(&parts.digest)
    return sent


def read_send_request(data not None):
    cdef View view = view_of(data)
    cdef In rest = In(view.bytes, view.bytes + view.size)
    cdef Field field
    cdef Parts parts
    cdef Text namespace = Text(NULL, 0), name = Text(NULL, 0)
    cdef Resource resource = None
    cdef SentMessage sent
    cdef list found = []
    while next_field(&rest, &field, 0):
        if field.tag != MESSAGES:
            continue
        parts = Parts()
        sent = _read_message(&field, &parts)
        if resource is None or not (
            _is_same(&parts.name, &name) and _is_same(&parts.namespace, &namespace)
        ):
            name, namespace = parts.name, parts.namespace
            resource = Resource.__new__(Resource)
            resource.name, resource.resource_namespace = _str_of(&name), _str_of(&namespace)
        sent.resource = resource
        found.append(sent)
    return found


# --- writing ---


cdef inline int _write_text(Out *out, uint32_t tag, str text) except -1:
    cdef Py_ssize_t size
    cdef const char *at = PyUnicode_AsUTF8AndSize(text, &size)
    return write_sized_field(out, tag, at, size) if size else 0


cdef inline int _write_part(Out *out, uint32_t tag, Out *part) except -1:
    write_sized_field(out, tag, part.bytes, part.size)
    part.size = 0
    return 0


cdef int _write_status(Out *out, uint32_t code, str text, Out *part) except -1:
    write_number_field(part, CODE, code)
    _write_text(part, TEXT, text)
    return _write_part(out, STATUS, part)


cdef int _write_entry(Out *out, tuple entry, Out *part) except -1:
    cdef str text, message_id, transaction_id, handle
    cdef uint32_t code
    cdef int64_t offset
    code, text, message_id, transaction_id, offset, handle = entry
    _write_status(out, code, text, part)
    _write_text(out, ENTRY_ID, message_id)
    _write_text(out, ENTRY_TRANSACTION, transaction_id)
    write_number_field(out, ENTRY_OFFSET, <uint64_t>offset)
    return _write_text(out, ENTRY_HANDLE, handle)


cdef int _write_result(Out *out, PutResult result, Out *part) except -1:
    # A delayed message has no offset.
    _write_status(out, OK, "OK", part)
    _write_text(out, ENTRY_ID, result.message_id)
    return write_number_field(out, ENTRY_OFFSET, <uint64_t>max(result.offset, 0))


def pack_send_response(uint32_t code, str text not None, entries):
    cdef Out out = Out(NULL, NULL, 0, 0), entry = out, status = out
    try:
        _write_status(&out, code, text, &status)
        for one in tuple(entries):
            if type(one) is PutResult:
                _write_result(&entry, <PutResult>one, &status)
            else:
                _write_entry(&entry, <tuple?>one, &status)
            _write_part(&out, ENTRIES, &entry)
        return written(&out)
    finally:
        drop(&out)
        drop(&entry)
        drop(&status)
