"""Many slices of one buffer; see packed_texts.pyx.

Text `i` of each function is `data[starts[i]:stops[i]]`. Every function raises ValueError if one of
them is not inside `data`, or has no begin or no end.
"""

import numpy as np
from numpy.typing import NDArray

from kvstore.core.records import Buffer

I64 = NDArray[np.int64]

def gather(data: Buffer, starts: I64, stops: I64) -> bytes:
    """The texts side by side. Raises MemoryError."""

def crc_texts(data: Buffer, starts: I64, stops: I64) -> NDArray[np.uint32]:
    """The CRC-32 of each text. Other threads run meanwhile."""

def split_fields(
    data: Buffer, starts: I64, stops: I64
) -> tuple[list[tuple[bytes, ...]], I64, list[bytes], I64]:
    """Splits properties fields: pairs of name, 0x01 and value, with 0x02 between them.

    Gives the *shapes*, as they came first: the names, and behind them b"\\1" if 0x02 stands behind
    the last value as well, b"\\0" if not, or b"\\2" alone if a pair of the field has no 0x01. Then
    the number of each field's shape; all names, as they came first; and four columns with one row a
    value: the number of its name, its field, its begin and its end. A field without a shape has
    itself as its one value, under the name b"".
    """

def number_texts(data: Buffer, starts: I64, stops: I64, most: int) -> tuple[I64, I64] | None:
    """The number of each text among the different ones, in the order in which they came, and the
    row where each different one came first. None if there are more than `most`.
    """

def parse_ids(data: Buffer, starts: I64, stops: I64) -> I64 | None:
    """The parts of unique ids: four rows with the first 8 bytes of each id, the next 2, 4 and 2.
    None unless each text is 32 hexadecimal digits in capitals.
    """

def parse_numbers(data: Buffer, starts: I64, stops: I64) -> tuple[I64, int, int] | None:
    """Decimal numbers of 1 to 18 digits behind a text that is the same for all: the numbers, the
    size of that text in bytes, and the digits of each (0: as many as it needs). None for other
    texts, and for none at all.
    """

def hash_texts(
    data: Buffer, starts: I64, stops: I64, by_word: bool
) -> tuple[NDArray[np.uint32], I64]:
    """XXH32 of each text, or of each of its words, which spaces part, and the number of the text.
    Empty ones are left out. Other threads run meanwhile.
    """
