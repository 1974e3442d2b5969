"""Protobuf's fields: bytes of a message taken apart, and bytes of one put together.

The idea: inline functions over the structs of `message_pack`. A message is read field by field: its
tag, which is its number and its form, and a number or a span of bytes. Fields that a reader does
not know are passed over, groups in whole.

Invariants: nothing is read beyond the end; bytes that protobuf's own reader refuses as malformed
are ValueError.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from kvstore.core.texts cimport is_utf8
from kvstore.core.transport.message_pack cimport (
    In, Out, next_bytes, refuse_bytes, reserve, write_byte, write_raw,
)

cdef enum:
    # The forms of a field, the low three bits of its tag.
    VARINT = 0
    FIXED64 = 1
    SIZED = 2
    GROUP = 3
    GROUP_END = 4
    FIXED32 = 5
    # Bytes of a number, of a tag or size, at most.
    VARINT_MAX = 10
    HEAD_VARINT_MAX = 5
    # Messages and groups in one another.
    DEPTH_MAX = 100


cdef struct Field:
    uint32_t tag
    uint64_t number
    const uint8_t *at
    Py_ssize_t size


# --- reading ---


cdef inline uint64_t read_varint(In *given, int size_max) except? 0xFFFFFFFFFFFFFFFF:
    # Bits beyond 64 are dropped.
    cdef uint64_t found = 0
    cdef int i
    cdef uint8_t byte
    for i in range(size_max):
        if given.at == given.end:
            break
        byte = given.at[0]
        given.at += 1
        found |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return found
    return refuse_bytes()


cdef inline uint32_t _read_tag(In *given) except? 0:
    cdef uint64_t tag = read_varint(given, HEAD_VARINT_MAX)
    if tag > 0xFFFFFFFF:
        refuse_bytes()
    return <uint32_t>tag


cdef inline int next_field(In *given, Field *field, int depth) except -1:
    # The next field of a message so deep within others; 0 behind the last one.
    if given.at == given.end:
        return 0
    field.tag = _read_tag(given)
    if field.tag < 8:
        refuse_bytes()  # no field has the number 0, but nobody looks for that in a group
    _read_value(given, field, depth)
    return 1


cdef inline int _read_value(In *given, Field *field, int depth) except -1:
    cdef int form = field.tag & 7
    cdef uint64_t size
    if form == VARINT:
        field.number = read_varint(given, VARINT_MAX)
    elif form == SIZED:
        size = read_varint(given, HEAD_VARINT_MAX)
        field.at = next_bytes(given, size)
        field.size = <Py_ssize_t>size
    elif form == FIXED64 or form == FIXED32:
        next_bytes(given, 8 if form == FIXED64 else 4)
    elif form == GROUP:
        _pass_group(given, field.tag + GROUP_END - GROUP, depth + 1)
    else:
        refuse_bytes()
    return 0


cdef inline int _pass_group(In *given, uint32_t end, int depth) except -1:
    # To behind its end. Groups in it are counted, not entered.
    cdef uint32_t ends[DEPTH_MAX + 1]
    cdef int count = 1
    cdef Field field
    ends[0] = end
    while count:
        if depth + count - 1 > DEPTH_MAX:
            refuse_bytes()
        field.tag = _read_tag(given)
        if field.tag & 7 == GROUP:
            ends[count] = field.tag + GROUP_END - GROUP
            count += 1
        elif field.tag & 7 == GROUP_END:
            count -= 1
            if field.tag != ends[count]:
                refuse_bytes()
        else:
            _read_value(given, &field, depth)
    return 0


cdef inline In within(Field *field):
    return In(field.at, field.at + field.size)


cdef inline int check_text(Field *field) except -1:
    return 0 if is_utf8(field.at, field.size) else refuse_bytes()


# --- writing ---


cdef inline int write_varint(Out *out, uint64_t number) except -1:
    reserve(out, VARINT_MAX)
    while number >= 0x80:
        write_byte(out, <int>(number & 0x7F | 0x80))
        number >>= 7
    write_byte(out, <int>number)
    return 0


cdef inline int write_number_field(Out *out, uint32_t tag, uint64_t number) except -1:
    # 0 is what a field that is not there says.
    if number:
        write_varint(out, tag)
        write_varint(out, number)
    return 0


cdef inline int write_sized_field(
    Out *out, uint32_t tag, const void *at, Py_ssize_t size
) except -1:
    write_varint(out, tag)
    write_varint(out, size)
    return write_raw(out, at, size)
