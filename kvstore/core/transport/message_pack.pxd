"""MessagePack, as far as values of the local protocol need it: heads, numbers, texts and bytes.

The idea: inline functions over two structs, the bytes written so far, and those still to be read.

Invariants: nothing is written beyond the room, nothing read beyond the end; no memory is taken for
a length beyond the bytes that are there; bytes that are no such value are ValueError (of which
UnicodeDecodeError is one) or OverflowError.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MIN, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from kvstore.core.buffers cimport load_be32, load_be64, store_be32, store_be64

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    # Of bytes that nobody else has.
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *at, Py_ssize_t size) except NULL
    int resize "_PyBytes_Resize"(PyObject **one, Py_ssize_t size) except -1
    char *memory_of "PyBytes_AS_STRING"(PyObject *one)
    void let_go "Py_XDECREF"(PyObject *one)

cdef enum:
    ROOM_MIN = 512
    # Bytes of a value's head, at most.
    HEAD_MAX = 9
    # How many fields each value of the local protocol has.
    MESSAGE_FIELDS = 15
    RESULT_FIELDS = 8
    POPPED_FIELDS = 4
    STORED_FIELDS = 17


# --- writing ---

cdef struct Out:
    # A bytes object that nobody else has, whose memory it is; NULL before there is any.
    PyObject *owner
    uint8_t *bytes
    Py_ssize_t size
    Py_ssize_t room


cdef inline int grow(Out *out, Py_ssize_t room) except -1:
    if out.owner == NULL:
        out.owner = new_bytes(NULL, room)
    else:
        resize(&out.owner, room)
    out.bytes = <uint8_t *>memory_of(out.owner)
    out.room = room
    return 0


cdef inline int reserve(Out *out, Py_ssize_t more) except -1:
    if out.size + more > out.room:
        grow(out, max(2 * out.room + more, ROOM_MIN))
    return 0


cdef inline bytes written(Out *out):
    # All bytes; the end of the writing.
    cdef PyObject *owner = out.owner
    if owner == NULL:
        return b""
    out.owner = NULL
    resize(&owner, out.size)
    found = <bytes>owner
    Py_DECREF(found)
    return found


cdef inline void drop(Out *out) noexcept:
    # Frees the memory of a writing that did not end.
    let_go(out.owner)
    out.owner = NULL


cdef inline void write_byte(Out *out, int byte) noexcept:
    # Into room that is there.
    out.bytes[out.size] = <uint8_t>byte
    out.size += 1


cdef inline int write_head(
    Out *out, int small, int small_max, int of_8, int of_16, uint64_t size
) except -1:
    # The head of an array, a map, a text or bytes, by its sizes' forms; the one of 32 bits follows
    # that of 16.
    if size > 0xFFFFFFFF:
        raise OverflowError("more than 32 bits hold")
    reserve(out, HEAD_MAX)
    if <int64_t>size <= small_max:
        write_byte(out, small | <int>size)
    elif size <= 0xFF and of_8:
        write_byte(out, of_8)
        write_byte(out, <int>size)
    elif size <= 0xFFFF:
        write_byte(out, of_16)
        write_byte(out, <int>(size >> 8))
        write_byte(out, <int>(size & 0xFF))
    else:
        write_byte(out, of_16 + 1)
        store_be32(out.bytes + out.size, size)
        out.size += 4
    return 0


cdef inline int write_array(Out *out, Py_ssize_t count) except -1:
    return write_head(out, 0x90, 15, 0, 0xDC, count)


cdef inline int write_raw(Out *out, const void *at, Py_ssize_t size) except -1:
    # Nothing may stand at NULL, which memcpy does not take.
    if size:
        reserve(out, size)
        memcpy(out.bytes + out.size, at, size)
        out.size += size
    return 0


cdef inline int write_bytes(Out *out, const char *at, Py_ssize_t size) except -1:
    write_head(out, 0, -1, 0xC4, 0xC5, size)
    return write_raw(out, at, size)


cdef inline int write_text(Out *out, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *at = PyUnicode_AsUTF8AndSize(text, &size)
    write_head(out, 0xA0, 31, 0xD9, 0xDA, size)
    return write_raw(out, at, size)


cdef inline int write_natural(Out *out, uint64_t number) except -1:
    reserve(out, HEAD_MAX)
    if number < 0x80:
        write_byte(out, <int>number)
    elif number <= 0xFF:
        write_byte(out, 0xCC)
        write_byte(out, <int>number)
    elif number <= 0xFFFF:
        write_byte(out, 0xCD)
        write_byte(out, <int>(number >> 8))
        write_byte(out, <int>(number & 0xFF))
    elif number <= 0xFFFFFFFF:
        write_byte(out, 0xCE)
        store_be32(out.bytes + out.size, number)
        out.size += 4
    else:
        write_byte(out, 0xCF)
        store_be64(out.bytes + out.size, number)
        out.size += 8
    return 0


cdef inline int write_number(Out *out, int64_t number) except -1:
    if number >= 0:
        return write_natural(out, <uint64_t>number)
    reserve(out, HEAD_MAX)
    if number >= -32:
        write_byte(out, <int>(number & 0xFF))
    elif number >= -0x80:
        write_byte(out, 0xD0)
        write_byte(out, <int>(number & 0xFF))
    elif number >= -0x8000:
        write_byte(out, 0xD1)
        write_byte(out, <int>(number >> 8 & 0xFF))
        write_byte(out, <int>(number & 0xFF))
    elif number >= INT32_MIN:
        write_byte(out, 0xD2)
        store_be32(out.bytes + out.size, <uint64_t>number & 0xFFFFFFFF)
        out.size += 4
    else:
        write_byte(out, 0xD3)
        store_be64(out.bytes + out.size, <uint64_t>number)
        out.size += 8
    return 0


cdef inline int write_float(Out *out, double number) except -1:
    cdef uint64_t word
    memcpy(&word, &number, 8)
    reserve(out, HEAD_MAX)
    write_byte(out, 0xCB)
    store_be64(out.bytes + out.size, word)
    out.size += 8
    return 0


# --- reading ---

cdef struct In:
    const uint8_t *at
    const uint8_t *end


cdef inline int refuse_bytes() except -1:
    raise ValueError("the bytes are no such values")


cdef inline const uint8_t *next_bytes(In *given, uint64_t size) except NULL:
    # The next bytes, behind which reading goes on.
    cdef const uint8_t *at = given.at
    if size > <uint64_t>(given.end - at):
        refuse_bytes()
    given.at = at + size
    return at


cdef inline uint64_t read_big_endian(In *given, int width) except? 0xFFFFFFFFFFFFFFFF:
    cdef const uint8_t *at = next_bytes(given, width)
    if width == 1:
        return at[0]
    if width == 2:
        return <uint64_t>at[0] << 8 | at[1]
    return load_be32(at) if width == 4 else load_be64(at)


cdef inline uint64_t read_count(In *given) except? 0xFFFFFFFFFFFFFFFF:
    # Of an array, whose elements take a byte each at least.
    cdef int head = next_bytes(given, 1)[0]
    cdef uint64_t count = 0
    if head >> 4 == 9:
        count = head & 15
    elif head == 0xDC or head == 0xDD:
        count = read_big_endian(given, 2 if head == 0xDC else 4)
    else:
        refuse_bytes()
    if count > <uint64_t>(given.end - given.at):
        refuse_bytes()
    return count


cdef inline int expect_array(In *given, uint64_t count) except -1:
    return 0 if read_count(given) == count else refuse_bytes()


cdef inline const uint8_t *text_at(In *given, Py_ssize_t *size) except NULL:
    cdef int head = next_bytes(given, 1)[0]
    if head >> 5 == 5:
        size[0] = head & 31
    elif 0xD9 <= head <= 0xDB:
        size[0] = <Py_ssize_t>read_big_endian(given, 1 << (head - 0xD9))
    else:
        refuse_bytes()
    return next_bytes(given, <uint64_t>size[0])


cdef inline object read_text(In *given):
    cdef Py_ssize_t size = 0
    cdef const uint8_t *at = text_at(given, &size)
    return PyUnicode_DecodeUTF8(<const char *>at, size, NULL)


cdef inline object read_shared_text(In *given, object known):
    # A text; the one that is known, if it is the same.
    cdef Py_ssize_t size = 0, known_size
    cdef const uint8_t *at = text_at(given, &size)
    cdef const char *before
    if known is not None:
        before = PyUnicode_AsUTF8AndSize(known, &known_size)
        if known_size == size and memcmp(before, at, size) == 0:
            return known
    return PyUnicode_DecodeUTF8(<const char *>at, size, NULL)


cdef inline bytes read_bytes(In *given, bytes known):
    # Bytes; those that are known, if they are the same.
    cdef int head = next_bytes(given, 1)[0]
    cdef uint64_t size = 0
    cdef const uint8_t *at
    if 0xC4 <= head <= 0xC6:
        size = read_big_endian(given, 1 << (head - 0xC4))
    else:
        refuse_bytes()
    at = next_bytes(given, size)
    if known is not None and <uint64_t>PyBytes_GET_SIZE(known) == size:
        if memcmp(PyBytes_AS_STRING(known), at, size) == 0:
            return known
    return PyBytes_FromStringAndSize(<const char *>at, size)


cdef inline int64_t read_number(In *given) except? -1:
    cdef int head = next_bytes(given, 1)[0]
    cdef uint64_t found = 0
    if head < 0x80:
        return head
    if head >= 0xE0:
        return <int8_t>head
    if 0xCC <= head <= 0xCF:
        found = read_big_endian(given, 1 << (head - 0xCC))
        if found > <uint64_t>INT64_MAX:
            raise OverflowError("a number of more than 63 bits")
        return <int64_t>found
    if head == 0xD0:
        return <int8_t>read_big_endian(given, 1)
    if head == 0xD1:
        return <int16_t>read_big_endian(given, 2)
    if head == 0xD2:
        return <int32_t>read_big_endian(given, 4)
    if head == 0xD3:
        return <int64_t>read_big_endian(given, 8)
    return refuse_bytes()


cdef inline bint read_bool(In *given) except -1:
    cdef int head = next_bytes(given, 1)[0]
    if head != 0xC2 and head != 0xC3:
        refuse_bytes()
    return head == 0xC3


cdef inline int expect_end(In *given) except -1:
    return 0 if given.at == given.end else refuse_bytes()
