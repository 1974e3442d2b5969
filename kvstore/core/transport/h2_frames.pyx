# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Frames of HTTP/2: bytes <-> frames, and the fields at the head of a request (RFC 9113).

The idea: all frames that have arrived are taken apart in one call, without their padding and
priority; what a frame alone can do wrong is found here, as the error code that answers it. An
answer that fits into its windows is put together in one call, too.

Invariants: no byte behind the data is read, and no length is believed before its bytes are there; a
fault of the connection is the last frame of its list.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from kvstore.core.buffers cimport View, load_be32, store_be32, view_of

from kvstore.errors import FormatError

cdef enum:
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9
    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    HAS_PRIORITY = 0x20
    HEAD = 9
    # In front of a message of gRPC: whether it is compressed, and its size.
    PREFIX = 5
    STREAM_MASK = 0x7FFFFFFF
    PROTOCOL_ERROR = 1
    FRAME_SIZE_ERROR = 6
    SIZE_MAX = (1 << 24) - 1


cdef struct Frame:
    int kind
    int flags
    uint32_t stream
    const uint8_t *at
    Py_ssize_t size


cdef int _unpad(Frame *frame) noexcept nogil:
    # Takes padding and priority away; gives the fault.
    cdef Py_ssize_t padding = 0
    if frame.flags & PADDED:
        if frame.size < 1:
            return FRAME_SIZE_ERROR
        padding = frame.at[0]
        frame.at += 1
        frame.size -= 1
    if frame.kind == HEADERS and frame.flags & HAS_PRIORITY:
        if frame.size < 5:
            return FRAME_SIZE_ERROR
        frame.at += 5
        frame.size -= 5
    if padding > frame.size:
        return PROTOCOL_ERROR
    frame.size -= padding
    if frame.kind == HEADERS and frame.flags & HAS_PRIORITY:
        # A stream that depends on itself is that stream's error alone.
        if load_be32(frame.at - 5) & STREAM_MASK == frame.stream:
            return -PROTOCOL_ERROR
    return 0


cdef int _fault(Frame *frame) noexcept nogil:
    # The code of the frame's own fault; 0 if it has none, negative if it is its stream's alone.
    if frame.kind in (SETTINGS, PING, GOAWAY):
        if frame.stream:
            return PROTOCOL_ERROR
    elif frame.kind <= CONTINUATION and frame.kind != WINDOW_UPDATE and not frame.stream:
        return PROTOCOL_ERROR
    if frame.kind == DATA or frame.kind == HEADERS:
        return _unpad(frame)
    if frame.kind == PRIORITY:
        if frame.size != 5:
            return -FRAME_SIZE_ERROR
        return -PROTOCOL_ERROR if load_be32(frame.at) & STREAM_MASK == frame.stream else 0
    if frame.kind == RST_STREAM:
        return 0 if frame.size == 4 else FRAME_SIZE_ERROR
    if frame.kind == SETTINGS:
        return FRAME_SIZE_ERROR if frame.size % 6 or (frame.flags & ACK and frame.size) else 0
    if frame.kind == PUSH_PROMISE:
        return PROTOCOL_ERROR
    if frame.kind == PING:
        return 0 if frame.size == 8 else FRAME_SIZE_ERROR
    if frame.kind == GOAWAY:
        return 0 if frame.size >= 8 else FRAME_SIZE_ERROR
    if frame.kind == WINDOW_UPDATE:
        if frame.size != 4:
            return FRAME_SIZE_ERROR
        if load_be32(frame.at) & STREAM_MASK == 0:
            return -PROTOCOL_ERROR if frame.stream else PROTOCOL_ERROR
    return 0


def split_frames(data, Py_ssize_t size_max):
    cdef View view = view_of(data)
    cdef const uint8_t *at = view.bytes
    cdef const uint8_t *end = at + view.size
    cdef Py_ssize_t size
    cdef int fault
    cdef Frame frame
    cdef list found = []
    while end - at >= HEAD:
        size = load_be32(at) >> 8
        frame.kind = at[3]
        frame.flags = at[4]
        frame.stream = load_be32(at + 5) & STREAM_MASK
        if size > size_max:
            found.append((frame.kind, frame.flags, frame.stream, b"", size, FRAME_SIZE_ERROR))
            return found, view.size
        if end - at - HEAD < size:
            break
        frame.at = at + HEAD
        frame.size = size
        at += HEAD + size
        fault = _fault(&frame)
        found.append((
            frame.kind, frame.flags, frame.stream,
            PyBytes_FromStringAndSize(<const char *>frame.at, frame.size), size, fault,
        ))
        if fault > 0:
            return found, view.size
    return found, at - view.bytes


# --- writing ---


cdef inline uint8_t *_put_head(
    uint8_t *out, Py_ssize_t size, int kind, int flags, uint32_t stream
) noexcept nogil:
    store_be32(out, <uint32_t>size << 8 | <uint32_t>kind)
    out[4] = <uint8_t>flags
    store_be32(out + 5, stream)
    return out + HEAD


cdef int _check(uint32_t stream, Py_ssize_t size, Py_ssize_t size_max) except -1:
    if stream > STREAM_MASK or not 0 < size_max <= SIZE_MAX or size > SIZE_MAX:
        raise ValueError(f"no frame of stream {stream} has {size} of at most {size_max} bytes")
    return 0


def frame_of(int kind, int flags, uint32_t stream, bytes payload not None):
    cdef Py_ssize_t size = len(payload)
    cdef bytes made
    cdef uint8_t *out
    _check(stream, size, SIZE_MAX)
    if not 0 <= kind <= 0xFF or not 0 <= flags <= 0xFF:
        raise ValueError(f"no frame is of kind {kind} with flags {flags}")
    made = PyBytes_FromStringAndSize(NULL, HEAD + size)
    out = _put_head(<uint8_t *><char *>made, size, kind, flags, stream)
    memcpy(out, <const char *>payload, size)
    return made


def answer_frames(
    uint32_t stream, bytes head not None, bytes message, bytes trailers, Py_ssize_t size_max
):
    cdef Py_ssize_t size = 0 if message is None else PREFIX + len(message)
    cdef Py_ssize_t done = 0, stop, room = size + (size + size_max - 1) // max(size_max, 1) * HEAD
    cdef uint8_t prefix[PREFIX]
    cdef const uint8_t *at = NULL
    cdef bytes made
    cdef uint8_t *out
    _check(stream, max(len(head), 0 if trailers is None else len(trailers)), size_max)
    if size > STREAM_MASK:
        raise ValueError(f"a message of {size} bytes is above 2 GiB")
    if head:
        room += HEAD + len(head)
    if trailers is not None:
        room += HEAD + len(trailers)
    made = PyBytes_FromStringAndSize(NULL, room)
    out = <uint8_t *><char *>made
    if head:
        out = _put_head(out, len(head), HEADERS, END_HEADERS, stream)
        memcpy(out, <const char *>head, len(head))
        out += len(head)
    if message is not None:
        at = <const uint8_t *><const char *>message
        prefix[0] = 0
        store_be32(prefix + 1, <uint32_t>len(message))
        while done < size:
            stop = done + min(size - done, size_max)
            out = _put_head(out, stop - done, DATA, 0, stream)
            # Tiny frames cut the prefix, too.
            while done < stop and done < PREFIX:
                out[0] = prefix[done]
                out += 1
                done += 1
            memcpy(out, at, stop - done)
            out += stop - done
            at += stop - done
            done = stop
    if trailers is not None:
        out = _put_head(out, len(trailers), HEADERS, END_HEADERS | END_STREAM, stream)
        memcpy(out, <const char *>trailers, len(trailers))
    return made


# --- the head of a request ---


cdef bint _is_name(str name) except -1:
    # A token of RFC 9110, without capitals.
    cdef Py_UCS4 c
    for c in name:
        if not (c'a' <= c <= c'z' or c'0' <= c <= c'9' or c in u"!#$%&'*+-.^_`|~"):
            return False
    return bool(name)


cdef bint _is_value(str value) except -1:
    cdef Py_UCS4 c
    for c in value:
        if c < 0x20 and c != 9 or c == 0x7F:
            return False
    cdef Py_ssize_t size = len(value)
    return not size or value[0] not in u" \t" and value[size - 1] not in u" \t"


def read_head(list fields not None, bint is_trailer):
    cdef str name, value, method = None, path = None, scheme = None
    cdef dict metadata = {}
    cdef tuple field
    cdef bint is_behind = is_trailer
    for field in fields:
        name, value = field
        if not _is_value(value):
            raise FormatError("the value of a header field has a character that is not allowed")
        if name[:1] == u":":
            if is_behind:
                raise FormatError("a pseudo header field stands behind others, or in trailers")
            if name == u":method" and method is None:
                method = value
            elif name == u":path" and path is None and value:
                path = value
            elif name == u":scheme" and scheme is None:
                scheme = value
            elif name == u":authority" and name not in metadata:
                metadata[name] = value
            else:
                raise FormatError("a pseudo header field is unknown, empty, or there twice")
            continue
        is_behind = True
        if not _is_name(name):
            raise FormatError("the name of a header field is empty, or no token in lower case")
        elif name in (u"connection", u"keep-alive", u"proxy-connection", u"transfer-encoding",
                      u"upgrade") or name == u"te" and value != u"trailers":
            raise FormatError("a header field speaks of the connection, as those of HTTP/1.1 may")
        elif name in metadata:
            metadata[name] = f"{metadata[name]},{value}"
        else:
            metadata[name] = value
    if not is_trailer and (method is None or path is None or scheme is None):
        raise FormatError("a request lacks :method, :path or :scheme")
    return method or u"", path or u"", metadata
