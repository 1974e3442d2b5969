"""Header lists <-> header blocks; see hpack.pyx."""

from typing import final

Field = tuple[str, str]
"""Name and value, one character for each byte."""

def huffman_decode(data: bytes) -> bytes:
    """The bytes that were encoded. Raises FormatError for bytes that are no such code, or have
    other padding than its ones.
    """

@final
class HeaderDecoder:
    """The decoder of one connection, with its dynamic table of 4,096 bytes at most."""

    def __init__(self) -> None: ...
    def decode(self, block: bytes, list_max: int) -> list[Field] | None:
        """The fields of a block; None if they are more than `list_max` bytes by RFC 9113's count
        (32 more than its texts for each). Raises FormatError for bytes that are no block; the
        decoder is of no use from then on.
        """

def encode_fields(fields: list[Field]) -> bytes:
    """The block of a list, which needs no dynamic table; blocks of two lists make that of both.
    Raises UnicodeEncodeError for a character that is no byte.
    """
