# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Pulled columns: the fields of records, added to columns, with no object for each message.

The idea: a reader of a queue gives each record that it has found good; numbers and body are copied,
and the properties are walked through once for all the columns that are made of them. A message that
is an object already, such as one of an archive, is added by its fields.

Invariants: a row says what `StoredMessage` says of the same record; a string is UTF-8, whatever the
record has; only columns that were asked for are made, but for `offset` and `size`, which are kept.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp

from kvstore.core.arrow.column_batch cimport ColumnBatch, OutColumn
from kvstore.core.buffers cimport grown, load_be32, load_be64, store_be64
from kvstore.core.expiry cimport expiry_of
from kvstore.core.messages cimport Collector
from kvstore.core.records cimport (
    BORN_V6, FLAGS_AT, OFFSET_AT, POSITION_AT, Parts, QUEUE_AT, STORE_V6, Span, next_pair,
)
from kvstore.core.texts cimport NameSet, is_utf8

from kvstore.core.names import RESERVED
from kvstore.core.records import decode_properties
from kvstore.errors import CallerError

cdef enum:
    COMPRESSED = 1
    BORN_HOST_AT = 48
    HOST_V4 = 8
    HOST_V6 = 20
    POSITION_SIZE = 8

COLUMN_NAMES = (
    "queue", "offset", "position", "size", "body", "tag", "keys", "properties", "message_group",
    "message_id", "flags", "born_at", "stored_at", "expires_at",
)
cdef NameSet _reserved = NameSet(RESERVED)
cdef const char *_DIGITS = b"0123456789ABCDEF"


cdef OutColumn _column(
    tuple names, str name, bytes format, list children=None, bint nullable=False
):
    return OutColumn(name, format, children, nullable) if name in names else None


@cython.final
cdef class PulledColumns(Collector):
    def __cinit__(self, names=None):
        if names is None:
            names = COLUMN_NAMES
        if isinstance(names, str):
            raise CallerError(f"columns is the text {names!r}; it must be a list of names")
        self._names = tuple(names)
        for name in self._names:
            if name not in COLUMN_NAMES:
                raise CallerError(
                    f"there is no column {name!r}; there are {', '.join(COLUMN_NAMES)}"
                )
        if len(set(self._names)) < len(self._names):
            raise CallerError(f"columns {', '.join(self._names)} has a name twice")
        self._offset, self._size = OutColumn("offset", b"l"), OutColumn("size", b"l")
        self._queue = _column(self._names, "queue", b"l")
        self._position = _column(self._names, "position", b"l")
        self._body = _column(self._names, "body", b"Z")
        self._tag = _column(self._names, "tag", b"U", None, True)
        self._key = OutColumn("item", b"U")
        self._keys = _column(self._names, "keys", b"+L", [self._key])
        self._name, self._value = OutColumn("key", b"U"), OutColumn("value", b"U")
        self._pairs = OutColumn("entries", b"+s", [self._name, self._value])
        self._properties = _column(self._names, "properties", b"+m", [self._pairs])
        self._group = _column(self._names, "message_group", b"U", None, True)
        self._message_id = _column(self._names, "message_id", b"U")
        self._flags = _column(self._names, "flags", b"l")
        self._born_at = _column(self._names, "born_at", b"l")
        self._stored_at = _column(self._names, "stored_at", b"l")
        self._expires_at = _column(self._names, "expires_at", b"l", None, True)
        self._has_texts = not {
            "tag", "keys", "properties", "message_group", "message_id"
        }.isdisjoint(self._names)

    def __dealloc__(self):
        free(self._own)

    def __len__(self):
        return self._offset.count

    @property
    def next_offset(self):
        if not self._offset.count:
            raise IndexError("there is no message")
        return self._last_offset + 1

    def append(self, message):
        cdef bytes body = message.body, raw = message.raw_properties, host = message.raw_store_host
        if body is None or raw is None or host is None:
            raise TypeError("the message was never made")
        self._add_numbers(
            message.queue, message.offset, message.position, message.size, message.flags,
            message.born_at, message.stored_at,
        )
        if self._body is not None:
            self._body.add_text(<const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        self._add_texts(
            <const uint8_t *>PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw),
            <const uint8_t *>PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host), message.position,
        )

    def extend(self, messages):
        for message in messages:
            self.append(message)

    def batch(self):
        columns = {
            column.name: column
            for column in (
                self._queue, self._offset, self._position, self._size, self._body, self._tag,
                self._keys, self._properties, self._group, self._message_id, self._flags,
                self._born_at, self._stored_at, self._expires_at,
            )
            if column is not None
        }
        return ColumnBatch([columns[name] for name in self._names], self._offset.count)

    cdef int take(self, const uint8_t *record, Parts *p, object unpack) except -1:
        cdef uint32_t flags = load_be32(record + FLAGS_AT)
        cdef Py_ssize_t born = HOST_V6 if flags & BORN_V6 else HOST_V4
        cdef const uint8_t *hosts = record + BORN_HOST_AT
        cdef int64_t position = <int64_t>load_be64(record + POSITION_AT)
        cdef bytes body
        # It may raise: then nothing is added.
        if self._body is not None and flags & COMPRESSED and unpack is not None and p.body_size:
            body = PyBytes_FromStringAndSize(<const char *>record + p.body_at, p.body_size)
            body = unpack(body, flags)
            self._body.add_text(<const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        elif self._body is not None:
            self._body.add_text(record + p.body_at, p.body_size)
        self._add_numbers(
            load_be32(record + QUEUE_AT), <int64_t>load_be64(record + OFFSET_AT), position, p.size,
            load_be32(record + 16), <int64_t>load_be64(record + 40),
            <int64_t>load_be64(hosts + born),
        )
        return self._add_texts(
            record + p.properties_at, p.properties_size, hosts + born + 8,
            HOST_V6 if flags & STORE_V6 else HOST_V4, position,
        )

    cdef int _add_numbers(
        self, int64_t queue, int64_t offset, int64_t position, int64_t size, int64_t flags,
        int64_t born_at, int64_t stored_at,
    ) except -1:
        self._last_offset = offset
        self._offset.add_number(offset)
        self._size.add_number(size)
        if self._queue is not None:
            self._queue.add_number(queue)
        if self._position is not None:
            self._position.add_number(position)
        if self._flags is not None:
            self._flags.add_number(flags)
        if self._born_at is not None:
            self._born_at.add_number(born_at)
        if self._stored_at is not None:
            self._stored_at.add_number(stored_at)
        return 0

    cdef int _add_texts(
        self, const uint8_t *raw, Py_ssize_t size, const uint8_t *host, Py_ssize_t host_size,
        int64_t position,
    ) except -1:
        cdef Span name, value, tag, keys, group, its_id
        cdef const uint8_t *end
        cdef bytes mended
        if self._expires_at is not None:
            self._add_expiry(expiry_of(raw, size))
        if not self._has_texts:
            return 0
        if not is_utf8(raw, size):
            # As its reader sees it.
            pairs = decode_properties(raw[:size]).items()
            mended = b"".join([f"{one}\x01{its}\x02".encode() for one, its in pairs])
            raw, size = <const uint8_t *>PyBytes_AS_STRING(mended), PyBytes_GET_SIZE(mended)
        tag.at = keys.at = group.at = its_id.at = NULL
        self._own_count = 0
        end = raw + size
        while next_pair(&raw, end, &name, &value):
            if name.size == 4 and memcmp(name.at, b"TAGS", 4) == 0:
                tag = value
            elif name.size == 4 and memcmp(name.at, b"KEYS", 4) == 0:
                keys = value
            elif name.size == 8 and memcmp(name.at, b"UNIQ_KEY", 8) == 0:
                its_id = value
            elif name.size == 13 and memcmp(name.at, b"__SHARDINGKEY", 13) == 0:
                group = value
            elif self._properties is not None and not _reserved.has(name.at, name.size):
                self._add_own(&name, &value)
        if self._tag is not None:
            _add_or_null(self._tag, &tag)
        if self._group is not None:
            _add_or_null(self._group, &group)
        if self._keys is not None:
            self._add_keys(&keys)
        if self._message_id is not None:
            self._add_id(&its_id, host, host_size, position)
        if self._properties is not None:
            for i in range(self._own_count):
                self._name.add_text(self._own[i].name.at, self._own[i].name.size)
                self._value.add_text(self._own[i].value.at, self._own[i].value.size)
            self._pairs.count = self._name.count
            self._properties.end_list(self._name.count)
        return 0

    cdef int _add_expiry(self, int64_t time) except -1 nogil:
        return self._expires_at.add_null() if time < 0 else self._expires_at.add_number(time)

    cdef int _add_own(self, Span *name, Span *value) except -1 nogil:
        # The last value of a name holds, in the first one's place, as in a dict.
        cdef Py_ssize_t i, room
        for i in range(self._own_count):
            if (
                self._own[i].name.size == name.size
                and memcmp(self._own[i].name.at, name.at, name.size) == 0
            ):
                self._own[i].value = value[0]
                return 0
        if self._own_count == self._own_room:
            room = 2 * self._own_room + 8
            self._own = <Pair *>grown(self._own, room, sizeof(Pair))
            self._own_room = room
        self._own[self._own_count].name = name[0]
        self._own[self._own_count].value = value[0]
        self._own_count += 1
        return 0

    cdef int _add_keys(self, Span *found) except -1 nogil:
        # Spaces part the keys; empty ones are none.
        cdef const uint8_t *at = found.at
        cdef const uint8_t *end
        cdef const uint8_t *stop
        if at != NULL:
            end = at + found.size
            while at < end:
                stop = <const uint8_t *>memchr(at, 32, end - at)
                if stop == NULL:
                    stop = end
                if stop > at:
                    self._key.add_text(at, stop - at)
                at = stop + 1
        return self._keys.end_list(self._key.count)

    cdef int _add_id(
        self, Span *found, const uint8_t *host, Py_ssize_t host_size, int64_t position
    ) except -1 nogil:
        # The position id, where the record has none.
        cdef uint8_t text[2 * (HOST_V6 + POSITION_SIZE)]
        cdef uint8_t packed[POSITION_SIZE]
        cdef uint8_t byte
        cdef Py_ssize_t i, size
        if found.at != NULL:
            return self._message_id.add_text(found.at, found.size)
        host_size = min(host_size, HOST_V6)
        size = host_size + POSITION_SIZE
        store_be64(packed, position)
        for i in range(size):
            byte = host[i] if i < host_size else packed[i - host_size]
            text[2 * i] = _DIGITS[byte >> 4]
            text[2 * i + 1] = _DIGITS[byte & 0xF]
        return self._message_id.add_text(text, 2 * size)


cdef int _add_or_null(OutColumn column, Span *found) except -1:
    if found.at == NULL:
        return column.add_null()
    return column.add_text(found.at, found.size)
