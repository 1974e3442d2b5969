# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Messages: the bytes of one record, or of many records of a queue, become `StoredMessage`s.

The idea: numbers are loaded into fields of C, body and properties are copied once, and each becomes
an object of Python, or is taken apart, when somebody asks. Neighbours in a log mostly have the same
topic and hosts, so those objects are shared. `QueueReader` goes from an offset of a queue over the
positions that are in memory to messages, and takes records as long as they are the expected ones.
`decode_rows` takes records that lie side by side, as an archive's do. An `ExpiryCheck` tells the
expired ones before they are decoded. (RocketMQ: MessageDecoder.decode.)

Invariants: any bytes give a message or RecordDamaged, nothing else; a message keeps no reference to
the buffer, and reading a field never touches the disk; `QueueReader` gives what `decode` gives, but
for messages that a check passes over.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kvstore.core.buffers cimport (
    View, fetch_ahead, index_of, load_be32, load_be64, numbers_of, view_of,
)
from kvstore.core.expiry cimport expiry_of
from kvstore.core.packed_runs cimport DecodedRuns
from kvstore.core.records cimport (
    BORN_V6, FLAGS_AT, Kind, Named, OFFSET_AT, Parts, QUEUE_AT, RECORD, STORE_V6, STORED_AT, Span,
    V6_EXTRA, VALUE_MAX, check_body, check_whole, damaged, find_named, left_of, measure, number_of,
    text_of,
)
from kvstore.core.tail cimport Tail

from kvstore.core.names import RESERVED
from kvstore.core.records import decode_properties
from kvstore.errors import FormatError, MessageIllegal, RecordDamaged, SegmentDamaged

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "<arpa/inet.h>" nogil:
    int AF_INET, AF_INET6
    const char *inet_ntop(int family, const void *address, char *out, unsigned int room)

cdef enum:
    BORN_HOST_AT = 48
    HOST_V4 = 8
    HOST_V6 = 20
    COMPRESSED = 1
    ADDRESS_ROOM = 64
    # Records of a queue whose memory is asked for while one is decoded, and the bytes of each.
    AHEAD = 4
    FETCHED = 384
    # Positions that are copied at a time.
    AT_ONCE = 64

# Those of the record that was decoded last.
cdef str _topic = ""
cdef bytes _born_host = b""
cdef bytes _store_host = b""


def unpack_host(bytes raw not None):
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(raw)
    cdef char text[ADDRESS_ROOM]
    if size != HOST_V4 and size != HOST_V6:
        raise FormatError(f"a host takes {HOST_V4} or {HOST_V6} bytes, not {size}")
    inet_ntop(AF_INET if size == HOST_V4 else AF_INET6, at, text, ADDRESS_ROOM)
    return (<bytes>text).decode("ascii"), load_be32(at + size - 4)


@cython.no_gc
@cython.freelist(256)
cdef class StoredMessage:
    """A message as the log holds it.

    `body` is as it was put (decompressed), `body_view` a view of these bytes. `position` and `size`
    are bytes in the log, `offset` the place in the queue; times are milliseconds since the epoch.
    `properties` are all the record's properties, the system's own (KEYS, TAGS, UNIQ_KEY ...)
    included; `user_properties` are only the caller's. Hosts are `(address, port)`. Two are equal if
    all fields of their records are.
    """

    __match_args__ = (
        "topic", "queue", "offset", "position", "size", "body", "raw_properties", "flags",
        "system_flags", "born_at", "stored_at", "raw_born_host", "raw_store_host",
        "reconsume_times", "prepared_position", "body_crc", "version",
    )

    def __init__(
        self, topic, queue, offset, position, size, body, raw_properties, flags, system_flags,
        born_at, stored_at, raw_born_host, raw_store_host, reconsume_times, prepared_position,
        body_crc, version=1,
    ):
        self.topic = topic
        self.body = body
        self.raw_properties = raw_properties
        self.raw_born_host = raw_born_host
        self.raw_store_host = raw_store_host
        try:
            self.queue = queue
            self.offset = offset
            self.position = position
            self.size = size
            self.flags = flags
            self.system_flags = system_flags
            self.born_at = born_at
            self.stored_at = stored_at
            self.reconsume_times = reconsume_times
            self.prepared_position = prepared_position
            self.body_crc = body_crc
            self.version = version
        except OverflowError as e:
            raise MessageIllegal(f"a number doesn't fit its field: {e}") from None

    cdef tuple _fields(self):
        return tuple([getattr(self, name) for name in StoredMessage.__match_args__])

    def __eq__(self, other):
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return self._fields() == (<StoredMessage>other)._fields()

    def __hash__(self):
        return hash((self.position, self.topic, self.queue, self.offset))

    def __repr__(self):
        pairs = zip(StoredMessage.__match_args__, self._fields())
        return f"StoredMessage({', '.join([f'{name}={value!r}' for name, value in pairs])})"

    def __reduce__(self):
        return type(self), self._fields(), self._properties

    def __setstate__(self, properties):
        self._properties = properties

    def __replace__(self, **changes):
        return type(self)(**(dict(zip(StoredMessage.__match_args__, self._fields())) | changes))

    def see_as(self, str topic not None, dict properties):
        self.topic = topic
        if properties is not None:
            self._properties = properties

    cdef str _value(self, Span *named, str name):
        if self._properties is not None:
            return self._properties.get(name)
        if not self._is_searched:
            if self._raw_properties is None:
                raise TypeError("the message has no properties")
            find_named(self._raw_properties, &self._named)
            self._is_searched = True
        return None if named.at == NULL else text_of(named.at, named.size, VALUE_MAX)

    @property
    def raw_properties(self):
        return self._raw_properties

    @raw_properties.setter
    def raw_properties(self, bytes raw not None):
        self._raw_properties = raw
        self._expires_at = expiry_of(
            <const uint8_t *>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw)
        )
        self._properties = None
        self._is_searched = False

    @property
    def properties(self):
        if self._properties is None:
            self._properties = decode_properties(self._raw_properties)
        return self._properties

    @property
    def body_view(self):
        return PyMemoryView_FromObject(self.body)

    @property
    def user_properties(self):
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def tag(self):
        return self._value(&self._named.tag, "TAGS")

    @property
    def keys(self):
        found = self._value(&self._named.keys, "KEYS")
        if not found:
            return []
        # Most messages have one, and splitting takes longer than looking.
        return [key for key in found.split(" ") if key] if " " in found else [found]

    @property
    def message_id(self):
        return self._value(&self._named.unique_id, "UNIQ_KEY") or self.position_id

    @property
    def message_group(self):
        return self._value(&self._named.group, "__SHARDINGKEY")

    @property
    def expires_at(self):
        return None if self._expires_at < 0 else self._expires_at

    @property
    def position_id(self):
        return (self.raw_store_host + self.position.to_bytes(8, "big")).hex().upper()

    @property
    def born_host(self):
        return unpack_host(self.raw_born_host)

    @property
    def store_host(self):
        return unpack_host(self.raw_store_host)


def stored_of(row not None):
    cdef StoredMessage message = StoredMessage.__new__(StoredMessage)
    (
        message.topic, message.queue, message.offset, message.position, message.size, message.body,
        raw_properties, message.flags, message.system_flags, message.born_at, message.stored_at,
        message.raw_born_host, message.raw_store_host, message.reconsume_times,
        message.prepared_position, message.body_crc, message.version,
    ) = row
    message.raw_properties = raw_properties
    if message.topic is None or message.body is None:
        raise TypeError("a message has a topic and a body")
    if message.raw_born_host is None or message.raw_store_host is None:
        raise TypeError("a message has hosts")
    return message


cpdef bint any_expired(list messages, int64_t now) except -1:
    cdef int64_t time
    for message in messages:
        if isinstance(message, StoredMessage):
            time = (<StoredMessage>message)._expires_at
            if 0 <= time <= now:
                return True
    return False


def record_bytes(list messages not None):
    cdef int64_t size, total = 0
    for message in messages:
        size = (<StoredMessage?>message).size
        if not 0 <= size <= INT64_MAX - total:
            raise OverflowError(f"{size} more bytes are no size")
        total += size
    return total


@cython.final
cdef class ExpiryCheck:
    cdef readonly int64_t now
    cdef readonly list offsets
    cdef Py_ssize_t _most
    cdef int64_t _end

    def __cinit__(self, int64_t now, Py_ssize_t most, int64_t end):
        self.now = now
        self.offsets = []
        self._most = most
        self._end = end

    def ends_at(self, int64_t offset):
        return offset >= self._end or len(self.offsets) >= self._most

    def forget_from(self, int64_t offset):
        cdef Py_ssize_t kept = len(self.offsets)
        while kept and self.offsets[kept - 1] >= offset:
            kept -= 1
        del self.offsets[kept:]

    def keep(self, list messages not None):
        cdef list kept = []
        cdef int64_t time
        if not any_expired(messages, self.now):
            return messages
        for message in messages:
            time = (<StoredMessage?>message)._expires_at
            if 0 <= time <= self.now:
                self.offsets.append((<StoredMessage>message).offset)
            else:
                kept.append(message)
        return kept

    cdef bint expires(self, const uint8_t *record, Parts *p) noexcept:
        cdef int64_t time = expiry_of(record + p.properties_at, p.properties_size)
        return 0 <= time <= self.now


cdef bytes _host(const uint8_t *at, Py_ssize_t size, bytes known):
    if PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), at, size) == 0:
        return known
    return PyBytes_FromStringAndSize(<const char *>at, size)


cdef bint _is_text(const uint8_t *at, Py_ssize_t size, str text) except -1:
    cdef Py_ssize_t known_size
    cdef const char *known = PyUnicode_AsUTF8AndSize(text, &known_size)
    return known_size == size and memcmp(known, at, size) == 0


cdef StoredMessage _message(const uint8_t *record, Parts *p, str topic, object unpack):
    # Of a measured record; raises RecordDamaged, without a position, if its body can't be unpacked.
    global _born_host, _store_host
    cdef StoredMessage m = StoredMessage.__new__(StoredMessage)
    cdef uint32_t flags = load_be32(record + FLAGS_AT)
    cdef Py_ssize_t born = HOST_V6 if flags & BORN_V6 else HOST_V4
    cdef Py_ssize_t store = HOST_V6 if flags & STORE_V6 else HOST_V4
    cdef const uint8_t *at = record + BORN_HOST_AT
    m.topic = topic
    m.size = p.size
    m.body_crc = load_be32(record + 8)
    m.queue = load_be32(record + QUEUE_AT)
    m.flags = load_be32(record + 16)
    m.offset = <int64_t>load_be64(record + OFFSET_AT)
    m.position = <int64_t>load_be64(record + 28)
    m.system_flags = flags
    m.born_at = <int64_t>load_be64(record + 40)
    m.raw_born_host = _born_host = _host(at, born, _born_host)
    m.stored_at = <int64_t>load_be64(at + born)
    m.raw_store_host = _store_host = _host(at + born + 8, store, _store_host)
    at += born + 8 + store
    m.reconsume_times = <int32_t>load_be32(at)
    m.prepared_position = <int64_t>load_be64(at + 4)
    m.version = p.version
    m.body = PyBytes_FromStringAndSize(<const char *>record + p.body_at, p.body_size)
    m._expires_at = expiry_of(record + p.properties_at, p.properties_size)
    m._raw_properties = PyBytes_FromStringAndSize(
        <const char *>record + p.properties_at, p.properties_size
    )
    # An empty body stays one, whatever the flags say, as in RocketMQ.
    if flags & COMPRESSED and unpack is not None and p.body_size:
        m.body = unpack(m.body, flags)
    return m


cdef StoredMessage _decoded(
    const uint8_t *record, Py_ssize_t left, object position, bint check_crc, object unpack,
    bint property_crc,
):
    # The record that `left` bytes begin with.
    global _topic
    cdef Parts p
    cdef Kind found
    fetch_ahead(record, min(left, FETCHED))
    found = measure(record, left, number_of(position), &p)
    if found == RECORD and property_crc:
        found = check_whole(record, &p)
    if found == RECORD and check_crc:
        found = check_body(record, &p)
    if found:
        raise damaged(found, record, &p, position)
    try:
        if not _is_text(record + p.topic_at, p.topic_size, _topic):
            _topic = PyUnicode_DecodeUTF8(<const char *>record + p.topic_at, p.topic_size, NULL)
        return _message(record, &p, _topic, unpack)
    except (RecordDamaged, UnicodeDecodeError) as e:
        raise RecordDamaged(f"record at {position} is damaged: {e}", position) from None


def decode(
    buffer, Py_ssize_t at, Py_ssize_t end, position, bint check_crc=True, unpack=None,
    bint property_crc=False,
):
    cdef View view = view_of(buffer)
    cdef Py_ssize_t left = left_of(view, at, end)
    cdef const uint8_t *record = view.bytes + at if left else NULL
    return _decoded(record, left, position, check_crc, unpack, property_crc)


def decode_rows(
    buffer, bounds, positions, Py_ssize_t start, Py_ssize_t stop, bint check_crc=True, unpack=None,
):
    cdef View view = view_of(buffer), ends = numbers_of(bounds), stated = numbers_of(positions)
    cdef Py_ssize_t row, at, end, left
    cdef const uint8_t *record
    cdef list out = []
    if not 0 <= start <= stop <= min(stated.count, ends.count - 1):
        raise ValueError(f"there are no rows {start} to {stop} among {stated.count}")
    for row in range(start, stop):
        at = index_of(ends.numbers[row], ends.numbers[0])
        end = index_of(ends.numbers[row + 1], ends.numbers[0])
        if end < 0 and ends.numbers[row + 1] >= ends.numbers[0]:
            end = view.size  # 2**63 or more behind
        left = left_of(view, at, end)
        record = view.bytes + at if left else NULL
        out.append(_decoded(record, left, stated.numbers[row], check_crc, unpack, False))
    return out


cdef inline void _fetch(View view, Py_ssize_t index, Py_ssize_t stop) noexcept:
    # Ask for a record's memory, if it is in the view.
    if left_of(view, index, stop) > FETCHED:
        fetch_ahead(view.bytes + index, FETCHED)


cdef class Collector:
    cdef int take(self, const uint8_t *record, Parts *p, object unpack) except -1:
        raise TypeError("it takes nothing")


@cython.final
cdef class QueueReader:
    cdef DecodedRuns _runs
    cdef dict _maps
    cdef int64_t _segment_size
    cdef object _span
    cdef object _unpack
    cdef bint _check_crc
    cdef bint _property_crc

    def __cinit__(
        self, DecodedRuns runs not None, dict maps not None, int64_t segment_size, span,
        bint check_crc=True, unpack=None, bint property_crc=False,
    ):
        if segment_size < 1:
            raise ValueError(f"a segment has {segment_size} bytes")
        self._runs = runs
        self._maps = maps
        self._segment_size = segment_size
        self._span = span
        self._unpack = unpack
        self._check_crc = check_crc
        self._property_crc = property_crc

    cdef Py_ssize_t _positions(
        self, Tail active, Tail frozen, uint64_t key, int64_t offset, Py_ssize_t limit,
        int64_t *out,
    ) except -1:
        # Tails come first: an entry that leaves one is in a run that says the same.
        cdef Py_ssize_t left = 0
        cdef const int64_t *found = NULL
        if frozen is not None:
            found = frozen.place(key, offset, &left)
        if found == NULL:
            found = active.place(key, offset, &left)
        if found == NULL:
            found = self._runs.place(key, offset, &left)
        left = min(left, limit)
        if found != NULL:
            memcpy(out, found, left * sizeof(int64_t))
        return left

    def read(
        self, Tail active not None, Tail frozen, str topic not None, uint64_t key, offset,
        Py_ssize_t limit, int64_t end, int64_t max_bytes, out, ExpiryCheck check=None,
    ):
        cdef list listed = out if isinstance(out, list) else None
        cdef Collector collector = None if listed is not None else <Collector?>out
        return self._read(
            active, frozen, topic, key, number_of(offset), limit, end, max_bytes, listed, collector,
            check,
        )

    def get(
        self, Tail active not None, Tail frozen, str topic not None, uint64_t base, int64_t queues,
        queue, offset, int64_t end,
    ):
        cdef list found = []
        cdef int64_t at = number_of(queue) if type(queue) is int else -1
        cdef uint64_t key = base + <uint64_t>at
        if not 0 <= at < queues or type(offset) is not int:
            return None
        self._read(active, frozen, topic, key, number_of(offset), 1, end, 0, found, None, None)
        return found[0] if found else None

    cdef int64_t _read(
        self, Tail active, Tail frozen, str topic, uint64_t key, int64_t at, Py_ssize_t limit,
        int64_t end, int64_t max_bytes, list listed, Collector collector, ExpiryCheck check,
    ) except? -1:
        cdef int64_t places[AT_ONCE]
        cdef int64_t base = 0, position
        cdef Py_ssize_t stop = 0, index, left, count, i, ahead
        cdef View view = None
        cdef Parts p
        cdef const uint8_t *record
        while limit > 0:
            count = self._positions(active, frozen, key, at, min(limit, AT_ONCE), places)
            if not count:
                break
            limit -= count
            for i in range(count):
                position = places[i]
                if position >= end or (check is not None and at >= check._end):
                    return max_bytes
                if view is None or not 0 <= index_of(position, base) < stop:
                    stop, index = self._segment_size, position % self._segment_size
                    found = self._maps.get(position // self._segment_size)
                    try:
                        if found is None:
                            buffer, index, stop = self._span(position)
                        else:
                            buffer = found.buffer
                    except SegmentDamaged:
                        return max_bytes
                    view = view_of(buffer)
                    base = <int64_t>(<uint64_t>position - <uint64_t>index)
                # Neighbours in a queue lie far apart: most of the time is waiting for memory.
                if i == 0:
                    for ahead in range(min(AHEAD, count)):
                        _fetch(view, index_of(places[ahead], base), stop)
                if i + AHEAD < count:
                    _fetch(view, index_of(places[i + AHEAD], base), stop)
                index = index_of(position, base)
                left = left_of(view, index, stop)
                record = view.bytes + index if left else NULL
                if (
                    measure(record, left, position, &p)
                    or (self._check_crc and check_body(record, &p))
                    or (self._property_crc and check_whole(record, &p))
                    or load_be32(record + QUEUE_AT) != <uint32_t>key
                    or <int64_t>load_be64(record + OFFSET_AT) != at
                    or not _is_text(record + p.topic_at, p.topic_size, topic)
                ):
                    return max_bytes
                if check is not None and check.expires(record, &p):
                    if len(check.offsets) >= check._most:
                        return max_bytes
                    check.offsets.append(at)
                    at = <int64_t>(<uint64_t>at + 1)
                    limit += 1
                    continue
                if p.size > max_bytes and (len(collector) if listed is None else len(listed)):
                    return -1
                try:
                    if listed is None:
                        collector.take(record, &p, self._unpack)
                    else:
                        listed.append(_message(record, &p, topic, self._unpack))
                except RecordDamaged:
                    return max_bytes
                max_bytes = max(max_bytes, 0) - p.size
                at = <int64_t>(<uint64_t>at + 1)
        return max_bytes
