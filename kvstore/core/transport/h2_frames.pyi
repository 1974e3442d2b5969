"""Bytes <-> frames of HTTP/2, and the head of a request; see h2_frames.pyx."""

Buffer = bytes | bytearray | memoryview

Frame = tuple[int, int, int, bytes, int, int]
"""Kind, flags, stream; the payload without padding and priority; the size with them; the fault: 0,
the error code that the connection ends with, or below 0 the one that its stream ends with.
"""

def split_frames(data: Buffer, size_max: int) -> tuple[list[Frame], int]:
    """The whole frames at the beginning of `data`, and their bytes. A fault of the connection ends
    the list, and takes all bytes.
    """

def frame_of(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame. Raises ValueError for a number or a payload that none has."""

def answer_frames(
    stream: int, head: bytes, message: bytes | None, trailers: bytes | None, size_max: int
) -> bytes:
    """Frames of an answer: header block (unless it is empty), the message as gRPC frames it, and
    the trailers' block, behind which the stream ends. DATA frames have `size_max` bytes at most.
    Raises ValueError for a number or a size that no frame has.
    """

def read_head(fields: list[tuple[str, str]], is_trailer: bool) -> tuple[str, str, dict[str, str]]:
    """Method, path and the other fields of a request (of trailers: the other fields); values of one
    name are joined by commas. Raises FormatError for a list that RFC 9113 calls malformed.
    """
