# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Local reading: MessagePack of the local protocol becomes the values that most calls carry.

The idea: arrays of fields are read into messages to put, results of puts and popped messages, with
nothing of Python's between. Neighbours mostly have the same topic and hosts, and share them.

Invariants: any bytes give values or ValueError (of which UnicodeDecodeError is one), TypeError or
OverflowError; bytes that `local_packing` wrote give equal values. Extensions are ValueError: the
caller has a general form for messages that hold some.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from kvstore.core.buffers cimport View, view_of
from kvstore.core.messages cimport StoredMessage
from kvstore.core.popping.receipts cimport Popped
from kvstore.core.put_values cimport Message, PutResult
from kvstore.core.transport.message_pack cimport (
    MESSAGE_FIELDS, POPPED_FIELDS, RESULT_FIELDS, STORED_FIELDS, In, expect_array, expect_end,
    next_bytes, read_big_endian, read_bool, read_bytes, read_count, read_number, read_shared_text,
    read_text, refuse_bytes,
)

from kvstore.core.put_values import PutStatus

cdef enum:
    # Arrays and maps in one another, in a field.
    DEPTH_MAX = 4
    # Messages between two moments at which other threads may go on: a millisecond.
    TURN_MESSAGES = 1024

cdef dict _statuses = {status.value: status for status in PutStatus}


cdef object _read_any(In *given, int depth):
    # A value of a message's field; ValueError for an extension, which the caller reads.
    cdef int head
    cdef double number
    cdef uint64_t word
    if given.at == given.end or depth > DEPTH_MAX:
        refuse_bytes()
    head = given.at[0]
    if head == 0xC0:
        given.at += 1
        return None
    if head >> 5 == 5 or 0xD9 <= head <= 0xDB:
        return read_text(given)
    if 0xC4 <= head <= 0xC6:
        return read_bytes(given, None)
    if head == 0xC2 or head == 0xC3:
        return read_bool(given)
    if head == 0xCB:
        given.at += 1
        word = read_big_endian(given, 8)
        memcpy(&number, &word, 8)
        return number
    if head >> 4 == 9 or head == 0xDC or head == 0xDD:
        return [_read_any(given, depth + 1) for _ in range(read_count(given))]
    if head >> 4 == 8 or head == 0xDE or head == 0xDF:
        return _read_map(given, depth)
    return read_number(given)


cdef dict _read_map(In *given, int depth):
    cdef int head = next_bytes(given, 1)[0]
    cdef uint64_t count = head & 15
    cdef dict found = {}
    if head == 0xDE or head == 0xDF:
        count = read_big_endian(given, 2 if head == 0xDE else 4)
    if count > <uint64_t>(given.end - given.at) >> 1:
        refuse_bytes()
    for _ in range(count):
        name = _read_any(given, depth + 1)
        found[name] = _read_any(given, depth + 1)
    return found


def read_messages(data not None):
    cdef View view = view_of(data)
    cdef In given = In(view.bytes, view.bytes + view.size)
    cdef Message message
    cdef object topic = None
    cdef list found = []
    cdef Py_ssize_t number
    expect_array(&given, 1)
    for number in range(read_count(&given)):
        if number % TURN_MESSAGES == TURN_MESSAGES - 1:
            # Another thread that waits for Python's lock has its turn.
            with nogil:
                pass
        expect_array(&given, MESSAGE_FIELDS)
        message = Message.__new__(Message)
        message.topic = topic = read_shared_text(&given, topic)
        message.body = _read_any(&given, 0)
        message.queue = _read_any(&given, 0)
        message.tag = _read_any(&given, 0)
        message.keys = _read_any(&given, 0)
        message.properties = _read_any(&given, 0)
        message.message_group = _read_any(&given, 0)
        message.flags = _read_any(&given, 0)
        message.message_id = _read_any(&given, 0)
        message.born_at = _read_any(&given, 0)
        message.deliver_at = _read_any(&given, 0)
        message.delay = _read_any(&given, 0)
        message.delay_level = _read_any(&given, 0)
        message.expires_at = _read_any(&given, 0)
        message.dedup_id = _read_any(&given, 0)
        found.append(message)
    expect_end(&given)
    return found


def read_results(data not None):
    cdef View view = view_of(data)
    cdef In given = In(view.bytes, view.bytes + view.size)
    cdef PutResult result
    cdef object topic = None, status = None
    cdef list found = []
    for _ in range(read_count(&given)):
        expect_array(&given, RESULT_FIELDS)
        result = PutResult.__new__(PutResult)
        result._id, result._number = read_text(&given), -1
        result.topic = topic = read_shared_text(&given, topic)
        result.queue = read_number(&given)
        result.offset = read_number(&given)
        result.position = read_number(&given)
        result.size = read_number(&given)
        status = read_shared_text(&given, status)
        result.status = _statuses.get(status)
        if result.status is None:
            raise ValueError(f"there is no status {status}")
        result.duplicate = read_bool(&given)
        found.append(result)
    expect_end(&given)
    return found


cdef uint64_t _within(int64_t number, uint64_t most) except? 0xFFFFFFFFFFFFFFFF:
    if number < 0 or <uint64_t>number > most:
        raise OverflowError(f"{number} does not fit its field")
    return <uint64_t>number


cdef StoredMessage _read_stored(In *given, StoredMessage last):
    # A message; it shares what it can with the one before it.
    cdef StoredMessage m = StoredMessage.__new__(StoredMessage)
    cdef bint has_last = last is not None
    cdef int64_t number
    expect_array(given, STORED_FIELDS)
    m.topic = read_shared_text(given, last.topic if has_last else None)
    m.queue = _within(read_number(given), 0xFFFFFFFF)
    m.offset = read_number(given)
    m.position = read_number(given)
    m.size = read_number(given)
    m.body = read_bytes(given, None)
    m.raw_properties = read_bytes(given, None)
    m.flags = _within(read_number(given), 0xFFFFFFFF)
    m.system_flags = _within(read_number(given), 0xFFFFFFFF)
    m.born_at = read_number(given)
    m.stored_at = read_number(given)
    m.raw_born_host = read_bytes(given, last.raw_born_host if has_last else None)
    m.raw_store_host = read_bytes(given, last.raw_store_host if has_last else None)
    number = read_number(given)
    if number != <int32_t>number:
        raise OverflowError(f"{number} does not fit its field")
    m.reconsume_times = <int32_t>number
    m.prepared_position = read_number(given)
    m.body_crc = _within(read_number(given), 0xFFFFFFFF)
    m.version = _within(read_number(given), 0xFFFF)
    return m


def read_popped(data not None):
    cdef View view = view_of(data)
    cdef In given = In(view.bytes, view.bytes + view.size)
    cdef Popped one
    cdef StoredMessage message = None
    cdef list found = []
    for _ in range(read_count(&given)):
        expect_array(&given, POPPED_FIELDS)
        one = Popped.__new__(Popped)
        one.message = message = _read_stored(&given, message)
        one._receipt = read_text(&given)
        one.attempt = read_number(&given)
        one.due_at = read_number(&given)
        found.append(one)
    expect_end(&given)
    return found
