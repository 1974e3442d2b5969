# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Encoding: messages, checked and made into the bytes of their records.

The idea: `Encoder.prepare` reads each message once. It makes the whole record, but for its offset,
its position and the store's times; `place` fills in those under the log's lock. A fault raises
ValueError (or the error of the object at fault), and `record.put.explain` then says which message
has which. A key's hash is made beside its bytes. Records are laid out as docs/log-format.md says.

Invariants: a field of a message is read once, or its copy is checked, so that nothing changes
between its check and its use; a batch that is refused makes no topic; a record is written in whole
or not at all.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, strlen

from kvstore.core.buffers cimport grown, store_be32, store_be64
from kvstore.core.crc cimport crc32_of
from kvstore.core.hashing cimport java_hash_of, xxh32_of
from kvstore.core.expiry cimport EXPIRY_SIZE, write_expiry
from kvstore.core.put_fields cimport (
    DUE_DIGITS, QUEUE_DIGITS, Times, due_of, is_delayed, message_of, number_or_none, number_within,
    refuse, times_of, write_digits,
)
from kvstore.core.put_route cimport PutRoute, window_of
from kvstore.core.put_values cimport Message, PutResult
from kvstore.core.records cimport CRC_PROPERTY, RECORD_CRC_MASK, write_crc_property
from kvstore.core.texts cimport NameSet, WORD, copy_text
from kvstore.core.unique_ids cimport ID_DIGITS, UniqueIds, write_id_number

from collections.abc import Mapping

from kvstore.core.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.core.put_values import NO_PROPERTIES

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyUnicode_Check(object text)
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MULTI_TAG = 0x2
    HOSTS_V6 = 0x30
    # A record's fixed bytes with IPv4 hosts.
    FIXED = 91
    # The level of topics that index all keys; at 1 they index the unique id, at 0 nothing.
    ALL_KEYS = 2
    # Bytes of a batch from which other threads run meanwhile.
    LONG = 1 << 16
    # Bytes of a dedup id's property: 8 of its name, 255 of the id.
    DEDUP_MAX = 263

# Callers know it as a part of encoding.
globals()["PutRoute"] = PutRoute
cdef object _mapping = Mapping, _no_properties = NO_PROPERTIES
cdef object _timer_topic = TIMER_TOPIC, _half_topic = TRANSACTION_HALF_TOPIC


@cython.final
cdef class Encoder:
    def __cinit__(
        self, routes, UniqueIds ids not None, compress, bytes host not None, *,
        frozenset reserved not None, bytes transient not None, max_body, max_record,
        max_properties, compress_above, compression, property_crc, any_time, cut_ms,
    ):
        if len(host) not in (8, 20):
            raise ValueError("a packed host takes 8 or 20 bytes")
        if not isinstance(routes, dict):
            raise TypeError("the routes are no dict")
        self.routes = routes
        self.ids = ids
        self._compress = compress
        self._host = host
        self._reserved = NameSet(reserved)
        self._transient = transient
        self.limits.body = max_body
        self.limits.record = max_record
        self.limits.properties = max_properties
        self.limits.transient = <const uint8_t *>PyBytes_AS_STRING(transient)
        self.limits.transient_size = len(transient)
        self.limits.compress_above = PY_SSIZE_T_MAX if compress_above is None else compress_above
        self._compression = compression
        self.limits.property_crc = property_crc
        self.limits.times = times_of(any_time, cut_ms)

    def prepare(self, messages, int64_t now_ms, held=None, bint any_kind=False):
        # A tuple: what runs on the way may change the caller's list.
        cdef tuple given = tuple(messages)
        cdef PreparedBatch batch = PreparedBatch.__new__(PreparedBatch)
        cdef Py_ssize_t i, size
        cdef const Times *times = &self.limits.times
        cdef const uint8_t *name
        cdef uint8_t expiry[EXPIRY_SIZE]
        cdef Message message
        cdef bytes raw
        cdef object topic = None
        cdef PutRoute route = None
        batch.begin(len(given), self)
        batch.any_kind = any_kind
        for i in range(batch.count):
            message = <Message>given[i] if type(given[i]) is Message else message_of(given[i])
            if route is None or message.topic is not topic:
                topic = message.topic
                route = self.route(topic)
            batch.set_route(i, topic, route)
            self._add_body(batch, &batch.rows[i], message.body, route)
            batch.rows[i].queue = number_or_none(message.queue, 0xFFFFFFFF)
            batch.rows[i].flags = <uint32_t>number_within(message.flags, 0xFFFFFFFF)
            batch.rows[i].born_at = number_or_none(message.born_at, INT64_MAX)
            batch.rows[i].properties_at = batch.properties_size
            if message.expires_at is not None:
                write_expiry(number_within(message.expires_at, INT64_MAX), times, expiry)
                batch.add(<const char *>expiry, EXPIRY_SIZE)
            if message.dedup_id is not None:
                batch._add_dedup_id(&batch.rows[i], message.dedup_id, route)
            batch._add_id(&batch.rows[i], message.message_id, now_ms)
            batch._add_keys(message.keys)
            batch.rows[i].hashes_end = batch.hashes_count
            batch._add_tag(&batch.rows[i], message.tag)
            batch._add_properties(message.properties)
            batch._add_group(&batch.rows[i], message.message_group)
            if held is not None:
                raw, batch.rows[i].due = held[i]
                batch.add(PyBytes_AS_STRING(raw), len(raw))
                batch.rows[i].is_prepared = True
                if is_delayed(message):
                    refuse("a prepared message can't be delayed")
            elif is_delayed(message):
                batch.rows[i].delayed = True
                batch.rows[i].due = due_of(message, now_ms, times)
            if batch.rows[i].dedup_size and (held is not None or is_delayed(message)):
                refuse("a message that waits has no dedup id")
            if batch.rows[i].due:
                name = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &size)
                batch.add_wait(&batch.rows[i], name, size)
            batch.rows[i].properties_size = batch.properties_size - batch.rows[i].properties_at
            batch.measure_row(&batch.rows[i])
        self.finish(batch)
        return batch

    cdef int finish(self, PreparedBatch batch) except -1:
        # Routes and sizes of a batch's checked messages, then their records.
        cdef Py_ssize_t i
        cdef PutRoute route, held = None
        if batch.unrouted:
            named = [batch.rows[i].queue for i in range(batch.count)]
            queues = [None if queue < 0 else queue for queue in named]
            sizes = [batch.rows[i].size for i in range(batch.count)]
            topics = [batch.topic(i) for i in range(batch.count)]
            found = list(self.routes.make_missing(topics, queues, sizes, self.limits.record))
            if len(found) != batch.count or None in found:
                refuse("not each message has a route")
            for i in range(batch.count):
                batch.set_route(i, topics[i], <PutRoute?>found[i])
        for i in range(batch.count):
            route = batch.route(i)
            if route.host_size != len(self._host):
                refuse("a route for hosts of another size")
            if route.holds_pending and not batch.rows[i].ends:
                refuse("the topic is the store's own")
            # A copy of a message that waited was checked when that was put.
            if route.rules and not batch.any_kind and not batch.rows[i].ends:
                check_kind(route, batch.rows, i)
            if batch.rows[i].queue >= route.write_queues:
                refuse("a number out of its range")
            batch.rows[i].queue_key = route.queue_key(
                batch.rows[i].queue, batch.rows[i].grouped, batch.rows[i].group_hash
            )
            if batch.rows[i].due:
                if held is None:
                    held = self.pending_route(batch.rows[i].is_prepared)
                route = held
                self._hold(batch, i, held)
            batch.rows[i].size += route.overhead
            if batch.rows[i].size > self.limits.record:
                refuse("the record is too large")
        batch._write()
        return 0

    cdef int _hold(self, PreparedBatch batch, Py_ssize_t i, PutRoute held) except -1:
        # Lets a message wait in the route `held`. Its queue's number ends its properties.
        cdef Row *row = &batch.rows[i]
        cdef Py_ssize_t end = row.properties_at + row.properties_size
        row.target = row.queue_key
        write_digits(<uint32_t>row.target, QUEUE_DIGITS, batch.properties + end - 1 - QUEUE_DIGITS)
        row.queue_key = held.base
        batch.set_route(i, batch.topic(i), held)
        if not row.is_prepared and (batch.first_due == 0 or row.due < batch.first_due):
            batch.first_due = row.due
        return 0

    cdef PutRoute pending_route(self, bint is_prepared):
        # That of the topic in which messages wait.
        topic = _half_topic if is_prepared else _timer_topic
        return self.route(topic) or self.routes.make_pending(topic)

    cdef PutRoute route(self, object topic):
        cdef PyObject *found = PyDict_GetItemWithError(self.routes, topic)
        if found != NULL:
            return <object>found
        return self.routes.find(topic)

    cdef int _add_body(self, PreparedBatch batch, Row *row, object body, PutRoute route) except -1:
        if type(body) is not bytes:
            if PyUnicode_Check(body):
                refuse("the body is a text")
            body = bytes(body if isinstance(body, (bytes, bytearray)) else memoryview(body))
        batch.set_body(row, body)
        if row.body_size > self.limits.body:
            refuse("the body is too large")
        if row.body_size > self.compress_above(route):
            self.compress_body(batch, row, body, route)
        return 0

    cdef Py_ssize_t compress_above(self, PutRoute route) noexcept:
        # The size, in bytes, above which bodies are compressed.
        if route is None or route.compress_above < 0:
            return self.limits.compress_above
        return route.compress_above

    cdef int compress_body(
        self, PreparedBatch batch, Row *row, bytes body, PutRoute route
    ) except -1:
        cdef bytes packed
        codec = self._compression if route is None else route.compression or self._compression
        packed, flags = self._compress(body, codec)
        if len(packed) < len(body):
            batch.set_body(row, packed)
            row.system_flags |= <uint32_t>flags
        return 0


# Without the garbage collector: no record leads back to its batch.
@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class PreparedBatch:
    def __dealloc__(self):
        free(self.rows)
        free(self.properties)
        free(self.hashes)

    def __len__(self):
        return self.count

    cdef int begin(self, Py_ssize_t count, Encoder encoder) except -1:
        self.count = count
        self._objects = [None] * (OBJECTS * count)
        self._encoder, self.closings = encoder, encoder.closings
        self.limits = encoder.limits
        self._reserved = encoder._reserved
        self._id_prefix = PyUnicode_AsUTF8AndSize(encoder.ids.prefix, &self._id_prefix_size)
        self.rows = <Row *>calloc(max(count, 1), sizeof(Row))
        if self.rows == NULL:
            raise MemoryError()
        return 0

    # --- properties ---

    cdef int _reserve(self, Py_ssize_t size) except -1 nogil:
        cdef Py_ssize_t room = self._properties_room
        if self.properties_size + size > room:
            room = 2 * room + size + 256
            self.properties = <uint8_t *>grown(self.properties, room, 1)
            self._properties_room = room
        return 0

    cdef int add(self, const char *text, Py_ssize_t size) except -1 nogil:
        self._reserve(size)
        memcpy(self.properties + self.properties_size, text, size)
        self.properties_size += size
        return 0

    cdef int add_text(self, const uint8_t *at, Py_ssize_t size, bint blanks) except -1 nogil:
        # Adds a text that is not empty and has none of the characters that separate; 1 if it has
        # more than ASCII. The copy is checked: nobody can change it.
        cdef int found
        self._reserve(size + WORD)
        found = copy_text(self.properties + self.properties_size, at, size, blanks)
        if found < 0:
            refuse("an empty text, or a separator in a text")
        self.properties_size += size
        return found

    cdef int _add_str(self, object text, bint blanks) except -1:
        cdef const char *at
        cdef Py_ssize_t size
        if not PyUnicode_Check(text):
            refuse("not a text")
        at = PyUnicode_AsUTF8AndSize(text, &size)
        return self.add_text(<const uint8_t *>at, size, blanks)

    cdef int add_hash(self, Py_ssize_t begin) except -1 nogil:
        # Of the properties' bytes from `begin` on.
        cdef Py_ssize_t room = self._hashes_room
        if self.hashes_count == room:
            room = 2 * room + 2 * self.count
            self.hashes = <uint32_t *>grown(self.hashes, room, sizeof(uint32_t))
            self._hashes_room = room
        self.hashes[self.hashes_count] = xxh32_of(
            self.properties + begin, self.properties_size - begin
        )
        self.hashes_count += 1
        return 0

    cdef int _add_dedup_id(self, Row *row, object dedup_id, PutRoute route) except -1:
        self.begin_dedup_id(row, window_of(route))
        self._add_str(dedup_id, True)
        return self.end_dedup_id(row)

    cdef int begin_dedup_id(self, Row *row, int64_t window) except -1 nogil:
        row.dedup_at = self.properties_size
        if window < 0:
            refuse("the topic has no window for dedup ids")
        return self.add(b"__DEDUP\x01", 8)

    cdef int end_dedup_id(self, Row *row) except -1 nogil:
        # The first hash is its, of name and id, which no key of a message can have.
        row.dedup_size = self.properties_size - row.dedup_at
        if row.dedup_size > DEDUP_MAX:
            refuse("the dedup id is too long")
        self.deduped += 1
        self.add_hash(row.dedup_at)
        return self.add(b"\x02", 1)

    cdef int _add_id(self, Row *row, object message_id, int64_t now_ms) except -1:
        cdef UniqueIds ids = self._encoder.ids
        row.id_number = -1
        self.add(b"UNIQ_KEY\x01", 9)
        row.id_at = self.properties_size
        if message_id is None:
            row.id_number = <int64_t>ids.take(now_ms)
            self.add_made_id(row)
        else:
            self._add_str(message_id, False)
            self.set_id(row, message_id)
        return self.end_id(row)

    cdef int add_made_id(self, Row *row) except -1 nogil:
        self.add(self._id_prefix, self._id_prefix_size)
        self._reserve(ID_DIGITS)
        write_id_number(row.id_number, self.properties + self.properties_size)
        self.properties_size += ID_DIGITS
        return 0

    cdef int end_id(self, Row *row) except -1 nogil:
        self.add_hash(row.id_at)
        return self.add(b"\x02", 1)

    cdef int _add_keys(self, object keys) except -1:
        cdef Py_ssize_t i, begin
        if PyUnicode_Check(keys):
            refuse("keys is a text")
        cdef tuple found = tuple(keys)
        for i in range(len(found)):
            begin = self.begin_key(i)
            self._add_str(found[i], False)
            self.add_hash(begin)
        return self.add(b"\x02", 1) if found else 0

    cdef Py_ssize_t begin_key(self, Py_ssize_t number) except -1 nogil:
        # Where the key's bytes begin.
        self.add(b" " if number else b"KEYS\x01", 1 if number else 5)
        return self.properties_size

    cdef int _add_tag(self, Row *row, object tag) except -1:
        cdef Py_ssize_t begin
        if tag is None:
            return 0
        self.add(b"TAGS\x01", 5)
        begin = self.properties_size
        self._add_str(tag, True)
        return self.end_tag(row, begin)

    cdef int end_tag(self, Row *row, Py_ssize_t begin) except -1 nogil:
        # Of the tag's bytes from `begin` on.
        cdef const uint8_t *at = self.properties + begin
        cdef Py_ssize_t i, size = self.properties_size - begin
        row.tag_hash = java_hash_of(at, size)
        for i in range(size - 1):
            if at[i] == 124 and at[i + 1] == 124:
                row.system_flags |= MULTI_TAG
        return self.add(b"\x02", 1)

    cdef int _add_properties(self, object properties) except -1:
        cdef PyObject *name
        cdef PyObject *value
        cdef Py_ssize_t turn = 0, begin
        if properties is _no_properties:
            return 0
        if type(properties) is not dict:
            if not isinstance(properties, _mapping):
                refuse("properties")
            properties = dict(properties.items())
        # No code of Python runs in this loop that could change the dict.
        while PyDict_Next(properties, &turn, &name, &value):
            begin = self.properties_size
            self._add_str(<object>name, True)
            if self.end_name(begin):
                self._add_str(<object>value, True)
                self.add(b"\x02", 1)
        return 0

    cdef int end_name(self, Py_ssize_t begin) except -1 nogil:
        # Of a property's name from `begin` on: 1 if its value follows; 0 if it is not kept.
        cdef const uint8_t *at = self.properties + begin
        cdef Py_ssize_t size = self.properties_size - begin, hidden = self.limits.transient_size
        if self._reserved.has(at, size):
            refuse("a reserved name")
        if size >= hidden and not memcmp(at, self.limits.transient, hidden):
            self.properties_size = begin
            return 0
        self.add(b"\x01", 1)
        return 1

    cdef int _add_group(self, Row *row, object group) except -1:
        cdef Py_ssize_t begin
        if group is None:
            return 0
        self.add(b"__SHARDINGKEY\x01", 14)
        begin = self.properties_size
        self._add_str(group, True)
        return self.end_group(row, begin)

    cdef int end_group(self, Row *row, Py_ssize_t begin) except -1 nogil:
        row.grouped = True
        row.group_hash = xxh32_of(self.properties + begin, self.properties_size - begin)
        return self.add(b"\x02", 1)

    cdef int add_wait(self, Row *row, const uint8_t *topic, Py_ssize_t size) except -1 nogil:
        # The properties of a message that waits, behind its others; its queue is known later.
        self.add_time(b"TRAN_CHECK_MS\x01" if row.is_prepared else b"TIMER_OUT_MS\x01", row.due)
        self.add(b"REAL_TOPIC\x01", 11)
        self.add(<const char *>topic, size)
        return self.add(b"\x02REAL_QID\x010000000000\x02", 21)

    cdef int add_time(self, const char *name, int64_t time) except -1 nogil:
        cdef uint8_t digits[DUE_DIGITS]
        self.add(name, strlen(name))
        self.add(<const char *>digits, write_digits(time, DUE_DIGITS, digits))
        return self.add(b"\x02", 1)

    cdef int measure_row(self, Row *row) except -1 nogil:
        # The row's size without its topic's overhead, when it has its body and its properties.
        cdef Py_ssize_t size = row.properties_size
        if self.limits.property_crc:
            size += CRC_PROPERTY
        if size > self.limits.properties or size + row.body_size > self.limits.record - FIXED:
            refuse("the record or its properties are too large")
        row.size = size + row.body_size
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
            self._write_around(out, &self.rows[i], self.route(i))
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
        # Reconsume times; then where the pending message is whose wait this one ends.
        store_be32(out + 56 + 2 * host, 0)
        store_be64(out + 60 + 2 * host, <uint64_t>row.ends)
        store_be32(out + 68 + 2 * host, <uint32_t>row.body_size)
        out += 72 + 2 * host + row.body_size
        memcpy(out, PyBytes_AS_STRING(route._wire), wire)
        out += wire
        if self.limits.property_crc:
            size += CRC_PROPERTY
        out[0] = <uint8_t>(size >> 8)
        out[1] = <uint8_t>size
        memcpy(out + 2, self.properties + row.properties_at, row.properties_size)

    cdef void _drop_unindexed(self) noexcept:
        # Of the hashes, those stay that the topics index: all, the unique id's, or none; and a
        # dedup id's.
        cdef Py_ssize_t i, begin = 0, end, kept = 0, mine
        for i in range(self.count):
            end = self.rows[i].hashes_end
            mine = end - begin
            if self.route(i).key_level < ALL_KEYS:
                mine = self.route(i).key_level + (self.rows[i].dedup_size > 0)
            memmove(self.hashes + kept, self.hashes + begin, mine * sizeof(uint32_t))
            kept += mine
            begin = end
            self.rows[i].hashes_end = kept
        self.hashes_count = kept

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
            if self.limits.property_crc:
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
            result._id = self.message_id(i)
            result._number = self.rows[i].id_number
            result.topic = self.topic(i)
            result.queue = <uint32_t>self.rows[i].queue_key
            result.offset = self.rows[i].offset
            if self.rows[i].due:
                result.queue, result.offset = <uint32_t>self.rows[i].target, -1
            result.position = self.rows[i].position
            result.size = self.rows[i].size
            result.status = status
            found.append(result)
        return found

    def position(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(f"there is no message {i}")
        return self.rows[i].position

    def forget_bodies(self):
        cdef Py_ssize_t i
        self.records = b""
        for i in range(self.count):
            self._objects[OBJECTS * i + BODY] = None


cdef void _write_body(uint8_t *out, Row *row, Py_ssize_t host) noexcept nogil:
    # Of the copy: nobody can change it.
    cdef uint8_t *body = out + row.at + 72 + 2 * host
    memcpy(body, row.body, row.body_size)
    store_be32(out + row.at + 8, crc32_of(body, row.body_size) & RECORD_CRC_MASK)
