# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Encoding: messages, checked and made into the bytes of their records.

The idea: `Encoder.prepare` reads each message once. It makes the whole record, but for its offset,
its position and the store's times; `place` fills in those under the log's lock. A fault raises
ValueError (or the error of the object at fault), and `record.put.explain` then says which message
has which. A key's hash is made beside its bytes. Records are laid out as docs/log-format.md says.

Invariants: a field of a message is read once, so that nothing changes between its check and its
use; a batch that is refused makes no topic; a record is written in whole or not at all.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset

from kvstore.core.buffers cimport grown, store_be32, store_be64
from kvstore.core.crc cimport crc32_of
from kvstore.core.hashing cimport java_hash_of, xxh32_of
from kvstore.core.put_values cimport Message, PutResult
from kvstore.core.queue_offsets cimport QueueOffsets
from kvstore.core.records cimport CRC_PROPERTY, RECORD_CRC_MASK, write_crc_property
from kvstore.core.unique_ids cimport ID_DIGITS, UniqueIds, write_id_number

from collections.abc import Mapping

from kvstore.core.put_values import NO_PROPERTIES

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    bint PyUnicode_Check(object text)

cdef enum:
    MULTI_TAG = 0x2
    HOSTS_V6 = 0x30
    # A record's fixed bytes with IPv4 hosts; and beside hosts and topic.
    FIXED = 91
    FIXED_BESIDE = 74
    # The level of topics that index all keys; at 1 they index the unique id, at 0 nothing.
    ALL_KEYS = 2
    # Bytes of a batch from which other threads run meanwhile.
    LONG = 1 << 16

cdef object _mapping = Mapping
cdef object _no_properties = NO_PROPERTIES


cdef int _refuse(str why) except -1:
    raise ValueError(why)


@cython.final
cdef class PutRoute:
    def __init__(
        self, base, write_queues, host_size, magic, bytes wire not None, key_level, compress_above,
        compression,
    ):
        self.base = base
        self.write_queues = write_queues
        if host_size not in (8, 20):
            raise ValueError("a packed host takes 8 or 20 bytes")
        if not write_queues:
            raise ValueError("a topic has one queue at least")
        self.overhead = FIXED_BESIDE + 2 * host_size + len(wire)
        self._magic = magic
        self._wire = wire
        self.key_level = key_level
        self._compress_above = compress_above
        self._compression = compression


@cython.final
cdef class Encoder:
    def __init__(
        self, routes, UniqueIds ids not None, compress, bytes host not None, *,
        frozenset reserved not None, bytes transient not None, max_body, max_record,
        max_properties, compress_above, compression, property_crc,
    ):
        if len(host) not in (8, 20):
            raise ValueError("a packed host takes 8 or 20 bytes")
        if not isinstance(routes, dict):
            raise TypeError("the routes are no dict")
        self._routes = routes
        self._ids = ids
        self._compress = compress
        self._host = host
        self._reserved = reserved
        self._transient = transient
        self._max_body = max_body
        self._max_record = max_record
        self._max_properties = max_properties
        self._compress_above = compress_above
        self._compression = compression
        self._property_crc = property_crc

    def prepare(self, messages, int64_t now_ms):
        # A list of its own: what runs on the way may change the caller's.
        cdef list given = list(messages)
        cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
        cdef Py_ssize_t i
        cdef bint unrouted = False
        cdef Message message
        cdef list queues = [], groups = []
        cdef object topic = None
        cdef PutRoute route = None
        batch._begin(len(given), self)
        for i in range(batch.count):
            message = <Message>given[i] if type(given[i]) is Message else _read(given[i])
            if route is None or message.topic is not topic:
                topic = message.topic
                route = self._route(topic)
                unrouted = unrouted or route is None
            queues.append(message.queue)
            groups.append(message.message_group)
            batch._topics.append(topic)
            batch._routes.append(route)
            self._add_body(batch, &batch.rows[i], message.body, route)
            _add_numbers(&batch.rows[i], message.flags, message.born_at)
            batch.rows[i].properties_at = batch._properties_size
            batch._add_id(&batch.rows[i], message.message_id, now_ms)
            batch._add_keys(message.keys)
            batch.rows[i].hashes_end = batch.hashes_count
            batch._add_tag(&batch.rows[i], message.tag)
            batch._add_properties(message.properties)
            batch._add_named(b"__SHARDINGKEY\x01", 14, groups[i])
            self._check_sizes(batch, &batch.rows[i])
        if unrouted:
            sizes = [batch.rows[i].size for i in range(batch.count)]
            batch._routes = list(
                self._routes.make_missing(batch._topics, queues, sizes, self._max_record)
            )
            if len(batch._routes) != batch.count:
                _refuse("not each message has a route")
        for i in range(batch.count):
            route = <PutRoute?>batch._routes[i]
            if route.overhead != FIXED_BESIDE + 2 * len(self._host) + len(route._wire):
                _refuse("a route for hosts of another size")
            _choose_queue(&batch.rows[i], route, queues[i], groups[i])
            batch.rows[i].size += route.overhead
            if batch.rows[i].size > self._max_record:
                _refuse("the record is too large")
        batch._write()
        return batch

    cdef PutRoute _route(self, object topic):
        cdef PyObject *found = PyDict_GetItemWithError(self._routes, topic)
        if found != NULL:
            return <object>found
        return self._routes.find(topic)

    cdef int _add_body(self, PreparedBatch batch, Row *row, object body, PutRoute route) except -1:
        cdef Py_ssize_t size
        if type(body) is not bytes:
            if PyUnicode_Check(body):
                _refuse("the body is a text")
            body = bytes(body if isinstance(body, (bytes, bytearray)) else memoryview(body))
        size = PyBytes_GET_SIZE(body)
        if size > self._max_body:
            _refuse("the body is too large")
        above, codec = self._compress_above, self._compression
        if route is not None:
            if route._compress_above is not None:
                above = route._compress_above
            codec = route._compression or codec
        if above is not None and size > <Py_ssize_t>above:
            packed, flags = self._compress(body, codec)
            if len(packed) < size:
                body = packed
                size = PyBytes_GET_SIZE(body)
                row.system_flags |= <uint32_t>flags
        batch._bodies.append(body)
        row.body = <const uint8_t *>PyBytes_AS_STRING(body)
        row.body_size = size
        return 0

    cdef int _check_sizes(self, PreparedBatch batch, Row *row) except -1:
        # Of a record whose topic's overhead is still to come.
        cdef Py_ssize_t size = batch._properties_size - row.properties_at
        row.properties_size = size
        if self._property_crc:
            size += CRC_PROPERTY
        if size > self._max_properties or size + row.body_size > self._max_record - FIXED:
            _refuse("the record or its properties are too large")
        row.size = size + row.body_size
        return 0


cdef Message _read(object message):
    # Of a class derived from Message, which may compute fields.
    if not isinstance(message, Message):
        _refuse("not all are messages")
    return Message(*[getattr(message, name) for name in Message.__match_args__])


cdef int _add_numbers(Row *row, object flags, object born_at) except -1:
    row.flags = <uint32_t>_number(flags, 0xFFFFFFFF)
    row.born_at = -1 if born_at is None else _number(born_at, 0x7FFFFFFFFFFFFFFF)
    return 0


cdef int64_t _number(object given, int64_t largest) except -1:
    cdef int overflow = 0
    cdef int64_t found
    if type(given) is not int:
        _refuse("not a whole number")
    found = PyLong_AsLongLongAndOverflow(given, &overflow)
    if overflow or not 0 <= found <= largest:
        _refuse("a number out of its range")
    return found


cdef int _choose_queue(Row *row, PutRoute route, object queue, object group) except -1:
    cdef uint64_t turn
    cdef const char *at
    cdef Py_ssize_t size
    if queue is not None:
        row.queue_key = route.base + <uint64_t>_number(queue, <int64_t>route.write_queues - 1)
        return 0
    if group is None:
        turn = route._turn
        route._turn += 1
    else:
        at = PyUnicode_AsUTF8AndSize(group, &size)
        turn = xxh32_of(<const uint8_t *>at, size)
    row.queue_key = route.base + turn % route.write_queues
    return 0


@cython.final
cdef class PreparedBatch:
    def __dealloc__(self):
        free(self.rows)
        free(self._properties)
        free(self.hashes)

    def __len__(self):
        return self.count

    cdef int _begin(self, Py_ssize_t count, Encoder encoder) except -1:
        self.count = count
        self._topics, self._bodies, self._routes, self._ids = [], [], [], []
        self._encoder = encoder
        self.rows = <Row *>calloc(count + 1, sizeof(Row))
        if self.rows == NULL:
            raise MemoryError()
        return 0

    # --- properties ---

    cdef int _reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = self._properties_room
        if self._properties_size + size > room:
            room = 2 * room + size + 256
            self._properties = <uint8_t *>grown(self._properties, room, 1)
            self._properties_room = room
        return 0

    cdef int _add(self, const char *text, Py_ssize_t size) except -1:
        self._reserve(size)
        memcpy(self._properties + self._properties_size, text, size)
        self._properties_size += size
        return 0

    cdef const char *_add_text(
        self, object text, bint blanks, Py_ssize_t *size
    ) except NULL:
        # Adds a text that is not empty and has none of the characters that separate.
        cdef const char *at
        cdef Py_ssize_t i
        cdef uint8_t refused = 0
        # No byte of UTF-8 is 255.
        cdef uint8_t blank = 255 if blanks else 32
        if not PyUnicode_Check(text):
            _refuse("not a text")
        at = PyUnicode_AsUTF8AndSize(text, size)
        # Without a branch, so that the compiler takes many bytes at once.
        for i in range(size[0]):
            refused |= (<uint8_t>at[i] < 3) | (<uint8_t>at[i] == blank)
        if refused or not size[0]:
            _refuse("an empty text, or a separator in a text")
        self._add(at, size[0])
        return at

    cdef int _add_named(self, const char *name, Py_ssize_t name_size, object value) except -1:
        # Adds a property of the system; `name` ends with its separator. None: it has none.
        cdef Py_ssize_t size
        if value is None:
            return 0
        self._add(name, name_size)
        self._add_text(value, True, &size)
        self._add(b"\x02", 1)
        return 0

    cdef int _add_hash(self, const uint8_t *at, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = self._hashes_room
        if self.hashes_count == room:
            room = 2 * room + 2 * self.count
            self.hashes = <uint32_t *>grown(self.hashes, room, sizeof(uint32_t))
            self._hashes_room = room
        self.hashes[self.hashes_count] = xxh32_of(at, size)
        self.hashes_count += 1
        return 0

    cdef int _add_id(self, Row *row, object message_id, int64_t now_ms) except -1:
        cdef UniqueIds ids = self._encoder._ids
        cdef Py_ssize_t begin, size
        cdef const char *at
        self._add(b"UNIQ_KEY\x01", 9)
        begin = self._properties_size
        row.id_number = -1
        if message_id is None:
            message_id = ids.prefix
            row.id_number = <int64_t>ids.take(now_ms)
            at = PyUnicode_AsUTF8AndSize(message_id, &size)
            self._reserve(size + ID_DIGITS)
            self._add(at, size)
            write_id_number(row.id_number, self._properties + self._properties_size)
            self._properties_size += ID_DIGITS
        else:
            self._add_text(message_id, False, &size)
        self._ids.append(message_id)
        self._add_hash(self._properties + begin, self._properties_size - begin)
        self._add(b"\x02", 1)
        return 0

    cdef int _add_keys(self, object keys) except -1:
        cdef Py_ssize_t size, i
        cdef const char *at
        if PyUnicode_Check(keys):
            _refuse("keys is a text")
        cdef tuple found = tuple(keys)
        for i in range(len(found)):
            self._add(b" " if i else b"KEYS\x01", 1 if i else 5)
            at = self._add_text(found[i], False, &size)
            self._add_hash(<const uint8_t *>at, size)
        if found:
            self._add(b"\x02", 1)
        return 0

    cdef int _add_tag(self, Row *row, object tag) except -1:
        cdef Py_ssize_t size, i
        cdef const char *at
        row.tag_hash = 0
        if tag is None:
            return 0
        self._add(b"TAGS\x01", 5)
        at = self._add_text(tag, True, &size)
        self._add(b"\x02", 1)
        row.tag_hash = java_hash_of(tag)
        for i in range(size - 1):
            if at[i] == 124 and at[i + 1] == 124:
                row.system_flags |= MULTI_TAG
        return 0

    cdef int _add_properties(self, object properties) except -1:
        cdef PyObject *name
        cdef PyObject *value
        cdef Py_ssize_t turn = 0
        if properties is _no_properties:
            return 0
        if type(properties) is not dict:
            if not isinstance(properties, _mapping):
                _refuse("properties")
            properties = dict(properties.items())
        # No code of Python runs in this loop that could change the dict.
        while PyDict_Next(properties, &turn, &name, &value):
            self._add_property(<object>name, <object>value)
        return 0

    cdef int _add_property(self, object name, object value) except -1:
        cdef Py_ssize_t size, begin = self._properties_size
        cdef bytes transient = self._encoder._transient
        cdef const char *at = self._add_text(name, True, &size)
        # Names of a class derived from str may hash and compare as they like.
        if (name if type(name) is str else str.__str__(name)) in self._encoder._reserved:
            _refuse("a reserved name")
        if size >= len(transient) and memcmp(at, PyBytes_AS_STRING(transient), len(transient)) == 0:
            self._properties_size = begin
            return 0
        self._add(b"\x01", 1)
        self._add_text(value, True, &size)
        self._add(b"\x02", 1)
        return 0

    # --- records ---

    cdef int _write(self) except -1:
        cdef Py_ssize_t i, total = 0, host = PyBytes_GET_SIZE(self._encoder._host)
        cdef uint8_t *out
        for i in range(self.count):
            self.rows[i].at = total
            total += self.rows[i].size
        self.records = PyBytes_FromStringAndSize(NULL, total)
        out = <uint8_t *>PyBytes_AS_STRING(self.records)
        for i in range(self.count):
            self._write_around(out, &self.rows[i], <PutRoute>self._routes[i])
        if total < LONG:
            for i in range(self.count):
                _write_body(out, &self.rows[i], host)
        else:
            with nogil:
                for i in range(self.count):
                    _write_body(out, &self.rows[i], host)
        self._drop_unindexed()
        return 0

    cdef void _write_around(self, uint8_t *out, Row *row, PutRoute route) noexcept:
        # All of a record but its body, and what `place` knows.
        cdef Py_ssize_t host = PyBytes_GET_SIZE(self._encoder._host)
        cdef const uint8_t *packed = <const uint8_t *>PyBytes_AS_STRING(self._encoder._host)
        cdef Py_ssize_t wire = PyBytes_GET_SIZE(route._wire)
        cdef Py_ssize_t size = row.properties_size
        out += row.at
        if host > 8:
            row.system_flags |= HOSTS_V6
        store_be32(out, row.size)
        store_be32(out + 4, route._magic)
        store_be32(out + 12, <uint32_t>row.queue_key)
        store_be32(out + 16, row.flags)
        store_be32(out + 36, row.system_flags)
        memcpy(out + 48, packed, host)
        memcpy(out + 56 + host, packed, host)
        # Reconsume times and prepared position.
        memset(out + 56 + 2 * host, 0, 12)
        store_be32(out + 68 + 2 * host, <uint32_t>row.body_size)
        out += 72 + 2 * host + row.body_size
        memcpy(out, PyBytes_AS_STRING(route._wire), wire)
        out += wire
        if self._encoder._property_crc:
            size += CRC_PROPERTY
        out[0] = <uint8_t>(size >> 8)
        out[1] = <uint8_t>size
        memcpy(out + 2, self._properties + row.properties_at, row.properties_size)

    cdef void _drop_unindexed(self) noexcept:
        # Of the hashes, those stay that the topics index: all, the unique id's, or none.
        cdef Py_ssize_t i, begin = 0, end, kept = 0, mine
        for i in range(self.count):
            end = self.rows[i].hashes_end
            mine = end - begin
            if (<PutRoute>self._routes[i]).key_level < ALL_KEYS:
                mine = (<PutRoute>self._routes[i]).key_level
            memmove(self.hashes + kept, self.hashes + begin, mine * sizeof(uint32_t))
            kept += mine
            begin = end
            self.rows[i].hashes_end = kept
        self.hashes_count = kept

    cdef int number(self, QueueOffsets offsets) except -1:
        cdef Py_ssize_t i
        for i in range(self.count):
            self.rows[i].offset = offsets.take(self.rows[i].queue_key)
        return 0

    cdef Py_ssize_t fitting(self, Py_ssize_t first, Py_ssize_t room) noexcept:
        # The messages from `first` to here fit the room.
        cdef Py_ssize_t stop = first
        while stop < self.count and self.rows[stop].size <= room:
            room -= self.rows[stop].size
            stop += 1
        return stop

    cdef bytes place(
        self, Py_ssize_t first, Py_ssize_t stop, int64_t position, int64_t stored_at
    ):
        # The messages from `first` to `stop`, at a position; the bytes of their records.
        cdef uint8_t *data = <uint8_t *>PyBytes_AS_STRING(self.records)
        cdef Py_ssize_t i, begin, end, host = PyBytes_GET_SIZE(self._encoder._host)
        cdef Row *row
        if first == stop:
            return b""
        self.stored_at = stored_at
        begin = self.rows[first].at
        end = self.rows[stop - 1].at + self.rows[stop - 1].size
        for i in range(first, stop):
            row = &self.rows[i]
            row.position = position + row.at - begin
            store_be64(data + row.at + 20, row.offset)
            store_be64(data + row.at + 28, row.position)
            store_be64(data + row.at + 40, stored_at if row.born_at < 0 else row.born_at)
            store_be64(data + row.at + 48 + host, stored_at)
            if self._encoder._property_crc:
                write_crc_property(
                    data + row.at, row.size - CRC_PROPERTY, data + row.at + row.size - CRC_PROPERTY
                )
        return self.records if end - begin == len(self.records) else self.records[begin:end]

    # --- looking at it ---

    @property
    def queue_keys(self):
        return [self.rows[i].queue_key for i in range(self.count)]

    def results(self, status):
        cdef list found = []
        cdef Py_ssize_t i
        cdef PutResult result
        for i in range(self.count):
            result = PutResult.__new__(PutResult)
            result._id = self._ids[i]
            result._number = self.rows[i].id_number
            result.topic = self._topics[i]
            result.queue = <uint32_t>self.rows[i].queue_key
            result.offset = self.rows[i].offset
            result.position = self.rows[i].position
            result.size = self.rows[i].size
            result.status = status
            found.append(result)
        return found


cdef void _write_body(uint8_t *out, Row *row, Py_ssize_t host) noexcept nogil:
    store_be32(out + row.at + 8, crc32_of(row.body, row.body_size) & RECORD_CRC_MASK)
    memcpy(out + row.at + 72 + 2 * host, row.body, row.body_size)
