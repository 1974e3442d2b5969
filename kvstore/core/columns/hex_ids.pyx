# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Hex ids: takes hexadecimal ids out of a text, and puts them back.

The idea: ids of requests, traces and events are random, but written as text. There compression
spends five or six bits on each digit, and each id breaks off the repetition around it. So a run of
digits of an id's length is replaced by one byte that says its length, a mark, and its digits go to
a stream of their own, two a byte. The text is then shorter, more uniform, and faster to compress.
A UUID with its dashes has a mark of its own.

Invariants: `restore_ids` returns the input of `extract_ids`, byte for byte; any bytes give a
payload of exactly the expected size, or raise ArchiveDamaged, and nothing is allocated before that
is known.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kvstore.errors import ArchiveDamaged

cdef enum:
    FIRST_MARK = 0x0E
    # Those of digits alone, and the one of a UUID behind them.
    LENGTHS = 17
    UUID_MARK = FIRST_MARK + LENGTHS
    # The shortest id, and the longest.
    LEAST = 16
    MOST = 128
    UUID_SIZE = 36
    UUID_DIGITS = 32
    DASH = 45
    # Bytes that are searched for marks together.
    STRIDE = 32

# The lengths in digits: mark FIRST_MARK + i stands for the length i. DO NOT CHANGE: in archives.
cdef int[LENGTHS] _LENGTHS = [16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 48, 56, 64, 80, 96, 128]
cdef const char *_DIGITS = b"0123456789abcdef"
cdef uint8_t[MOST + 1] _mark_of
# The value of a digit; NONE for other bytes.
cdef uint8_t[256] _value_of
# The two digits of each byte.
cdef uint8_t[512] _pairs
cdef enum:
    NONE = 255

for _i in range(256):
    _value_of[_i] = NONE
for _i in range(16):
    _value_of[_DIGITS[_i]] = _i
for _i in range(256):
    _pairs[2 * _i], _pairs[2 * _i + 1] = _DIGITS[_i >> 4], _DIGITS[_i & 15]
for _i in range(LENGTHS):
    _mark_of[_LENGTHS[_i]] = FIRST_MARK + _i


cdef inline bint _has_mark(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    # Without a branch a byte, so that compilers look at many at a time.
    cdef Py_ssize_t i
    cdef uint8_t found = 0
    for i in range(size):
        found |= <uint8_t>(at[i] - FIRST_MARK) <= <uint8_t>LENGTHS
    return found != 0


cdef inline bint _is_inner(uint8_t byte) noexcept nogil:
    return _value_of[byte] != NONE or byte == DASH


cdef inline bint _is_dashed(Py_ssize_t place) noexcept nogil:
    # Whether a UUID has a dash there.
    return place == 8 or place == 13 or place == 18 or place == 23


cdef struct Out:
    uint8_t *text
    uint8_t *digits
    # Behind the last byte that was copied to the text.
    const uint8_t *copied


cdef void _take_out(Out *out, const uint8_t *id_, Py_ssize_t size, int mark) noexcept nogil:
    cdef Py_ssize_t i
    cdef int high = -1
    memcpy(out.text, out.copied, id_ - out.copied)
    out.text += id_ - out.copied
    out.text[0] = <uint8_t>mark
    out.text += 1
    out.copied = id_ + size
    for i in range(size):
        if id_[i] == DASH:
            continue
        if high < 0:
            high = _value_of[id_[i]]
            continue
        out.digits[0] = <uint8_t>(high << 4 | _value_of[id_[i]])
        out.digits += 1
        high = -1


cdef void _take_run(Out *out, const uint8_t *run, Py_ssize_t size) noexcept nogil:
    # The ids of a run of digits and dashes.
    cdef Py_ssize_t i, begin = 0
    cdef bint is_uuid = size == UUID_SIZE
    if is_uuid:
        for i in range(size):
            is_uuid &= (run[i] == DASH) == _is_dashed(i)
    if is_uuid:
        _take_out(out, run, size, UUID_MARK)
        return
    for i in range(size + 1):
        if i < size and run[i] != DASH:
            continue
        if LEAST <= i - begin <= MOST and _mark_of[i - begin]:
            _take_out(out, run + begin, i - begin, _mark_of[i - begin])
        begin = i + 1


def extract_ids(bytes payload not None):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(payload), at = 0, begin, end = 0
    cdef bint has_mark
    cdef Out out
    cdef uint8_t *text
    cdef uint8_t *digits
    with nogil:
        has_mark = _has_mark(data, size)
    if has_mark or size < LEAST:
        return None
    text = <uint8_t *>malloc(size + size // 2)
    if text == NULL:
        raise MemoryError
    digits = text + size
    out = Out(text, digits, data)
    with nogil:
        while at + LEAST <= size:
            # A run that is long enough has each byte of this distance, so others are not looked at.
            if not _is_inner(data[at + LEAST - 1]):
                at += LEAST
                continue
            begin = at + LEAST - 1
            while begin > end and _is_inner(data[begin - 1]):
                begin -= 1
            end = at + LEAST
            while end < size and _is_inner(data[end]):
                end += 1
            if end - begin >= LEAST:
                _take_run(&out, data + begin, end - begin)
            at = end
        memcpy(out.text, out.copied, data + size - out.copied)
        out.text += data + size - out.copied
    try:
        if out.digits == digits:
            return None
        return (
            PyBytes_FromStringAndSize(<char *>text, out.text - text),
            PyBytes_FromStringAndSize(<char *>digits, out.digits - digits),
        )
    finally:
        free(text)


cdef Py_ssize_t _find_marks(
    const uint8_t *text, Py_ssize_t size, Py_ssize_t *places, Py_ssize_t most
) noexcept nogil:
    # The places of marks; one more than the most if there are more.
    cdef Py_ssize_t at = 0, i, found = 0
    while at < size:
        if size - at >= STRIDE and not _has_mark(text + at, STRIDE):
            at += STRIDE
            continue
        for i in range(at, min(at + STRIDE, size)):
            if <uint8_t>(text[i] - FIRST_MARK) <= LENGTHS:
                if found == most:
                    return found + 1
                places[found] = i
                found += 1
        at += STRIDE
    return found


cdef void _put_back(uint8_t *out, const uint8_t *packed, Py_ssize_t size) noexcept nogil:
    # The digits of `size` bytes.
    cdef Py_ssize_t i
    for i in range(size):
        memcpy(out + 2 * i, _pairs + 2 * packed[i], 2)


def restore_ids(bytes text not None, bytes digits not None, Py_ssize_t size):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(text)
    cdef const uint8_t *packed = <const uint8_t *>PyBytes_AS_STRING(digits)
    cdef Py_ssize_t text_size = PyBytes_GET_SIZE(text), most = PyBytes_GET_SIZE(digits) * 2 // LEAST
    cdef Py_ssize_t count, i, used = 0, total = text_size, at = 0, length
    cdef int mark
    cdef bint is_uuid
    cdef uint8_t *out
    cdef Py_ssize_t *places = <Py_ssize_t *>malloc(max(most, 1) * sizeof(Py_ssize_t))
    if places == NULL:
        raise MemoryError
    try:
        with nogil:
            count = _find_marks(data, text_size, places, most)
            for i in range(min(count, most)):
                mark = data[places[i]] - FIRST_MARK
                used += UUID_DIGITS if mark == LENGTHS else _LENGTHS[mark]
                total += (UUID_SIZE if mark == LENGTHS else _LENGTHS[mark]) - 1
        if count > most or used != 2 * PyBytes_GET_SIZE(digits) or total != size:
            raise ArchiveDamaged("the digits of a part do not belong to its text")
        payload = PyBytes_FromStringAndSize(NULL, size)
        out = <uint8_t *>PyBytes_AS_STRING(payload)
        with nogil:
            for i in range(count):
                memcpy(out, data + at, places[i] - at)
                out += places[i] - at
                at = places[i] + 1
                mark = data[places[i]] - FIRST_MARK
                is_uuid = mark == LENGTHS
                length = (UUID_DIGITS if is_uuid else _LENGTHS[mark]) >> 1
                if is_uuid:
                    _put_back(out, packed, 4)
                    for mark in range(3):
                        out[8 + 5 * mark] = DASH
                        _put_back(out + 9 + 5 * mark, packed + 4 + 2 * mark, 2)
                    out[23] = DASH
                    _put_back(out + 24, packed + 10, 6)
                    out += UUID_SIZE
                else:
                    _put_back(out, packed, length)
                    out += 2 * length
                packed += length
            memcpy(out, data + at, text_size - at)
    finally:
        free(places)
    return payload
