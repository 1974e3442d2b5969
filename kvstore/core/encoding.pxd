"""See encoding.pyx."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvstore.core.put_fields cimport Times
from kvstore.core.put_route cimport PutRoute
from kvstore.core.texts cimport NameSet
from kvstore.core.unique_ids cimport UniqueIds


cdef struct Limits:
    # Of a message's parts, in bytes; and the names that are not kept begin so.
    Py_ssize_t body, record, properties
    const uint8_t *transient
    Py_ssize_t transient_size
    # Larger bodies are compressed.
    Py_ssize_t compress_above
    bint property_crc
    # The times that callers may give.
    Times times


cdef struct Row:
    # Where the record begins among the batch's records, and its size.
    Py_ssize_t at
    Py_ssize_t size
    # The body as stored; the properties among the batch's properties.
    const uint8_t *body
    Py_ssize_t body_size
    Py_ssize_t properties_at
    Py_ssize_t properties_size
    # Where the unique id begins there.
    Py_ssize_t id_at
    # Where the dedup id's property begins; its bytes, of name and id, 0 if there is none.
    Py_ssize_t dedup_at
    Py_ssize_t dedup_size
    uint64_t dedup_hash
    # Whether a look has listed the id, where it was hinted at then, and from where on ids were
    # known.
    bint was_listed
    int64_t hint
    int64_t listed_from
    # Ends of the row's hashes of keys, the unique id's the first, or behind the dedup id's.
    Py_ssize_t hashes_end
    # The queue that the message names; -1: none. Its group's hash, if it has a group.
    int64_t queue
    uint32_t group_hash
    bint grouped
    uint64_t queue_key
    int64_t offset
    int64_t position
    int64_t tag_hash
    # -1: when it is stored.
    int64_t born_at
    uint32_t flags
    uint32_t system_flags
    # The number of a unique id made here; -1 for a given id.
    int64_t id_number
    # Of a message that waits: the time at which it is due, and the queue it goes to; due 0: it does
    # not wait. And of one that waits, or ends a wait: whether the wait is that of a transaction.
    int64_t due
    uint64_t target
    bint is_prepared
    # Whether its caller gave it a delay, be it over.
    bint delayed
    # Of a record that ends the wait of another: the other's position + 1, due time and topic; 0: it
    # ends none.
    int64_t ends
    int64_t ended_due
    uint32_t ended_topic


cdef enum:
    # The objects of a row of a batch, and how many there are.
    TOPIC = 0
    ROUTE = 1
    BODY = 2
    ID = 3
    OBJECTS = 4


cdef class PreparedBatch


cdef inline int check_kind(PutRoute route, const Row *rows, Py_ssize_t i) except -1:
    # A row that is put to a route with rules. It is keyed if it has hashes beside those of its ids.
    cdef Py_ssize_t hashes = rows[i].hashes_end - (rows[i - 1].hashes_end if i else 0)
    return route.check_kind(
        rows[i].delayed, rows[i].grouped or rows[i].queue >= 0, rows[i].is_prepared,
        hashes > 1 + (rows[i].dedup_size > 0),
    )


@cython.final
cdef class Encoder:
    cdef object routes
    cdef UniqueIds ids
    cdef object _compress
    cdef bytes _host
    cdef NameSet _reserved
    cdef bytes _transient
    cdef Limits limits
    cdef object _compression
    # How many times queues were closed.
    cdef int64_t closings
    cdef int _hold(self, PreparedBatch batch, Py_ssize_t i, PutRoute held) except -1
    cdef PutRoute pending_route(self, bint is_prepared)
    cdef PutRoute route(self, object topic)
    cdef int _add_body(self, PreparedBatch batch, Row *row, object body, PutRoute route) except -1
    cdef Py_ssize_t compress_above(self, PutRoute route) noexcept
    cdef int compress_body(
        self, PreparedBatch batch, Row *row, bytes body, PutRoute route
    ) except -1
    cdef int finish(self, PreparedBatch batch) except -1


@cython.final
cdef class PreparedBatch:
    cdef Row *rows
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t deduped
    cdef uint8_t *properties
    cdef Py_ssize_t properties_size
    cdef Py_ssize_t _properties_room
    cdef uint32_t *hashes
    cdef Py_ssize_t hashes_count
    cdef Py_ssize_t _hashes_room
    # Of each row: its topic, its route, its body, and its id, unless that is made here.
    cdef list _objects
    # How many rows have no route.
    cdef Py_ssize_t unrouted
    # The numbers that the rows had before some were dropped; None: none was.
    cdef list _given
    cdef readonly int64_t stored_at
    # The first of the due times; 0: no message waits.
    cdef readonly int64_t first_due
    # Whether topics of all kinds take its messages.
    cdef bint any_kind
    # How many rows have offsets.
    cdef Py_ssize_t numbered
    cdef Encoder _encoder
    # The encoder's when the batch was begun.
    cdef int64_t closings
    # Those of the encoder, which lives as long.
    cdef Limits limits
    cdef NameSet _reserved
    cdef const char *_id_prefix
    cdef Py_ssize_t _id_prefix_size
    # The records' bytes; nobody else has them before they are whole.
    cdef readonly bytes records
    cdef int begin(self, Py_ssize_t count, Encoder encoder) except -1

    cdef inline object topic(self, Py_ssize_t i):
        return self._objects[OBJECTS * i + TOPIC]

    cdef inline PutRoute route(self, Py_ssize_t i):
        return <PutRoute>self._objects[OBJECTS * i + ROUTE]

    cdef inline int set_route(self, Py_ssize_t i, object topic, PutRoute route) except -1:
        self._objects[OBJECTS * i + TOPIC] = topic
        self._objects[OBJECTS * i + ROUTE] = route
        self.unrouted += route is None
        return 0

    cdef inline int set_body(self, Row *row, bytes body) except -1:
        self._objects[OBJECTS * (row - self.rows) + BODY] = body
        row.body = <const uint8_t *>PyBytes_AS_STRING(body)
        row.body_size = PyBytes_GET_SIZE(body)
        return 0

    cdef inline object message_id(self, Py_ssize_t i):
        # Without its number, if it was made here.
        if self.rows[i].id_number >= 0:
            return self._encoder.ids.prefix
        return self._objects[OBJECTS * i + ID]

    cdef inline int set_id(self, Row *row, object message_id) except -1:
        self._objects[OBJECTS * (row - self.rows) + ID] = message_id
        return 0

    cdef inline int keep(self, list kept) except -1:
        # Of these rows alone, which rise.
        cdef list found = []
        for row in kept:
            found += self._objects[OBJECTS * row:OBJECTS * (row + 1)]
        self._objects = found
        return 0

    cdef int _reserve(self, Py_ssize_t size) except -1 nogil
    cdef int add(self, const char *text, Py_ssize_t size) except -1 nogil
    cdef int add_text(self, const uint8_t *at, Py_ssize_t size, bint blanks) except -1 nogil
    cdef int _add_str(self, object text, bint blanks) except -1
    cdef int add_hash(self, Py_ssize_t begin) except -1 nogil
    cdef int _add_dedup_id(self, Row *row, object dedup_id, PutRoute route) except -1
    cdef int begin_dedup_id(self, Row *row, int64_t window) except -1 nogil
    cdef int end_dedup_id(self, Row *row) except -1 nogil
    cdef int _add_id(self, Row *row, object message_id, int64_t now_ms) except -1
    cdef int add_made_id(self, Row *row) except -1 nogil
    cdef int end_id(self, Row *row) except -1 nogil
    cdef int _add_keys(self, object keys) except -1
    cdef Py_ssize_t begin_key(self, Py_ssize_t number) except -1 nogil
    cdef int _add_tag(self, Row *row, object tag) except -1
    cdef int end_tag(self, Row *row, Py_ssize_t begin) except -1 nogil
    cdef int _add_properties(self, object properties) except -1
    cdef int end_name(self, Py_ssize_t begin) except -1 nogil
    cdef int _add_group(self, Row *row, object group) except -1
    cdef int end_group(self, Row *row, Py_ssize_t begin) except -1 nogil
    cdef int add_wait(self, Row *row, const uint8_t *topic, Py_ssize_t size) except -1 nogil
    cdef int add_time(self, const char *name, int64_t time) except -1 nogil
    cdef int measure_row(self, Row *row) except -1 nogil
    cdef int _write(self) except -1
    cdef void _write_around(self, uint8_t *out, Row *row, PutRoute route) noexcept
    cdef void _drop_unindexed(self) noexcept
    cdef Py_ssize_t fitting(self, Py_ssize_t first, Py_ssize_t room) noexcept
    cdef bytes place(
        self, Py_ssize_t first, Py_ssize_t stop, int64_t position, int64_t stored_at
    )
