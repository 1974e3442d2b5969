"""See records.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kvstore.core.buffers cimport View


# Magic numbers, as constants of C would be: a record of either version, and a blank one.
cdef extern from *:
    """
    #define RECORD_V1 0xDAA320A7u
    #define RECORD_V2 0xDAA320ABu
    #define RECORD_BLANK 0xCBD43194u
    #define RECORD_CRC_MASK 0x7FFFFFFFu
    """
    const uint32_t RECORD_V1, RECORD_V2, RECORD_BLANK, RECORD_CRC_MASK


cdef enum:
    # A record with IPv4 hosts: its fixed bytes, those before the body, and the places of fields.
    FIXED_SIZE = 91
    # A blank record, at least.
    BLANK_LEAST = 8
    HEAD_SIZE = 88
    QUEUE_AT = 12
    OFFSET_AT = 20
    POSITION_AT = 28
    FLAGS_AT = 36
    STORED_AT = 56
    # By how much an IPv6 host shifts what follows, and the flags that say that there is one.
    V6_EXTRA = 12
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    # The size of the property that has the CRC of all bytes before it.
    CRC_PROPERTY = 20


cdef enum Kind:
    # The kind of bytes at a place; the first three kinds are no fault.
    RECORD
    BLANK
    ZEROS
    TOO_SHORT
    BLANK_SIZE
    MAGIC
    SIZE
    POSITION
    BODY_LENGTH
    TOPIC_LENGTH
    PROPERTIES_LENGTH
    BODY_CRC
    NO_PROPERTY_CRC
    PROPERTY_CRC


cdef struct Parts:
    # Sizes, and distances from the record's first byte.
    Py_ssize_t size, body_at, body_size, topic_at, topic_size, properties_at, properties_size
    int version
    # Of a fault: the least and the most that should be, and what is.
    int64_t least, most, found


cdef struct Span:
    # A value in a properties field; NULL if it is not there.
    const uint8_t *at
    Py_ssize_t size


cdef struct Named:
    # The values of TAGS, KEYS, UNIQ_KEY and __SHARDINGKEY.
    Span tag, keys, unique_id, group


cdef enum:
    # The bytes of a value that is kept as a text, at most.
    VALUE_MAX = 16


cdef Kind measure(
    const uint8_t *record, Py_ssize_t left, int64_t position, Parts *parts
) noexcept nogil
cdef void write_crc_property(const uint8_t *record, Py_ssize_t size, uint8_t *out) noexcept nogil
cdef Kind check_body(const uint8_t *record, Parts *parts) noexcept nogil
cdef Kind check_whole(const uint8_t *record, Parts *parts) noexcept nogil
cdef Kind look(
    const uint8_t *record, Py_ssize_t left, int64_t position, bint property_crc, Parts *parts
) noexcept nogil
cdef object damaged(Kind kind, const uint8_t *record, Parts *parts, object position)
cdef int64_t number_of(object position) except? -1
cdef Py_ssize_t left_of(View view, Py_ssize_t at, Py_ssize_t end) noexcept
cdef bint next_pair(const uint8_t **at, const uint8_t *end, Span *name, Span *value) noexcept nogil
cdef void find_named(bytes raw, Named *out) noexcept
cdef str text_of(const uint8_t *at, Py_ssize_t size, Py_ssize_t most)
