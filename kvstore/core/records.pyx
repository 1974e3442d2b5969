# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Records: whether a whole record begins at a place, and where its parts are.

The idea: one function measures a record, and everything that reads records goes through it. A fault
is a kind and three numbers; the error with its words is made from them when somebody wants it. (The
format is docs/log-format.md's; RocketMQ: CommitLog.checkMessageAndReturnSize.)

Invariants: any bytes give a record, a blank one, "nothing was written" or a fault; no length field
is followed beyond the bytes that are there. Two facts that only a reader needs are not checked:
whether the topic is UTF-8, and whether a compressed body can be decompressed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from kvstore.core.buffers cimport View, load_be32, load_be64, numbers_of, view_of
from kvstore.core.crc cimport crc32_of

from kvstore.errors import RecordDamaged

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef enum:
    TOPIC_MAX_V1 = 127
    LENGTH_MAX = 32767
    # Texts that are kept, and the bytes of a name that is one at most.
    TEXTS = 256
    NAME_MAX = 64
    CRC_HEAD = 9

cdef list _texts = [""] * TEXTS

cdef const char *_CRC_HEAD = b"__CRC32#\x01"


cdef Kind measure(
    const uint8_t *record, Py_ssize_t left, int64_t position, Parts *parts
) noexcept nogil:
    # All checks but those of CRCs. `left` bytes are there.
    cdef uint32_t magic, flags
    cdef Py_ssize_t head = HEAD_SIZE, least, rest, most
    parts.least = parts.most = 0
    parts.found = left
    if left < FIXED_SIZE:
        return TOO_SHORT
    magic = load_be32(record + 4)
    flags = load_be32(record + FLAGS_AT)
    parts.found = magic
    if magic != RECORD_V1 and magic != RECORD_V2:
        return MAGIC
    parts.version = 1 if magic == RECORD_V1 else 2
    head += V6_EXTRA * ((flags & BORN_V6 != 0) + (flags & STORE_V6 != 0))
    least = head + parts.version + 2
    parts.size = load_be32(record)
    parts.least, parts.most, parts.found = least, left, parts.size
    if not least <= parts.size <= left:
        return SIZE
    parts.found = <int64_t>load_be64(record + POSITION_AT)
    if parts.found != position:
        return POSITION
    parts.body_at = head
    parts.body_size = load_be32(record + head - 4)
    rest = parts.size - least
    parts.most, parts.found = rest, parts.body_size
    if parts.body_size > rest:
        return BODY_LENGTH
    rest -= parts.body_size
    parts.topic_at = head + parts.body_size + parts.version
    parts.topic_size = record[parts.topic_at - 1]
    if parts.version == 2:
        parts.topic_size |= <Py_ssize_t>record[parts.topic_at - 2] << 8
    most = min(rest, TOPIC_MAX_V1 if parts.version == 1 else LENGTH_MAX)
    parts.most, parts.found = most, parts.topic_size
    if parts.topic_size > most:
        return TOPIC_LENGTH
    rest -= parts.topic_size
    parts.properties_at = parts.topic_at + parts.topic_size + 2
    parts.properties_size = rest
    parts.found = record[parts.properties_at - 2] << 8 | record[parts.properties_at - 1]
    parts.least = rest
    if parts.found != rest or rest > LENGTH_MAX:
        return PROPERTIES_LENGTH
    return RECORD


cdef Kind check_body(const uint8_t *record, Parts *parts) noexcept nogil:
    parts.least = load_be32(record + 8)
    parts.found = crc32_of(record + parts.body_at, parts.body_size) & RECORD_CRC_MASK
    return RECORD if parts.found == parts.least else BODY_CRC


cdef void write_crc_property(const uint8_t *record, Py_ssize_t size, uint8_t *out) noexcept nogil:
    # The property for the record's first `size` bytes; its digits stand the lowest first.
    cdef uint32_t crc = crc32_of(record, size) & RECORD_CRC_MASK
    cdef int i
    for i in range(CRC_HEAD):
        out[i] = _CRC_HEAD[i]
    for i in range(CRC_HEAD, CRC_PROPERTY - 1):
        out[i] = 48 + crc % 10
        crc //= 10
    out[CRC_PROPERTY - 1] = 2


cdef Kind check_whole(const uint8_t *record, Parts *parts) noexcept nogil:
    # Where the properties are shorter than the CRC property, their length stands among these bytes,
    # and no length that small looks like any two bytes of the property.
    cdef uint8_t expected[CRC_PROPERTY]
    cdef const uint8_t *found = record + parts.size - CRC_PROPERTY
    if memcmp(found, _CRC_HEAD, CRC_HEAD):
        return NO_PROPERTY_CRC
    write_crc_property(record, parts.size - CRC_PROPERTY, expected)
    return RECORD if memcmp(found, expected, CRC_PROPERTY) == 0 else PROPERTY_CRC


cdef Kind look(
    const uint8_t *record, Py_ssize_t left, int64_t position, bint property_crc, Parts *parts
) noexcept nogil:
    # The kind of bytes at a place; of a blank record, `parts.size` too.
    cdef uint32_t magic
    cdef Kind found
    parts.least = parts.most = 0
    parts.found = left
    if left < BLANK_LEAST:
        return TOO_SHORT
    parts.size, magic = load_be32(record), load_be32(record + 4)
    if not magic and not parts.size:
        return ZEROS
    if magic == RECORD_BLANK:
        parts.least, parts.most, parts.found = BLANK_LEAST, left, parts.size
        return BLANK if BLANK_LEAST <= parts.size <= left else BLANK_SIZE
    found = measure(record, left, position, parts)
    if found:
        return found
    return check_whole(record, parts) if property_crc else check_body(record, parts)


cdef object damaged(Kind kind, const uint8_t *record, Parts *parts, object position):
    # The error for a fault.
    least, most, found = parts.least, parts.most, parts.found
    cdef uint8_t suffix[CRC_PROPERTY]
    if kind == TOO_SHORT:
        text = f"{max(found, 0)} bytes at {position} are too few for a record"
        return RecordDamaged(text, position)
    if kind == NO_PROPERTY_CRC:
        return RecordDamaged(f"record at {position} has no CRC property at its end", position)
    if kind == MAGIC:
        what, due, found = "magic", f"{RECORD_V1:#x} or {RECORD_V2:#x}", f"{found:#x}"
    elif kind == POSITION:
        what, due = "position field", position
    elif kind == BODY_LENGTH or kind == TOPIC_LENGTH:
        what, due = "body length" if kind == BODY_LENGTH else "topic length", f"at most {most}"
    elif kind == PROPERTIES_LENGTH:
        what, due = "properties length", f"{least}, at most {LENGTH_MAX}"
    elif kind == BODY_CRC:
        what, due, found = "body CRC", f"{least:#010x}", f"{found:#010x}"
    elif kind == PROPERTY_CRC:
        write_crc_property(record, parts.size - CRC_PROPERTY, suffix)
        what, due = "CRC property", suffix[:CRC_PROPERTY]
        found = (record + parts.size - CRC_PROPERTY)[:CRC_PROPERTY]
    else:
        what = "size" if kind == SIZE else "blank record's size"
        due = f"{least} to {most}"
    text = f"record at {position} is damaged: {what} should be {due}, but is {found}"
    return RecordDamaged(text, position)


cdef int64_t number_of(object position) except? -1:
    # A position, which a file's name may say: one that no field can hold is that of no record.
    cdef int overflow = 0
    cdef int64_t found = PyLong_AsLongLongAndOverflow(position, &overflow)
    return INT64_MIN if overflow else found


cdef Py_ssize_t left_of(View view, Py_ssize_t at, Py_ssize_t end) noexcept:
    # The bytes from `at` to `end`, of those that are there.
    end = min(end, view.size)
    return end - at if 0 <= at < end else 0


def check_record(buffer, Py_ssize_t at, Py_ssize_t end, position, *, bint property_crc=False):
    cdef View view = view_of(buffer)
    cdef Parts parts
    cdef Py_ssize_t left = left_of(view, at, end)
    cdef const uint8_t *record = view.bytes + at if left else NULL
    cdef Kind found = look(record, left, number_of(position), property_crc, &parts)
    if found == RECORD:
        return parts.size
    if found == ZEROS:
        return 0
    if found == BLANK:
        return -parts.size
    raise damaged(found, record, &parts, position)


cdef const uint8_t *_checked(View view, Py_ssize_t at, Py_ssize_t size) except NULL:
    if at < 0 or not FIXED_SIZE <= size <= view.size - at:
        raise ValueError(f"a record of {size} bytes at {at} is not in a buffer of {view.size}")
    return view.bytes + at


def property_crc_problem(
    buffer, Py_ssize_t at, Py_ssize_t size, position, *, bint required=False
):
    cdef View view = view_of(buffer)
    cdef Parts parts
    cdef const uint8_t *record = _checked(view, at, size)
    cdef Kind found
    parts.size, parts.least, parts.most, parts.found = size, 0, 0, 0
    found = check_whole(record, &parts)
    if found == RECORD or (found == NO_PROPERTY_CRC and not required):
        return ""
    return str(damaged(found, record, &parts, position))


def property_crc_faults(buffer, starts, sizes, *, bint required):
    cdef View view = view_of(buffer), ats = numbers_of(starts), lengths = numbers_of(sizes)
    cdef Parts parts
    cdef Kind found
    cdef Py_ssize_t i
    cdef list out = []
    if ats.count != lengths.count:
        raise ValueError(f"{ats.count} records begin, {lengths.count} have a size")
    for i in range(ats.count):
        _checked(view, ats.numbers[i], lengths.numbers[i])
    with nogil:
        for i in range(ats.count):
            parts.size = lengths.numbers[i]
            found = check_whole(view.bytes + ats.numbers[i], &parts)
            if found == PROPERTY_CRC or (required and found):
                with gil:
                    out.append(i)
    return out


def property_crc_suffix(record):
    cdef View view = view_of(record)
    cdef uint8_t suffix[CRC_PROPERTY]
    write_crc_property(view.bytes, view.size, suffix)
    return suffix[:CRC_PROPERTY]


def facts(buffer, Py_ssize_t at, Py_ssize_t size):
    cdef View view = view_of(buffer)
    cdef Parts p
    cdef int64_t position = -1
    cdef Py_ssize_t left = min(left_of(view, at, view.size), max(size, 0))
    cdef const uint8_t *record = view.bytes + at if left else NULL
    if left >= FIXED_SIZE:
        position = <int64_t>load_be64(record + POSITION_AT)
    cdef Kind found = measure(record, left, position, &p)
    if found:
        raise damaged(found, record, &p, position)
    cdef uint32_t flags = load_be32(record + FLAGS_AT)
    stored_at = <int64_t>load_be64(record + STORED_AT + V6_EXTRA * (flags & BORN_V6 != 0))
    return (
        PyBytes_FromStringAndSize(<const char *>record + p.topic_at, p.topic_size),
        load_be32(record + QUEUE_AT),
        <int64_t>load_be64(record + OFFSET_AT),
        flags,
        stored_at,
        PyBytes_FromStringAndSize(<const char *>record + p.properties_at, p.properties_size),
    )


# --- properties ---


cdef bint next_pair(const uint8_t **at, const uint8_t *end, Span *name, Span *value) noexcept nogil:
    # The next pair that has a name and a value, from `at` on, which is moved behind it. A value may
    # hold 0x01; the last 0x02 may be missing.
    cdef const uint8_t *stop
    cdef const uint8_t *middle
    while at[0] < end:
        stop = <const uint8_t *>memchr(at[0], 2, end - at[0])
        if stop == NULL:
            stop = end
        middle = <const uint8_t *>memchr(at[0], 1, stop - at[0])
        name.at = at[0]
        at[0] = stop + 1
        if middle != NULL and middle > name.at and stop - middle > 1:
            name.size = middle - name.at
            value.at, value.size = middle + 1, stop - middle - 1
            return True
    return False


def find_property(bytes raw not None, bytes name not None):
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(raw)
    cdef const char *wanted = PyBytes_AS_STRING(name)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
    cdef Span its, value, found
    found.at = NULL
    while next_pair(&at, end, &its, &value):
        if its.size == size and memcmp(its.at, wanted, size) == 0:
            found = value
    return None if found.at == NULL else found.at[: found.size]


cdef void find_named(bytes raw, Named *out) noexcept:
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(raw)
    cdef Span name, value
    out.tag.at = out.keys.at = out.unique_id.at = out.group.at = NULL
    # The last one of a name counts.
    while next_pair(&at, end, &name, &value):
        if name.size == 4 and memcmp(name.at, b"TAGS", 4) == 0:
            out.tag = value
        elif name.size == 4 and memcmp(name.at, b"KEYS", 4) == 0:
            out.keys = value
        elif name.size == 8 and memcmp(name.at, b"UNIQ_KEY", 8) == 0:
            out.unique_id = value
        elif name.size == 13 and memcmp(name.at, b"__SHARDINGKEY", 13) == 0:
            out.group = value


cdef str text_of(const uint8_t *at, Py_ssize_t size, Py_ssize_t most):
    # Of `most` bytes or fewer it is kept: names, and values like tags, come again and again, and
    # making and hashing a text takes the longest. Not empty.
    cdef Py_ssize_t slot, known_size
    cdef str found
    cdef const char *known
    if size > most:
        return PyUnicode_DecodeUTF8(<const char *>at, size, "replace")
    slot = (size + 5 * at[0] + 3 * at[size - 1] + 7 * at[size >> 1]) % TEXTS
    found = <str>_texts[slot]
    known = PyUnicode_AsUTF8AndSize(found, &known_size)
    if known_size != size or memcmp(known, at, size):
        found = PyUnicode_DecodeUTF8(<const char *>at, size, "replace")
        _texts[slot] = found
    return found


def decode_properties(bytes raw not None):
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(raw)
    cdef Span name, value
    cdef dict found = {}
    while next_pair(&at, end, &name, &value):
        key = text_of(name.at, name.size, NAME_MAX)
        found[key] = text_of(value.at, value.size, VALUE_MAX)
    return found


def keys_of(bytes properties not None):
    found = find_property(properties, b"KEYS")
    return [key for key in found.split(b" ") if key] if found is not None else []
