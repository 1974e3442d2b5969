"""Header lists <-> header blocks; see hpack.pyx."""

from typing import final

Field = tuple[str, str]
"""Name and value, one character for each byte."""

def huffman_encode(data: bytes) -> bytes:
    """The bytes in the code of RFC 7541, appendix B."""

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

@final
class HeaderEncoder:
    """The encoder of one connection, with its dynamic table of 4,096 bytes at most."""

    def __init__(self) -> None: ...
    def resize(self, size: int) -> None:
        """Has a table of `size` bytes, or of 4,096 if that is more; the next block says so. Raises
        ValueError for less than 0.
        """

    def encode(self, fields: list[Field], is_indexed: bool) -> bytes:
        """The block of a list; `is_indexed`: fields are added to the table, for they will come
        again. Raises UnicodeEncodeError for a character that is no byte.
        """
