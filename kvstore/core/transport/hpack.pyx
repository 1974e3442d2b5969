# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""HPACK: header lists <-> the bytes of header blocks (RFC 7541).

The idea: a field is a tuple of two texts, one character for each byte. The decoder's dynamic table
keeps such tuples, so a field that a peer sends again is given again and nothing is made. The
Huffman code is canonical: the lengths of its codes say all codes. A block that is encoded depends
on no other: it uses the static table alone, so one that is sent often is made once.

Invariants: a length is held against the bytes that are there before anything is allocated; a list
above its limit is decoded to its end, because the table must follow, but is not kept; no table is
larger than 4,096 bytes by RFC 7541's count.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kvstore.errors import FormatError

cdef enum:
    SYMBOLS = 257
    END_OF_STRING = 256
    LENGTH_MAX = 30
    # Codes of so many bits are found by one look.
    QUICK = 9
    OVERHEAD = 32
    TABLE_MAX = 4096
    STATIC = 61
    NUMBER_MAX = 1 << 28
    FEW = 1024

cdef bytes _LENGTHS = bytes((
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
))
cdef tuple _STATIC = tuple(tuple(line.strip().split("=", 1)) for line in """\
:authority=|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https\
|:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|:status=500\
|accept-charset=|accept-encoding=gzip, deflate|accept-language=|accept-ranges=|accept=\
|access-control-allow-origin=|age=|allow=|authorization=|cache-control=|content-disposition=\
|content-encoding=|content-language=|content-length=|content-location=|content-range=\
|content-type=|cookie=|date=|etag=|expect=|expires=|from=|host=|if-match=|if-modified-since=\
|if-none-match=|if-range=|if-unmodified-since=|last-modified=|link=|location=|max-forwards=\
|proxy-authenticate=|proxy-authorization=|range=|referer=|refresh=|retry-after=|server=\
|set-cookie=|strict-transport-security=|transfer-encoding=|user-agent=|vary=|via=\
|www-authenticate=""".split("|"))
cdef dict _NAMES = {name: STATIC - i for i, (name, _) in enumerate(reversed(_STATIC))}
cdef dict _FIELDS = {field: i for i, field in enumerate(_STATIC, 1) if field[1]}

# By length: the first code behind its codes, at the upper end of 32 bits; the number of the first
# symbol less its code.
cdef uint64_t _limits[LENGTH_MAX + 1]
cdef int64_t _offsets[LENGTH_MAX + 1]
# Symbols in the order of their codes.
cdef int _ordered[SYMBOLS]
cdef int _quick[1 << QUICK]


cdef int _make_codes() except -1:
    cdef int length, symbol, count = 0, low
    cdef int64_t code = 0
    memset(_quick, 0xFF, sizeof(_quick))
    for length in range(1, LENGTH_MAX + 1):
        code <<= 1
        _offsets[length] = count - code
        for symbol in range(SYMBOLS):
            if <uint8_t>_LENGTHS[symbol] == length:
                _ordered[count] = symbol
                if length <= QUICK:
                    for low in range(1 << (QUICK - length)):
                        _quick[(code << (QUICK - length)) + low] = symbol
                code += 1
                count += 1
        _limits[length] = <uint64_t>code << (32 - length)
    return 0


_make_codes()
cdef const uint8_t *_lengths = <const uint8_t *><const char *>_LENGTHS


# --- Huffman ---


cdef Py_ssize_t _decode(const uint8_t *at, Py_ssize_t size, uint8_t *out) except -1:
    # The number of bytes, at most 8/5 of `size`.
    cdef const uint8_t *end = at + size
    cdef uint64_t held = 0, bits
    cdef Py_ssize_t made = 0
    cdef int have = 0, length, symbol
    while True:
        while have <= 48 and at < end:
            held = held << 8 | at[0]
            at += 1
            have += 8
        # The next 32 bits, with ones behind the end.
        if have >= 32:
            bits = held >> (have - 32) & 0xFFFFFFFF
        else:
            bits = (held << (32 - have) | ((<uint64_t>1 << (32 - have)) - 1)) & 0xFFFFFFFF
        if have < 8 and bits == 0xFFFFFFFF:
            return made
        symbol = _quick[bits >> (32 - QUICK)]
        if symbol >= 0:
            length = _lengths[symbol]
        else:
            length = QUICK + 1
            while length < LENGTH_MAX and bits >= _limits[length]:
                length += 1
            symbol = _ordered[<int64_t>(bits >> (32 - length)) + _offsets[length]]
        if length > have or symbol == END_OF_STRING:
            raise FormatError("a Huffman code does not end as RFC 7541 asks")
        out[made] = <uint8_t>symbol
        made += 1
        have -= length


def huffman_decode(bytes data not None):
    cdef bytes room = PyBytes_FromStringAndSize(NULL, len(data) * 8 // 5 + 1)
    cdef Py_ssize_t size = _decode(
        <const uint8_t *><const char *>data, len(data), <uint8_t *><char *>room
    )
    return room[:size]


# --- decoding ---


cdef class HeaderDecoder:
    cdef list _table
    cdef Py_ssize_t _size
    cdef Py_ssize_t _size_max
    cdef const uint8_t *_at
    cdef const uint8_t *_end

    def __cinit__(self):
        self._table = []
        self._size_max = TABLE_MAX

    def decode(self, bytes block not None, Py_ssize_t list_max):
        cdef list found = []
        cdef tuple field
        cdef bint is_first = True
        cdef uint8_t first
        cdef Py_ssize_t total = 0
        self._at = <const uint8_t *><const char *>block
        self._end = self._at + len(block)
        while self._at < self._end:
            first = self._at[0]
            if first & 0x80:
                field = self._field(self._number(7))
            elif first & 0x40:
                field = self._literal(6)
                self._add(field)
            elif first & 0x20:
                if not is_first:
                    raise FormatError("a table's size changes within a header block")
                self._resize(self._number(5))
                continue
            else:
                field = self._literal(4)
            is_first = False
            total += _size_of(field)
            if total <= list_max:
                found.append(field)
        return found if total <= list_max else None

    cdef tuple _literal(self, int bits):
        cdef Py_ssize_t index = self._number(bits)
        cdef str name = self._field(index)[0] if index else self._text()
        return name, self._text()

    cdef tuple _field(self, Py_ssize_t index):
        if 0 < index <= STATIC:
            return <tuple>_STATIC[index - 1]
        if index == 0 or index - STATIC > len(self._table):
            raise FormatError(f"a header block names field {index}, which no table has")
        return <tuple>self._table[index - STATIC - 1]

    cdef Py_ssize_t _number(self, int bits) except -1:
        cdef Py_ssize_t found = self._at[0] & ((1 << bits) - 1)
        cdef int shift = 0
        cdef uint8_t last
        self._at += 1
        if found < (1 << bits) - 1:
            return found
        while self._at < self._end and shift < 28:
            last = self._at[0]
            self._at += 1
            found += <Py_ssize_t>(last & 0x7F) << shift
            if not last & 0x80:
                return found
            shift += 7
        raise FormatError("a number in a header block is cut or too large")

    cdef str _text(self):
        cdef uint8_t few[FEW]
        cdef bytes many
        cdef bint is_coded
        cdef Py_ssize_t size
        cdef const uint8_t *at
        if self._at == self._end:
            raise FormatError("a header block ends before a text")
        is_coded = self._at[0] & 0x80
        size = self._number(7)
        if size > self._end - self._at:
            raise FormatError(f"a text of {size} bytes is longer than its header block")
        at = self._at
        self._at += size
        if is_coded:
            if size * 8 // 5 < FEW:
                size = _decode(at, size, few)
                at = few
            else:
                many = huffman_decode((<const char *>at)[:size])
                size = len(many)
                at = <const uint8_t *><const char *>many
        return PyUnicode_DecodeLatin1(<const char *>at, size, NULL)

    cdef int _add(self, tuple field) except -1:
        cdef Py_ssize_t size = _size_of(field)
        self._shrink(self._size_max - size)
        if size <= self._size_max:
            self._table.insert(0, field)
            self._size += size
        return 0

    cdef int _resize(self, Py_ssize_t size) except -1:
        if size > TABLE_MAX:
            raise FormatError(f"a table of {size} bytes was asked for; {TABLE_MAX} were offered")
        self._size_max = size
        return self._shrink(size)

    cdef int _shrink(self, Py_ssize_t size) except -1:
        while self._size > size and self._table:
            self._size -= _size_of(<tuple>self._table.pop())
        return 0


cdef inline Py_ssize_t _size_of(tuple field) except -1:
    return len(<str>field[0]) + len(<str>field[1]) + OVERHEAD


# --- encoding ---


cdef int _put_number(bytearray out, int first, int bits, Py_ssize_t number) except -1:
    cdef int most = (1 << bits) - 1
    if number < most:
        out.append(first | number)
        return 0
    out.append(first | most)
    number -= most
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return 0


cdef int _put_text(bytearray out, str text) except -1:
    cdef bytes data = text.encode("latin-1")
    _put_number(out, 0, 7, len(data))
    out += data
    return 0


def encode_fields(list fields not None):
    cdef bytearray out = bytearray()
    cdef str name, value
    for field in fields:
        name, value = <tuple?>field
        index = _FIELDS.get(field)
        if index is not None:
            _put_number(out, 0x80, 7, index)
            continue
        index = _NAMES.get(name, 0)
        _put_number(out, 0, 4, index)
        if not index:
            _put_text(out, name)
        _put_text(out, value)
    return bytes(out)
